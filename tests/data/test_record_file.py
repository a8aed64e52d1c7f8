"""Records of a file and of standard input."""

import io
import sys

import pytest
from json_lines import text_of
from saved_records import box, error, record

from detcli.core.errors import SourceError, UsageError
from detcli.data.record_file import read_file, read_standard_input
from detcli.data.saved_record import parse_scored

RECORDS = [record("a.jpg", box(), box(0.5)), record("b.jpg"), error("c.jpg")]


def text(records):
    return text_of(records)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_standard_input_is_read_in_any_encoding(monkeypatch, encoding):
    stream = io.TextIOWrapper(io.BytesIO(text(RECORDS).encode(encoding)))
    monkeypatch.setattr(sys, "stdin", stream)
    assert list(read_standard_input(parse_scored)) == RECORDS
    assert not stream.closed


def test_a_closed_standard_input_is_an_error(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(SourceError, match="standard input is closed"):
        next(read_standard_input())


def test_a_file_is_read_with_the_parser_that_is_asked_for(tmp_path):
    path = tmp_path / "boxes.jsonl"
    path.write_text(text(RECORDS))
    assert list(read_file(str(path))) == RECORDS
    assert list(read_file(str(path), parse_scored)) == RECORDS
    without_box = record("d.jpg", {"class_id": 0, "class_name": "cat", "score": 0.5})
    path.write_text(text(RECORDS + [without_box]))
    assert len(list(read_file(str(path), parse_scored))) == 4
    with pytest.raises(UsageError, match=r"line 4 of .*: detections\[0\].x1 is missing"):
        list(read_file(str(path)))
