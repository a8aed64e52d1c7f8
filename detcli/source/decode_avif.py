"""The sizes in an AVIF file: those of its boxes, and those of the AV1 pictures in it.

The boxes may say less than the AV1 data, which the decoder follows and scales afterwards.
"""

import re
import struct
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

Size = tuple[int, int]
"""Height and width in pixels."""

_SEQUENCE_HEADER = 1  # type of an OBU, a part of AV1 data
_MAX_ITEMS, _MAX_CHUNKS = 65536, 100  # the first picture of a track is all that is decoded
_MAX_HEADER = 4096  # bytes from the beginning of a picture
_MAX_PARTS = 64  # before the sequence header, which comes first or second


def sizes(data: bytes) -> Iterator[Size]:
    """Every size that the file states: of pictures, of the tiles of a grid, of tracks."""
    for width, height in re.findall(rb"ispe.{4}(.{4})(.{4})", data, re.DOTALL):
        yield int.from_bytes(height), int.from_bytes(width)
    for track in re.finditer(b"tkhd", data):
        with suppress(struct.error):
            start = track.start() - 4
            (length,) = struct.unpack_from(">I", data, start)
            # Width and height are its last fields, in 1/65536.
            width, height = struct.unpack_from(">II", data, start + length - 8)
            yield height >> 16, width >> 16
    for offset in {*islice(_items(data), _MAX_ITEMS), *islice(_chunks(data), _MAX_CHUNKS)}:
        with suppress(struct.error, IndexError):  # not AV1: metadata
            if found := _sequence_size(data[offset : offset + _MAX_HEADER]):
                yield found


def _items(data: bytes) -> Iterator[int]:
    """Where the pictures begin, as the box `iloc` says."""
    stored = data.find(b"idat") + 4  # the origin of some offsets
    for box in re.finditer(b"iloc", data):
        with suppress(struct.error):  # cut, or pixels that look like this box
            yield from _extents(_Fields(data, box.end()), stored)


def _extents(at: "_Fields", stored: int) -> Iterator[int]:
    """Where the parts of the items in one box `iloc` begin."""
    version = at.take(1)
    at.take(3)
    sides = at.take(2)
    offset_size, length_size, base_size = sides >> 12, sides >> 8 & 15, sides >> 4 & 15
    index_size = sides & 15 if version else 0
    for _ in range(at.take(4 if version == 2 else 2)):
        at.take(4 if version == 2 else 2)
        in_box = version and at.take(2) & 15 == 1
        at.take(2)
        base = at.take(base_size) + (stored if in_box else 0)
        for _ in range(at.take(2)):
            at.take(index_size)
            yield base + at.take(offset_size)
            at.take(length_size)


def _chunks(data: bytes) -> Iterator[int]:
    """Where the pictures of a track begin, as its boxes `stco` and `co64` say."""
    for name, size in ((b"stco", 4), (b"co64", 8)):
        for box in re.finditer(name, data):
            at = _Fields(data, box.end() + 4)
            with suppress(struct.error):
                for _ in range(at.take(4)):
                    yield at.take(size)


class _Fields:
    """Takes whole bytes, one field after the other."""

    def __init__(self, data: bytes, start: int) -> None:
        self._data, self._at = data, start

    def take(self, size: int) -> int:
        self._at += size
        if self._at > len(self._data):
            raise struct.error
        return int.from_bytes(self._data[self._at - size : self._at])


def _sequence_size(data: bytes) -> Size | None:
    """The size in the first sequence header of AV1 data."""
    at = 0
    for _ in range(_MAX_PARTS):
        head = data[at]
        at += 2 if head & 4 else 1
        length, shift = len(data) - at, 0
        if head & 2:
            length = 0
            for _ in range(8):
                byte = data[at]
                at += 1
                length |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    break
        if head >> 3 & 15 == _SEQUENCE_HEADER:
            return _read_sequence(_Bits(data[at : at + length]))
        at += length
    return None


class _Bits:
    """Takes bits, the highest of each byte first."""

    def __init__(self, data: bytes) -> None:
        self._value, self._left = int.from_bytes(data), 8 * len(data)

    def take(self, count: int) -> int:
        self._left -= count
        if self._left < 0:
            raise struct.error
        return self._value >> self._left & (1 << count) - 1


def _read_sequence(bits: _Bits) -> Size:
    """Follow `sequence_header_obu` of the AV1 specification up to the size."""
    bits.take(4)  # profile, still picture
    if bits.take(1):  # the reduced header of a still picture
        bits.take(5)
    else:
        delay = _read_timing(bits) if bits.take(1) else 0
        shows_delay = bits.take(1)
        for _ in range(bits.take(5) + 1):
            bits.take(12)
            if bits.take(5) > 7:
                bits.take(1)
            if delay and bits.take(1):
                bits.take(2 * delay + 1)
            if shows_delay and bits.take(1):
                bits.take(4)
    width_bits, height_bits = bits.take(4) + 1, bits.take(4) + 1
    width = bits.take(width_bits) + 1
    return bits.take(height_bits) + 1, width


def _read_timing(bits: _Bits) -> int:
    """Skip the timing, and return the length of a buffer delay."""
    bits.take(64)
    if bits.take(1):
        zeros = 0
        while not bits.take(1):
            zeros += 1
        bits.take(zeros)
    if not bits.take(1):
        return 0
    delay = bits.take(5) + 1
    bits.take(42)
    return delay
