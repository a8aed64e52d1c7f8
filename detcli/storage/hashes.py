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

Times of files have steps of up to two seconds, and only one of two changes within a step shows.
"""


class FileChangedError(Exception):
    """A file was written while it was read."""


def recorded_sha256(path: Path, compute: Callable[[], str]) -> str:
    """Return the SHA-256 of a file: from the cache, or else computed and put into the cache.

    An entry of the cache is for a file in a certain state: its size, its times, its inode and its
    disk. Among the times is that of the last change of any kind (ctime), which no program can set.
    Windows has no such time, so nothing is cached there.

    Args:
        path: The file.
        compute: Reads the file, and returns its hash in hexadecimal digits.

    Raises:
        FileChangedError: The file was written while `compute` read it.
    """
    state = _settled_state(path)
    if state is None:
        return compute()

    def compute_unchanged() -> bytes:
        sha256 = compute()
        if _settled_state(path) != state:  # it would be cached for the previous state
            raise FileChangedError
        return sha256.encode()

    name_of_state = hashlib.sha256(state.encode()).hexdigest()
    return cached(f"prepared/{name_of_state}.hash", compute_unchanged).decode()


def _settled_state(path: Path) -> str | None:
    """Describe the state of a file in a string, which differs after any change of the file.

    It consists of the disk, the inode, the size and the times: "66306-1234-5678-1700...-1700...".

    Returns:
        The string; None if the file was changed so recently that one more change might have the
        same time, if the system has no such times (Windows), or if the file cannot be read.
    """
    if sys.platform == "win32":
        return None
    try:
        # Opening it asks a server for its current state, where a network disk keeps an older one.
        with open_regular(path) as file:
            status = os.fstat(file.fileno())
    except OSError:
        return None
    last_change_ns = max(status.st_mtime_ns, status.st_ctime_ns)
    if time.time_ns() - last_change_ns < SETTLED_NS:
        return None
    times = f"{status.st_mtime_ns}-{status.st_ctime_ns}"
    return f"{status.st_dev}-{status.st_ino}-{status.st_size}-{times}"
