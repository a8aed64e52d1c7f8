"""Codes: what the barcodes in an image say.

    zxing-cpp reads the whole image         detected or not, what it finds is kept
    each detection without text is cropped    as it is, enlarged, turned upright, until it is read
    what is still not read is enhanced        contrast and sharpness, within PIXEL_BUDGET an image
    OpenCV reads markers                      ArUco's and AprilTag's, where one was detected
    both locate what is not read              so that it has corners too, where they find any

reading.py reads the barcode in a box, in crops that crops.py makes, plain and enhanced; markers.py
reads markers.

Detections below the confidence are tried too, and kept only if they are read.

So nothing is lost that zxing-cpp reads by itself; small and tilted barcodes are added, because the
detector knows where they are.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from detcli.analytics.crops import Crop, Doubles, Grey, as_grey, crop_around
from detcli.analytics.markers import (
    DICTIONARIES,
    MARKERS,
    SIZES,
    load_dictionary,
    marker_detector,
    read_markers,
)
from detcli.analytics.reading import (
    CLASSES,
    LINEAR,
    PixelBudget,
    locate,
    nearest_in,
    read,
    read_barcode_in_box,
    read_marker,
)
from detcli.config.config import Settings
from detcli.core.opencv import cv2
from detcli.data.barcode import Barcode
from detcli.data.detections import Detections
from detcli.data.geometry import Boxes, Image, Size, overlap
from detcli.data.record import Record
from detcli.model.contract import class_ids

READABLE = {*CLASSES.values(), LINEAR, MARKERS}  # the classes whose barcodes can be read

MIN_LOCATED_IOU = 0.5  # lowest IoU with a detection's box for a located barcode to belong to it

# Pixels per image that are read in enhanced crops and below the confidence: not a clock, so that a
# busy machine reads the same. About 0.4 seconds.
PIXEL_BUDGET = 4 << 20


class Codes:
    """Reads the barcodes in images.

    Images have to be at full size. Only the region, the classes and `max_det` of the settings are
    used. Detections that do not exceed the confidence of their class, `(C,)`, are left out if they
    cannot be read.
    """

    def __init__(self, settings: Settings, conf_thresholds: npt.NDArray[np.float32] | None) -> None:
        self._settings = settings
        self._conf_thresholds = conf_thresholds

    def add(self, record: Record, image: Image, detections: Detections) -> Record:
        """Return a copy of a record whose detections have the barcodes that were read in them.

        Detections below the confidence are left out unless a barcode confirms them. Barcodes that
        the detector missed are added as detections.

        Barcodes are searched for in the whole image first, and then in crops of the detections that
        have none yet. Each barcode goes to one detection, and confident detections come first.
        """
        grey = as_grey(cv2.cvtColor(image.pixels, cv2.COLOR_BGR2GRAY))
        region = self._crop_to_region(grey, image.size)
        is_confident = np.ones(len(detections), bool)  # (N,)
        if self._conf_thresholds is not None:
            is_confident = detections.score > self._conf_thresholds[detections.class_id]
        confident_indices = np.flatnonzero(is_confident).tolist()
        doubtful_indices = np.flatnonzero(~is_confident).tolist()

        # Each step of the assignment only looks at detections that have no barcode yet.
        assignment = _BarcodeAssignment(grey, detections)
        assignment.read_whole_image(region)
        assignment.assign_nearest(confident_indices)
        assignment.read_crops(confident_indices)

        # Searching the whole image for markers takes long, so it is done only if the detector has
        # detected a marker.
        is_confident_marker = is_confident & (detections.class_name == MARKERS)
        marker_indices = np.flatnonzero(is_confident_marker).tolist()
        if marker_indices:
            assignment.undetected += _undetected_markers(region, assignment.barcodes)
        assignment.assign_nearest(marker_indices)

        # Detections below the confidence come last: they get only barcodes that no confident
        # detection has.
        assignment.confirm(doubtful_indices)
        assignment.locate_unread(confident_indices)

        with_barcodes = replace(detections, symbols=assignment.barcodes)
        remaining = _without_unconfirmed(with_barcodes, is_confident)
        with_undetected = _with_undetected(remaining, assignment.undetected, self._settings)
        return replace(record, detections=with_undetected)

    def _crop_to_region(self, grey: Grey, size: Size) -> Crop:
        """Crop an image `(H, W)` to the region of the settings; if there is none, to all of it."""
        matrix = np.eye(2, 3)
        if self._settings.region is None:
            return Crop(grey, matrix)
        left, top, right, bottom = self._settings.region.area(size)
        matrix[:, 2] = (-left, -top)
        return Crop(grey[top:bottom, left:right], matrix)


class _BarcodeAssignment:
    """Assigns barcodes to the detections of an image, while they are located and read.

    Detections are named by their indices.
    """

    def __init__(self, grey: Grey, detections: Detections) -> None:
        """Store the image and its detections, which have no barcodes yet.

        Args:
            grey: `(H, W)`, the image.
            detections: Its N detections.
        """
        self._grey = grey
        self._detections = detections
        self._budget = PixelBudget(PIXEL_BUDGET)
        self.barcodes = np.full(len(detections), None, np.object_)  # of each detection, or None
        self.undetected: list[Barcode] = []  # the barcodes that belong to no detection

    def read_whole_image(self, region: Crop) -> None:
        """Read the barcodes in the image, or in a region of it; none has a detection yet."""
        for barcode in read(region):
            if not _is_contradicted(self._grey, barcode):
                self.undetected.append(barcode)

    def assign_nearest(self, indices: Iterable[int]) -> None:
        """Give each of the given detections without a barcode the undetected one in its box."""
        for index in indices:
            if self.barcodes[index] is None:
                self.barcodes[index] = nearest_in(self._detections.xyxy[index], self.undetected)
        _remove_detected(self.undetected, self.barcodes)

    def read_crops(self, indices: Iterable[int]) -> None:
        """Read the barcodes of the given confident detections from crops, unless they have one."""
        for index in indices:
            if self.barcodes[index] is None:
                self.barcodes[index] = _read_detection(
                    self._grey, self._detections[index], self._budget, confident=True
                )

    def locate_unread(self, indices: Iterable[int]) -> None:
        """Give each given detection without a barcode one without text, if it is located."""
        for index in indices:
            if self.barcodes[index] is None:
                self.barcodes[index] = _locate_unread(self._grey, self._detections[index])

    def confirm(self, indices: Iterable[int]) -> None:
        """Give detections below the confidence a barcode of their class, which confirms them."""
        for index in indices:
            self.barcodes[index] = self._confirming_barcode(self._detections[index])

    def _confirming_barcode(self, detection: Detections) -> Barcode | None:
        """Find the barcode that confirms a single detection below the confidence.

        If the barcode is one of `undetected`, it is removed from that list.

        Args:
            detection: The detection, `Detections` of length one.

        Returns:
            The barcode in its box, marked as confirmed. None if the box has no barcode of its
            class that can be read. Also None if the box has the barcode of another detection: both
            detections then show the same object.
        """
        box = detection.xyxy[0]  # (4,)
        class_name = detection.names[detection.class_id[0]]
        if class_name not in READABLE:
            return None
        assigned_barcodes = [barcode for barcode in self.barcodes if barcode is not None]
        is_same_object = nearest_in(box, assigned_barcodes) is not None
        if is_same_object:
            return None

        barcode = nearest_in(box, self.undetected)
        if barcode is None:
            barcode = _read_detection(self._grey, detection, self._budget, confident=False)
        if barcode is None or barcode.class_name != class_name:
            return None
        _remove_detected(self.undetected, [barcode])
        return replace(barcode, confirmed=True)


def _is_contradicted(grey: Grey, barcode: Barcode) -> bool:
    """Return whether a crop around a linear code reads differently from the whole image.

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


