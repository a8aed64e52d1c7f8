"""`detcli predict --read`."""

import csv
from pathlib import Path

import pytest
from json_lines import column_of

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
"""What is on the demonstration image, as `models/codes/demo.py` writes it."""


@pytest.mark.slow
def test_every_format_says_what_is_on_the_demonstration_image(predict, tmp_path):
    command = f"{DEMO} -m codes --device cpu --read"
    (record,) = predict(f"{command} --fast-decode").records  # which would leave too few pixels
    detections = record["detections"]
    assert set(column_of(detections, "text")) == TEXTS
    predict(f"{command} -o a.csv")
    rows = csv.DictReader((tmp_path / "a.csv").read_text().splitlines())
    assert set(column_of(rows, "text")) == TEXTS
    table = predict(f"{command} --format table").stdout
    for text in TEXTS:
        assert text in table
    (plain,) = predict(command.removesuffix("--read")).records
    for detection in detections:
        for key in ("text", "symbology", "bytes", "corners"):
            detection.pop(key, None)
    assert detections == plain["detections"]


@pytest.mark.slow
def test_what_reading_adds_obeys_classes_and_max_det(predict):
    """Without the limits, the detector finds all that zxing-cpp reads on the image."""
    for options in ("--classes barcode", "--max-det 1", "--max-det 1 --classes 3"):
        command = f"{DEMO} -m codes --device cpu {options}"
        plain = predict(command).records[0]["detections"]
        with_texts = predict(f"{command} --read").records[0]["detections"]
        left_edges = column_of(plain, "x1")
        assert column_of(with_texts, "x1") == left_edges


@pytest.mark.slow
@pytest.mark.parametrize("options", ["--read --fast-decode", "--zone all=0,0,1,0,1,1,0,1"])
def test_parts_are_as_in_one_run(options, in_shards):
    """Also where symbols are read, which takes images at full size."""
    single_run, merged = in_shards(f"{DEMO} -m codes --device cpu {options}")
    assert single_run == merged
