"""`detcli predict --zone`."""

import csv

import cv2
import numpy as np
import optional
import pytest
from colour_model import image
from json_lines import column_of

LEFT = "left=0,0,0.5,0,0.5,1,0,1"
LOW = "low=0,32,64,32,64,64,0,64"


@pytest.fixture
def squares(tmp_path):
    """An image with one red square at the left, and a blue one below at the right."""
    cv2.imwrite(str(tmp_path / "b.png"), image(("red", 1, 1), ("blue", 6, 6), grey=40))
    return "b.png"


@pytest.fixture
def predict_squares(predict, squares):
    """Run over the squares."""
    return lambda line, **expected: predict(f"{squares} --conf 0.9 {line}", **expected)


def test_every_format_has_the_zones(predict_squares, tmp_path):
    zones = f"--zone {LEFT} --zone {LOW}"
    (record,) = predict_squares(zones, says="in left: 1 red\n").records
    assert column_of(record["detections"], "zones") == [["left"], ["low"]]
    (tmp_path / "zones.txt").write_text(f"{LEFT}\n{LOW}\n")
    assert predict_squares("--zone @zones.txt").records == [record]
    for detection in record["detections"]:
        del detection["zones"]
    assert predict_squares("").records == [record]

    predict_squares(f"{zones} -o a.csv")
    rows = csv.DictReader((tmp_path / "a.csv").read_text().splitlines())
    assert column_of(rows, "zones") == ["left", "low"]
    assert predict_squares(f"{zones} --format table").stdout.split()[-1] == "low"


def test_parquet_has_the_zones(predict_squares, tmp_path):
    parquet = optional.require("pyarrow.parquet")
    predict_squares(f"--zone {LEFT} --zone {LOW} -o a.parquet")
    rows = parquet.read_table(tmp_path / "a.parquet").to_pylist()
    assert column_of(rows, "zones") == [["left"], ["low"]]


@pytest.mark.parametrize(
    ("condition", "code"),
    [
        ("left.red>0", 6),
        ("left.blue>0", 0),
        ("left.any>1", 0),
        ("any>1", 6),
        ("low.any==1", 6),
        ("nowhere.red>0", 2),
        ("left.dog>0", 2),
        ("left.>0", 2),
    ],
)
def test_a_run_can_fail_because_of_a_zone(predict_squares, condition, code):
    predict_squares(f"--zone {LEFT} --zone {LOW} --fail-if {condition}", code=code)


def test_a_zone_without_a_class_is_told_how_to_count_all(predict_squares):
    completed = predict_squares(f"--zone {LEFT} --fail-if left>0", code=2, says="write left.any")
    assert "'left' is a zone or a line, not a class" in completed.stderr


def test_a_run_in_shards_has_zones_and_merges_to_what_one_run_writes(
    predict_squares, in_shards, squares
):
    single_run, merged = in_shards(f"{squares} --conf 0.9 --zone {LEFT}")
    assert merged == single_run
    predict_squares("-o parts/", code=2, says="zones")


def test_zones_are_drawn(predict_squares, tmp_path):
    predict_squares(f"--zone {LOW} --save with")
    predict_squares("--save without")
    with_zone = cv2.imread(str(tmp_path / "with/b.png"))
    without_zone = cv2.imread(str(tmp_path / "without/b.png"))
    changed = (with_zone != without_zone).any(axis=2)
    assert changed[32, 40:].all()  # the upper edge
    assert not changed[:29].any()  # beyond its dark casing
    assert np.mean(changed[60:63, 30:40]) < 0.5  # not filled
