"""`detcli predict --tile`: records, journals and shards know of it, and bad values are refused."""

import json

import cv2
import pytest
from colour_model import cell_box, picture
from shard_engine import open_here

SQUARES = [("red", 2, 3), ("blue", 6, 6), ("green", 7, 3), ("red", 19, 13)]
TILE = ["--tile", "64,overlap=0.25", "--conf", 0.6]


@pytest.fixture
def large(tmp_path):
    cv2.imwrite(str(tmp_path / "large.png"), picture(*SQUARES, size=(112, 160), grey=40))
    return tmp_path / "large.png"


@pytest.mark.usefixtures("each_device")
def test_small_things_in_a_large_picture_are_found(invoke, make_model, large, tmp_path):
    model, out = make_model(), tmp_path / "out"
    done = invoke("predict", large, "-m", model, *TILE, "--save", out, "--labels", "none")
    assert done.returncode == 0, done.stderr
    (record,) = map(json.loads, done.stdout.splitlines())
    assert (record["width"], record["height"]) == (160, 112)
    found = sorted((one["class_name"], *one["box"]) for one in record["detections"])
    assert found == sorted((name, *cell_box(*at)) for name, *at in SQUARES)
    drawn = cv2.imread(str(out / "large.png"))
    assert drawn.shape == (112, 160, 3)
    assert (drawn != cv2.imread(str(large))).any(axis=2)[104:112, 152:160].any()
    (whole,) = map(json.loads, invoke("predict", large, "-m", model, *TILE[2:]).stdout.splitlines())
    assert whole["detections"] == []


def test_small_pictures_are_looked_at_once(invoke, make_model, make_pictures):
    pictures, model = make_pictures(5), make_model()
    common = ["predict", pictures, "-m", model, "--conf", 0.3]
    assert invoke(*common, "--tile", 64).stdout == invoke(*common).stdout


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("640,overlap=2", "between 0 and 0.9\n  hint: write --tile 640,overlap=0.2"),
        ("big", "not a size in pixels\n  hint: write 640, or 640,overlap=0.2"),
        ("8", "smaller than the model's stride, 32\n  hint: use the side of its input, --tile 64"),
    ],
)
def test_tiles_that_make_no_sense_are_refused(invoke, make_model, large, value, says):
    model = make_model(metadata={"stride": "32"})
    done = invoke("predict", large, "-m", model, "--tile", value)
    assert done.returncode == 2
    assert says in done.stderr


def test_a_journal_knows_the_tiles(invoke, make_model, large, tmp_path):
    common = ["predict", large, "-m", make_model(), "--resume", tmp_path / "boxes.jsonl"]
    assert invoke(*common, *TILE).returncode == 0
    (record,) = map(json.loads, (tmp_path / "boxes.jsonl").read_text().splitlines())
    assert record["settings"]["tile"] == "64,overlap=0.25"
    for other in (["--tile", 64, "--conf", 0.6], ["--conf", 0.6]):
        done = invoke(*common, *other)
        assert done.returncode == 2
        assert 'tile "64,overlap=0.25" instead of' in done.stderr
    assert "1 skipped" in invoke(*common, *TILE).stderr


def test_a_manifest_knows_the_tiles(invoke, make_model, large, tmp_path, monkeypatch):
    monkeypatch.setattr("detcli.commands.predict.shards.open_engine", open_here)
    common = ["predict", large, "-m", make_model(), "-o", f"{tmp_path}/boxes/"]
    done = invoke(*common, *TILE)
    assert done.returncode == 0, done.stderr
    (record,) = map(json.loads, (tmp_path / "boxes/part-00000.jsonl").read_text().splitlines())
    assert len(record["detections"]) == len(SQUARES)
    done = invoke(*common, "--tile", 64, "--conf", 0.6)
    assert done.returncode == 2
    assert "tile" in done.stderr
