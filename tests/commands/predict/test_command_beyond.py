"""Boxes that reach beyond the image, as those of queries may, in everything that a run writes."""

import csv
import json

import cv2
import numpy as np
import optional
import pytest
import query_model
from pycocotools.coco import COCO

from detcli.data.record import box_of

SIDE = 12  # pixels of each box, around a cell of 8
CORNERS = {(-2.0, -2.0, 10.0, 10.0), (54.0, 54.0, 66.0, 66.0)}
"""What the model finds in images with a square in the first and the last cell."""
WITHIN = {(0.0, 0.0, 10.0, 10.0), (54.0, 54.0, 64.0, 64.0)}


@pytest.fixture
def run_beyond_edges(tmp_path, predict, make_image):
    """Run an image through a model whose boxes are larger than the cells they are found by."""
    model = query_model.beside(query_model.named(side=SIDE / 64), "stretch")
    (tmp_path / "large.onnx").write_bytes(model.SerializeToString())
    make_image("in/000000000007.png", ("red", 0, 0), ("red", 7, 7))

    def run(line, source="in/000000000007.png"):
        predict(f"{source} --model large.onnx --device cpu --conf 0.5 {line}")
        return tmp_path

    return run


def corners_in(row):
    """x1, y1, x2, y2 of a row of a file, as numbers."""
    return (float(row["x1"]), float(row["y1"]), float(row["x2"]), float(row["y2"]))


def test_records_have_the_boxes_of_the_family(run_beyond_edges):
    for suffix in ("csv", "json"):
        folder = run_beyond_edges(f"-o out.{suffix} --save-coco coco.json")
    [record] = json.loads((folder / "out.json").read_text())
    assert {box_of(detection) for detection in record["detections"]} == CORNERS
    with (folder / "out.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {corners_in(row) for row in rows} == CORNERS
    truth = COCO()
    truth.dataset = {"images": [{"id": 7}], "categories": [{"id": 0}], "annotations": []}
    truth.createIndex()
    results = truth.loadRes(str(folder / "coco.json"))
    boxes = set()
    for annotation in results.anns.values():
        boxes.add(tuple(np.round(annotation["bbox"], 4).tolist()))
    assert boxes == {(-2.0, -2.0, SIDE, SIDE), (54.0, 54.0, SIDE, SIDE)}


def test_parquet_has_the_boxes_of_the_family(run_beyond_edges):
    parquet = optional.require("pyarrow.parquet")
    folder = run_beyond_edges("-o out.parquet")
    rows = parquet.read_table(folder / "out.parquet").to_pylist()
    assert {corners_in(row) for row in rows} == CORNERS


def test_images_end_at_the_edges(run_beyond_edges):
    folder = run_beyond_edges("--save-crops crops --save drawn")
    first_crop, second_crop = (folder / "crops/red").iterdir()
    assert cv2.imread(str(first_crop)).shape == (10, 10, 3)
    assert cv2.imread(str(second_crop)).shape == (10, 10, 3)
    drawn = cv2.imread(str(folder / "drawn/000000000007.png"))
    assert drawn.shape == (64, 64, 3)
    assert np.ptp(drawn[32], axis=0).max() == 0  # no line crosses the middle
    assert np.ptp(drawn[:10, 9], axis=1).max() > 0  # the right end of the first box


def test_a_dataset_of_them_can_be_evaluated(run_beyond_edges, invoke):
    folder = run_beyond_edges("--save-dataset data --save-txt labels")
    [labels] = (folder / "data/labels").iterdir()
    assert labels.read_text() == (folder / "labels/000000000007.txt").read_text()
    rows = np.loadtxt(labels, ndmin=2)
    centres = rows[:, 1:3]
    sizes = rows[:, 3:]
    boxes = np.hstack([centres - sizes / 2, centres + sizes / 2]) * 64
    assert {tuple(box) for box in boxes.round(3).tolist()} == WITHIN
    options = ("--data", folder / "data", "--device", "cpu")
    report = json.loads(invoke("eval", folder / "large.onnx", options).stdout)
    assert report["metrics"]["map50"] == 1
    assert 0 < report["metrics"]["map50_95"] < 1  # evaluators of these families do not clip
    for finding in report["findings"]:
        assert finding["level"] != "warning", finding["kind"]


def test_a_video_of_them(run_beyond_edges, make_video):
    make_video(frames=4, red_from=0)
    folder = run_beyond_edges("--save videos", "clip.mp4")
    reader = cv2.VideoCapture(str(folder / "videos/clip.mp4"))
    for _ in range(4):
        has_frame, _ = reader.read()
        assert has_frame
