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
from detcli.storage.files import AtomicFile, locked, make_folder, write_file, writing
from detcli.storage.folder import LEFTOVER

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
    if path.strip("/."):
        path = str(PurePosixPath(path).with_suffix(""))
    else:
        path = ""
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
    forbidden = FORBIDDEN_ON_WINDOWS if windows else FORBIDDEN
    name = forbidden.sub("_", name).rstrip(". ")
    if name.split(".")[0].rstrip().casefold() in DEVICES:
        name = f"_{name}"
    data = os.fsencode(name)
    if len(data) > MAX_NAME_BYTES:
        import hashlib

        digest = hashlib.sha256(data).hexdigest()[:16]
        beginning = data[: MAX_NAME_BYTES - 17].decode("utf-8", "ignore")
        name = f"{_named(beginning)}-{digest}"
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
        self._uses: Counter[tuple[str, str]] = Counter()  # of each name with each suffix
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
        """Give a name to one file.

        Args:
            name: The name without its suffix, as it is if nothing has it.
            suffix: The suffix of the file.
            usable: Whether a name with its suffix may be taken.
            mark: The mark of the input that the file is for.
        """
        candidates = self._candidates(name, suffix, mark)
        candidate = next(candidates)
        while not (self._is_free(candidate, suffix) and usable(candidate + suffix)):
            candidate = next(candidates)
        self._taken.add(_fold(candidate) + suffix.lower())
        self._barred.update(_prefixes_of(candidate))
        return candidate + suffix

    def _is_free(self, name: str, suffix: str) -> bool:
        """Whether no file has a name, and none with a taken prefix may get it."""
        key = _fold(name) + suffix.lower()
        return key not in self._barred and self._taken.isdisjoint([key, *_prefixes_of(name)])

    def prefix(self, name: str, usable: Callable[[str], bool] = bool, mark: str = "") -> str:
        """Give a name for files that append `_` and numbers to it; `usable` is told both."""
        return self.file(name, "_", usable, mark).removesuffix("_")

    def _candidates(self, name: str, suffix: str, mark: str) -> Iterator[str]:
        """The name, which is for one mark, or else with the mark; then with each number, once."""
        folded_name = _fold(name)
        folded_suffix = suffix.lower()
        if mark:
            owner = self._reserved.get(folded_name)
            if not owner:
                owner = self._owners.setdefault((folded_name, folded_suffix), mark)
            if owner != mark:
                name = f"{name}-{mark}"
                folded_name = _fold(name)
        key = (folded_name, folded_suffix)
        while True:
            self._uses[key] += 1
            number = self._uses[key]
            yield name if number == 1 else f"{name}-{number}"


def _fold(name: str) -> str:
    """A name without what some file systems do not distinguish."""
    return unicodedata.normalize("NFC", name.casefold())


def _prefixes_of(name: str) -> list[str]:
    """Prefixes that could give this name, with their `_`: `a_1_` and `a_` for `a_1_2`."""
    name = _fold(name)
    prefixes = []
    while match := re.search(r"_[0-9]+$", name):
        name = name[: match.start()]
        prefixes.append(f"{name}_")
    return prefixes


