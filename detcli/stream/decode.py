"""Decoding: from a picture file to a picture, upright and in colour."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from detcli.errors import DecodeError, SourceError
from detcli.geometry import Picture
from detcli.opencv import cv2
from detcli.stream import jpeg
from detcli.stream.header import declared_size


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """How pictures are decoded.

    Attributes:
        max_pixels: Pictures that declare more are refused before they are decoded.
        fast_for: Height and width of a network's input. A JPEG that is at least twice as large is
            then decoded at a half, a quarter or an eighth of its size, which is faster.
    """

    max_pixels: int = 200_000_000
    fast_for: tuple[int, int] | None = None


DEFAULTS = DecodeOptions()


def load_file(path: Path, options: DecodeOptions = DEFAULTS) -> Picture:
    """Read a file and decode it, see `load_bytes`.

    Raises:
        SourceError: It cannot be read.
        DecodeError: It is no picture that OpenCV knows, or an incomplete or too large one.
    """
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise SourceError(f"cannot be read: {reason}", "check its permissions") from error
    return load_bytes(data, options)


def load_bytes(data: bytes, options: DecodeOptions = DEFAULTS) -> Picture:
    """Decode the bytes of a picture file.

    The EXIF orientation is applied; grey becomes colour, transparency is dropped, 16 bits become
    8. The pixels are those of `cv2.imdecode`.

    Raises:
        DecodeError: They are no picture that OpenCV knows, or an incomplete or too large one.
    """
    if not data:
        raise DecodeError("empty", "fetch or copy the file again")
    header = jpeg.read_header(data) if data.startswith(jpeg.START) else None
    height, width = header.size if header else declared_size(data) or (0, 0)
    if height * width > options.max_pixels:
        raise DecodeError(
            f"too large: {width}x{height} are {height * width} pixels, "
            f"more than the {options.max_pixels} that are allowed",
            "raise --max-pixels if it is meant to be that large",
        )
    picture = jpeg.decode(data, header, options.fast_for) if header else None
    return picture or _decode_by_opencv(data)


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
            f"no picture, or a damaged one ({len(data)} bytes, {_signature(data)})",
            "OpenCV reads JPEG, PNG, WebP, BMP, TIFF, AVIF, GIF and more; fetch damaged ones again",
        )
    if image.ndim == 2:  # PFM in grey, whatever the flag says
        image = cv2.cvtColor(image, cv2.COLOR_GRAY2BGR)
    return Picture.whole(np.asarray(image, np.uint8))


def _signature(data: bytes) -> str:
    """What the first bytes say the file is, for an error text."""
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
    known = next((text for start, text in signatures.items() if data.startswith(start)), None)
    return known or "of no known picture format"
