"""Decoding: from the bytes of a picture file to a picture, upright and in colour.

JPEGs are decoded in `decode_jpeg.py`, everything else by OpenCV. The sizes that headers declare are
read first, so that no file can take more memory than is allowed.
"""

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from detcli.errors import DecodeError, SourceError, system_reason
from detcli.geometry import Picture
from detcli.opencv import cv2
from detcli.source import decode_jpeg

BUILT_IN = Path(__file__).parents[1] / "pictures" / "street.jpg"
"""The picture that is part of detcli."""

Size = tuple[int, int]
"""Height and width in pixels."""


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """How pictures are decoded.

    Attributes:
        max_pixels: Pictures that declare more are refused before they are decoded.
        fast_for: Height and width of a network's input. A JPEG that is at least twice as large is
            then decoded at a half, a quarter or an eighth of its size, which is faster.
    """

    max_pixels: int = 200_000_000
    fast_for: Size | None = None

    @property
    def max_bytes(self) -> int:
        """More than any format needs for a picture of the maximum size and its metadata."""
        return 8 * self.max_pixels + 2**24


DEFAULTS = DecodeOptions()


def load_file(path: Path, options: DecodeOptions = DEFAULTS) -> Picture:
    """Read a file and decode it, see `load_bytes`.

    Raises:
        SourceError: The file cannot be read.
        DecodeError: The picture is incomplete or too large, or not in a known format.
    """
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        raise SourceError(
            f"cannot be read: {system_reason(error)}", "check its permissions"
        ) from error
    return load_bytes(data, options)


def load_bytes(data: bytes, options: DecodeOptions = DEFAULTS) -> Picture:
    """Decode the bytes of a picture file.

    The EXIF orientation is applied, grey becomes colour, transparency is dropped, and 16 bits
    become 8. The pixels are those of `cv2.imdecode`.

    Raises:
        DecodeError: The picture is incomplete or too large, or not in a known format.
    """
    if not data:
        raise DecodeError("empty", "fetch or copy the file again")
    header = decode_jpeg.read_header(data) if data.startswith(decode_jpeg.START) else None
    check_size(header.size if header else declared_size(data) or (0, 0), options.max_pixels)
    picture = decode_jpeg.decode(data, header, options.fast_for) if header else None
    return picture or _decode_by_opencv(data)


def check_size(size: Size, max_pixels: int) -> None:
    """Require that a picture or frame is small enough.

    Raises:
        DecodeError: It has more than `max_pixels` pixels.
    """
    height, width = size
    if height * width > max_pixels:
        raise DecodeError(
            f"too large: {width}x{height} is {height * width} pixels, "
            f"more than the {max_pixels} allowed",
            "raise --max-pixels if it is meant to be that large",
        )


def _decode_by_opencv(data: bytes) -> Picture:
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    except cv2.error as error:
        raise DecodeError(
            f"cannot be decoded: {' '.join(str(error.err).split())}",
            "open it in an image viewer and save it again",
        ) from error
    if image is None:
        raise DecodeError(
            f"not a picture, or a damaged one ({len(data)} bytes, {_signature(data)})",
            "JPEG, PNG, WebP, BMP, TIFF, AVIF, GIF and more can be read; fetch damaged files again",
        )
    if image.ndim == 2:  # grey PFM ignores the flag
        image = cv2.cvtColor(image, cv2.COLOR_GRAY2BGR)
    return Picture.whole(np.asarray(image, np.uint8))


def _signature(data: bytes) -> str:
    signatures = {
        b"\xff\xd8\xff": "starts as JPEG",
        b"\x89PNG": "starts as PNG",
        b"RIFF": "starts as WebP",
        b"BM": "starts as BMP",
        b"II*\0": "starts as TIFF",
        b"MM\0*": "starts as TIFF",
        b"GIF8": "starts as GIF",
        b"%PDF": "a PDF",
    }
    known = (text for start, text in signatures.items() if data.startswith(start))
    return next(known, "not in a known picture format")


_BLANK = r"(?:\s|#[^\n\r]*[\n\r])*"  # between the fields of PNM and related formats
_WIDTH, _HEIGHT = r"(?P<width>\d{1,10})(?!\d)", r"(?P<height>\d{1,10})(?!\d)"


