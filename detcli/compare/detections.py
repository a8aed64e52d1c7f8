"""Compares the detections of two sides, picture by picture, within a tolerance.

A score next to the confidence threshold falls on either side of it by rounding alone. So both
sides run with a threshold lowered by the score tolerance, and only detections above the real one
on at least one side count. Detections with a counterpart form a pair; where one of the two is
below the threshold, the pair is borderline as well. A detection above the threshold without a
counterpart is missing on the right, or extra.

The last row of a full selection is a threshold too: where the other side has selected `max_det`
boxes, an unmatched one that scores no more than the lowest, within the tolerance, is borderline.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from detcli.config.values import Tolerance
from detcli.core import Fields, frozen
from detcli.core.text import pluralize
from detcli.data.detections import Detections
from detcli.data.geometry import overlap
from detcli.data.record import Origin
from detcli.model.precision import Precision

NEAR = 1.0
"""Pixels: boxes whose corners are all this close may pair up at any IoU, which says little about a
box two pixels wide or one cut to nothing by the edge of the picture."""


# The order of additions differs by device and version. Five exports of YOLOv10-N agree within
# 0.00001 in score and 0.01 pixels on one device; this leaves other devices 100 and 10 times that.
EXACT = Tolerance(score=0.001, corner=0.1, boxes=0.0, tensor=0.001)
# With 11 bits of mantissa, 99% of the 537 boxes of YOLOv10-N on 128 pictures stay within 0.013 and
# 0.35 pixels; a few differ by 0.08 or by one pixel, which is 0.09 of the largest tensor value.
REDUCED = Tolerance(score=0.02, corner=2.0, boxes=0.01, tensor=0.1)
# With 8 bits, of 548 boxes on the same pictures 95% stay within 0.028 and 1.5 pixels, 2.4% differ
# by more than 0.05, one by 0.21, and four have no counterpart. Background scores differ by up to
# 0.22 of the largest.
COARSE = Tolerance(score=0.05, corner=4.0, boxes=0.05, tensor=0.4)


def tolerance_for(precisions: set[Precision], wanted: Mapping[str, float]) -> Tolerance:
    """The default for the precisions of both sides, with what the user wants, by field."""
    default = EXACT if precisions == {Precision.FLOAT32} else REDUCED
    return replace(COARSE if Precision.BFLOAT16 in precisions else default, **wanted)


class Match(NamedTuple):
    """Two detections of the same object."""

    left: int  # row of the first side's detection
    right: int  # row of the second side's
    score_difference: float  # absolute
    corner_difference: float  # largest absolute difference of the four sides, in pixels


def match(left: Detections, right: Detections, least_iou: float = 0.5) -> list[Match]:
    """Pair up the detections of one picture, each at most once, in the order of the left rows.

    Boxes of a pair have one class id, and overlap by `least_iou` unless all corners are within
    NEAR. The closest pair comes first, then the closest of the rest; of equals the lower row.
    """
    first, second = left.xyxy[:, None].astype(np.float64), right.xyxy.astype(np.float64)
    corners = np.abs(first - second).max(axis=2, initial=0)  # (L, R)
    equal = (first == second).all(axis=2)  # perhaps without an area
    ious = np.where(equal, 1.0, overlap(first, second))  # (L, R)
    scores = np.abs(left.score[:, None].astype(np.float64) - right.score)  # (L, R)
    same_class = left.class_id[:, None] == right.class_id
    rows, columns = np.nonzero(same_class & ((ious >= least_iou) | (corners <= NEAR)))
    closest = np.argsort((1 - ious + scores)[rows, columns], kind="stable")
    pairs, taken = dict[int, Match](), set[int]()  # by row, and columns
    for i, j in zip(rows[closest].tolist(), columns[closest].tolist(), strict=True):
        if i not in pairs and j not in taken:
            pairs[i] = Match(i, j, float(scores[i, j]), float(corners[i, j]))
            taken.add(j)
    return sorted(pairs.values())


@frozen
class Rules:
    """What is compared, and how strictly."""

    conf: float  # detections above this score count
    least_iou: float  # boxes that overlap less do not match
    max_det: int  # in a picture, on either side
    tolerance: Tolerance
    # Scores that both sides hold, of all classes and of single ones: a side that was saved earlier
    # may have dropped a counterpart below them.
    held: float = -np.inf
    class_held: Mapping[int, float] = field(default_factory=dict)

    @property
    def lowered_conf(self) -> float:
        """The confidence that both sides run with."""
        return max(0.0, self.conf - self.tolerance.score)


class Order(StrEnum):
    """Whether the pairs of a picture come in the same order on both sides."""

    SAME = "same"
    CHANGED = "changed"  # some changed places, as their scores did
    WRONG = "wrong"  # the rows of a side are not sorted by descending score


@dataclass(frozen=True, eq=False, slots=True)
class Comparison:
    """Both sides' detections of a picture, and how their rows relate."""

    left: Detections
    right: Detections
    pairs: tuple[Match, ...]  # within the tolerance
    over: tuple[Match, ...]  # beyond it
    borderline: int  # pairs across the confidence, and unmatched detections at a threshold
    missing: tuple[int, ...]  # rows on the left only
    extra: tuple[int, ...]  # rows on the right only
    order: Order  # of the pairs


