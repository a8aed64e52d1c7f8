"""Sinks: where records go, one file a format."""

from typing import IO, Any, Protocol

from detcli.record import Record


class Stopped(Exception):  # noqa: N818 - no error
    """The user has seen enough: the run ends, and nothing is wrong."""


class Sink(Protocol):
    """Takes records in order."""

    def write(self, record: Record) -> None:
        """Write one record.

        Raises:
            OutputError: It could not be written.
            Stopped: It was, and the user wants no more.
        """

    def close(self) -> None:
        """Finish, so that what was written is complete and readable.

        Raises:
            OutputError: It could not be.
        """


class Output(Protocol):
    """Where a text format is written: standard output, or a file that appears when committed."""

    file: IO[Any]

    def write(self, text: str, /) -> None:
        """Write and flush."""

    def commit(self) -> None:
        """Make what was written visible."""
