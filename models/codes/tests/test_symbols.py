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
    detectors = []
    for name in DICTIONARIES:
        dictionary = cv2.aruco.getPredefinedDictionary(getattr(cv2.aruco, f"DICT_{name}"))
        detectors.append(cv2.aruco.ArucoDetector(dictionary))
    for _ in range(SAMPLES):
        image = drawn(symbol(random, "aruco"))
        is_read = False
        for detector in detectors:
            if detector.detectMarkers(image)[1] is not None:
                is_read = True
        assert is_read


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
    sides = [len(symbol(random, "qr_code").cells) for _ in range(500)]
    assert min(sides) <= 25
    assert max(sides) >= 173
    shapes = {symbol(random, "data_matrix").cells.shape for _ in range(500)}
    assert {(8, 18), (16, 48), (8, 120), (26, 64)} <= shapes


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
        heights.add(int(np.gcd.reduce(np.append(edges, len(cells)))))
        widths.add(cells.shape[1])
    assert heights == {2, 3, 4, 5}
    assert min(widths) < 60  # MicroPDF417
    assert max(widths) > 300


def test_bars_are_of_any_length_and_stacked_ones_have_rows():
    random = np.random.default_rng(3)
    aspects = []
    stacked = []
    for _ in range(300):
        code = symbol(random, "barcode")
        if code.is_bars:
            aspects.append(code.aspect)
        else:
            stacked.append(code)
    assert min(aspects) < 1.3
    assert max(aspects) > 10
    heights = {len(code.cells) for code in stacked}
    assert heights >= {13, 69}  # DataBar Stacked, and its taller form
    for code in stacked[:6]:
        assert zxingcpp.read_barcodes(drawn(code))
