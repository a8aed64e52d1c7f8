"""Sinks: where records go, one file per format.

records     text.py, parquet.py; journal.py with --resume
pictures    image.py, window.py; draw.py: how
videos      video.py, h264.py
labels      labels.py: of other programs, and datasets
page/       what --report writes
folder.py   folders of files with unique names
"""

from typing import Protocol

from detcli.files import AppendedFile, AtomicFile, DirectFile, StandardOutput
from detcli.record import Record, RecordJson

Output = AppendedFile | AtomicFile | DirectFile | StandardOutput
"""Target of a text format."""


class Stopped(Exception):  # noqa: N818 - not an error
    """The user has seen enough: the run ends without an error."""


class Encodable(Protocol):
    """A record, or what was stored of one."""

    def to_json(self) -> RecordJson:
        """The record as JSON."""


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

    def write(self, record: Encodable) -> None:
        """Write one record, see `Sink.write`."""


class TextSink:
    """Base of sinks that write text."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def close(self) -> None:
        self._output.commit()
