"""Clean symbols as arrays, one cell for each module, from symbology libraries.

zxing-cpp writes most symbologies, segno Micro QR, OpenCV the ArUco and AprilTag dictionaries.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import cv2
import numpy as np
import segno
import zxingcpp
from numpy.typing import NDArray

Cells = NDArray[np.uint8]
Random = np.random.Generator
Format = zxingcpp.BarcodeFormat

NAMES = ("qr_code", "micro_qr", "data_matrix", "barcode", "pdf417", "aruco", "aztec")
QR_CODE, MICRO_QR, DATA_MATRIX, BARCODE, PDF417, ARUCO, AZTEC = range(len(NAMES))  # class ids
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
DIGITS = "0123456789"
MIXED = LETTERS + LETTERS.lower() + DIGITS + "-./ "
MAX_ASPECT = 12  # of bars
BARS_QUIET = 9  # modules beside linear codes
MIN_DARK = 0.12  # of a marker's inner cells; a nearly white marker has no recognisable pattern
STACKED = {Format.DataBarStk, Format.DataBarStkOmni, Format.DataBarExpStk}
RETAIL = {Format.EAN13, Format.EAN8, Format.UPCA, Format.UPCE}  # these have guard bars
ZXING_SMALLEST_RECTANGLE, ZXING_LARGEST_RECTANGLE = 25, 48  # its numbers of Data Matrix versions
MICRO_PDF417_SHARE, COMPACT_PDF417_SHARE = 0.12, 0.13
DICTIONARIES = (
    "4X4_1000 5X5_1000 6X6_1000 7X7_1000 ARUCO_ORIGINAL APRILTAG_16H5 APRILTAG_25H9 "
    "APRILTAG_36H10 APRILTAG_36H11 ARUCO_MIP_36H12"
).split()


class Symbol(NamedTuple):
    """One symbol without its quiet zone.

    Attributes:
        label: Class id, an index of `NAMES`.
        cells: `[rows, columns]`, 1 where dark. Bars have one row for any height.
        quiet: Width of the quiet zone that its standard asks for, in modules.
        aspect: Length over height. Bars have any; otherwise that of the cells.
        guards: For EAN and UPC the bars that reach further down, as one row; else None.
    """

    label: int
    cells: Cells
    quiet: int
    aspect: float
    guards: Cells | None = None

    @property
    def is_bars(self) -> bool:
        """Whether it is a linear code, whose single row is repeated to any height."""
        return len(self.cells) == 1


class LinearFormat(NamedTuple):
    """A format of bars: how often it is drawn, and what content it takes.

    Attributes:
        format: The format as zxing-cpp calls it.
        alphabet: The characters to draw from.
        min_length: The fewest characters.
        max_length: The most characters.
        weight: How often it is drawn, relative to the weights of the others.
    """

    format: Format
    alphabet: str
    min_length: int
    max_length: int
    weight: float


# Telepen stands for rarer ones. A check digit is added where the format has one.
LINEAR_FORMATS = (
    LinearFormat(Format.EAN13, DIGITS, 12, 12, 5),
    LinearFormat(Format.EAN8, DIGITS, 7, 7, 1),
    LinearFormat(Format.UPCA, DIGITS, 11, 11, 2),
    LinearFormat(Format.UPCE, "3456789", 6, 6, 1),
    LinearFormat(Format.Code128, MIXED, 4, 22, 4),
    LinearFormat(Format.Code128, DIGITS, 6, 24, 3),
    LinearFormat(Format.Code39, LETTERS + DIGITS, 3, 12, 3),
    LinearFormat(Format.Code93, LETTERS + DIGITS, 3, 14, 1),
    LinearFormat(Format.ITF, DIGITS, 3, 9, 2),
    LinearFormat(Format.Codabar, DIGITS, 4, 12, 1),
    LinearFormat(Format.DataBarOmni, DIGITS, 13, 13, 0.5),
    LinearFormat(Format.DataBarLtd, DIGITS, 12, 12, 0.5),
    LinearFormat(Format.Telepen, LETTERS, 3, 10, 0.3),
    LinearFormat(Format.DataBarStk, DIGITS, 13, 13, 0.4),
    LinearFormat(Format.DataBarStkOmni, DIGITS, 13, 13, 0.5),
    LinearFormat(Format.DataBarExp, DIGITS, 4, 16, 0.3),
    LinearFormat(Format.DataBarExpStk, DIGITS, 10, 40, 0.8),
)


def text(random: Random, alphabet: str, low: int, high: int) -> str:
    """Between `low` and `high` random characters."""
    return "".join(random.choice(list(alphabet), int(random.integers(low, high + 1))))


def symbol(random: Random, name: str) -> Symbol:
    """A symbol of the named class with random content; its format, size and coding vary too."""
    return MAKERS[name](random)


def written(content: str, barcode_format: Format, **options: str | int) -> Cells:
    """Cells of a symbol as zxing-cpp writes it, 1 where dark."""
    barcode = zxingcpp.create_barcode(content, barcode_format, **options)
    image = zxingcpp.write_barcode_to_image(barcode, scale=1, add_quiet_zones=False)
    return _dark(np.array(image))


def _dark(image: NDArray[Any]) -> Cells:
    """1 where a grey image is dark, else 0."""
    return (image < 128).astype(np.uint8)


def _matrix(label: int, cells: Cells, quiet: int) -> Symbol:
    """A symbol that is as wide and high as its cells."""
    return Symbol(label, cells, quiet, aspect=cells.shape[1] / cells.shape[0])


def _log_uniform_length(random: Random, low: int, high: int) -> int:
    """A length from `low` to `high` whose logarithm is uniform: short texts are more frequent."""
    return int(np.exp(random.uniform(np.log(low), np.log(high))))


def _qr_code(random: Random) -> Symbol:
    """A random QR Code of any version up to 40; half of them hold an address."""
    max_length = _log_uniform_length(random, 8, 900)
    min_length = max(max_length // 2, 4)
    is_large = random.random() < 0.12
    if is_large:  # what fills the larger versions, up to 40
        min_length = 300
        max_length = 1260

    content = text(random, MIXED, min_length, max_length)
    if random.random() < 0.5:
        content = "https://" + content.replace(" ", "")
    error_correction = str(random.choice(list("LMQH")))
    return _matrix(QR_CODE, written(content, Format.QRCode, ec_level=error_correction), quiet=4)


def _micro_qr(random: Random) -> Symbol:
    """A random Micro QR Code of one of the four versions, with digits."""
    version = str(random.choice(["M1", "M2", "M3", "M4"], p=[0.1, 0.3, 0.3, 0.3]))
    max_length = {"M1": 5, "M2": 6, "M3": 14, "M4": 21}[version]
    content = text(random, DIGITS, 1, max_length)
    code = segno.make_micro(content, version=version, error=None, boost_error=False)
    return _matrix(MICRO_QR, np.array(code.matrix, np.uint8), quiet=2)


def _data_matrix(random: Random) -> Symbol:
    """A random Data Matrix: mostly square, sometimes rectangular, such as 8 x 144 or 26 x 64."""
    is_rectangular = random.random() < 0.15
    if is_rectangular:
        version = int(random.integers(ZXING_SMALLEST_RECTANGLE, ZXING_LARGEST_RECTANGLE + 1))
        max_length = 10
        if version == ZXING_SMALLEST_RECTANGLE:
            max_length = 5
        content = text(random, MIXED, 2, max_length)
        cells = written(content, Format.DataMatrix, version=version)
    else:
        max_length = _log_uniform_length(random, 4, 900)
        content = text(random, MIXED, max(max_length // 2, 2), max_length)
        cells = written(content, Format.DataMatrix)
    return _matrix(DATA_MATRIX, cells, quiet=1)


def _barcode(random: Random) -> Symbol:
    """A random linear code, or a stacked DataBar, which belongs to the same class.

    A linear code has any aspect up to `MAX_ASPECT`, low ones more often.
    """
    weights = np.array([linear.weight for linear in LINEAR_FORMATS])
    linear = LINEAR_FORMATS[random.choice(len(LINEAR_FORMATS), p=weights / weights.sum())]
    content = text(random, linear.alphabet, linear.min_length, linear.max_length)
    cells = written(_as_content(content, linear.format), linear.format)
    if linear.format in STACKED:
        return _matrix(BARCODE, cells, quiet=2)

    # All rows but the last are equal: of a retail code, the last has the guard bars alone.
    bars = cells[:1]
    guards = None
    aspect = float(np.exp(random.uniform(0, np.log(MAX_ASPECT))))
    if linear.format in RETAIL:
        guards = cells[-1:]
    return Symbol(BARCODE, bars, BARS_QUIET, aspect, guards)


def _as_content(characters: str, barcode_format: Format) -> str:
    """The characters in the form that the format asks for."""
    if barcode_format == Format.ITF:
        return characters * 2  # an even number of digits
    if barcode_format == Format.Codabar:
        return f"A{characters}B"  # letters start and stop it
    if barcode_format in {Format.UPCE, Format.DataBarLtd}:
        return "0" + characters
    if barcode_format in {Format.DataBarExp, Format.DataBarExpStk}:
        # GS1's application identifiers: 10 is a batch of up to 20 characters, 21 a serial number.
        batch = characters[:20]
        serial = characters[20:] or "1"
        return f"[10]{batch}[21]{serial}"
    return characters


def _pdf417(random: Random) -> Symbol:
    """A random PDF417 with rows two to five modules high, or its micro or compact form."""
    content = text(random, MIXED, 6, _log_uniform_length(random, 12, 900))
    row_height = int(random.choice([2, 3, 4, 5], p=[0.3, 0.4, 0.2, 0.1]))

    choice = random.random()
    if choice < MICRO_PDF417_SHARE:
        cells = written(content[:60], Format.MicroPDF417)
        quiet = 1
        zxing_row_height = 2
    elif choice < MICRO_PDF417_SHARE + COMPACT_PDF417_SHARE:
        cells = written(content[:300], Format.CompactPDF417)
        quiet = 2
        zxing_row_height = 3
    else:
        # Fewer columns would take more rows than the standard has.
        min_columns = max(len(content) // 80, 1)
        columns = int(random.integers(min_columns, min_columns + 9))
        cells = written(content, Format.PDF417, columns=columns)
        quiet = 2
        zxing_row_height = 3

    # One line of each row, repeated until the row is as high as was drawn.
    lines = cells[::zxing_row_height]
    return _matrix(PDF417, np.repeat(lines, row_height, axis=0), quiet)


def _aruco(random: Random) -> Symbol:
    """A marker of any dictionary, neither nearly white nor nearly black inside."""
    name = str(random.choice(DICTIONARIES))
    dictionary = cv2.aruco.getPredefinedDictionary(getattr(cv2.aruco, f"DICT_{name}"))
    size = dictionary.markerSize + 2  # with the black border
    while True:
        marker_id = int(random.integers(dictionary.bytesList.shape[0]))
        cells = _dark(cv2.aruco.generateImageMarker(dictionary, marker_id, size))
        dark_share = cells[1:-1, 1:-1].mean()
        if MIN_DARK < dark_share < 1 - MIN_DARK:
            return _matrix(ARUCO, cells, quiet=1)


def _aztec(random: Random) -> Symbol:
    """A random Aztec Code of any size."""
    max_length = _log_uniform_length(random, 4, 900)
    content = text(random, MIXED, max(max_length // 2, 2), max_length)
    return _matrix(AZTEC, written(content, Format.Aztec), quiet=1)


MAKERS: dict[str, Callable[[Random], Symbol]] = {
    "qr_code": _qr_code,
    "micro_qr": _micro_qr,
    "data_matrix": _data_matrix,
    "barcode": _barcode,
    "pdf417": _pdf417,
    "aruco": _aruco,
    "aztec": _aztec,
}
