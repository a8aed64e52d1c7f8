"""A detector with CUDA graphs beside one without, over batches of different sizes, bit for bit.

PYTHONPATH=.:tests python -m benchmarks.gpu.graphs [MODEL] IMAGE...
"""

import itertools
import sys
from pathlib import Path

import numpy as np

from benchmarks.gpu import DONE
from detcli.config.device import DeviceOptions
from detcli.data.geometry import Image
from detcli.run.batches import BatchDetector
from detcli.source.sources import Sources

BATCHES = (32, 5, 32, 8, 32, 1)
ROUNDS = 3
"""A graph is captured at the second batch of a shape and replayed then, after others in between."""


def images(names: list[str]) -> list[Image]:
    """Images that all differ, decoded: those given, each moved to the side a few times."""
    with Sources(names) as sources:
        decoded = [item.load() for item in itertools.islice(sources, max(BATCHES))]
    moved = []
    for number in range(max(BATCHES)):
        image = decoded[number % len(decoded)]
        shift = 7 * (number // len(decoded))
        pixels = np.roll(image.pixels, shift, axis=1)
        moved.append(Image(np.ascontiguousarray(pixels), image.size))
    return moved


def differences(device: str, model: str, names: list[str]) -> list[str]:
    """What is not the same with and without graphs, a line each; nothing where all is."""
    inputs = images(names)
    with (
        BatchDetector(model, device, options=DeviceOptions(cuda_graph=True)) as replaying,
        BatchDetector(model, device, options=DeviceOptions(cuda_graph=False)) as plain,
    ):
        wrong, waiting = [], []
        for number, count in enumerate(BATCHES * ROUNDS):
            batch = []
            for offset in range(count):
                batch.append(inputs[(number + offset) % len(inputs)])
            waiting.append((number, plain.submit(batch), replaying.submit(batch)))
            if len(waiting) == plain.in_flight or number == len(BATCHES) * ROUNDS - 1:
                for batch_number, left, right in waiting:
                    if not _equal(left(), right()):
                        size = BATCHES[batch_number % len(BATCHES)]
                        wrong.append(f"batch {batch_number + 1} of {size} differs")
                waiting.clear()
    return wrong


def _equal(left, right) -> bool:
    """Whether the detections of all images are the same."""
    for expected, detections in zip(left, right, strict=True):
        for name in ("xyxy", "score", "class_id"):
            if not np.array_equal(getattr(expected, name), getattr(detections, name)):
                return False
    return True


def main() -> int:
    """Compare on the first GPU; without a model, with the one that comes with detcli."""
    model, names = "codes", sys.argv[1:]
    if names and Path(names[0]).suffix == ".onnx":
        model = names[0]
        names = names[1:]
    wrong = differences("cuda:0", model, names)
    print("\n".join(wrong or [DONE]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
