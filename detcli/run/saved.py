"""Reads records back: JSON Lines, an array, either behind gzip, or the parts of a run in shards.

And the marks of a page, which are applied to records, and the pictures that records are about.
"""

import hashlib
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path, PurePath
from typing import BinaryIO

from detcli.config.config import Inputs
from detcli.core.errors import CheckError, InputError, SourceError, UsageError, system_reason
from detcli.core.lines import bounded_lines, utf8_file
from detcli.core.text import count, is_object, printable
from detcli.data.geometry import Image, Picture
from detcli.data.record import (
    DetectionJson,
    MarkJson,
    Origin,
    Record,
    RecordJson,
    box_of,
    name_of,
    parse_record,
    to_marks,
)
from detcli.page.page import Shown
from detcli.source.decode import DecodeOptions
from detcli.source.fetch import load_file
from detcli.source.loading import STDIN, Item, load_in_time
from detcli.source.names import is_address, is_camera
from detcli.source.sources import Sources
from detcli.storage.files import open_lines, read_json, sha256

SUFFIXES = (".jsonl", ".ndjson", ".json", ".jsonl.gz", ".ndjson.gz", ".json.gz")
"""Suffixes of saved records; a model's file never has them."""


def read_records(name: str) -> Iterator[RecordJson]:
    """Yield the records of a file, of standard input, or of a run in shards.

    Only the fields that a page shows are there for sure, and have the right types.

    Raises:
        SourceError: It cannot be read.
        UsageError: It holds something else.
        CheckError: A part of the run is missing or damaged.
    """
    if name == STDIN:
        if sys.stdin is None:
            raise SourceError("standard input is closed", "pipe records in, or name a file")
        try:
            yield from _from_lines(utf8_file(sys.stdin.buffer, close=False), "standard input")
        except UnicodeDecodeError as error:
            raise SourceError(f"cannot read standard input: {error}", "check it") from error
    elif is_folder(name) or is_object(name):
        from detcli.run.shards.manifest import Manifest
        from detcli.run.shards.parts import Merge
        from detcli.run.shards.store import open_store

        store = open_store(name)
        merge = Merge(store, Manifest(store))
        if not merge.faults:  # no part is missing
            yield from merge
        for fault in merge.faults:
            raise CheckError(f"{fault.part}: {fault.reason}", "complete the run, or see merge")
    else:
        try:
            with open_lines(Path(name)) as file:
                yield from _from_lines(file, name)
        except (OSError, EOFError, zlib.error, ValueError) as error:  # of archives and names
            raise SourceError(f"cannot read {name}: {system_reason(error)}", "check it") from error


def is_folder(name: str) -> bool:
    """Whether a name is that of a folder; a name that no file can have is not."""
    return os.path.isdir(name)  # noqa: PTH112 - raises nothing


def _from_lines(file: BinaryIO, name: str) -> Iterator[RecordJson]:
    """Records of lines; those of an array have a comma behind them."""
    lines = bounded_lines(file)
    number = 1
    try:
        for line in lines:
            text = line.strip().rstrip(b",")
            if text not in {b"", b"[", b"]"} and (number, text) != (1, b"[]"):
                yield parse_record(text)
            number += 1
    except UnicodeDecodeError:
        raise
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"line {number} of {name} is not a record of detcli: {error}",
            "name JSON Lines that predict or merge of this version, or an earlier one, wrote",
        ) from error


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
            number = f"{len(self._left)} of {count(self._count, 'mark')}"
            box = ", ".join(f"{side:g}" for side in mark.get("box", ()))
            what = f"{mark.get('class_name')} at {box} in " if box else ""
            raise CheckError(
                f"{number} in {self._path} fit no record: {what}{mark['source']}",
                "apply them to the records that their page was made of",
            )


def _record_of(fields: RecordJson | MarkJson) -> object:
    """By which a mark finds its record; those of one name are told apart by what is in them."""
    return printable(fields["source"]), fields.get("frame"), fields.get("time")


