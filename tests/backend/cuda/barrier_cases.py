"""A few inputs that take every path through every kernel, for the mutation test.

Each case compares a kernel's answer with the specification's. Many ties, so that the order of the
threads matters; more than 2048 survivors, so that the radix selection runs; k above 2048, so that
the list lies in device memory.
"""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from backend.cuda.host_gpu import HostGpu
from backend.cuda.shim import Shim, ShimError

import detcli
from detcli import Letterbox
from detcli.backend import postprocess
from detcli.backend.cuda.letterbox import LetterboxBatch
from detcli.backend.cuda.selection import HeadShape, SelectionKernels
from detcli.backend.cuda.topk import top_k
from detcli.backend.postprocess import SelectionOptions
from detcli.backend.preprocess import letterbox_image, to_tensor


def first_wrong(shim: Shim, kind: str = "") -> str:
    """Name the first case with a wrong answer, among those of a kind; empty if all are right."""
    for reverse in (False, True):
        gpu = HostGpu(shim, late=False, reverse=partial(bool, reverse))
        for name, is_right in _cases(gpu):
            try:
                if name.startswith(kind) and not is_right():
                    return f"{name}, {reverse=}"
            except ShimError as error:
                return f"{name}, {reverse=}: {error}"
    return ""


def _cases(gpu: HostGpu) -> Iterator[tuple[str, Callable[[], bool]]]:
    random = np.random.default_rng(0)
    yield "letterbox", partial(_letterbox_is_right, gpu)
    for length, k in [(1000, 300), (5000, 300), (3000, 2500), (9000, 2500), (17000, 10)]:
        for levels in (1, 3, 1 << 20):
            values = random.integers(0, levels, length).astype(np.float32)
            for order in (True, False):
                name = f"top_k, {k} of {length}, {levels} levels, sorted={order}"
                yield name, partial(_top_k_is_right, gpu, values, k, order)
    for anchors, max_det, levels in [
        (30, 30, 1 << 20),
        (100, 30, 11),
        (3000, 300, 11),
        (3000, 2100, 11),
    ]:
        head = _head(random, anchors, levels)
        for iou in (None, 0.5):
            name = f"selection, {max_det} of {anchors} anchors, nms={iou}"
            yield (
                name,
                partial(_selection_is_right, gpu, head, SelectionOptions(0.25, max_det, None, iou)),
            )


def _top_k_is_right(gpu, values, k, order) -> bool:
    _, indices = top_k(values, k, sorted=order, gpu=gpu)
    return np.array_equal(indices, detcli.top_k(values, k, sorted=order)[1])


def _head(random, anchors, levels):
    """A head (4 + 20, N) with overlapping boxes."""
    corner = random.integers(0, 100, (2, anchors))
    scores = random.integers(0, levels, (20, anchors)) / levels
    return np.concatenate([corner, corner + 40, scores]).astype(np.float32)


def _selection_is_right(gpu, head, options) -> bool:
    rows, anchors = head.shape
    shape = HeadShape(1, rows, anchors, anchors_first=False, cxcywh=False, dtype="float32")
    selection = SelectionKernels(gpu, shape, options)
    result = np.full(selection.result_size, 0xCD, np.uint8)
    selection.enqueue(head.ctypes.data, result.ctypes.data)
    [found] = selection.read(result)
    got, wanted = postprocess.as_selection(found.values), postprocess.select(head, options)
    return all(np.array_equal(*pair) for pair in zip(got, wanted, strict=True))


def _letterbox_is_right(gpu) -> bool:
    image = np.random.default_rng(0).integers(0, 256, (50, 70, 3), np.uint8)
    letterbox = Letterbox.fit(image.shape[:2], (64, 64))
    wanted = np.empty((3, 64, 64), np.float32)
    to_tensor(letterbox_image(image, letterbox), wanted)
    batch = LetterboxBatch([image], [letterbox], wanted.dtype)
    got = np.empty_like(wanted)
    batch.enqueue(gpu, gpu.pin(batch.size), gpu.allocate(batch.size), got.ctypes.data)
    return np.array_equal(got, wanted)
