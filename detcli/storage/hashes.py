"""The hashes of large files, in the cache: a file that did not change is not read again for it."""

import hashlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from detcli.storage.cache import cached
from detcli.storage.files import open_regular

SETTLED_NS = 10_000_000_000
"""How long ago a file must have changed for its hash to be kept.

Times of files have steps, of up to two seconds, and of two changes within a step only one shows.
"""


class FileChangedError(Exception):
    """A file was written while it was read."""


def recorded_sha256(path: Path, compute: Callable[[], str]) -> str:
    """Return the SHA-256 of a file from the cache, or compute it, and keep it there.

    A file counts as unchanged if its size, its times, its inode and its disk are the same. Among
    its times is that of its last change of any kind, which no program can set. Windows has no such
    time, so nothing is kept there.

    Args:
        path: The file.
        compute: Reads the file, and returns its hash in hexadecimal digits.

    Raises:
        FileChangedError: The file was written while `compute` read it.
    """
    state = _settled_state(path)
    if state is None:  # a change may not show, so that no hash can be kept
        return compute()

    def compute_unchanged() -> bytes:
        sha256 = compute()
        if _settled_state(path) != state:
            raise FileChangedError
        return sha256.encode()

    name_of_state = hashlib.sha256(state.encode()).hexdigest()
    return cached(f"prepared/{name_of_state}.hash", compute_unchanged).decode()


def _settled_state(path: Path) -> str | None:
    """Describe what changes with a file; None if a change may not show, or it cannot be read."""
    if sys.platform == "win32":
        return None
    try:
        # Opening it asks a server for its state now, where a network disk keeps an older one.
        with open_regular(path) as file:
            status = os.fstat(file.fileno())
    except OSError:
        return None
    last_change_ns = max(status.st_mtime_ns, status.st_ctime_ns)
    if time.time_ns() - last_change_ns < SETTLED_NS:
        return None
    times = f"{status.st_mtime_ns}-{status.st_ctime_ns}"
    return f"{status.st_dev}-{status.st_ino}-{status.st_size}-{times}"
