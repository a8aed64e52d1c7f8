"""What two models make of one image: which objects each finds, and which false positives."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from detcli.commands.eval.evaluator import CORRECT, FALSE, IOU, MISSED, MatchedBox
from detcli.core import frozen
from detcli.data.geometry import overlap

LabelKey = tuple[int, tuple[float, ...]]
"""The category of a labelled object and its box: left, top, width and height in pixels."""


class ObjectPair(NamedTuple):
    """A labelled object, and what each model makes of it: CORRECT or MISSED."""

    category: int
    label: tuple[float, ...]  # left, top, width, height in pixels
    left: MatchedBox
    right: MatchedBox

    @property
    def is_found_by_one(self) -> bool:
        """Whether one model finds the object, and the other one does not."""
        return self.left.kind != self.right.kind


class FalsePositive(NamedTuple):
    """A false positive of one model, or of both at the same place."""

    detection: MatchedBox
    is_left: bool  # whether it is one of the first model
    counterpart: MatchedBox | None = None  # that of the second model, if both have it


@frozen
class OutcomeCounts:
    """What became of the boxes of an image above the confidence with the model's best F1."""

    found: int  # labelled objects that were detected
    false: int  # false positives
    missed: int  # labelled objects that were not detected

    @classmethod
    def of(cls, outcomes: Sequence[MatchedBox]) -> "OutcomeCounts":
        """Count the outcomes of an image, or of several."""
        kinds = [outcome.kind for outcome in outcomes]
        return cls(kinds.count(CORRECT), kinds.count(FALSE), kinds.count(MISSED))


class ImagePair(NamedTuple):
    """What two models make of one image."""

    objects: list[ObjectPair]
    false_positives: list[FalsePositive]

    @property
    def differing_categories(self) -> list[int]:
        """The category of each box that sets the models apart.

        These are the objects that only one of them finds, and the false positives that only one of
        them has.
        """
        categories = [pair.category for pair in self.objects if pair.is_found_by_one]
        for false_positive in self.false_positives:
            if false_positive.counterpart is None:
                categories.append(false_positive.detection.category)
        return categories

    @property
    def difference_count(self) -> int:
        """How many boxes set the models apart."""
        return len(self.differing_categories)


def pair_outcomes(left: Sequence[MatchedBox], right: Sequence[MatchedBox]) -> ImagePair:
    """Pair what two models make of one image.

    Args:
        left: What became of the boxes of the first model and of the objects that it missed.
        right: The same of the second model, of the same labelled objects.
    """
    left_by_label = _by_label(left)
    right_by_label = _by_label(right)
    objects = []
    for (category, label), left_outcomes in left_by_label.items():
        right_outcomes = right_by_label[category, label]
        # An object may be labelled twice by the same box.
        for left_outcome, right_outcome in zip(left_outcomes, right_outcomes, strict=True):
            objects.append(ObjectPair(category, label, left_outcome, right_outcome))
    return ImagePair(objects, _pair_false_positives(left, right))


def _by_label(outcomes: Sequence[MatchedBox]) -> Mapping[LabelKey, list[MatchedBox]]:
    """Group the outcomes of an image by the labelled object, without the false positives."""
    by_label: defaultdict[LabelKey, list[MatchedBox]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.kind == MISSED:
            by_label[outcome.category, tuple(outcome.box)].append(outcome)
        elif outcome.label is not None:
            by_label[outcome.category, tuple(outcome.label)].append(outcome)
    return by_label


def _pair_false_positives(
    left: Sequence[MatchedBox], right: Sequence[MatchedBox]
) -> list[FalsePositive]:
    """Pair the false positives of two models that are of one class and overlap by half.

    Each of the left is paired with the one on the right that it overlaps most, of those that are
    not paired yet. False positives without a counterpart stay alone.
    """
    left_false = [outcome for outcome in left if outcome.kind == FALSE]
    right_false = [outcome for outcome in right if outcome.kind == FALSE]
    false_positives = []
    paired_indices = set()  # of `right_false`
    ious = _overlaps(left_false, right_false)
    for left_index, detection in enumerate(left_false):
        counterpart = None
        if right_false and ious[left_index].max() >= IOU:
            right_index = int(ious[left_index].argmax())
            counterpart = right_false[right_index]
            paired_indices.add(right_index)
            ious[:, right_index] = 0  # so that nothing else is paired with it
        false_positives.append(FalsePositive(detection, is_left=True, counterpart=counterpart))
    for right_index, detection in enumerate(right_false):
        if right_index not in paired_indices:
            false_positives.append(FalsePositive(detection, is_left=False))
    return false_positives


def _overlaps(left: Sequence[MatchedBox], right: Sequence[MatchedBox]) -> npt.NDArray[np.float64]:
    """`(L, R)` the IoU of each of L boxes with each of R others; 0 where their classes differ."""
    left_boxes = np.array([corners(outcome.box) for outcome in left]).reshape(-1, 1, 4)
    right_boxes = np.array([corners(outcome.box) for outcome in right]).reshape(-1, 4)
    left_categories = np.array([outcome.category for outcome in left]).reshape(-1, 1)
    right_categories = np.array([outcome.category for outcome in right])
    return np.where(left_categories == right_categories, overlap(left_boxes, right_boxes), 0.0)


def corners(box: Sequence[float]) -> list[float]:
    """Convert left, top, width and height to left, top, right and bottom."""
    left, top, width, height = box
    return [left, top, left + width, top + height]
