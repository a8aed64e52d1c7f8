"""Crops of an image around a box, in forms that may make its barcode readable.

As they are, turned upright and enlarged; then with different contrast and sharpness.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from detcli.core import frozen
from detcli.core.opencv import cv2
from detcli.data.geometry import Boxes

Grey = npt.NDArray[np.uint8]
Doubles = npt.NDArray[np.float64]

MARGIN = 0.12  # of a box's longer side, on each side: barcodes need their quiet zone
MIN_MARGIN = 4  # pixels
ENLARGED = (1, 2, 4)  # times the size of a crop: zxing-cpp wants modules of three pixels
MAX_ENLARGED = 1600  # pixels of an enlarged side
MIN_TILT = 3.0  # degrees of tilt

DOUBLED = 800  # pixels of a side at and above which a crop is not doubled
LIGHTER = (np.sqrt(np.arange(256) / 255) * 255).astype(np.uint8)


def as_grey(pixels: npt.NDArray[Any]) -> Grey:
    """Return a grey image as bytes; OpenCV's already are, but its stubs do not know that."""
    return pixels.astype(np.uint8, copy=False)


@frozen(eq=False)
class Crop:
    """A crop of an image, perhaps enlarged or turned."""

    pixels: Grey  # `(H, W)`
    matrix: Doubles  # `(2, 3)`, takes points of the image to points of the crop

    def in_image(self, points: Doubles) -> Doubles:
        """Convert points `(P, 2)` of the crop, x and y, to points of the image."""
        crop_to_image = cv2.invertAffineTransform(self.matrix)
        # OpenCV takes a list of lists of points.
        image_points: Doubles = cv2.transform(points[np.newaxis], crop_to_image)[0]
        return image_points

    def enlarged(self, times: int) -> "Crop":
        """Return the crop enlarged by a whole factor."""
        if times == 1:
            return self
        matrix = times * self.matrix
        # The centre of the first pixel is at 0, and its left edge at -0.5. Enlarging moves the
        # centre away from the edge, by half a pixel for each time.
        matrix[:, 2] += (times - 1) / 2
        pixels = cv2.resize(self.pixels, None, fx=times, fy=times, interpolation=cv2.INTER_CUBIC)
        return Crop(as_grey(pixels), matrix)


def crops_of(grey: Grey, box: Boxes) -> Iterator[Crop]:
    """Yield crops of a box in which its barcode may be readable, the cheapest first.

    In each size, from that of the image to four times as large, the crop comes first as it is,
    and then turned upright, if it is tilted. Nothing comes if the box is outside of the image.

    Args:
        grey: `(H, W)`, the image.
        box: `(4,)`, x1, y1, x2 and y2; a margin is added around it.
    """
    crop = crop_around(grey, box)
    if not crop.pixels.size:
        return
    tilt_degrees = _tilt(crop.pixels)
    for times in ENLARGED:
        if times > 1 and times * max(crop.pixels.shape) > MAX_ENLARGED:
            return
        enlarged_crop = crop.enlarged(times)
        yield enlarged_crop
        if abs(tilt_degrees) >= MIN_TILT:
            yield _turn_upright(enlarged_crop, tilt_degrees)


def crop_around(grey: Grey, box: Boxes) -> Crop:
    """Cut a box with a margin around it out of an image.

    Args:
        grey: `(H, W)`, the image.
        box: `(4,)`, x1, y1, x2 and y2.

    Returns:
        The crop in whole pixels; empty if the box lies outside of the image.
    """
    left, top, right, bottom = box.tolist()
    margin = max(MIN_MARGIN, MARGIN * max(right - left, bottom - top))
    x1 = max(0, math.floor(left - margin))
    y1 = max(0, math.floor(top - margin))
    x2 = math.ceil(right + margin)
    y2 = math.ceil(bottom + margin)
    matrix = np.array([[1, 0, -x1], [0, 1, -y1]], np.float64)
    return Crop(grey[y1:y2, x1:x2], matrix)


def _tilt(pixels: Grey) -> float:
    """Measure by how many degrees an image `(H, W)` is tilted, from the edges in it.

    The gradient of a pixel is a vector across the edge there. The edges of an upright barcode are
    horizontal and vertical, so gradients that differ by 90 degrees have to count as the same. They
    do if all angles are multiplied by four, as 4 * 90 degrees is a full turn. The angle of the
    mean is then divided by four: gradients at 10 and 100 degrees become 40 and 400, which is 40
    again, and the tilt is 10.

    Returns:
        From -45 to 45.
    """
    gradient_x = cv2.Sobel(pixels, cv2.CV_32F, 1, 0).astype(np.complex64)
    gradient_y = cv2.Sobel(pixels, cv2.CV_32F, 0, 1)
    gradients = gradient_x + 1j * gradient_y  # (H, W), the vectors as complex numbers

    # The fourth power multiplies the angle by four, and raises the length to the fourth power.
    # Dividing by the cube of the length leaves the length itself, so that strong edges count for
    # more, but do not outweigh all others.
    lengths = np.maximum(np.abs(gradients), 1)  # at least 1, as a length of 0 cannot divide
    gradient_sum = (gradients**4 / lengths**3).sum()
    return math.degrees(float(np.angle(gradient_sum))) / 4


