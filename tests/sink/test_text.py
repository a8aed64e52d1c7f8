"""Records as text: read back, whatever they are called; tables as people see them."""

import csv
import io
import json
import os
import re
from dataclasses import replace

import json_lines
import pytest
import terminals
from report_schemas import validator
from sample_records import damaged, failed_frame, failure, feed_all, frame, image

from detcli.data.capture_time import CaptureTime
from detcli.data.record import name_of
from detcli.sink.text import COLUMNS, CsvSink, JsonLinesSink, JsonSink, TableSink
from detcli.storage.files import AtomicFile, StandardOutput

NAMES = [
    "a,b",
    "q\"uo'te",
    "猫 é 😀",
    " padded ",
    "",
    "semi;colon",
    "\\udcff",
    "a=b",
    "'quoted'",
    "[red]x",
    "[/]",
    "a[1].jpg",
    ":smile:",
    "[link=http://x]y",
    "\\[a]",
]
CODES = {
    "new\nline": "new\\nline",
    "carriage\rreturn": "carriage\\rreturn",
    "\ttab": "\\ttab",
    "\x1b[1m": "\\x1b[1m",
    "\u202edetrevni": "\\u202edetrevni",
    "\u2028": "\\u2028",
    "nul\0": "nul\\x00",
    "\x9b2J": "\\x9b2J",
    "\udcff": "\\xff",
}
PRINTED = [(name, name) for name in NAMES] + list(CODES.items())
"""Names, and how people see them."""

FORMULAS = [
    "=1+1",
    "+1",
    "-1",
    "@SUM(A1)",
    "=cmd|' /C calc'!A0",
    ' =HYPERLINK("http://x")',
    "\uff1d1",
]


@pytest.fixture
def written(tmp_path):
    """The text that a sink of some class writes."""

    def write(sink_class, records):
        feed_all(sink_class(AtomicFile(tmp_path / "out")), records)
        return (tmp_path / "out").read_bytes().decode()

    return write


def rows(text):
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    assert reader.fieldnames == COLUMNS
    return list(reader)


def filled(row):
    return {name: value for name, value in row.items() if value != ""}


def test_csv_has_the_time_of_a_photograph(written):
    whole = image()
    time = CaptureTime("2021-05-06T07:08:09.25", "-03:00")
    photograph = replace(whole, picture=replace(whole.picture, capture_time=time))
    dated, undated = rows(written(CsvSink, [photograph, image("undated.jpg")]))
    assert dated["taken"] == "2021-05-06T07:08:09.25"
    assert dated["taken_offset"] == "'-03:00"  # as all texts that may be a formula
    assert undated["taken"] == ""
    assert undated["taken_offset"] == ""


def read_lines(text):
    return json_lines.lines(text)


@pytest.mark.parametrize(
    ("sink_class", "read"), [(JsonSink, json.loads), (JsonLinesSink, read_lines)]
)
def test_json_comes_back_in_order(written, sink_class, read):
    records = [image(count=2), failure(index=1), image("b.jpg", index=2, count=0)]
    fields_of_records = read(written(sink_class, records))
    for fields, record in zip(fields_of_records, records, strict=True):
        assert fields == record.to_json()
        validator("predict").validate(fields)


def test_json_has_one_record_per_line(written):
    lines = written(JsonSink, [image("猫"), failure()]).splitlines()
    first_characters = [line[0] for line in lines]
    assert first_characters == ["[", "{", "{", "]"]
    assert "猫" in lines[1]


@pytest.mark.parametrize("name", NAMES + list(CODES))
def test_odd_names_survive_json(written, name):
    detected, failed = json.loads(written(JsonSink, [image(name, name), failure(name, name)]))
    text = name.replace("\udcff", "\\xff")
    assert detected["source"] == text
    assert detected["detections"][0]["class_name"] == text
    assert failed["source"] == text
    assert failed["error"]["message"] == text


@pytest.mark.parametrize("name", NAMES + list(CODES))
def test_odd_names_survive_a_pipe_of_another_encoding(monkeypatch, name):
    pipe = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(pipe, encoding="ascii"))
    JsonLinesSink(StandardOutput()).write(image(name))
    assert name_of(json.loads(pipe.getvalue())) == name


