"""JSON Lines, a record a line; and JSON, an array of the same records."""

import json

from detcli.record import Record
from detcli.sink import Output


class JsonLinesSink:
    """One JSON object a line, flushed, so that a pipe sees each picture at once."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def write(self, record: Record) -> None:
        """Write a line."""
        self._output.write(encode(record) + "\n")

    def close(self) -> None:
        """Make the file visible."""
        self._output.commit()


class JsonSink:
    """One JSON array, a record a line."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._before = "[\n"

    def write(self, record: Record) -> None:
        """Write an element."""
        self._output.write(self._before + encode(record))
        self._before = ",\n"

    def close(self) -> None:
        """Close the array."""
        try:
            self._output.write("[]\n" if self._before == "[\n" else "\n]\n")
        finally:
            self._output.commit()


def encode(record: Record) -> str:
    """A record as one line of JSON."""
    return json.dumps(record.to_json(), ensure_ascii=False, allow_nan=False)
