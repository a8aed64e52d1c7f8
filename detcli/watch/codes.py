"""Codes: what the symbols in a picture say.

    zxing-cpp reads the whole picture       detected or not, what it finds is kept
    each detection that is left is cut out  as it is, enlarged, turned upright, until it is read
    OpenCV reads markers                    ArUco's and AprilTag's

So nothing is lost that zxing-cpp reads by itself; small and tilted symbols join, because the
detector knows where they are.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import zxingcpp

from detcli.core.detections import Detections, Symbol
from detcli.core.geometry import Picture
from detcli.core.opencv import cv2
from detcli.core.record import Record
from detcli.core.values import Shape

Grey = npt.NDArray[np.uint8]
Doubles = npt.NDArray[np.float64]

MARKERS = "aruco"  # the class whose symbols OpenCV reads

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

MARGIN = 0.12  # of a box's longer side, on each side: symbols need their quiet zone
LEAST_MARGIN = 4  # pixels
ENLARGED = (1, 2, 4)  # times the size of a cut: zxing-cpp wants modules of three pixels
LONGEST = 1600  # pixels of an enlarged side
LEAST_TURN = 3.0  # degrees of tilt
SLACK = 0.1  # of a box's sides, by which the middle of a symbol may lie outside

BINARIZERS = (zxingcpp.Binarizer.LocalAverage, zxingcpp.Binarizer.GlobalHistogram)
TEXTS = {zxingcpp.ContentType.Text, zxingcpp.ContentType.GS1, zxingcpp.ContentType.ISO15434}

# The largest of each kind, those with the most bits first: they hardly take one for another.
DICTIONARIES = (
    *("DICT_7X7_1000", "DICT_APRILTAG_36h11", "DICT_APRILTAG_36h10", "DICT_ARUCO_MIP_36h12"),
    *("DICT_6X6_1000", "DICT_APRILTAG_25h9", "DICT_5X5_1000", "DICT_ARUCO_ORIGINAL"),
    *("DICT_4X4_1000", "DICT_APRILTAG_16h5"),
)
# Markers in the dictionaries of a kind, of which each begins with the smaller one.
SIZES = (50, 100, 250, 1000)


class Codes:
    """Reads the symbols in pictures.

    Pictures have to be at full size. Only a region of them is read, if there is one.
    """

    def __init__(self, region: Shape | None = None) -> None:
        self._region = region

    def add(self, record: Record, picture: Picture, found: Detections) -> Record:
        """The record with what its detections say, and with symbols that only reading found."""
        grey = as_grey(cv2.cvtColor(picture.pixels, cv2.COLOR_BGR2GRAY))
        whole, part = np.eye(2, 3), grey
        if self._region is not None:
            left, top, right, bottom = self._region.area(picture.size)
            whole[:, 2], part = (-left, -top), grey[top:bottom, left:right]
        loose = [*read(_Cut(part, whole))]
        symbols = np.full(len(found), None, np.object_)
        for row, box in enumerate(found.xyxy):
            symbols[row] = symbol_in(box, loose)
        known = {id(symbol) for symbol in symbols}
        loose = [symbol for symbol in loose if id(symbol) not in known]
        for row, (box, _, _, name) in enumerate(found):
            if symbols[row] is None:
                look = read_marker if name == MARKERS else read_in
                symbols[row] = look(grey, box)
        found = with_others(replace(found, symbols=symbols), loose)
        return replace(record, detections=found)


def as_grey(pixels: npt.NDArray[Any]) -> Grey:
    """What OpenCV made of a grey picture, whose type its stubs don't know."""
    return pixels.astype(np.uint8, copy=False)


@dataclass(frozen=True, eq=False, slots=True)
class _Cut:
    """A part of a picture, perhaps enlarged or turned."""

    pixels: Grey  # `(H, W)`
    matrix: Doubles  # `(2, 3)`, takes points of the picture to points of the part

    def in_picture(self, points: Doubles) -> Doubles:
        """Points `(P, 2)` of the part, in the picture."""
        moved: Doubles = cv2.transform(points[None], cv2.invertAffineTransform(self.matrix))[0]
        return moved

    def enlarged(self, times: int) -> "_Cut":
        """The part, enlarged by a whole factor."""
        if times == 1:
            return self
        cubic, matrix = cv2.INTER_CUBIC, times * self.matrix
        # Pixel centres are at whole numbers, so half a pixel moves with the size.
        matrix[:, 2] += (times - 1) / 2
        pixels = cv2.resize(self.pixels, None, fx=times, fy=times, interpolation=cubic)
        return _Cut(as_grey(pixels), matrix)


def read(part: _Cut, binarizer: Any = BINARIZERS[0]) -> Iterator[Symbol]:  # noqa: ANN401
    """Read all symbols in a part of a picture with zxing-cpp; its defaults are its thorough way."""
    mode = zxingcpp.TextMode.Plain
    for code in zxingcpp.read_barcodes(part.pixels, binarizer=binarizer, text_mode=mode):
        at = code.position
        ends = (at.top_left, at.top_right, at.bottom_right, at.bottom_left)
        corners = part.in_picture(np.array([(end.x, end.y) for end in ends], np.float64))
        text = code.text if code.content_type in TEXTS else None
        name, kind = str(code.format), str(code.symbology)
        class_name = CLASSES.get(name) or CLASSES.get(kind, LINEAR)
        yield Symbol(text, name, bytes(code.bytes), corners, class_name)


