"""Encoders of annotated videos, in turns: time, size, and how near the images are.

    python tests/benchmarks/video.py VIDEO [--frames 300] [--rounds 3] [--presets veryfast,medium]

The frames are decoded beforehand, so that what is timed is writing alone: `wall` on the clock,
`cpu` of all threads. PSNR is that of the written frames against the given ones, as OpenCV reads
both. MPEG-4 part 2 is what OpenCV writes where PyAV is not installed.
"""

import argparse
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import cv2
import numpy as np

from detcli.sink import h264
from detcli.sink.video import Mpeg4Encoder


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("video")
    parser.add_argument("--frames", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--presets", default="ultrafast,superfast,veryfast,fast,medium")
    parser.add_argument("--crf", default="20,23,26")
    arguments = parser.parse_args()
    capture = cv2.VideoCapture(arguments.video)
    rate = capture.get(cv2.CAP_PROP_FPS)
    frames = []
    while len(frames) < arguments.frames and (read := capture.read())[0]:
        frames.append(read[1])
    settings_of = {("MPEG-4 part 2", ""): None}
    for preset in arguments.presets.split(","):
        for crf in arguments.crf.split(","):
            settings_of[preset, crf] = {"preset": preset, "crf": crf, "bf": "0"}
    figures = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.mp4"
        for _ in range(arguments.rounds):
            for name_and_crf, options in settings_of.items():
                wall, cpu, size = write(path, frames, rate, options)
                figures[name_and_crf].append((wall, cpu, size, quality(path, frames)))
    height, width = frames[0].shape[:2]
    print(f"{len(frames)} frames of {width}x{height}, medians of {arguments.rounds} rounds")
    print(f"{'encoder':14} {'crf':>4} {'wall':>8} {'cpu':>8} {'kB a s':>8} {'PSNR':>6}")
    for (name, crf), rounds in figures.items():
        wall, cpu, size, near = np.median(rounds, axis=0)
        kilobytes = size / 1000 / (len(frames) / rate)
        print(f"{name:14} {crf:>4} {wall:7.3f}s {cpu:7.3f}s {kilobytes:8.0f} {near:6.2f}")


def write(path, frames, rate, options):
    """Seconds of the clock and of the processor, and bytes, of one video."""
    wall, cpu = time.perf_counter(), time.process_time()
    with path.open("w+b", buffering=0) as file:
        if options is None:
            encoder = Mpeg4Encoder(path, frames[0].shape, rate)
        else:
            h264.OPTIONS["libx264"] = options
            encoder = h264.H264Encoder(file, frames[0].shape, rate)
        for number, image in enumerate(frames):
            encoder.write(image, number / rate)
        encoder.finish()
    return time.perf_counter() - wall, time.process_time() - cpu, path.stat().st_size


def quality(path, frames):
    """PSNR of a written video in dB, over all frames."""
    capture, error = cv2.VideoCapture(str(path)), 0.0
    for image in frames:
        _, decoded = capture.read()
        error += float(np.square(decoded.astype(np.float32) - image).mean())
    return 10 * np.log10(255**2 / (error / len(frames)))


if __name__ == "__main__":
    main()
