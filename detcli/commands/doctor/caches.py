"""detcli's cache: where it is, what is in it, and clearing it.

Only files that look like detcli's own are counted or removed: somebody may have set
DETCLI_CACHE_DIR to a folder that holds other things.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from detcli.commands.doctor.privacy import shorten
from detcli.commands.doctor.report import Cache, CachePart
from detcli.errors import OutputError
from detcli.files import cache_folder


@dataclass(frozen=True, slots=True)
class Part:
    """A folder in the cache.

    Attributes:
        name: Of the folder.
        content: What it holds.
        files: What the paths of its files look like, from there, with "/" between folders.
    """

    name: str
    content: str
    files: re.Pattern[str]


TEMPORARY = r"\.[0-9a-f]{16}\.part"  # of files.AtomicFile, left by a process that was killed

PARTS = (
    Part(
        "prepared",
        "models as they were read",
        re.compile(rf"[0-9a-f]{{64}}[\w-]*\.(contract|graph)|{TEMPORARY}"),
    ),
    Part(
        "kernels",
        "compiled CUDA kernels",
        re.compile(r"entries/[0-9a-f]{2}/[0-9a-f]+|tmp/entry-\w+"),
    ),
    Part(
        "tensorrt",
        "TensorRT's engines",
        re.compile(r"[0-9a-f]{64}/[^/]+\.(engine|profile|timing|trt)|[^/]+\.timing"),
    ),
)


def examine_cache(cleared_bytes: int | None = None) -> Cache:
    """Measure the cache.

    Args:
        cleared_bytes: What was removed from it just before, to be reported.
    """
    try:
        folder = cache_folder()
    except OutputError:
        return Cache(None, writable=False, parts=(), cleared_bytes=cleared_bytes)
    parts = []
    for part in PARTS:
        sizes = [size for _, size in _files(folder, part)]
        parts.append(CachePart(part.name, part.content, len(sizes), sum(sizes)))
    return Cache(_displayed(folder), _is_writable(folder), tuple(parts), cleared_bytes)


def clear_cache() -> int:
    """Remove what detcli has cached.

    Returns:
        How many bytes that were.

    Raises:
        OutputError: A file could not be removed.
    """
    try:
        folder = cache_folder()
    except OutputError:
        return 0
    freed = 0
    for part in PARTS:
        for path, size in list(_files(folder, part)):
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise OutputError(
                    f"cannot remove {path}: {error.strerror}", "check the folder's permissions"
                ) from error
            freed += size
        _remove_empty_folders(folder / part.name)
    return freed


def _files(folder: Path, part: Part) -> Iterator[tuple[Path, int]]:
    """Files of one part with their sizes, links to files included and never followed."""
    top = folder / part.name
    for place, _, names in os.walk(top):
        for path in (Path(place) / name for name in names):
            if part.files.fullmatch(path.relative_to(top).as_posix()):
                with contextlib.suppress(OSError):  # gone by now, or not to be looked at
                    yield path, path.lstat().st_size


def _remove_empty_folders(top: Path) -> None:
    for place, _, _ in os.walk(top, topdown=False):
        with contextlib.suppress(OSError):  # it is not empty, or a link
            Path(place).rmdir()


def _displayed(folder: Path) -> str:
    """Where it is; a variable that says so by its name."""
    if os.environ.get("DETCLI_CACHE_DIR"):
        return "$DETCLI_CACHE_DIR"
    if (base := os.environ.get("XDG_CACHE_HOME")) and folder.is_relative_to(base):
        return f"$XDG_CACHE_HOME/{folder.relative_to(base).as_posix()}"
    return shorten(folder)


def _is_writable(folder: Path) -> bool:
    """Whether files can be made in it, or it itself where it is not there yet."""
    place = folder
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    return os.access(f"{place}/.", os.W_OK | os.X_OK)  # a file has no "."
