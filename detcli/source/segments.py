"""The segments of a JPEG."""

import re
import struct
from collections.abc import Iterator

JPEG = b"\xff\xd8\xff"

_MARKER = re.compile(rb"\xff([^\x00\xff])")
_WITHOUT_LENGTH = frozenset({0x01}) | frozenset(range(0xD0, 0xD9))  # TEM, RST0-7 and SOI
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # SOF0-15 without DHT, JPG and DAC
SCAN, END, APP1 = 0xDA, 0xD9, 0xE1
SCAN_MARKER, END_MARKER = b"\xff\xda", b"\xff\xd9"


def segments(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the code of the marker and the content of each segment of a JPEG, up to its end.

    A marker is the byte 0xFF and a code. Most are followed by a length in 2 bytes, which includes
    these, and the content. Compressed data between segments are skipped. The marker of the end is
    yielded last, unless it is missing.

    Raises:
        struct.error: The file is cut in the length of a segment.
    """
    position = 2
    while True:
        match = _MARKER.search(data, position)
        if match is None:
            return
        marker = match[1][0]
        position = match.end()
        if marker in _WITHOUT_LENGTH or marker == END:
            yield marker, b""
        else:
            (length,) = struct.unpack_from(">H", data, position)
            yield marker, data[position + 2 : position + length]
            position += max(length, 2)
        if marker == END:
            return


def has_end(data: bytes) -> bool:
    """Whether a JPEG reaches as far as its end."""
    try:
        for marker, _ in segments(data):
            if marker == END:
                return True
    except struct.error:
        pass
    return False
