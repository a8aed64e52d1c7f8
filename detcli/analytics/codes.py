"""Codes: what the barcodes in a picture say.

    zxing-cpp reads the whole picture         detected or not, what it finds is kept
    each detection without text is cropped    as it is, enlarged, turned upright, until it is read
    ENHANCEMENTS of what is still not read    contrast and sharpness, within PIXEL_BUDGET a picture
    OpenCV reads markers                      ArUco's and AprilTag's, where one was detected
    both locate what is not read              so that it has corners too, where they find any

Detections below the confidence are tried too, and stay only if they are read.

So nothing is lost that zxing-cpp reads by itself; small and tilted barcodes join, because the
detector knows where they are.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import zxingcpp

from detcli.config.config import Settings
from detcli.core.opencv import cv2
from detcli.data.barcode import Barcode
from detcli.data.detections import Detections
from detcli.data.geometry import Picture, overlap
from detcli.data.per_video import PerVideo
from detcli.data.record import Record
from detcli.model.contract import class_ids

Grey = npt.NDArray[np.uint8]
Doubles = npt.NDArray[np.float64]

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

MARGIN = 0.12  # of a box's longer side, on each side: barcodes need their quiet zone
LEAST_MARGIN = 4  # pixels
ENLARGED = (1, 2, 4)  # times the size of a crop: zxing-cpp wants modules of three pixels
LONGEST = 1600  # pixels of an enlarged side
LEAST_TURN = 3.0  # degrees of tilt
FILLED = 0.5  # IoU from which on what looks like a barcode is that of a box
SLACK = 0.1  # of a box's sides, by which the middle of a barcode may lie outside

BINARIZERS = (zxingcpp.Binarizer.LocalAverage, zxingcpp.Binarizer.GlobalHistogram)
TEXTS = {zxingcpp.ContentType.Text, zxingcpp.ContentType.GS1, zxingcpp.ContentType.ISO15434}
EOT = "\x04"  # ends a message; the separators before it are white space to Python

# The largest of each kind, those with the most bits first: they hardly take one for another.
DICTIONARIES = (
    *("DICT_7X7_1000", "DICT_APRILTAG_36h11", "DICT_APRILTAG_36h10", "DICT_ARUCO_MIP_36h12"),
    *("DICT_6X6_1000", "DICT_APRILTAG_25h9", "DICT_5X5_1000", "DICT_ARUCO_ORIGINAL"),
    *("DICT_4X4_1000", "DICT_APRILTAG_16h5"),
)
# Markers in the dictionaries of a kind, of which each begins with the smaller one.
SIZES = (50, 100, 250, 1000)

# Pixels a picture that are read in enhanced crops and below the confidence: no clock, so that a
# busy machine reads the same. About 0.4 seconds.
PIXEL_BUDGET = 4 << 20
DOUBLED = 800  # pixels of a side from which on a crop is not doubled
NOWHERE: Doubles = np.empty((0, 2))  # corners that are not known
REMEMBERED = 10_000  # tracks of a video whose texts are known, as a stream may never end
LIGHTER = (np.sqrt(np.arange(256) / 255) * 255).astype(np.uint8)


class Codes:
    """Reads the barcodes in pictures.

    Pictures have to be at full size. Of the settings, the region, the classes and `max_det` count.
    Detections that do not exceed the confidence of their class, `(C,)`, are left out if they cannot
    be read.
    """

    def __init__(self, settings: Settings, conf_thresholds: npt.NDArray[np.float32] | None) -> None:
        self._settings = settings
        self._conf_thresholds = conf_thresholds

    def add(self, record: Record, picture: Picture, found: Detections) -> Record:
        """The record with what its detections say, and with barcodes that only reading found."""
        grey = as_grey(cv2.cvtColor(picture.pixels, cv2.COLOR_BGR2GRAY))
        whole, crop = np.eye(2, 3), grey
        if (region := self._settings.region) is not None:
            left, top, right, bottom = region.area(picture.size)
            whole[:, 2], crop = (-left, -top), grey[top:bottom, left:right]
        sure = np.ones(len(found), bool)
        if self._conf_thresholds is not None:
            sure = found.score > self._conf_thresholds[found.class_id]
        undetected = [one for one in read(_Crop(crop, whole)) if not _is_contradicted(grey, one)]
        barcodes = np.full(len(found), None, np.object_)
        budget = PixelBudget(PIXEL_BUDGET)
        for row in np.flatnonzero(sure).tolist():
            barcodes[row] = barcode_in(found.xyxy[row], undetected)
        _take(undetected, barcodes)
        for row in np.flatnonzero(sure).tolist():
            if barcodes[row] is None:
                barcodes[row] = _look(grey, found[row], budget, sure=True)
        framed = np.flatnonzero(sure & (found.class_name == MARKERS)).tolist()
        if framed:
            undetected += _more_markers(_Crop(crop, whole), barcodes)
        for row in framed:
            barcodes[row] = barcodes[row] or barcode_in(found.xyxy[row], undetected)
        _take(undetected, barcodes)
        for row in np.flatnonzero(~sure).tolist():
            barcodes[row] = _confirm(grey, found[row], [*barcodes], undetected, budget)
        for row in np.flatnonzero(sure).tolist():
            barcodes[row] = barcodes[row] or _locate(grey, found[row])
        found = _kept(replace(found, symbols=barcodes), sure)
        return replace(record, detections=_with_others(found, undetected, self._settings))


def _is_contradicted(grey: Grey, linear: Barcode) -> bool:
    """Whether a crop around a linear code reads otherwise: chance passes one check digit in ten."""
    if linear.class_name != LINEAR:
        return False
    box = _around(linear)
    near = [*read(_crop_around(grey, box))]
    return barcode_in(box, near) is not None and linear.content not in {one.content for one in near}


def _around(barcode: Barcode) -> npt.NDArray[np.float32]:
    """The box `(4,)` around a barcode."""
    return np.array([barcode.corners.min(0), barcode.corners.max(0)], np.float32).ravel()


def _kept(found: Detections, sure: npt.NDArray[np.bool_]) -> Detections:
    """Detections without those that are neither sure, `(N,)`, nor read; those only read first."""
    barcodes = () if found.symbols is None else found.symbols
    confirmed = np.array([one is not None and one.confirmed for one in barcodes], bool)
    found = replace(found, score=np.where(confirmed, np.float32(1), found.score))
    order = np.argsort(~confirmed, kind="stable")
    return found[order[(sure | confirmed)[order]]]


def _take(undetected: list[Barcode], barcodes: Iterable[Barcode | None]) -> None:
    """Remove barcodes that detections have from those that none has."""
    known = {id(barcode) for barcode in barcodes}
    undetected[:] = [barcode for barcode in undetected if id(barcode) not in known]


@dataclass(slots=True)
class PixelBudget:
    """What a picture may cost beyond what every picture does."""

    pixels: int

    def spend(self, pixels: int) -> bool:
        """Whether there is enough left."""
        self.pixels -= pixels
        return self.pixels >= 0


def _look(grey: Grey, one: Detections, budget: PixelBudget, *, sure: bool) -> Barcode | None:
    """Read the barcode of a single detection."""
    (box, _, _, name), *_ = one
    if name == MARKERS:
        return read_marker(grey, box) if sure else None  # it takes seconds in some textures
    return read_in(grey, box, budget, sure=sure, linear=name == LINEAR)


def _confirm(
    grey: Grey,
    one: Detections,
    barcodes: list[Barcode | None],
    undetected: list[Barcode],
    budget: PixelBudget,
) -> Barcode | None:
    """What makes a detection below the confidence one: a barcode of its class that none has yet."""
    (box, _, _, name), *_ = one
    if name not in {*CLASSES.values(), LINEAR, MARKERS}:
        return None
    if barcode_in(box, [barcode for barcode in barcodes if barcode is not None]) is not None:
        return None
    barcode = barcode_in(box, undetected)
    if barcode is not None:
        _take(undetected, [barcode] * (barcode.class_name == name))
    else:
        barcode = _look(grey, one, budget, sure=False)
    if barcode is None or barcode.class_name != name:
        return None
    return replace(barcode, confirmed=True)


def _locate(grey: Grey, one: Detections) -> Barcode | None:
    """Where the barcode of a single detection is that could not be read: what fills most of it."""
    (box, _, _, name), *_ = one
    crop = _crop_around(grey, box)
    if not crop.pixels.size or name not in {*CLASSES.values(), LINEAR, MARKERS}:
        return None
    located = [one for one in read(crop, broken=True) if one.class_name == name]
    quads: Any = None
    if name == "qr_code":
        quads = cv2.QRCodeDetector().detect(crop.pixels)[1]
    elif name == LINEAR:
        quads = cv2.barcode.BarcodeDetector().detect(crop.pixels)[1]  # from the bottom left on
    elif name == MARKERS:
        quads = _marker_detector(DICTIONARIES[:1]).detectMarkersMultiDict(crop.pixels)[2]
    for quad in () if quads is None else np.reshape(quads, (-1, 4, 2)).astype(np.float64):
        corners = crop.in_picture(np.roll(quad, -1, 0) if name == LINEAR else quad)
        located.append(Barcode(None, "", b"", corners, name))
    if not located:
        return None
    filled = overlap(np.array([*map(_around, located)]), box)
    return located[int(filled.argmax())] if filled.max() >= FILLED else None


def _more_markers(crop: "_Crop", barcodes: Iterable[Barcode | None]) -> Iterator[Barcode]:
    """Markers of a whole picture that no detection has, of the dictionaries that were read."""
    known = [one for one in barcodes if one is not None and one.class_name == MARKERS]
    said = {one.symbology for one in known}
    said |= {f"{name.rpartition('_')[0]}_{SIZES[-1]}" for name in said}
    asked = tuple(name for name in DICTIONARIES if name in said)
    for barcode in markers(crop, asked or DICTIONARIES):
        modules = _dictionary(barcode.symbology).markerSize + 2  # a side, with the border
        # Of fewer pixels than modules nothing can be read: chance took them for a marker.
        is_large = cv2.contourArea(barcode.corners.astype(np.float32)) >= modules**2
        if is_large and barcode_in(_around(barcode), known) is None:
            yield barcode


def as_grey(pixels: npt.NDArray[Any]) -> Grey:
    """What OpenCV made of a grey picture, whose type its stubs don't know."""
    return pixels.astype(np.uint8, copy=False)


