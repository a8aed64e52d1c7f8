"""Codes: what the barcodes in a picture say.

    zxing-cpp reads the whole picture         detected or not, what it finds is kept
    each detection without text is cropped    as it is, enlarged, turned upright, until it is read
    what is still not read is enhanced        contrast and sharpness, within PIXEL_BUDGET a picture
    OpenCV reads markers                      ArUco's and AprilTag's, where one was detected
    both locate what is not read              so that it has corners too, where they find any

crops.py makes the crops, as they are and enhanced.

Detections below the confidence are tried too, and stay only if they are read.

So nothing is lost that zxing-cpp reads by itself; small and tilted barcodes join, because the
detector knows where they are.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
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
from detcli.config.config import Settings
from detcli.core.opencv import cv2
from detcli.data.barcode import Barcode
from detcli.data.detections import Detections
from detcli.data.geometry import Boxes, Picture, Size, overlap
from detcli.data.per_video import PerVideo
from detcli.data.record import Record
from detcli.model.contract import class_ids

MARKERS = "aruco"  # the class whose barcodes OpenCV reads

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

# The largest of each kind, those with the most bits first: they hardly take one for another.
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
# Markers in the dictionaries of a kind: each dictionary begins with the next smaller one.
SIZES = (50, 100, 250, 1000)

# Pixels a picture that are read in enhanced crops and below the confidence: no clock, so that a
# busy machine reads the same. About 0.4 seconds.
PIXEL_BUDGET = 4 << 20
UNKNOWN_CORNERS: Doubles = np.empty((0, 2))
REMEMBERED = 10_000  # tracks of a video whose texts are known, as a stream may never end


class Codes:
    """Reads the barcodes in pictures.

    Pictures have to be at full size. Of the settings, the region, the classes and `max_det` count.
    Detections that do not exceed the confidence of their class, `(C,)`, are left out if they cannot
    be read.
    """

    def __init__(self, settings: Settings, conf_thresholds: npt.NDArray[np.float32] | None) -> None:
        self._settings = settings
        self._conf_thresholds = conf_thresholds

    def add(self, record: Record, picture: Picture, detections: Detections) -> Record:
        """The record with what its detections say, and with barcodes that only reading found."""
        grey = as_grey(cv2.cvtColor(picture.pixels, cv2.COLOR_BGR2GRAY))
        region = self._crop_to_region(grey, picture.size)
        is_confident = np.ones(len(detections), bool)
        if self._conf_thresholds is not None:
            is_confident = detections.score > self._conf_thresholds[detections.class_id]
        confident = np.flatnonzero(is_confident).tolist()
        doubtful = np.flatnonzero(~is_confident).tolist()

        undetected = []
        for barcode in read(region):
            if not _is_contradicted(grey, barcode):
                undetected.append(barcode)
        barcodes = np.full(len(detections), None, np.object_)
        budget = PixelBudget(PIXEL_BUDGET)
        for index in confident:
            barcodes[index] = nearest_in(detections.xyxy[index], undetected)
        _remove_taken(undetected, barcodes)
        for index in confident:
            if barcodes[index] is None:
                barcodes[index] = _read_detection(grey, detections[index], budget, confident=True)

        framed_markers = np.flatnonzero(is_confident & (detections.class_name == MARKERS)).tolist()
        if framed_markers:
            undetected += _more_markers(region, barcodes)
        for index in framed_markers:
            if barcodes[index] is None:
                barcodes[index] = nearest_in(detections.xyxy[index], undetected)
        _remove_taken(undetected, barcodes)

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
        """The part of a picture that is looked at: the region of the settings, or all of it."""
        matrix = np.eye(2, 3)
        if self._settings.region is None:
            return Crop(grey, matrix)
        left, top, right, bottom = self._settings.region.area(size)
        matrix[:, 2] = (-left, -top)
        return Crop(grey[top:bottom, left:right], matrix)


def _is_contradicted(grey: Grey, barcode: Barcode) -> bool:
    """Whether a crop around a linear code reads otherwise: chance passes one check digit in ten."""
    if barcode.class_name != LINEAR:
        return False
    box = _box_around(barcode)
    closer_barcodes = list(read(crop_around(grey, box)))
    if nearest_in(box, closer_barcodes) is None:
        return False
    return barcode.content not in {closer.content for closer in closer_barcodes}


def _box_around(barcode: Barcode) -> Boxes:
    return np.array([barcode.corners.min(0), barcode.corners.max(0)], np.float32).ravel()


def _without_unread(detections: Detections, is_confident: npt.NDArray[np.bool_]) -> Detections:
    """Drop detections that are neither confident, `(N,)`, nor confirmed by their barcode.

    The confirmed ones come first.
    """
    is_confirmed = np.zeros(len(detections), bool)
    if detections.symbols is not None:
        for index, barcode in enumerate(detections.symbols):
            is_confirmed[index] = barcode is not None and barcode.confirmed
    scored = replace(detections, score=np.where(is_confirmed, np.float32(1), detections.score))
    order = np.argsort(~is_confirmed, kind="stable")
    remains = is_confident | is_confirmed
    return scored[order[remains[order]]]


def _remove_taken(undetected: list[Barcode], barcodes: Iterable[Barcode | None]) -> None:
    """Remove the barcodes of detections from those that no detection has."""
    ids_of_detected = {id(barcode) for barcode in barcodes}
    undetected[:] = [barcode for barcode in undetected if id(barcode) not in ids_of_detected]


@dataclass(slots=True)
class PixelBudget:
    """How many pixels of a picture may still be read in costly crops."""

    pixels: int

    def spend(self, pixels: int) -> bool:
        """Take pixels from the budget; returns whether there were enough."""
        self.pixels -= pixels
        return self.pixels >= 0


def _read_detection(
    grey: Grey, detection: Detections, budget: PixelBudget, *, confident: bool
) -> Barcode | None:
    """Read the barcode of a single detection."""
    [(box, _, _, class_name)] = detection
    if class_name != MARKERS:
        is_linear = class_name == LINEAR
        return read_in(grey, box, budget, confident=confident, linear=is_linear)
    if not confident:  # it takes seconds in some textures
        return None
    return read_marker(grey, box)


def _confirm(
    grey: Grey,
    detection: Detections,
    barcodes: list[Barcode | None],
    undetected: list[Barcode],
    budget: PixelBudget,
) -> Barcode | None:
    """Find the barcode that confirms a detection below the confidence; None if there is none.

    It is of the detection's class, and none of the `barcodes` of other detections. It is taken out
    of those that are `undetected`, or read.
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
        _remove_taken(undetected, [barcode])
    if barcode is None or barcode.class_name != class_name:
        return None
    return replace(barcode, confirmed=True)


