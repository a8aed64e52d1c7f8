"""Which detection matches which object, and what became of a box by that."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]

IOU = 0.5  # minimum for a true positive in curves, advice and confusions

CORRECT, FALSE, MISSED, IGNORED = range(4)
"""What became of a box: detected and right, detected and wrong, not detected, or not counted, as a
detection of a crowd."""


class MatchedBox(NamedTuple):
    """What became of a detection, or of an object that was missed."""

    category: int
    box: list[float]
    score: float | None  # None for an object that was missed
    kind: int  # CORRECT, FALSE or MISSED
    object_box: list[float] | None = None  # of the object that a correct detection matches


class Matching(NamedTuple):
    """Which detection matches which object; all are rows of the evaluator's arrays."""

    detections: Indices  # (N,) all but those of crowds and of ignored objects
    matched_objects: Indices  # (N,) the object that each of these matches; -1 for none
    objects: Indices  # (M,) those that are to be detected

    @property
    def missed_objects(self) -> Indices:
        """The objects that no detection matches."""
        return np.setdiff1d(self.objects, self.matched_objects)


def read_matching(
    diagnostics: Mapping[str, Any], object_rows: Indices, detection_rows: Indices
) -> Matching:
    """Translate what the evaluator says about its matches to rows of our arrays.

    The evaluator numbers the boxes that it got from 1: its object 3 is the one in row
    `object_rows[2]`.

    Args:
        diagnostics: What the evaluator says. The keys of "gt_status" and "dt_status" are the
            numbers of the objects and of the detections that are not ignored. "dt_match" maps
            the number of a detection to that of the object that it matches; a detection that
            matches none is missing.
        object_rows: The rows of the objects that the evaluator got.
        detection_rows: The rows of the detections that it got.
    """
    no_object = 0  # the evaluator's numbers begin with 1
    detection_numbers = sorted(diagnostics["dt_status"])
    object_numbers = list(diagnostics["gt_status"])
    matched_object_numbers = []
    for detection_number in detection_numbers:
        object_number = diagnostics["dt_match"].get(detection_number, no_object)
        matched_object_numbers.append(object_number)

    # These arrays are indexed by the evaluator's numbers. With -1 in front, `no_object` becomes -1.
    row_by_object_number = np.concatenate([[-1], object_rows])
    row_by_detection_number = np.concatenate([[-1], detection_rows])
    return Matching(
        detections=row_by_detection_number[np.array(detection_numbers, np.int64)],
        matched_objects=row_by_object_number[np.array(matched_object_numbers, np.int64)],
        objects=row_by_object_number[np.array(object_numbers, np.int64)],
    )