def test_each_line_is_flushed(monkeypatch):
    data = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(data, write_through=False))
    sink = JsonLinesSink(StandardOutput())
    for count in (1, 2):
        sink.write(image())
        assert data.getvalue().count(b"\n") == count


def test_the_columns_of_csv_are_fixed():
    assert ",".join(COLUMNS) == (
        "source,index,input,frame,time_s,width,height,class_id,class_name,score,x1,y1,x2,y2,error,"
        "time,warnings,meta,source_bytes,taken,taken_offset"
    )


def test_csv_has_a_row_for_each_detection_and_each_other_record(written):
    records = [
        image(index=7, count=2, score=0.5123946, bottom=4.567),
        frame(25, count=1),
        failed_frame(26),
        frame(3, count=1, time_s=None),
        failure(index=3),
        image("b", index=1, count=0),
    ]
    first, second, in_frame, failed, timeless, torn, empty = rows(written(CsvSink, records))
    values = "a.jpg,7,0,,,60,40,0,cat,0.512395,1.0,2.0,3.0,4.57,,,,,,,".split(",")
    assert first == dict(zip(COLUMNS, values, strict=True))
    assert second == first
    assert in_frame["frame"] == "25"
    assert in_frame["time_s"] == "2.5"
    assert in_frame["error"] == ""
    assert failed["frame"] == "26"
    assert failed["time_s"] == "2.6"
    assert failed["error"] == "it failed"
    assert timeless["frame"] == "3"
    assert timeless["time_s"] == ""
    assert filled(torn) == {"source": "torn.jpg", "index": "3", "input": "0", "error": "it is torn"}
    size = {"width": "60", "height": "40"}
    assert filled(empty) == {"source": "b", "index": "1", "input": "0", **size}


def test_warnings_are_in_each_row_of_an_image(written):
    with_two_warnings = damaged(image(count=2), "damaged: torn", "damaged: cut")
    without_detections = damaged(image(count=0), "damaged: torn")
    first, second, empty = rows(written(CsvSink, [with_two_warnings, without_detections]))
    assert first["warnings"] == "damaged: torn; damaged: cut"
    assert second["warnings"] == "damaged: torn; damaged: cut"
    values = {"source": "a.jpg", "index": "0", "input": "0", "width": "60", "height": "40"}
    assert filled(empty) == values | {"warnings": "damaged: torn"}


@pytest.mark.parametrize(
    ("name", "printed"), PRINTED + [(formula, f"'{formula}") for formula in FORMULAS]
)
def test_no_cell_has_control_codes_or_begins_like_a_formula(written, name, printed):
    detected, failed = rows(written(CsvSink, [image(name, name), failure(name, name)]))
    assert detected["source"] == printed
    assert detected["class_name"] == printed
    assert detected["x1"] == "1.0"
    assert failed["source"] == printed
    assert failed["error"] == printed


def test_what_looks_like_a_formula_within_a_cell_is_quoted(written):
    assert '"a;=1+1"' in written(CsvSink, [image("a;=1+1")])


@pytest.fixture
def table_on_terminal(monkeypatch):
    """A table on a terminal."""
    for variable in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "TTY_COMPATIBLE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    master, slave = os.openpty()

    def write(*records):
        with os.fdopen(slave, "w") as terminal:
            monkeypatch.setattr("sys.stdout", terminal)
            feed_all(TableSink(StandardOutput()), records)
        return terminals.read_all(master).decode()

    yield write
    os.close(master)


def test_an_image_has_a_heading_and_one_row_per_detection(written):
    name = "x" * 300
    table = written(TableSink, [image("a.jpg", name, bottom=1234.567, count=2)])
    heading, columns, first, second = table.splitlines()
    assert heading.split() == ["a.jpg", "60x40"]
    assert columns.split() == ["class", "score", "x1", "y1", "x2", "y2"]
    assert first.split() == [name, "0.50", "1.0", "2.0", "3.0", "1234.6"]
    assert second.split() == [name, "0.50", "1.0", "2.0", "3.0", "1234.6"]


LONG = "folder of pictures/" * 20