def _without_unconfirmed(detections: Detections, is_confident: npt.NDArray[np.bool_]) -> Detections:
    """Leave out the detections below the confidence that no barcode confirms.

    Those that a barcode confirms come first, with a score of 1.

    Args:
        detections: N detections, with their barcodes.
        is_confident: `(N,)`, whether the score of each is above the confidence.
    """
    is_confirmed = np.zeros(len(detections), bool)
    if detections.symbols is not None:
        for index, barcode in enumerate(detections.symbols):
            is_confirmed[index] = barcode is not None and barcode.confirmed
    scores = np.where(is_confirmed, np.float32(1), detections.score)
    confirmed_indices = np.flatnonzero(is_confirmed)
    other_confident_indices = np.flatnonzero(is_confident & ~is_confirmed)
    selected_indices = np.concatenate([confirmed_indices, other_confident_indices])
    return replace(detections, score=scores)[selected_indices]


def _remove_detected(undetected: list[Barcode], barcodes: Iterable[Barcode | None]) -> None:
    """Remove barcodes from the list of the undetected once they belong to a detection.

    Args:
        undetected: The list, which is changed.
        barcodes: The barcodes of detections; None for a detection without one.
    """
    ids_of_detected = {id(barcode) for barcode in barcodes}
    undetected[:] = [barcode for barcode in undetected if id(barcode) not in ids_of_detected]


