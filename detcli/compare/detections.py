"""Compares the detections of two sides, image by image, within a tolerance.

A score next to the confidence threshold falls on either side of it by rounding alone. So both
sides run with a threshold lowered by the score tolerance, and only detections above the real one on
at least one side are counted. Detections with a counterpart form a pair; where one of the two is
below the threshold, the pair is borderline as well. A detection above the threshold without a
counterpart is missing on the right, or extra.

The last row of a full selection is a threshold too: where the other side has selected `max_det`
boxes, an unmatched one that scores no more than the lowest, within the tolerance, is borderline.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from enum import StrEnum
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from detcli.config.values import Tolerance
from detcli.core import Fields, frozen
from detcli.core.text import pluralize
from detcli.data.detections import Detections
from detcli.data.geometry import overlap
from detcli.data.record import Origin
from detcli.model.precision import Precision

Doubles = npt.NDArray[np.float64]

NEAR = 1.0
"""Pixels: boxes whose corners are all this close may pair up at any IoU, which says little about a
box two pixels wide or one cut to nothing by the edge of the image."""

SMALLEST_TOLERANCE = 1e-9
"""Replaces a tolerance of 0, which allows nothing, where it would be a divisor."""


# The order of additions differs by device and version. Five exports of YOLOv10-N agree within
# 0.00001 in score and 0.01 pixels on one device; this leaves other devices 100 and 10 times that.
EXACT = Tolerance(score=0.001, corner=0.1, boxes=0.0, tensor=0.001)
# With 11 bits of mantissa, 99% of the 537 boxes of YOLOv10-N on 128 images stay within 0.013 and
# 0.35 pixels; a few differ by 0.08 or by one pixel, which is 0.09 of the largest tensor value.
REDUCED = Tolerance(score=0.02, corner=2.0, boxes=0.01, tensor=0.1)
# With 8 bits, of 548 boxes on the same images 95% stay within 0.028 and 1.5 pixels, 2.4% differ
# by more than 0.05, one by 0.21, and four have no counterpart. Background scores differ by up to
# 0.22 of the largest.
COARSE = Tolerance(score=0.05, corner=4.0, boxes=0.05, tensor=0.4)


def tolerance_for(precisions: set[Precision], requested: Mapping[str, float]) -> Tolerance:
    """Choose how far the detections of two sides may differ.

    Args:
        precisions: The lowest precision that each side computes in.
        requested: What the user asked for, such as `{"score": 0.02}`: fields of `Tolerance`, in
            place of the defaults for these precisions.
    """
    default = REDUCED
    if precisions == {Precision.FLOAT32}:
        default = EXACT
    elif Precision.BFLOAT16 in precisions:
        default = COARSE
    return replace(default, **requested)


class Match(NamedTuple):
    """Two detections of the same object."""

    left: int  # index of the detection on the first side
    right: int  # index of the detection on the second side
    score_difference: float  # absolute
    corner_difference: float  # largest absolute difference of x1, y1, x2 and y2, in pixels


def match(left: Detections, right: Detections, min_iou: float = 0.5) -> list[Match]:
    """Match the detections of two sides in one image, each with at most one of the other side.

    Two detections may match if they have the same class, and their boxes overlap by `min_iou` or
    have all corners within NEAR. The closest two match first, then the closest of the rest; among
    equally close ones, those with the lower index.

    Args:
        left: L detections of the first side.
        right: R detections of the second side.
        min_iou: The minimum intersection over union.

    Returns:
        The matches, in the order of the left detections.
    """
    match_of_left: dict[int, Match] = {}
    matched_right: set[int] = set()
    for candidate in _possible_matches(left, right, min_iou):
        if candidate.left not in match_of_left and candidate.right not in matched_right:
            match_of_left[candidate.left] = candidate
            matched_right.add(candidate.right)
    return sorted(match_of_left.values())


class _Pairwise(NamedTuple):
    """How each of L left detections compares with each of R right ones, `(L, R)` float64 each."""

    ious: Doubles
    score_differences: Doubles
    corner_differences: Doubles  # as in `Match`

    @classmethod
    def of(cls, left: Detections, right: Detections) -> Self:
        """Compare each of L left detections with each of R right ones."""
        left_boxes = left.xyxy.astype(np.float64)[:, np.newaxis]  # (L, 1, 4)
        right_boxes = right.xyxy.astype(np.float64)  # (R, 4)
        left_scores = left.score.astype(np.float64)[:, np.newaxis]  # (L, 1)

        # Equal boxes without an area would have an IoU of 0.
        are_equal = (left_boxes == right_boxes).all(axis=2)  # (L, R)
        return cls(
            ious=np.where(are_equal, 1.0, overlap(left_boxes, right_boxes)),
            score_differences=np.abs(left_scores - right.score),
            corner_differences=np.abs(left_boxes - right_boxes).max(axis=2, initial=0),
        )


def _possible_matches(left: Detections, right: Detections, min_iou: float) -> Iterator[Match]:
    """Yield all pairs of detections that `match` may match, the closest pair first.

    The distance of two detections is what their boxes lack to an IoU of 1, plus the difference of
    their scores. For example, it is 0.13 with an IoU of 0.9 and scores of 0.80 and 0.77.
    """
    pairwise = _Pairwise.of(left, right)
    are_near = (pairwise.ious >= min_iou) | (pairwise.corner_differences <= NEAR)  # (L, R)
    are_of_one_class = left.class_id[:, np.newaxis] == right.class_id
    distances = 1 - pairwise.ious + pairwise.score_differences

    possible_pairs = np.argwhere(are_of_one_class & are_near)  # (P, 2) left and right index
    left_indices, right_indices = possible_pairs.T
    closest_first = np.argsort(distances[left_indices, right_indices], kind="stable")
    for left_index, right_index in possible_pairs[closest_first].tolist():
        yield Match(
            left_index,
            right_index,
            score_difference=pairwise.score_differences.item(left_index, right_index),
            corner_difference=pairwise.corner_differences.item(left_index, right_index),
        )


@frozen
class Rules:
    """What is compared, and how strictly."""

    conf: float  # detections above this score are counted
    least_iou: float  # boxes that overlap less do not match
    max_det: int  # in an image, on either side
    tolerance: Tolerance
    # Both sides recorded all detections with a score above this. A side that was saved earlier may
    # lack a counterpart with a lower score. Some classes have a higher such score, by their ids.
    all_recorded_above: float = -np.inf
    class_recorded_above: Mapping[int, float] = field(default_factory=dict)

    @property
    def lowered_conf(self) -> float:
        """The confidence that both sides run with."""
        return max(0.0, self.conf - self.tolerance.score)


class Order(StrEnum):
    """Whether the pairs of an image come in the same order on both sides."""

    SAME = "same"
    CHANGED = "changed"  # some changed places, as their scores did
    WRONG = "wrong"  # the rows of a side are not sorted by descending score


@frozen(eq=False)
class Comparison:
    """Both sides' detections of an image, and how their rows relate."""

    left: Detections
    right: Detections
    agreeing_pairs: tuple[Match, ...]  # pairs that differ within the tolerance
    disagreeing_pairs: tuple[Match, ...]  # pairs that differ beyond it
    borderline: int  # pairs across the confidence, and unmatched detections at a threshold
    missing: tuple[int, ...]  # rows on the left only
    extra: tuple[int, ...]  # rows on the right only
    order: Order  # of the pairs


