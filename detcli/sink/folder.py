"""OutputFolder: where the files of a sink go, each under a name of its own."""

import itertools
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Container, Iterator
from pathlib import Path, PurePath, PurePosixPath

from detcli.files import make_folder
from detcli.record import Record
from detcli.sink.clips import PerClip

LONGEST = 220
"""Bytes of a name without numbers and suffix; with them, file systems take 255."""

NO_TEXT = re.compile(r"[\ud800-\udc7f\udd00-\udfff]")  # nor do they stand for a byte
# Separators and control characters. Windows refuses more, which is in use elsewhere.
FORBIDDEN = re.compile(r"[/\x00-\x1f\x7f-\x9f\u2028\u2029]")
FORBIDDEN_ON_WINDOWS = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f-\x9f\u2028\u2029\udc80-\udcff]')
DEVICES = frozenset(
    ["con", "prn", "aux", "nul", "conin$", "conout$"]
    + [port + number for port in ("com", "lpt") for number in "0123456789¹²³"]
)  # Windows finds them in every folder, with any suffix


def stem(source: str) -> str:
    """What an output is called after its input: a file's name, or a stream's address.

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
    """Make a name that every folder can hold; most names stay as they are.

    Examples:
        >>> safe("traffic light"), safe("../a/b"), safe("aux"), safe("..")
        ('traffic light', '.._a_b', '_aux', '_')
    """
    # Half characters, each a byte, may be a whole one together: so the disk sees them.
    name = os.fsdecode(os.fsencode(NO_TEXT.sub("_", name)))
    name = (FORBIDDEN_ON_WINDOWS if windows else FORBIDDEN).sub("_", name).rstrip(". ")
    if name.split(".")[0].rstrip().casefold() in DEVICES:
        name = f"_{name}"
    return _shorten(name) or "_"


def _shorten(name: str) -> str:
    """Cut a name that is too long, and tell it by a hash from others that begin like it."""
    data = os.fsencode(name)
    if len(data) <= LONGEST:
        return name
    import hashlib

    digest = hashlib.sha256(data).hexdigest()[:16]
    return f"{data[: LONGEST - 17].decode('utf-8', 'ignore')}-{digest}"


class Names:
    """Gives names for the files of one folder, none of them twice.

    Two names are the same if they differ in capitals or in how accents are coded: some file systems
    do not tell them apart. A name that is taken gets a number: `a`, `a-2`, `a-3`.

    A family is a name for files that differ by numbers alone, the frames of a video, say. Nobody
    else gets `a_7` once `a` is a family, so its members need not be remembered.
    """

    def __init__(self) -> None:
        self._given: Counter[tuple[str, str]] = Counter()
        self._taken: set[str] = set()
        self._families: set[str] = set()
        self._below: set[str] = (
            set()
        )  # what no family may be called: there are names like its members

    def single(self, name: str, suffix: str, may_be: Callable[[str], bool]) -> str:
        """Give a name to one file.

        Args:
            name: Any text.
            suffix: Of the file, beginning with a dot; empty for a folder.
            may_be: Tells whether there can be a file of a name that is free here.

        Returns:
            The file's whole name.
        """

        def free(candidate: str) -> bool:
            key, families = _fold(candidate) + suffix.lower(), _families_of(candidate)
            if key in self._taken or not self._families.isdisjoint(families):
                return False
            self._taken.add(key)
            if not may_be(candidate + suffix):
                return False
            self._below.update(families)
            return True

        return next(filter(free, self._candidates(name, suffix))) + suffix

    def family(self, name: str) -> str:
        """Give a name that is to be followed by `_` and numbers."""

        def free(candidate: str) -> bool:
            key, families = _fold(candidate), _families_of(candidate)
            if not self._families.isdisjoint([key, *families]) or key in self._below:
                return False
            self._families.add(key)
            self._below.update(families)
            return True

        return next(filter(free, self._candidates(name, "_")))

    def _candidates(self, name: str, suffix: str) -> Iterator[str]:
        """The name, then the name with numbers that have not been tried before."""
        name = safe(name)
        key = (_fold(name), suffix.lower())
        while True:
            self._given[key] += 1
            number = self._given[key]
            yield name if number == 1 else f"{name}-{number}"


def _fold(name: str) -> str:
    return unicodedata.normalize("NFC", name.casefold())


def _families_of(name: str) -> list[str]:
    """Names of families that it could be a member of: `a_1` and `a` for `a_1_2`."""
    name = _fold(name)
    found = []
    while match := re.search(r"_[0-9]+$", name):
        name = name[: match.start()]
        found.append(name)
    return found


class OutputFolder:
    """A folder that is made if it is not there, and the paths of files in it.

    Whatever an input is called, what it gives lies in this folder. No path is handed out twice, and
    none of an input. What an earlier run wrote is written over, unless it is to be kept.

    Raises:
        OutputError: The folder cannot be made.
    """

    def __init__(self, path: Path, inputs: Container[Path] = (), *, keep: bool = False) -> None:
        """Make the folder.

        Args:
            path: The folder.
            inputs: Files that are never written over.
            keep: Nothing that is there is written over: this run goes on with an earlier one.
        """
        make_folder(path)
        self.path = path
        self._inputs = inputs
        self._keep = keep
        self._names = Names()
        self._families = PerClip(lambda record: self._names.family(stem(record.origin.source)))

    def file_for(self, source: str, suffix: str) -> Path:
        """Path of a file that is named after an input."""
        name = self._names.single(
            stem(source), suffix, lambda name: self._may_write(self.path / name)
        )
        return self.path / name

    def file_of(self, record: Record, suffix: str) -> Path:
        """Path of the one file that a record gives: `bus.txt`, or `film_17.txt` for a frame.

        To be called once for a record, as `family_of`.
        """
        if record.origin.frame is None:
            return self.file_for(record.origin.source, suffix)
        return self._member(self.path, f"{self._families.of(record)}_{record.origin.frame}", suffix)

    def family_of(self, record: Record) -> str:
        """How the names of the files begin that a record gives: `bus`, `film_17` for a frame."""
        if record.origin.frame is None:
            return self._names.family(stem(record.origin.source))
        return f"{self._families.of(record)}_{record.origin.frame}"

    def member(self, folder: Path, family: str, number: int, suffix: str) -> Path:
        """Path of a numbered file in a folder below this one."""
        return self._member(folder, f"{family}_{number}", suffix)

    def _member(self, folder: Path, name: str, suffix: str) -> Path:
        """Further numbers only if the name is an input's, so that nothing need be remembered."""
        paths = (
            folder / f"{name}{further}{suffix}"
            for further in itertools.chain([""], (f"_{n}" for n in itertools.count(2)))
        )
        return next(filter(self._may_write, paths))

    def _may_write(self, path: Path) -> bool:
        return path not in self._inputs and not (self._keep and os.path.lexists(path))
