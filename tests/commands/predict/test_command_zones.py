"""`detcli predict --zone`."""

import csv
import json

import cv2
import numpy as np
import pytest
from colour_model import picture

from detcli.sink import parquet

LEFT = "left=0,0,0.5,0,0.5,1,0,1"
LOW = "low=0,32,64,32,64,64,0,64"


@pytest.fixture
def squares(tmp_path):
    """A picture with one red square at the left, and a blue one below at the right."""
    path = tmp_path / "a.png"
    cv2.imwrite(str(path), picture(("red", 1, 1), ("blue", 6, 6), grey=40))
    return path


@pytest.fixture
def common(make_model, squares):
    return ["predict", squares, "-m", make_model(), "--conf", 0.9]


def test_every_format_has_the_zones(invoke, common, tmp_path):
    zones = ["--zone", LEFT, "--zone", LOW]
    done = invoke(*common, *zones)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert [one["zones"] for one in record["detections"]] == [["left"], ["low"]]
    assert "in left: 1 red\n" in done.stderr.replace("detcli: ", "")
    (plain,) = map(json.loads, invoke(*common).stdout.splitlines())
    for one in record["detections"]:
        del one["zones"]
    assert plain == record

    table, file = tmp_path / "a.csv", tmp_path / "a.parquet"
    invoke(*common, *zones, "-o", table)
    rows = csv.DictReader(table.read_text().splitlines())
    assert [row["zones"] for row in rows] == ["left", "low"]
    invoke(*common, *zones, "-o", file)
    with file.open("rb") as opened:
        (stored,) = parquet.read_records(opened)[0]
    assert [one["zones"] for one in stored["detections"]] == [["left"], ["low"]]
    assert invoke(*common, *zones, "--format", "table").stdout.split()[-1] == "low"


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
def test_a_run_can_fail_because_of_a_zone(invoke, common, condition, code):
    done = invoke(*common, "--zone", LEFT, "--zone", LOW, "--fail-if", condition)
    assert done.returncode == code, done.stderr


def test_a_zone_without_a_class_is_told_how_to_count_all(invoke, common):
    done = invoke(*common, "--zone", LEFT, "--fail-if", "left>0")
    assert done.returncode == 2
    assert "'left' is a zone or a line, not a class" in done.stderr
    assert "write left.any" in done.stderr


def test_zones_of_a_file(invoke, common, tmp_path):
    (tmp_path / "zones.txt").write_text(f"{LEFT}\n{LOW}\n")
    done = invoke(*common, "--zone", f"@{tmp_path / 'zones.txt'}")
    assert [one["zones"] for one in json.loads(done.stdout)["detections"]] == [["left"], ["low"]]


@pytest.mark.parametrize("zone", ["left", "left=0,0,1,1", "@nowhere.txt"])
def test_what_is_no_zone_ends_the_run_at_once(invoke, common, zone):
    done = invoke(*common, "--zone", zone)
    assert done.returncode == 2
    assert "--zone" in done.stderr
    assert "hint: " in done.stderr


def test_a_journal_has_one_set_of_zones(invoke, common, tmp_path):
    journal = ["--resume", tmp_path / "j.jsonl"]
    assert invoke(*common, *journal, "--zone", LEFT).returncode == 0
    assert invoke(*common, *journal, "--zone", LEFT.replace(",0,", ", 0 ,")).returncode == 0
    assert invoke(*common, *journal, "--zone", LOW).returncode == 2
    assert invoke(*common, *journal).returncode == 2


def test_a_run_in_shards_has_zones_and_merges_to_what_one_run_writes(detcli, common, tmp_path):
    folder, whole, merged = f"{tmp_path}/parts/", tmp_path / "a.csv", tmp_path / "b.csv"
    done = detcli(*common, "--zone", LEFT, "-o", folder)
    assert done.returncode == 0, done.stderr
    assert "in left: 1 red" in done.stderr
    assert detcli("merge", folder, "-o", merged).returncode == 0
    assert detcli(*common, "--zone", LEFT, "-o", whole).returncode == 0
    assert merged.read_text() == whole.read_text()
    assert detcli(*common, "-o", folder).returncode == 2


def test_zones_are_drawn(invoke, common, tmp_path):
    assert invoke(*common, "--zone", LOW, "--save", tmp_path / "with").returncode == 0
    assert invoke(*common, "--save", tmp_path / "without").returncode == 0
    ours, plain = (cv2.imread(str(tmp_path / name / "a.png")) for name in ("with", "without"))
    changed = (ours != plain).any(axis=2)
    assert changed[32, 40:].all()  # the upper edge
    assert not changed[:31].any()
    assert np.mean(changed[60:63, 30:40]) < 0.5  # not filled
