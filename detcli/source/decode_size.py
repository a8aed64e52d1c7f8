"""What is looked at in a picture file before a decoder sees it.

OpenCV refuses pictures that are too large before it allocates memory for their pixels. What is here
is what it does not check.
"""

import re
import struct

from detcli.errors import DecodeError

Size = tuple[int, int]
"""Height and width in pixels."""

JPEG, PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
_SIGNATURES = (
    *(JPEG, PNG, b"GIF8", b"BM", b"RIFF", b"\x59\xa6\x6a\x95", b"#?R"),
    *(b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"),  # TIFF
    *(b"\0\0\0\x0cjP  \r\n\x87\n", b"\xff\x4f\xff\x51"),  # JPEG 2000
    *(b"P1", b"P2", b"P3", b"P4", b"P5", b"P6", b"P7", b"PF", b"Pf"),
)

_MAX_TILES = 4096
"""Of a small JPEG 2000 picture; each takes some 10 KiB."""

_TILE_AREA = 4096
"""Pixels of the tiles of a large one, on average at least."""


def is_known(data: bytes) -> bool:
    """Whether data begin as a format that is decoded."""
    return data.startswith(_SIGNATURES) or data[4:8] == b"ftyp"


def check_complete(data: bytes) -> None:
    """Require that the chunks of a PNG are there; other formats are left to their decoders.

    Raises:
        DecodeError: A PNG file ends within a chunk, for which OpenCV would allocate up to 4 GiB.
    """
    if not data.startswith(PNG):
        return
    position = len(PNG)
    while position + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        position += 12 + length
        if position > len(data):
            missing = position - len(data)
            raise DecodeError(
                f"a damaged PNG: at least {missing} bytes are missing", "fetch it again"
            )
        if kind == b"IEND":
            break


def check_tiles(data: bytes) -> None:
    """Require that a JPEG 2000 file has no more tiles than any writer makes.

    Raises:
        DecodeError: It has thousands of tiles of a few pixels, for which OpenCV would allocate GiB.
    """
    if not data.startswith((b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51")):
        return
    for found in re.finditer(rb"\xff\x4f\xff\x51.{4}(.{16})(.{16})", data, re.DOTALL):
        right, bottom, left, top = struct.unpack(">IIII", found[1])
        wide, high, x, y = struct.unpack(">IIII", found[2])
        tiles = -(-(right - x) // max(wide, 1)) * -(-(bottom - y) // max(high, 1))
        if tiles > max(_MAX_TILES, (bottom - top) * (right - left) // _TILE_AREA):
            raise DecodeError(
                f"a JPEG 2000 file with {tiles} tiles, more than any writer makes",
                "open it in an image viewer and save it again",
            )
