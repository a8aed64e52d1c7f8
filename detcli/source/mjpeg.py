"""MJPEG: pictures out of a stream of JPEG files, one behind the other.

A JPEG file is a row of segments that tell their length, and compressed data that hold no marker but
a few known ones. Walking them finds where the file ends; looking for the end marker alone would
find that of the small preview that cameras put into a segment.
"""

import re
import struct
from collections.abc import Iterator

from detcli.errors import DecodeError

START = b"\xff\xd8\xff"

# Markers by their second byte.
_RESTARTS = frozenset({0x01, *range(0xD0, 0xD8)})  # and TEM; they have no length
_START, _END, _SCAN, _APP2 = 0xD8, 0xD9, 0xDA, 0xE2
_LEAST = 0xC0
_IN_SCAN = re.compile(rb"\xff[\xc4\xcc\xd8-\xfe]")
"""What may end compressed data; whatever else looks like a marker is damage for the decoder."""


class _BrokenError(Exception):
    """This is no complete JPEG file; the next one may begin from `resume` on."""

    def __init__(self, reason: str, resume: int) -> None:
        super().__init__(reason)
        self.resume = resume


class JpegSplitter:
    """Takes bytes as they come, gives each picture as soon as its last byte is there.

    What is not a complete picture gives one error, and the search goes on at the next start of
    one. No more than one picture is held.
    """

    def __init__(self, most_bytes: int) -> None:
        """Begin a stream.

        Args:
            most_bytes: A picture with more is refused.
        """
        self._most_bytes = most_bytes
        self._data = bytearray()
        self._offset = 0  # of the data in the stream
        self._inside = False  # the data begin with a picture
        self._junk = 0  # bytes since the last picture
        self._forget_junk = False  # they belong to what was reported already
        self._parts = 0  # given so far
        self._attached: set[tuple[int, int]] = set()  # where in the stream, see _read_index
        self._at = self._segment = 0  # next byte to look at; start of the segment before it
        self._compressed = False  # it is amid compressed data
        self._has_pixels = False  # there were compressed data

    def feed(self, data: bytes) -> Iterator[bytes | DecodeError]:
        """Take more bytes, yield the pictures that they complete, and what is wrong with others."""
        self._data += data
        yield from self._split(ended=False)

    def finish(self) -> Iterator[bytes | DecodeError]:
        """Yield what can be made of what is left when the stream ends."""
        yield from self._split(ended=True)
        self._skip(len(self._data))
        if self._junk and self._parts > 1:  # behind a single picture it is part of the file
            yield self._report_junk()

    def _split(self, *, ended: bool) -> Iterator[bytes | DecodeError]:
        while self._inside or self._find_start():
            if self._junk:
                yield self._report_junk()
            try:
                end = self._find_end(ended=ended)
            except _BrokenError as broken:
                if self._give_up(broken):
                    yield self._complain(f"an incomplete picture in the stream: {broken}")
                continue
            if end is None:
                return
            picture, attached = self._take(end)
            if not attached:
                self._parts += 1
                yield picture

    def _take(self, end: int) -> tuple[bytes, bool]:
        """Take a picture out of the data; whether it belongs to the one before."""
        span = (self._offset, self._offset + end)
        picture = bytes(memoryview(self._data)[:end])
        self._drop(end)
        self._inside = self._forget_junk = False
        attached = span in self._attached
        self._attached = {one for one in self._attached if one[0] >= span[1]}
        return picture, attached

    def _give_up(self, broken: _BrokenError) -> bool:
        """Go on behind the start of a picture; whether that is worth telling."""
        # Amid damage much looks like a start; what had no pixels is part of it.
        is_news = self._has_pixels or not self._forget_junk
        self._drop(broken.resume)
        self._inside, self._forget_junk = False, True
        return is_news

    def _find_start(self) -> bool:
        """Drop what is before the next picture; whether there is one."""
        start = self._data.find(START)
        found = start >= 0
        self._skip(start if found else max(len(self._data) - len(START) + 1, 0))
        if found:
            if any(self._offset == first for first, _ in self._attached):
                self._junk = 0  # filling before an attached picture
            self._inside, self._compressed, self._has_pixels = True, False, False
            self._at, self._segment = 2, 0
        return found

    def _find_end(self, *, ended: bool) -> int | None:
        """Number of bytes of the picture that the data begin with; None if more are needed.

        Raises:
            _BrokenError: It has no end.
        """
        end = self._walk()
        if (len(self._data) if end is None else end) > self._most_bytes:
            raise _BrokenError(f"more than {self._most_bytes} bytes", self._at)
        if end is None and ended:
            raise _BrokenError("the stream ends in it", self._segment + 2)
        return end

    def _walk(self) -> int | None:
        data = self._data
        while True:
            if self._compressed:
                marker = _IN_SCAN.search(data, self._at)
                self._at = marker.start() if marker else max(self._at, len(data) - 1)
                self._compressed = marker is None
            if self._compressed or self._at + 2 > len(data):
                return None
            code = data[self._at + 1]
            if data[self._at] != 0xFF:
                raise _BrokenError("its parts do not follow each other", self._segment + 2)
            if code == _END and self._has_pixels:
                return self._at + 2
            if code == 0xFF:  # filling
                self._at += 1
            elif code in _RESTARTS:
                self._at += 2
            elif not self._pass_segment(code):
                return None

    def _pass_segment(self, code: int) -> bool:
        """Go behind the segment; whether it is complete."""
        data, at = self._data, self._at
        if code == _START:
            raise _BrokenError("the next one begins before its end", at)
        if code < _LEAST or code == _END:
            raise _BrokenError("its parts do not follow each other", self._segment + 2)
        if at + 4 > len(data):
            return False
        length = int.from_bytes(data[at + 2 : at + 4], "big")
        if length < 2:
            raise _BrokenError("a part of it has no length", self._segment + 2)
        if at + 2 + length > len(data):
            return False
        if code == _APP2:
            content = bytes(data[at + 4 : at + 2 + length])
            self._attached |= _read_index(content, self._offset + at + 4)
        self._segment, self._at = at, at + 2 + length
        self._compressed = code == _SCAN
        self._has_pixels |= self._compressed
        return True

    def _skip(self, count: int) -> None:
        self._junk += 0 if self._forget_junk else count
        self._drop(count)

    def _drop(self, count: int) -> None:
        del self._data[:count]
        self._offset += count

    def _report_junk(self) -> DecodeError:
        count, self._junk = self._junk, 0
        return self._complain(f"{count} bytes in the stream belong to no picture")

    def _complain(self, text: str) -> DecodeError:
        self._parts += 1
        return DecodeError(text, "look at what writes the stream")


def _read_index(segment: bytes, offset: int) -> set[tuple[int, int]]:
    """Begin and end, in the stream, of the pictures that a camera has put behind the main one.

    That is where phones keep a brightness map or a preview: they belong to the picture. CIPA's
    Multi-Picture Format lists them in an APP2 segment, relative to itself.
    """
    order = {b"MPF\0II*\0": "<", b"MPF\0MM\0*": ">"}.get(segment[:8])
    if order is None:
        return set()
    index, base = segment[4:], offset + 4
    try:
        (fields,) = struct.unpack_from(f"{order}I", index, 4)
        (count,) = struct.unpack_from(f"{order}H", index, fields)
        for field in range(count):
            tag, size, where = struct.unpack_from(f"{order}H2xII", index, fields + 2 + 12 * field)
            if tag == 0xB002:
                entries = [
                    struct.unpack_from(f"{order}4xII", index, where + 16 * entry)
                    for entry in range(size // 16)
                ]
                return {(base + first, base + first + length) for length, first in entries if first}
    except struct.error:
        pass  # damaged; then what follows is a picture like others
    return set()