def compare(left: Detections, right: Detections, rules: Rules) -> Comparison:
    """Compare the detections of one picture, which are above `rules.lowered_conf`."""
    conf, tolerance = np.float32(rules.conf), rules.tolerance
    matches = match(left, right, rules.least_iou)
    scores = {pair: (left.score[pair.left], right.score[pair.right]) for pair in matches}
    relevant = [pair for pair in matches if max(scores[pair]) > conf]
    over = [
        pair
        for pair in relevant
        if pair.score_difference > tolerance.score or not pair.corner_difference <= tolerance.corner
    ]
    missing, unsure_left = _unmatched({pair.left for pair in matches}, left, right, rules)
    extra, unsure_right = _unmatched({pair.right for pair in matches}, right, left, rules)
    across = sum(bool(min(both) <= conf < max(both)) for both in scores.values())
    sequence = [pair.right for pair in relevant]
    order = Order.SAME if sequence == sorted(sequence) else Order.CHANGED
    if any(np.any(np.diff(side.score) > 0) for side in (left, right)):
        order = Order.WRONG
    return Comparison(
        left,
        right,
        pairs=tuple(pair for pair in relevant if pair not in over),
        over=tuple(over),
        borderline=across + unsure_left + unsure_right,
        missing=missing,
        extra=extra,
        order=order,
    )


def _unmatched(
    matched: set[int], detections: Detections, other: Detections, rules: Rules
) -> tuple[tuple[int, ...], int]:
    """Unmatched rows, and the number of those whose counterpart the other side may have dropped."""
    allowed = rules.tolerance.score
    lowest = rules.conf
    selected = other.score if other.selected is None else other.selected
    if len(selected) >= rules.max_det:
        lowest = max(lowest, float(selected.min()) + allowed)
    rows = sorted({*np.flatnonzero(detections.score > np.float32(rules.conf)).tolist()} - matched)
    certain = tuple(
        row
        for row in rows
        if float(detections.score[row])
        > max(lowest, rules.class_held.get(int(detections.class_id[row]), rules.held) + allowed)
    )
    return certain, len(rows) - len(certain)


@frozen
class PictureReport:
    """How two sides compare on one picture."""

    source: str
    frame: int | None  # in a video
    left: int  # detections above the confidence
    right: int
    pairs: int  # at least one of each pair is above the confidence
    over: int
    borderline: int
    missing: list[Fields]  # detections without a counterpart, as in records
    extra: list[Fields]
    largest_score_difference: float  # of all pairs
    largest_corner_difference: float
    order: Order
    agrees: bool  # nothing is missing, extra, over the tolerance, or in the wrong order

    def severity(self, tolerance: Tolerance) -> tuple[int, float]:
        """A sort key, worst last: first boxes that disagree, then the largest difference."""
        disagreeing = self.over + len(self.missing) + len(self.extra)
        score = self.largest_score_difference / (tolerance.score or 1e-9)
        corner = self.largest_corner_difference / (tolerance.corner or 1e-9)
        return disagreeing + (self.order is Order.WRONG), max(score, corner)