def _locate(grey: Grey, detection: Detections) -> Barcode | None:
    """Locate a barcode that could not be read: what looks like one and fills most of the box."""
    [(box, _, _, class_name)] = detection
    crop = crop_around(grey, box)
    if not crop.pixels.size or class_name not in READABLE:
        return None
    located = [barcode for barcode in read(crop, broken=True) if barcode.class_name == class_name]
    quads: Any = None
    if class_name == "qr_code":
        _, quads = cv2.QRCodeDetector().detect(crop.pixels)
    elif class_name == LINEAR:
        _, quads = cv2.barcode.BarcodeDetector().detect(crop.pixels)
    elif class_name == MARKERS:
        detector = _marker_detector(DICTIONARIES[:1])
        _, _, quads, _ = detector.detectMarkersMultiDict(crop.pixels)
    if quads is not None:
        for quad in np.reshape(quads, (-1, 4, 2)).astype(np.float64):
            ends = quad
            if class_name == LINEAR:  # where OpenCV begins at the bottom left
                ends = np.roll(quad, -1, 0)
            located.append(Barcode(None, "", b"", crop.in_picture(ends), class_name))
    if not located:
        return None
    filled = overlap(np.array([_box_around(barcode) for barcode in located]), box)
    best = int(filled.argmax())
    return located[best] if filled[best] >= FILLED else None


def _more_markers(crop: Crop, barcodes: Iterable[Barcode | None]) -> Iterator[Barcode]:
    """Find markers of a whole picture that no detection has, in the dictionaries that were read."""
    detected = []
    for barcode in barcodes:
        if barcode is not None and barcode.class_name == MARKERS:
            detected.append(barcode)
    dictionaries = set()
    for barcode in detected:
        kind, _, _ = barcode.symbology.rpartition("_")
        dictionaries |= {barcode.symbology, f"{kind}_{SIZES[-1]}"}
    searched = tuple(name for name in DICTIONARIES if name in dictionaries)
    for marker in markers(crop, searched or DICTIONARIES):
        modules = _dictionary(marker.symbology).markerSize + 2  # along an edge, with the border
        # Of fewer pixels than modules nothing can be read: chance took them for a marker.
        is_large = cv2.contourArea(marker.corners.astype(np.float32)) >= modules**2
        if is_large and nearest_in(_box_around(marker), detected) is None:
            yield marker


