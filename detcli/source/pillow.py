"""Pillow images, converted to the pixels that their files have when they are read by path.

Pillow's own `convert("RGB")` does not give these: it cuts off numbers of 16 bits and floating point
numbers at 255, leaves an image lying on its side, and rounds CMYK, YCbCr and L*a*b* differently
from OpenCV and libtiff. So each mode of Pillow is converted here as its files are in `decode.py`.
"""

from collections.abc import Mapping
from typing import Any, Protocol, TypeGuard

import numpy as np
import numpy.typing as npt

from detcli.core.errors import DecodeError
from detcli.core.opencv import cv2
from detcli.data.geometry import Image, Pixels
from detcli.source.jpeg_header import EXIF_START, exif_orientation
from detcli.source.limits import FETCH_AGAIN
from detcli.source.values import to_colours, to_eight_bits, turn_upright


class PillowImage(Protocol):
    """An image of Pillow; the library need not be installed."""

    @property
    def mode(self) -> str:
        """What its pixels are, such as "RGB", or "I;16" for grey of 16 bits."""

    @property
    def format(self) -> str | None:
        """The format of the file that it was opened from, such as "PNG"; None for a copy."""

    @property
    def info(self) -> Mapping[Any, Any]:
        """What else its file says, such as its EXIF."""

    def load(self) -> Any:  # noqa: ANN401
        """Decode the file, unless that has already been done."""

    def convert(self, mode: str) -> Any:  # noqa: ANN401
        """Convert the image to a different mode."""


COLOUR_MODES = frozenset({"1", "L", "LA", "RGB", "RGBA", "RGBX", "HSV"})
"""Modes that Pillow converts to red, green and blue as this package does: alpha is dropped."""

PALETTE_MODES = frozenset({"P", "PA"})

WIDE_GREY_MODES = frozenset({"I;16", "I;16L", "I;16B", "I;16N"})
"""Modes of grey in 16 bits."""

WIDE_GREY_FORMATS = frozenset({"PNG", "PPM"})
"""Formats whose numbers have 16 bits where Pillow says "I", which is 32 bits in other formats."""


def is_pillow_image(value: object) -> TypeGuard[PillowImage]:
    """Whether a value is an image of Pillow, without importing Pillow.

    Plugins for more formats, such as pillow-heif, have classes of their own that inherit from
    Pillow's.
    """
    for base_class in type(value).__mro__:
        if base_class.__module__ == "PIL.Image" and base_class.__name__ == "Image":
            return True
    return False


def read_pillow(image: PillowImage) -> Image:
    """Convert an image of Pillow to the image that this package reads from its file.

    It is turned upright, as the EXIF of its file says, which Pillow keeps in `info`.

    Raises:
        ValueError: It has no pixels, or a mode that no file has.
        DecodeError: Its file is damaged, or its numbers are neither of 8 bits nor from 0 to 1.
    """
    try:
        image.load()
    except (OSError, SyntaxError) as error:  # Pillow raises these for damaged files
        raise DecodeError(f"cannot be decoded by Pillow: {error}", FETCH_AGAIN) from error
    pixels = _to_bgr(image)
    if pixels.size == 0:
        raise ValueError(f"an image of Pillow must have pixels, got {pixels.shape}")
    upright = turn_upright(pixels, _orientation(image))
    return Image.whole(upright)


