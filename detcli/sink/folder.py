"""OutputFolder: a folder for the files of a sink, each with a unique and safe name."""

import contextlib
import itertools
import os
import re
import stat
import unicodedata
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from pathlib import Path, PurePath, PurePosixPath
from typing import Generic, TypeVar

from detcli.files import make_folder, write_file
from detcli.record import Origin, Record
from detcli.sink.index import FolderIndex

State = TypeVar("State")

MAX_NAME_BYTES = 220
"""Limit of a name without numbers and suffix; file systems allow 255 in all."""

PREFIX = "/"
"""Stands for the rest of a name in the index, where only a prefix is given; in no file's name."""

NOT_TEXT = re.compile(r"[\ud800-\udc7f\udd00-\udfff]")  # surrogates that do not stand for a byte
# Separators and control characters. Windows forbids more, which are common elsewhere.
FORBIDDEN = re.compile(r"[/\x00-\x1f\x7f-\x9f\u2028\u2029]")
FORBIDDEN_ON_WINDOWS = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f-\x9f\u2028\u2029\udc80-\udcff]')
DEVICES = frozenset(
    ["con", "prn", "aux", "nul", "conin$", "conout$"]
    + [port + number for port in ("com", "lpt") for number in "0123456789¹²³"]
)  # on Windows they exist in every folder, with any suffix


def stem(source: str) -> str:
    """Name of an output after its input: a file's name, or a stream's address.

    Examples:
        >>> stem("photos/bus.jpg"), stem("-"), stem("camera:0"), stem("rtsp://cam:554/live/1")
        ('bus', 'stdin', 'camera-0', 'cam-554-live-1')
    """
    if source == "-":
        return "stdin"
    if re.fullmatch(r"camera:[0-9]+", source):
        return source.replace(":", "-")
    if "://" not in source:
        return PurePath(source).stem
    address = re.split(r"[?#]", source.split("://", 1)[1])[0]
    host, _, path = address.partition("/")
    path = str(PurePosixPath(path).with_suffix("")) if path.strip("/.") else ""
    return re.sub(r"[/:]+", "-", f"{host}/{path}".strip("/"))


def safe(name: str, *, windows: bool = os.name == "nt") -> str:
    """Make a name valid in every folder; most names stay as they are.

    Examples:
        >>> safe("traffic light"), safe("../a/b"), safe("aux"), safe("..")
        ('traffic light', '.._a_b', '_aux', '_')
    """
    # Escaped bytes may form a valid character together, which is what the file system sees.
    name = os.fsdecode(os.fsencode(NOT_TEXT.sub("_", name)))
    name = (FORBIDDEN_ON_WINDOWS if windows else FORBIDDEN).sub("_", name).rstrip(". ")
    if name.split(".")[0].rstrip().casefold() in DEVICES:
        name = f"_{name}"
    data = os.fsencode(name)
    if len(data) > MAX_NAME_BYTES:
        import hashlib

        digest = hashlib.sha256(data).hexdigest()[:16]
        name = f"{data[: MAX_NAME_BYTES - 17].decode('utf-8', 'ignore')}-{digest}"
    return name or "_"