@dataclass(frozen=True, eq=False, slots=True)
class _Crop:
    """A crop of a picture, perhaps enlarged or turned."""

    pixels: Grey  # `(H, W)`
    matrix: Doubles  # `(2, 3)`, takes points of the picture to points of the crop

    def in_picture(self, points: Doubles) -> Doubles:
        """Points `(P, 2)` of the crop, in the picture."""
        moved: Doubles = cv2.transform(points[None], cv2.invertAffineTransform(self.matrix))[0]
        return moved

    def enlarged(self, times: int) -> "_Crop":
        """The crop, enlarged by a whole factor."""
        if times == 1:
            return self
        cubic, matrix = cv2.INTER_CUBIC, times * self.matrix
        # Pixel centres are at whole numbers, so half a pixel moves with the size.
        matrix[:, 2] += (times - 1) / 2
        pixels = cv2.resize(self.pixels, None, fx=times, fy=times, interpolation=cubic)
        return _Crop(as_grey(pixels), matrix)


def read(
    crop: _Crop,
    binarizer: Any = BINARIZERS[0],  # noqa: ANN401
    *,
    broken: bool = False,
) -> Iterator[Barcode]:
    """Read all barcodes in a crop of a picture with zxing-cpp; its defaults are its thorough way.

    Those that are `broken` are only located.
    """
    ways = {"binarizer": binarizer, "text_mode": zxingcpp.TextMode.Plain, "return_errors": broken}
    for code in zxingcpp.read_barcodes(crop.pixels, **ways):
        at = code.position
        ends = (at.top_left, at.top_right, at.bottom_right, at.bottom_left)
        corners = crop.in_picture(np.array([(end.x, end.y) for end in ends], np.float64))
        text = code.text if code.content_type in TEXTS else _plain(code.bytes)
        name, kind = str(code.format), str(code.symbology)
        class_name = CLASSES.get(name) or CLASSES.get(kind, LINEAR)
        if not broken:
            yield Barcode(text, name, bytes(code.bytes), corners, class_name)
        elif not code.valid:
            yield Barcode(None, "", b"", corners, class_name)