def _read_detection(
    grey: Grey, detection: Detections, budget: PixelBudget, *, confident: bool
) -> Barcode | None:
    """Read the barcode in the box of a detection; None if it cannot be read.

    Args:
        grey: `(H, W)`, the image.
        detection: A single detection, `Detections` of length one.
        budget: The pixels that may still be read in costly crops: all crops of a detection below
            the confidence, and the enhanced crops of others.
        confident: Whether its score is above the confidence. A marker is read only then, as that
            takes seconds in some textures.
    """
    box = detection.xyxy[0]  # (4,)
    class_name = detection.names[detection.class_id[0]]
    if class_name == MARKERS:
        if not confident:
            return None
        return read_marker(grey, box)
    is_linear = class_name == LINEAR
    return read_barcode_in_box(grey, box, budget, confident=confident, linear=is_linear)


def _locate_unread(grey: Grey, detection: Detections) -> Barcode | None:
    """Find the corners of a detection's barcode, which could not be read.

    Args:
        grey: `(H, W)`, the image.
        detection: A single detection, `Detections` of length one.

    Returns:
        A barcode without text, at the area that overlaps the detection most among those that look
        like a barcode of its class. None if there is no such area, or if the highest IoU with the
        detection is below `MIN_LOCATED_IOU`.
    """
    box = detection.xyxy[0]  # (4,)
    class_name = detection.names[detection.class_id[0]]
    crop = crop_around(grey, box)
    if not crop.pixels.size or class_name not in READABLE:
        return None
    candidates = [barcode for barcode in locate(crop) if barcode.class_name == class_name]
    for corners in _corners_by_opencv(crop.pixels, class_name):
        candidates.append(Barcode(None, "", b"", crop.in_image(corners), class_name))
    if not candidates:
        return None

    candidate_boxes = np.array([_box_around(barcode) for barcode in candidates])  # (M, 4)
    ious = overlap(candidate_boxes, box)  # (M,)
    best_index = int(ious.argmax())
    if ious[best_index] < MIN_LOCATED_IOU:
        return None
    return candidates[best_index]


