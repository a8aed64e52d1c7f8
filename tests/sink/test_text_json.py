"""JSON: an array or lines, valid whatever was written."""

import io
import json

import pytest
from report_schemas import validator
from sample_records import failure, picture
from small_disk import small_disk

from detcli.errors import DetcliWarning, OutputError
from detcli.files import AtomicFile, StandardOutput
from detcli.sink.text import JsonLinesSink, JsonSink

NAMES = ["a,b", "q\"uo'te", "new\nline\r", "猫 é 😀", "\udcff", "\x1b[1m\0", "\\udcff", "\u2028"]


def written(sink, path, *records):
    """The text of a file that a sink wrote."""
    writer = sink(AtomicFile(path))
    for one in records:
        writer.write(one)
    assert not path.exists()
    writer.close()
    return path.read_bytes().decode()


def read_lines(text):
    assert text == "" or text.endswith("\n")
    return [json.loads(line) for line in text.split("\n")[:-1]]


@pytest.fixture(params=[(JsonSink, json.loads), (JsonLinesSink, read_lines)], ids=["json", "jsonl"])
def read_back(request, tmp_path):
    """Write records in a format and read them back."""
    sink, read = request.param
    return lambda *records: read(written(sink, tmp_path / "out", *records))


def test_an_empty_run_is_valid(read_back):
    assert read_back() == []


def test_records_come_back_in_order(read_back):
    records = [picture(count=2), failure(index=1), picture("b.jpg", index=2, count=0)]
    fields = read_back(*records)
    assert fields == [one.to_json() for one in records]
    for one in fields:
        validator("predict").validate(one)


@pytest.mark.parametrize("name", NAMES)
def test_odd_names_survive(read_back, name):
    one, other = read_back(picture(name, name), failure(name, name))
    assert (one["source"], one["detections"][0]["class_name"]) == (name, name)
    assert (other["source"], other["error"]["message"]) == (name, name)


@pytest.mark.parametrize("name", NAMES)
def test_odd_names_come_back_from_standard_output(monkeypatch, name):
    data = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(data, encoding="ascii"))
    JsonLinesSink(StandardOutput()).write(picture(name))
    assert json.loads(data.getvalue())["source"] == name


def test_names_beyond_ascii_stay_readable(tmp_path):
    assert "猫" in written(JsonLinesSink, tmp_path / "out", picture("猫"))


def test_each_line_is_flushed(monkeypatch):
    data = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(data, write_through=False))
    sink = JsonLinesSink(StandardOutput())
    for count in (1, 2):
        sink.write(picture())
        assert data.getvalue().count(b"\n") == count


def test_an_array_has_one_record_per_line(tmp_path):
    text = written(JsonSink, tmp_path / "out", picture(), failure())
    assert [line[0] for line in text.splitlines()] == ["[", "{", "{", "]"]
    assert written(JsonSink, tmp_path / "empty") == "[]\n"


@pytest.mark.parametrize(("sink", "read"), [(JsonSink, json.loads), (JsonLinesSink, read_lines)])
@pytest.mark.parametrize("before", [0, 2])
def test_what_was_written_before_the_disk_was_full_is_readable(tmp_path, sink, read, before):
    path = tmp_path / "out"
    writer = sink(AtomicFile(path))
    records = [picture(index=index) for index in range(before)]
    for record in records:
        writer.write(record)
    with small_disk():
        with pytest.raises(OutputError, match="out"):
            writer.write(picture(count=100))
        with pytest.warns(DetcliWarning, match="not complete"):
            writer.close()
    assert read(path.read_text()) == [record.to_json() for record in records]
