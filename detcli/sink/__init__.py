"""Sinks: where records go, one file per format."""

from typing import IO, Any, Protocol

from detcli.record import Record


class Stopped(Exception):  # noqa: N818 - not an error
    """The user has seen enough: the run ends without an error."""


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


class Output(Protocol):
    """Target of a text format: standard output, or a file that appears when committed."""

    file: IO[Any]

    def write(self, text: str, /) -> None:
        """Write and flush."""

    def commit(self) -> None:
        """Make the file visible."""
