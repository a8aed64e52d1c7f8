"""A few inputs that take every path through every kernel, for kernels that are watched.

Each case compares a kernel's answer with the specification's. Many ties, so that the order of the
threads matters; more than 2048 survivors, so that the source is read again; k above 2048, so that
the list lies in device memory; a small k, so that the list is narrowed to the last digit.
"""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from backend.cuda.libcuda import FakeDriver

import detcli
from detcli.backend import postprocess
from detcli.backend.cuda.letterbox import LetterboxBatch
from detcli.backend.cuda.selection import HeadShape, SelectionKernels
from detcli.backend.cuda.topk import top_k, upload
from detcli.backend.postprocess import SelectionOptions
from detcli.backend.preprocess import letterbox_image, to_tensor
from detcli.data.geometry import Letterbox


def first_wrong(driver: FakeDriver, kind: str = "") -> str:
    """Name the first case that goes wrong, among those of a kind; empty if all are right."""
    from detcli.backend.cuda.driver import Gpu  # the driver has to be there first

    for reverse in (False, True):
        driver.start(late=False, reverse=partial(bool, reverse))
        gpu = Gpu(0)
        for name, is_right in _cases(gpu):
            if not name.startswith(kind):
                continue
            try:
                right = is_right()
            except Exception:  # noqa: BLE001 - a launch that was ended leaves rubbish to read
                right = False
            if driver.faults or not right:
                return f"{name}, {reverse=}: {driver.faults or 'wrong rows'}"
        gpu.close()
    return ""


def _cases(gpu) -> Iterator[tuple[str, Callable[[], bool]]]:
    random = np.random.default_rng(0)
    yield "letterbox", partial(_letterbox_is_right, gpu)
    for length, k, order in [
        (1000, 10, True),
        (5000, 300, False),
        (3000, 2500, True),
        (9000, 2500, False),
        (17000, 10, True),
    ]:
        values = random.integers(0, 3, length).astype(np.float32)
        name = f"top_k, {k} of {length}, sorted={order}"
        yield name, partial(_top_k_is_right, gpu, values, k, order)
    for anchors, max_det, levels in [(30, 30, 1 << 20), (100, 30, 11), (3000, 300, 11),
                                     (3000, 2100, 11)]:  # fmt: skip
        head = _head(random, anchors, levels)
        for iou in (None, 0.5):
            options = SelectionOptions(0.25, max_det, None, iou)
            name = f"selection, {max_det} of {anchors} anchors, nms={iou}"
            yield name, partial(_selection_is_right, gpu, head, options)


def _top_k_is_right(gpu, values, k, order) -> bool:
    _, indices = top_k(values, k, sorted=order, gpu=gpu)
    return np.array_equal(indices, detcli.top_k(values, k, sorted=order)[1])  # type: ignore[arg-type]


def _head(random, anchors, levels):
    """A head (4 + 20, N) with overlapping boxes."""
    corner = random.integers(0, 100, (2, anchors))
    scores = random.integers(0, levels, (20, anchors)) / levels
    return np.concatenate([corner, corner + 40, scores]).astype(np.float32)


def _selection_is_right(gpu, head, options) -> bool:
    rows, anchors = head.shape
    shape = HeadShape(1, rows, anchors, anchors_first=False, cxcywh=False, dtype="float32")
    selection = SelectionKernels(gpu, shape, options)
    uploaded = upload(gpu, head)
    result = gpu.pin(selection.result_size)
    selection.enqueue(uploaded.address, result.address)
    gpu.record().wait()
    [images] = selection.read(result.array)
    selection_on_gpu = postprocess.as_selection(images[0])
    expected = postprocess.select(head, options)
    for column, expected_column in zip(selection_on_gpu, expected, strict=True):
        if not np.array_equal(column, expected_column):  # type: ignore[arg-type]
            return False
    return True


def _letterbox_is_right(gpu) -> bool:
    image = np.random.default_rng(0).integers(0, 256, (50, 70, 3), np.uint8)
    letterbox = Letterbox.fit(image.shape[:2], (64, 64))
    expected = np.empty((3, 64, 64), np.float32)
    to_tensor(letterbox_image(image, letterbox), expected)
    batch = LetterboxBatch([image], [letterbox], expected.dtype)
    tensor = gpu.pin(expected.nbytes)
    uploaded = gpu.allocate(batch.size)
    batch.upload(gpu, gpu.pin(batch.size), uploaded)
    batch.enqueue(gpu, uploaded, tensor.address)
    gpu.record().wait()
    return tensor.array.tobytes() == expected.tobytes()
