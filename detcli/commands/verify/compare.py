"""Compares the detections of two ways of running, picture by picture.

A score next to the confidence limit falls on either side of it by rounding alone. So both sides
run with a limit that is lower by the score tolerance, and only what is above the real one on one
side at least is looked at. What then has a counterpart is a pair; if that is below the limit, it
is borderline besides. What has none although its score is above the limit is missing, or extra.

The last row that a full result has room for is such a limit as well: with `max_det` detections on
the other side, a box without counterpart and with no more than the least of their scores, up to
the tolerance, is borderline too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from detcli.commands.verify.report import Box, DetectionsReport, Order, PictureReport
from detcli.commands.verify.tolerance import Tolerance
from detcli.detections import Detections
from detcli.source.item import Item

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


@dataclass(frozen=True, slots=True)
class Rules:
    """What is compared, and how strictly.

    Attributes:
        conf: Confidence above which detections count.
        least_iou: Boxes that overlap less are no pair.
        max_det: The most detections in a picture, on either side.
        tolerance: How far the sides may be apart.
    """

    conf: float
    least_iou: float
    max_det: int
    tolerance: Tolerance

    @property
    def lowered(self) -> float:
        """The confidence that both sides run with."""
        return max(0.0, self.conf - self.tolerance.score)


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the two sets of detections of a picture relate; indices of their rows.

    Attributes:
        pairs: Within the tolerance.
        over: Pairs that are not.
        borderline: Pairs of which one is below the confidence, and what is at a limit and alone.
        missing: On the left only.
        extra: On the right only.
        order: Of the pairs.
    """

    pairs: tuple[Match, ...]
    over: tuple[Match, ...]
    borderline: int
    missing: tuple[int, ...]
    extra: tuple[int, ...]
    order: Order


def judge(left: Detections, right: Detections, rules: Rules) -> Verdict:
    """Compare the detections of one picture.

    Args:
        left: Of the first side, above `rules.lowered`.
        right: Of the second.
        rules: What is compared, and how strictly.
    """
    found = match(left, right, rules.least_iou)
    conf = np.float32(rules.conf)
    relevant = [
        pair for pair in found.matches if max(left.score[pair.left], right.score[pair.right]) > conf
    ]
    over = tuple(pair for pair in relevant if _is_over(pair, rules.tolerance))
    crossing = sum(
        bool(min(left.score[pair.left], right.score[pair.right]) <= conf) for pair in relevant
    )
    alone_left = [i for i in found.missing if left.score[i] > conf]
    alone_right = [j for j in found.extra if right.score[j] > conf]
    missing = _certain(alone_left, left, _reach(right, rules))
    extra = _certain(alone_right, right, _reach(left, rules))
    unsure = len(alone_left) - len(missing) + len(alone_right) - len(extra)
    sequence = [pair.right for pair in relevant]
    same = sequence == sorted(sequence)
    return Verdict(
        pairs=tuple(pair for pair in relevant if pair not in over),
        over=over,
        borderline=crossing + unsure,
        missing=missing,
        extra=extra,
        order=_order(left, right, same=same),
    )


def _is_over(pair: Match, tolerance: Tolerance) -> bool:
    return pair.score_difference > tolerance.score or not pair.corner_difference <= tolerance.corner


def _reach(other: Detections, rules: Rules) -> float:
    """The score above which a counterpart among the other side's detections would be seen."""
    if len(other) < rules.max_det:
        return rules.conf
    return max(rules.conf, float(other.score.min()) + rules.tolerance.score)


def _certain(rows: Sequence[int], found: Detections, reach: float) -> tuple[int, ...]:
    return tuple(row for row in rows if float(found.score[row]) > reach)


def _order(left: Detections, right: Detections, *, same: bool) -> Order:
    if any(bool(np.any(np.diff(side.score) > 0)) for side in (left, right)):
        return Order.WRONG
    return Order.SAME if same else Order.CHANGED


def picture_report(
    item: Item, left: Detections, right: Detections, verdict: Verdict, rules: Rules
) -> PictureReport:
    """Put a verdict into words and numbers."""
    pairs = (*verdict.pairs, *verdict.over)
    return PictureReport(
        source=item.origin.source,
        frame=item.origin.frame,
        left=int(np.count_nonzero(left.score > np.float32(rules.conf))),
        right=int(np.count_nonzero(right.score > np.float32(rules.conf))),
        pairs=len(pairs),
        over=len(verdict.over),
        borderline=verdict.borderline,
        missing=tuple(_box(left, index) for index in verdict.missing),
        extra=tuple(_box(right, index) for index in verdict.extra),
        largest_score_difference=max((pair.score_difference for pair in pairs), default=0.0),
        largest_corner_difference=max((pair.corner_difference for pair in pairs), default=0.0),
        order=verdict.order,
        agrees=not (verdict.over or verdict.missing or verdict.extra)
        and verdict.order is not Order.WRONG,
    )


def _box(found: Detections, index: int) -> Box:
    (box, score, class_id, name), *_ = found[index]
    x1, y1, x2, y2 = (round(float(side), 2) for side in box)
    return Box(class_id, name, round(score, 4), (x1, y1, x2, y2))


def severity(picture: PictureReport, tolerance: Tolerance) -> tuple[int, float]:
    """What makes a picture worse than another: boxes that disagree, then by how much pairs do."""
    parts = (
        picture.largest_score_difference / (tolerance.score or 1e-9),
        picture.largest_corner_difference / (tolerance.corner or 1e-9),
    )
    return picture.disagreeing + (picture.order is Order.WRONG), max(parts)


def summarise(pictures: Sequence[PictureReport], rules: Rules) -> DetectionsReport:
    """Add up the pictures."""
    missing = sum(len(picture.missing) for picture in pictures)
    extra = sum(len(picture.extra) for picture in pictures)
    pairs, over = (sum(getattr(p, name) for p in pictures) for name in ("pairs", "over"))
    return DetectionsReport(
        conf=rules.conf,
        least_iou=rules.least_iou,
        max_det=rules.max_det,
        left=sum(picture.left for picture in pictures),
        right=sum(picture.right for picture in pictures),
        pairs=pairs,
        over=over,
        borderline=sum(picture.borderline for picture in pictures),
        missing=missing,
        extra=extra,
        disagreeing=(missing + extra + over) / max(1, pairs + missing + extra),
        largest_score_difference=max((p.largest_score_difference for p in pictures), default=0.0),
        largest_corner_difference=max((p.largest_corner_difference for p in pictures), default=0.0),
        reordered=sum(picture.order is not Order.SAME for picture in pictures),
        pictures=tuple(pictures),
    )