def read(
    crop: Crop,
    binarizer: Any = BINARIZERS[0],  # noqa: ANN401
    *,
    broken: bool = False,
) -> Iterator[Barcode]:
    """Read all barcodes in a crop of a picture with zxing-cpp, by its defaults: thoroughly.

    Those that are `broken` are only located.
    """
    results = zxingcpp.read_barcodes(
        crop.pixels,
        binarizer=binarizer,
        text_mode=zxingcpp.TextMode.Plain,
        return_errors=broken,
    )
    for result in results:
        position = result.position
        ends = (position.top_left, position.top_right, position.bottom_right, position.bottom_left)
        corners = crop.in_picture(np.array([(end.x, end.y) for end in ends], np.float64))
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
    """Decode a text that zxing-cpp calls binary for its separators, as in driving licences."""
    text = content.decode(errors="surrogateescape")
    for character in text:
        if not (character.isprintable() or character.isspace() or character == EOT):
            return None
    return text


def nearest_in(box: Boxes, barcodes: Iterable[Barcode]) -> Barcode | None:
    """The barcode whose middle is nearest to the middle of a box `(4,)`, if it is inside.

    Of equals the first.
    """
    low, high = box[:2].astype(float), box[2:].astype(float)
    box_centre = (low + high) / 2
    slack = SLACK * (high - low)
    nearest = None
    nearest_distance = math.inf
    for barcode in barcodes:
        centre = barcode.corners.mean(0)
        is_inside = (centre >= low - slack).all() and (centre <= high + slack).all()
        across, down = centre - box_centre
        distance = float(np.hypot(across, down))
        if is_inside and (nearest is None or distance < nearest_distance):
            nearest, nearest_distance = barcode, distance
    return nearest


def read_in(
    grey: Grey, box: Boxes, budget: PixelBudget, *, confident: bool, linear: bool
) -> Barcode | None:
    """Read the barcode in a box `(4,)` of a picture `(H, W)`, by ever costlier ways.

    A linear code is accepted at once if the detection is confident and a plain crop reads it.
    Otherwise two crops must give the same text, as one wrong reading in ten passes a check digit;
    readings that differ give None.

    Args:
        grey: The picture.
        box: Where the detector found the barcode.
        budget: What may be spent on crops that are not tried at every detection.
        confident: Whether the detection's score is above its confidence.
        linear: Whether a linear code is expected.
    """
    readings: Counter[bytes] = Counter()  # of linear codes that must be confirmed
    for crop, is_trusted in _crops_with_trust(grey, box, confident=confident):
        if not is_trusted and not budget.spend(crop.pixels.size):
            return None
        binarizers: Sequence[zxingcpp.Binarizer] = BINARIZERS
        if linear and not is_trusted:  # both read the same linear codes
            binarizers = BINARIZERS[:1]
        for binarizer in binarizers:
            certain, to_confirm = _readings_in(crop, box, binarizer, is_trusted=is_trusted)
            nearest = nearest_in(box, certain)
            if nearest is not None:
                return nearest
            readings.update(to_confirm.keys())
            if len(readings) > 1:  # they contradict each other
                return None
            if to_confirm:
                [(content, barcode)] = to_confirm.items()
                if readings[content] > 1:
                    return barcode
                break
    return None


