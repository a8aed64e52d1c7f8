"""The cache as `detcli doctor` reports it: its size, whether it can be trusted, and clearing it."""

import contextlib
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from detcli.commands.doctor.installation import DoctorProblem
from detcli.commands.doctor.scrub import shorten
from detcli.core import frozen
from detcli.core.errors import OutputError
from detcli.storage.cache import cache_folder, why_untrusted

CACHE_FOLDERS = ("prepared", "kernels", "tensorrt", "sent", "hub", "tuned")

# Only files that look like detcli's own are counted or removed, because DETCLI_CACHE_DIR may be set
# to a folder that holds other files. files.AtomicFile leaves a ".part" when its process is killed;
# those of 0.1.0 had shorter names. Earlier versions had a folder `sent-HASH` for each model, and
# TensorRT's files of all GPUs in one folder.
CACHED_FILE = re.compile(
    r"prepared/[0-9a-f]{64}[\w.-]*\.(contract|graph|hash|openvino|optimised)"
    r"|kernels/[0-9a-f]{64}\.cubin"
    r"|(prepared|kernels)/\.(detcli-)?[0-9a-f]{16}\.part(\.\w+)?"
    r"|tensorrt/([\w.-]+/)?([0-9a-f]{64}/[^/]+\.(engine|profile|timing|trt)|[^/]+\.timing)"
    r"|tuned/[0-9a-f]{64}/[^/]+\.onnx"
    r"|sent[/-][0-9a-f]{64}/.+|hub/models--[^/]+/.+"
)


@frozen
class CachePart:
    """detcli's files in one folder of the cache."""

    name: str
    files: int
    size_bytes: int


@frozen
class Cache:
    """What detcli keeps between runs."""

    folder: str | None  # without personal names; None if there is no home folder
    writable: bool
    parts: tuple[CachePart, ...]
    cleared_bytes: int | None  # by --clear-cache
    distrusted: tuple[DoctorProblem, ...] = ()  # caches that others can write to


def describe_cache(cleared_bytes: int | None = None) -> Cache:
    """Measure detcli's cache, and find out whether it can be used.

    Args:
        cleared_bytes: What was just removed from it, for the report; None if nothing was asked to
            be removed.
    """
    try:
        folder = cache_folder()
    except OutputError:
        return Cache(None, writable=False, parts=(), cleared_bytes=cleared_bytes)
    parts = []
    cached_paths = []  # their permissions decide whether the cache can be trusted
    for name in CACHE_FOLDERS:
        files = list(_cached_files(folder, name))
        total_bytes = sum(file.size_bytes for file in files)
        parts.append(CachePart(name, files=len(files), size_bytes=total_bytes))
        cached_paths.append(folder / name)
        cached_paths += [file.path for file in files]
    title = _cache_title(folder)
    return Cache(
        title,
        writable=_is_writable(folder),
        parts=tuple(parts),
        cleared_bytes=cleared_bytes,
        distrusted=tuple(_distrusted_caches(folder, cached_paths, title)),
    )


def _is_writable(folder: Path) -> bool:
    """Whether this user can write to a folder, or create it if it does not exist yet."""
    existing_path = folder
    for path in (folder, *folder.parents):
        if os.path.lexists(path):
            existing_path = path
            break
    # With "/." after it, only the path of a folder exists, and not that of a file.
    return os.access(f"{existing_path}/.", os.W_OK | os.X_OK)


def _cache_title(folder: Path) -> str:
    """Format the folder of the cache for the report, without personal names.

    It begins with the variable that sets it, as in "$XDG_CACHE_HOME/detcli", or with "~" for the
    home folder.
    """
    if os.environ.get("DETCLI_CACHE_DIR"):
        return "$DETCLI_CACHE_DIR"
    base = os.environ.get("XDG_CACHE_HOME")
    if base and folder.is_relative_to(base):
        return f"$XDG_CACHE_HOME/{folder.relative_to(base).as_posix()}"
    return shorten(folder)