class UniqueNames:
    """Gives unique names to the files of one folder.

    Names that differ only in case or in how accents are encoded count as equal, as some file
    systems do not distinguish them. A name that is taken gets a number: `a`, `a-2`, `a-3`.

    A prefix is a name for files that differ only in a number, such as the frames of a video. Once
    `a` is a prefix, no other file gets the name `a_7`, so its files need not be remembered.
    """

    def __init__(self) -> None:
        self._given: Counter[tuple[str, str]] = Counter()
        self._taken: set[str] = set()
        self._prefixes: set[str] = set()
        self._barred: set[str] = set()  # from being prefixes: a name of one of their files is taken

    def file(
        self,
        name: str,
        suffix: str,
        usable: Callable[[str], bool] = bool,
        earlier: Iterable[int] = (),
    ) -> str:
        """Give a name to one file.

        Args:
            name: Any text.
            suffix: The file's suffix with its dot; empty for a folder.
            usable: Tells whether a name that is free here can be used; by default, any can.
            earlier: Numbers to try first.

        Returns:
            The file's whole name.
        """
        for candidate in self._candidates(name, suffix, earlier):
            key, prefixes = _fold(candidate) + suffix.lower(), _prefixes_of(candidate)
            if key in self._taken or not self._prefixes.isdisjoint(prefixes):
                continue
            if usable(candidate + suffix):
                break
        self._taken.add(key)
        self._barred.update(prefixes)
        return candidate + suffix

    def prefix(
        self, name: str, usable: Callable[[str], bool] = bool, earlier: Iterable[int] = ()
    ) -> str:
        """Give a name for files that append `_` and numbers to it; as for `file`."""
        for candidate in self._candidates(name, "_", earlier):
            key, prefixes = _fold(candidate), _prefixes_of(candidate)
            if (
                key not in self._barred
                and self._prefixes.isdisjoint([key, *prefixes])
                and usable(candidate)
            ):
                break
        self._prefixes.add(key)
        self._barred.update(prefixes)
        return candidate

    def _candidates(self, name: str, suffix: str, earlier: Iterable[int]) -> Iterator[str]:
        """The name with numbers, those of earlier runs first, then each from 1 on only once."""
        name = safe(name)
        key = (_fold(name), suffix.lower())
        for number in itertools.chain(earlier, iter(lambda: self._next(key), None)):
            yield name if number == 1 else f"{name}-{number}"

    def _next(self, key: tuple[str, str]) -> int:
        self._given[key] += 1
        return self._given[key]


def _fold(name: str) -> str:
    return unicodedata.normalize("NFC", name.casefold())


def _prefixes_of(name: str) -> list[str]:
    """Prefixes that could give this name: `a_1` and `a` for `a_1_2`."""
    name = _fold(name)
    found = []
    while match := re.search(r"_[0-9]+$", name):
        name = name[: match.start()]
        found.append(name)
    return found


class PerClip(Generic[State]):
    """Keeps a state for each video while its frames come.

    `begin` makes a state from the first record of a video, and `end` finishes it after the last.
    Videos in files come one after the other, so only one of them has a state at a time; live
    sources come interleaved.
    """

    def __init__(
        self, begin: Callable[[Record], State], end: Callable[[State], None] = lambda _: None
    ) -> None:
        self._begin = begin
        self._end = end
        self._states: dict[object, State] = {}
        self._file: object = None  # key of the video in a file that is being read
        self._frame = -1

    def of(self, record: Record) -> State:
        """The state of a frame's video; to be called once per frame."""
        origin = record.origin
        key = origin.source, origin.clip
        if origin.clip is None or not origin.clip.live:
            frame = origin.frame or 0
            # Frames that start over are those of the same video, named twice.
            if (key != self._file or frame <= self._frame) and self._file in self._states:
                self._end(self._states.pop(self._file))
            self._file, self._frame = key, frame
        if key not in self._states:
            self._states[key] = self._begin(record)
        return self._states[key]

    def close(self) -> None:
        """Finish all states, even if one fails."""
        with contextlib.ExitStack() as stack:
            for state in self._states.values():
                stack.callback(self._end, state)
            self._states = {}