def _plain(content: bytes) -> str | None:
    """The text that zxing-cpp calls binary for its separators, as in driving licences."""
    text = content.decode(errors="surrogateescape")
    return text if all(one.isprintable() or one.isspace() or one == EOT for one in text) else None


def barcode_in(box: npt.NDArray[np.float32], barcodes: Iterable[Barcode]) -> Barcode | None:
    """The barcode whose middle is nearest to the middle of a box `(4,)`, if it is inside."""
    near, far = box[:2].astype(float), box[2:].astype(float)
    slack, middle = SLACK * (far - near), (near + far) / 2
    inside = [
        (float(np.hypot(*(centre - middle))), number, barcode)
        for number, barcode in enumerate(barcodes)
        if ((centre := barcode.corners.mean(0)) >= near - slack).all()
        and (centre <= far + slack).all()
    ]
    return min(inside)[2] if inside else None


def read_in(
    grey: Grey, box: npt.NDArray[np.float32], budget: PixelBudget, *, sure: bool, linear: bool
) -> Barcode | None:
    """Read the barcode in a box `(4,)` of a picture `(H, W)`, with as much budget as it takes.

    Of a linear code, two crops must give the same text if they are enhanced, or the box is not
    sure: chance passes one check digit in ten. Texts that differ give none. `linear` is whether a
    linear code is expected.
    """
    said: Counter[bytes] = Counter()
    crops = zip(_crops(grey, box), repeat(sure), strict=False)
    enhanced = zip(_enhanced_crops(grey, box), repeat(object=False), strict=False)
    for crop, early in chain(crops, enhanced):
        if not early and not budget.spend(crop.pixels.size):
            return None
        # Both read the same linear codes.
        for binarizer in BINARIZERS[: 1 if linear and not early else None]:
            barcodes = [one for one in read(crop, binarizer) if barcode_in(box, [one]) is not None]
            lines = {one.content: one for one in barcodes if one.class_name == LINEAR and not early}
            barcode = barcode_in(box, [one for one in barcodes if one.content not in lines])
            if barcode is not None:
                return barcode
            said.update(lines.keys())
            if len(said) > 1:
                return None
            if lines:
                (content, barcode), *_ = lines.items()
                if said[content] > 1:
                    return barcode
                break
    return None


