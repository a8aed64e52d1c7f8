"""Launches every kernel on small and odd shapes, for a sanitizer to watch.

    PYTHONPATH=.:tests compute-sanitizer --tool memcheck python -m benchmarks.gpu.launches

The shapes take every path: lists in shared and in device memory, many ties, rows in chunks.
"""

import itertools
import sys
from collections.abc import Collection
from contextlib import ExitStack

import numpy as np

import detcli
from benchmarks.gpu import DONE
from benchmarks.gpu.devices import Watched
from benchmarks.gpu.letterbox import ours as letterbox
from benchmarks.gpu.letterbox import specified
from benchmarks.gpu.peers import DisagreementError
from benchmarks.gpu.selection import Head, compare, rows_of
from benchmarks.gpu.selection import ours as select
from detcli.backend import postprocess
from detcli.backend.cuda.topk import top_k
from detcli.backend.postprocess import SelectionOptions
from detcli.data.geometry import Letterbox

HEADS = ((1, 1, 1, 1), (3, 33, 20, 300), (1, 1025, 3, 300), (1, 3000, 20, 300), (1, 3000, 5, 2100))
ROWS = ((1, 1, 1), (3, 33, 300), (2, 1025, 300), (1, 5000, 300), (1, 17000, 10), (1, 9000, 2500))
IMAGES = (((1, 1), (32, 32)), ((50, 70), (40, 72)), ((64, 64), (64, 64)))


def launch_all(gpu, kernels: Collection[str]) -> list[str]:
    """Launch everything once.

    Args:
        gpu: Where.
        kernels: The names of all there are.

    Returns:
        What is wrong, a line each.
    """
    watched, wrong = Watched(gpu), []
    generator = np.random.default_rng(0)
    for part in (_selections, _top_ks, _letterboxes):
        for name, is_right in part(watched, generator):
            if not is_right:
                wrong.append(f"{name}: not NumPy's answer")
    gpu.synchronize()
    launched = {launch[0] for launch in watched.launches}
    for name in sorted(set(kernels) - launched):
        wrong.append(f"{name}: never launched")
    return wrong


def _selections(gpu, generator):
    for (batch, anchors, classes, keep), half, iou in itertools.product(
        HEADS, (False, True), (None, 0.5)
    ):
        head = Head(batch, anchors, "float16" if half else "float32", classes=classes)
        options = SelectionOptions(0.25, keep, None, iou)
        boxes = generator.integers(0, 100, (batch, 4, anchors))
        scores = generator.integers(0, 64, (batch, classes, anchors)) / 64  # many ties
        heads = np.concatenate([boxes, scores], axis=1).astype(head.dtype)
        with ExitStack() as scope:
            selection = select(gpu, head, [heads], options, scope, cxcywh=iou is not None)
            answer = selection.fetch(selection.enqueue(0))
        is_right = True
        for rows, scored in zip(answer, heads, strict=True):
            expected = rows_of(postprocess.select(scored, options, cxcywh=iou is not None))
            try:
                compare(rows, expected, exactly=True)
            except (DisagreementError, ValueError):
                is_right = False
        yield f"selection {head}, {keep} rows, IoU {iou}", is_right


def _top_ks(gpu, generator):
    for (rows, length, keep), half, in_order in itertools.product(
        ROWS, (False, True), (False, True)
    ):
        values = generator.integers(0, 2000, (rows, length))
        values = values.astype(np.float16 if half else np.float32)
        answer = top_k(values, keep, sorted=in_order, gpu=gpu)
        expected = detcli.top_k(values, keep, sorted=in_order)
        is_right = all(itertools.starmap(np.array_equal, zip(answer, expected, strict=True)))
        yield f"top_k {values.dtype}, {keep} of {length}, sorted={in_order}", is_right


def _letterboxes(gpu, generator):
    for (size, canvas), name in itertools.product(IMAGES, ("float32", "float16")):
        images = list(generator.integers(0, 256, (2,) + size + (3,), np.uint8))
        letterboxes, dtype = [Letterbox.fit(size, canvas)] * 2, np.dtype(name)
        with ExitStack() as scope:
            implementation = letterbox(gpu, [images], letterboxes, dtype, scope)
            tensor = implementation.fetch(implementation.enqueue(0))
        is_right = np.array_equal(tensor, specified(images, letterboxes, dtype))
        yield f"letterbox {size} to {canvas} {name}", is_right


def main() -> int:
    """Launch on the first GPU."""
    from detcli.backend.cuda.driver import Gpu, entry_points

    gpu = Gpu(0)
    wrong = launch_all(gpu, entry_points())
    gpu.close()
    print("\n".join(wrong or [DONE]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
