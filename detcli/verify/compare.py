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

from detcli.detections import Detections
from detcli.stream.item import Item
from detcli.verify.match import Match, match
from detcli.verify.report import Box, DetectionsReport, Order, PictureReport
from detcli.verify.tolerance import Tolerance


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
        source=item.source,
        frame=item.frame,
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