def claim(folder: Path, mark: str) -> bool:
    """Mark a folder as made by detcli; False if it has something in it, and no mark.

    What a killed run has left before it could mark the folder does not count.
    """
    path = folder / mark
    with locked(folder), writing(folder):
        if path.is_file() and not path.is_symlink():
            return True
        for entry in folder.iterdir():
            if not re.fullmatch(LEFTOVER, entry.name):
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
        beginnings = set()
        for root in roots:
            beginning = _common_beginning(root)
            if beginning is not None:
                beginnings.add(beginning)
        self._beginnings = sorted(beginnings, key=len, reverse=True)
        self._resumed = resumed
        self._marked = marked
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
        earlier = self.path / f"{self._relative_name(record.origin)}{suffix}"
        if self._resumed and path != earlier and os.path.lexists(self.real(earlier)):
            log.warning(
                "%s: %s is kept; frames from %s on are in %s",
                record.origin.source,
                earlier,
                record.origin.frame,
                path,
            )
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
        path = folder / f"{name}{suffix}"
        number = 1
        while not self._may_write(path, keep=record.origin.is_new):
            number += 1
            path = folder / f"{name}_{number}{suffix}"
        return path

    def skip(self, origin: Origin) -> None:
        """Keep the name of an input whose files an earlier part of a resumed run has written."""
        self._names.reserve(self._relative_name(origin), _mark(origin))

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
        """Path of an input's file; with `keep`, and of a new input, it replaces none."""
        keep = keep or origin.is_new
        name = self._relative_name(origin)
        if not self._ours and (self._marked or os.path.lexists(self._real / f"{name}{suffix}")):
            self._names.reserve(name, "somebody else")
        if not self._take(f"{name}{suffix}", suffix, origin):
            self._names.reserve(name, "another run")

        def usable(candidate: str) -> bool:
            may_write = self._may_write(self.path / candidate, keep=keep)
            return may_write and self._take(candidate, suffix, origin)

        mark = "" if keep else _mark(origin)
        return self.path / self._names.file(name, suffix, usable, mark)

    def _prefix(self, record: Record) -> str:
        """A prefix for the files of an input; that of a new input begins no file that is there."""
        origin = record.origin
        name = self._relative_name(origin)
        if not self._take(f"{name}_", "_", origin):
            self._names.reserve(name, "another run")
        present = self._present_prefixes() if origin.is_new else set()

        def usable(candidate: str) -> bool:
            return _fold(candidate) not in present and self._take(candidate, "_", origin)

        mark = "" if origin.is_new else _mark(origin)
        return self._names.prefix(name, usable, mark)

    def _present_prefixes(self) -> set[str]:
        """The prefixes that names of files in this folder and below may begin with."""
        present: set[str] = set()
        for _, _, file_names in os.walk(self._real):
            for file_name in file_names:
                present.update(_prefixes_of(PurePath(file_name).stem))
        return present

    def _take(self, name: str, suffix: str, origin: Origin) -> bool:
        """Take a name, or a prefix with its `_`, unless another run at work has it."""
        if self._claims is None:
            return True
        prefixes = _prefixes_of(name.removesuffix(suffix))
        return self._claims.take(_fold(name), prefixes, _mark(origin), is_new=origin.is_new)

    def _relative_name(self, origin: Origin) -> str:
        """The path of an input below what was searched, or its name, without a suffix."""
        below = self._path_below(origin.source)
        if below is None or below.is_absolute():
            return safe(stem(origin.source))
        folder = "/".join([safe(part) for part in below.parts[:-1]])
        if not self.is_usable(folder):
            return safe(stem(origin.source))
        return f"{folder}/{safe(below.stem)}".lstrip("/")

    def _path_below(self, source: str) -> PurePath | None:
        """The path of an input below the folder that was searched; None if none was."""
        for beginning in self._beginnings:
            if source.startswith(beginning):
                return PurePath(source[len(beginning) :])
        return None

    def _may_write(self, path: Path, *, keep: bool) -> bool:
        """Whether a file may be written here: no input, and nothing that has to be kept."""
        if path in self._inputs:
            return False
        try:
            mode = self.real(path).lstat().st_mode
        except FileNotFoundError:
            return True
        return self._ours and not keep and (stat.S_ISREG(mode) or stat.S_ISLNK(mode))


def _common_beginning(root: str) -> str | None:
    """How the inputs begin that a named folder or pattern stands for; None for a pattern of files.

    A file's name never begins another input's.
    """
    if not glob.has_magic(root) or os.path.lexists(root):
        return os.path.join(root, "")  # noqa: PTH118 - as the search joins names
    if "/" not in root:
        return None
    literal = ""
    for part in root.split("/")[:-1]:
        if glob.has_magic(part):
            break
        literal += f"{part}/"
    return literal


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
