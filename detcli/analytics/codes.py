"""Codes: what the barcodes in an image say.

    zxing-cpp reads the whole image         detected or not, what it finds is kept
    each detection without text is cropped    as it is, enlarged, turned upright, until it is read
    what is still not read is enhanced        contrast and sharpness, within PIXEL_BUDGET an image
    OpenCV reads markers                      ArUco's and AprilTag's, where one was detected
    both locate what is not read              so that it has corners too, where they find any

crops.py makes the crops, plain and enhanced; markers.py reads markers.

Detections below the confidence are tried too, and stay only if they are read.

So nothing is lost that zxing-cpp reads by itself; small and tilted barcodes join, because the
detector knows where they are.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
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
from detcli.analytics.markers import (
    DICTIONARIES,
    MARKERS,
    SIZES,
    load_dictionary,
    marker_detector,
    read_markers,
)
from detcli.config.config import Settings
from detcli.core.opencv import cv2
from detcli.data.barcode import Barcode
from detcli.data.detections import Detections
from detcli.data.geometry import Boxes, Image, Size, overlap
from detcli.data.record import Record
from detcli.model.contract import class_ids

LINEAR = "barcode"
CLASSES = {
    "Aztec": "aztec",
    "Data Matrix": "data_matrix",
    "MaxiCode": "maxicode",
    "Micro QR Code": "micro_qr",
    "PDF417": "pdf417",
    "QR Code": "qr_code",
}
"""The class of a format or symbology of zxing-cpp, in the bundled model's words; else `LINEAR`."""

READABLE = {*CLASSES.values(), LINEAR, MARKERS}  # classes of which barcodes can be read

FILLED = 0.5  # IoU from which on what looks like a barcode is that of a box
SLACK = 0.1  # of a box's sides, by which the middle of a barcode may lie outside

BINARIZERS = (zxingcpp.Binarizer.LocalAverage, zxingcpp.Binarizer.GlobalHistogram)
TEXTS = {zxingcpp.ContentType.Text, zxingcpp.ContentType.GS1, zxingcpp.ContentType.ISO15434}
EOT = "\x04"  # ends a message; the separators before it are white space to Python

# Pixels an image that are read in enhanced crops and below the confidence: no clock, so that a
# busy machine reads the same. About 0.4 seconds.
PIXEL_BUDGET = 4 << 20
MARKER_CROP_SIDE = 200  # pixels of the longer side to which a crop with a marker is enlarged


class Codes:
    """Reads the barcodes in images.

    Images have to be at full size. Of the settings, the region, the classes and `max_det` count.
    Detections that do not exceed the confidence of their class, `(C,)`, are left out if they cannot
    be read.
    """

    def __init__(self, settings: Settings, conf_thresholds: npt.NDArray[np.float32] | None) -> None:
        self._settings = settings
        self._conf_thresholds = conf_thresholds

    def add(self, record: Record, image: Image, detections: Detections) -> Record:
        """Return a copy of a record whose detections have the barcodes that were read in them.

        Detections below the confidence are left out unless a barcode confirms them. Barcodes that
        the detector missed are added as detections.
        """
        grey = as_grey(cv2.cvtColor(image.pixels, cv2.COLOR_BGR2GRAY))
        region = self._crop_to_region(grey, image.size)
        is_confident = np.ones(len(detections), bool)
        if self._conf_thresholds is not None:
            is_confident = detections.score > self._conf_thresholds[detections.class_id]
        confident = np.flatnonzero(is_confident).tolist()
        doubtful = np.flatnonzero(~is_confident).tolist()

        # The whole image is read first, and each barcode goes to the detection around it.
        # Crops of the other detections are read after that.
        undetected = []  # barcodes that belong to no detection
        for barcode in read(region):
            if not _is_contradicted(grey, barcode):
                undetected.append(barcode)
        barcodes = np.full(len(detections), None, np.object_)  # of each detection
        budget = PixelBudget(PIXEL_BUDGET)
        _assign_nearest(detections, confident, barcodes, undetected)
        for index in confident:
            if barcodes[index] is None:
                barcodes[index] = _read_detection(grey, detections[index], budget, confident=True)

        # Markers in the whole image take long, and are searched only if one was detected.
        is_confident_marker = is_confident & (detections.class_name == MARKERS)
        detected_markers = np.flatnonzero(is_confident_marker).tolist()
        if detected_markers:
            undetected += _undetected_markers(region, barcodes)
        _assign_nearest(detections, detected_markers, barcodes, undetected)

        for index in doubtful:
            barcodes[index] = _confirm(grey, detections[index], list(barcodes), undetected, budget)
        for index in confident:
            if barcodes[index] is None:
                barcodes[index] = _locate(grey, detections[index])
        read_detections = _without_unread(replace(detections, symbols=barcodes), is_confident)
        return replace(
            record, detections=_with_undetected(read_detections, undetected, self._settings)
        )

    def _crop_to_region(self, grey: Grey, size: Size) -> Crop:
        """Crop an image `(H, W)` to the region of the settings; without one, to all of it."""
        matrix = np.eye(2, 3)
        if self._settings.region is None:
            return Crop(grey, matrix)
        left, top, right, bottom = self._settings.region.area(size)
        matrix[:, 2] = (-left, -top)
        return Crop(grey[top:bottom, left:right], matrix)


