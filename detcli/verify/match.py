"""Which detections of two ways of running belong together, and how far apart they are.

Detections pair up within a class, the most alike first (greedily): the distance of two is
1 - IoU, which is the Jaccard distance of their areas, plus the difference of their scores. The
scores keep apart what lies on one spot: two boxes of one object, 0.9 and 0.3, must not be crossed
because of noise in their corners. Both parts are metrics and so is their sum; hence a pair that is
taken too early leaves for the others no more than the distances that it avoided.

No assignment of the largest number of pairs: it would give up a perfect pair to make two poor
ones of it and of what has no counterpart, and hide that something is missing.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from detcli.detections import Detections

NEAR = 1.0
"""Pixels: boxes whose corners are as close as that may be a pair at any IoU. The IoU of a box two
pixels wide, or cut to nothing by the picture's edge, says little."""

Boxes = npt.NDArray[np.float32]
Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Match:
    """Two detections of the same thing.

    Attributes:
        left: Index of the one in the first set.
        right: Index of the other in the second set.
        iou: Intersection over union of their boxes.
        score_difference: Absolute difference of their scores.
        corner_difference: Largest absolute difference of the four sides, in pixels.
    """

    left: int
    right: int
    iou: float
    score_difference: float
    corner_difference: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two sets of detections have in common.

    Attributes:
        matches: The pairs, in the order of the first set.
        missing: Indices of the first set that have no counterpart in the second.
        extra: Indices of the second set that have no counterpart in the first.
    """

    matches: tuple[Match, ...]
    missing: tuple[int, ...]
    extra: tuple[int, ...]


def match(left: Detections, right: Detections, least_iou: float = 0.5) -> Comparison:
    """Pair up the detections of one picture.

    Args:
        left: The one set.
        right: The other; in pixels of the same picture, with the same class ids.
        least_iou: Boxes that overlap less are no pair, unless all corners are within NEAR.
    """
    ious = box_iou(left.xyxy, right.xyxy)  # (L, R)
    corners = np.abs(left.xyxy[:, None].astype(np.float64) - right.xyxy).max(axis=2, initial=0)
    scores = np.abs(left.score[:, None].astype(np.float64) - right.score)  # (L, R)
    possible = (left.class_id[:, None] == right.class_id) & (
        (ious >= least_iou) | (corners <= NEAR)
    )
    pairs = sorted(_greedy(possible, (1 - ious) + scores))
    matches = tuple(
        Match(i, j, float(ious[i, j]), float(scores[i, j]), float(corners[i, j])) for i, j in pairs
    )
    taken_left, taken_right = {i for i, _ in pairs}, {j for _, j in pairs}
    return Comparison(
        matches=matches,
        missing=tuple(i for i in range(len(left)) if i not in taken_left),
        extra=tuple(j for j in range(len(right)) if j not in taken_right),
    )


def box_iou(left: Boxes, right: Boxes) -> Matrix:
    """Intersection over union of each box with each: (L, 4), (R, 4) -> (L, R).

    Equal boxes without an area have an IoU of 1.
    """
    first, second = left.astype(np.float64)[:, None], right.astype(np.float64)  # (L, 1, 4), (R, 4)
    low = np.maximum(first[..., :2], second[..., :2])  # (L, R, 2)
    high = np.minimum(first[..., 2:], second[..., 2:])  # (L, R, 2)
    shared = np.clip(high - low, 0, None).prod(axis=2)  # (L, R)
    union = _area(first) + _area(second) - shared  # (L, R)
    equal = (first == second).all(axis=2)  # (L, R)
    ratio = np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
    ious: Matrix = np.where(equal, 1.0, ratio)
    return ious


def _area(boxes: Matrix) -> Matrix:
    """(..., 4) -> (...)."""
    area: Matrix = np.clip(boxes[..., 2:] - boxes[..., :2], 0, None).prod(axis=-1)
    return area


def _greedy(possible: npt.NDArray[np.bool_], distance: Matrix) -> list[tuple[int, int]]:
    """The closest pair, then the closest of what is left, and so on; of equals the lower row."""
    rows, columns = np.nonzero(possible)  # in order of rows, then columns
    closest = np.argsort(distance[rows, columns], kind="stable")
    free_rows, free_columns = set(rows.tolist()), set(columns.tolist())
    pairs = []
    for i, j in zip(rows[closest].tolist(), columns[closest].tolist(), strict=True):
        if i in free_rows and j in free_columns:
            free_rows.remove(i)
            free_columns.remove(j)
            pairs.append((i, j))
    return pairs
