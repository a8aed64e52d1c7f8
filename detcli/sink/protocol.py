"""Sinks: where records go, one file per format.

records     text.py, parquet.py; journal.py with --resume
pictures    image.py, window.py; draw.py: how
videos      video.py, h264.py
labels      labels.py: of other programs, and datasets
page/       what --report writes
folder.py   folders of files with unique names; claims.py: of runs at the same time
blurred.py  folders that show what is to be hidden
"""

import io
from collections.abc import Callable
from typing import Any, Protocol

from detcli.core.errors import OutputError
from detcli.data.record import Record, RecordJson
from detcli.storage.files import AppendedFile, AtomicFile, DirectFile, StandardOutput

Output = AppendedFile | AtomicFile | DirectFile | StandardOutput  # target of a text format


class Stopped(Exception):  # noqa: N818 - not an error
    """The user has seen enough: the run ends without an error."""


class Encodable(Protocol):
    """A record, or what was stored of one."""

    def to_json(self) -> RecordJson: ...


class Sink(Protocol):
    """Takes records in order."""

    def write(self, record: Record) -> None:
        """Write one record.

        Raises:
            OutputError: The record could not be written.
            Stopped: The record was written, and the user wants no more.
        """

    def close(self) -> None:
        """Finish, so that what was written is complete and readable.

        Raises:
            OutputError: The output could not be completed.
        """


class RecordSink(Sink, Protocol):
    """A sink that needs no more of a record than its JSON."""

    def write(self, record: Encodable) -> None: ...


class TextSink:
    """Base of sinks that write text."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def close(self) -> None:
        self._output.commit()


class Stream(io.RawIOBase):
    """An output as libraries write to it; it remembers a failure, which they may not report."""

    def __init__(
        self, write: Callable[[bytes], object], seek: Callable[[int, int], int] | None = None
    ) -> None:
        self._write = write
        self._seek = seek
        self._position = 0
        self.failure: OSError | OutputError | None = None

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._seek is not None

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = 0) -> int:
        if self._seek is None:
            raise io.UnsupportedOperation
        self._position = self._seek(offset, whence)
        return self._position

    def write(self, data: Any) -> int:  # noqa: ANN401 - a buffer
        try:
            self._write(bytes(data))
        except (OSError, OutputError) as error:
            self.failure = self.failure or error
            raise
        self._position += len(data)
        return len(data)