def _to_bgr(image: PillowImage) -> Pixels:
    """Convert the pixels of an image of Pillow to blue, green and red in 8 bits, (H, W, 3).

    Raises:
        ValueError: No file has pixels of its mode.
        DecodeError: Its numbers are neither of 8 bits nor from 0 to 1.
    """
    mode = image.mode
    if mode in COLOUR_MODES:
        return _reversed_channels(np.asarray(image.convert("RGB")))
    if mode in PALETTE_MODES:
        # By way of "RGBA", as Pillow warns about transparent colours that are lost.
        return _reversed_channels(np.asarray(image.convert("RGBA")))

    values: npt.NDArray[Any] = np.asarray(image)
    is_wide_by_format = mode == "I" and image.format in WIDE_GREY_FORMATS
    has_sixteen_bits = is_wide_by_format or mode in WIDE_GREY_MODES
    if has_sixteen_bits:
        return to_colours((values >> 8).astype(np.uint8))  # the higher byte
    if mode in {"I", "F"}:  # integers of 32 bits, and floating point numbers
        return to_colours(to_eight_bits(values))
    if mode == "CMYK":
        return _bgr_of_cmyk(values, rounds_as_libtiff=image.format == "TIFF")
    if mode == "YCbCr":
        return _bgr_of_ycbcr(values)
    if mode == "LAB":
        # Pillow has signed numbers for a and b, and OpenCV adds 128 to them.
        lab = values + np.array([0, 128, 128], np.uint8)
        return np.asarray(cv2.cvtColor(lab, cv2.COLOR_Lab2BGR), np.uint8)
    raise ValueError(
        f'an image of Pillow in mode {mode} has no colours that are certain: convert it to "RGB"'
    )


def _reversed_channels(rgb: npt.NDArray[np.uint8]) -> Pixels:
    """Return red, green and blue (H, W, 3 or 4) as blue, green and red, without alpha."""
    return np.ascontiguousarray(rgb[..., 2::-1])


def _bgr_of_cmyk(cmyk: npt.NDArray[np.uint8], *, rounds_as_libtiff: bool) -> Pixels:
    """Convert cyan, magenta, yellow and black, (H, W, 4), to blue, green and red, (H, W, 3).

    Each colour is what neither its ink nor the black ink takes from white. An image of Pillow must
    have the pixels that its file has when it is read by its path. There, two libraries compute the
    colours, and round differently:

        libtiff, for TIFF         (255 - ink) * (255 - black) / 255, rounded down
        OpenCV, for other files   255 - black, less ink * (255 - black) / 256, rounded down

    Args:
        cmyk: The values as they are stored.
        rounds_as_libtiff: Whether to round as libtiff does, rather than as OpenCV does.
    """
    black = cmyk[..., 3:].astype(np.int32)
    inks = cmyk[..., 2::-1].astype(np.int32)  # yellow, magenta, cyan, which take blue, green, red
    light = 255 - black
    if rounds_as_libtiff:
        colours = (255 - inks) * light // 255
    else:
        colours = light - (inks * light >> 8)
    return np.ascontiguousarray(colours, np.uint8)


def _bgr_of_ycbcr(ycbcr: npt.NDArray[np.uint8]) -> Pixels:
    """Convert brightness and two colour differences to blue, green and red, all (H, W, 3).

    The factors are those of JPEG (1.402, 1.772, 0.344136, 0.714136), multiplied by 65536, as in
    libtiff, which reads such files.
    """
    brightness = ycbcr[..., 0].astype(np.int32)
    blue_difference = ycbcr[..., 1].astype(np.int32) - 128
    red_difference = ycbcr[..., 2].astype(np.int32) - 128
    half = 1 << 15  # so that the shift by 16 bits rounds
    blue = brightness + ((116130 * blue_difference + half) >> 16)
    red = brightness + ((91881 * red_difference + half) >> 16)
    green = brightness + ((half - 22553 * blue_difference - 46802 * red_difference) >> 16)
    colours = np.stack([blue, green, red], axis=-1)
    return np.asarray(np.clip(colours, 0, 255), np.uint8)


def _orientation(image: PillowImage) -> int:
    """Return how an image has to be turned to be upright, 1 to 8, as EXIF numbers it.

    Pillow itself turns images from TIFF files, and then leaves no EXIF in `info`.
    """
    exif = image.info.get("exif")
    if not isinstance(exif, bytes):
        return 1
    if not exif.startswith(EXIF_START):
        exif = EXIF_START + exif
    return exif_orientation(exif) or 1
