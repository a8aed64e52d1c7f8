"""Real YOLOv10-N exports on real photographs; skipped where ../shared is not there."""

import itertools
import json
import re
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import cv2
import forked
import json_lines
import numpy as np
import optional
import pytest
import thinning
from benchmarks.tracking import CLIPS, follow, ours

from detcli import Detector, Inputs, Settings
from detcli.config.values import Tracker
from detcli.core.errors import DetcliWarning

pytestmark = pytest.mark.slow

# bus.jpg, from the PyTorch reference
BUS_CLASSES = ["bus", "person", "person", "person", "person"]
BUS_SCORES = [0.94, 0.91, 0.91, 0.84, 0.50]
BUS_BOXES = [
    [7.45, 233.92, 801.78, 741.09],
    [222.15, 405.68, 344.38, 862.98],
    [52.06, 398.18, 246.32, 906.24],
    [673.80, 395.02, 807.34, 875.48],
    [0.96, 552.04, 57.86, 875.83],
]
SINGLE = [
    "yolov10n-thu",
    "yolov10n-ultralytics",
    "yolov10n-ultralytics-dynamic",
    "yolov10n-raw",
    "yolov10n-raw-dynamic",
]
HALF = "yolov10n-raw-fp16"


def detect(shared, model, image="data/images/bus.jpg", **settings):
    return found_in(shared(image), shared(f"models/{model}.onnx"), Settings(**settings))


@cache
def found_in(image, model, settings):
    with Detector(model, device="cpu", settings=settings) as detector:
        return detector(cv2.imread(image))


def assert_bus(detections, *, half):
    assert detections.class_name.tolist() == BUS_CLASSES
    np.testing.assert_allclose(detections.score, BUS_SCORES, atol=0.01)
    tolerance = 1.5 if half else 0.02
    np.testing.assert_allclose(detections.xyxy, BUS_BOXES, atol=tolerance)


@pytest.mark.parametrize("model", thinning.thin("real models of an image", SINGLE + [HALF], 3))
def test_the_bus_image(model, shared):
    assert_bus(detect(shared, model), half=model == HALF)


COMPARED = list(itertools.product(["bus.jpg", "zidane.jpg"], SINGLE[1:] + [HALF]))


@pytest.mark.parametrize(
    ("image", "model"), thinning.thin("images that real models agree on", COMPARED, 5)
)
def test_all_files_agree_within_their_precision(model, image, shared):
    conf, scores, boxes = (0.25, 0.01, 1.5) if model == HALF else (0.01, 1e-5, 0.01)
    reference = detect(shared, SINGLE[0], f"data/images/{image}", conf=conf)
    detections = detect(shared, model, f"data/images/{image}", conf=conf)
    assert reference.class_name.tolist() == detections.class_name.tolist()
    np.testing.assert_allclose(reference.score, detections.score, atol=scores)
    np.testing.assert_allclose(reference.xyxy, detections.xyxy, atol=boxes)


@thinning.only_whole
def test_figures_and_boxes_are_the_reference_implementations(shared, tmp_path):
    """Over 128 COCO images: PyTorch's mAP, and at least 99.5% of its boxes and of ours in common.

    One export is enough, since all agree on single images.
    """
    data, written = shared("data/coco128/instances.json"), tmp_path / "found.json"
    model = shared(f"models/{SINGLE[0]}.onnx")
    command = ["eval", model, "--data", data, "--device", "cpu", "-q", "--save-coco", written]
    process = forked.run(command, timeout=300)
    assert process.returncode == 0, process.stderr
    report = json.loads(process.stdout)
    assert report["metrics"]["map50_95"] == pytest.approx(0.4785, abs=0.003)
    assert report["metrics"]["map50"] == pytest.approx(0.6539, abs=0.003)
    assert report["data"]["evaluated"] == 128
    notes = {finding["kind"]: finding["count"] for finding in report["findings"]}
    assert notes["crowd"] == 10
    assert notes["class without boxes"] == 9
    parity = hold_against_reference(records_of(written, data), shared)
    assert parity.returncode == 0, parity.stdout
    assert parity.stdout.startswith("128 images")


def records_of(results, data):
    """Records of what COCO results hold above the usual confidence."""
    truth = json.loads(data.read_bytes())
    numbers = {entry["id"]: number for number, entry in enumerate(truth["categories"])}
    detections_by_image = {entry["id"]: [] for entry in truth["images"]}
    for entry in json.loads(results.read_bytes()):
        if entry["score"] >= 0.25:
            x, y, width, height = entry["bbox"]
            number, box = numbers[entry["category_id"]], [x, y, x + width, y + height]
            detection = {"class_id": number, "score": entry["score"], "box": box}
            detections_by_image[entry["image_id"]].append(detection)
    records = []
    for image, detections in detections_by_image.items():
        records.append({"source": f"{image}.jpg", "detections": detections})
    return json_lines.text_of(records)


@pytest.mark.parametrize(("model", "percent"), [(SINGLE[0], 99.5), (HALF, 95)])
def test_boxes_stay_as_near_to_the_reference_as_they_were_measured(model, percent, shared):
    """In half precision, weights and arithmetic are rounded: 96%, see docs/benchmark.md."""
    images = sorted(shared("data/coco128/images").iterdir())[:64]
    images = thinning.thin("images beside the reference", images, 12)
    model = shared(f"models/{model}.onnx")
    command = ["predict"] + images + ["-m", model, "-q", "--format", "jsonl"]
    ours = forked.run(command, timeout=300)
    parity = hold_against_reference(ours.stdout, shared)
    share_of_ours, share_of_theirs = re.findall(r"\(([\d.]+)%\)", parity.stdout)
    assert float(share_of_ours) >= percent
    assert float(share_of_theirs) >= percent


def hold_against_reference(records, shared):
    """The process that compares records with the reference's boxes on the same images."""
    image_ids = set()
    for source in json_lines.column_of(json_lines.lines(records), "source"):
        image_ids.add(int(Path(source).stem))
    reference = []
    for entry in json.loads(shared("data/coco128/ultralytics-yolov10n.json").read_bytes()):
        if entry["image_id"] in image_ids:
            reference.append(entry)

    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(reference, file)
        file.flush()
        return subprocess.run(
            [sys.executable, shared("check/parity.py"), file.name],
            check=False,
            input=records,
            capture_output=True,
            text=True,
        )


def test_a_one_to_many_model(shared):
    with pytest.warns(DetcliWarning, match="too coarse to tell objects apart"):
        detections = detect(shared, "yolov8n-320-int8")
    assert {"bus", "person"} <= set(detections.class_name)
    assert detections.score.max() <= 1


@thinning.only_whole
@pytest.mark.parametrize("clip", CLIPS)
def test_what_crosses_a_line_is_what_was_counted_by_eye(clip, shared):
    optional.require("trackers")
    _, line, counted = CLIPS[clip]
    video, model = shared(f"data/videos/{clip}.mp4"), shared(f"models/{SINGLE[3]}.onnx")
    watched = {tracker: ours(tracker, line) for tracker in Tracker}
    _, crossed = follow(video, model, watched, Inputs(vid_stride=2))  # type: ignore[arg-type]
    assert crossed == dict.fromkeys(Tracker, counted)
