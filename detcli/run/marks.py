"""The marks of a page: what somebody confirmed or dropped, and applied to records."""

from dataclasses import replace
from pathlib import Path

from detcli.core.errors import CheckError, UsageError
from detcli.core.text import escape_unprintable, pluralize
from detcli.data.columns import DetectionJson
from detcli.data.record import (
    MarkJson,
    Record,
    RecordJson,
    box_of,
    to_marks,
)
from detcli.storage.files import read_json

ROUNDING = 0.06  # pixels between an edge of a record's box and of a mark's, at most


class Marks:
    """Marks of a page: what they drop is left out of records.

    Raises:
        UsageError: The file cannot be read, or holds something else.
    """

    def __init__(self, path: Path) -> None:
        def unusable(path: Path, reason: str) -> UsageError:
            return UsageError(f"--apply {path}: {reason}", "name a file that a page has saved")

        try:
            marks = to_marks(read_json(path, unusable))
        except (ValueError, RecursionError) as error:
            raise unusable(path, f"it does not hold marks: {error}") from error
        self._path = path
        self._count = len(marks)
        self._unused = {id(mark): mark for mark in marks}  # those that have fitted no record so far
        self._marks: dict[object, list[MarkJson]] = {}  # by the key of their record
        for mark in marks:
            self._marks.setdefault(_record_key(mark), []).append(mark)

    @property
    def drops(self) -> int:
        """How many pictures and boxes the marks drop."""
        number = 0
        for marks in self._marks.values():
            number += sum(mark["mark"] == "drop" for mark in marks)
        return number

    def remaining_detections(self, record: RecordJson) -> list[int] | None:
        """The indices of the detections that no mark drops; None if the whole record is dropped."""
        detections = record.get("detections", [])
        dropped: set[int] = set()
        drops_record = False
        for mark in self._marks.get(_record_key(record), ()):
            is_drop = mark["mark"] == "drop"
            if "box" not in mark:
                self._unused.pop(id(mark), None)
                drops_record = drops_record or is_drop
                continue
            matches = []
            for index, detection in enumerate(detections):
                if _is_marked(detection, mark):
                    matches.append(index)
            if not matches:
                continue
            self._unused.pop(id(mark), None)
            if is_drop:
                # Of equal boxes, the one at the mark's own index.
                marked_index = mark.get("detection")
                dropped.add(marked_index if marked_index in matches else matches[0])
        if drops_record:
            return None
        return [index for index in range(len(detections)) if index not in dropped]

    def corrected(self, record: RecordJson) -> RecordJson | None:
        """A record that was read, without what was dropped; None if all of it was."""
        remaining = self.remaining_detections(record)
        if remaining is None:
            return None
        if "detections" not in record:
            return record
        detections = [record["detections"][index] for index in remaining]
        return {**record, "detections": detections}

    def applied(self, record: Record) -> Record | None:
        """A record without what was dropped; None if all of it was."""
        remaining = self.remaining_detections(record.to_json())
        if remaining is None:
            return None
        if record.detections is None:
            return record
        return replace(record, detections=record.detections[remaining])

    def require_fit(self) -> None:
        """Raise CheckError for marks that have fitted no record."""
        if not self._unused:
            return
        mark = next(iter(self._unused.values()))
        number = f"{len(self._unused)} of {pluralize(self._count, 'mark')}"
        example = mark["source"]
        if mark.get("box"):
            box = ", ".join(f"{edge:g}" for edge in mark["box"])
            example = f"{mark.get('class_name')} at {box} in {example}"
        raise CheckError(
            f"{number} in {self._path} fit no record: {example}",
            "apply them to the records that their page was made of",
        )


def _record_key(fields: RecordJson | MarkJson) -> object:
    """The key that a mark shares with its record; frame and time tell apart those of one name."""
    return escape_unprintable(fields["source"]), fields.get("frame"), fields.get("time")


def _is_marked(detection: DetectionJson, mark: MarkJson) -> bool:
    """Whether a mark is about a detection: of its class, with its box but for rounding."""
    if escape_unprintable(detection["class_name"]) != mark.get("class_name"):
        return False
    edges = zip(box_of(detection), mark.get("box", ()), strict=True)
    return all(abs(edge - marked_edge) <= ROUNDING for edge, marked_edge in edges)