def _is_contradicted(grey: Grey, barcode: Barcode) -> bool:
    """Tell whether a crop around a linear code reads differently from the whole image.

    A wrong reading passes the check digit by chance one time in ten, so a second one is needed.
    Codes in two dimensions have strong checks, and are never contradicted.

    Args:
        grey: `(H, W)`, the image.
        barcode: A barcode that was read in it.
    """
    if barcode.class_name != LINEAR:
        return False
    box = _box_around(barcode)
    closer_barcodes = list(read(crop_around(grey, box)))
    if nearest_in(box, closer_barcodes) is None:
        return False
    return barcode.content not in {closer.content for closer in closer_barcodes}


def _box_around(barcode: Barcode) -> Boxes:
    """Return the box `(4,)` around the corners of a barcode, x1, y1, x2 and y2."""
    left_top = barcode.corners.min(axis=0)
    right_bottom = barcode.corners.max(axis=0)
    return np.array([left_top, right_bottom], np.float32).ravel()


def _without_unread(detections: Detections, is_confident: npt.NDArray[np.bool_]) -> Detections:
    """Leave out the detections below the confidence that no barcode confirms.

    Those that a barcode confirms come first, with a score of 1. `is_confident`, `(N,)`, tells whose
    score is above the confidence.
    """
    is_confirmed = np.zeros(len(detections), bool)
    if detections.symbols is not None:
        for index, barcode in enumerate(detections.symbols):
            is_confirmed[index] = barcode is not None and barcode.confirmed
    scores = np.where(is_confirmed, np.float32(1), detections.score)
    confirmed = np.flatnonzero(is_confirmed)
    only_confident = np.flatnonzero(is_confident & ~is_confirmed)
    remaining = np.concatenate([confirmed, only_confident])
    return replace(detections, score=scores)[remaining]


def _assign_nearest(
    detections: Detections,
    indices: Sequence[int],
    barcodes: npt.NDArray[np.object_],
    undetected: list[Barcode],
) -> None:
    """Give detections that have no barcode yet the one that lies in their box.

    Args:
        detections: N detections.
        indices: The detections that may get a barcode.
        barcodes: `(N,)`, the barcode of each detection or None, which is changed.
        undetected: The barcodes that belong to no detection; those that are given away are removed
            from the list.
    """
    for index in indices:
        if barcodes[index] is None:
            barcodes[index] = nearest_in(detections.xyxy[index], undetected)
    _remove_detected(undetected, barcodes)


def _remove_detected(undetected: list[Barcode], barcodes: Iterable[Barcode | None]) -> None:
    """Remove the barcodes that belong to a detection from the list of those that do not.

    Args:
        undetected: The list, which is changed.
        barcodes: The barcodes of detections; None for a detection without one.
    """
    ids_of_detected = {id(barcode) for barcode in barcodes}
    undetected[:] = [barcode for barcode in undetected if id(barcode) not in ids_of_detected]


@dataclass(slots=True)
class PixelBudget:
    """How many pixels of an image may still be read in costly crops."""

    pixels: int

    def spend(self, pixels: int) -> bool:
        """Take pixels from the budget; returns whether there were enough."""
        self.pixels -= pixels
        return self.pixels >= 0


