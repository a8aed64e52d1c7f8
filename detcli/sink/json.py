"""JSON Lines, one record per line; and JSON, an array of the same records."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from detcli.sink import Encodable, Output, TextSink


class JsonLinesSink(TextSink):
    """One JSON object per line, flushed so that a pipe gets each record at once."""

    def write(self, record: Encodable) -> None:
        """Write a line."""
        self._output.write(encode(record.to_json()) + "\n")


class JsonArray(TextSink):
    """A JSON array with one element per line, written as the elements come."""

    def __init__(self, output: Output) -> None:
        super().__init__(output)
        self._before = "[\n"

    def extend(self, elements: Iterable[str]) -> None:
        """Write elements that are JSON already, all at once."""
        if text := ",\n".join(elements):
            self._output.write(self._before + text)
            self._before = ",\n"

    def close(self) -> None:
        try:
            self._output.write("[]\n" if self._before == "[\n" else "\n]\n")
        finally:
            super().close()


class JsonSink(JsonArray):
    """One JSON array with one record per line."""

    def write(self, record: Encodable) -> None:
        """Write an element."""
        self.extend([encode(record.to_json())])


def encode(fields: Mapping[str, Any]) -> str:
    """A record as one line of JSON."""
    return json.dumps(fields, ensure_ascii=False, allow_nan=False)
