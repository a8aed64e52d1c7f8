"""Bursts: photographs of one folder that were taken shortly after one another.

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

_Integers = npt.NDArray[np.int64]


@frozen
class Burst:
    """The burst that a photograph belongs to."""

    number: int  # from 0, in the order in which the bursts begin among the records
    best_score: float  # of all detections in its photographs; 0 if there are none


class BurstFinder:
    """Collects when the images of all records were taken, and then tells which are one burst.

    It takes 32 bytes for each photograph.
    """

    def __init__(self) -> None:
        """Begin without a record."""
        self.record_count = 0
        self._folder_ids: dict[str, int] = {}  # by the folder's name
        # of each record whose image has a time:
        self._record_numbers = array("q")
        self._folders = array("q")
        self._times_us = array("q")  # microseconds since 1970
        self._scores = array("d")  # the best of the image

    def add(self, record: RecordJson) -> None:
        """Add the next record; one whose image has no time is in no burst."""
        record_number = self.record_count
        self.record_count += 1
        time = from_text(record.get("taken", ""))
        if time is None or "error" in record:
            return
        folder, _, _ = record["source"].rpartition("/")
        folder_id = self._folder_ids.setdefault(folder, len(self._folder_ids))
        scores = [detection["score"] for detection in record["detections"]]
        self._record_numbers.append(record_number)
        self._folders.append(folder_id)
        self._times_us.append((time - _EPOCH) // _MICROSECOND)
        self._scores.append(max(scores, default=0.0))

    def find(self, gap_s: float) -> dict[int, Burst]:
        """Group the photographs that were added.

        Args:
            gap_s: Two photographs of a folder that follow on one another are of one burst if they
                were taken at most so many seconds apart.

        Returns:
            The burst of each photograph, by the number of its record; records count from 0.
        """
        if not self._times_us:
            return {}
        gap_us = round(gap_s * 1_000_000)
        groups = _groups(
            np.array(self._folders, np.int64), np.array(self._times_us, np.int64), gap_us
        )
        numbers = _in_order_of_appearance(groups)
        best_scores = np.zeros(numbers.max() + 1)
        np.maximum.at(best_scores, numbers, np.array(self._scores))

        bursts = []
        for number, best_score in enumerate(best_scores.tolist()):
            bursts.append(Burst(number, best_score))
        burst_by_record = {}
        for record_number, number in zip(self._record_numbers, numbers.tolist(), strict=True):
            burst_by_record[record_number] = bursts[number]
        return burst_by_record


def _groups(folders: _Integers, times_us: _Integers, gap_us: int) -> _Integers:
    """Number the groups of photographs of one folder between which no gap is too long.

    Args:
        folders: `(N,)`, the number of each photograph's folder.
        times_us: `(N,)`, when each was taken, in microseconds.
        gap_us: The longest gap within a group, in microseconds.

    Returns:
        `(N,)`, the number of each photograph's group, from 0 in the order of folder and time.
    """
    order = np.lexsort((times_us, folders))  # by folder, and by time within each
    is_other_folder = np.diff(folders[order]) != 0
    is_too_late = np.diff(times_us[order]) > gap_us
    begins_group = is_other_folder | is_too_late  # of all photographs but the first
    groups = np.zeros(len(order), np.int64)
    groups[order[1:]] = np.cumsum(begins_group)
    return groups


def _in_order_of_appearance(groups: _Integers) -> _Integers:
    """Number groups anew, in the order in which they first appear.

    Args:
        groups: `(N,)`, the group of each photograph; their numbers are 0 to the highest.

    Examples:
        >>> _in_order_of_appearance(np.array([2, 0, 2, 1])).tolist()
        [0, 1, 0, 2]
    """
    _, first_positions = np.unique(groups, return_index=True)
    new_numbers = np.empty(len(first_positions), np.int64)
    new_numbers[np.argsort(first_positions)] = np.arange(len(first_positions))
    return new_numbers[groups]


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
