"""Reads ArUco and AprilTag markers, with OpenCV."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from detcli.analytics.crops import Crop
from detcli.core.opencv import cv2
from detcli.data.barcode import Barcode

MARKERS = "aruco"  # the class whose barcodes OpenCV reads

# The largest of each family, those with the most bits first: they hardly take one for another.
DICTIONARIES = (
    "DICT_7X7_1000",
    "DICT_APRILTAG_36h11",
    "DICT_APRILTAG_36h10",
    "DICT_ARUCO_MIP_36h12",
    "DICT_6X6_1000",
    "DICT_APRILTAG_25h9",
    "DICT_5X5_1000",
    "DICT_ARUCO_ORIGINAL",
    "DICT_4X4_1000",
    "DICT_APRILTAG_16h5",
)
# How many markers the dictionaries of a family have: each begins with the next smaller one.
SIZES = (50, 100, 250, 1000)


def read_markers(crop: Crop, dictionaries: tuple[str, ...] = DICTIONARIES) -> Iterator[Barcode]:
    """Yield the ArUco and AprilTag markers in a crop of an image; OpenCV reads them.

    They are dark on light. The corners of each are points of the whole image.

    Args:
        crop: The crop.
        dictionaries: The names of the dictionaries, which are the sets of possible markers.
    """
    detector = marker_detector(dictionaries)
    corners_of_each, numbers, _, dictionary_indices = detector.detectMarkersMultiDict(crop.pixels)
    if numbers is None:  # no marker was found
        return
    for marker_corners, number, dictionary_index in zip(
        corners_of_each, numbers.flat, dictionary_indices.flat, strict=True
    ):
        symbology = _smallest_dictionary(dictionaries[dictionary_index], number)
        corners_in_crop = marker_corners[0].astype(np.float64)  # (4, 2)
        corners = crop.in_image(corners_in_crop)
        yield Barcode(str(number), symbology, b"", corners, MARKERS)


@cache
def marker_detector(dictionaries: tuple[str, ...]) -> Any:  # noqa: ANN401 - of OpenCV
    """Return OpenCV's detector for the markers of the given dictionaries; it is cached."""
    settings = cv2.aruco.DetectorParameters()
    settings.cornerRefinementMethod = cv2.aruco.CORNER_REFINE_SUBPIX
    loaded = [load_dictionary(name) for name in dictionaries]
    return cv2.aruco.ArucoDetector(loaded, settings)


def load_dictionary(name: str) -> Any:  # noqa: ANN401 - of OpenCV
    """Return OpenCV's dictionary of markers with the given name, such as `DICT_4X4_50`."""
    return cv2.aruco.getPredefinedDictionary(getattr(cv2.aruco, name))


def _smallest_dictionary(dictionary: str, number: int) -> str:
    """Return the smallest dictionary of a family that has the marker with this number.

    The dictionaries of a family begin with the same markers: number 60 of `DICT_4X4_1000` is also
    that of `DICT_4X4_100`, and `DICT_4X4_50` does not have it.
    """
    family, _, size = dictionary.rpartition("_")
    if size != str(SIZES[-1]):  # the only dictionary of its family
        return dictionary
    smallest_size = next(size for size in SIZES if number < size)
    return f"{family}_{smallest_size}"
