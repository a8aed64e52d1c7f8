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

NAMES = ("qr_code", "micro_qr", "data_matrix", "barcode", "pdf417", "aruco")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
DIGITS = "0123456789"
MIXED = LETTERS + LETTERS.lower() + DIGITS + "-./ "
MIN_DARK = 0.12  # of a marker's inner cells; a nearly white marker has no recognisable pattern
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
        guards: For EAN and UPC the bars that reach further down, as one row; else None.
    """

    label: int
    cells: Cells
    quiet: int
    guards: Cells | None = None


def text(random: Random, alphabet: str, low: int, high: int) -> str:
    """Between `low` and `high` random characters."""
    return "".join(random.choice(list(alphabet), int(random.integers(low, high + 1))))


def symbol(random: Random, name: str) -> Symbol:
    """A symbol of a class with random content; its kind, size and coding vary too."""
    return MAKERS[name](random)


def written(content: str, kind: Format, **options: str) -> Cells:
    """Cells of a symbol as zxing-cpp writes it, 1 where dark."""
    drawn = zxingcpp.write_barcode_to_image(
        zxingcpp.create_barcode(content, kind, **options), scale=1, add_quiet_zones=False
    )
    return (np.array(drawn) < 128).astype(np.uint8)


def _qr_code(random: Random) -> Symbol:
    longest = int(np.exp(random.uniform(np.log(8), np.log(260))))
    content = text(random, MIXED, max(longest // 2, 4), longest)
    if random.random() < 0.5:
        content = "https://" + content.replace(" ", "")
    level = str(random.choice(list("LMQH")))
    return Symbol(0, written(content, Format.QRCode, ec_level=level), 4)


def _micro_qr(random: Random) -> Symbol:
    version = str(random.choice(["M1", "M2", "M3", "M4"], p=[0.1, 0.3, 0.3, 0.3]))
    longest = {"M1": 5, "M2": 6, "M3": 14, "M4": 21}[version]
    code = segno.make_micro(
        text(random, DIGITS, 1, longest), version=version, error=None, boost_error=False
    )
    return Symbol(1, np.array(code.matrix, np.uint8), 2)


def _data_matrix(random: Random) -> Symbol:
    if random.random() < 0.15:  # the rectangular ones
        content = text(random, MIXED, 2, 8)
        return Symbol(
            2, written(content, Format.DataMatrix, options=f"version={random.integers(26, 31)}"), 1
        )
    longest = int(np.exp(random.uniform(np.log(4), np.log(150))))
    content = text(random, MIXED, max(longest // 2, 2), longest)
    return Symbol(2, written(content, Format.DataMatrix), 1)


def _barcode(random: Random) -> Symbol:
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
    ]
    weights = np.array([5, 1, 2, 1, 4, 3, 3, 1, 2, 1, 0.5, 0.5])
    kind, alphabet, (low, high) = kinds[random.choice(len(kinds), p=weights / weights.sum())]
    content = text(random, alphabet, low, high)
    if kind == Format.ITF:
        content *= 2  # an even number of digits
    elif kind == Format.Codabar:
        content = f"A{content}B"
    elif kind in {Format.UPCE, Format.DataBarLtd}:
        content = "0" + content
    cells = written(content, kind)
    retail = kind in {Format.EAN13, Format.EAN8, Format.UPCA, Format.UPCE}
    return Symbol(3, cells[:1], 9, cells[-1:] if retail else None)


def _pdf417(random: Random) -> Symbol:
    content = text(random, MIXED, 6, int(np.exp(random.uniform(np.log(12), np.log(300)))))
    part = random.random()
    if part < 0.1:
        return Symbol(4, written(content[:60], Format.MicroPDF417), 1)
    if part < 0.25:
        return Symbol(4, written(content, Format.CompactPDF417), 2)
    columns = int(random.integers(2, 9))
    return Symbol(4, written(content, Format.PDF417, options=f"columns={columns}"), 2)


def _aruco(random: Random) -> Symbol:
    name = str(random.choice(DICTIONARIES))
    dictionary = cv2.aruco.getPredefinedDictionary(getattr(cv2.aruco, f"DICT_{name}"))
    size = dictionary.markerSize + 2
    while True:
        number = int(random.integers(dictionary.bytesList.shape[0]))
        drawn = cv2.aruco.generateImageMarker(dictionary, number, size)
        cells = (drawn < 128).astype(np.uint8)
        if MIN_DARK < cells[1:-1, 1:-1].mean() < 1 - MIN_DARK:
            return Symbol(5, cells, 1)


MAKERS: dict[str, Callable[[Random], Symbol]] = {
    "qr_code": _qr_code,
    "micro_qr": _micro_qr,
    "data_matrix": _data_matrix,
    "barcode": _barcode,
    "pdf417": _pdf417,
    "aruco": _aruco,
}