def _read_detection(
    grey: Grey, detection: Detections, budget: PixelBudget, *, confident: bool
) -> Barcode | None:
    """Read the barcode in the box of a detection; None if it cannot be read.

    Args:
        grey: `(H, W)`, the image.
        detection: A single detection.
        budget: What may still be spent on crops that are not tried at every detection.
        confident: Whether its score is above the confidence. Markers are read only then, as that
            takes seconds in some textures.
    """
    [(box, _, _, class_name)] = detection
    if class_name != MARKERS:
        is_linear = class_name == LINEAR
        return read_in(grey, box, budget, confident=confident, linear=is_linear)
    if not confident:
        return None
    return read_marker(grey, box)


def _confirm(
    grey: Grey,
    detection: Detections,
    barcodes: list[Barcode | None],
    undetected: list[Barcode],
    budget: PixelBudget,
) -> Barcode | None:
    """Find a barcode in the box of a detection below the confidence, which confirms it.

    Args:
        grey: `(H, W)`, the image.
        detection: A single detection.
        barcodes: The barcodes of all detections. Where one lies in the box, another detection is of
            the same object already.
        undetected: The barcodes that belong to no detection; the one that confirms this detection
            is removed from the list.
        budget: What may still be spent on reading crops.

    Returns:
        The barcode, of the detection's class; None if there is none, or one of another class.
    """
    [(box, _, _, class_name)] = detection
    if class_name not in READABLE:
        return None
    detected = [barcode for barcode in barcodes if barcode is not None]
    if nearest_in(box, detected) is not None:
        return None
    barcode = nearest_in(box, undetected)
    if barcode is None:
        barcode = _read_detection(grey, detection, budget, confident=False)
    elif barcode.class_name == class_name:
        _remove_detected(undetected, [barcode])
    if barcode is None or barcode.class_name != class_name:
        return None
    return replace(barcode, confirmed=True)


def _locate(grey: Grey, detection: Detections) -> Barcode | None:
    """Find the corners of a detection's barcode, which could not be read.

    Args:
        grey: `(H, W)`, the image.
        detection: A single detection.

    Returns:
        A barcode without text: what looks most like one and fills most of the box; None if nothing
        does.
    """
    [(box, _, _, class_name)] = detection
    crop = crop_around(grey, box)
    if not crop.pixels.size or class_name not in READABLE:
        return None
    located = [barcode for barcode in read(crop, broken=True) if barcode.class_name == class_name]
    for corners in _corners_by_opencv(crop.pixels, class_name):
        located.append(Barcode(None, "", b"", crop.in_image(corners), class_name))
    if not located:
        return None
    ious = overlap(np.array([_box_around(barcode) for barcode in located]), box)
    best = int(ious.argmax())
    if ious[best] < FILLED:
        return None
    return located[best]


def _corners_by_opencv(pixels: Grey, class_name: str) -> Doubles:
    """Locate barcodes of a class with OpenCV, without reading them.

    Returns:
        `(K, 4, 2)`, the corners of each, from the left top one clockwise; empty for a class that
        OpenCV does not know.
    """
    corners: Any = None
    if class_name == "qr_code":
        _, corners = cv2.QRCodeDetector().detect(pixels)
    elif class_name == LINEAR:
        _, corners = cv2.barcode.BarcodeDetector().detect(pixels)
    elif class_name == MARKERS:
        detector = marker_detector(DICTIONARIES[:1])
        _, _, corners, _ = detector.detectMarkersMultiDict(pixels)
    if corners is None:
        return np.empty((0, 4, 2))
    corners_of_each: Doubles = np.reshape(corners, (-1, 4, 2)).astype(np.float64)
    if class_name == LINEAR:  # of these, OpenCV lists the left bottom corner first
        corners_of_each = np.roll(corners_of_each, -1, axis=1)
    return corners_of_each


def _undetected_markers(crop: Crop, barcodes: Iterable[Barcode | None]) -> Iterator[Barcode]:
    """Yield the markers in an image that no detection has.

    They are searched in the dictionaries of the markers that were read in detections, as markers in
    one image are usually of one kind; and in all dictionaries if none was read.

    Args:
        crop: The image, or its region that is searched.
        barcodes: The barcodes of the detections; None for a detection without one.
    """
    detected_markers = []
    for barcode in barcodes:
        if barcode is not None and barcode.class_name == MARKERS:
            detected_markers.append(barcode)
    dictionaries = set()
    for barcode in detected_markers:
        family, _, _ = barcode.symbology.rpartition("_")
        largest_of_family = f"{family}_{SIZES[-1]}"
        dictionaries |= {barcode.symbology, largest_of_family}
    searched_dictionaries = tuple(name for name in DICTIONARIES if name in dictionaries)
    for marker in read_markers(crop, searched_dictionaries or DICTIONARIES):
        side_modules = load_dictionary(marker.symbology).markerSize + 2  # with the black border
        # An area with fewer pixels than a marker has modules looks like one by chance only.
        area = cv2.contourArea(marker.corners.astype(np.float32))
        is_large_enough = area >= side_modules**2
        if is_large_enough and nearest_in(_box_around(marker), detected_markers) is None:
            yield marker


