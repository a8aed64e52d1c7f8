"""Folders and patterns: the names of the files that they stand for.

A folder is listed only when it is reached, and its files are not examined one by one, so the first
picture in a million folders is found at once.
"""

import glob
import os
import re
import stat
from collections.abc import Collection, Iterator

from detcli.errors import SourceError
from detcli.source.item import Item, failed

# What a folder is searched for; a file named by the user may have any suffix.
IMAGE_SUFFIXES = frozenset(
    ".avif .bmp .dib .gif .hdr .jfif .jp2 .jpe .jpeg .jpg .pbm .pgm .pic .png .pnm .ppm .pxm .ras "
    ".sr .tif .tiff .webp".split()
)
VIDEO_SUFFIXES = frozenset(
    ".264 .265 .3gp .asf .avi .f4v .flv .h264 .h265 .hevc .ivf .m2ts .m4v .mjpeg .mjpg .mkv .mov "
    ".mp4 .mpeg .mpg .mts .mxf .ogv .ts .vob .webm .wmv .y4m".split()
)
_SUFFIXES = IMAGE_SUFFIXES | VIDEO_SUFFIXES

_SEPARATORS = re.escape(f"/{os.sep}")

_ANY_FOLDERS = re.compile(rf"(?<![^{_SEPARATORS}])\*\*(?:[{_SEPARATORS}]+|$)")
"""The part `**` of a pattern, with the separator behind it."""

FileIdentity = tuple[int, int]
"""Device and inode of a file."""


def identity(path: str | os.PathLike[str]) -> FileIdentity | None:
    """Identity of a file, whatever its name; None if it does not exist."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino


def is_video(name: str) -> bool:
    """Whether a name has the suffix of a video; a GIF is a picture."""
    return _suffix(name) in VIDEO_SUFFIXES


def is_media(name: str) -> bool:
    """Whether a name has the suffix of a picture or a video."""
    return _suffix(name) in _SUFFIXES


def _suffix(name: str) -> str:
    """The last dot and what follows, in lower case; Path takes ten times as long."""
    return name[name.rfind(".") :].lower()


def search(
    folder: str, *, recursive: bool = False, omit: Collection[FileIdentity | None] = ()
) -> Iterator[list[str] | Item]:
    """Yield the pictures and videos of a folder, then those of each folder in it.

    Pipes, sockets and devices are skipped, whatever their suffix. Names are sorted within a
    folder; those that begin with a dot are left out, as in a shell's patterns. Links are followed,
    and a folder that is reached twice is searched once.

    Args:
        folder: Where to begin.
        recursive: Whether to search the folders in it.
        omit: Folders that are not searched.

    Yields:
        The names in one folder, or an item with the error for one that cannot be listed.
    """
    seen = {*omit} - {identity(folder)}
    waiting = [folder]
    while waiting:
        path = waiting.pop()
        if (found := identity(path)) in seen:
            continue
        seen.add(found)
        try:
            files, folders = _list(path)
        except OSError as error:
            reason = f"cannot list it: {error.strerror}"
            yield failed(path, SourceError(reason, "check its permissions"))
            continue
        yield files
        if recursive:
            waiting += reversed(folders)


def _list(folder: str) -> tuple[list[str], list[str]]:
    """The pictures and videos in a folder, and the folders in it, each sorted."""
    files, folders = [], []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if _is_folder(entry):
                folders.append(entry.path)
            elif is_media(entry.name) and not _is_special(entry):
                files.append(entry.path)
    return sorted(files), sorted(folders)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # for instance a link to itself, which fails when it is read
        return False


def _is_special(entry: os.DirEntry[str]) -> bool:
    """Whether it is a pipe, socket or device, or a link to one. A broken link is not."""
    if entry.is_file(follow_symlinks=False):  # known without a look at the file
        return False
    try:
        return not stat.S_ISREG(entry.stat().st_mode)
    except OSError:
        return False


def match(pattern: str) -> list[str]:
    """The files and folders that a glob pattern matches, sorted; `**` matches any folders.

    Links are followed, and a folder that `**` reaches twice counts once: `glob` would go round in
    circles.
    """
    return sorted({*_match(pattern, "")})


def _match(pattern: str, place: str) -> Iterator[str]:
    """What a pattern matches below a folder; the current one has no name."""
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
