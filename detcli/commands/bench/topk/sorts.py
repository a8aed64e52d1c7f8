"""NumPy's sorts: the plain way to the k best and the usual one, which CuPy has too."""

import importlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from detcli.backend.device import Device
from detcli.commands.bench.topk.cases import CONFIDENCE, Answer, Do, Floats, MissingError, Task

Order = Callable[[Floats, int], npt.NDArray[np.int64]]
"""Indices of the k largest of a row, best first."""


def stable_argsort(row: Floats, k: int) -> npt.NDArray[np.int64]:
    """Sort everything; of equals the lower index comes first."""
    return np.argsort(-row, kind="stable")[:k]


def argpartition(row: Floats, k: int) -> npt.NDArray[np.int64]:
    """Partition, then sort the k; of equals whichever it meets."""
    if k >= len(row):
        return stable_argsort(row, k)
    best = np.argpartition(row, -k)[-k:]
    order: npt.NDArray[np.int64] = best[np.argsort(-row[best])]
    return order


def answer_by(order: Order, task: Task) -> Answer:
    """Values and indices; or scores, class ids and boxes: `v10postprocess` of YOLOv10's authors."""
    if task.name == "top_k":
        best = order(task.values, task.k)
        return task.values[best], best
    boxes, scores = task.values[:4], task.values[4:]
    anchors = order(scores.max(axis=0), task.k)  # (K,)
    kept = scores[:, anchors].T.ravel()  # (K * C,)
    best = order(kept, task.k)
    best = best[kept[best] > np.float32(CONFIDENCE)]
    rank, class_id = np.divmod(best, len(scores))
    return kept[best], class_id, boxes[:, anchors[rank]].T


def cupy_way(task: Task, device: Device) -> Do:
    """Argpartition and argsort, once or twice; NumPy's functions hand its arrays on to CuPy's.

    Raises:
        MissingError: There is no CuPy, or no GPU is asked for.
    """
    if not device.is_gpu:
        raise MissingError("CuPy needs a GPU")
    try:
        cupy = importlib.import_module("cupy")
    except ImportError as error:
        raise MissingError("CuPy is not installed") from error
    cupy.cuda.Device(device.ordinal).use()
    there = replace(task, values=cupy.asarray(task.values))
    return lambda: [cupy.asnumpy(part) for part in answer_by(argpartition, there)]
