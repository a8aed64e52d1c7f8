"""Reads one large JSON object piece by piece, so that memory does not grow with its size."""

import io
import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from detcli.core.lines import MAX_LINE_BYTES

CHUNK_CHARACTERS = 1 << 16

NUMBER_TAIL = 2
"""The maximum number of characters of a truncated number that the decoder leaves: e- of 1e-5."""

SPACES = re.compile(r"[ \t\r\n]*")


class JsonStream:
    """An object of JSON in a file, whose members are read one after the other.

    Every method raises ValueError if the text is not JSON, or not what the method reads, and
    RecursionError if it is nested too deeply.
    """

    def __init__(self, file: BinaryIO) -> None:
        """Begin to read.

        Args:
            file: The file in UTF-8, at its beginning.
        """
        self._file = io.TextIOWrapper(file, encoding="utf-8")
        self._decoder = json.JSONDecoder()
        self._buffer = ""
        self._position = 0  # in the buffer, of what has not been read yet
        self._is_at_end = False  # whether the buffer holds the rest of the file

    def names(self) -> Iterator[str]:
        """Yield the name of each member of the object.

        After each name the caller reads the member, by `value` or `elements`.
        """
        self._expect("{")
        if self._skip("}"):
            return
        while True:
            name = self.value()
            if not isinstance(name, str):
                raise ValueError("the name of a member is not a text")  # noqa: TRY004 - not JSON
            self._expect(":")
            yield name
            if self._skip("}"):
                return
            self._expect(",")

    def elements(self) -> Iterator[Any]:
        """Yield the elements of an array, each read whole."""
        self._expect("[")
        if self._skip("]"):
            return
        while True:
            yield self.value()
            if self._skip("]"):
                return
            self._expect(",")

    def value(self) -> Any:  # noqa: ANN401 - JSON
        """Read a value whole.

        The decoder cannot tell a value that is cut off at the end of the buffer from one that is
        wrong. So more is read, twice as much each time, until the value is whole or the file ends.
        """
        self._next_character()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._buffer, self._position)
            except ValueError:
                if self._is_at_end:
                    raise
            else:
                # A number near the end of the buffer may go on: 12 of 123, or 1 of 1e-5.
                is_whole = end + NUMBER_TAIL < len(self._buffer) or self._is_at_end
                if is_whole:
                    self._position = end
                    return value
            self._read_more()

    def _next_character(self) -> str:
        """Return the next character except spaces, without moving past it; empty at the end."""
        while True:
            match = SPACES.match(self._buffer, self._position)
            if match is not None:
                self._position = match.end()
            if self._position < len(self._buffer):
                return self._buffer[self._position]
            if self._is_at_end:
                return ""
            self._read_more()

    def _skip(self, character: str) -> bool:
        """Move past a character if it is the next; returns whether it is."""
        if self._next_character() != character:
            return False
        self._position += 1
        return True

    def _expect(self, character: str) -> None:
        """Move past a character; raises ValueError if another is next."""
        if not self._skip(character):
            next_text = self._next_character() or "the end of the file"
            raise ValueError(f"{next_text} where {character} is expected")

    def _read_more(self) -> None:
        """Read more text into the buffer, as much as it holds, and drop what was read before."""
        rest = self._buffer[self._position :]
        if len(rest) > MAX_LINE_BYTES:
            raise ValueError(f"a value is longer than {MAX_LINE_BYTES >> 20} MiB, or is not JSON")
        text = self._file.read(max(CHUNK_CHARACTERS, len(rest)))
        self._is_at_end = text == ""
        self._buffer = rest + text
        self._position = 0
