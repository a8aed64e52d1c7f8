"""Names: addresses, folders, patterns, lists.

A folder is listed only when it is reached, and its files are not examined one by one, so the first
picture in a million folders is found at once. Lists are read as they come, however long they are.
"""

import glob
import json
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from threading import Event
from typing import NamedTuple, Self
from urllib.parse import urlsplit

from detcli.core.errors import PlaceError, SourceError, UsageError, system_reason
from detcli.core.lines import MAX_LINE_BYTES, utf8_chunks
from detcli.core.text import public_name
from detcli.source.fetch import file_chunks, stdin_chunks, stdin_problem
from detcli.source.loading import STDIN, Item, failed

SCHEMES = ("http://", "https://", "rtsp://", "rtsps://")

_CAMERA = re.compile(r"camera:([0-9]{1,9})", re.IGNORECASE)


def is_address(name: str) -> bool:
    """True for the address of a server."""
    return name.lower().startswith(SCHEMES)


def is_stream(name: str) -> bool:
    """True for the address of what can only be a stream, such as a camera's MJPEG."""
    if name.lower().startswith(("rtsp://", "rtsps://")):
        return True
    return is_address(name) and path_of(name).lower().endswith((".mjpeg", ".mjpg"))


def is_camera(name: str) -> bool:
    """True for the name of a camera, as in `camera:0`; it may be malformed."""
    return name.lower().startswith("camera:")


def is_live(name: str) -> bool:
    """True for a camera or a stream, not for a picture or video file."""
    if is_address(name):
        return is_stream(name) or not (is_media(path_of(name)) or is_archive(path_of(name)))
    return is_camera(name)


def camera_number(name: str) -> int:
    """The number in the name of a camera; a SourceError if it has none.

    Examples:
        >>> camera_number("camera:1")
        1
    """
    if found := _CAMERA.fullmatch(name):
        return int(found[1])
    raise SourceError("not the name of a camera", "cameras are numbered from 0, as in camera:0")


def check_address(url: str) -> None:
    """Require an address with a host and a possible port, or raise a SourceError."""
    try:
        host = urlsplit(url).hostname
        port_is_right = (urlsplit(url).port or 1) > 0
    except ValueError:
        host, port_is_right = None, False
    if not host or not port_is_right or not url.isprintable():
        raise SourceError("not a valid address", "write it as in rtsp://192.168.1.64:554/stream1")


def path_of(url: str) -> str:
    """The path in an address, whose suffix tells the type of the file."""
    try:
        return urlsplit(url).path
    except ValueError:
        return ""


# What a folder is searched for; a file named by the user may have any suffix.
IMAGE_SUFFIXES = frozenset(
    ".avif .bmp .dib .gif .hdr .jfif .jp2 .jpe .jpeg .jpg .pbm .pgm .pic .png .pnm .ppm .pxm .ras "
    ".sr .tif .tiff .webp".split()
)
VIDEO_SUFFIXES = frozenset(
    ".264 .265 .3gp .asf .avi .f4v .flv .h264 .h265 .hevc .ivf .m2ts .m4v .mjpeg .mjpg .mkv .mov "
    ".mp4 .mpeg .mpg .mts .mxf .ogv .ts .vob .webm .wmv .y4m".split()
)
PARQUET = ".parquet"
ARCHIVES = (".tar", ".tar.gz", ".tgz", PARQUET)
BRACES = re.compile(r"(.*)\{([0-9]{1,9})\.\.([0-9]{1,9})\}(.*)")
_SEPARATORS = re.escape(f"/{os.sep}")

# The part `**` of a pattern, with the separator behind it.
_ANY_FOLDERS = re.compile(rf"(?<![^{_SEPARATORS}])\*\*(?:[{_SEPARATORS}]+|$)")
FileIdentity = tuple[int, int]