def compare(left: Detections, right: Detections, rules: Rules) -> Comparison:
    """Match the detections that two sides have in one image, and determine which of them agree.

    Only detections with a score above the confidence are counted. Those slightly below it are
    included only to be matched with others that are above it.

    Args:
        left: All that the first side selected, with scores above `rules.lowered_conf`. None may
            have been left out: how many were selected shows whether a missing one was pushed out.
        right: The same for the second side.
        rules: The confidence above which detections are counted, and the tolerance.
    """
    conf = np.float32(rules.conf)
    matches = match(left, right, rules.least_iou)
    relevant_matches = []
    agreeing_pairs = []
    disagreeing_pairs = []
    across_conf_count = 0  # matches with one score above the confidence, and one not
    for pair in matches:
        scores = (left.score[pair.left], right.score[pair.right])
        is_relevant = max(scores) > conf
        if not is_relevant:
            continue
        relevant_matches.append(pair)
        if min(scores) <= conf:
            across_conf_count += 1
        if _is_within(pair, rules.tolerance):
            agreeing_pairs.append(pair)
        else:
            disagreeing_pairs.append(pair)

    matched_left = {pair.left for pair in matches}
    matched_right = {pair.right for pair in matches}
    left_only = _unmatched(left, matched_left, other_side=right, rules=rules)
    right_only = _unmatched(right, matched_right, other_side=left, rules=rules)
    dropped_count = left_only.borderline_count + right_only.borderline_count
    return Comparison(
        left,
        right,
        agreeing_pairs=tuple(agreeing_pairs),
        disagreeing_pairs=tuple(disagreeing_pairs),
        borderline=across_conf_count + dropped_count,
        missing=left_only.certain,
        extra=right_only.certain,
        order=_order_of(relevant_matches, left, right),
    )


def _is_within(pair: Match, tolerance: Tolerance) -> bool:
    """Whether the scores and the corners of two matched detections differ as little as allowed."""
    # A score that is NaN on one side agrees, and a corner that is NaN does not.
    scores_agree = not pair.score_difference > tolerance.score
    corners_agree = pair.corner_difference <= tolerance.corner
    return scores_agree and corners_agree


