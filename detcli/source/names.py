"""Names: addresses, folders, patterns, lists.

A folder is listed only when it is reached, and its files are not examined one by one, so the first
image in a million folders is found at once. Lists are read as they come, however long they are.
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
from detcli.core.text import is_object, public_name
from detcli.source.loading import STDIN, Item, failed_item
from detcli.source.reading import file_chunks, stdin_chunks, stdin_problem

SCHEMES = ("http://", "https://", "rtsp://", "rtsps://")

_CAMERA = re.compile(r"camera:([0-9]{1,9})", re.IGNORECASE)


def is_address(name: str) -> bool:
    """True for the address of a server."""
    return name.lower().startswith(SCHEMES)


def is_stream(name: str) -> bool:
    """True for the address of something that can only be a stream, such as a camera's MJPEG."""
    if name.lower().startswith(("rtsp://", "rtsps://")):
        return True
    return is_address(name) and path_of(name).lower().endswith((".mjpeg", ".mjpg"))


def is_camera(name: str) -> bool:
    """True for the name of a camera, as in `camera:0`; it may be malformed."""
    return name.lower().startswith("camera:")


def is_live(name: str) -> bool:
    """True for a camera or a stream, not for an image or video file."""
    if not is_address(name):
        return is_camera(name)
    if is_stream(name):
        return True
    path = path_of(name)
    return not is_media(path) and not is_archive(path)


def camera_number(name: str) -> int:
    """The number in the name of a camera; a SourceError if it has none.

    Examples:
        >>> camera_number("camera:1")
        1
    """
    camera = _CAMERA.fullmatch(name)
    if camera is None:
        raise SourceError("not the name of a camera", "cameras are numbered from 0, as in camera:0")
    return int(camera[1])


