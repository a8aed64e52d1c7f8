"""Decoding: from the bytes of a picture file to a picture, upright and in colour.

JPEGs are decoded in `decode_jpeg.py`, everything else by OpenCV, which refuses what is too large
before it allocates memory.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from detcli.errors import DecodeError, SourceError, system_reason
from detcli.geometry import Allocate, Picture, new_image
from detcli.opencv import MAX_PIXELS, PIXEL_LIMIT, cv2, pixel_limit
from detcli.source import decode_jpeg
from detcli.source.decode_size import JPEG, Size, check_complete, check_tiles, is_known
from detcli.source.reading import InputTimeoutError, read_file

BUILT_IN = Path(__file__).parents[1] / "pictures" / "street.jpg"
"""The picture that is part of detcli."""

TIMEOUT_S = 60.0
"""Default time limit for reading and decoding one input."""

_NO_DAMAGE = ("tjDecompressHeader3(): Could not determine subsampling", "Unknown Adobe color")
"""What libjpeg-turbo says about sound files that are left to OpenCV."""


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """How pictures are decoded.

    Attributes:
        max_pixels: Larger pictures are refused; before they are decoded, if the process was set up
            for it, see `detcli.opencv.limit_pixels`.
        fast_for: Height and width of a network's input. A JPEG that is at least twice as large is
            then decoded at a half, a quarter or an eighth of its size, which is faster.
        strict: Whether a damaged picture is an error even if it can be decoded.
        timeout_s: Time to read and decode an input; 0 for no limit.
        allocate: Makes the arrays that JPEGs are decoded into.
    """

    max_pixels: int = MAX_PIXELS
    fast_for: Size | None = None
    strict: bool = False
    timeout_s: float = TIMEOUT_S
    allocate: Allocate = new_image

    @property
    def max_bytes(self) -> int:
        """More than any format needs for a picture of the maximum size and its metadata."""
        return 8 * self.max_pixels + 2**24


DEFAULTS = DecodeOptions()


def load_file(path: Path, options: DecodeOptions = DEFAULTS) -> Picture:
    """Read a file and decode it, see `load_bytes`.

    Raises:
        SourceError: The file cannot be read, or not in time.
        DecodeError: The picture is incomplete or too large, or not in a known format.
    """
    try:
        data = read_file(path, options.max_bytes, options.timeout_s)
    except InputTimeoutError:
        raise too_slow(options.timeout_s) from None
    except FileNotFoundError:
        raise SourceError("no such file", "check the path") from None
    except (OSError, ValueError) as error:
        raise SourceError(
            f"cannot be read: {system_reason(error)}", "check the path, and its permissions"
        ) from error
    return load_bytes(data, options)


def load_bytes(data: bytes, options: DecodeOptions = DEFAULTS) -> Picture:
    """Decode the bytes of a picture file.

    The EXIF orientation is applied, grey becomes colour, transparency is dropped, and 16 bits
    become 8. The pixels are those of `cv2.imdecode`. A damaged picture that can be decoded
    has warnings.

    Raises:
        DecodeError: The picture is incomplete or too large, or not in a known format.
    """
    if not data:
        raise DecodeError("empty", "fetch or copy the file again")
    header = None
    if data.startswith(JPEG):
        header = decode_jpeg.read_header(data)
        if header is not None:
            check_size(header.size, options.max_pixels)
    if header is None and (data.startswith(JPEG) or not is_known(data)):
        raise _not_a_picture(data)
    check_complete(data)
    check_tiles(data)
    decode_jpeg.check_scans(data)
    damage = ""
    if header is not None:
        try:
            if picture := decode_jpeg.decode(data, header, options.fast_for, options.allocate):
                return picture
        except ValueError as error:  # what libjpeg says; OpenCV decides whether it is a picture
            if not str(error).startswith(_NO_DAMAGE):
                damage = f"damaged: {str(error).removeprefix('Corrupt JPEG data: ')}"
    picture = _decode_by_opencv(data, options.max_pixels)
    if not damage:
        return picture
    if options.strict:
        raise DecodeError(damage, "fetch it again, or leave out --strict")
    return replace(picture, warnings=(damage,))


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


def too_slow(limit_s: float, what: str = "not read and decoded") -> SourceError:
    """The error of an input that exceeds the time limit."""
    return SourceError(
        f"{what} after {limit_s:g} s",
        "if it is meant to take that long: predict and eval wait longer with --input-timeout",
    )


def _decode_by_opencv(data: bytes, max_pixels: int) -> Picture:
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    except cv2.error as error:
        if "CV_IO_MAX_IMAGE_PIXELS" in str(error.err):
            raise _too_large(max_pixels) from error
        raise DecodeError(
            f"cannot be decoded: {' '.join(str(error.err).split())}",
            "open it in an image viewer and save it again",
        ) from error
    if image is None:
        raise _not_a_picture(data)
    check_size((image.shape[0], image.shape[1]), max_pixels)
    if image.ndim == 2:  # grey PFM ignores the flag
        image = cv2.cvtColor(image, cv2.COLOR_GRAY2BGR)
    return Picture.whole(np.asarray(image, np.uint8))


def _too_large(max_pixels: int) -> DecodeError:
    limit = pixel_limit()
    if limit < max_pixels:
        return DecodeError(
            f"too large: more than the {limit} pixels that OpenCV decodes in this process",
            f"set {PIXEL_LIMIT} before cv2 is imported",
        )
    return DecodeError(
        f"too large: more than the {max_pixels} pixels allowed",
        "raise --max-pixels if it is meant to be that large",
    )


def _not_a_picture(data: bytes) -> DecodeError:
    size = "1 byte" if len(data) == 1 else f"{len(data)} bytes"
    return DecodeError(
        f"not a picture, or a damaged one ({size}, {_signature(data)})",
        "JPEG, PNG, WebP, BMP, TIFF, AVIF, GIF and more can be read; fetch damaged files again",
    )


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
