"""A journal: JSON Lines that a later run goes on with.

Each record is appended and flushed, so that a run that is killed leaves all of its records but
perhaps the last one torn. The next run drops what is torn, and failures, which it tries again; it
skips what is there.
"""

import errno
import json
import os
from collections import Counter
from io import FileIO
from pathlib import Path
from typing import Any

from detcli.errors import OutputError, UsageError
from detcli.files import AtomicFile
from detcli.record import Origin, Record
from detcli.sink.json import encode

START = b'{"schema_version"'
"""How a record begins; a torn line does too, as far as it goes."""

Key = tuple[str, int | None]
"""What a record is known by: source, and frame for a video."""


class Journal:
    """Appends records to a file, and knows what is in it."""

    def __init__(self, path: Path) -> None:
        """Read a journal and open it for more; it begins empty if it is not there.

        Raises:
            UsageError: The file is something else, or another run is writing to it.
            OutputError: It cannot be read or written.
        """
        self._path = path
        self._done: Counter[Key] = Counter()
        try:
            self._file = self._open()
            try:
                complete = self._read()
                if not complete:
                    self._rewrite()
            except BaseException:
                self._file.close()
                raise
            if not complete:  # what was written anew is another file, with a lock of its own
                self._file.close()
                self._file = self._open()
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
            OutputError: The disk is full, say.
        """
        line = (encode(record) + "\n").encode("utf-8", "backslashreplace")
        try:
            written = self._file.write(line)
        except OSError as error:
            raise self._failure(error) from error
        if written < len(line):
            raise self._failure(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))

    def close(self) -> None:
        """Close the file; whatever was written is in it."""
        self._file.close()

    def _open(self) -> FileIO:
        """Open the file, and make sure that no other run appends to it."""
        file = self._path.open("ab", buffering=0)  # nothing is left to be written when it is closed
        if os.name == "posix":
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # ends with the process
            except BlockingIOError as error:
                file.close()
                raise UsageError(
                    f"--resume {self._path}: another run is writing to it", "wait for its end"
                ) from error
        return file

    def _read(self) -> bool:
        """Learn what was done; tell whether every line is a record with detections."""
        broken = 0
        with self._path.open("rb") as file:
            for line in file:
                record = _parse(line)
                if record is None:
                    raise UsageError(
                        f"--resume {self._path} holds something else than records of detcli",
                        "name a file that it wrote",
                    )
                if "detections" in record:
                    self._done[record["source"], record.get("frame")] += 1
                else:
                    broken += 1
        return broken == 0

    def _rewrite(self) -> None:
        """Leave out torn lines and failures."""
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
            f"cannot write {self._path}: {error.strerror or error}",
            "check the folder, its permissions and the space left on the disk; nothing is lost: "
            "the same command goes on where it stopped",
        )


def _parse(line: bytes) -> dict[str, Any] | None:
    """A record; empty for a line that is torn; None for what never was a record."""
    if not line.endswith(b"\n"):
        return {} if line.startswith(START) or START.startswith(line) else None
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("source"), str) else None
