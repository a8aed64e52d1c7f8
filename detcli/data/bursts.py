"""Bursts: photographs of the same folder that were taken shortly after one another.

A camera trap takes several photographs of what passes by, which are looked at and counted as one.
"""

from array import array
from datetime import datetime, timedelta
from typing import cast

import numpy as np
import numpy.typing as npt

from detcli.core import Fields, frozen
from detcli.data.capture_time import from_text
from detcli.data.record import BURST_COLUMNS, RecordJson

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - local, as all times that are compared with it
_MICROSECOND = timedelta(microseconds=1)

NO_BURST = -1
"""In place of a burst id, for a record whose image has no time."""

_Integers = npt.NDArray[np.int64]


@frozen
class Burst:
    """The burst that a photograph belongs to."""

    number: int  # from 0, in the order in which the bursts begin among the records
    best_score: float  # of all detections in its photographs; 0 if there are none


class BurstFinder:
    """Collects when the images of all records were taken, and then determines which form a burst.

    It takes 32 bytes for each photograph, and about 100 while it groups them.
    """

    def __init__(self) -> None:
        """Start with no records."""
        self.record_count = 0
        self._folder_ids: dict[str, int] = {}  # by the folder's name
        # For each record whose image has a time:
        self._record_indices = array("q")
        self._folders = array("q")
        self._times_us = array("q")  # microseconds since 1970
        self._scores = array("d")  # the best of the image

    def add(self, record: RecordJson) -> None:
        """Add the next record; one whose image has no time is in no burst."""
        record_index = self.record_count
        self.record_count += 1
        time = from_text(record.get("taken", ""))
        if time is None or "error" in record:
            return
        folder, _, _ = record["source"].rpartition("/")
        folder_id = self._folder_ids.setdefault(folder, len(self._folder_ids))
        scores = [detection["score"] for detection in record["detections"]]
        self._record_indices.append(record_index)
        self._folders.append(folder_id)
        self._times_us.append((time - _EPOCH) // _MICROSECOND)
        self._scores.append(max(scores, default=0.0))

    def find(self, gap_s: float) -> "Bursts":
        """Group the photographs that were added.

        Args:
            gap_s: Two consecutive photographs of a folder belong to the same burst if they were
                taken at most this many seconds apart.
        """
        number_by_record = np.full(self.record_count, NO_BURST)
        if not self._times_us:
            return Bursts(number_by_record, np.zeros(0))
        gap_us = round(gap_s * 1_000_000)
        groups = _groups(
            np.array(self._folders, np.int64), np.array(self._times_us, np.int64), gap_us
        )
        numbers = _in_order_of_appearance(groups)
        number_by_record[np.array(self._record_indices)] = numbers
        best_scores = np.zeros(numbers.max() + 1)
        np.maximum.at(best_scores, numbers, np.array(self._scores))
        return Bursts(number_by_record, best_scores)


class Bursts:
    """The burst of each record that was added to a `BurstFinder`.

    Attributes:
        number_by_record: `(N,)`, the burst id of each record, or `NO_BURST`.
    """

    def __init__(self, number_by_record: _Integers, best_scores: npt.NDArray[np.float64]) -> None:
        """Combine what was found.

        Args:
            number_by_record: `(N,)`, the burst id of each record, or `NO_BURST`.
            best_scores: `(B,)`, the best score of each burst.
        """
        self.number_by_record = number_by_record
        self._best_scores = best_scores

    def of_record(self, record_index: int) -> Burst | None:
        """Return the burst of a record, by its index from 0; None if it is in none."""
        number = int(self.number_by_record[record_index])
        if number == NO_BURST:
            return None
        return Burst(number, float(self._best_scores[number]))


def _groups(folders: _Integers, times_us: _Integers, gap_us: int) -> _Integers:
    """Number the groups of photographs of the same folder that no long gap separates.

    Args:
        folders: `(N,)`, the index of each photograph's folder.
        times_us: `(N,)`, when each was taken, in microseconds.
        gap_us: The longest gap within a group, in microseconds.

    Returns:
        `(N,)`, the id of each photograph's group, from 0 in the order of folder and time.
    """
    order = np.lexsort((times_us, folders))  # by folder, and by time within each
    is_other_folder = np.diff(folders[order]) != 0
    is_too_late = np.diff(times_us[order]) > gap_us
    begins_group = is_other_folder | is_too_late  # of all photographs but the first
    groups = np.zeros(len(order), np.int64)
    groups[order[1:]] = np.cumsum(begins_group)
    return groups


def _in_order_of_appearance(groups: _Integers) -> _Integers:
    """Renumber groups in the order in which they first appear.

    Args:
        groups: `(N,)`, the group of each photograph; their ids are 0 to the highest.

    Examples:
        >>> _in_order_of_appearance(np.array([2, 0, 2, 1])).tolist()
        [0, 1, 0, 2]
    """
    _, first_positions = np.unique(groups, return_index=True)
    groups_by_appearance = np.argsort(first_positions)  # in the example: 2, 0, 1
    new_number_of_group = np.empty(len(first_positions), np.int64)
    new_number_of_group[groups_by_appearance] = np.arange(len(first_positions))
    return new_number_of_group[groups]


def with_burst(record: RecordJson, burst: Burst) -> RecordJson:
    """Return a record with the fields of its burst, which come before the size of the image."""
    fields: Fields = {}
    for name, value in record.items():
        if name in BURST_COLUMNS:  # of an earlier run
            continue
        if name == "width":
            fields["burst"] = burst.number
            fields["burst_score"] = burst.best_score
        fields[name] = value
    return cast("RecordJson", fields)
