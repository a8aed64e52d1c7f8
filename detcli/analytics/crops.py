"""Crops of a picture around a box, in the ways in which its barcode may become readable.

As they are, turned upright and enlarged; then with other contrast and sharpness.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from detcli.core.opencv import cv2
from detcli.data.geometry import Boxes

Grey = npt.NDArray[np.uint8]
Doubles = npt.NDArray[np.float64]

MARGIN = 0.12  # of a box's longer side, on each side: barcodes need their quiet zone
MIN_MARGIN = 4  # pixels
ENLARGED = (1, 2, 4)  # times the size of a crop: zxing-cpp wants modules of three pixels
MAX_ENLARGED = 1600  # pixels of an enlarged side
MIN_TILT = 3.0  # degrees of tilt

DOUBLED = 800  # pixels of a side from which on a crop is not doubled
LIGHTER = (np.sqrt(np.arange(256) / 255) * 255).astype(np.uint8)


def as_grey(pixels: npt.NDArray[Any]) -> Grey:
    """Give a grey picture that OpenCV made its type, which OpenCV's stubs do not know."""
    return pixels.astype(np.uint8, copy=False)


@dataclass(frozen=True, eq=False, slots=True)
class Crop:
    """A crop of a picture, perhaps enlarged or turned."""

    pixels: Grey  # `(H, W)`
    matrix: Doubles  # `(2, 3)`, takes points of the picture to points of the crop

    def in_picture(self, points: Doubles) -> Doubles:
        """Points `(P, 2)` of the crop, in the picture."""
        moved: Doubles = cv2.transform(points[None], cv2.invertAffineTransform(self.matrix))[0]
        return moved

    def enlarged(self, times: int) -> "Crop":
        """The crop, enlarged by a whole factor."""
        if times == 1:
            return self
        matrix = times * self.matrix
        # Pixel centres are at whole numbers, so half a pixel moves with the size.
        matrix[:, 2] += (times - 1) / 2
        pixels = cv2.resize(self.pixels, None, fx=times, fy=times, interpolation=cv2.INTER_CUBIC)
        return Crop(as_grey(pixels), matrix)


def crops_of(grey: Grey, box: Boxes) -> Iterator[Crop]:
    """Yield crops of a box and its surroundings: as they are, turned upright, and both enlarged."""
    crop = crop_around(grey, box)
    if not crop.pixels.size:
        return
    tilt = _tilt(crop.pixels)
    for times in ENLARGED:
        if times > 1 and times * max(crop.pixels.shape) > MAX_ENLARGED:
            return
        enlarged = crop.enlarged(times)
        yield enlarged
        if abs(tilt) >= MIN_TILT:
            yield _turned(enlarged, tilt)


def crop_around(grey: Grey, box: Boxes) -> Crop:
    """Cut out a box `(4,)` with a margin, in whole pixels of the picture; may be empty."""
    left, top, right, bottom = box.tolist()
    margin = max(MIN_MARGIN, MARGIN * max(right - left, bottom - top))
    x1 = max(0, math.floor(left - margin))
    y1 = max(0, math.floor(top - margin))
    x2 = math.ceil(right + margin)
    y2 = math.ceil(bottom + margin)
    matrix = np.array([[1, 0, -x1], [0, 1, -y1]], np.float64)
    return Crop(grey[y1:y2, x1:x2], matrix)


def _tilt(pixels: Grey) -> float:
    """Degrees from -45 to 45 by which most edges in a picture `(H, W)` are off both axes.

    Edges that are a quarter turn apart count as one: the angle of a gradient is multiplied by four.
    """
    across = cv2.Sobel(pixels, cv2.CV_32F, 1, 0).astype(np.complex64)
    down = cv2.Sobel(pixels, cv2.CV_32F, 0, 1)
    gradient = across + 1j * down
    strength = np.abs(gradient)
    fourfold = (gradient**4 / np.maximum(strength, 1) ** 3).sum()
    return math.degrees(float(np.angle(fourfold))) / 4


