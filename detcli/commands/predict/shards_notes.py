"""Notes in the folder of a run in shards: which shards a process is working on now."""

import contextlib
import json
import os
import time
from collections.abc import Iterator

from detcli.core.errors import StoreError
from detcli.run.shards.manifest import Manifest
from detcli.run.shards.schedule import Schedule
from detcli.run.shards.store import MAX_NOTE_AGE_S, NOTE, RENEW_S, Store, noted_shards

CHANGE_S = 1.0
"""The minimum interval at which a run rewrites its note because its shards have changed."""


class WorkingNote:
    """A small file in the run's folder that lists the shards this process is working on now.

    `detcli status` reads it. A process that is killed leaves its note behind; a note that was not
    rewritten for MAX_NOTE_AGE_S counts as left behind.
    """

    def __init__(self, store: Store, schedule: Schedule) -> None:
        self._store = store
        self._schedule = schedule
        self._file_name = f"{NOTE}{os.urandom(8).hex()}.json"
        self._written_shards: list[int] = []
        self._written_s = 0.0  # on the monotonic clock; 0 if never

    def renew(self) -> None:
        """Rewrite the list of shards if it has changed or the file is getting old."""
        shards = self._schedule.held
        interval_s = CHANGE_S
        if shards == self._written_shards:
            interval_s = RENEW_S
        if time.monotonic() - self._written_s >= interval_s:
            self._store.write_note(self._file_name, json.dumps(shards).encode())
            self._written_shards = shards
            self._written_s = time.monotonic()

    def remove(self) -> None:
        """Remove the file, if it was written."""
        if self._written_s:
            self._store.remove_note(self._file_name)


@contextlib.contextmanager
def working_note(store: Store, schedule: Schedule) -> Iterator[WorkingNote]:
    """Keep a note in the run's folder of the shards that this process is working on.

    A note is a small file. Notes of other processes that were killed are removed: at the beginning
    those that are too old, and after all work also those whose shards are done.
    """
    for file_name, written_s in store.times(NOTE).items():
        if _is_left_behind(written_s):
            store.remove_note(file_name)
    note = WorkingNote(store, schedule)
    try:
        yield note
    finally:
        note.remove()
    _remove_finished_notes(store, schedule.manifest)


def _is_left_behind(written_s: float) -> bool:
    """Return whether the process of a note is gone, from the time when the note was written.

    A process that is alive rewrites its note more often.
    """
    return time.time() - written_s > MAX_NOTE_AGE_S


def _remove_finished_notes(store: Store, manifest: Manifest) -> None:
    """Remove the notes of other processes that are left behind, or whose shards are all done.

    A process whose shards are done was probably killed: if it were alive, it would be processing
    other shards by now, or be about to remove the note itself.
    """
    # The run is complete, so notes that cannot be read do no harm and may stay.
    with contextlib.suppress(StoreError):
        done_shards = set(manifest.last_attempts())
        for file_name, written_s in store.times(NOTE).items():
            shards = noted_shards(store, file_name)
            is_done = bool(shards) and shards.issubset(done_shards)
            if is_done or _is_left_behind(written_s):
                store.remove_note(file_name)
