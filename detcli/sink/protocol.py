"""What every sink has to offer (`Sink`), and the output that most of them write to."""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Protocol

from detcli.core import frozen
from detcli.core.errors import OutputError
from detcli.data.record import Record, RecordJson
from detcli.storage.files import AppendedFile, AtomicFile, DirectFile, StandardOutput

Output = AppendedFile | AtomicFile | DirectFile | StandardOutput  # what a text format is written to


class Stopped(Exception):  # noqa: N818 - not an error
    """Raised when the user closes the window of --show: the run ends without an error."""


class Encodable(Protocol):
    """A record, or an object that has only the JSON of one, read from a file."""

    def to_json(self) -> RecordJson: ...


@frozen
class Stored:
    """A record that was read back, as sinks of records take it."""

    fields: RecordJson

    def to_json(self) -> RecordJson:
        return self.fields


class Sink(Protocol):
    """An output of a run: it gets the records in order, and is then closed."""

    def write(self, record: Record) -> None:
        """Write the part of a record that this output is for.

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


@frozen
class RunDescription:
    """What identifies a run, for formats that say what made their records."""

    settings: Mapping[str, Any] = field(default_factory=dict)  # as in records, may be empty
    class_names: Sequence[str] = ()  # all that the model has, by class id; empty if unknown
    base: str | None = None  # the folder that names of files are relative to; None if there is none


class TextSink:
    """Base of sinks that write text."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def close(self) -> None:
        self._output.commit()


class Stream(io.RawIOBase):
    """A file object that libraries such as PyAV and pyarrow can write to.

    It remembers the first failure in `failure`, as not every library reports it.
    """

    def __init__(
        self, write: Callable[[bytes], object], seek: Callable[[int, int], int] | None = None
    ) -> None:
        """Make a file object from functions.

        Args:
            write: Writes bytes at the current position.
            seek: Moves the position, like `io.IOBase.seek`; None if the output can only grow.
        """
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
        """Write a buffer; returns its length in bytes."""
        try:
            self._write(bytes(data))
        except (OSError, OutputError) as error:
            if self.failure is None:
                self.failure = error
            raise
        self._position += len(data)
        return len(data)
