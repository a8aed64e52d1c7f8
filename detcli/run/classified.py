"""The answers of a second network, read from a CSV file and added to the detections of records.

A row names a crop of --save-crops, or a source with the index of a box or the id of a track. The
rows are kept in a temporary database on the disk, so that memory does not grow with their number.
"""

import csv
import io
import math
import sqlite3
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from detcli.core.errors import CheckError, UsageError, system_reason
from detcli.core.text import escape_unprintable, pluralize
from detcli.data.columns import DetectionJson
from detcli.data.record import RecordJson
from detcli.storage.file_names import safe
from detcli.storage.files import open_lines

HINT = (
    "write columns crop, or source with box or track (and frame), then class and, if you like, "
    "score"
)
MAX_LISTED = 10  # rows that match no detection and are named
MAX_NUMBER = 1 << 53  # of a box, a frame or a track
CACHE_KIB = 32 << 10  # memory of the database

CREATE_TABLE = """
CREATE TABLE answers (
    line INTEGER PRIMARY KEY, kind TEXT, name TEXT, frame INTEGER, number INTEGER, path TEXT,
    class TEXT, score REAL, is_used INTEGER DEFAULT 0,
    UNIQUE (kind, name, frame, number, path)
)
"""
INSERT = """
INSERT INTO answers (line, kind, name, frame, number, path, class, score)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
SELECT = """
SELECT line, path, class, score, is_used FROM answers
WHERE kind = ? AND name = ? AND frame = ? AND number = ?
"""

SELECT_FIRST_UNUSED = """
SELECT line, name, frame, number, path, kind FROM answers
WHERE NOT is_used ORDER BY line LIMIT ?
"""

BOX, TRACK, CROP = "box", "track", "crop"
"""The kinds of a row: it is about a box, all boxes of a track, or the box of a crop.

