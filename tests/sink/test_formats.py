"""Formats of records: which one is meant, and what writes it."""

import os
from pathlib import Path

import optional
import pytest
from sample_records import image

from detcli.config.values import FORMAT_OF_SUFFIX, Format
from detcli.core.errors import UsageError
from detcli.sink.formats import FORMATS, check_format_options, choose_format, open_record_sink
from detcli.storage.files import open_output


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("boxes.jsonl", Format.JSONL),
        ("boxes.ndjson", Format.JSONL),
        ("boxes.json", Format.JSON),
        ("out.d/boxes.CSV", Format.CSV),
        ("boxes.parquet", Format.PARQUET),
        ("boxes", Format.JSONL),
        (".boxes", Format.JSONL),
        ("out.d/boxes", Format.JSONL),
        ("/dev/null", Format.JSONL),
        ("/dev/stdout", Format.JSONL),
        ("/dev/fd/63", Format.JSONL),
    ],
)
def test_the_suffix_chooses_the_format(name, expected):
    assert choose_format(None, Path(name)) is expected


@pytest.mark.parametrize(
    "name",
    ["boxes.txt", "boxes.xlsx", "boxes.jsonl.gz", "street.jpg", "x.table", "1.5", "a" * 300 + ".x"],
)
def test_an_unknown_suffix_is_refused(name):
    with pytest.raises(UsageError, match="names no format") as caught:
        choose_format(None, Path(name))
    assert ".jsonl, .ndjson, .json, .csv, .parquet" in caught.value.hint
    assert choose_format(Format.TABLE, Path(name)) is Format.TABLE


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("out/x.jsno", "out/x.json"),
        ("x.cvs", "x.csv"),
        ("x.JSNOL", "x.jsonl"),
        ("a.b.parqet", "a.b.parquet"),
    ],
)
def test_a_mistyped_suffix_names_another_name(name, suggestion):
    with pytest.raises(UsageError) as caught:
        choose_format(None, Path(name))
    assert caught.value.hint.startswith(f"did you mean {suggestion}? use .jsonl")


def test_a_pipe_may_be_called_anything(tmp_path):
    for name, expected in (("boxes.pipe", Format.JSONL), ("boxes.csv", Format.CSV)):
        os.mkfifo(tmp_path / name)
        assert choose_format(None, tmp_path / name) is expected


@pytest.mark.parametrize("record_format", Format)
def test_each_format_has_a_sink(record_format, tmp_path):
    if record_format is Format.PARQUET:
        optional.require("pyarrow")
    path = tmp_path / "boxes"
    sink = open_record_sink(record_format, open_output(path), ["track_id"])
    sink.write(image())
    sink.close()
    assert path.stat().st_size
    assert (b"track_id" in path.read_bytes()) is FORMATS[record_format].has_detection_rows


def test_each_suffix_is_of_a_format_that_has_a_sink():
    assert set(FORMAT_OF_SUFFIX.values()) <= FORMATS.keys()
    assert set(FORMATS) == set(Format)


def test_parquet_needs_a_file():
    with pytest.raises(UsageError, match="--format parquet needs --output"):
        check_format_options(Format.PARQUET, None)
    check_format_options(Format.CSV, None)


@optional.needs("pyarrow")
def test_parquet_with_a_file_is_taken():
    check_format_options(Format.PARQUET, Path("boxes.parquet"))
