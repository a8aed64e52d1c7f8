"""What benchmarks time, a head like a detector's and ways to sort, and how: in turns."""

import math
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

OBJECTS, NEIGHBOURS = 6, 4
MIN_ROUNDS = 5
TURN_S, MAX_TURN = 0.02, 20
"""A turn of one implementation ends after this many seconds, or this many samples."""

MIN_SAMPLE_S, MAX_REPEATS = 1e-4, 1000
"""A sample repeats its call until it takes about this long."""


def detector_head(generator, classes, anchors):
    """A head `(4 + C, N)` like a detector's: low scores, but high ones near a few objects."""
    head = generator.random((4 + classes, anchors), np.float32)
    scores = head[4:]
    np.power(scores, 24, out=scores)
    scores *= np.float32(0.2)
    width = min(NEIGHBOURS, anchors)
    for _ in range(OBJECTS):
        first = generator.integers(0, anchors - width + 1)
        near = scores[generator.integers(classes), first : first + width]
        near[:] = generator.uniform(0.3, 0.95, width)
    return head


def stable_argsort(row, k):
    """Sort everything; of equal values the lower index comes first."""
    return np.argsort(-row, kind="stable")[:k]


def argpartition(row, k):
    """Partition, then sort the k best; equal values come in any order."""
    if k >= len(row):
        return stable_argsort(row, k)
    best = np.argpartition(row, -k)[-k:]
    return best[np.argsort(-row[best])]


def take_turns(
    implementations: Mapping[str, Callable[[], object]],
    seconds: float = 0.0,
    *,
    rounds: int = MIN_ROUNDS,
) -> dict[str, list[float]]:
    """Time implementations in short turns, so that any disturbance affects all of them.

    Each turn begins with an untimed call, which brings the data back into the caches. Calls too
    short for the clock are repeated within a sample. The order changes every round: ONNX Runtime's
    threads keep spinning for a while and slow down the next implementation.

    Args:
        implementations: What to time, by name.
        seconds: Total duration; rounds are completed.
        rounds: Minimum number of turns for each implementation.
    """
    generator = np.random.default_rng(0)
    repeats = {}
    seconds_of: dict[str, list[float]] = {}
    for name, call in implementations.items():
        repeats[name] = repeats_of(call)
        seconds_of[name] = []
    start, completed = time.perf_counter(), 0
    while completed < rounds or time.perf_counter() - start < seconds:
        for name in map(str, generator.permutation(list(implementations))):
            call = implementations[name]
            call()
            until = time.perf_counter() + TURN_S
            for _ in range(MAX_TURN):
                seconds_of[name].append(sample(call, repeats[name]))
                if time.perf_counter() > until:
                    break
        completed += 1
    return seconds_of


def medians_of(seconds_of: Mapping[str, list[float]]) -> dict[str, float]:
    """The median of each implementation's samples."""
    return {name: statistics.median(seconds) for name, seconds in seconds_of.items()}


def sample(call: Callable[[], object], repeats: int = 1) -> float:
    """Seconds of a call, the mean of some repeats."""
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def repeats_of(call: Callable[[], object]) -> int:
    """Calls that make up a sample, so that the clock's own time is negligible."""
    call()
    shortest = min(sample(call), sample(call), sample(call))
    return max(1, min(MAX_REPEATS, math.ceil(MIN_SAMPLE_S / shortest)))


def yolo(model: Path, paths: list[Path]) -> Callable[[], int]:
    """Ultralytics' `predict` of all images, on the engine of the model's format."""
    from ultralytics import YOLO

    network = YOLO(model, task="detect")
    names = [str(path) for path in paths]

    def run() -> int:
        count = 0
        for _ in network.predict(names, device="cpu", verbose=False, stream=True):
            count += 1
        return count

    return run
