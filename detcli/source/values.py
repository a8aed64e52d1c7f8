"""From the values that a file holds to bytes in blue, green and red, upright."""

import numpy as np

from detcli.core.errors import DecodeError
from detcli.core.opencv import cv2
from detcli.data.geometry import Allocate, Pixels, new_image

# EXIF orientation -> code of cv2.flip; at 5 and above, the image is transposed first.
_FLIPS = {2: 1, 3: -1, 4: 0, 6: 1, 7: -1, 8: 0}


def to_eight_bits(values: np.ndarray) -> Pixels:
    """Convert floating point numbers or wide integers to 8 bits.

    If all are whole numbers from 0 to 255, and any of them is above 1, they are already levels of 8
    bits, and stay as they are. Otherwise 0 is black and 1 is white, and numbers outside that range
    become black or white. NaN becomes black, and counts as outside.

    Args:
        values: An array of any shape and number type.

    Raises:
        DecodeError: Too many numbers are outside the range: any of the integers, or more than
            half of the floating point numbers, as highlights may be above white.
    """
    if values.dtype == np.uint8:
        return values
    values = np.nan_to_num(values, nan=-1)  # any number below 0 does
    levels: Pixels = np.clip(values, 0, 255).astype(np.uint8)
    are_levels = levels.max() > 1 and np.array_equal(levels, values)
    if are_levels:
        return levels

    from_black_to_white = np.clip(values, 0, 1)
    outside_count = np.count_nonzero(from_black_to_white != values)
    are_floats = values.dtype.kind == "f"
    if are_floats:
        max_outside_count = values.size // 2
    else:
        max_outside_count = 0
    if outside_count > max_outside_count:
        raise DecodeError(
            f"{outside_count} of its {values.size} values are not from 0 to 1, "
            "as black and white are",
            "scale them, or save it with 8 or 16 bits a value",
        )
    return np.asarray(np.rint(from_black_to_white * 255), np.uint8)


def to_colours(image: Pixels) -> Pixels:
    """Grey (H, W), or colours with alpha or without (H, W, 3 or 4), in blue, green and red."""
    if image.ndim == 2:
        image = np.asarray(cv2.cvtColor(image, cv2.COLOR_GRAY2BGR), np.uint8)
    return np.ascontiguousarray(image[..., :3])


def turn_upright(image: Pixels, orientation: int, allocate: Allocate = new_image) -> Pixels:
    """Turn and mirror an image as its orientation in EXIF or TIFF says."""
    if orientation >= 5:
        image = np.asarray(cv2.transpose(image), np.uint8)
    if orientation in _FLIPS:
        target = allocate((image.shape[0], image.shape[1]))
        image = np.asarray(cv2.flip(image, _FLIPS[orientation], target), np.uint8)
    return image
