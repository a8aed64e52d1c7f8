"""The marks of a page: what somebody confirmed or dropped, and applied to records."""

from dataclasses import replace
from pathlib import Path

from detcli.core.errors import CheckError, UsageError
from detcli.core.text import pluralize, escape_unprintable
from detcli.data.columns import DetectionJson
from detcli.data.record import (
    MarkJson,
    Record,
    RecordJson,
    box_of,
    to_marks,
)
from detcli.storage.files import read_json

ROUNDING = 0.06  # pixels between a box of a record and of a mark, at most


class Marks:
    """Marks of a page: what they drop is left out of records.

    Raises:
        UsageError: The file cannot be read, or holds something else.
    """

    def __init__(self, path: Path) -> None:
        def unusable(path: Path, reason: str) -> UsageError:
            return UsageError(f"--apply {path}: {reason}", "name a file that a page has saved")

        try:
            self._path, marks = path, to_marks(read_json(path, unusable))
        except (ValueError, RecursionError) as error:
            raise unusable(path, f"it does not hold marks: {error}") from error
        self._count, self._left = len(marks), {id(mark): mark for mark in marks}  # fit nothing yet
        self._marks: dict[object, list[MarkJson]] = {}  # by what finds their record
        for mark in marks:
            self._marks.setdefault(_record_of(mark), []).append(mark)

    @property
    def drops(self) -> int:
        """How many pictures and boxes they drop."""
        return sum(mark["mark"] == "drop" for some in self._marks.values() for mark in some)

    def kept(self, record: RecordJson) -> list[int] | None:
        """Places of the detections that no mark drops; None if one drops the whole record."""
        detections = record.get("detections", [])
        dropped: set[int | None] = set()  # with None for the whole
        for mark in self._marks.get(_record_of(record), ()):
            places: list[int | None] = [None]
            if "box" in mark:
                places = [at for at, one in enumerate(detections) if _is_marked(one, mark)]
                places.sort(key=lambda at: at != mark.get("detection"))  # of twins the right one
            if places:
                self._left.pop(id(mark), None)
                dropped |= {*places[:1]} if mark["mark"] == "drop" else set()
        left = [at for at in range(len(detections)) if at not in dropped]
        return None if None in dropped else left

    def corrected(self, record: RecordJson) -> RecordJson | None:
        """A record that was read, without what was dropped; None if all of it was."""
        kept = self.kept(record)
        if kept is None or "detections" not in record:
            return None if kept is None else record
        detections = [record["detections"][place] for place in kept]
        return {**record, "detections": detections}

    def applied(self, record: Record) -> Record | None:
        """A record without what was dropped; None if all of it was."""
        kept, found = self.kept(record.to_json()), record.detections
        if kept is None or found is None:
            return None if kept is None else record
        return replace(record, detections=found[kept])

    def require_fit(self) -> None:
        """Raise CheckError for marks that have fitted no record."""
        for mark in self._left.values():
            number = f"{len(self._left)} of {pluralize(self._count, 'mark')}"
            box = ", ".join(f"{side:g}" for side in mark.get("box", ()))
            what = f"{mark.get('class_name')} at {box} in " if box else ""
            raise CheckError(
                f"{number} in {self._path} fit no record: {what}{mark['source']}",
                "apply them to the records that their page was made of",
            )


def _record_of(fields: RecordJson | MarkJson) -> object:
    """By which a mark finds its record; those of one name are told apart by what is in them."""
    return escape_unprintable(fields["source"]), fields.get("frame"), fields.get("time")


def _is_marked(one: DetectionJson, mark: MarkJson) -> bool:
    sides = zip(box_of(one), mark.get("box", ()), strict=True)
    same = escape_unprintable(one["class_name"]) == mark.get("class_name")
    return same and all(abs(a - b) <= ROUNDING for a, b in sides)