They are also the names of the columns that say which box, track or crop.
"""

NONE = -1
"""Stands for no frame and no number in the database, whose unique keys must not be empty."""


class Key(NamedTuple):
    """What a row of the file is about."""

    kind: str  # BOX, TRACK or CROP
    name: str  # the source; the file's name without folders for a crop
    frame: int = NONE
    number: int = NONE  # of the box or the track
    path: str = ""  # the crop with its folders


class ClassifierAnswer(NamedTuple):
    """What the second network says about one detection."""

    line: int  # the number of its line in the file
    path: str
    class_name: str
    score: float | None
    is_used: int  # 1 if it has already been added to a detection


class Classified:
    """Adds the answers in a CSV file to records, in any order."""

    def __init__(self, path: Path) -> None:
        """Read the file into a temporary database.

        Args:
            path: The CSV file that the classifier has written.

        Raises:
            UsageError: It cannot be read, lacks a column, or two rows are about the same box.
        """
        self._path = path
        self._count = 0  # of rows
        self._kinds: set[str] = set()  # those of the rows; no others need to be looked up
        self._database = sqlite3.connect("")  # in a temporary file, which SQLite removes
        try:
            self._database.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            self._database.execute("PRAGMA journal_mode = OFF")  # nothing is ever rolled back
            self._database.execute(CREATE_TABLE)
            self._read_file()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the temporary database."""
        self._database.close()

    def _read_file(self) -> None:
        """Read the classifier's file into the database.

        Raises:
            UsageError: It cannot be read, lacks a column, or two rows are about the same box.
        """
        try:
            with open_lines(self._path) as file:
                self._insert_rows(io.TextIOWrapper(file, encoding="utf-8-sig", newline=""))
        except (OSError, ValueError, csv.Error) as error:
            raise UsageError(
                f"--classified {self._path} cannot be read: {system_reason(error)}", HINT
            ) from error

    def _insert_rows(self, text: io.TextIOWrapper) -> None:
        """Read all rows of the classifier's table into the database.

        Raises:
            UsageError: The table lacks columns, or a row cannot be read.
        """
        rows = csv.DictReader(text, strict=True)
        header = set(rows.fieldnames or ())
        if "class" not in header or not header & {CROP, "source"}:
            columns = ", ".join(escape_unprintable(name) for name in rows.fieldnames or ())
            raise UsageError(f"--classified {self._path} has the columns {columns[:200]}", HINT)
        for row in rows:
            try:
                key = _key_of(row)
                score = _score_of(row)
            except ValueError as error:
                message = f"--classified {self._path}, line {rows.line_num}: {error}"
                raise UsageError(message, HINT) from error
            self._insert(rows.line_num, key, row["class"], score)

    def _insert(self, line: int, key: Key, class_name: str, score: float | None) -> None:
        """Add a row of the classifier's table to the database.

        Args:
            line: Its line in the file.
            key: Which detections it is about.
            class_name: The class that the classifier returned.
            score: The classifier's score, if there is one.

        Raises:
            UsageError: An earlier row is about the same detections.
        """
        try:
            self._database.execute(INSERT, (line, *key, class_name, score))
        except sqlite3.IntegrityError:  # keys are unique
            query = (
                "SELECT line FROM answers WHERE (kind, name, frame, number, path) = (?, ?, ?, ?, ?)"
            )
            (earlier_line,) = self._database.execute(query, key).fetchone()
            raise self._repeated(earlier_line, line) from None
        self._kinds.add(key.kind)
        self._count += 1

    def _repeated(self, first_line: int, second_line: int) -> UsageError:
        """Make the error for two rows about the same box."""
        return UsageError(
            f"--classified {self._path}: lines {first_line} and {second_line} are about the same "
            "box",
            "leave one of them out",
        )

    def add(self, record: RecordJson) -> None:
        """Add the classifier's answers to the detections of a record, in place.

        The classifier's table has a row for each answer. A detection that a row is about gets its
        class as `classified`, and its score, if it has one, as `classified_score`. The row is
        marked as used in the database, since `require_fit` refuses rows that match no detection.

        Raises:
            UsageError: Two rows are about the same box, or a crop's name matches several boxes.
        """
        detections = record.get("detections", [])
        crops: dict[int, str] = {}  # the file of a detection's crop, by the detection's index
        if CROP in self._kinds:
            crops = crops_of(record)

        for number, detection in enumerate(detections):
            answers = list(self._answers(record, detection, number, crops.get(number)))
            if len(answers) > 1:
                raise self._repeated(answers[0].line, answers[1].line)
            if answers:
                self._add_answer(detection, answers[0])

    def _add_answer(self, detection: DetectionJson, answer: ClassifierAnswer) -> None:
        """Add the classifier's answer to a detection, and mark its row as used."""
        detection.pop("classified_score", None)  # of an earlier merge
        detection["classified"] = answer.class_name
        if answer.score is not None:
            detection["classified_score"] = answer.score
        self._database.execute("UPDATE answers SET is_used = 1 WHERE line = ?", (answer.line,))

    def _answers(
        self, record: RecordJson, detection: DetectionJson, number: int, crop: str | None
    ) -> Iterator[ClassifierAnswer]:
        """Yield the rows of the classifier's table that are about a detection.

        A row may name it in three ways: by the index of its box, by its track, or by the file of
        its crop.

        Args:
            record: The record of its image.
            detection: The detection.
            number: Its index in the record, from 0.
            crop: The file of its crop; None if the record names none.

        Raises:
            UsageError: A row names a crop without its folders, and several crops have that name:
                `add` has already used the row for one of them.
        """
        source = record["source"]
        if BOX in self._kinds:
            frame = record.get("frame", NONE)
            yield from self._select(Key(kind=BOX, name=source, frame=frame, number=number))
        if TRACK in self._kinds and "track_id" in detection:
            track_number = detection["track_id"]
            yield from self._select(Key(kind=TRACK, name=source, number=track_number))
        if crop is None:
            return

        # Rows may name a crop with its folders or without, so the folders are compared here.
        name_without_folders = PurePosixPath(crop).name
        for answer in self._select(Key(kind=CROP, name=name_without_folders)):
            if not _are_same_file(answer.path, crop):
                continue
            if answer.is_used:  # so it was for the detection of a different crop
                raise UsageError(
                    f"--classified {self._path}, line {answer.line}: several crops are called "
                    f"{escape_unprintable(answer.path)}",
                    "write crops with their folders, as they are in the records' field saved",
                )
            yield answer

    def _select(self, key: Key) -> list[ClassifierAnswer]:
        """Return the rows with the given key, whatever their path."""
        return [ClassifierAnswer(*row) for row in self._database.execute(SELECT, key[:4])]

    def unused(self) -> Iterator[str]:
        """Yield a sentence for each of the first ten rows that matched no detection."""
        rows = self._database.execute(SELECT_FIRST_UNUSED, (MAX_LISTED,))
        for line, name, frame, number, path, kind in rows:
            text = path or name  # of the crop, or else of the source
            if frame != NONE:
                text += f", frame {frame}"
            if kind != CROP:
                text += f", {kind} {number}"
            yield f"{self._path}, line {line} fits no detection: {escape_unprintable(text)}"

    def require_fit(self) -> None:
        """Require that each row has matched a detection, once all records have been read.

        Raises:
            CheckError: Some have not; it says how many.
        """
        query = "SELECT COUNT(*) FROM answers WHERE NOT is_used"
        (unused_count,) = self._database.execute(query).fetchone()
        if unused_count:
            raise CheckError(
                f"{unused_count} of {pluralize(self._count, 'row')} in {self._path} fit no "
                "detection",
                "merge them with the records of the run that wrote the crops",
            )


