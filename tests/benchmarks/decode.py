"""Times decoding: `cv2.imdecode` beside detcli, in full and with `--fast-decode`, in turns.

    python tests/benchmarks/decode.py FOLDER [--rounds 9] [--enlarge 4] [--for 640] [--plain-heap]
                                      [--model MODEL] [--conf 0.25]

Prints medians in ms an image. With a model, also which boxes `--fast-decode` changes: a box counts
as the same with the same class, an IoU of at least 0.98 and a score within 0.01.
"""

import argparse
import statistics
from functools import partial
from pathlib import Path

import cv2
import numpy as np
from in_turns import medians_of, take_turns

from detcli.config.config import Settings
from detcli.run import keep_freed_memory
from detcli.run.batches import BatchDetector
from detcli.source.decode import DecodeOptions, load_bytes


def read(folder, factor):
    """The JPEGs of a folder, enlarged by a factor."""
    for path in sorted(Path(folder).rglob("*.jpg")):
        data = path.read_bytes()
        if factor != 1:
            image = load_bytes(data).pixels
            image = cv2.resize(image, None, fx=factor, fy=factor, interpolation=cv2.INTER_CUBIC)
            data = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 90])[1].tobytes()
        yield data


def measure(decoders, files, rounds):
    """Print the median of each decoder, and its ratio to the first."""

    def all_files(decode):
        for data in files:
            decode(data)

    calls = {name: partial(all_files, decode) for name, decode in decoders.items()}
    medians = medians_of(take_turns(calls, rounds=rounds))
    first = next(iter(medians.values()))
    for name, median in medians.items():
        ms = median / len(files) * 1000
        print(f"{name:28} {ms:7.2f} ms an image  {first / median:5.2f} times as fast")


def overlap(first, second):
    """IoU of each pair of boxes: `(N, 4)` and `(M, 4)` -> `(N, M)`."""
    corner = np.maximum(first[:, None, :2], second[None, :, :2])
    opposite = np.minimum(first[:, None, 2:], second[None, :, 2:])
    common = np.clip(opposite - corner, 0, None).prod(-1)
    first_areas = (first[:, 2:] - first[:, :2]).prod(-1)
    second_areas = (second[:, 2:] - second[:, :2]).prod(-1)
    return common / (first_areas[:, None] + second_areas[None] - common)


def known(detections, references):
    """How many detections have a counterpart among others."""
    is_same = (
        (overlap(detections.xyxy, references.xyxy) >= 0.98)
        & (np.abs(detections.score[:, None] - references.score[None]) <= 0.01)
        & (detections.class_id[:, None] == references.class_id[None])
    )
    return int(is_same.any(1).sum())


def compare(files, arguments):
    """Print how many boxes of either decoder the other finds too."""
    settings = Settings(conf=arguments.conf, imgsz=arguments.side if arguments.resizable else None)
    counts = np.zeros(4, int)
    with BatchDetector(arguments.model, "cpu", settings) as detector:
        options = DecodeOptions(fast_for=detector.canvas)
        for data in files:
            (full,) = detector.submit([load_bytes(data)])()
            (fast,) = detector.submit([load_bytes(data, options)])()
            counts += (len(full), known(full, fast), len(fast), known(fast, full))
    print(f"of {counts[0]} boxes in full, fast has {counts[1]}: {counts[1] / counts[0]:.2%}")
    print(f"of {counts[2]} boxes of fast, full has {counts[3]}: {counts[3] / counts[2]:.2%}")


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--enlarge", type=float, default=1, help="make the images larger first")
    parser.add_argument("--for", type=int, default=640, dest="side", help="the network's input")
    parser.add_argument("--resizable", action="store_true", help="the model takes any --for")
    parser.add_argument("--plain-heap", action="store_true", help="without the command line's heap")
    parser.add_argument("--model")
    parser.add_argument("--conf", type=float, default=0.25)
    arguments = parser.parse_args()
    if not arguments.plain_heap:
        keep_freed_memory()
    files = list(read(arguments.folder, arguments.enlarge))
    fast = DecodeOptions(fast_for=(arguments.side, arguments.side))
    reduced_count = 0
    megapixels = []
    for data in files:
        image = load_bytes(data, fast)
        height, width = image.size
        megapixels.append(height * width / 1e6)
        if image.pixels.shape[:2] != image.size:
            reduced_count += 1
    size = statistics.median(megapixels)
    print(
        f"{len(files)} images of {size:.1f} megapixels, {reduced_count} large enough to be reduced"
    )
    decoders = {
        "cv2.imdecode": lambda data: cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR),
        "detcli": load_bytes,
        "detcli --fast-decode": lambda data: load_bytes(data, fast),
    }
    measure(decoders, files, arguments.rounds)
    if arguments.model:
        compare(files, arguments)


if __name__ == "__main__":
    main()
