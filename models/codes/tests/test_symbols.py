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


def drawn(made):
    """Black on white, five pixels for each module, bars 60 modules high."""
    cells = np.repeat(made.cells, 60, 0) if len(made.cells) == 1 else made.cells
    cells = np.pad(cells, 12)
    return np.kron(255 - 255 * cells, np.ones((5, 5), np.uint8)).astype(np.uint8)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "aruco"])
def test_symbols_can_be_read(name):
    random = np.random.default_rng(0)
    for _ in range(SAMPLES):
        made = symbol(random, name)
        assert made.label == NAMES.index(name)
        kinds = {str(found.format) for found in zxingcpp.read_barcodes(drawn(made))}
        assert kinds, "nothing was read"
        assert kinds <= READ_AS.get(name, kinds)


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
    made = [
        [symbol(np.random.default_rng(seed), name).cells for name in NAMES] for seed in (1, 1, 2)
    ]
    for first, again, other in zip(*made, strict=True):
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
    made = [symbol(random, "barcode") for _ in range(300)]
    aspects = [one.aspect for one in made if len(one.cells) == 1]
    assert min(aspects) < 1.3
    assert max(aspects) > 10
    stacked = [one for one in made if len(one.cells) > 1]
    assert {len(one.cells) for one in stacked} >= {13, 69}  # DataBar Stacked, and its taller form
    for one in stacked[:6]:
        assert {str(found.format) for found in zxingcpp.read_barcodes(drawn(one))}
