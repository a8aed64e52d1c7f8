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
        return Item(name, error=SourceError(f"no such file: {name}", "check the path"))
    return Item(name, Path(name))


def _folder(name: str) -> Iterator[Item]:
    try:
        with os.scandir(name) as entries:
            found = sorted(
                entry.path
                for entry in entries
                if os.path.splitext(entry.name)[1].lower() in IMAGE_SUFFIXES and entry.is_file()
            )
    except OSError as error:
        failure = SourceError(f"cannot list {name}: {error.strerror}", "check its permissions")
        yield Item(name, error=failure)
        return
    if not found:
        failure = SourceError(
            f"no pictures in the folder {name}",
            "folders are not searched deeper; name subfolders, or a pattern such as '**/*.jpg'",
        )
        yield Item(name, error=failure)
    yield from (Item(path, Path(path)) for path in found)


def _pattern(name: str) -> Iterator[Item]:
    found = sorted(path for path in glob.glob(name, recursive=True) if os.path.isfile(path))
    if not found:
        yield Item(name, error=SourceError(f"no file matches {name}", "check the pattern"))
    yield from (Item(path, Path(path)) for path in found)


class InputGuard:
    """Tells whether a file is one of the inputs."""

    def __init__(self, names: Sequence[str]) -> None:
        named = [os.path.realpath(name) for name in names if name != STDIN]
        self._folders = frozenset(path for path in named if os.path.isdir(path))
        matches = (glob.iglob(name, recursive=True) for name in names if glob.has_magic(name))
        self._files = frozenset(
            [*named, *(os.path.realpath(path) for found in matches for path in found)]
        )

    def __contains__(self, path: object) -> bool:
        if not isinstance(path, Path):
            return False
        real = os.path.realpath(path)
        inside = os.path.dirname(real) in self._folders
        return real in self._files or (inside and path.suffix.lower() in IMAGE_SUFFIXES)