def _crops(grey: Grey, box: npt.NDArray[np.float32]) -> Iterator[_Crop]:
    """What is in a box and around it: as it is, turned upright, and enlarged both ways."""
    crop = _crop_around(grey, box)
    if not crop.pixels.size:
        return
    tilt = _tilt(crop.pixels)
    for times in ENLARGED:
        if times > 1 and times * max(crop.pixels.shape) > LONGEST:
            return
        enlarged = crop.enlarged(times)
        yield enlarged
        if abs(tilt) >= LEAST_TURN:
            yield _turned(enlarged, tilt)


def _crop_around(grey: Grey, box: npt.NDArray[np.float32]) -> _Crop:
    """A box `(4,)` and what is around it, in whole pixels within the picture; may be empty."""
    left, top, right, bottom = box.tolist()
    margin = max(LEAST_MARGIN, MARGIN * max(right - left, bottom - top))
    x, y = max(0, math.floor(left - margin)), max(0, math.floor(top - margin))
    pixels = grey[y : math.ceil(bottom + margin), x : math.ceil(right + margin)]
    return _Crop(pixels, np.array([[1, 0, -x], [0, 1, -y]], np.float64))


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


def _turned(crop: _Crop, degrees: float) -> _Crop:
    """A crop turned back by an angle, whole."""
    height, width = crop.pixels.shape
    middle = ((width - 1) / 2, (height - 1) / 2)
    matrix = cv2.getRotationMatrix2D(middle, degrees, 1)
    cos, sin = abs(matrix[0, 0]), abs(matrix[0, 1])
    size = (math.ceil(width * cos + height * sin), math.ceil(width * sin + height * cos))
    matrix[:, 2] += (size[0] - 1) / 2 - middle[0], (size[1] - 1) / 2 - middle[1]
    pixels = cv2.warpAffine(
        crop.pixels, matrix, size, flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE
    )
    whole = matrix[:, :2] @ crop.matrix
    whole[:, 2] += matrix[:, 2]
    return _Crop(as_grey(pixels), whole)


def _enhanced_crops(grey: Grey, box: npt.NDArray[np.float32]) -> Iterator[_Crop]:
    """What is in a box and around it, changed in each of the ways of `ENHANCEMENTS`."""
    crop = _crop_around(grey, box)
    if not crop.pixels.size:
        return
    for change in ENHANCEMENTS.values():
        pixels = change(crop.pixels)
        times = np.divide(pixels.shape, crop.pixels.shape)[::-1, None]  # across, down
        matrix = times * crop.matrix
        matrix[:, 2:] += (times - 1) / 2
        yield _Crop(pixels, matrix)


def _sized(grey: Grey, across: int, down: int) -> Grey:
    return as_grey(cv2.resize(grey, None, fx=across, fy=down, interpolation=cv2.INTER_CUBIC))


def _doubled(grey: Grey) -> Grey:
    return _sized(grey, 2, 2) if max(grey.shape) < DOUBLED else grey


def _sharpened(grey: Grey, sigma: float, amount: float) -> Grey:
    blurred = cv2.GaussianBlur(grey, (0, 0), sigma)
    return as_grey(cv2.addWeighted(grey, 1 + amount, blurred, -amount, 0))