def identity(path: str | os.PathLike[str]) -> FileIdentity | None:
    """Device and inode of a file, whatever its name; None if it does not exist."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino


def is_video(name: str) -> bool:
    """True for the suffix of a video; a GIF is a picture."""
    return _suffix(name) in VIDEO_SUFFIXES


def is_archive(name: str) -> bool:
    """True for the suffix of a file that holds many pictures; a folder is not searched for them."""
    return name.lower().endswith(ARCHIVES)


def is_media(name: str) -> bool:
    """True for the suffix of a picture or a video."""
    return _suffix(name) in IMAGE_SUFFIXES or is_video(name)


def _suffix(name: str) -> str:
    return name[name.rfind(".") :].lower()  # Path takes ten times as long


MARK = ".detcli-folder"  # the file by which a folder is known to be ours
COPY = re.compile(r"(?s)(?P<picture>.+)-(?P<mark>[0-9a-f]{8})(-[0-9]+)?\.\w+")


def name_mark(path: str) -> str:
    """The hash of an absolute path or an address, in the names of files that are made of it."""
    import hashlib

    return hashlib.sha256(path.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def without_copies(files: list[str]) -> list[str]:
    """Leave out the annotated copies that a run has put beside its pictures."""
    copies = {file: found for file in files if (found := COPY.fullmatch(file))}
    if not copies:
        return files
    known = {(os.path.splitext(file)[0], name_mark(os.path.abspath(file))) for file in files}
    return [
        file
        for file in files
        if file not in copies or copies[file].group("picture", "mark") not in known
    ]


def has_inputs(folder: Path, names: Iterable[str]) -> bool:
    """Whether a folder is one of these names, or has one of these files or patterns in it."""
    places = (name if os.path.isdir(name) else os.path.dirname(name) or "." for name in names)
    return (found := identity(folder)) is not None and found in map(identity, places)


def search(
    folder: str, *, recursive: bool = False, omit: Collection[FileIdentity | None] = ()
) -> Iterator[list[str] | Item]:
    """Yield the pictures and videos of a folder, then those of each folder in it.

    Pipes, sockets and devices are skipped, whatever their suffix. Names are sorted within a
    folder; those that begin with a dot are left out, as in a shell's patterns. So are copies that
    a run has made, and folders below that it has filled. Links are followed, and a folder that is
    reached twice is searched once. One that cannot be listed is an item with the error.
    """
    seen = {*omit} - {identity(folder)}
    waiting = [folder]
    while waiting:
        path = waiting.pop()
        if (found := identity(path)) in seen:
            continue
        seen.add(found)
        if path != folder and os.path.lexists(os.path.join(path, MARK)):
            continue
        files: list[str] = []
        folders: list[str] = []
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    mode = _mode(entry)
                    if stat.S_ISDIR(mode):
                        folders.append(entry.path)
                    elif stat.S_ISREG(mode) and is_media(entry.name):
                        files.append(entry.path)
        except OSError as error:
            reason = f"cannot list it: {error.strerror}"
            yield failed(path, PlaceError(reason, "check its permissions"))
            continue
        yield without_copies(sorted(files))
        if recursive:
            waiting += sorted(folders, reverse=True)


def _mode(entry: os.DirEntry[str]) -> int:
    """The type of what an entry leads to; a broken link is a file, which fails when it is read."""
    try:
        if not entry.is_file(follow_symlinks=False):  # which is known without a look at the file
            return entry.stat().st_mode
    except OSError:
        pass
    return stat.S_IFREG


def match(pattern: str) -> list[str]:
    """The files and folders that a glob pattern matches, sorted; `**` matches any folders.

    Links are followed, and a folder that `**` reaches twice counts once: `glob` would go round in
    circles.
    """
    return sorted({*_match(pattern, "")})


def _match(pattern: str, place: str) -> Iterator[str]:
    """The matches of a pattern below a folder; the current one has no name."""
    found = _ANY_FOLDERS.search(pattern)
    if found is None:
        for name in glob.glob(pattern, root_dir=place or None):
            yield os.path.join(place, name)
        return
    before, after = pattern[: found.start()], pattern[found.end() :]
    if found[0] == "**":  # at the end it matches files, too
        after = "*"
    for root in _match(before, place) if before else [place]:
        for folder in _folders(root):
            yield from _match(after, folder)


def _folders(root: str) -> Iterator[str]:
    """A folder and those below it, each once, without those whose names begin with a dot."""
    seen = {identity(root or ".")}
    for path, names, _ in os.walk(root or ".", followlinks=True):
        kept = []
        for name in sorted(name for name in names if not name.startswith(".")):
            if (found := identity(os.path.join(path, name))) not in seen:
                seen.add(found)
                kept.append(name)
        names[:] = kept
        yield path if root else path[2:]  # "./a" is a, and "." has no name


MAX_NAME_BYTES = 65536  # no system accepts a longer path
BEGUN_JSON = re.compile(rb"\s*\{")
JSON_LINE = re.compile(r'\s*\{\s*"')

LISTED = 'write {"path": "bus.jpg", "meta": {"id": 7}}, or image, in base64, in place of path'


class ListedInput(NamedTuple):
    """A line of a list in JSON Lines."""

    name: str  # the path or address; of a picture in the line, the list and the line's number
    image: str | None  # the picture's file in base64
    meta: str | None  # as JSON

    @classmethod
    def parse(cls, line: str, name: str) -> Self:
        """Read a line with `path` or `image`, and perhaps `meta`; or raise a SourceError."""
        try:
            fields = json.loads(line)
            path, image, meta = map(fields.get, ("path", "image", "meta"))
            json.dumps([path, meta], ensure_ascii=False, allow_nan=False).encode()
        except (ValueError, RecursionError) as error:
            raise SourceError(f"a line of the list is no JSON: {error}", LISTED) from error
        if [type(path), type(image)].count(str) != 1:
            raise SourceError("a line of the list has not one of path and image", LISTED)
        stored = json.dumps(meta) if "meta" in fields else None
        return cls(path if isinstance(path, str) else name, image, stored)


def check_list(name: str) -> None:
    """Require that a list can be read, `-` for standard input, or raise a UsageError."""
    if name == STDIN:
        if problem := stdin_problem():
            raise UsageError(
                f"--files-from - has nothing to read: {problem}",
                "pipe names in, as in: find . -name '*.jpg' | detcli predict --files-from - ...",
            )
        return
    try:
        problem = "it is a folder" if stat.S_ISDIR(Path(name).stat().st_mode) else ""
        problem = problem or ("" if os.access(name, os.R_OK) else "no permission")
    except (OSError, ValueError) as error:
        problem = system_reason(error)
    if problem:
        raise UsageError(
            f"--files-from {public_name(name)} cannot be read: {problem}", "check the path"
        )


def read_list(name: str, stop: Event, *, null_separated: bool) -> Iterator[str | SourceError]:
    """Yield the names in a list as they come, `-` for standard input; or an error in their place.

    A byte order mark tells the encoding of lines; without one it is UTF-8, and bytes that are not
    become surrogates.
    """
    separator = b"\0" if null_separated else b"\n"
    chunks = stdin_chunks(stop) if name == STDIN else file_chunks(name, stop)
    if not null_separated:
        chunks = utf8_chunks(chunks)
    try:
        for line in _split(chunks, separator):
            if isinstance(line, SourceError):
                yield line
                continue
            entry = line
            if not null_separated:
                entry = line.removesuffix(b"\r")  # of Windows
            if entry:
                yield os.fsdecode(entry)
    except OSError as error:
        yield SourceError(
            f"the rest of the list cannot be read: {system_reason(error)}", "check its disk"
        )
    except UnicodeDecodeError as error:
        yield SourceError(
            f"the rest of the list is no text in the encoding of its byte order mark: {error}",
            "write it again as UTF-8",
        )


def _split(chunks: Iterable[bytes], separator: bytes) -> Iterator[bytes | SourceError]:
    """Yield the lines between separators, and an error in place of one that is too long."""
    rest, skipping = bytearray(), False
    for chunk in chunks:
        first, *more = chunk.split(separator)
        rest += first
        for begun in more:
            if not skipping:
                yield bytes(rest)
            rest, skipping = bytearray(begun), False
        most = MAX_LINE_BYTES if BEGUN_JSON.match(rest) else MAX_NAME_BYTES
        if skipping:
            rest.clear()
        elif len(rest) > most:
            rest, skipping = bytearray(), True
            yield SourceError(
                f"a name of more than {most} bytes in the list",
                "a list has one name a line; with -0, names end with NUL",
            )
    if rest:
        yield bytes(rest)
