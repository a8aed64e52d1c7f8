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
        read = [item.load() for item in itertools.islice(sources, max(BATCHES))]
    moved = ((image, 7 * step) for step in itertools.count() for image in read)
    return [
        Image(np.ascontiguousarray(np.roll(image.pixels, step, axis=1)), image.size)
        for image, step in itertools.islice(moved, max(BATCHES))
    ]


def differences(device: str, model: str, names: list[str]) -> list[str]:
    """What is not the same with and without graphs, a line each; nothing where all is."""
    inputs = images(names)
    with (
        BatchDetector(model, device, options=DeviceOptions(cuda_graph=True)) as replaying,
        BatchDetector(model, device, options=DeviceOptions(cuda_graph=False)) as plain,
    ):
        wrong, waiting = [], []
        for number, count in enumerate(BATCHES * ROUNDS):
            batch = [inputs[(number + offset) % len(inputs)] for offset in range(count)]
            waiting.append((number, plain.submit(batch), replaying.submit(batch)))
            if len(waiting) == plain.in_flight or number == len(BATCHES) * ROUNDS - 1:
                for batch_number, left, right in waiting:
                    pairs = zip(left(), right(), strict=True)
                    if not all(_equal(expected, replayed) for expected, replayed in pairs):
                        size = BATCHES[batch_number % len(BATCHES)]
                        wrong.append(f"batch {batch_number + 1} of {size} differs")
                waiting.clear()
    return wrong


def _equal(left, right) -> bool:
    columns = ("xyxy", "score", "class_id")
    return all(np.array_equal(getattr(left, name), getattr(right, name)) for name in columns)


def main() -> int:
    """Compare on the first GPU; without a model, with the one that comes with detcli."""
    model, names = "codes", sys.argv[1:]
    if names and Path(names[0]).suffix == ".onnx":
        model, *names = names
    wrong = differences("cuda:0", model, names)
    print(*(wrong or [DONE]), sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
