"""Which forms of which formats are read, and by what.

OpenCV reads most. A form that it gets wrong is read by one of our readers, or refused:

| format     | OpenCV                         | here                      | refused            |
| ---------- | ------------------------------ | ------------------------- | ------------------ |
| PBM        | text and binary                |                           |                    |
| PGM, PPM   | text: up to 255, 65535;        | other maximums            | above 65535        |
|            | binary: 255 and 65535          |                           |                    |
| PAM        |                                | grey, black and white,    | other types, and   |
|            |                                | RGB, with alpha or not    | colours of no type |
| BMP        | palettes, 24 bits, and 32 bits | 16 bits; bit fields of    | 2 bits, JPEG       |
|            | without bit fields             | 16 and 32 bits            |                    |
| Sun raster | 8, 24 and 32 bits              |                           | 1 bit              |
| TIFF       | `FORMS` in tiff_forms.py       | the same table            | what is in no row  |

OpenCV correctly reads or refuses every form of the other formats (JPEG, PNG, WebP, GIF, AVIF, JPEG
2000, HDR, PFM). A test makes each form with one library and compares it with another.
"""

import struct
from collections.abc import Callable

from detcli.core.errors import DecodeError
from detcli.data.geometry import Pixels
from detcli.source.bmp import read_bmp
from detcli.source.limits import RESAVE
from detcli.source.pnm import read_pnm
from detcli.source.tiff import read_tiff

Reader = Callable[[bytes, int], Pixels | None]
"""Takes a file and the maximum number of pixels; returns None if OpenCV reads its form rightly."""


def _refuse_black_and_white(data: bytes, max_pixels: int) -> None:  # noqa: ARG001 - as the others
    """Refuse a Sun raster of one bit per pixel, which OpenCV reads as a negative.

    Like the other readers in `READERS`, it returns None for what OpenCV reads correctly.
    """
    header = data[:16].ljust(16, b"\0")  # OpenCV refuses a file that is shorter
    _, _, _, bits_per_pixel = struct.unpack(">4I", header)  # magic number, width, height, bits
    if bits_per_pixel == 1:
        raise DecodeError("a Sun raster of 1 bit a pixel, which is not read", RESAVE)


READERS: dict[str, Reader] = {
    "PNM": read_pnm,
    "BMP": read_bmp,
    "TIFF": read_tiff,
    "a Sun raster": _refuse_black_and_white,
}
"""Readers by the name of their format; OpenCV reads the formats that are not here."""


def read_odd_form(data: bytes, format_name: str, max_pixels: int) -> Pixels | None:
    """Decode an image file of a form that OpenCV would show with wrong pixels.

    Args:
        data: The file.
        format_name: Its format, such as "TIFF".
        max_pixels: The maximum number of pixels.

    Returns:
        The image (H, W, 3) in blue, green and red; None if OpenCV reads its form correctly.

    Raises:
        DecodeError: The form is not read, or the file is damaged or too large.
    """
    reader = READERS.get(format_name)
    if reader is None:
        return None
    return reader(data, max_pixels)
