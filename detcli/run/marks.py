"""Applies the marks of a page to records: what somebody confirmed or dropped there.

On the page of results, a person can go through the images and mark boxes, or whole images, as
right or as to be dropped. The page saves these marks in a file.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from detcli.core.errors import CheckError, UsageError
from detcli.core.text import escape_unprintable, pluralize
from detcli.data.columns import DetectionJson
from detcli.data.record import MarkJson, Record, RecordJson, box_of
from detcli.data.repeats import fractions_of, overlap_enough, place_of
from detcli.data.saved_record import to_marks
from detcli.storage.files import read_json

ROUNDING = 0.06
"""The maximum distance in pixels between an edge of a box in a record and in a mark.

A page rounds its boxes to 1/10 pixel and a record to 1/100, so they differ by 0.055 at most.
"""


class Marks:
    """Marks of a page: images and boxes that they drop are left out of records.

    A group of repeats that they drop stays in the records, and its boxes get its id.
    """

    def __init__(self, path: Path) -> None:
        """Read the file of marks that a page has saved.

        Raises:
            UsageError: The file cannot be read, or holds something else.
        """
        try:
            marks = to_marks(read_json(path, _unusable))
        except (ValueError, RecursionError) as error:
            raise _unusable(path, f"it does not hold marks: {error}") from error
        self._path = path
        self._count = len(marks)
        # The marks that have matched no record so far, by their `id()`: they are dictionaries,
        # which cannot be in a set.
        self._unused = {id(mark): mark for mark in marks}

        # Marks of a record or of one of its boxes, by `_record_key`.
        self._marks_by_record: defaultdict[object, list[MarkJson]] = defaultdict(list)
        # Marks of groups of repeats, by the camera and the class that the boxes of a group share.
        self._group_marks: defaultdict[tuple[str, str], list[MarkJson]] = defaultdict(list)
        for mark in marks:
            self._add_to_index(mark)

    def _add_to_index(self, mark: MarkJson) -> None:
        """Add a mark to those of its record, or to those of its camera and class.

        Raises:
            UsageError: The mark lacks a field.
        """
        is_of_group = "repeated" in mark
        if is_of_group:
            self._require_group(mark)
            camera = escape_unprintable(mark["source"])  # a folder of images, or a video
            self._group_marks[camera, mark["class_name"]].append(mark)
        else:
            self._require_box(mark)
            self._marks_by_record[_record_key(mark)].append(mark)

    def _require_box(self, mark: MarkJson) -> None:
        """Require that a mark has a box if any of its fields describes a box.

        A mark without a box is about the whole image. So if the box were missing by mistake, the
        mark would drop the image with all of its boxes.

        Raises:
            UsageError: It has no box.
        """
        if "box" in mark:
            return
        for name in ("detection", "class_name", "score", "box_fractions"):
            if name in mark:
                source = escape_unprintable(mark["source"])
                raise _unusable(self._path, f"a mark of {source} has {name}, but no box")

    def _require_group(self, mark: MarkJson) -> None:
        """Require that a mark has all fields of its group of repeats.

        Raises:
            UsageError: It does not.
        """
        for name in ("class_name", "box_fractions"):
            if name not in mark:
                reason = f"the mark of group {mark['repeated']} of repeats has no {name}"
                raise _unusable(self._path, reason)

    @property
    def drops(self) -> int:
        """How many images and boxes the marks drop."""
        drop_count = 0
        for marks in self._marks_by_record.values():
            drop_count += sum(_is_drop(mark) for mark in marks)
        return drop_count

    @property
    def dropped_groups(self) -> int:
        """How many groups of repeats the marks drop."""
        group_count = 0
        for marks in self._group_marks.values():
            group_count += sum(_is_drop(mark) for mark in marks)
        return group_count

    @property
    def effect(self) -> str:
        """Describe what the marks change in records, as the end of a sentence that counts these.

        Such as ", without what 3 marks dropped, with 2 groups of repeats marked".
        """
        text = ""
        if self.drops or not self.dropped_groups:
            text = f", without what {pluralize(self.drops, 'mark')} dropped"
        if self.dropped_groups:
            text += f", with {pluralize(self.dropped_groups, 'group')} of repeats marked"
        return text

    def remaining_detections(self, record: RecordJson) -> list[int] | None:
        """Find the detections of a record that no mark drops.

        Each mark that matches the record or one of its detections is recorded as used, whether it
        drops or keeps it, see `require_fit`.

        Returns:
            The indices of the remaining detections; None if the whole record is dropped.
        """
        detections = record.get("detections", [])
        is_record_dropped = False
        dropped_indices: set[int] = set()
        for mark in self._marks_by_record.get(_record_key(record), []):
            is_about_record = "box" not in mark
            if is_about_record:
                self._note_as_used(mark)
                is_record_dropped |= _is_drop(mark)
                continue
            marked_index = _marked_detection(detections, mark)
            if marked_index is not None:
                self._note_as_used(mark)
                if _is_drop(mark):
                    dropped_indices.add(marked_index)

        if is_record_dropped:
            return None
        return [index for index in range(len(detections)) if index not in dropped_indices]

    def _note_as_used(self, mark: MarkJson) -> None:
        """Record that a mark has matched a record; it may have matched another one before."""
        self._unused.pop(id(mark), None)

    def group_numbers(self, record: RecordJson) -> list[int]:
        """Return, for each detection of a record, the id of its dropped group of repeats, or 0.

        A group of repeats has the boxes of the same class that a camera shows at the same place
        again and again, such as a stone that is taken for an animal. It is dropped by a mark of
        this file, or by one that was applied to the record earlier.

        Returns:
            For each detection, the id of the group that a mark of this file drops. If there is
            none, it is the id that the record has from marks applied earlier, or else 0.
        """
        camera = escape_unprintable(place_of(record))
        group_numbers = []
        for detection in record.get("detections", ()):
            class_name = escape_unprintable(detection["class_name"])
            marks = self._group_marks.get((camera, class_name), [])
            group_number = self._dropped_group(marks, detection, record)
            if group_number == 0:
                group_number = detection.get("repeated", 0)
            group_numbers.append(group_number)
        return group_numbers

    def _dropped_group(
        self, marks: Sequence[MarkJson], detection: DetectionJson, record: RecordJson
    ) -> int:
        """Return the id of the group of repeats with which a detection is dropped; 0 for none.

        A detection is in a group if their boxes overlap enough, so it may be in several. It is
        dropped if the marks drop all of these groups; the first of them is returned then. If a mark
        keeps any of them, the detection is kept.

        The marks of these groups are recorded as used, since `require_fit` refuses unused ones.

        Args:
            marks: The marks of groups that have the camera and the class of the detection.
            detection: The detection.
            record: Its record.
        """
        if not marks:
            return 0

        box = fractions_of(detection, record)
        overlapping_marks = []
        for mark in marks:
            if overlap_enough(box, mark["box_fractions"]):
                overlapping_marks.append(mark)
                self._note_as_used(mark)
        if not overlapping_marks:
            return 0

        for mark in overlapping_marks:
            if not _is_drop(mark):
                return 0
        return overlapping_marks[0]["repeated"]

    def corrected(self, record: RecordJson) -> RecordJson | None:
        """Apply the marks to a record, as JSON.

        Detections that are dropped one by one are left out. Those of a dropped group of repeats
        stay, and get the id of the group as `repeated`.

        Returns:
            The changed record; None if the whole record is dropped.
        """
        remaining = self.remaining_detections(record)
        if remaining is None:
            return None
        if "detections" not in record:
            return record
        group_numbers = self.group_numbers(record)
        detections = []
        for index in remaining:
            detection = record["detections"][index]
            if group_numbers[index] > 0:
                detection = {**detection, "repeated": group_numbers[index]}
            detections.append(detection)
        return {**record, "detections": detections}

    def applied(self, record: Record) -> Record | None:
        """Apply the marks to a record of this run; `corrected` does the same to a saved one.

        Detections that are dropped one by one are left out. Those of a dropped group of repeats
        stay, and get the id of the group as `repeated`.

        Returns:
            The changed record; None if the whole record is dropped.
        """
        fields = record.to_json()
        remaining = self.remaining_detections(fields)
        if remaining is None:
            return None
        if record.detections is None:
            return record
        detections = record.detections
        if self._group_marks:
            group_numbers = np.array(self.group_numbers(fields), int)
            detections = replace(detections, repeated=group_numbers)
        return replace(record, detections=detections[remaining])

    def require_fit(self) -> None:
        """Require that each mark has matched a record, once all records have been read.

        Raises:
            CheckError: Some have not; the message names the first of them.
        """
        if not self._unused:
            return
        unused_of_all = f"{len(self._unused)} of {pluralize(self._count, 'mark')}"
        first_unused = next(iter(self._unused.values()))
        example = first_unused["source"]
        if "repeated" in first_unused:
            class_name = first_unused.get("class_name")
            example = f"group {first_unused['repeated']} of repeats, {class_name} in {example}"
        elif first_unused.get("box"):
            box = ", ".join(f"{edge:g}" for edge in first_unused["box"])
            example = f"{first_unused.get('class_name')} at {box} in {example}"
        raise CheckError(
            f"{unused_of_all} in {self._path} fit no record: {example}",
            "apply them to the records that their page was made of",
        )


def _unusable(path: Path, reason: str) -> UsageError:
    """Return the error that says why a file of marks cannot be used."""
    return UsageError(f"--apply {path}: {reason}", "name a file that a page has saved")


def _is_drop(mark: MarkJson) -> bool:
    """Return whether a mark drops what it is about, as wrong; other marks keep it."""
    return mark["mark"] == "drop"


def _record_key(fields: RecordJson | MarkJson) -> object:
    """Return a key that a mark shares with the record that it is about.

    Besides the source it holds the frame of a video and the time of a live source, since all
    records of a video or camera have the same source.

    Args:
        fields: The fields of a record or of a mark.
    """
    return escape_unprintable(fields["source"]), fields.get("frame"), fields.get("time")


def _marked_detection(detections: Sequence[DetectionJson], mark: MarkJson) -> int | None:
    """Find the detection that a mark is about.

    Returns:
        Its index; None if the mark matches no detection. If it matches several with equal boxes,
        that is the one with the index in the mark, or else the first.
    """
    matching_indices = []
    for index, detection in enumerate(detections):
        if _is_marked(detection, mark):
            matching_indices.append(index)
    if not matching_indices:
        return None
    index_in_mark = mark.get("detection")
    if index_in_mark in matching_indices:
        return index_in_mark
    return matching_indices[0]


def _is_marked(detection: DetectionJson, mark: MarkJson) -> bool:
    """Return whether a mark matches a detection: it has the same class, and nearly the same box."""
    if escape_unprintable(detection["class_name"]) != mark.get("class_name"):
        return False
    edges = zip(box_of(detection), mark.get("box", ()), strict=True)
    return all(abs(edge - marked_edge) <= ROUNDING for edge, marked_edge in edges)