def _is_marked(one: DetectionJson, mark: MarkJson) -> bool:
    sides = zip(box_of(one), mark.get("box", ()), strict=True)
    same = printable(one["class_name"]) == mark.get("class_name")
    return same and all(abs(a - b) <= ROUNDING for a, b in sides)


@dataclass(slots=True)
class Finder:
    """Where pictures are now."""

    folder: Path | None  # where to look first; None to look only where the records say
    inputs: Inputs  # how pictures are read
    lost: int = 0  # records whose picture was not found, or is another one
    unproven: int = 0  # pictures that may be other ones of this size, as records have no hash
    _video: "_FrameReader | None" = field(default=None, init=False)

    def shown(
        self, record: RecordJson, edit: Callable[[Image], Image] | None = None
    ) -> Shown | None:
        """The picture of a record, for a page; None, and counted, if it is lost.

        `edit` makes another picture of it.
        """
        picture = self.picture(record)
        if picture is None:
            self.lost += 1
            return None
        pixels = picture.pixels if edit is None else edit(picture.pixels)
        return Shown(pixels, None if "frame" in record else self.path_of(name_of(record)))

    def close(self) -> None:
        """Close the video that was read last."""
        if self._video is not None:
            self._video.close()
            self._video = None

    def picture(self, record: RecordJson) -> Picture | None:
        """The picture of a record, as long as its file has the hash and the size of the record."""
        path = self.path_of(name_of(record))
        if path is None or {"frame", "time"} <= record.keys():
            return None
        try:
            if "frame" in record:
                video = self._video_of(path, record["frame"])
                picture = video.at(record["frame"])
            else:
                video = None
                load = partial(load_file, path, DecodeOptions(self.inputs, keep=True))
                item = Item(Origin(name_of(record), path), load)
                picture = load_in_time(item, self.inputs.input_timeout)
        except InputError:
            return None
        if picture is None or picture.size != (record["height"], record["width"]):
            return None
        if "sha256" not in record:
            self.unproven += 1
            return picture
        if video is not None:
            digest = video.digest
        else:
            digest = hashlib.sha256(picture.file or b"").hexdigest()
        return picture if record["sha256"] == digest else None

    def _video_of(self, path: Path, number: int) -> "_FrameReader":
        """The reader of a video, before some frame; those of a video are asked for in order."""
        video = self._video
        if video is None or video.path != path or video.number > number:
            self.close()
            self._video = video = _FrameReader(path, self.inputs)
        return video

    def path_of(self, source: str) -> Path | None:
        """The file that an input is now; None if there is none.

        In the folder that was named, a file has the name of the input, with as much of its path
        before it as there is.
        """
        if source == STDIN or is_address(source) or is_camera(source) or is_object(source):
            return None
        places = [Path(source)]
        if self.folder is not None:
            parts = [part for part in PurePath(source).parts if part not in {"/", "\\", ".."}]
            places[:0] = [self.folder.joinpath(*parts[start:]) for start in range(len(parts))]
        return next(filter(os.path.isfile, places), None)


class _FrameReader:
    """The frames of a video, one after the other."""

    def __init__(self, path: Path, inputs: Inputs) -> None:
        self.path = path
        self.number = -1  # of the frame read last
        self._sources = Sources([str(path)], inputs)
        self._items = iter(self._sources)

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of its file; empty if that cannot be read."""
        try:
            return sha256(self.path)
        except OSError:
            return ""

    def at(self, number: int) -> Picture | None:
        """The frame of this number; None if there is none; raises InputError."""
        for item in self._items:
            self.number = -1 if item.origin.frame is None else item.origin.frame
            if self.number >= number or item.origin.frame is None:
                return load_in_time(item) if self.number == number else None
        return None

    def close(self) -> None:
        """Close the video."""
        self._sources.close()