def _order_of(pairs: Sequence[Match], left: Detections, right: Detections) -> Order:
    """Return whether matched detections come in the same order on both sides.

    Args:
        pairs: The matches, in the order of the left detections.
        left: All detections of the first side.
        right: All detections of the second side.
    """
    for detections in (left, right):
        has_ascending_scores = np.any(np.diff(detections.score) > 0)
        if has_ascending_scores:
            return Order.WRONG
    right_indices = [pair.right for pair in pairs]
    if right_indices != sorted(right_indices):
        return Order.CHANGED
    return Order.SAME


class _Unmatched(NamedTuple):
    """The detections of a side that have no counterpart on the other side."""

    certain: tuple[int, ...]  # indices of those that the other side certainly lacks
    borderline_count: int  # number of those whose counterpart the other side may have dropped


def _unmatched(
    detections: Detections, matched: set[int], *, other_side: Detections, rules: Rules
) -> _Unmatched:
    """Find the detections of one side that have no counterpart on the other side.

    The counterpart may have scored less, by as much as the tolerance, and so have been dropped by
    the other side. For example, a run that was saved with a confidence of 0.25 lacks all scores up
    to that. With a tolerance of 0.02, the counterpart of a detection with 0.26 may have had 0.245.
    Such a detection is borderline, and only counted. The other side certainly lacks a detection
    with 0.28.

    Args:
        detections: The detections of the side.
        matched: The indices of those that have a counterpart.
        other_side: The detections of the other side.
        rules: The confidence, the tolerance, and how many detections a side selects.
    """
    max_dropped_by_selection = _highest_score_without_counterpart(other_side, rules)
    certain = []
    borderline_count = 0
    for index in np.flatnonzero(detections.score > np.float32(rules.conf)).tolist():
        if index in matched:
            continue

        # A side that was saved earlier may have run with a higher confidence for this class.
        class_id = int(detections.class_id[index])
        recorded_conf = rules.class_recorded_above.get(class_id, rules.all_recorded_above)
        max_not_recorded = recorded_conf + rules.tolerance.score
        highest_borderline_score = max(max_dropped_by_selection, max_not_recorded)
        if float(detections.score[index]) > highest_borderline_score:
            certain.append(index)
        else:
            borderline_count += 1
    return _Unmatched(tuple(certain), borderline_count)


def _highest_score_without_counterpart(side: Detections, rules: Rules) -> float:
    """Return the highest score of a detection whose counterpart this side may have dropped.

    Usually it is the confidence. But a side that has as many detections as it may select has
    dropped all that score less than its lowest, and the scores of two sides may differ by the
    tolerance. Say the side may select 300 detections, has 300, and the lowest has 0.4. With a
    tolerance of 0.02, this is 0.42: what the other side detects with a higher score, this side
    would have selected.

    Args:
        side: The detections of the side, with the scores of all that it selected.
        rules: The confidence, the tolerance, and how many detections a side selects.
    """
    # Some selected detections may have been dropped later: `selected` has the scores of all.
    selected_scores = side.score
    if side.selected is not None:
        selected_scores = side.selected
    is_selection_full = len(selected_scores) >= rules.max_det
    if not is_selection_full:
        return rules.conf
    lowest_selected = float(selected_scores.min())
    return max(rules.conf, lowest_selected + rules.tolerance.score)


@frozen
class ImageReport:
    """How two sides compare on one image."""

    source: str
    frame: int | None  # in a video
    left: int  # detections of the first side above the confidence
    right: int  # detections of the second side above it
    pairs: int  # at least one of each pair is above the confidence
    over: int  # pairs beyond the tolerance
    borderline: int  # boxes so close to the confidence that rounding decides
    missing: list[Fields]  # detections of the first side only, as in records
    extra: list[Fields]  # detections of the second side only
    largest_score_difference: float  # of all pairs
    largest_corner_difference: float  # of all pairs, in pixels of the image
    order: Order  # whether both have the pairs in the same order, by score
    agrees: bool  # nothing is missing, extra, over the tolerance, or in the wrong order

    def severity(self, tolerance: Tolerance) -> tuple[int, float]:
        """Return a key for sorting images; those that differ most come last.

        First is the number of boxes that disagree. Second is the largest difference of scores or
        corners, as a multiple of what the tolerance allows, such as 2.0 for twice as much.
        """
        disagreeing_count = self.over + len(self.missing) + len(self.extra)
        if self.order is Order.WRONG:
            disagreeing_count += 1
        score_multiple = self.largest_score_difference / (tolerance.score or SMALLEST_TOLERANCE)
        corner_multiple = self.largest_corner_difference / (tolerance.corner or SMALLEST_TOLERANCE)
        return disagreeing_count, max(score_multiple, corner_multiple)