def _turn_upright(crop: Crop, tilt_degrees: float) -> Crop:
    """Turn a crop that is tilted by an angle, in an image large enough for all of its corners.

    Args:
        crop: The crop, with the matrix `(2, 3)` that leads from points of the image to its pixels.
        tilt_degrees: The angle, from -45 to 45.
    """
    height, width = crop.pixels.shape
    middle_x = (width - 1) / 2
    middle_y = (height - 1) / 2
    rotation = cv2.getRotationMatrix2D((middle_x, middle_y), tilt_degrees, 1)  # (2, 3)
    cosine = abs(rotation[0, 0])
    sine = abs(rotation[0, 1])
    turned_width = math.ceil(width * cosine + height * sine)
    turned_height = math.ceil(width * sine + height * cosine)
    # The rotation leaves the middle where it is; a shift brings it to that of the larger image.
    rotation[0, 2] += (turned_width - 1) / 2 - middle_x
    rotation[1, 2] += (turned_height - 1) / 2 - middle_y
    pixels = cv2.warpAffine(
        crop.pixels,
        rotation,
        (turned_width, turned_height),
        flags=cv2.INTER_CUBIC,
        borderMode=cv2.BORDER_REPLICATE,
    )

    # The matrix of the crop followed by the rotation: its linear part applies to the whole matrix,
    # and its shift is added.
    linear_part = rotation[:, :2]
    shift = rotation[:, 2]
    image_to_turned = linear_part @ crop.matrix
    image_to_turned[:, 2] += shift
    return Crop(as_grey(pixels), image_to_turned)


def enhanced_crops(grey: Grey, box: Boxes) -> Iterator[Crop]:
    """Yield the crop of a box once for each of the `ENHANCEMENTS`, which change its pixels.

    Nothing comes if the box is outside of the image.

    Args:
        grey: `(H, W)`, the image.
        box: `(4,)`, x1, y1, x2 and y2; a margin is added around it.
    """
    crop = crop_around(grey, box)
    if not crop.pixels.size:
        return
    for enhance in ENHANCEMENTS.values():
        pixels = enhance(crop.pixels)

        # Some enhancements enlarge. Then the matrix (2, 3) has to lead to points of the larger
        # crop: its first row is for x, its second one for y.
        scale_y, scale_x = np.divide(pixels.shape, crop.pixels.shape)
        scales = np.array([scale_x, scale_y])
        image_to_enhanced = scales[:, np.newaxis] * crop.matrix
        # As in `Crop.enlarged`: the centre of the first pixel moves away from its edge at -0.5.
        image_to_enhanced[:, 2] += (scales - 1) / 2
        yield Crop(pixels, image_to_enhanced)


def _enlarged(grey: Grey, times_x: int, times_y: int) -> Grey:
    """Enlarge an image by whole factors."""
    return as_grey(cv2.resize(grey, None, fx=times_x, fy=times_y, interpolation=cv2.INTER_CUBIC))


def _doubled(grey: Grey) -> Grey:
    """Enlarge an image to twice its size, unless it is already large."""
    if max(grey.shape) >= DOUBLED:
        return grey
    return _enlarged(grey, 2, 2)


def _sharpened(grey: Grey, sigma: float, amount: float) -> Grey:
    """Sharpen an image by an unsharp mask: its difference from a blurred copy is enlarged."""
    blurred = cv2.GaussianBlur(grey, (0, 0), sigma)
    return as_grey(cv2.addWeighted(grey, 1 + amount, blurred, -amount, 0))


def _with_even_contrast(grey: Grey) -> Grey:
    """Equalize the contrast of an image in each of its regions, by CLAHE."""
    return as_grey(cv2.createCLAHE(3, (4, 4)).apply(grey))


def _with_flat_background(grey: Grey) -> Grey:
    """Remove shadows: divide each pixel by the mean brightness of its surroundings.

    The surroundings are blurred in a copy of about 100 pixels, which is as good and much faster.
    """
    scale = 1 / max(1, max(grey.shape) // 100)
    small = cv2.resize(grey, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    small_background = cv2.GaussianBlur(small, (0, 0), max(small.shape) / 12)
    height, width = grey.shape
    background = cv2.resize(small_background, (width, height))
    return as_grey(cv2.divide(grey, background, scale=160))


# Changes to crops that could not be read without them; docs/benchmark.md has what each reads.
ENHANCEMENTS: dict[str, Callable[[Grey], Grey]] = {
    "sharpened at twice the size": lambda grey: _sharpened(_doubled(grey), 3, 2),
    "CLAHE at twice the size": lambda grey: _with_even_contrast(_doubled(grey)),
    "CLAHE": _with_even_contrast,
    "flat background": _with_flat_background,
    "lighter": lambda grey: as_grey(cv2.LUT(grey, LIGHTER)),
    "sharpened more": lambda grey: _sharpened(_doubled(grey), 5, 3),
    "sharpened": lambda grey: _sharpened(grey, 2, 1.5),
    "twice as wide": lambda grey: _enlarged(grey, 2, 1),
}