def read(
    crop: Crop,
    binarizer: Any = BINARIZERS[0],  # noqa: ANN401
    *,
    broken: bool = False,
) -> Iterator[Barcode]:
    """Read all barcodes in a crop of an image with zxing-cpp; its defaults search thoroughly.

    Args:
        crop: The crop.
        binarizer: How zxing-cpp makes a black and white image of it.
        broken: Whether to yield only barcodes that cannot be read; they have corners and a class,
            and no text.

    Yields:
        Barcodes whose corners are points of the whole image.
    """
    results = zxingcpp.read_barcodes(
        crop.pixels,
        binarizer=binarizer,
        text_mode=zxingcpp.TextMode.Plain,
        return_errors=broken,
    )
    for result in results:
        position = result.position
        corners_in_crop = np.array(
            [
                (position.top_left.x, position.top_left.y),
                (position.top_right.x, position.top_right.y),
                (position.bottom_right.x, position.bottom_right.y),
                (position.bottom_left.x, position.bottom_left.y),
            ],
            np.float64,
        )
        corners = crop.in_image(corners_in_crop)
        symbology = str(result.format)
        class_name = CLASSES.get(symbology) or CLASSES.get(str(result.symbology), LINEAR)
        if broken:
            if not result.valid:
                yield Barcode(None, "", b"", corners, class_name)
            continue
        text: str | None = result.text
        if result.content_type not in TEXTS:
            text = _plain_text(result.bytes)
        yield Barcode(text, symbology, bytes(result.bytes), corners, class_name)


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
    size. Of two that are equally near, the first is taken.

    Args:
        box: `(4,)`.
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
        centre = barcode.corners.mean(axis=0)
        is_after_start = (centre >= left_top - slack).all()
        is_before_end = (centre <= right_bottom + slack).all()
        distance_x, distance_y = centre - box_centre
        distance = float(np.hypot(distance_x, distance_y))
        is_nearer = nearest is None or distance < nearest_distance
        if is_after_start and is_before_end and is_nearer:
            nearest = barcode
            nearest_distance = distance
    return nearest


def read_in(
    grey: Grey, box: Boxes, budget: PixelBudget, *, confident: bool, linear: bool
) -> Barcode | None:
    """Read the barcode in a box of an image, in one crop after another, the cheapest first.

    A linear code is accepted at once if the detection is confident and a plain crop reads it.
    Otherwise two crops must give the same text, as one wrong reading in ten passes a check digit;
    readings that differ give None.

    Args:
        grey: `(H, W)`, the image.
        box: `(4,)`, where the detector found the barcode.
        budget: What may be spent on crops that are not tried at every detection.
        confident: Whether the detection's score is above its confidence.
        linear: Whether a linear code is expected.
    """
    unconfirmed: set[bytes] = set()  # the contents that were read once
    for crop, is_trusted in _crops_with_trust(grey, box, confident=confident):
        if not is_trusted and not budget.spend(crop.pixels.size):
            return None
        certain, to_confirm = _read_crop(crop, box, linear=linear, is_trusted=is_trusted)
        nearest = nearest_in(box, certain)
        if nearest is not None:
            return nearest
        if not to_confirm:
            continue
        is_second_reading = unconfirmed == to_confirm.keys()
        unconfirmed |= to_confirm.keys()
        if len(unconfirmed) > 1:  # they contradict each other
            return None
        if is_second_reading:
            [barcode] = to_confirm.values()
            return barcode
    return None


