"""Reads the barcode in a box of an image with zxing-cpp, and the marker in a box with OpenCV."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import zxingcpp

from detcli.analytics.crops import (
    Crop,
    Doubles,
    Grey,
    as_grey,
    crop_around,
    crops_of,
    enhanced_crops,
)
from detcli.analytics.markers import read_markers
from detcli.data.barcode import Barcode
from detcli.data.geometry import Boxes

LINEAR = "barcode"
CLASSES = {
    "Aztec": "aztec",
    "Data Matrix": "data_matrix",
    "MaxiCode": "maxicode",
    "Micro QR Code": "micro_qr",
    "PDF417": "pdf417",
    "QR Code": "qr_code",
}
"""The class of a format or symbology of zxing-cpp, as the bundled model names it; else `LINEAR`."""

SLACK = 0.1  # fraction of a box's sides by which the middle of a barcode may lie outside

BINARIZERS = (zxingcpp.Binarizer.LocalAverage, zxingcpp.Binarizer.GlobalHistogram)
TEXTS = {zxingcpp.ContentType.Text, zxingcpp.ContentType.GS1, zxingcpp.ContentType.ISO15434}
EOT = "\x04"  # ends a message; the separators before it are white space to Python

MARKER_CROP_SIDE = 200  # pixels of the longer side to which a crop with a marker is enlarged
MAX_MARKER_SCALE = 4  # the largest factor by which a crop with a marker is enlarged


@dataclass(slots=True)
class PixelBudget:
    """How many pixels of an image may still be read in costly crops."""

    pixels: int

    def spend(self, pixels: int) -> bool:
        """Take pixels from the budget; returns whether there were enough."""
        self.pixels -= pixels
        return self.pixels >= 0


def read(crop: Crop, binarizer: Any = BINARIZERS[0]) -> Iterator[Barcode]:  # noqa: ANN401
    """Read all barcodes in a crop of an image with zxing-cpp; its defaults search thoroughly.

    Args:
        crop: The crop.
        binarizer: How zxing-cpp makes it black and white.

    Yields:
        Barcodes whose corners are points of the whole image.
    """
    results = zxingcpp.read_barcodes(
        crop.pixels, binarizer=binarizer, text_mode=zxingcpp.TextMode.Plain, return_errors=False
    )
    for result in results:
        text: str | None = result.text
        if result.content_type not in TEXTS:
            text = _plain_text(result.bytes)
        symbology = str(result.format)
        corners = _corners_in_image(result, crop)
        yield Barcode(text, symbology, bytes(result.bytes), corners, _class_of(result))


def locate(crop: Crop) -> Iterator[Barcode]:
    """Yield the barcodes in a crop that zxing-cpp locates but cannot read.

    They have a class and corners, which are points of the whole image, and no text.
    """
    results = zxingcpp.read_barcodes(
        crop.pixels,
        binarizer=BINARIZERS[0],
        text_mode=zxingcpp.TextMode.Plain,
        return_errors=True,
    )
    for result in results:
        if not result.valid:
            yield Barcode(None, "", b"", _corners_in_image(result, crop), _class_of(result))


def _corners_in_image(result: Any, crop: Crop) -> Doubles:  # noqa: ANN401 - of zxing-cpp
    """Return the corners `(4, 2)` of a result in a crop as points of the whole image."""
    position = result.position
    corners_in_crop = []
    for corner in (
        position.top_left,
        position.top_right,
        position.bottom_right,
        position.bottom_left,
    ):
        corners_in_crop.append((corner.x, corner.y))
    return crop.in_image(np.array(corners_in_crop, np.float64))


def _class_of(result: Any) -> str:  # noqa: ANN401 - of zxing-cpp
    """Return the class of a result, as the bundled model names it."""
    class_of_format = CLASSES.get(str(result.format))
    if class_of_format is not None:
        return class_of_format
    return CLASSES.get(str(result.symbology), LINEAR)


def _plain_text(content: bytes) -> str | None:
    """Decode content that zxing-cpp takes for binary data, if it is text.

    Driving licences, for example, have text with control characters as separators.

    Returns:
        The text; None if other control characters are in it.
    """
    text = content.decode(errors="surrogateescape")
    for character in text:
        if not (character.isprintable() or character.isspace() or character == EOT):
            return None
    return text


def nearest_in(box: Boxes, barcodes: Iterable[Barcode]) -> Barcode | None:
    """Find the barcode in a box that is nearest to the middle of the box.

    A barcode is in the box if its own middle is; it may be a little outside, by SLACK of the box's
    size. Among equally near ones, the first is taken.

    Args:
        box: `(4,)`, x1, y1, x2 and y2.
        barcodes: The barcodes, which may be anywhere.

    Returns:
        The barcode; None if there is none in the box.
    """
    left_top = box[:2].astype(float)
    right_bottom = box[2:].astype(float)
    box_centre = (left_top + right_bottom) / 2
    slack = SLACK * (right_bottom - left_top)
    nearest = None
    nearest_distance = math.inf
    for barcode in barcodes:
        centre = barcode.corners.mean(axis=0)  # (2,) x and y
        is_after_start = (centre >= left_top - slack).all()
        is_before_end = (centre <= right_bottom + slack).all()
        if not (is_after_start and is_before_end):
            continue
        distance_x, distance_y = centre - box_centre
        distance = float(np.hypot(distance_x, distance_y))
        if nearest is None or distance < nearest_distance:
            nearest = barcode
            nearest_distance = distance
    return nearest


def read_barcode_in_box(
    grey: Grey, box: Boxes, budget: PixelBudget, *, confident: bool, linear: bool
) -> Barcode | None:
    """Read the barcode in a box of an image, in one crop after another, the cheapest first.

    A wrong reading of a linear code passes its check digit one time in ten. So two crops must give
    the same text, unless the detection is confident and a plain crop reads it.

    Args:
        grey: `(H, W)`, the image.
        box: `(4,)`, where the detector found the barcode.
        budget: The pixels that may still be read in costly crops. The plain crops of a confident
            detection cost nothing.
        confident: Whether the detection's score is above its confidence.
        linear: Whether a linear code is expected.

    Returns:
        The barcode; None if no crop reads one before the budget is spent. Also None for a linear
        code that no second crop confirms, or that a second crop contradicts.
    """
    earlier_contents: set[bytes] = set()  # of the linear code that an earlier crop has read, if any
    for attempt in _attempts(grey, box, confident=confident):
        # Trusted crops are the plain ones of a confident detection, which are always read.
        if not attempt.is_trusted and not budget.spend(attempt.crop.pixels.size):
            return None
        readings = _read_crop(attempt, box, linear=linear)
        certain_barcode = nearest_in(box, readings.certain)
        if certain_barcode is not None:
            return certain_barcode

        # A linear code that one crop alone does not prove: the next crop that reads one must agree.
        contents = readings.unconfirmed.keys()
        if contents and contents == earlier_contents:
            [confirmed_barcode] = readings.unconfirmed.values()  # `earlier_contents` has only one
            return confirmed_barcode
        earlier_contents |= contents
        are_contradictory = len(earlier_contents) > 1
        if are_contradictory:
            return None
    return None


class _Attempt(NamedTuple):
    """An attempt to read the barcode in a box."""

    crop: Crop

    is_trusted: bool
    """Whether a linear code is accepted if only this crop reads it. If not, another crop has to
    give the same text, and reading the crop uses the budget."""


def _attempts(grey: Grey, box: Boxes, *, confident: bool) -> Iterator[_Attempt]:
    """Yield the attempts to read the barcode in a box; plain crops come before enhanced ones.

    A plain crop is trusted if the detection is confident, an enhanced one never.
    """
    for crop in crops_of(grey, box):
        yield _Attempt(crop, is_trusted=confident)
    for crop in enhanced_crops(grey, box):
        yield _Attempt(crop, is_trusted=False)


class _Readings(NamedTuple):
    """The barcodes that one crop reads in a box."""

    certain: list[Barcode]

    unconfirmed: dict[bytes, Barcode]
    """Linear codes, by their contents, that another crop has to confirm."""


def _read_crop(attempt: _Attempt, box: Boxes, *, linear: bool) -> _Readings:
    """Read the barcodes in a crop with one binarizer after another, until one reads any in the box.

    A binarizer is a way to make the crop black and white, which is what zxing-cpp reads.

    Args:
        attempt: The crop, and whether it is trusted.
        box: `(4,)`, where the detector found the barcode.
        linear: Whether a linear code is expected.

    Returns:
        What the first successful binarizer reads in the box; empty if none reads anything there.
    """
    binarizers: Sequence[zxingcpp.Binarizer] = BINARIZERS
    if linear and not attempt.is_trusted:
        # The other binarizers read the same linear codes as the first one, so they confirm none.
        binarizers = BINARIZERS[:1]
    for binarizer in binarizers:
        readings = _read_with_binarizer(binarizer, attempt, box)
        if readings.certain or readings.unconfirmed:
            return readings
    return _Readings(certain=[], unconfirmed={})


def _read_with_binarizer(binarizer: zxingcpp.Binarizer, attempt: _Attempt, box: Boxes) -> _Readings:
    """Read the barcodes of a crop that lie in a box `(4,)` of the whole image.

    In a crop that is not trusted, linear codes remain unconfirmed. Anything else with the same
    content is left out, such as a matrix code that says the same as an unconfirmed linear code.
    """
    other_barcodes = []
    unconfirmed: dict[bytes, Barcode] = {}
    for barcode in read(attempt.crop, binarizer):
        is_in_box = nearest_in(box, [barcode]) is not None
        if not is_in_box:
            continue
        if barcode.class_name == LINEAR and not attempt.is_trusted:
            unconfirmed[barcode.content] = barcode
        else:
            other_barcodes.append(barcode)
    certain = [barcode for barcode in other_barcodes if barcode.content not in unconfirmed]
    return _Readings(certain, unconfirmed)


def read_marker(grey: Grey, box: Boxes) -> Barcode | None:
    """Read the number of the ArUco or AprilTag marker in a box.

    Args:
        grey: `(H, W)`, the image.
        box: `(4,)`, x1, y1, x2 and y2, where the detector found the marker.

    Returns:
        The marker, dark on light or light on dark; None if no marker can be read.
    """
    crop = crop_around(grey, box)
    if not crop.pixels.size:
        return None
    scale = round(MARKER_CROP_SIDE / max(crop.pixels.shape))
    scale = max(1, min(scale, MAX_MARKER_SCALE))
    enlarged_crop = crop.enlarged(scale)

    # OpenCV reads markers that are dark on light. The inverted crop is for those light on dark.
    inverted_crop = Crop(as_grey(255 - enlarged_crop.pixels), enlarged_crop.matrix)
    for marker_crop in (enlarged_crop, inverted_crop):
        marker = nearest_in(box, read_markers(marker_crop))
        if marker is not None:
            return marker
    return None