def declared_size(data: bytes) -> Size | None:
    """Height and width that a picture file declares; None for unknown formats and cut headers.

    Examples:
        >>> declared_size(b"P6 640 480 255 ...")
        (480, 640)

    Raises:
        DecodeError: A PNG file ends within a chunk.
    """
    for start, read in _READERS.items():
        if data.startswith(start):
            try:
                return read(data)
            except (struct.error, ValueError):  # cut short
                return None
    return _avif(data) if data[4:8] == b"ftyp" else None


def _fixed(form: str, offset: int) -> Callable[[bytes], Size]:
    """A reader of formats with width and height at a fixed offset."""

    def read(data: bytes) -> Size:
        width, height = struct.unpack_from(form, data, offset)
        return abs(height), abs(width)

    return read


def _text(pattern: str) -> Callable[[bytes], Size | None]:
    """A reader of formats with a textual header."""
    header = re.compile(pattern.encode(), re.DOTALL)

    def read(data: bytes) -> Size | None:
        found = header.match(data)
        return (int(found["height"]), int(found["width"])) if found else None

    return read


def _png(data: bytes) -> Size:
    """Walk the chunks, since OpenCV allocates up to 4 GiB for one before it notices the end."""
    position = 8
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
    return _fixed(">II", 16)(data)


def _bmp(data: bytes) -> Size:
    (length,) = struct.unpack_from("<I", data, 14)
    return _fixed("<HH" if length == 12 else "<ii", 18)(data)


def _webp(data: bytes) -> Size | None:
    match data[12:16]:
        case b"VP8 ":
            width, height = struct.unpack_from("<HH", data, 26)
            return height & 0x3FFF, width & 0x3FFF
        case b"VP8L":
            (bits,) = struct.unpack_from("<I", data, 21)
            return (bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1
        case b"VP8X":
            width, height = data[24:27], data[27:30]
            return int.from_bytes(height, "little") + 1, int.from_bytes(width, "little") + 1
    return None


def _tiff(data: bytes) -> Size:
    """The first directory of a TIFF or a BigTIFF file."""
    order, big = "<" if data.startswith(b"I") else ">", 43 in data[2:4]
    (start,) = struct.unpack_from(f"{order}Q" if big else f"{order}I", data, 8 if big else 4)
    (count,) = struct.unpack_from(f"{order}Q" if big else f"{order}H", data, start)
    start, step, value = (start + 8, 20, 12) if big else (start + 2, 12, 8)
    sides = {0x100: 0, 0x101: 0}
    for field in range(start, min(start + count * step, len(data)), step):
        tag, kind = struct.unpack_from(f"{order}HH", data, field)
        if tag in sides:
            form = {3: "H", 16: "Q"}.get(kind, "I")
            (side,) = struct.unpack_from(f"{order}{form}", data, field + value)
            sides[tag] = max(sides[tag], side)
    return sides[0x101], sides[0x100]


def _jpeg2000(data: bytes) -> Size:
    codestream = data.index(b"\xff\x4f\xff\x51")
    right, bottom, left, top = struct.unpack_from(">IIII", data, codestream + 8)
    # In a damaged file, the start may lie behind the end.
    return max(bottom - top, 0), max(right - left, 0)


def _avif(data: bytes) -> Size | None:
    """The largest picture in the file, since a grid consists of smaller ones."""
    found = re.findall(rb"ispe\0{4}(.{4})(.{4})", data, re.DOTALL)
    sizes = [(int.from_bytes(height), int.from_bytes(width)) for width, height in found]
    return max(sizes, key=lambda size: size[0] * size[1], default=None)


_READERS: dict[bytes, Callable[[bytes], Size | None]] = {
    b"\x89PNG\r\n\x1a\n": _png,
    b"GIF8": _fixed("<HH", 6),
    b"BM": _bmp,
    b"RIFF": _webp,
    b"\x59\xa6\x6a\x95": _fixed(">II", 4),  # Sun raster
    **dict.fromkeys((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"), _tiff),
    **dict.fromkeys((b"\0\0\0\x0cjP  \r\n\x87\n", b"\xff\x4f\xff\x51"), _jpeg2000),
    b"P7": _text(rf"(?=.*?\sWIDTH\s+{_WIDTH})(?=.*?\sHEIGHT\s+{_HEIGHT})"),  # PAM
    b"P": _text(rf"P[1-6Ff]{_BLANK}{_WIDTH}.{_BLANK}{_HEIGHT}"),  # PNM, PFM
    b"#?R": _text(rf".*?\n-Y\s*{_HEIGHT}\s*\+X\s*{_WIDTH}"),  # Radiance
}
