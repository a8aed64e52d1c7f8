from pathlib import Path

import pytest

pytest.importorskip("segno", reason="segno is not installed; it is in the extra `train`")

import cv2
import numpy as np
import zxingcpp
from codes.demo import compose

FILE = Path(__file__).parents[1] / "demo.jpg"


def test_every_symbol_of_the_demo_image_can_be_read():
    image = cv2.imread(str(FILE))
    formats = {str(barcode.format) for barcode in zxingcpp.read_barcodes(image)}
    assert formats >= {"QR Code", "Data Matrix", "PDF417", "Code 128", "EAN-13"}
    dictionary = cv2.aruco.getPredefinedDictionary(cv2.aruco.DICT_4X4_50)
    assert cv2.aruco.ArucoDetector(dictionary).detectMarkers(image)[1].ravel().tolist() == [23]


def test_the_file_is_the_image_that_the_code_composes():
    """To what JPEG loses, and what versions of OpenCV draw differently."""
    stored, composed = cv2.imread(str(FILE)), compose()
    assert stored.shape == composed.shape
    assert np.abs(stored.astype(int) - composed).mean() < 4
    assert FILE.stat().st_size <= 150_000
