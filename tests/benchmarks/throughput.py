"""Times a folder of images, warm, end to end: detcli's pipeline beside others, in turns.

    python tests/benchmarks/throughput.py MODEL FOLDER [--rounds 5] [--yolo]

MODEL is an end-to-end export with a static input. The plain loop is what a short script does:
cv2.imread, letterbox, divide by 255, run the whole graph. `--yolo` adds `YOLO(MODEL).predict`
where Ultralytics is installed. The overhead compares detcli with one detector on all cores
with the sum of decoding, preprocessing and network measured alone.
"""

import argparse
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
import onnxruntime
from in_turns import medians_of, take_turns, yolo

from detcli import Detector, DeviceOptions, predict
from detcli.backend.preprocess import letterbox_image, to_tensor
from detcli.config.device import available_cores
from detcli.data.geometry import Letterbox
from detcli.run import keep_freed_memory
from detcli.run.batches import BatchDetector
from detcli.source.reading import load_file


def plain_loop(model: Path, paths: list[Path]) -> Callable[[], int]:
    """The loop of a short script."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (images_input,) = session.get_inputs()
    height, width = images_input.shape[2:]

    def run() -> int:
        for path in paths:
            image = cv2.imread(str(path))
            box = Letterbox.fit(image.shape[:2], (height, width))
            canvas = letterbox_image(image, box)  # type: ignore[arg-type]
            tensor = canvas[..., ::-1].transpose(2, 0, 1)[None].astype(np.float32) / 255
            session.run(None, {images_input.name: np.ascontiguousarray(tensor)})
        return len(paths)

    return run


def detcli(model: Path, folder: Path, workers: int) -> Callable[[], int]:
    """The pipeline of `detcli predict`."""
    detector = Detector(model, "cpu", options=DeviceOptions(workers=workers))

    def run() -> int:
        count = 0
        for _ in predict(folder, detector):
            count += 1
        return count

    return run


def threads(model: Path, paths: list[Path], cores: int, detectors: int) -> Callable[[], int]:
    """Threads, one a core, that call one detector, or each its own with its part of the cores."""
    first = Detector(model, "cpu", options=DeviceOptions(workers=detectors))
    each = [first]
    for _ in range(detectors - 1):
        each.append(first.clone())

    def run() -> int:
        def work(number: int) -> None:
            for path in paths[number::cores]:
                each[number % detectors](path)

        with ThreadPoolExecutor(cores) as pool:
            list(pool.map(work, range(cores)))
        return len(paths)

    return run


def stages_alone(model: Path, paths: list[Path]) -> Callable[[], int]:
    """Decode, preprocess, network of one detector, with nothing between them."""
    detector = BatchDetector(model, "cpu")
    backend = detector._backend  # noqa: SLF001 - the network without what detcli puts around it

    def run() -> int:
        for path in paths:
            image = load_file(path).pixels
            box = detector.letterbox(image.shape[:2])
            height, width = box.canvas
            tensor = np.empty((1, 3, height, width), np.float32)
            to_tensor(letterbox_image(image, box), tensor[0])
            backend.infer(tensor)
        return len(paths)

    return run


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--yolo", action="store_true")
    options = parser.parse_args()
    keep_freed_memory()
    paths = sorted(options.folder.glob("*.jpg"))
    cores = available_cores()
    runners = {
        f"detcli, {cores} workers": detcli(options.model, options.folder, cores),
        "detcli, 1 worker": detcli(options.model, options.folder, 1),
        f"{cores} threads, 1 detector": threads(options.model, paths, cores, 1),
        f"{cores} threads, {cores} clones": threads(options.model, paths, cores, cores),
        "1 thread, 1 detector": threads(options.model, paths, 1, 1),
        "stages alone": stages_alone(options.model, paths),
        "plain loop": plain_loop(options.model, paths),
    }
    if options.yolo:
        runners["yolo predict"] = yolo(options.model, paths)
    medians = medians_of(take_turns(runners, rounds=options.rounds))
    best = medians[f"detcli, {cores} workers"]
    for name, median in medians.items():
        rate = len(paths) / median
        print(f"{name:22} {rate:6.1f} images/s  {median / best:5.2f} times detcli's time")
    overhead = medians["detcli, 1 worker"] / medians["stages alone"]
    print(f"one worker takes {overhead:.2f} times its stages alone")


if __name__ == "__main__":
    main()