def _turned(crop: Crop, degrees: float) -> Crop:
    """Turn a crop back by an angle, without cutting off its corners."""
    height, width = crop.pixels.shape
    middle = ((width - 1) / 2, (height - 1) / 2)
    matrix = cv2.getRotationMatrix2D(middle, degrees, 1)
    cos = abs(matrix[0, 0])
    sin = abs(matrix[0, 1])
    turned_width = math.ceil(width * cos + height * sin)
    turned_height = math.ceil(width * sin + height * cos)
    matrix[0, 2] += (turned_width - 1) / 2 - middle[0]
    matrix[1, 2] += (turned_height - 1) / 2 - middle[1]
    pixels = cv2.warpAffine(
        crop.pixels,
        matrix,
        (turned_width, turned_height),
        flags=cv2.INTER_CUBIC,
        borderMode=cv2.BORDER_REPLICATE,
    )
    from_picture = matrix[:, :2] @ crop.matrix
    from_picture[:, 2] += matrix[:, 2]
    return Crop(as_grey(pixels), from_picture)


def enhanced_crops(grey: Grey, box: Boxes) -> Iterator[Crop]:
    """Yield crops of a box and its surroundings, changed by each of the `ENHANCEMENTS`."""
    crop = crop_around(grey, box)
    if not crop.pixels.size:
        return
    for change in ENHANCEMENTS.values():
        pixels = change(crop.pixels)
        times = np.divide(pixels.shape, crop.pixels.shape)[::-1, np.newaxis]  # across, down
        matrix = times * crop.matrix
        matrix[:, 2:] += (times - 1) / 2
        yield Crop(pixels, matrix)


def _sized(grey: Grey, across: int, down: int) -> Grey:
    """Enlarge a picture by whole factors."""
    return as_grey(cv2.resize(grey, None, fx=across, fy=down, interpolation=cv2.INTER_CUBIC))


def _doubled(grey: Grey) -> Grey:
    """Enlarge a picture to twice its size, unless it is large already."""
    if max(grey.shape) >= DOUBLED:
        return grey
    return _sized(grey, 2, 2)


def _sharpened(grey: Grey, sigma: float, amount: float) -> Grey:
    """Sharpen a picture by an unsharp mask."""
    blurred = cv2.GaussianBlur(grey, (0, 0), sigma)
    return as_grey(cv2.addWeighted(grey, 1 + amount, blurred, -amount, 0))


def _evened(grey: Grey) -> Grey:
    """Even out the contrast of a picture by CLAHE."""
    return as_grey(cv2.createCLAHE(3, (4, 4)).apply(grey))


def _flattened(grey: Grey) -> Grey:
    """Divide pixels by their blurred surroundings; to blur a small copy is as good."""
    scale = 1 / max(1, max(grey.shape) // 100)
    small = cv2.resize(grey, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    around = cv2.GaussianBlur(small, (0, 0), max(small.shape) / 12)
    return as_grey(cv2.divide(grey, cv2.resize(around, grey.shape[::-1]), scale=160))


# How parts change that could not be read as they are; docs/benchmark.md has what each reads.
ENHANCEMENTS: dict[str, Callable[[Grey], Grey]] = {
    "sharpened at twice the size": lambda grey: _sharpened(_doubled(grey), 3, 2),
    "CLAHE at twice the size": lambda grey: _evened(_doubled(grey)),
    "CLAHE": _evened,
    "flat background": _flattened,
    "lighter": lambda grey: as_grey(cv2.LUT(grey, LIGHTER)),
    "sharpened more": lambda grey: _sharpened(_doubled(grey), 5, 3),
    "sharpened": lambda grey: _sharpened(grey, 2, 1.5),
    "twice as wide": lambda grey: _sized(grey, 2, 1),
}