def symbol_in(box: npt.NDArray[np.float32], symbols: Iterable[Symbol]) -> Symbol | None:
    """The symbol whose middle is nearest to the middle of a box `(4,)`, if it is inside."""
    near, far = box[:2].astype(float), box[2:].astype(float)
    slack, middle = SLACK * (far - near), (near + far) / 2
    inside = [
        (float(np.hypot(*(centre - middle))), number, symbol)
        for number, symbol in enumerate(symbols)
        if ((centre := symbol.corners.mean(0)) >= near - slack).all()
        and (centre <= far + slack).all()
    ]
    return min(inside)[2] if inside else None


def read_in(grey: Grey, box: npt.NDArray[np.float32]) -> Symbol | None:
    """Read the symbol in a box `(4,)` of a picture `(H, W)`, with as much effort as it takes."""
    for part in _cuts(grey, box):
        for binarizer in BINARIZERS:
            if (symbol := symbol_in(box, read(part, binarizer))) is not None:
                return symbol
    return None


def _cuts(grey: Grey, box: npt.NDArray[np.float32]) -> Iterator[_Cut]:
    """What is in a box and around it: as it is, turned upright, and enlarged both ways."""
    part = _cut_out(grey, box)
    if not part.pixels.size:
        return
    tilt = _tilt(part.pixels)
    for times in ENLARGED:
        if times > 1 and times * max(part.pixels.shape) > LONGEST:
            return
        cut = part.enlarged(times)
        yield cut
        if abs(tilt) >= LEAST_TURN:
            yield _turned(cut, tilt)


def _cut_out(grey: Grey, box: npt.NDArray[np.float32]) -> _Cut:
    """A box `(4,)` and what is around it, in whole pixels within the picture; may be empty."""
    left, top, right, bottom = box.tolist()
    margin = max(LEAST_MARGIN, MARGIN * max(right - left, bottom - top))
    x, y = max(0, math.floor(left - margin)), max(0, math.floor(top - margin))
    pixels = grey[y : math.ceil(bottom + margin), x : math.ceil(right + margin)]
    return _Cut(pixels, np.array([[1, 0, -x], [0, 1, -y]], np.float64))


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


def _turned(part: _Cut, degrees: float) -> _Cut:
    """A part turned back by an angle, whole."""
    height, width = part.pixels.shape
    middle = ((width - 1) / 2, (height - 1) / 2)
    matrix = cv2.getRotationMatrix2D(middle, degrees, 1)
    cos, sin = abs(matrix[0, 0]), abs(matrix[0, 1])
    size = (math.ceil(width * cos + height * sin), math.ceil(width * sin + height * cos))
    matrix[:, 2] += (size[0] - 1) / 2 - middle[0], (size[1] - 1) / 2 - middle[1]
    pixels = cv2.warpAffine(
        part.pixels, matrix, size, flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE
    )
    whole = matrix[:, :2] @ part.matrix
    whole[:, 2] += matrix[:, 2]
    return _Cut(as_grey(pixels), whole)


def read_marker(grey: Grey, box: npt.NDArray[np.float32]) -> Symbol | None:
    """Read the ArUco or AprilTag marker in a box `(4,)` of a picture `(H, W)`: its number."""
    part = _cut_out(grey, box)
    if not part.pixels.size:
        return None
    part = part.enlarged(max(1, min(4, round(200 / max(part.pixels.shape)))))
    for pixels in (part.pixels, 255 - part.pixels):  # dark on light, then light on dark
        corners, numbers, _, kinds = _marker_detector().detectMarkersMultiDict(pixels)
        if numbers is None:
            continue
        symbols = [
            Symbol(
                str(number),
                _smallest(DICTIONARIES[kind], number),
                b"",
                part.in_picture(quad[0].astype(np.float64)),
                MARKERS,
            )
            for quad, number, kind in zip(corners, numbers.flat, kinds.flat, strict=True)
        ]
        if (symbol := symbol_in(box, symbols)) is not None:
            return symbol
    return None


@cache
def _marker_detector() -> Any:  # noqa: ANN401 - of OpenCV
    """OpenCV's detector of markers of all dictionaries."""
    settings = cv2.aruco.DetectorParameters()
    settings.cornerRefinementMethod = cv2.aruco.CORNER_REFINE_SUBPIX
    known = [cv2.aruco.getPredefinedDictionary(getattr(cv2.aruco, name)) for name in DICTIONARIES]
    return cv2.aruco.ArucoDetector(known, settings)


def _smallest(dictionary: str, number: int) -> str:
    """The smallest dictionary of this kind that has a marker."""
    kind, _, size = dictionary.rpartition("_")
    if size != str(SIZES[-1]):
        return dictionary
    return f"{kind}_{next(size for size in SIZES if number < size)}"


def with_others(found: Detections, symbols: Iterable[Symbol]) -> Detections:
    """Detections with symbols of which they have none, if the model has a class for these.

    What could be read is there for certain: the score is 1.
    """
    new = [one for one in symbols if one.class_name in found.names]
    if not new:
        return found
    assert found.symbols is not None  # noqa: S101 - of Codes
    hulls = [[*one.corners.min(0), *one.corners.max(0)] for one in new]
    return replace(
        found,
        xyxy=np.insert(found.xyxy, 0, hulls, axis=0),
        score=np.insert(found.score, 0, np.ones(len(new))),
        class_id=np.insert(found.class_id, 0, [found.names.index(one.class_name) for one in new]),
        symbols=np.insert(found.symbols, 0, np.fromiter(new, np.object_)),
    )
