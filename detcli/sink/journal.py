"""A journal: JSON Lines that a later run continues.

Each record is appended and flushed, so a run that is killed loses at most its last record. The next
run drops a torn line, skips inputs with a record, and tries failed ones again.
"""

import errno
import json
import os
from collections import Counter
from io import FileIO
from pathlib import Path
from typing import Any

from detcli.errors import OutputError, UsageError, system_reason
from detcli.files import AtomicFile
from detcli.record import Origin, Record
from detcli.sink.json import encode

START = b'{"schema_version"'
"""Start of every record, and of a torn line as far as it goes."""

Key = tuple[str, int | None]
"""Identifies a record: source, and frame for a video."""


class Journal:
    """Appends records to a file, and knows those already in it."""

    def __init__(self, path: Path) -> None:
        """Read a journal and open it for appending; a missing one begins empty.

        Raises:
            UsageError: The file is not a journal, or another run is writing to it.
            OutputError: The file cannot be read or written.
        """
        self._path = path
        self._done: Counter[Key] = Counter()
        try:
            self._file = self._open()
            try:
                if not self._read():
                    self._rewrite()  # as a new file, which has no lock yet
                    self._file.close()
                    self._file = self._open()
            except BaseException:
                self._file.close()
                raise
        except OSError as error:
            raise self._failure(error) from error

    def skip(self, origin: Origin) -> bool:
        """Tell whether an input is done, once for each of its records; live frames never are."""
        if origin.clip is not None and origin.clip.live:
            return False  # another frame, even if it has the number of an earlier one
        key = (origin.source, origin.frame)
        if self._done[key] == 0:
            del self._done[key]
            return False
        self._done[key] -= 1
        return True

    def write(self, record: Record) -> None:
        """Append a line.

        Raises:
            OutputError: The line could not be written.
        """
        line = (encode(record) + "\n").encode("utf-8", "backslashreplace")
        try:
            written = self._file.write(line)
        except OSError as error:
            raise self._failure(error) from error
        if written < len(line):
            raise self._failure(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))

    def close(self) -> None:
        """Close the file; every line is in it already."""
        self._file.close()

    def _open(self) -> FileIO:
        """Open the file, and lock it against other runs."""
        file = self._path.open("ab", buffering=0)  # closing has nothing left to write
        if os.name == "posix":
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # ends with the process
            except BlockingIOError as error:
                file.close()
                raise UsageError(
                    f"--resume {self._path}: another run is writing to it", "wait until it ends"
                ) from error
        return file

    def _read(self) -> bool:
        """Read what was done; return whether every line is a record with detections."""
        broken = 0
        with self._path.open("rb") as file:
            for line in file:
                record = _parse(line)
                if record is None:
                    raise UsageError(
                        f"--resume {self._path}: not a file of detcli records",
                        "name a file that detcli wrote as JSON Lines",
                    )
                if "detections" in record:
                    self._done[record["source"], record.get("frame")] += 1
                else:
                    broken += 1
        return broken == 0

    def _rewrite(self) -> None:
        """Write the file again without torn lines and failures."""
        target = AtomicFile(self._path, binary=True)
        try:
            with self._path.open("rb") as file:
                for line in file:
                    if "detections" in (_parse(line) or {}):
                        target.write(line)
        except BaseException:
            target.discard()
            raise
        target.commit()

    def _failure(self, error: OSError) -> OutputError:
        return OutputError(
            f"cannot write {self._path}: {system_reason(error)}",
            "check the folder, its permissions and the free disk space; nothing is lost: "
            "the same command continues where this run stopped",
        )


def _parse(line: bytes) -> dict[str, Any] | None:
    """A record; empty for a torn line; None for anything else."""
    if not line.endswith(b"\n"):
        return {} if line.startswith(START) or START.startswith(line) else None
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("source"), str) else None