def _read_crop(
    crop: Crop, box: Boxes, *, linear: bool, is_trusted: bool
) -> tuple[list[Barcode], dict[bytes, Barcode]]:
    """Read a crop with one way of turning grey into black and white after the other.

    The first of them by which anything is read counts.

    Args:
        crop: The crop.
        box: `(4,)`, where the detector found the barcode.
        linear: Whether a linear code is expected.
        is_trusted: Whether a linear code that is read in this crop needs no second reading.

    Returns:
        The barcodes whose reading is certain, and by their contents those that need another one.
    """
    binarizers: Sequence[zxingcpp.Binarizer] = BINARIZERS
    if linear and not is_trusted:  # the others read the same linear codes as the first
        binarizers = BINARIZERS[:1]
    for binarizer in binarizers:
        certain, to_confirm = _readings_in(crop, box, binarizer, is_trusted=is_trusted)
        if certain or to_confirm:
            return certain, to_confirm
    return [], {}


def _readings_in(
    crop: Crop, box: Boxes, binarizer: zxingcpp.Binarizer, *, is_trusted: bool
) -> tuple[list[Barcode], dict[bytes, Barcode]]:
    """Read the barcodes in a box, and tell those that are certain from those to be confirmed.

    Args:
        crop: A crop of the image.
        box: `(4,)`, in the whole image; barcodes outside of it are left out.
        binarizer: How zxing-cpp makes a black and white image of the crop.
        is_trusted: Whether one reading of a linear code is enough in this crop.

    Returns:
        The barcodes that are certain, and those that a second reading has to confirm, by content.
    """
    certain = []
    to_confirm: dict[bytes, Barcode] = {}
    for barcode in read(crop, binarizer):
        if nearest_in(box, [barcode]) is None:
            continue
        if barcode.class_name == LINEAR and not is_trusted:
            to_confirm[barcode.content] = barcode
        else:
            certain.append(barcode)
    certain = [barcode for barcode in certain if barcode.content not in to_confirm]
    return certain, to_confirm


def _crops_with_trust(grey: Grey, box: Boxes, *, confident: bool) -> Iterator[tuple[Crop, bool]]:
    """Yield the crops of a box, each with whether one reading of a linear code in it is enough.

    That is so in crops whose pixels are not enhanced, for a detection that is confident.
    """
    for crop in crops_of(grey, box):
        yield crop, confident
    for crop in enhanced_crops(grey, box):
        yield crop, False


def read_marker(grey: Grey, box: Boxes) -> Barcode | None:
    """Read the number of the ArUco or AprilTag marker in a box.

    Args:
        grey: `(H, W)`, the image.
        box: `(4,)`.

    Returns:
        The marker, dark on light or light on dark; None if there is none that can be read.
    """
    crop = crop_around(grey, box)
    if not crop.pixels.size:
        return None
    times = round(MARKER_CROP_SIDE / max(crop.pixels.shape))
    enlarged_crop = crop.enlarged(max(1, min(4, times)))
    inverted_crop = Crop(as_grey(255 - enlarged_crop.pixels), enlarged_crop.matrix)
    for marker_crop in (enlarged_crop, inverted_crop):
        marker = nearest_in(box, read_markers(marker_crop))
        if marker is not None:
            return marker
    return None


def _with_undetected(
    detections: Detections, undetected: list[Barcode], settings: Settings
) -> Detections:
    """Add the barcodes that the detector missed to the detections, before all others.

    What could be read is there for certain, so the score is 1. There are at most `max_det`
    detections in all, and more only if there were more before.

    Args:
        detections: The detections, with their barcodes.
        undetected: The barcodes that belong to none of them.
        settings: Which classes are selected; barcodes of others are not added.
    """
    names = detections.names
    selected_ids = class_ids(settings.classes, names) or range(len(names))
    selected_names = {names[class_id] for class_id in selected_ids}
    added = [barcode for barcode in undetected if barcode.class_name in selected_names]
    if len(detections) <= settings.max_det:  # with tiles, there may be more: max_det in each
        del added[settings.max_det - len(detections) :]
    if not added:
        return detections
    assert detections.symbols is not None  # noqa: S101 - for the type checker
    boxes = [_box_around(barcode) for barcode in added]
    added_ids = [names.index(barcode.class_name) for barcode in added]
    confirmed = np.empty(len(added), np.object_)
    for index, barcode in enumerate(added):
        confirmed[index] = replace(barcode, confirmed=True)
    return replace(
        detections,
        xyxy=np.insert(detections.xyxy, 0, boxes, axis=0),
        score=np.insert(detections.score, 0, np.ones(len(added))),
        class_id=np.insert(detections.class_id, 0, added_ids),
        symbols=np.insert(detections.symbols, 0, confirmed),
    )