def check_address(url: str) -> None:
    """Require that an address has a host and a port that a server can have.

    Raises:
        SourceError: The host is missing, the port is not a number from 1 to 65535, or the address
            contains characters that cannot be printed, such as a line break.
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname
        port = parts.port
    except ValueError:  # the port is not a number, or too high; or brackets do not match
        host = None
        port = None
    # No server listens on port 0. None is the default port of the scheme.
    if not host or port == 0 or not url.isprintable():
        raise SourceError("not a valid address", "write it as in rtsp://192.168.1.64:554/stream1")


def path_of(url: str) -> str:
    """The path in an address, whose suffix gives the type of the file."""
    try:
        return urlsplit(url).path
    except ValueError:
        return ""


# The suffixes a folder is searched for; a file named by the user may have any suffix.
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

# The part `**` of a pattern, with the separator after it.
_ANY_FOLDERS = re.compile(rf"(?<![^{_SEPARATORS}])\*\*(?:[{_SEPARATORS}]+|$)")
FileIdentity = tuple[int, int]


def identity(path: str | os.PathLike[str]) -> FileIdentity | None:
    """Return the device and inode of a file; they are the same for all its names.

    It is None if the file does not exist.
    """
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino


def is_video(name: str) -> bool:
    """True for the suffix of a video; a GIF is an image."""
    return _suffix(name) in VIDEO_SUFFIXES


def is_archive(name: str) -> bool:
    """True for the suffix of a file that holds many images; a folder is not searched for them."""
    return name.lower().endswith(ARCHIVES)


def is_image_path(name: str) -> bool:
    """True for the path of an image by its suffix; false for what may be an address."""
    return ":" not in name and _suffix(name) in IMAGE_SUFFIXES


def is_media(name: str) -> bool:
    """True for the suffix of an image or a video."""
    return _suffix(name) in IMAGE_SUFFIXES or is_video(name)


def _suffix(name: str) -> str:
    """The suffix in lower case, with its dot."""
    return name[name.rfind(".") :].lower()  # Path takes ten times as long


MARK = ".detcli-folder"  # the file that shows that a folder is ours
COPY = re.compile(r"(?s)(?P<picture>.+)-(?P<mark>[0-9a-f]{8})(-[0-9]+)?\.\w+")


def name_mark(path: str) -> str:
    """The hash of an absolute path or an address, in the names of files that are made from it."""
    import hashlib

    return hashlib.sha256(path.encode("utf-8", "surrogatepass")).hexdigest()[:8]


class _Original(NamedTuple):
    """The original image of an annotated copy, as far as the copy's name identifies it.

    The name `pics/bus-0a1b2c3d.jpg` says `pics/bus` and `0a1b2c3d`, but not the suffix of the
    original.
    """

    path_without_suffix: str
    path_hash: str  # of the absolute path with its suffix, see `name_mark`


def without_copies(files: list[str]) -> list[str]:
    """Return the files without annotated copies that an earlier run has put beside its images.

    The copy of bus.jpg is called bus-0a1b2c3d.jpg, where the digits are a hash of the path of
    bus.jpg. So a file with such a name is a copy only if bus.jpg is among the files, with an
    absolute path of this hash.
    """
    # The original, for each file whose name looks like that of a copy.
    original_by_copy: dict[str, _Original] = {}
    for file in files:
        copy_name = COPY.fullmatch(file)
        if copy_name is not None:
            original_by_copy[file] = _Original(copy_name["picture"], copy_name["mark"])
    if not original_by_copy:
        return files  # so that no paths have to be hashed

    present_originals = set()
    for file in files:
        path_without_suffix, _ = os.path.splitext(file)
        path_hash = name_mark(os.path.abspath(file))
        present_originals.add(_Original(path_without_suffix, path_hash))

    remaining_files = []
    for file in files:
        is_copy = original_by_copy.get(file) in present_originals
        if not is_copy:
            remaining_files.append(file)
    return remaining_files


def is_missing(name: str) -> bool:
    """Whether a name is that of a file that does not exist, and is not a pattern."""
    return is_path(name) and is_single_file(name) and not os.path.exists(name)


def is_single_file(path: str) -> bool:
    """Whether a path names a single file, existing or missing, rather than a pattern."""
    return os.path.lexists(path) or not glob.has_magic(path)


def is_path(name: str) -> bool:
    """True for the name of a file or folder, or a pattern."""
    return not (name == STDIN or is_address(name) or is_camera(name) or is_object(name))


def has_inputs(folder: Path, names: Iterable[str]) -> bool:
    """Return whether any of the names is this folder, or a file or pattern directly in it."""
    folder_identity = identity(folder)
    if folder_identity is None:
        return False
    for name in names:
        input_folder = name
        if not os.path.isdir(name):
            input_folder = os.path.dirname(name) or "."
        if identity(input_folder) == folder_identity:
            return True
    return False


def search(
    folder: str, *, recursive: bool = False, omit: Collection[FileIdentity | None] = ()
) -> Iterator[list[str] | Item]:
    """Yield the images and videos of a folder, then those of each folder in it if `recursive`.

    Names are sorted within a folder. Those that begin with a dot are left out, as in a shell's
    patterns, and so are pipes and devices, copies that a run has made, and folders below that it
    has filled. Links are followed, and a folder that is reached twice is searched once.

    Args:
        folder: The path of the folder.
        recursive: Whether the folders in it are searched, too.
        omit: Device and inode of folders that are not searched.

    Yields:
        A list with the paths in one folder; or an item with the error for a folder that cannot be
        listed.
    """
    visited = set(omit) - {identity(folder)}
    waiting = [folder]
    while waiting:
        path = waiting.pop()
        path_identity = identity(path)
        if path_identity in visited:
            continue
        visited.add(path_identity)
        is_filled_by_run = path != folder and os.path.lexists(os.path.join(path, MARK))
        if is_filled_by_run:
            continue
        try:
            files, folders = _list_folder(path)
        except OSError as error:
            reason = f"cannot list it: {error.strerror}"
            yield failed_item(path, PlaceError(reason, "check its permissions"))
            continue
        yield without_copies(sorted(files))
        if recursive:
            waiting += sorted(folders, reverse=True)  # the last one is taken first


def _list_folder(path: str) -> tuple[list[str], list[str]]:
    """List a folder: return the paths of its images and videos, and those of its folders.

    Neither is sorted. Names that begin with a dot are left out, and so are pipes and devices.
    """
    files: list[str] = []
    folders: list[str] = []
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            mode = _mode(entry)
            if stat.S_ISDIR(mode):
                folders.append(entry.path)
            elif stat.S_ISREG(mode) and is_media(entry.name):
                files.append(entry.path)
    return files, folders


def _mode(entry: os.DirEntry[str]) -> int:
    """Return the mode (see `stat`) of the file or folder that an entry of a folder leads to.

    A broken link counts as a file, which fails when it is read.
    """
    try:
        if not entry.is_file(follow_symlinks=False):  # known without a look at the file
            return entry.stat().st_mode
    except OSError:
        pass
    return stat.S_IFREG


def match(pattern: str) -> list[str]:
    """The files and folders that a glob pattern matches, sorted; `**` matches any folders.

    Links are followed, and a folder that `**` reaches twice counts once: `glob` would go round in
    circles.
    """
    return sorted(set(_match(pattern, "")))


def _match(pattern: str, parent: str) -> Iterator[str]:
    """Yield the paths below a folder that match a glob pattern.

    In it, `**` stands for any number of nested folders. The pattern is split at its first `**`:
    "2024/**/*.jpg" into "2024" and "*.jpg". The part before it is matched first. Then the part
    after it is matched in each of these folders, and in all folders below them. A `**` at the end
    means all files and folders there, as `**/*` does.

    Args:
        pattern: A path relative to `parent`, as in "2024/**/*.jpg".
        parent: The folder; empty for the current one, so that matches do not begin with "./".
    """
    any_folders = _ANY_FOLDERS.search(pattern)
    if any_folders is None:
        for name in glob.glob(pattern, root_dir=parent or None):
            yield os.path.join(parent, name)
        return
    before = pattern[: any_folders.start()]
    after = pattern[any_folders.end() :]
    is_at_end = any_folders[0] == "**"  # elsewhere a separator follows it
    if is_at_end:
        after = "*"

    roots: Iterable[str] = [parent]
    if before:
        roots = _match(before, parent)
    for root in roots:
        for folder in _folders(root):
            yield from _match(after, folder)


def _folders(root: str) -> Iterator[str]:
    """Yield a folder and all folders below it, in the order in which `os.walk` enters them.

    Links are followed, and a folder that is reached twice is yielded once. Folders whose names
    begin with a dot are left out.

    Args:
        root: The folder; empty for the current one, whose folders are yielded as "a", not "./a".
    """
    start = root or os.curdir
    visited = {identity(start)}
    for path, names, _ in os.walk(start, followlinks=True):
        next_names = []
        for name in sorted(names):
            if name.startswith("."):
                continue
            folder_identity = identity(os.path.join(path, name))
            if folder_identity not in visited:
                visited.add(folder_identity)
                next_names.append(name)
        names[:] = next_names  # `os.walk` enters these next
        if root:
            yield path
        else:
            yield path.removeprefix(os.curdir).removeprefix(os.sep)


MAX_NAME_BYTES = 65536  # no system accepts a longer path
BEGUN_JSON = re.compile(rb"\s*\{")
JSON_LINE = re.compile(r'\s*\{\s*"')

LISTED = 'write {"path": "bus.jpg", "meta": {"id": 7}}, or image, in base64, in place of path'


class ListedInput(NamedTuple):
    """A line of a list in JSON Lines."""

    name: str  # the path or address; for an image in the line, the list and the line's number
    image: str | None  # the image's file in base64
    meta: str | None  # as JSON

    @classmethod
    def parse(cls, line: str, default_name: str) -> Self:
        """Read a line of JSON that names an image in `path`, or contains it in `image`.

        A `path` or `image` that is not a string is ignored.

        Args:
            line: A JSON object, which may have `meta` as well.
            default_name: The name of an image in `image`: the list and the number of the line.

        Raises:
            SourceError: The line is something else, or has both or neither of `path` and `image`.
        """
        try:
            fields = json.loads(line)
            path = fields.get("path")
            image = fields.get("image")
            meta = fields.get("meta")
            # Python's reader also takes NaN, which is not JSON, and half of a surrogate pair, which
            # UTF-8 cannot encode. Both would end up in records. They are refused here, as writing
            # them raises a ValueError.
            json.dumps([path, meta], ensure_ascii=False, allow_nan=False).encode()
        except (ValueError, RecursionError) as error:
            raise SourceError(f"a line of the list is not JSON: {error}", LISTED) from error
        has_path = isinstance(path, str)
        has_image = isinstance(image, str)
        has_both_or_neither = has_path == has_image
        if has_both_or_neither:
            raise SourceError("a line of the list needs either path or image", LISTED)

        meta_json = None
        if "meta" in fields:
            meta_json = json.dumps(meta)
        if has_path:
            return cls(name=path, image=None, meta=meta_json)
        return cls(name=default_name, image=image, meta=meta_json)


def check_list(name: str) -> None:
    """Require that the list of names that --files-from gives can be read.

    Args:
        name: The path of the list, or `-` for standard input.

    Raises:
        UsageError: It is missing, a folder or not permitted, or there is no standard input.
    """
    if name == STDIN:
        problem = stdin_problem()
        if problem:
            raise UsageError(
                f"--files-from - has nothing to read: {problem}",
                "pipe names in, as in: find . -name '*.jpg' | detcli predict --files-from - ...",
            )
        return
    problem = _file_problem(name)
    if problem:
        raise UsageError(
            f"--files-from {public_name(name)} cannot be read: {problem}", "check the path"
        )


def _file_problem(path: str) -> str:
    """Why a file cannot be read; empty if it can."""
    try:
        if stat.S_ISDIR(Path(path).stat().st_mode):
            return "it is a folder"
        if not os.access(path, os.R_OK):
            return "no permission"
    except (OSError, ValueError) as error:
        return system_reason(error)
    return ""


def read_list(name: str, stop: Event, *, null_separated: bool) -> Iterator[str | SourceError]:
    """Yield the names in a list as they come, and an error in place of what cannot be read.

    Args:
        name: The path of the list, or `-` for standard input.
        stop: Ends the reading when it is set.
        null_separated: Whether a NUL ends each name. If not, a name is a line: in the encoding that
            a byte order mark gives, or else in UTF-8, where other bytes become surrogates.
    """
    if name == STDIN:
        chunks = stdin_chunks(stop)
    else:
        chunks = file_chunks(name, stop)
    separator = b"\0"
    if not null_separated:
        separator = b"\n"
        chunks = utf8_chunks(chunks)
    try:
        for line in _split_lines(chunks, separator):
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
            f"the rest of the list is not text in the encoding of its byte order mark: {error}",
            "write it again as UTF-8",
        )


def _split_lines(chunks: Iterable[bytes], separator: bytes) -> Iterator[bytes | SourceError]:
    """Split chunks of bytes into lines, and yield an error in place of a line that is too long.

    A line is too long if it has not ended after `MAX_NAME_BYTES`. If it is JSON, which may contain
    an image, the limit is `MAX_LINE_BYTES`. The rest of such a line is skipped without being
    stored.
    """
    line = bytearray()  # the current line, as far as it has come
    is_too_long = False  # whether an error was yielded in place of the current line
    for chunk in chunks:
        pieces = chunk.split(separator)
        unfinished_piece = pieces.pop()  # the line goes on in the next chunk
        for end_of_line in pieces:
            if not is_too_long:
                yield bytes(line + end_of_line)
            line = bytearray()
            is_too_long = False
        if is_too_long:
            continue

        line += unfinished_piece
        max_bytes = MAX_NAME_BYTES
        if BEGUN_JSON.match(line):
            max_bytes = MAX_LINE_BYTES
        if len(line) > max_bytes:
            line = bytearray()
            is_too_long = True
            yield SourceError(
                f"a name of more than {max_bytes} bytes in the list",
                "a list has one name a line; with -0, names end with NUL",
            )
    if line:
        yield bytes(line)
