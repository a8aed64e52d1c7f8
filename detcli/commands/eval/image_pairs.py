"""What two models make of one image: which objects each finds, and which false positives."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from detcli.commands.eval.matches import CORRECT, FALSE, IOU, MISSED, MatchedBox
from detcli.core import frozen
from detcli.data.geometry import overlap

ObjectKey = tuple[int, tuple[float, ...]]
"""The category of a labelled object and its box: left, top, width and height in pixels."""


class ObjectPair(NamedTuple):
    """A labelled object, and what each model makes of it: CORRECT or MISSED."""

    category: int
    object_box: tuple[float, ...]  # left, top, width, height in pixels
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
    counterpart: MatchedBox | None = None  # the second model's box, if both have it


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
        """The category of each object or false positive that only one of the models has."""
        categories = [pair.category for pair in self.objects if pair.is_found_by_one]
        for false_positive in self.false_positives:
            if false_positive.counterpart is None:
                categories.append(false_positive.detection.category)
        return categories

    @property
    def difference_count(self) -> int:
        """How many objects and false positives only one of the models has."""
        return len(self.differing_categories)


def pair_outcomes(left: Sequence[MatchedBox], right: Sequence[MatchedBox]) -> ImagePair:
    """Pair the outcomes of two models on one image.

    The two outcomes for the same labelled object make a pair, and so do false positives that
    overlap.

    Args:
        left: The detections of the first model, right or wrong, and the objects that it missed.
        right: Those of the second model, on the same labelled objects.
    """
    left_by_object = _group_by_object(left)
    right_by_object = _group_by_object(right)
    objects = []
    for (category, object_box), left_outcomes in left_by_object.items():
        right_outcomes = right_by_object[category, object_box]
        # There are several outcomes if the data has several labels with the same box.
        for left_outcome, right_outcome in zip(left_outcomes, right_outcomes, strict=True):
            objects.append(
                ObjectPair(
                    category=category,
                    object_box=object_box,
                    left=left_outcome,
                    right=right_outcome,
                )
            )
    return ImagePair(objects, _pair_false_positives(left, right))


def _group_by_object(outcomes: Sequence[MatchedBox]) -> Mapping[ObjectKey, list[MatchedBox]]:
    """Group the outcomes of an image by the labelled object, without the false positives."""
    by_object: defaultdict[ObjectKey, list[MatchedBox]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.kind == MISSED:
            by_object[outcome.category, tuple(outcome.box)].append(outcome)
        elif outcome.object_box is not None:
            by_object[outcome.category, tuple(outcome.object_box)].append(outcome)
    return by_object


def _pair_false_positives(
    left: Sequence[MatchedBox], right: Sequence[MatchedBox]
) -> list[FalsePositive]:
    """Pair the false positives of two models that have the same class and an IoU of at least 0.5.

    Each false positive of the first model is paired with the one of the second model that it
    overlaps most and that has no counterpart yet. Those without a counterpart stay alone.
    """
    left_false = [outcome for outcome in left if outcome.kind == FALSE]
    right_false = [outcome for outcome in right if outcome.kind == FALSE]
    ious = _overlaps_within_classes(left_false, right_false)

    false_positives = []
    paired_right_indices = set()
    for left_index, detection in enumerate(left_false):
        counterpart = None
        if right_false and ious[left_index].max() >= IOU:
            right_index = int(ious[left_index].argmax())
            counterpart = right_false[right_index]
            paired_right_indices.add(right_index)
            ious[:, right_index] = 0  # so that nothing else is paired with it
        false_positives.append(FalsePositive(detection, is_left=True, counterpart=counterpart))

    for right_index, detection in enumerate(right_false):
        if right_index not in paired_right_indices:
            false_positives.append(FalsePositive(detection, is_left=False))
    return false_positives


def _overlaps_within_classes(
    left: Sequence[MatchedBox], right: Sequence[MatchedBox]
) -> npt.NDArray[np.float64]:
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