class OutputFolder:
    """A folder that is made if it does not exist, and the files in it.

    All files lie in this folder, whatever the inputs are called and whatever links are in it. No
    path is given twice, none is one of `inputs`, and none has a file that was made from another
    input in an earlier run, or by anybody else; a file made from the same input is replaced.
    Standard input and live sources are another input in every run.

    Args:
        path: The folder.
        inputs: Files that are never written over.
        resumed: Whether this run continues another one, whose videos are kept: this one has the
            rest of their frames.

    Raises:
        OutputError: The folder cannot be made, or its index cannot be read.
    """

    def __init__(self, path: Path, inputs: Container[Path] = (), *, resumed: bool = False) -> None:
        self._real = make_folder(path)
        self.path = path
        self._inputs = inputs
        self._resumed = resumed
        self._names = UniqueNames()
        self._index = FolderIndex(self._real)
        self._run = os.urandom(8).hex()
        self._prefixes = PerClip(self._prefix)

    def file_of(self, record: Record, suffix: str) -> Path:
        """Path of a record's file: `bus.txt`, or `film_17.txt` for a frame.

        Call either this or `prefix_of`, once per record.
        """
        if record.origin.frame is not None:
            return self.member(record, self.path, self.prefix_of(record), suffix)
        return self._file(record.origin, suffix, keep=False)

    def video_of(self, record: Record, suffix: str) -> Path:
        """Path of a video that begins with this frame."""
        return self._file(record.origin, suffix, keep=self._resumed)

    def prefix_of(self, record: Record) -> str:
        """Prefix of a record's files: `bus`, or `film_17` for a frame."""
        if record.origin.frame is None:
            return self._prefix(record)
        return f"{self._prefixes.of(record)}_{record.origin.frame}"

    def member(self, record: Record, folder: Path, name: str, suffix: str) -> Path:
        """Path of a file whose name has a number already; it gets another to keep existing files.

        Args:
            record: The record that the file belongs to.
            folder: This folder, or one below.
            name: Begins with the result of `prefix_of`.
            suffix: The file's suffix.
        """
        source = self._source(record.origin, suffix)
        for number in itertools.count(1):
            path = folder / (f"{name}_{number}{suffix}" if number > 1 else f"{name}{suffix}")
            if self._may_write(path, source):
                self._index.add(self._name(path), source, number)
                break
        return path

    def subfolder(self, path: Path) -> None:
        """Make a folder in this one.

        Raises:
            OutputError: It cannot be made.
        """
        make_folder(self.real(path))

    def is_usable(self, name: str) -> bool:
        """Whether a folder of this name exists here or can be made; a link does not count."""
        path = self._real / name
        return not os.path.lexists(path) or stat.S_ISDIR(path.lstat().st_mode)

    def write(self, record: Record, path: Path, data: bytes) -> None:
        """Write a file for a record.

        Raises:
            OutputError: It cannot be written.
        """
        write_file(self.real(path), data)
        record.saved.append(path)

    def real(self, path: Path) -> Path:
        """The path of a file in this folder, without links."""
        return self._real / path.relative_to(self.path)

    def close(self) -> None:
        """Put the index on the disk; all files are there already.

        Raises:
            OutputError: The disk is full or broken.
        """
        self._index.sync()

    def _file(self, origin: Origin, suffix: str, *, keep: bool) -> Path:
        wanted, source = stem(origin.source), self._source(origin, suffix)
        name = self._names.file(
            wanted,
            suffix,
            lambda name: self._may_write(self.path / name, source, keep=keep),
            self._index.numbers(source),
        )
        self._index.add(name, source, _number(name.removesuffix(suffix), wanted))
        return self.path / name

    def _prefix(self, record: Record) -> str:
        wanted, source = stem(record.origin.source), self._source(record.origin, PREFIX)
        name = self._names.prefix(
            wanted,
            lambda name: self._index.owner_is(name + PREFIX, source, unknown=True),
            self._index.numbers(source),
        )
        self._index.add(name + PREFIX, source, _number(name, wanted))
        return name

    def _source(self, origin: Origin, suffix: str) -> str:
        """What identifies an input across runs, for its files of one kind."""
        if origin.is_new:
            return f"{self._run} {origin.source} {suffix}"
        if origin.path is None and "://" in origin.source:
            return f"{origin.source} {suffix}"
        path = os.path.abspath(origin.path or origin.source)  # noqa: PTH100 - keeps links
        return f"{path} {suffix}"

    def _name(self, path: Path) -> str:
        return path.relative_to(self.path).as_posix()

    def _may_write(self, path: Path, source: str, *, keep: bool = False) -> bool:
        if path in self._inputs:
            return False
        if not os.path.lexists(self.real(path)):
            return True
        return not keep and self._index.owner_is(self._name(path), source, unknown=False)


def _number(name: str, wanted: str) -> int:
    """The number in a name that `UniqueNames` gave: 3 in `bus-3`, 1 in `bus`."""
    return int(name[len(safe(wanted)) + 1 :] or 1)


class FolderSink:
    """Base of sinks that write whole files into a folder."""

    def __init__(self, folder: OutputFolder) -> None:
        self._folder = folder

    def close(self) -> None:
        """Close the folder: each file was complete when it was written."""
        self._folder.close()
