"""OutputFolder: a folder for the files of a sink, each with a unique and safe name."""

import glob
import itertools
import logging
import os
import re
import stat
import sys
import unicodedata
import weakref
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from pathlib import Path, PurePath, PurePosixPath

from detcli.data.per_video import PerVideo
from detcli.data.record import Origin, Record
from detcli.sink.claims import Claims
from detcli.source.names import MARK, name_mark
from detcli.storage.files import LEFTOVER, AtomicFile, locked, make_folder, write_file, writing

log = logging.getLogger(__name__)

MAX_NAME_BYTES = 220  # of a name without numbers and suffix; file systems allow 255 in all

NOT_TEXT = re.compile(r"[\ud800-\udc7f\udd00-\udfff]")  # surrogates that do not stand for a byte
# Separators, control characters and changes of direction. Windows forbids more, common elsewhere.
FORBIDDEN = re.compile(r"[/\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
FORBIDDEN_ON_WINDOWS = re.compile(
    r'[<>:"/\\|?*\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\udc80-\udcff]'
)
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
    if re.fullmatch("-(:[0-9]+)?", source):
        return source.replace("-", "stdin").replace(":", "-")
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
    # Escaped bytes may form a valid character together, which is what the file system sees. Where
    # the locale has no such character, its bytes are written all the same.
    name = _named(NOT_TEXT.sub("_", name))
    name = (FORBIDDEN_ON_WINDOWS if windows else FORBIDDEN).sub("_", name).rstrip(". ")
    if name.split(".")[0].rstrip().casefold() in DEVICES:
        name = f"_{name}"
    data = os.fsencode(name)
    if len(data) > MAX_NAME_BYTES:
        import hashlib

        digest = hashlib.sha256(data).hexdigest()[:16]
        name = f"{_named(data[: MAX_NAME_BYTES - 17].decode('utf-8', 'ignore'))}-{digest}"
    return name or "_"


def _named(text: str) -> str:
    """Text as the system reads it from a file name in UTF-8."""
    return os.fsdecode(text.encode("utf-8", sys.getfilesystemencodeerrors()))


class UniqueNames:
    """Gives unique names to the files of one folder.

    Names that differ only in case or in how accents are encoded count as equal, as some file
    systems do not distinguish them. A name that is taken gets a number, `a-2`; and before that a
    mark, if the one that has taken it has another: `a-mark`.

    A prefix is a name for files that differ only in a number, such as the frames of a video. Once
    `a` is a prefix, no other file gets the name `a_7`, so its files need not be remembered.
    """

    def __init__(self) -> None:
        self._given: Counter[tuple[str, str]] = Counter()
        self._taken: set[str] = set()  # names of files, and prefixes with their `_`
        self._barred: set[str] = set()  # from being prefixes: a name of one of their files is taken
        self._owners: dict[tuple[str, str], str] = {}  # by name and suffix, the mark that has it
        self._reserved: dict[str, str] = {}  # the same by name, whatever the suffix

    def reserve(self, name: str, mark: str) -> None:
        """Keep a name for the files of one mark."""
        self._reserved.setdefault(_fold(name), mark)

    def file(
        self, name: str, suffix: str, usable: Callable[[str], bool] = bool, mark: str = ""
    ) -> str:
        """Give a name to one file."""
        for candidate in self._candidates(name, suffix, mark):
            key, prefixes = _fold(candidate) + suffix.lower(), _prefixes_of(candidate)
            is_free = key not in self._barred and self._taken.isdisjoint([key, *prefixes])
            if is_free and usable(candidate + suffix):
                break
        self._taken.add(key)
        self._barred.update(prefixes)
        return candidate + suffix

    def prefix(self, name: str, usable: Callable[[str], bool] = bool, mark: str = "") -> str:
        """Give a name for files that append `_` and numbers to it; `usable` is told both."""
        return self.file(name, "_", usable, mark).removesuffix("_")

    def _candidates(self, name: str, suffix: str, mark: str) -> Iterator[str]:
        """The name, which is for one mark, or else with the mark; then with each number, once."""
        key = (_fold(name), suffix.lower())
        if mark:
            owner = self._reserved.get(key[0]) or self._owners.setdefault(key, mark)
            if owner != mark:
                name = f"{name}-{mark}"
                key = (_fold(name), key[1])
        while True:
            self._given[key] += 1
            number = self._given[key]
            yield name if number == 1 else f"{name}-{number}"


def _fold(name: str) -> str:
    return unicodedata.normalize("NFC", name.casefold())


def _prefixes_of(name: str) -> list[str]:
    """Prefixes that could give this name, with their `_`: `a_1_` and `a_` for `a_1_2`."""
    name = _fold(name)
    found = []
    while match := re.search(r"_[0-9]+$", name):
        name = name[: match.start()]
        found.append(f"{name}_")
    return found


def claim(folder: Path, mark: str) -> bool:
    """Mark a folder as made by detcli; False if it has something in it, and no mark.

    What a killed run has left before it could mark the folder does not count.
    """
    path = folder / mark
    with locked(folder), writing(folder):
        if path.is_file() and not path.is_symlink():
            return True
        if any(not re.fullmatch(LEFTOVER, one.name) for one in folder.iterdir()):
            return False
        write_file(path, b"")
    return True


class OutputFolder:
    """A folder that is made if it does not exist, and the files in it.

    An input that was found in a folder keeps its path below that one: `a/bus.txt` for
    `pics/a/bus.jpg`, when `pics` was named. A second input of the same path gets a hash of its
    whole name: `bus-1f3c9b20.txt`. So a later run gives each input the same names again, and
    replaces what it has in a folder that detcli made. In any other folder nothing is replaced.
    Nor is what came from standard input or a live source, which are another input in every run.

    All files lie in this folder, whatever the inputs are called and whatever links are in it, and
    none is one of `inputs`. `roots` are the folders and patterns that were searched for inputs. A
    `resumed` run keeps the videos of the one before, and writes the rest of their frames. In a
    `marked` folder, which has inputs in it, each file has the hash, by which a search knows it.

    Runs that write to it at the same time share its names, see `Claims`: a name that another run at
    work has given to another input counts as taken.

    Raises:
        OutputError: The folder cannot be made or read.
    """

    def __init__(
        self,
        path: Path,
        inputs: Container[Path] = (),
        *,
        roots: Iterable[str] = (),
        resumed: bool = False,
        marked: bool = False,
    ) -> None:
        self._real = make_folder(path)
        self.path = path
        self._inputs = inputs
        searched = {root for name in roots if (root := _searched(name)) is not None}
        self._roots = sorted(searched, key=len, reverse=True)
        self._resumed, self._marked = resumed, marked
        self._names = UniqueNames()
        self._ours = claim(self._real, MARK)
        self._claims = Claims(self._real / MARK) if self._ours else None
        # Not a method of this object, which then would outlive its run: its names would stay taken.
        folder = weakref.proxy(self)
        self._prefixes = PerVideo(lambda record: folder._prefix(record))  # noqa: SLF001, PLW0108

    def file_of(self, record: Record, suffix: str) -> Path:
        """Path of a record's file: `bus.txt`, or `film_17.txt` for a frame.

        Call either this or `prefix_of`, once per record.
        """
        if record.origin.frame is not None:
            return self.member(record, self.path, self.prefix_of(record), suffix)
        return self._file(record.origin, suffix)

    def video_of(self, record: Record, suffix: str) -> Path:
        """Path of a video that begins with this frame."""
        path = self._file(record.origin, suffix, keep=self._resumed)
        kept = self.path / f"{self._wanted(record.origin)}{suffix}"
        if self._resumed and path != kept and os.path.lexists(self.real(kept)):
            name, number = record.origin.source, record.origin.frame
            log.warning("%s: %s is kept; frames from %s on are in %s", name, kept, number, path)
        self.subfolder(path.parent)
        return path

    def prefix_of(self, record: Record) -> str:
        """Prefix of a record's files: `bus`, or `film_17` for a frame."""
        if record.origin.frame is None:
            return self._prefix(record)
        return f"{self._prefixes.of(record)}_{record.origin.frame}"

    def member(self, record: Record, folder: Path, name: str, suffix: str) -> Path:
        """Path of a file whose name has a number already; it gets another to keep existing files.

        The folder is this one or one below, and the name begins with the result of `prefix_of`.
        """
        numbers = itertools.chain([""], (f"_{number}" for number in itertools.count(2)))
        paths = (folder / f"{name}{number}{suffix}" for number in numbers)
        keep = record.origin.is_new
        return next(path for path in paths if self._may_write(path, keep=keep))

    def skip(self, origin: Origin) -> None:
        """Keep the name of an input whose files an earlier part of a resumed run has written."""
        self._names.reserve(self._wanted(origin), _mark(origin))

    def subfolder(self, path: Path) -> None:
        """Make a folder in this one, if it does not exist."""
        if path != self.path:
            make_folder(self.real(path))

    def is_usable(self, name: str) -> bool:
        """Whether a folder of this path exists here or can be made; a link does not count."""
        folder = self._real
        for part in PurePath(name).parts:
            folder /= part
            if os.path.lexists(folder) and not stat.S_ISDIR(folder.lstat().st_mode):
                return False
        return True

    def write(self, record: Record, path: Path, data: bytes) -> None:
        """Write a file of a record; in a folder of somebody else, it never replaces another."""
        self.subfolder(path.parent)
        if self._ours:
            write_file(self.real(path), data)
        else:
            path = self._write_new(path, data)
        record.saved.append(path)

    def _write_new(self, path: Path, data: bytes) -> Path:
        """Write a file under a name that nothing has, even now; returns its path."""
        free = path
        for number in itertools.count(2):
            file = AtomicFile(self.real(free))
            try:
                file.write(data)
            except BaseException:
                file.discard()
                raise
            if file.commit_new():
                break
            free = path.with_name(f"{path.stem}-{number}{path.suffix}")
        return free

    def real(self, path: Path) -> Path:
        """The path of a file in this folder, without links."""
        return self._real / path.relative_to(self.path)

    def _file(self, origin: Origin, suffix: str, *, keep: bool = False) -> Path:
        keep, wanted = keep or origin.is_new, self._wanted(origin)
        is_taken = os.path.lexists(self._real / f"{wanted}{suffix}")
        if not self._ours and (self._marked or is_taken):
            self._names.reserve(wanted, "somebody else")
        if not self._take(f"{wanted}{suffix}", suffix, origin):
            self._names.reserve(wanted, "another run")

        def usable(name: str) -> bool:
            may_write = self._may_write(self.path / name, keep=keep)
            return may_write and self._take(name, suffix, origin)

        mark = "" if keep else _mark(origin)
        return self.path / self._names.file(wanted, suffix, usable, mark)

    def _prefix(self, record: Record) -> str:
        wanted, origin = self._wanted(record.origin), record.origin
        if not self._take(f"{wanted}_", "_", origin):
            self._names.reserve(wanted, "another run")
        present: set[str] = set()
        if origin.is_new:
            for *_, names in os.walk(self._real):
                for name in names:
                    present.update(_prefixes_of(PurePath(name).stem))

        def usable(name: str) -> bool:
            return _fold(name) not in present and self._take(name, "_", origin)

        mark = "" if origin.is_new else _mark(origin)
        return self._names.prefix(wanted, usable, mark)

    def _take(self, name: str, suffix: str, origin: Origin) -> bool:
        """Take a name, or a prefix with its `_`, unless another run at work has it."""
        if self._claims is None:
            return True
        prefixes = _prefixes_of(name.removesuffix(suffix))
        return self._claims.take(_fold(name), prefixes, _mark(origin), is_new=origin.is_new)

    def _wanted(self, origin: Origin) -> str:
        """The path of an input below what was searched, or its name, without a suffix."""
        source = origin.source
        root = next((root for root in self._roots if source.startswith(root)), None)
        below = PurePath() if root is None else PurePath(source[len(root) :])
        folder = "/".join(map(safe, below.parts[:-1]))
        if root is None or below.is_absolute() or not self.is_usable(folder):
            return safe(stem(source))
        return f"{folder}/{safe(below.stem)}".lstrip("/")

    def _may_write(self, path: Path, *, keep: bool) -> bool:
        if path in self._inputs:
            return False
        try:
            mode = self.real(path).lstat().st_mode
        except FileNotFoundError:
            return True
        return self._ours and not keep and (stat.S_ISREG(mode) or stat.S_ISLNK(mode))


def _searched(name: str) -> str | None:
    """How the inputs begin that a named folder or pattern stands for; None for a pattern of files.

    A file's name never begins another input's.
    """
    if not glob.has_magic(name) or os.path.lexists(name):
        return os.path.join(name, "")  # noqa: PTH118 - as the search joins names
    literal = itertools.takewhile(lambda part: not glob.has_magic(part), name.split("/")[:-1])
    return "".join(f"{part}/" for part in literal) if "/" in name else None


def _mark(origin: Origin) -> str:
    """What distinguishes an input from others of its name, in every run."""
    path = origin.source
    if origin.path is not None or "://" not in path:
        path = os.path.abspath(origin.path or path)  # noqa: PTH100 - keeps links
    return name_mark(path)


class FolderSink:
    """Base of sinks that write whole files into a folder."""

    def __init__(self, folder: OutputFolder) -> None:
        self._folder = folder

    def close(self) -> None:
        pass  # each file was complete when it was written
