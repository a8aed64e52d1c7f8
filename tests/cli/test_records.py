"""Records that commands take, whatever program has written them."""

import io
import json

import pytest
from json_lines import column_of
from sample_records import image

from detcli.cli.records import read_for_scores
from detcli.core.errors import SourceError, UsageError

MEGADETECTOR = {
    "images": [
        {
            "file": "a.jpg",
            "width": 100,
            "height": 50,
            "detections": [{"category": "1", "conf": 0.9, "bbox": [0.1, 0.2, 0.5, 0.5]}],
        },
        {"file": "b.jpg", "width": 100, "height": 50, "detections": []},
        {"file": "c.jpg", "detections": None, "failure": "torn"},
    ],
    "detection_categories": {"1": "animal"},
    "info": {"format_version": "1.6", "detector": "m"},
}
"""Results in MegaDetector's format."""


class Stdin:
    """Standard input with some bytes."""

    def __init__(self, content):
        self.buffer = io.BufferedReader(io.BytesIO(content))


def scores_of(records):
    """The sources of records, with the scores of their detections, or None of a failed input."""
    scores = {}
    for record in records:
        scores[record["source"]] = None
        if "detections" in record:
            scores[record["source"]] = column_of(record["detections"], "score")
    return scores


EXPECTED = {"a.jpg": [0.9], "b.jpg": [], "c.jpg": None}


def test_results_of_megadetector_are_read(tmp_path):
    path = tmp_path / "results.json"
    path.write_text(json.dumps(MEGADETECTOR))
    assert scores_of(read_for_scores(str(path))) == EXPECTED


def test_results_of_megadetector_are_read_from_standard_input(monkeypatch):
    monkeypatch.setattr("sys.stdin", Stdin(json.dumps(MEGADETECTOR).encode()))
    assert scores_of(read_for_scores("-")) == EXPECTED


def test_records_are_read_from_a_file_and_from_standard_input(tmp_path, monkeypatch):
    line = image("a").to_json_text() + "\n"
    path = tmp_path / "boxes.jsonl"
    path.write_text(line)
    assert list(scores_of(read_for_scores(str(path)))) == ["a"]
    monkeypatch.setattr("sys.stdin", Stdin(line.encode()))
    assert list(scores_of(read_for_scores("-"))) == ["a"]


def test_what_is_neither_is_refused(tmp_path):
    path = tmp_path / "odd.json"
    path.write_text('{"a": 1}\n')
    with pytest.raises(UsageError, match=r"line 1 of .* is not a record"):
        list(read_for_scores(str(path)))
    with pytest.raises(SourceError, match="cannot read"):
        list(read_for_scores(str(tmp_path / "nothing.jsonl")))
