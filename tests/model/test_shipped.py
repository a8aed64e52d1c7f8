"""The bundled model, as users get it."""

import hashlib
from pathlib import Path

import cv2
import onnx
import pytest
from thinning import thin

from detcli.config.config import Settings
from detcli.config.values import Tiling
from detcli.model.contract import Layout
from detcli.model.recognise import read_graph
from detcli.run.detector import Detector

ROOT = Path(__file__).parents[2]
FILE = ROOT / "detcli" / "model" / "bundled" / "codes.onnx"
DEMO = ROOT / "models" / "codes" / "demo.jpg"

# Centres of the symbols in the demo image.
SYMBOLS = {
    "qr_code": [(565, 185)],
    "micro_qr": [(743, 677)],
    "data_matrix": [(947, 208)],
    "barcode": [(833, 393), (341, 588)],
    "pdf417": [(229, 276)],
    "aruco": [(573, 595)],
    "aztec": [],
}


def test_the_model_and_the_demo_image_match_their_checksums():
    lines = (ROOT / "models/SHA256SUMS").read_text().splitlines()
    digests = {}
    for line in lines:
        digest, name = line.split()
        digests[name] = digest
    files = {"../detcli/model/bundled/codes.onnx": FILE, "codes/demo.jpg": DEMO}
    assert digests.keys() == files.keys()
    for name, file in files.items():
        assert (ROOT / "models" / name).resolve() == file
        assert hashlib.sha256(file.read_bytes()).hexdigest() == digests[name]


def test_the_model_is_small_and_describes_itself():
    assert FILE.stat().st_size <= 4e6
    model = onnx.load(FILE)
    contract = read_graph(onnx.shape_inference.infer_shapes(model), "codes").contract
    assert contract.layout is Layout.BODY
    assert contract.names == tuple(SYMBOLS)
    assert contract.warnings == ()
    assert contract.conf == 0.5
    assert [contract.names[class_id] for class_id, _ in contract.class_conf] == list(SYMBOLS)
    assert contract.tile == Tiling(1024, crowd=10)
    assert contract.preprocessing.enlarge == 1
    assert {entry.key: entry.value for entry in model.metadata_props}["license"] == "Apache-2.0"


@pytest.mark.slow
def test_every_symbol_of_the_demo_image_is_found_once_and_nothing_else():
    with Detector(FILE, device="cpu") as detector:
        detections = detector(cv2.imread(str(DEMO)))
    symbol_count = 0
    for class_id, positions in enumerate(SYMBOLS.values()):
        left, top, right, bottom = detections.xyxy[detections.class_id == class_id].T
        for x, y in positions:
            assert ((left < x) & (x < right) & (top < y) & (y < bottom)).sum() == 1
            symbol_count += 1
    assert symbol_count == 7
    assert len(detections) == symbol_count
    assert detections.score.min() > 0.55


@pytest.mark.parametrize("side", thin("sizes of the shipped model", [416, 1088], 1))
def test_the_model_accepts_other_sizes(side):
    with Detector(FILE, device="cpu", settings=Settings(imgsz=side)) as detector:
        assert detector.canvas == (side, side)
        assert len(detector(cv2.imread(str(DEMO)))) > 0
