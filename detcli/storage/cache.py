"""The cache: where it is, what it holds, and whether others may have written to it."""

import functools
import logging
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

from detcli.core.errors import OutputError
from detcli.core.text import looks_like_address
from detcli.storage.files import make_folder, write_file

CACHE_VARIABLE = "DETCLI_CACHE_DIR"

log = logging.getLogger(__name__)


def cache_folder() -> Path:
    """Return the folder for what detcli caches for this user; CACHE_VARIABLE moves it."""
    variable = os.environ.get(CACHE_VARIABLE)
    if variable:
        if looks_like_address(variable):
            raise OutputError(
                f"{CACHE_VARIABLE} is {variable}, and the cache cannot be at an address",
                "set it to a folder on a disk",
            )
        return Path(variable)
    import platformdirs  # 15 ms that the variable saves

    try:
        folder = platformdirs.user_cache_path("detcli", appauthor=False)
    except RuntimeError:
        folder = Path()
    if not folder.is_absolute():  # older platformdirs return an unresolved `~`
        raise OutputError("no home folder for the cache", f"set {CACHE_VARIABLE}")
    return folder


def cached(name: str, build: Callable[[], bytes]) -> bytes:
    """Read an entry of the cache, or build and store it.

    The file of an entry begins with the SHA-256 of the rest; a damaged one is built again. If the
    cache is not writable, or others can write to it, an entry is built each time.

    Args:
        name: The path of its file, within the cache.
        build: Builds the bytes of the entry.
    """
    try:
        folder = cache_folder()
    except OutputError as error:
        log.info("no cache: %s", error)
        return build()
    path = folder / name
    if not is_cache_trusted(folder, path.parent, path):
        return build()
    entry = _read_entry(path, name)
    if entry is None:
        entry = build()
        _write_entry(folder, name, entry)
    return entry


def is_cached(name: str) -> bool:
    """Whether a trusted cache has an entry of this name, which may be damaged."""
    try:
        folder = cache_folder()
    except OutputError:
        return False
    path = folder / name
    return path.is_file() and is_cache_trusted(folder, path.parent, path)


def can_be_cached(name: str) -> bool:
    """Return whether a new entry could be written to the cache, before it is expensively built.

    Only permissions are checked. A full disk is noticed when the entry is written.

    Args:
        name: The path of the entry's file, within the cache.
    """
    try:
        folder = cache_folder()
    except OutputError:
        return False
    path = folder / name
    if not is_cache_trusted(folder, path.parent, path):
        return False
    existing_folder = path.parent  # the missing folders would be made in it
    while not existing_folder.exists() and existing_folder != existing_folder.parent:
        existing_folder = existing_folder.parent
    return existing_folder.is_dir() and os.access(existing_folder, os.W_OK | os.X_OK)


def _read_entry(path: Path, name: str) -> bytes | None:
    """Read the file of an entry; None if it does not exist or is damaged, which the log says."""
    import hashlib  # `--help` needs none

    try:
        with path.open("rb") as file:
            digest = file.read(hashlib.sha256().digest_size)
            entry = file.read()
    except OSError:
        log.info("%s is not in the cache: building it", name)
        return None
    if hashlib.sha256(entry).digest() != digest:
        log.info("%s is damaged: building it again", name)
        return None
    return entry


def _write_entry(folder: Path, name: str, entry: bytes) -> None:
    """Write the file of an entry, with its SHA-256 before it; the log says if that fails."""
    import hashlib

    path = folder / name
    try:
        make_cache_folders(folder, path.parent)
        write_file(make_folder(path.parent) / path.name, hashlib.sha256(entry).digest() + entry)
        path.chmod(0o600)
    except (OutputError, OSError) as error:
        log.info("cannot cache %s: %s", name, error)


def is_cache_trusted(*paths: Path) -> bool:
    """Whether only the user can write to these files and folders; if not, a warning says so."""
    for path in paths:
        reason = why_untrusted(path)
        if reason:
            warn_once(
                f"the cache is not used, since {reason}; "
                "fix it with chmod -R go-w, or move the cache with DETCLI_CACHE_DIR"
            )
            return False
    return True


def make_cache_folders(*folders: Path) -> None:
    """Make folders that only the user can write to; `folders` has the outer ones first."""
    for folder in folders:
        make_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def why_untrusted(path: Path) -> str:
    """Explain why a file or folder of the cache cannot be trusted: somebody else can write to it.

    It must belong to the user or to root, and its group or others must not be able to write to it.
    The user's private group may: where every user has one, files are made group-writable.

    Returns:
        The reason, as in "others can write to /cache"; empty if it is trusted, does not exist, or
        is neither a file nor a folder.
    """
    if sys.platform == "win32":
        return ""
    try:
        status = path.stat()
    except OSError:
        return ""
    mode = status.st_mode
    if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        return ""
    if status.st_uid not in {0, os.geteuid()}:
        return f"{path} belongs to another user"
    if mode & stat.S_IWOTH:
        return f"others can write to {path}"
    if mode & stat.S_IWGRP and (_has_acl(path) or not _is_private_group(status.st_gid)):
        return f"its group can write to {path}"
    return ""


def _has_acl(path: Path) -> bool:
    """Whether a file has an access control list: then others than its group may write to it."""
    if sys.platform != "linux":
        return False
    try:
        return "system.posix_acl_access" in os.listxattr(path)
    except OSError:  # not on this file system
        return False


def _is_private_group(gid: int) -> bool:
    """Whether a group is the user's private one: it has the user's name and no other member."""
    if sys.platform == "win32":
        return True
    import grp
    import pwd

    try:
        group = grp.getgrgid(gid)
        user = pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    is_named_as_user = group.gr_name == user.pw_name and gid == user.pw_gid
    has_no_other_member = set(group.gr_mem) <= {user.pw_name}
    return is_named_as_user and has_no_other_member


@functools.cache
def warn_once(message: str) -> None:
    """Log a warning, unless the process has already logged the same one."""
    log.warning("%s", message)