def image_report(origin: Origin, comparison: Comparison, rules: Rules) -> ImageReport:
    """Summarize the comparison of one image in numbers, and list its unmatched detections.

    The sides of an image agree if every detection has a counterpart within the tolerance, and both
    sides have sorted theirs by score.

    Args:
        origin: Where the image comes from.
        comparison: The detections of both sides, and how they match.
        rules: The confidence above which detections are counted.
    """
    left = comparison.left
    right = comparison.right
    conf = np.float32(rules.conf)
    pairs = comparison.agreeing_pairs + comparison.disagreeing_pairs
    has_disagreeing_boxes = bool(
        comparison.disagreeing_pairs or comparison.missing or comparison.extra
    )
    is_sorted_by_score = comparison.order is not Order.WRONG
    return ImageReport(
        source=origin.source,
        frame=origin.frame,
        left=int(np.count_nonzero(left.score > conf)),
        right=int(np.count_nonzero(right.score > conf)),
        pairs=len(pairs),
        over=len(comparison.disagreeing_pairs),
        borderline=comparison.borderline,
        missing=left[list(comparison.missing)].to_dict(),
        extra=right[list(comparison.extra)].to_dict(),
        largest_score_difference=max((pair.score_difference for pair in pairs), default=0.0),
        largest_corner_difference=max((pair.corner_difference for pair in pairs), default=0.0),
        order=comparison.order,
        agrees=is_sorted_by_score and not has_disagreeing_boxes,
    )


@frozen
class DetectionsReport:
    """How two sides compare over all images; the counts are sums of those of the images."""

    conf: float  # detections above this score were compared
    least_iou: float  # of the boxes of a pair
    max_det: int  # maximum number of boxes that either side selects in an image
    left: int  # boxes of the first side above the confidence
    right: int  # boxes of the second side above the confidence
    pairs: int  # boxes that both sides have
    over: int  # pairs beyond the tolerance
    borderline: int  # boxes so close to the confidence that rounding decides
    missing: int  # boxes of the first side only
    extra: int  # boxes of the second side only
    disagreeing: float  # share of boxes that are missing, extra, or in a pair beyond the tolerance
    largest_score_difference: float  # of all pairs
    largest_corner_difference: float  # of all pairs, in pixels of the image
    reordered: int  # images whose order is not the same
    pictures: tuple[ImageReport, ...]  # all; for saved runs those that disagree, and the ten worst

    def failures(self, tolerance: Tolerance) -> list[str]:
        """Describe in sentences what exceeds the tolerance; empty if both sides agree."""
        sentences = []
        if self.disagreeing > tolerance.boxes:
            box_count = self.pairs + self.missing + self.extra
            sentences.append(
                f"{self.disagreeing:.2%} of {box_count} boxes "
                f"disagree ({tolerance.boxes:.2%} allowed): {self.missing} missing, {self.extra} "
                f"extra, {self.over} further apart than {tolerance.score:g} in score or "
                f"{tolerance.corner:g} pixels in a corner"
            )
        unsorted_count = sum(image.order is Order.WRONG for image in self.pictures)
        if unsorted_count:
            images = pluralize(unsorted_count, "image")
            sentences.append(f"detections are not sorted by descending score on {images}")
        return sentences


SUMMED = ("left", "right", "pairs", "over", "borderline")


class Totals:
    """Adds up the reports on images, which need not be kept."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._sums = dict.fromkeys((*SUMMED, "missing", "extra", "reordered"), 0)
        self._largest_score_difference = 0.0
        self._largest_corner_difference = 0.0

    def add(self, image: ImageReport) -> None:
        """Add the counts of an image to the sums, and update the largest differences."""
        for name in SUMMED:
            self._sums[name] += getattr(image, name)
        self._sums["missing"] += len(image.missing)
        self._sums["extra"] += len(image.extra)
        if image.order is not Order.SAME:
            self._sums["reordered"] += 1
        self._largest_score_difference = max(
            self._largest_score_difference, image.largest_score_difference
        )
        self._largest_corner_difference = max(
            self._largest_corner_difference, image.largest_corner_difference
        )

    def report(self, images: Iterable[ImageReport]) -> DetectionsReport:
        """Make the report on all images that were added.

        Args:
            images: The images that the report lists one by one: some of them, or all.
        """
        rules = self._rules
        sums = self._sums  # over all images, by the field of the report
        unmatched_count = sums["missing"] + sums["extra"]
        disagreeing_count = unmatched_count + sums["over"]
        box_count = unmatched_count + sums["pairs"]  # the two boxes of a pair count as one
        return DetectionsReport(
            conf=rules.conf,
            least_iou=rules.least_iou,
            max_det=rules.max_det,
            **sums,
            disagreeing=disagreeing_count / max(1, box_count),
            largest_score_difference=self._largest_score_difference,
            largest_corner_difference=self._largest_corner_difference,
            pictures=tuple(images),
        )