def _evened(grey: Grey) -> Grey:
    return as_grey(cv2.createCLAHE(3, (4, 4)).apply(grey))


def _flattened(grey: Grey) -> Grey:
    """Divided by what is around each pixel, which is blurred when small, as that is as good."""
    times = 1 / max(1, max(grey.shape) // 100)
    small = cv2.resize(grey, None, fx=times, fy=times, interpolation=cv2.INTER_AREA)
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


def read_marker(grey: Grey, box: npt.NDArray[np.float32]) -> Barcode | None:
    """Read the ArUco or AprilTag marker in a box `(4,)` of a picture `(H, W)`: its number."""
    crop = _crop_around(grey, box)
    if not crop.pixels.size:
        return None
    crop = crop.enlarged(max(1, min(4, round(200 / max(crop.pixels.shape)))))
    for pixels in (crop.pixels, as_grey(255 - crop.pixels)):  # dark on light, then light on dark
        barcode = barcode_in(box, markers(_Crop(pixels, crop.matrix)))
        if barcode is not None:
            return barcode
    return None


def markers(crop: _Crop, dictionaries: tuple[str, ...] = DICTIONARIES) -> Iterator[Barcode]:
    """Read all dark markers in a crop of a picture with OpenCV."""
    corners, numbers, _, kinds = _marker_detector(dictionaries).detectMarkersMultiDict(crop.pixels)
    if numbers is None:
        return
    for quad, number, kind in zip(corners, numbers.flat, kinds.flat, strict=True):
        ends = crop.in_picture(quad[0].astype(np.float64))
        yield Barcode(str(number), _smallest(dictionaries[kind], number), b"", ends, MARKERS)


@cache
def _marker_detector(dictionaries: tuple[str, ...]) -> Any:  # noqa: ANN401 - of OpenCV
    """OpenCV's detector of markers of some dictionaries."""
    settings = cv2.aruco.DetectorParameters()
    settings.cornerRefinementMethod = cv2.aruco.CORNER_REFINE_SUBPIX
    return cv2.aruco.ArucoDetector([*map(_dictionary, dictionaries)], settings)


def _dictionary(name: str) -> Any:  # noqa: ANN401 - of OpenCV
    return cv2.aruco.getPredefinedDictionary(getattr(cv2.aruco, name))


def _smallest(dictionary: str, number: int) -> str:
    """The smallest dictionary of this kind that has a marker."""
    kind, _, size = dictionary.rpartition("_")
    if size != str(SIZES[-1]):
        return dictionary
    return f"{kind}_{next(size for size in SIZES if number < size)}"


def _with_others(found: Detections, barcodes: list[Barcode], settings: Settings) -> Detections:
    """Detections with barcodes of which they have none, of the wanted classes, up to `max_det`.

    What could be read is there for certain: the score is 1.
    """
    names = found.names
    wanted = class_ids(settings.classes, names) or range(len(names))
    new = [one for one in barcodes if one.class_name in {names[index] for index in wanted}]
    if len(found) <= settings.max_det:  # of tiles, each may have as many
        del new[settings.max_det - len(found) :]
    if not new:
        return found
    assert found.symbols is not None  # noqa: S101 - of Codes
    return replace(
        found,
        xyxy=np.insert(found.xyxy, 0, [*map(_around, new)], axis=0),
        score=np.insert(found.score, 0, np.ones(len(new))),
        class_id=np.insert(found.class_id, 0, [names.index(one.class_name) for one in new]),
        symbols=np.insert(
            found.symbols, 0, np.fromiter((replace(one, confirmed=True) for one in new), np.object_)
        ),
    )


class TrackTexts:
    """Gives barcodes that cannot be read in a frame what their track said before."""

    def __init__(self) -> None:
        self._videos: PerVideo[dict[int, Barcode]] = PerVideo(lambda _: {})

    def add(self, record: Record, _: Picture, found: Detections) -> Record:
        if record.origin.frame is None or found.track_id is None or found.symbols is None:
            return record
        known, barcodes = self._videos.of(record), found.symbols.copy()
        for row, number in enumerate(found.track_id.tolist()):
            barcode, before = barcodes[row], known.pop(number, None)
            if barcode is not None and barcode.symbology and number > 0:
                known[number] = barcode
            elif before is not None:
                corners = NOWHERE if barcode is None else barcode.corners
                barcodes[row] = replace(before, corners=corners, confirmed=False, earlier=True)
                known[number] = before
        while len(known) > REMEMBERED:  # those not seen for long come first
            del known[next(iter(known))]
        return replace(record, detections=replace(found, symbols=barcodes))