def _corners_by_opencv(pixels: Grey, class_name: str) -> Doubles:
    """Locate barcodes of a class with OpenCV, without reading them.

    Returns:
        `(K, 4, 2)`, the corners of each, clockwise from the top left one; empty for a class that
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
    if class_name == LINEAR:  # of these, OpenCV lists the bottom left corner first
        corners_of_each = np.roll(corners_of_each, -1, axis=1)
    return corners_of_each


def _undetected_markers(crop: Crop, barcodes: Iterable[Barcode | None]) -> Iterator[Barcode]:
    """Yield the markers in an image that belong to no detection yet.

    Args:
        crop: The image, or the region of it to search.
        barcodes: The barcodes of the detections; None for a detection without one.
    """
    detected_markers = []
    for barcode in barcodes:
        if barcode is not None and barcode.class_name == MARKERS:
            detected_markers.append(barcode)
    for marker in read_markers(crop, _likely_dictionaries(detected_markers)):
        # A marker is a grid of black and white modules. An area with fewer pixels than modules
        # looks like a marker by chance only.
        modules_per_side = load_dictionary(marker.symbology).markerSize + 2  # with the black border
        area = cv2.contourArea(marker.corners.astype(np.float32))
        if area < modules_per_side**2:
            continue
        is_detected = nearest_in(_box_around(marker), detected_markers) is not None
        if not is_detected:
            yield marker


def _likely_dictionaries(markers: Sequence[Barcode]) -> tuple[str, ...]:
    """Return the dictionaries that more markers in an image are probably from.

    A dictionary is a set of possible markers. The markers in an image are usually from one family
    of dictionaries, such as `DICT_4X4`. The largest of a family, `DICT_4X4_1000`, has all of its
    markers.

    Args:
        markers: The markers that have already been read, each with its dictionary as `symbology`.

    Returns:
        The largest dictionaries of their families; all dictionaries if no marker was read.
    """
    likely_names = set()
    for marker in markers:
        likely_names.add(marker.symbology)  # itself, if its family has no other dictionary
        family, _, _ = marker.symbology.rpartition("_")
        largest_size = SIZES[-1]
        likely_names.add(f"{family}_{largest_size}")
    dictionaries = tuple(name for name in DICTIONARIES if name in likely_names)
    return dictionaries or DICTIONARIES


def _with_undetected(
    detections: Detections, undetected: list[Barcode], settings: Settings
) -> Detections:
    """Add the barcodes that the detector missed to the detections, before all others.

    Args:
        detections: The detections, with their barcodes.
        undetected: The barcodes that belong to none of them.
        settings: The selected classes; barcodes of other classes are not added. And `max_det`, up
            to which barcodes are added.
    """
    names = detections.names
    selected_ids = class_ids(settings.classes, names) or range(len(names))  # by default all
    selected_names = {names[class_id] for class_id in selected_ids}
    addable_barcodes = [barcode for barcode in undetected if barcode.class_name in selected_names]

    # With tiles, `max_det` limits the detections of each tile. If the image has more than that, it
    # was tiled, and any number may be added.
    if len(detections) <= settings.max_det:
        max_added = settings.max_det - len(detections)
        addable_barcodes = addable_barcodes[:max_added]
    if not addable_barcodes:
        return detections
    return _with_added(detections, addable_barcodes)


def _with_added(detections: Detections, added: Sequence[Barcode]) -> Detections:
    """Insert detections of barcodes before all others.

    Their score is 1, as what could be read is certain to exist.
    """
    assert detections.symbols is not None  # noqa: S101 - for the type checker
    boxes = [_box_around(barcode) for barcode in added]
    class_ids_of_added = [detections.names.index(barcode.class_name) for barcode in added]
    confirmed = np.empty(len(added), np.object_)
    for index, barcode in enumerate(added):
        confirmed[index] = replace(barcode, confirmed=True)
    return replace(
        detections,
        xyxy=np.insert(detections.xyxy, 0, boxes, axis=0),
        score=np.insert(detections.score, 0, np.ones(len(added))),
        class_id=np.insert(detections.class_id, 0, class_ids_of_added),
        symbols=np.insert(detections.symbols, 0, confirmed),
    )
