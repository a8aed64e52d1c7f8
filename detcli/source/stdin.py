"""Standard input, read as it comes: one picture, or a stream of concatenated JPEG files (MJPEG).

A JPEG file consists of segments with a length, and of compressed data that contain only a few known
markers. Walking them finds the end of the file; a search for the end marker would find that of the
preview that cameras put into a segment.
"""

import itertools
import re
import struct
from collections.abc import Iterable, Iterator
from functools import partial

from detcli.core.errors import DecodeError, InputError, SourceError, system_reason
from detcli.core.record import Origin
from detcli.source.decode import JPEG, DecodeOptions, load_bytes
from detcli.source.fetch import gather, stdin_chunks
from detcli.source.loading import STDIN, Item, SourceProgress, failed

# Markers by their second byte.
_RESTARTS = frozenset({0x01, *range(0xD0, 0xD8)})  # with TEM; they have no length
_START, _END, _SCAN, _APP2 = 0xD8, 0xD9, 0xDA, 0xE2
_MIN_CODE = 0xC0
# Markers that may end compressed data; others are damage, which is left to the decoder.
_IN_SCAN = re.compile(rb"\xff[\xc4\xcc\xd8-\xfe]")


class _BrokenError(Exception):
    """The JPEG file is incomplete; the next one may begin from `resume` on."""

    def __init__(self, reason: str, resume: int) -> None:
        super().__init__(reason)
        self.resume = resume


class JpegSplitter:
    """Takes bytes as they come, and yields each picture as soon as its last byte is there.

    An incomplete picture gives one error, as does one of more than `max_bytes`, and the search
    continues at the next start marker. At most one picture is held in memory.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._data = bytearray()
        self._offset = 0  # of the data in the stream
        self._inside = False  # whether the data begin with a picture
        self._junk = 0  # bytes since the last picture
        self._forget_junk = False  # they follow a picture that was reported
        self._parts = 0  # pictures and errors so far
        self._attached: set[tuple[int, int]] = set()  # spans in the stream, see _read_index
        self._at = self._segment = 0  # next byte to read; start of the segment before it
        self._compressed = False  # whether that byte is compressed data
        self._has_pixels = False  # whether there were compressed data

    def feed(self, data: bytes) -> Iterator[bytes | DecodeError]:
        """Take more bytes; yield the pictures that they complete, and errors for broken ones."""
        self._data += data
        yield from self._split(ended=False)

    def finish(self) -> Iterator[bytes | DecodeError]:
        """Yield the rest when the stream ends."""
        yield from self._split(ended=True)
        self._skip(len(self._data))
        if self._junk and self._parts > 1:  # after a single picture, it belongs to that file
            yield self._report_junk()

    def _split(self, *, ended: bool) -> Iterator[bytes | DecodeError]:
        while self._inside or self._find_start():
            if self._junk:
                yield self._report_junk()
            try:
                end = self._find_end(ended=ended)
            except _BrokenError as broken:
                # Damage often looks like a start marker, but no compressed data follow.
                is_news = self._has_pixels or not self._forget_junk
                self._drop(broken.resume)
                self._inside, self._forget_junk = False, True
                if is_news:
                    yield self._error(f"an incomplete picture in the stream: {broken}")
                continue
            if end is None:
                return
            start, picture = self._offset, bytes(memoryview(self._data)[:end])
            self._drop(end)
            self._inside = self._forget_junk = False
            if (start, self._offset) not in self._attached:
                self._parts += 1
                yield picture
            self._attached = {span for span in self._attached if span[0] >= self._offset}

    def _find_start(self) -> bool:
        """Drop the bytes before the next picture; False if there is none."""
        start = self._data.find(JPEG)
        found = start >= 0
        self._skip(start if found else max(len(self._data) - len(JPEG) + 1, 0))
        if found:
            if any(self._offset == first for first, _ in self._attached):
                self._junk = 0  # padding before an attached picture
            self._inside, self._compressed, self._has_pixels = True, False, False
            self._at, self._segment = 2, 0
        return found

    def _find_end(self, *, ended: bool) -> int | None:
        """Length of the picture at the start of the data; None if more bytes are needed."""
        end = self._walk()
        if (len(self._data) if end is None else end) > self._max_bytes:
            raise _BrokenError(f"more than {self._max_bytes} bytes", self._at)
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
                raise _BrokenError("its segments do not follow one another", self._segment + 2)
            if code == _END and self._has_pixels:
                return self._at + 2
            if code == 0xFF:  # padding
                self._at += 1
            elif code in _RESTARTS:
                self._at += 2
            elif not self._pass_segment(code):
                return None

    def _pass_segment(self, code: int) -> bool:
        """Skip the segment; False if it is incomplete."""
        data, at = self._data, self._at
        if code == _START:
            raise _BrokenError("the next one begins before its end", at)
        if code < _MIN_CODE or code == _END:
            raise _BrokenError("its segments do not follow one another", self._segment + 2)
        if at + 4 > len(data):
            return False
        length = int.from_bytes(data[at + 2 : at + 4], "big")
        if length < 2:
            raise _BrokenError("a segment has no length", self._segment + 2)
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
        return self._error(f"{count} bytes in the stream belong to no picture")

    def _error(self, text: str) -> DecodeError:
        self._parts += 1
        return DecodeError(text, "check the program that writes the stream")


def _read_index(segment: bytes, offset: int) -> set[tuple[int, int]]:
    """Start and end in the stream of the pictures that a camera appended to the main one.

    Phones append a brightness map or a preview, which are not inputs. CIPA's Multi-Picture Format
    lists them in an APP2 segment, with offsets relative to it.
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
        pass  # damaged: an appended picture then counts as an input
    return set()