def picture_report(origin: Origin, compared: Comparison, rules: Rules) -> PictureReport:
    """Report the comparison of one picture."""
    left, right, conf = compared.left, compared.right, np.float32(rules.conf)
    pairs = (*compared.pairs, *compared.over)
    disagree = compared.over or compared.missing or compared.extra or compared.order is Order.WRONG
    return PictureReport(
        source=origin.source,
        frame=origin.frame,
        left=int(np.count_nonzero(left.score > conf)),
        right=int(np.count_nonzero(right.score > conf)),
        pairs=len(pairs),
        over=len(compared.over),
        borderline=compared.borderline,
        missing=left[[*compared.missing]].to_dict(),
        extra=right[[*compared.extra]].to_dict(),
        largest_score_difference=max((pair.score_difference for pair in pairs), default=0.0),
        largest_corner_difference=max((pair.corner_difference for pair in pairs), default=0.0),
        order=compared.order,
        agrees=not disagree,
    )


@frozen
class DetectionsReport:
    """How two sides compare over all pictures."""

    conf: float  # detections above this score were compared
    least_iou: float
    max_det: int
    left: int  # from here on sums of the fields of PictureReport
    right: int
    pairs: int
    over: int
    borderline: int
    missing: int
    extra: int
    disagreeing: float  # share of boxes that are missing, extra, or in a pair beyond the tolerance
    largest_score_difference: float
    largest_corner_difference: float
    reordered: int  # pictures whose order is not the same
    pictures: tuple[PictureReport, ...]  # all, or some

    def failures(self, tolerance: Tolerance) -> list[str]:
        """What exceeds the tolerance, one sentence each."""
        found = []
        if self.disagreeing > tolerance.boxes:
            found.append(
                f"{self.disagreeing:.2%} of {self.pairs + self.missing + self.extra} boxes "
                f"disagree ({tolerance.boxes:.2%} allowed): {self.missing} missing, {self.extra} "
                f"extra, {self.over} further apart than {tolerance.score:g} in score or "
                f"{tolerance.corner:g} pixels in a corner"
            )
        if wrong := sum(picture.order is Order.WRONG for picture in self.pictures):
            on = pluralize(wrong, "picture")
            found.append(f"detections are not sorted by descending score on {on}")
        return found


SUMMED = ("left", "right", "pairs", "over", "borderline")


class Totals:
    """Adds up pictures, which need not be kept."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._sums = Counter(dict.fromkeys((*SUMMED, "missing", "extra", "reordered"), 0))
        self._score = self._corner = 0.0

    def add(self, picture: PictureReport) -> None:
        """Add a picture."""
        self._sums.update({name: getattr(picture, name) for name in SUMMED})
        self._sums.update(missing=len(picture.missing), extra=len(picture.extra))
        self._sums["reordered"] += picture.order is not Order.SAME
        self._score = max(self._score, picture.largest_score_difference)
        self._corner = max(self._corner, picture.largest_corner_difference)

    def report(self, pictures: Iterable[PictureReport]) -> DetectionsReport:
        """The sums, with some of the pictures, or all."""
        rules, sums = self._rules, self._sums
        alone = sums["missing"] + sums["extra"]
        return DetectionsReport(
            rules.conf,
            rules.least_iou,
            rules.max_det,
            **sums,
            disagreeing=(alone + sums["over"]) / max(1, alone + sums["pairs"]),
            largest_score_difference=self._score,
            largest_corner_difference=self._corner,
            pictures=tuple(pictures),
        )