def _key_of(row: dict[str, str]) -> Key:
    """Read which detections a row of a classifier's table is about.

    There are three kinds of rows, shown here with their columns:

        crop=person/bus_0.jpg            the box that was saved as this file
        source=bus.jpg, box=0            a box; of a video also the frame: frame=12
        source=street.mp4, track=7       all boxes of a track

    Args:
        row: The cells by the name of their column.

    Raises:
        ValueError: The row is of none of these kinds, or it has a box and a track. Or the cell of a
            box, track or frame is not a number.
    """
    if None in row or None in row.values():  # how `csv` shows cells without a column, or none
        raise ValueError("it has more or fewer cells than the header")
    if not row["class"]:
        raise ValueError("it has no class")

    crop = row.get(CROP, "")
    if crop:
        path = crop.replace("\\", "/")
        return Key(kind=CROP, name=PurePosixPath(path).name, path=path)

    source = row.get("source", "")
    box = row.get(BOX, "")
    track = row.get(TRACK, "")
    has_either = bool(box) != bool(track)
    if not source or not has_either:
        raise ValueError("it names no crop, and no source with either a box or a track")

    if track:
        return Key(kind=TRACK, name=source, number=_number(TRACK, track))

    frame = NONE
    if row.get("frame"):
        frame = _number("frame", row["frame"])
    return Key(kind=BOX, name=source, frame=frame, number=_number(BOX, box))


def _number(name: str, cell: str) -> int:
    """Parse a whole number of at least 0 from the column with the given name.

    pandas writes 3.0 in a column of whole numbers where some cells are empty.
    """
    cell = cell.removesuffix(".0")
    if not cell.isdecimal() or len(cell) > 16 or int(cell) > MAX_NUMBER:
        raise ValueError(
            f"{name} is {escape_unprintable(cell[:40])!r}, not a whole number from 0 on"
        )
    return int(cell)


def _score_of(row: dict[str, str]) -> float | None:
    """Read the score of a row, from 0 to 1; None if it has none."""
    cell = row.get("score", "")
    if not cell:
        return None
    try:
        score = float(cell)
    except ValueError:
        score = math.nan
    if not 0 <= score <= 1:
        raise ValueError(f"score is {escape_unprintable(cell[:40])!r}, not a number from 0 to 1")
    return score


def crops_of(record: RecordJson) -> dict[int, str]:
    """Return the files of --save-crops that a record names, by the index of their detection.

    A crop is called `person/bus_0.jpg`: in the folder of its class, a name that ends with the index
    of the detection. Other files that were saved for the record are left out.
    """
    detections = record.get("detections", [])
    crops: dict[int, str] = {}
    for file in record.get("saved", ()):
        path = PurePosixPath(file)
        _, underscore, number_text = path.stem.rpartition("_")
        if not underscore or not number_text.isdecimal() or len(number_text) > 9:
            continue
        number = int(number_text)
        if number >= len(detections):
            continue
        if _is_below_class(path, detections[number]["class_name"]):
            crops[number] = file
    return crops


def _is_below_class(path: PurePosixPath, class_name: str) -> bool:
    """Return whether a file is below a folder that --save-crops makes for the crops of a class.

    Where two classes have the same name on a disk, the folder of the second ends with a number:
    cat-2.
    """
    class_folder = safe(class_name)
    folders = path.parts[:-1]
    return any(
        folder == class_folder or folder.startswith(f"{class_folder}-") for folder in folders
    )


def _are_same_file(first: str, second: str) -> bool:
    """Return whether two paths may name the same file: the longer one ends with the shorter one."""
    first_names = PurePosixPath(first).parts
    second_names = PurePosixPath(second).parts
    count = min(len(first_names), len(second_names))
    return first_names[-count:] == second_names[-count:]