def _distrusted_caches(
    folder: Path, cached_paths: list[Path], title: str
) -> Iterator[DoctorProblem]:
    """Yield a problem for each cache that is not used because other users can write to it.

    There are two caches: detcli's, and the one of Hugging Face for fetched models.

    Args:
        folder: The folder of detcli's cache.
        cached_paths: The folders and files in it.
        title: The name of the folder in the report.
    """
    from detcli.model.hub import hub_folder

    reason = _why_any_untrusted([folder, *cached_paths])
    if reason:
        public_reason = reason.replace(str(folder), title)  # without personal names
        yield DoctorProblem(
            reason=f"the cache, since {public_reason}",
            command=f"chmod -R go-w {_quoted(title)}",
            advice="then detcli doctor --clear-cache, since others may have written to it; or set "
            "DETCLI_CACHE_DIR to another folder",
        )
    yield from _distrusted_hub_cache(hub_folder())


def _distrusted_hub_cache(hub: Path) -> Iterator[DoctorProblem]:
    """Yield a problem if other users can write to the cache of Hugging Face.

    Args:
        hub: The folder of this cache.
    """
    reason = _why_hub_untrusted(hub)
    if reason:
        title = shorten(hub)  # the folder's name in the report, without personal names
        public_reason = reason.replace(str(hub), title)
        yield DoctorProblem(
            reason=f"the Hugging Face cache, since {public_reason}",
            command=f"chmod -R go-w {_quoted(title)}",
            advice="then detcli models pull NAME, which checks a model, since others may have "
            "written to it; or set HF_HOME to another folder",
        )


def _why_any_untrusted(paths: list[Path]) -> str:
    """Explain why the first untrusted path is not trusted; empty if all paths are trusted."""
    for path in paths:
        reason = why_untrusted(path)
        if reason:
            return reason
    return ""


def _why_hub_untrusted(hub: Path) -> str:
    """Explain why fetched models in the cache of Hugging Face are not trusted; empty if they are.

    Only the repositories of the models that detcli knows by name are checked.

    Args:
        hub: The folder of the cache.
    """
    from detcli.model.hub import why_folder_untrusted
    from detcli.model.zoo import MODELS

    for model in MODELS.values():
        file = model.file()
        if file:
            reason = why_folder_untrusted(hub, file.folder)
            if reason:
                return reason
    return ""


def _quoted(folder: str) -> str:
    """Quote a folder for a shell, which still expands a "~" or a variable at its beginning."""
    if folder.startswith("$"):
        return f'"{folder}"'
    if folder.startswith("~/"):
        return "~/" + shlex.quote(folder.removeprefix("~/"))
    return shlex.quote(folder)


def clear_cached() -> int:
    """Remove all files that detcli has cached, and the folders that are empty then.

    Other files in these folders stay.

    Returns:
        The number of bytes that were freed.

    Raises:
        OutputError: A file could not be removed.
    """
    try:
        folder = cache_folder()
    except OutputError:
        return 0
    names = list(CACHE_FOLDERS)
    names += [path.name for path in folder.glob("sent-*")]  # of earlier versions
    return sum(_clear_folder(folder, name) for name in names)


def _clear_folder(cache: Path, folder: str) -> int:
    """Remove detcli's files in a folder of the cache, and the folders that are empty then.

    Args:
        cache: The folder of the cache.
        folder: The name of the folder in it.

    Returns:
        The number of bytes that were freed.

    Raises:
        OutputError: A file could not be removed.
    """
    freed_bytes = 0
    for file in list(_cached_files(cache, folder)):
        try:
            file.path.unlink(missing_ok=True)
        except OSError as error:
            raise OutputError(
                f"cannot remove {file.path}: {error.strerror}", "check the folder's permissions"
            ) from error
        freed_bytes += file.size_bytes
    for subfolder, _, _ in os.walk(cache / folder, topdown=False):
        with contextlib.suppress(OSError):  # not empty, or a link
            Path(subfolder).rmdir()
    return freed_bytes


class _CachedFile(NamedTuple):
    """A file that detcli has cached."""

    path: Path
    size_bytes: int


def _cached_files(cache: Path, folder: str) -> Iterator[_CachedFile]:
    """Yield detcli's files in a folder of the cache; links are not followed.

    Args:
        cache: The folder of the cache.
        folder: The name of the folder in it, one of CACHE_FOLDERS.
    """
    for subfolder, _, names in os.walk(cache / folder):
        for name in names:
            path = Path(subfolder) / name
            is_of_detcli = CACHED_FILE.fullmatch(path.relative_to(cache).as_posix())
            if not is_of_detcli:
                continue
            with contextlib.suppress(OSError):  # gone by now, or not accessible
                yield _CachedFile(path, path.lstat().st_size)
