"""Sources: from what a user names to the inputs it stands for.

A name is a file, a folder (its pictures, sorted by name), a glob pattern, or `-` for the bytes of
one picture on standard input. Nothing is read here but folder listings; what is not there becomes
an item with an error, so that the others go on.
"""

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from detcli.errors import SourceError

STDIN = "-"

# What a folder is searched for. A file that is named itself may have any suffix.
IMAGE_SUFFIXES = frozenset(
    ".avif .bmp .dib .gif .hdr .jfif .jp2 .jpe .jpeg .jpg .pbm .pgm .pic .png .pnm .ppm .pxm .ras "
    ".sr .tif .tiff .webp".split()
)


@dataclass(frozen=True, slots=True)
class Item:
    """One input.

    Attributes:
        source: The name that records give it.
        path: The file to read; None for standard input or an error.
        error: Why there is nothing to read.
    """

    source: str
    path: Path | None = None
    error: SourceError | None = None


def expand(names: Sequence[str]) -> Iterator[Item]:
    """Yield the inputs that the names stand for, in order, folders and patterns sorted."""
    for name in names:
        if name == STDIN:
            yield Item(STDIN)
        elif os.path.isdir(name):
            yield from _folder(name)
        elif os.path.lexists(name) or not glob.has_magic(name):
            yield _file(name)
        else:
            yield from _pattern(name)


def _file(name: str) -> Item:
    if not os.path.exists(name):
        return Item(name, error=SourceError("no such file", "check the path"))
    return Item(name, Path(name))


def _folder(name: str) -> Iterator[Item]:
    try:
        with os.scandir(name) as entries:
            found = sorted(entry.path for entry in entries if _may_be_picture(entry))
    except OSError as error:
        failure = SourceError(f"cannot list it: {error.strerror}", "check its permissions")
        yield Item(name, error=failure)
        return
    if not found:
        failure = SourceError(
            "no pictures in this folder",
            "folders are not searched deeper; name subfolders, or a pattern such as '**/*.jpg'",
        )
        yield Item(name, error=failure)
    yield from (Item(path, Path(path)) for path in found)


def _may_be_picture(entry: os.DirEntry[str]) -> bool:
    if os.path.splitext(entry.name)[1].lower() not in IMAGE_SUFFIXES:
        return False
    try:
        return entry.is_file()
    except OSError:  # a link to itself, say: reading it will tell
        return True


def _pattern(name: str) -> Iterator[Item]:
    found = sorted(path for path in glob.glob(name, recursive=True) if os.path.isfile(path))
    if not found:
        yield Item(name, error=SourceError("no file matches", "check the pattern"))
    yield from (Item(path, Path(path)) for path in found)


class InputGuard:
    """Tells whether a file is one of the inputs, by whatever path or link it is reached."""

    def __init__(self, names: Sequence[str]) -> None:
        paths = (item.path for item in expand(names))
        self._identities = frozenset(_identity(path) for path in paths if path) - {None}

    def __contains__(self, path: object) -> bool:
        return isinstance(path, Path) and _identity(path) in self._identities


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of a file; None if it is not there."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino
