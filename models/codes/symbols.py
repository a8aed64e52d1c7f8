"""Clean symbols as arrays, one cell for each module, from symbology libraries.

zxing-cpp writes most symbologies, segno Micro QR, OpenCV the ArUco and AprilTag dictionaries.
"""

from collections.abc import Callable
from typing import NamedTuple

import cv2
import numpy as np
import segno
import zxingcpp
from numpy.typing import NDArray

Cells = NDArray[np.uint8]
Random = np.random.Generator
Format = zxingcpp.BarcodeFormat

NAMES = ("qr_code", "micro_qr", "data_matrix", "barcode", "pdf417", "aruco", "aztec")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
DIGITS = "0123456789"
MIXED = LETTERS + LETTERS.lower() + DIGITS + "-./ "
MAX_ASPECT = 12  # of bars
MIN_DARK = 0.12  # of a marker's inner cells; a nearly white marker has no recognisable pattern
STACKED = {Format.DataBarStk, Format.DataBarStkOmni, Format.DataBarExpStk}
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


def text(random: Random, alphabet: str, low: int, high: int) -> str:
    """Between `low` and `high` random characters."""
    return "".join(random.choice(list(alphabet), int(random.integers(low, high + 1))))


def symbol(random: Random, name: str) -> Symbol:
    """A symbol of a class with random content; its kind, size and coding vary too."""
    return MAKERS[name](random)


def _matrix(label: int, cells: Cells, quiet: int) -> Symbol:
    return Symbol(label, cells, quiet, cells.shape[1] / cells.shape[0])


def written(content: str, kind: Format, **options: str | int) -> Cells:
    """Cells of a symbol as zxing-cpp writes it, 1 where dark."""
    drawn = zxingcpp.write_barcode_to_image(
        zxingcpp.create_barcode(content, kind, **options), scale=1, add_quiet_zones=False
    )
    return (np.array(drawn) < 128).astype(np.uint8)


