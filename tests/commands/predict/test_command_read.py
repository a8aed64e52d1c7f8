"""`detcli predict --read`."""

import csv
import json
import sys
from pathlib import Path

import pytest
from shard_engine import open_here

pytest.importorskip("zxingcpp")

DEMO = Path(__file__).parents[3] / "models/codes/demo.jpg"
TEXTS = {
    "23",
    "0048215593",
    "2099000123459",
    "B7-113",
    "EX-2048-7731",
    "NL|HARBOUR|HILLTOP|7|42|0825",
    "https://example.org/t/7Q42",
}
"""What is on the demonstration picture, as `models/codes/demo.py` writes it."""


def test_every_format_says_what_is_on_the_demonstration_picture(invoke, tmp_path):
    command = ["predict", DEMO, "-m", "codes", "--device", "cpu", "--read"]
    done = invoke(*command, "--fast-decode")  # which would leave too few pixels
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["detections"]
    assert {one["text"] for one in found} == TEXTS
    table = tmp_path / "a.csv"
    invoke(*command, "-o", table)
    rows = csv.DictReader(table.read_text().splitlines())
    assert {row["text"] for row in rows} == TEXTS
    shown = invoke(*command, "--format", "table").stdout
    assert all(text in shown for text in TEXTS)
    (plain,) = map(json.loads, invoke(*command[:-1]).stdout.splitlines())
    keys = {"text", "symbology", "bytes", "corners"}
    assert plain["detections"] == [
        {key: value for key, value in one.items() if key not in keys} for one in found
    ]


@pytest.mark.parametrize(
    "options", [["--read", "--fast-decode"], ["--zone", "all=0,0,1,0,1,1,0,1"]]
)
def test_parts_in_parquet_are_as_in_one_run(options, invoke, tmp_path, monkeypatch):
    """Also where symbols are read, which takes pictures at full size."""
    monkeypatch.setattr("detcli.commands.predict.shards.open_engine", open_here)
    command = ["predict", DEMO, "-m", "codes", "--device", "cpu", *options]
    done = invoke(*command, "-o", f"{tmp_path}/out/", "--format", "parquet")
    assert done.returncode == 0, done.stderr
    merged = invoke("merge", f"{tmp_path}/out/")
    assert merged.returncode == 0, merged.stderr
    assert merged.stdout == invoke(*command).stdout


def test_the_library_is_missed_before_anything_else(invoke, monkeypatch):
    monkeypatch.delitem(sys.modules, "detcli.watch.codes", raising=False)
    monkeypatch.setitem(sys.modules, "zxingcpp", None)
    done = invoke("predict", "none.jpg", "-m", "none.onnx", "--read")
    assert done.returncode == 1
    assert "zxing-cpp does not load" in done.stderr
    assert "pip install 'detcli[read]'" in done.stderr
