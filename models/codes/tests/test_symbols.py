import pytest

pytest.importorskip("segno", reason="segno is not installed; it is in the extra `train`")

import cv2
import numpy as np
import zxingcpp
from codes.symbols import DICTIONARIES, NAMES, symbol

SAMPLES = 12
READ_AS = {
    "qr_code": {"QR Code"},
    "micro_qr": {"Micro QR Code"},
    "data_matrix": {"Data Matrix"},
    "pdf417": {"PDF417", "Compact PDF417", "MicroPDF417"},
    "aztec": {"Aztec"},
}


def drawn(code):
    """Black on white, five pixels for each module, bars 60 modules high."""
    cells = code.cells
    if code.is_bars:
        cells = np.repeat(cells, 60, axis=0)
    cells = np.pad(cells, 12)
    return np.kron(255 - 255 * cells, np.ones((5, 5), np.uint8)).astype(np.uint8)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "aruco"])
def test_symbols_can_be_read(name):
    random = np.random.default_rng(0)
    for _ in range(SAMPLES):
        code = symbol(random, name)
        assert code.label == NAMES.index(name)
        formats = {str(barcode.format) for barcode in zxingcpp.read_barcodes(drawn(code))}
        assert formats, "nothing was read"
        assert formats <= READ_AS.get(name, formats)


def test_markers_can_be_read():
    random = np.random.default_rng(0)
    detectors = [
        cv2.aruco.ArucoDetector(
            cv2.aruco.getPredefinedDictionary(getattr(cv2.aruco, f"DICT_{dictionary}"))
        )
        for dictionary in DICTIONARIES
    ]
    for _ in range(SAMPLES):
        image = drawn(symbol(random, "aruco"))
        assert any(detector.detectMarkers(image)[1] is not None for detector in detectors)


def test_contents_vary_and_repeat_with_the_seed():
    for name in NAMES:
        first = symbol(np.random.default_rng(1), name).cells
        again = symbol(np.random.default_rng(1), name).cells
        other = symbol(np.random.default_rng(2), name).cells
        assert np.array_equal(first, again)
        assert not np.array_equal(first, other)


@pytest.mark.slow
def test_versions_reach_from_the_smallest_to_the_largest():
    """Of QR up to 40 (177 modules), and the rectangles of Data Matrix, also the extended ones."""
    random = np.random.default_rng(1)
    shapes = {
        name: {symbol(random, name).cells.shape for _ in range(500)}
        for name in ("qr_code", "data_matrix")
    }
    sides = sorted(side for side, _ in shapes["qr_code"])
    assert sides[0] <= 25
    assert sides[-1] >= 173
    assert {(8, 18), (16, 48), (8, 120), (26, 64)} <= shapes["data_matrix"]


def test_pdf417_has_columns_of_any_number():
    random = np.random.default_rng(2)
    aspects = [symbol(random, "pdf417").aspect for _ in range(100)]
    assert min(aspects) < 1
    assert max(aspects) > 8


def test_rows_of_pdf417_are_two_to_five_modules_high_and_as_many_as_are_needed():
    random = np.random.default_rng(4)
    heights, widths = set(), set()
    for _ in range(120):
        cells = symbol(random, "pdf417").cells
        edges = np.flatnonzero((cells[1:] != cells[:-1]).any(1)) + 1
        heights.add(int(np.gcd.reduce([*edges, len(cells)])))
        widths.add(cells.shape[1])
    assert heights == {2, 3, 4, 5}
    assert min(widths) < 60  # MicroPDF417
    assert max(widths) > 300


def test_bars_are_of_any_length_and_stacked_ones_have_rows():
    random = np.random.default_rng(3)
    codes = [symbol(random, "barcode") for _ in range(300)]
    aspects = [code.aspect for code in codes if code.is_bars]
    assert min(aspects) < 1.3
    assert max(aspects) > 10
    stacked = [code for code in codes if not code.is_bars]
    heights = {len(code.cells) for code in stacked}
    assert heights >= {13, 69}  # DataBar Stacked, and its taller form
    for code in stacked[:6]:
        assert zxingcpp.read_barcodes(drawn(code))