def _readings_in(
    crop: Crop, box: Boxes, binarizer: zxingcpp.Binarizer, *, is_trusted: bool
) -> tuple[list[Barcode], dict[bytes, Barcode]]:
    """The barcodes in a box of which one reading is enough, and those to be confirmed, by content.

    These are the linear codes, unless the crop is trusted.
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
    """Yield the crops of a box, and whether one reading of a linear code in it is enough."""
    for crop in crops_of(grey, box):
        yield crop, confident
    for crop in enhanced_crops(grey, box):
        yield crop, False


def read_marker(grey: Grey, box: Boxes) -> Barcode | None:
    """Read the ArUco or AprilTag marker in a box `(4,)` of a picture `(H, W)`: its number."""
    crop = crop_around(grey, box)
    if not crop.pixels.size:
        return None
    times = round(200 / max(crop.pixels.shape))
    enlarged = crop.enlarged(max(1, min(4, times)))
    inverted = Crop(as_grey(255 - enlarged.pixels), enlarged.matrix)
    for marker_crop in (enlarged, inverted):  # dark on light, then light on dark
        marker = nearest_in(box, markers(marker_crop))
        if marker is not None:
            return marker
    return None


def markers(crop: Crop, dictionaries: tuple[str, ...] = DICTIONARIES) -> Iterator[Barcode]:
    """Read all dark markers in a crop of a picture with OpenCV."""
    detector = _marker_detector(dictionaries)
    quads, numbers, _, indices = detector.detectMarkersMultiDict(crop.pixels)
    if numbers is None:
        return
    for quad, number, index in zip(quads, numbers.flat, indices.flat, strict=True):
        symbology = _smallest(dictionaries[index], number)
        corners = crop.in_picture(quad[0].astype(np.float64))
        yield Barcode(str(number), symbology, b"", corners, MARKERS)


@cache
def _marker_detector(dictionaries: tuple[str, ...]) -> Any:  # noqa: ANN401 - of OpenCV
    """OpenCV's detector of markers of some dictionaries."""
    settings = cv2.aruco.DetectorParameters()
    settings.cornerRefinementMethod = cv2.aruco.CORNER_REFINE_SUBPIX
    loaded = [_dictionary(name) for name in dictionaries]
    return cv2.aruco.ArucoDetector(loaded, settings)


def _dictionary(name: str) -> Any:  # noqa: ANN401 - of OpenCV
    return cv2.aruco.getPredefinedDictionary(getattr(cv2.aruco, name))


def _smallest(dictionary: str, number: int) -> str:
    """The smallest dictionary of this kind that has a marker."""
    kind, _, size = dictionary.rpartition("_")
    if size != str(SIZES[-1]):
        return dictionary
    return f"{kind}_{next(size for size in SIZES if number < size)}"


def _with_undetected(
    detections: Detections, undetected: list[Barcode], settings: Settings
) -> Detections:
    """Detections with the barcodes that none of them has, of the selected classes.

    There are at most `max_det` in all. What could be read is there for certain: the score is 1.
    """
    names = detections.names
    class_indices = class_ids(settings.classes, names) or range(len(names))
    selected_names = {names[index] for index in class_indices}
    added = [barcode for barcode in undetected if barcode.class_name in selected_names]
    if len(detections) <= settings.max_det:  # of tiles, each may have as many
        del added[settings.max_det - len(detections) :]
    if not added:
        return detections
    assert detections.symbols is not None  # noqa: S101 - of Codes
    boxes = [_box_around(barcode) for barcode in added]
    indices = [names.index(barcode.class_name) for barcode in added]
    confirmed = np.empty(len(added), np.object_)
    for index, barcode in enumerate(added):
        confirmed[index] = replace(barcode, confirmed=True)
    return replace(
        detections,
        xyxy=np.insert(detections.xyxy, 0, boxes, axis=0),
        score=np.insert(detections.score, 0, np.ones(len(added))),
        class_id=np.insert(detections.class_id, 0, indices),
        symbols=np.insert(detections.symbols, 0, confirmed),
    )


class TrackTexts:
    """Gives barcodes that cannot be read in a frame the text that their track had before."""

    def __init__(self) -> None:
        # The barcode of each track of a video, by its number; the tracks seen last come last.
        self._videos: PerVideo[dict[int, Barcode]] = PerVideo(lambda _: {})

    def add(self, record: Record, _: Picture, detections: Detections) -> Record:
        """The record whose detections have the texts of their tracks."""
        if record.origin.frame is None:
            return record
        if detections.track_id is None or detections.symbols is None:
            return record
        barcodes_of_tracks = self._videos.of(record)
        barcodes = detections.symbols.copy()
        for index, number in enumerate(detections.track_id.tolist()):
            barcode = barcodes[index]
            before = barcodes_of_tracks.pop(number, None)
            if barcode is not None and barcode.symbology and number > 0:
                barcodes_of_tracks[number] = barcode
            elif before is not None:
                corners = UNKNOWN_CORNERS if barcode is None else barcode.corners
                barcodes[index] = replace(before, corners=corners, confirmed=False, earlier=True)
                barcodes_of_tracks[number] = before
        while len(barcodes_of_tracks) > REMEMBERED:
            oldest = next(iter(barcodes_of_tracks))
            del barcodes_of_tracks[oldest]
        return replace(record, detections=replace(detections, symbols=barcodes))