@pytest.mark.parametrize(
    ("record", "line"),
    [
        (image(count=0), "a.jpg  60x40  nothing found"),
        (image(LONG, count=0), f"{LONG}  60x40  nothing found"),
        (failure(LONG, hint=""), f"error: {LONG}: it is torn"),
        (failure(hint="fetch it"), "error: torn.jpg: it is torn\n  hint: fetch it"),
        (frame(12), "in/film.avi  frame 12  1.20 s  60x40  nothing found"),
        (damaged(image(count=0), "torn\x1b"), "a.jpg  60x40  nothing found\n  torn\\x1b"),
    ],
    ids=["empty", "long empty", "long failure", "failure", "frame", "damaged"],
)
def test_what_has_no_detections_has_a_line_and_one_for_each_remark(written, record, line):
    assert written(TableSink, [record]) == f"{line}\n"


@pytest.mark.parametrize(("name", "printed"), PRINTED)
def test_names_in_tables_are_neither_markup_nor_control_codes(written, name, printed):
    text = written(TableSink, [damaged(image(name, name), "odd"), failure(name, name, hint="")])
    heading, remark, _, row, blank, error, end = text.split("\n")
    assert heading == f"{printed}  60x40"
    assert remark == "  odd"
    assert blank == ""
    assert row.startswith(printed)
    assert error == f"error: {printed}: {printed}"
    assert end == ""
    assert "\x1b" not in text


def test_a_blank_line_keeps_images_apart_that_take_several(written):
    empty = image(count=0)
    full = image(count=1)
    lines = written(TableSink, [empty, empty, full, full, empty, empty]).splitlines()
    empty_lines = ["a.jpg  60x40  nothing found"] * 2
    table = lines[3:6]
    assert lines == empty_lines + [""] + table + [""] + table + [""] + empty_lines


def test_a_narrow_terminal_breaks_sentences_between_words(table_on_terminal, monkeypatch):
    monkeypatch.setattr(os, "get_terminal_size", lambda *_: os.terminal_size((30, 9)))
    monkeypatch.setenv("NO_COLOR", "1")
    remark = "a damaged image, of which half was read"
    text = table_on_terminal(damaged(image(), remark), failure(LONG, hint=remark))
    lines = re.sub(r"\x1b\[[0-9;]*m|\r", "", text).splitlines()
    assert lines[1:3] == ["  a damaged image, of which", "    half was read"]
    assert lines[-2:] == ["  hint: a damaged image, of", "    which half was read"]


@pytest.mark.parametrize("plain", [False, True])
def test_a_terminal_gets_colours_unless_it_wants_none(table_on_terminal, monkeypatch, plain):
    if plain:
        monkeypatch.setenv("NO_COLOR", "1")
    text = table_on_terminal(failure(), image())
    assert "cat" in text
    assert ("\x1b[1;31m" in text) == (not plain)
    assert ("\x1b[36m" in text) == (not plain)
    assert ("\x1b[3" in text) == (not plain)


def test_heads_of_columns_are_shown_once_on_a_terminal(table_on_terminal):
    text = table_on_terminal(image("a.jpg"), image(count=0), image("b.jpg"))
    lines = re.sub(r"\x1b\[[0-9;]*m|\r", "", text).splitlines()
    headings = [line for line in lines if line.startswith("class ")]
    assert len(headings) == 1
    detection_rows = [line for line in lines if "0.50" in line]
    assert len(detection_rows) == 2
    assert detection_rows[0].index("0.50") == detection_rows[1].index("0.50")


class ImageWithTrack:
    """An image whose detection has a number of a track."""

    def to_json(self):
        """Return the fields of the record."""
        fields = image().to_json()
        fields["detections"][0]["track_id"] = 7
        return fields


def test_other_columns_have_their_heads_shown(table_on_terminal):
    text = table_on_terminal(image(), ImageWithTrack(), ImageWithTrack())
    assert text.count("score") == 2


def test_frames_without_detections_take_no_line_on_a_terminal(table_on_terminal):
    text = table_on_terminal(frame(0), frame(1, count=1), frame(2), image(count=0), failure())
    assert re.findall(r"frame \d", text) == ["frame 1"]
    assert "nothing found" in text  # of the image
