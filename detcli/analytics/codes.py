"""Codes: what the symbols in a picture say.

    zxing-cpp reads the whole picture       detected or not, what it finds is kept
    each detection that is left is cut out  as it is, enlarged, turned upright, until it is read
    RUNGS change what is still not read     by contrast and sharpness, within EFFORT a picture
    OpenCV reads markers                    ArUco's and AprilTag's, where one was detected
    both locate what is not read            so that it has corners too, where they find any

Detections below the confidence are tried too, and stay only if they are read.

So nothing is lost that zxing-cpp reads by itself; small and tilted symbols join, because the
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
from detcli.data.detections import Detections, Symbol
from detcli.data.geometry import Picture, overlap
from detcli.data.per_video import PerVideo
from detcli.data.record import Record
from detcli.model.contract import class_ids

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
FILLED = 0.5  # IoU from which on what looks like a symbol is that of a box
SLACK = 0.1  # of a box's sides, by which the middle of a symbol may lie outside

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

# Pixels a picture that are read on rungs and below the confidence: no clock, so that a busy
# machine reads the same. About 0.4 seconds.
EFFORT = 4 << 20
DOUBLED = 800  # pixels of a side from which on a part is not doubled
NOWHERE: Doubles = np.empty((0, 2))  # corners that are not known
REMEMBERED = 10_000  # tracks of a video whose texts are known, as a stream may never end
LIGHTER = (np.sqrt(np.arange(256) / 255) * 255).astype(np.uint8)


class Codes:
    """Reads the symbols in pictures.

    Pictures have to be at full size. Of the settings, the region, the classes and `max_det` count.
    Detections that do not exceed the confidence of their class, `(C,)`, are left out if they cannot
    be read.
    """

    def __init__(self, settings: Settings, conf_thresholds: npt.NDArray[np.float32] | None) -> None:
        self._settings = settings
        self._conf_thresholds = conf_thresholds

    def add(self, record: Record, picture: Picture, found: Detections) -> Record:
        """The record with what its detections say, and with symbols that only reading found."""
        grey = as_grey(cv2.cvtColor(picture.pixels, cv2.COLOR_BGR2GRAY))
        whole, part = np.eye(2, 3), grey
        if (region := self._settings.region) is not None:
            left, top, right, bottom = region.area(picture.size)
            whole[:, 2], part = (-left, -top), grey[top:bottom, left:right]
        sure = np.ones(len(found), bool)
        if self._conf_thresholds is not None:
            sure = found.score > self._conf_thresholds[found.class_id]
        loose = [one for one in read(_Cut(part, whole)) if not _is_contradicted(grey, one)]
        symbols = np.full(len(found), None, np.object_)
        effort = Effort(EFFORT)
        for row in np.flatnonzero(sure).tolist():
            symbols[row] = symbol_in(found.xyxy[row], loose)
        _take(loose, symbols)
        for row in np.flatnonzero(sure).tolist():
            if symbols[row] is None:
                symbols[row] = _look(grey, found[row], effort, sure=True)
        framed = np.flatnonzero(sure & (found.class_name == MARKERS)).tolist()
        if framed:
            loose += _more_markers(_Cut(part, whole), symbols)
        for row in framed:
            symbols[row] = symbols[row] or symbol_in(found.xyxy[row], loose)
        _take(loose, symbols)
        for row in np.flatnonzero(~sure).tolist():
            symbols[row] = _confirm(grey, found[row], [*symbols], loose, effort)
        for row in np.flatnonzero(sure).tolist():
            symbols[row] = symbols[row] or _locate(grey, found[row])
        found = _kept(replace(found, symbols=symbols), sure)
        return replace(record, detections=_with_others(found, loose, self._settings))


def _is_contradicted(grey: Grey, bars: Symbol) -> bool:
    """Whether the part around bars says something else: chance passes one check digit in ten."""
    if bars.class_name != LINEAR:
        return False
    box = _around(bars)
    near = [*read(_cut_out(grey, box))]
    return symbol_in(box, near) is not None and bars.content not in {one.content for one in near}


def _around(symbol: Symbol) -> npt.NDArray[np.float32]:
    """The box `(4,)` around a symbol."""
    return np.array([symbol.corners.min(0), symbol.corners.max(0)], np.float32).ravel()


def _kept(found: Detections, sure: npt.NDArray[np.bool_]) -> Detections:
    """Detections without those that are neither sure, `(N,)`, nor read; those only read first."""
    symbols = () if found.symbols is None else found.symbols
    confirmed = np.array([one is not None and one.confirmed for one in symbols], bool)
    found = replace(found, score=np.where(confirmed, np.float32(1), found.score))
    order = np.argsort(~confirmed, kind="stable")
    return found[order[(sure | confirmed)[order]]]


def _take(loose: list[Symbol], symbols: Iterable[Symbol | None]) -> None:
    """Remove symbols that detections have from those that none has."""
    known = {id(symbol) for symbol in symbols}
    loose[:] = [symbol for symbol in loose if id(symbol) not in known]


@dataclass(slots=True)
class Effort:
    """What a picture may cost beyond what every picture does."""

    pixels: int

    def spend(self, pixels: int) -> bool:
        """Whether there is enough left."""
        self.pixels -= pixels
        return self.pixels >= 0


def _look(grey: Grey, one: Detections, effort: Effort, *, sure: bool) -> Symbol | None:
    """Read the symbol of a single detection."""
    (box, _, _, name), *_ = one
    if name == MARKERS:
        return read_marker(grey, box) if sure else None  # it takes seconds in some textures
    return read_in(grey, box, effort, sure=sure, bars=name == LINEAR)


def _confirm(
    grey: Grey, one: Detections, symbols: list[Symbol | None], loose: list[Symbol], effort: Effort
) -> Symbol | None:
    """What makes a detection below the confidence one: a symbol of its class that none has yet."""
    (box, _, _, name), *_ = one
    if name not in {*CLASSES.values(), LINEAR, MARKERS}:
        return None
    if symbol_in(box, [symbol for symbol in symbols if symbol is not None]) is not None:
        return None
    symbol = symbol_in(box, loose)
    if symbol is not None:
        _take(loose, [symbol] * (symbol.class_name == name))
    else:
        symbol = _look(grey, one, effort, sure=False)
    if symbol is None or symbol.class_name != name:
        return None
    return replace(symbol, confirmed=True)


def _locate(grey: Grey, one: Detections) -> Symbol | None:
    """Where the symbol of a single detection is that could not be read: what fills most of it."""
    (box, _, _, name), *_ = one
    part = _cut_out(grey, box)
    if not part.pixels.size or name not in {*CLASSES.values(), LINEAR, MARKERS}:
        return None
    located = [one for one in read(part, broken=True) if one.class_name == name]
    quads: Any = None
    if name == "qr_code":
        quads = cv2.QRCodeDetector().detect(part.pixels)[1]
    elif name == LINEAR:
        quads = cv2.barcode.BarcodeDetector().detect(part.pixels)[1]  # from the bottom left on
    elif name == MARKERS:
        quads = _marker_detector(DICTIONARIES[:1]).detectMarkersMultiDict(part.pixels)[2]
    for quad in () if quads is None else np.reshape(quads, (-1, 4, 2)).astype(np.float64):
        corners = part.in_picture(np.roll(quad, -1, 0) if name == LINEAR else quad)
        located.append(Symbol(None, "", b"", corners, name))
    if not located:
        return None
    filled = overlap(np.array([*map(_around, located)]), box)
    return located[int(filled.argmax())] if filled.max() >= FILLED else None


def _more_markers(part: "_Cut", symbols: Iterable[Symbol | None]) -> Iterator[Symbol]:
    """Markers of a whole picture that no detection has, of the dictionaries that were read."""
    known = [one for one in symbols if one is not None and one.class_name == MARKERS]
    said = {one.symbology for one in known}
    said |= {f"{name.rpartition('_')[0]}_{SIZES[-1]}" for name in said}
    asked = tuple(name for name in DICTIONARIES if name in said)
    for symbol in markers(part, asked or DICTIONARIES):
        modules = _dictionary(symbol.symbology).markerSize + 2  # a side, with the border
        # Of fewer pixels than modules nothing can be read: chance took them for a marker.
        is_large = cv2.contourArea(symbol.corners.astype(np.float32)) >= modules**2
        if is_large and symbol_in(_around(symbol), known) is None:
            yield symbol


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


def read(
    part: _Cut,
    binarizer: Any = BINARIZERS[0],  # noqa: ANN401
    *,
    broken: bool = False,
) -> Iterator[Symbol]:
    """Read all symbols in a part of a picture with zxing-cpp; its defaults are its thorough way.

    Those that are `broken` are only located.
    """
    ways = {"binarizer": binarizer, "text_mode": zxingcpp.TextMode.Plain, "return_errors": broken}
    for code in zxingcpp.read_barcodes(part.pixels, **ways):
        at = code.position
        ends = (at.top_left, at.top_right, at.bottom_right, at.bottom_left)
        corners = part.in_picture(np.array([(end.x, end.y) for end in ends], np.float64))
        text = code.text if code.content_type in TEXTS else _plain(code.bytes)
        name, kind = str(code.format), str(code.symbology)
        class_name = CLASSES.get(name) or CLASSES.get(kind, LINEAR)
        if not broken:
            yield Symbol(text, name, bytes(code.bytes), corners, class_name)
        elif not code.valid:
            yield Symbol(None, "", b"", corners, class_name)


def _plain(content: bytes) -> str | None:
    """The text that zxing-cpp calls binary for its separators, as in driving licences."""
    text = content.decode(errors="surrogateescape")
    return text if all(one.isprintable() or one.isspace() or one == EOT for one in text) else None


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


def read_in(
    grey: Grey, box: npt.NDArray[np.float32], effort: Effort, *, sure: bool, bars: bool
) -> Symbol | None:
    """Read the symbol in a box `(4,)` of a picture `(H, W)`, with as much effort as it takes.

    On rungs, and if the box is not sure, two parts must give the same text of bars: chance passes
    one check digit in ten. Texts that differ give none. `bars` is whether bars are expected.
    """
    said: Counter[bytes] = Counter()
    cuts = zip(_cuts(grey, box), repeat(sure), strict=False)
    for part, early in chain(cuts, zip(_rungs(grey, box), repeat(object=False), strict=False)):
        if not early and not effort.spend(part.pixels.size):
            return None
        for binarizer in BINARIZERS[: 1 if bars and not early else None]:  # the same for bars
            symbols = [one for one in read(part, binarizer) if symbol_in(box, [one]) is not None]
            lines = {one.content: one for one in symbols if one.class_name == LINEAR and not early}
            symbol = symbol_in(box, [one for one in symbols if one.content not in lines])
            if symbol is not None:
                return symbol
            said.update(lines.keys())
            if len(said) > 1:
                return None
            if lines:
                (content, symbol), *_ = lines.items()
                if said[content] > 1:
                    return symbol
                break
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


def _rungs(grey: Grey, box: npt.NDArray[np.float32]) -> Iterator[_Cut]:
    """What is in a box and around it, changed in each of the ways of `RUNGS`."""
    part = _cut_out(grey, box)
    if not part.pixels.size:
        return
    for change in RUNGS.values():
        pixels = change(part.pixels)
        times = np.divide(pixels.shape, part.pixels.shape)[::-1, None]  # across, down
        matrix = times * part.matrix
        matrix[:, 2:] += (times - 1) / 2
        yield _Cut(pixels, matrix)


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
RUNGS: dict[str, Callable[[Grey], Grey]] = {
    "sharpened at twice the size": lambda grey: _sharpened(_doubled(grey), 3, 2),
    "CLAHE at twice the size": lambda grey: _evened(_doubled(grey)),
    "CLAHE": _evened,
    "flat background": _flattened,
    "lighter": lambda grey: as_grey(cv2.LUT(grey, LIGHTER)),
    "sharpened more": lambda grey: _sharpened(_doubled(grey), 5, 3),
    "sharpened": lambda grey: _sharpened(grey, 2, 1.5),
    "twice as wide": lambda grey: _sized(grey, 2, 1),
}


def read_marker(grey: Grey, box: npt.NDArray[np.float32]) -> Symbol | None:
    """Read the ArUco or AprilTag marker in a box `(4,)` of a picture `(H, W)`: its number."""
    part = _cut_out(grey, box)
    if not part.pixels.size:
        return None
    part = part.enlarged(max(1, min(4, round(200 / max(part.pixels.shape)))))
    for pixels in (part.pixels, as_grey(255 - part.pixels)):  # dark on light, then light on dark
        symbol = symbol_in(box, markers(_Cut(pixels, part.matrix)))
        if symbol is not None:
            return symbol
    return None


def markers(part: _Cut, dictionaries: tuple[str, ...] = DICTIONARIES) -> Iterator[Symbol]:
    """Read all dark markers in a part of a picture with OpenCV."""
    corners, numbers, _, kinds = _marker_detector(dictionaries).detectMarkersMultiDict(part.pixels)
    if numbers is None:
        return
    for quad, number, kind in zip(corners, numbers.flat, kinds.flat, strict=True):
        ends = part.in_picture(quad[0].astype(np.float64))
        yield Symbol(str(number), _smallest(dictionaries[kind], number), b"", ends, MARKERS)


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


def _with_others(found: Detections, symbols: list[Symbol], settings: Settings) -> Detections:
    """Detections with symbols of which they have none, of the wanted classes, up to `max_det`.

    What could be read is there for certain: the score is 1.
    """
    names = found.names
    wanted = class_ids(settings.classes, names) or range(len(names))
    new = [one for one in symbols if one.class_name in {names[index] for index in wanted}]
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
    """Gives symbols that cannot be read in a frame what their track said before."""

    def __init__(self) -> None:
        self._videos: PerVideo[dict[int, Symbol]] = PerVideo(lambda _: {})

    def add(self, record: Record, _: Picture, found: Detections) -> Record:
        if record.origin.frame is None or found.track_id is None or found.symbols is None:
            return record
        known, symbols = self._videos.of(record), found.symbols.copy()
        for row, number in enumerate(found.track_id.tolist()):
            symbol, before = symbols[row], known.pop(number, None)
            if symbol is not None and symbol.symbology and number > 0:
                known[number] = symbol
            elif before is not None:
                corners = NOWHERE if symbol is None else symbol.corners
                symbols[row] = replace(before, corners=corners, confirmed=False, earlier=True)
                known[number] = before
        while len(known) > REMEMBERED:  # those not seen for long come first
            del known[next(iter(known))]
        return replace(record, detections=replace(found, symbols=symbols))
