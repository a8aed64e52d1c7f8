"""Following: which files in the followed folders are new, and when they are complete."""

import os
import time
from collections.abc import Collection, Mapping
from typing import NamedTuple

from detcli.source.loading import Item

FOLLOW_S = 0.5
"""The minimum number of seconds between two listings of the followed folders."""

FOLLOW_SHARE = 0.1
"""The share of the time that listing the folders may take."""

STABLE_AFTER_S = 10.0
"""A file that has not changed for this many seconds is complete, whatever is in it."""


class FileState(NamedTuple):
    """What changes about a file while another program writes it."""

    size: int
    change_time_ns: int


class PendingFile(NamedTuple):
    """A file that may not be complete, and since when it has not changed (monotonic time)."""

    state: FileState
    since_s: float


class FollowedFiles:
    """Remembers the files in the followed folders from one listing to the next."""

    def __init__(self) -> None:
        self.input_count = 0  # files whose inputs were yielded; one that came back is counted again
        self._yielded: set[str] = set()  # their names, as long as they are in the folders
        self._pending: dict[str, PendingFile] = {}

    def update(self, entries: Mapping[str, str | Item]) -> None:
        """Forget the files that are missing in a new listing of the folders.

        While a folder cannot be listed, perhaps only for now, its files do not count as deleted:
        they would be yielded again when it is back. Files that were yielded are no longer pending.

        Args:
            entries: The listing by name: a string for a file, and an `Item` with the error for a
                folder that cannot be listed.
        """
        has_errors = any(isinstance(entry, Item) for entry in entries.values())
        if not has_errors:
            self._yielded &= entries.keys()
        for name in list(self._pending):
            if name in self._yielded or name not in entries:
                del self._pending[name]

    def new_names(self, names: Collection[str]) -> list[str]:
        """List the names of files whose inputs have not been yielded yet."""
        return [name for name in names if name not in self._yielded]

    def mark_yielded(self, name: str) -> None:
        """Record that inputs of a file were yielded; the first time, it is counted as an input."""
        if name not in self._yielded:
            self._yielded.add(name)
            self.input_count += 1

    def unchanged_s(self, path: str) -> float | None:
        """Return for how many seconds a file has been as it is now.

        Its size and time of change are remembered for the next call.

        Returns:
            The seconds. None if the file is looked at for the first time or has changed since the
            last call, or if it is deleted.
        """
        try:
            status = os.stat(path)
        except OSError:
            return None
        now_s = time.monotonic()
        state = FileState(status.st_size, status.st_mtime_ns)
        pending = self._pending.get(path)
        if pending is None or pending.state != state:
            self._pending[path] = PendingFile(state, since_s=now_s)
            return None
        # There are two measures, and either may be too short: this run may have begun long after
        # the file was written, and the clock that set the file's time of change may be ahead.
        seen_unchanged_s = now_s - pending.since_s
        age_s = time.time() - status.st_mtime
        return max(seen_unchanged_s, age_s)
