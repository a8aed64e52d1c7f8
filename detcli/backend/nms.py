"""Class-aware non-maximum suppression: the specification."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]


def non_maximum_suppression(
    boxes: Floats, class_id: Indices, iou_threshold: float, limit: int
) -> Indices:
    """Greedy NMS: a box goes if it overlaps a better, kept box of its own class too much.

    Args:
        boxes: `(N, 4)` x1, y1, x2, y2, best first.
        class_id: `(N,)`.
        iou_threshold: Boxes with an IoU strictly above it are duplicates.
        limit: Stop after so many.

    Returns:
        `(M,)` indices of the boxes that stay, ascending, M <= limit.
    """
    area = _area(boxes)
    remaining = np.arange(len(boxes))
    kept: list[int] = []
    while len(remaining) and len(kept) < limit:
        best, remaining = remaining[0], remaining[1:]
        kept.append(int(best))
        overlap = _iou(boxes[best], area[best], boxes[remaining], area[remaining])
        duplicate = (overlap > np.float32(iou_threshold)) & (class_id[remaining] == class_id[best])
        remaining = remaining[~duplicate]
    return np.array(kept, np.int64)


def _area(boxes: Floats) -> Floats:
    """Area of each box, nothing for an inverted one: (N, 4) -> (N,)."""
    side = np.maximum(boxes[:, 2:] - boxes[:, :2], np.float32(0))
    area: Floats = side[:, 0] * side[:, 1]
    return area


def _iou(box: Floats, area: np.float32, others: Floats, areas: Floats) -> Floats:
    """Intersection over union of one box with others, 0 where both are empty: (N,)."""
    low = np.maximum(box[:2], others[:, :2])
    high = np.minimum(box[2:], others[:, 2:])
    side = np.maximum(high - low, np.float32(0))
    intersection = side[:, 0] * side[:, 1]
    union = area + areas - intersection
    overlap: Floats = np.divide(intersection, union, out=np.zeros_like(union), where=union > 0)
    return overlap