def _qr_code(random: Random) -> Symbol:
    longest = int(np.exp(random.uniform(np.log(8), np.log(900))))
    shortest = max(longest // 2, 4)
    if random.random() < 0.12:  # what fills the larger versions, up to 40
        shortest, longest = 300, 1260
    content = text(random, MIXED, shortest, longest)
    if random.random() < 0.5:
        content = "https://" + content.replace(" ", "")
    level = str(random.choice(list("LMQH")))
    return _matrix(0, written(content, Format.QRCode, ec_level=level), 4)


def _micro_qr(random: Random) -> Symbol:
    version = str(random.choice(["M1", "M2", "M3", "M4"], p=[0.1, 0.3, 0.3, 0.3]))
    longest = {"M1": 5, "M2": 6, "M3": 14, "M4": 21}[version]
    code = segno.make_micro(
        text(random, DIGITS, 1, longest), version=version, error=None, boost_error=False
    )
    return _matrix(1, np.array(code.matrix, np.uint8), 2)


def _data_matrix(random: Random) -> Symbol:
    if random.random() < 0.15:  # the rectangular ones, up to 8 x 144 and 26 x 64
        version = int(random.integers(25, 49))
        content = text(random, MIXED, 2, 5 if version == 25 else 10)
        return _matrix(2, written(content, Format.DataMatrix, version=version), 1)
    longest = int(np.exp(random.uniform(np.log(4), np.log(900))))
    content = text(random, MIXED, max(longest // 2, 2), longest)
    return _matrix(2, written(content, Format.DataMatrix), 1)


def _barcode(random: Random) -> Symbol:
    """Linear codes and the stacked forms of DataBar; Telepen stands for rarer ones."""
    kinds: list[tuple[Format, str, tuple[int, int]]] = [
        (Format.EAN13, DIGITS, (12, 12)),
        (Format.EAN8, DIGITS, (7, 7)),
        (Format.UPCA, DIGITS, (11, 11)),
        (Format.UPCE, "3456789", (6, 6)),
        (Format.Code128, MIXED, (4, 22)),
        (Format.Code128, DIGITS, (6, 24)),
        (Format.Code39, LETTERS + DIGITS, (3, 12)),
        (Format.Code93, LETTERS + DIGITS, (3, 14)),
        (Format.ITF, DIGITS, (3, 9)),
        (Format.Codabar, DIGITS, (4, 12)),
        (Format.DataBarOmni, DIGITS, (13, 13)),
        (Format.DataBarLtd, DIGITS, (12, 12)),
        (Format.Telepen, LETTERS, (3, 10)),
        (Format.DataBarStk, DIGITS, (13, 13)),
        (Format.DataBarStkOmni, DIGITS, (13, 13)),
        (Format.DataBarExp, DIGITS, (4, 16)),
        (Format.DataBarExpStk, DIGITS, (10, 40)),
    ]
    weights = np.array([5, 1, 2, 1, 4, 3, 3, 1, 2, 1, 0.5, 0.5, 0.3, 0.4, 0.5, 0.3, 0.8])
    kind, alphabet, (low, high) = kinds[random.choice(len(kinds), p=weights / weights.sum())]
    content = text(random, alphabet, low, high)
    if kind == Format.ITF:
        content *= 2  # an even number of digits
    elif kind == Format.Codabar:
        content = f"A{content}B"
    elif kind in {Format.UPCE, Format.DataBarLtd}:
        content = "0" + content
    elif kind in {Format.DataBarExp, Format.DataBarExpStk}:
        content = f"[10]{content[:20]}[21]{content[20:] or 1}"
    cells = written(content, kind)
    if kind in STACKED:
        return _matrix(3, cells, 2)
    retail = kind in {Format.EAN13, Format.EAN8, Format.UPCA, Format.UPCE}
    aspect = float(np.exp(random.uniform(0, np.log(MAX_ASPECT))))
    return Symbol(3, cells[:1], 9, aspect, cells[-1:] if retail else None)


def _pdf417(random: Random) -> Symbol:
    """PDF417 with rows two to five modules high; zxing-cpp writes three, and two if it is small."""
    content = text(random, MIXED, 6, int(np.exp(random.uniform(np.log(12), np.log(900)))))
    high = int(random.choice([2, 3, 4, 5], p=[0.3, 0.4, 0.2, 0.1]))
    part = random.random()
    if part < 0.12:
        small = written(content[:60], Format.MicroPDF417)
        return _matrix(4, np.repeat(small[::2], high, 0), 1)
    if part < 0.25:
        compact = written(content[:300], Format.CompactPDF417)
        return _matrix(4, np.repeat(compact[::3], high, 0), 2)
    least = max(len(content) // 80, 1)  # columns, or there would be more rows than the standard has
    columns = int(random.integers(least, least + 9))
    cells = written(content, Format.PDF417, columns=columns)
    return _matrix(4, np.repeat(cells[::3], high, 0), 2)


def _aruco(random: Random) -> Symbol:
    name = str(random.choice(DICTIONARIES))
    dictionary = cv2.aruco.getPredefinedDictionary(getattr(cv2.aruco, f"DICT_{name}"))
    size = dictionary.markerSize + 2
    while True:
        number = int(random.integers(dictionary.bytesList.shape[0]))
        drawn = cv2.aruco.generateImageMarker(dictionary, number, size)
        cells = (drawn < 128).astype(np.uint8)
        if MIN_DARK < cells[1:-1, 1:-1].mean() < 1 - MIN_DARK:
            return _matrix(5, cells, 1)


def _aztec(random: Random) -> Symbol:
    longest = int(np.exp(random.uniform(np.log(4), np.log(900))))
    return _matrix(6, written(text(random, MIXED, max(longest // 2, 2), longest), Format.Aztec), 1)


MAKERS: dict[str, Callable[[Random], Symbol]] = {
    "qr_code": _qr_code,
    "micro_qr": _micro_qr,
    "data_matrix": _data_matrix,
    "barcode": _barcode,
    "pdf417": _pdf417,
    "aruco": _aruco,
    "aztec": _aztec,
}
