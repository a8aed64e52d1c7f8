"""Header checks: PNG and JPEG 2000 files for which OpenCV would allocate far too much memory."""

import re
import struct
from typing import NamedTuple

from detcli.core.errors import DecodeError
from detcli.source.limits import RESAVE, check_size

PNG = b"\x89PNG"
JPEG_2000 = b"\xff\x4f\xff\x51"
"""The codestream of a JPEG 2000 image begins with this."""

_PNG_SIGNATURE_BYTES = 8
_CHUNK_HEADER = struct.Struct(">I4s")  # length of the content, and kind
_CHECKSUM_BYTES = 4  # after the content of a chunk
_PNG_START = struct.Struct(">12x4sII")
"""The kind of the first chunk of a PNG, which should be IHDR, and the width and height in it."""

_MAX_TILES = 4096  # tiles of a small JPEG 2000 image; a tile takes some 10 KiB
_TILE_AREA = 4096  # pixels of each tile in a large one

# What follows in its header: length and profile, then eight numbers with the sizes.
_SIZE_HEADER = re.compile(JPEG_2000 + rb".{4}(.{32})", re.DOTALL)


def check_png(data: bytes, max_pixels: int) -> None:
    """Refuse a PNG that is too large or ends within a chunk.

    OpenCV allocates the memory that a chunk says it needs, up to 4 GiB, before it checks whether
    the file is that long.

    Raises:
        DecodeError: It has more than `max_pixels`, or bytes are missing.
    """
    if len(data) >= _PNG_START.size:
        kind, width, height = _PNG_START.unpack_from(data)
        if kind == b"IHDR":
            check_size((height, width), max_pixels)
    missing = _count_missing_bytes(data)
    if missing > 0:
        raise DecodeError(f"a damaged PNG: at least {missing} bytes are missing", "fetch it again")


def _count_missing_bytes(png: bytes) -> int:
    """Count the bytes that are missing from the first chunk of a PNG that is cut; 0 if none is.

    After its signature, a PNG is a series of chunks up to one of the kind IEND. A chunk has a
    header, its content, and a checksum.
    """
    chunk_start = _PNG_SIGNATURE_BYTES
    while chunk_start + _CHUNK_HEADER.size <= len(png):
        content_bytes: int
        content_bytes, kind = _CHUNK_HEADER.unpack_from(png, chunk_start)
        chunk_end = chunk_start + _CHUNK_HEADER.size + content_bytes + _CHECKSUM_BYTES
        if chunk_end > len(png):
            return chunk_end - len(png)
        if kind == b"IEND":
            break
        chunk_start = chunk_end
    return 0


def check_tiles(data: bytes) -> None:
    """Refuse a JPEG 2000 file with more tiles than any writer makes.

    OpenCV allocates some 10 KiB for each tile that the header implies, which would be gigabytes
    for a small file with tiles of a few pixels.

    Raises:
        DecodeError: It has too many tiles.
    """
    for header in _SIZE_HEADER.finditer(data):
        counts = _count_tiles_and_pixels(header[1])
        if counts.tiles > max(_MAX_TILES, counts.pixels // _TILE_AREA):
            raise DecodeError(
                f"a JPEG 2000 file with {counts.tiles} tiles, more than any writer makes", RESAVE
            )


class _Counts(NamedTuple):
    """How many tiles and pixels an image has according to its header."""

    tiles: int
    pixels: int


def _count_tiles_and_pixels(sizes: bytes) -> _Counts:
    """Count the tiles and the pixels of a JPEG 2000 image.

    The image is a rectangle on a canvas, and so is the grid of its tiles, which begins at or before
    the image's left and top edge.

    Args:
        sizes: The eight numbers in the header of the image, of four bytes each.
    """
    (
        image_right,
        image_bottom,
        image_left,
        image_top,
        tile_width,
        tile_height,
        grid_left,
        grid_top,
    ) = struct.unpack(">8I", sizes)
    # -(-a // b) is a / b, rounded up; a damaged header may say 0 for the sides of a tile.
    columns = -(-(image_right - grid_left) // max(tile_width, 1))
    rows = -(-(image_bottom - grid_top) // max(tile_height, 1))
    pixel_count = (image_bottom - image_top) * (image_right - image_left)
    return _Counts(columns * rows, pixel_count)