# How pictures begin that programs send one after the other, besides JPEG: PNG, BMP and PNM.
OTHERS = (b"\x89PNG", b"BM", b"P")
HEAD = 12  # bytes at their beginning that no single one of them repeats


def read_stdin(options: DecodeOptions, progress: SourceProgress, stride: int = 1) -> Iterator[Item]:
    """Yield the picture on standard input, or the pictures of a stream as each is complete.

    The pictures of a stream are numbered, and every stride-th is used. The first one waits until
    the next one follows or a second has passed, because only then is it clear whether this is a
    stream, whose total is unknown.
    """
    try:
        chunks = stdin_chunks(progress.stop)
        head = b""
        for chunk in chunks:
            head += chunk
            if len(head) >= len(JPEG):
                break
        chunks = itertools.chain([head], chunks)
        if head.startswith(JPEG):
            yield from _split(chunks, options, progress, stride)
        else:
            data = gather(chunks, options.max_bytes)
            if data.startswith(OTHERS) and data.find(data[:HEAD], HEAD) > 0:  # decoders take one
                raise DecodeError(
                    "several pictures, but only JPEGs can be sent as a stream",
                    "send JPEGs, with ffmpeg -c:v mjpeg, or name files",
                )
            yield Item(Origin(STDIN), partial(load_bytes, data, options))
    except OSError as error:
        hint = "check the program that writes to standard input"
        yield failed(STDIN, SourceError(f"cannot be read: {system_reason(error)}", hint))
    except InputError as error:
        yield failed(STDIN, error)


def _split(
    chunks: Iterable[bytes], options: DecodeOptions, progress: SourceProgress, stride: int
) -> Iterator[Item]:
    splitter = JpegSplitter(options.max_bytes)
    begin = bytearray()  # everything, until it is clear whether this is a stream
    parts: list[bytes | DecodeError] = []
    numbers = itertools.count()
    is_stream = False

    def chosen(parts: Iterable[bytes | DecodeError]) -> Iterator[Item]:
        for part, number in zip(parts, numbers, strict=False):
            if isinstance(part, DecodeError) or number % stride == 0:
                yield _item(part, options, number)

    for chunk in chunks:
        parts += splitter.feed(chunk)
        if not is_stream:
            begin += chunk
            long = not chunk or len(begin) > options.max_bytes
            is_stream = len(parts) > 1 or (bool(parts) and long)
        if is_stream:
            progress.expect(None)
            yield from chosen(parts)
            parts.clear()
    parts += splitter.finish()
    if is_stream or (len(parts) > 1 and any(isinstance(part, bytes) for part in parts)):
        progress.expect(None)
        yield from chosen(parts)
    else:  # a single file, whether complete or not, is left to the decoder
        yield _item(bytes(begin), options)


def _item(part: bytes | DecodeError, options: DecodeOptions, frame: int | None = None) -> Item:
    if isinstance(part, DecodeError):
        return failed(STDIN, part, frame)
    return Item(Origin(STDIN, frame=frame), partial(load_bytes, part, options))
