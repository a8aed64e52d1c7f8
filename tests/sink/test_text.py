"""Records as text: read back, whatever they are called; tables as people see them."""

import csv
import io
import json
import os
import re

import pytest
import terminals
from report_schemas import validator
from sample_records import damaged, failed_frame, failure, feed, frame, picture

from detcli.data.record import name_of
from detcli.sink.text import COLUMNS, CsvSink, JsonLinesSink, JsonSink, TableSink
from detcli.storage.files import AtomicFile, StandardOutput

NAMES = [
    *("a,b", "q\"uo'te", "猫 é 😀", " padded ", "", "semi;colon", "\\udcff", "a=b", "'quoted'"),
    *("[red]x", "[/]", "a[1].jpg", ":smile:", "[link=http://x]y", "\\[a]"),
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
SHOWN = {name: name for name in NAMES} | CODES
FORMULAS = [
    *("=1+1", "+1", "-1", "@SUM(A1)", "=cmd|' /C calc'!A0", ' =HYPERLINK("http://x")', "\uff1d1"),
]


@pytest.fixture
def written(tmp_path):
    """The text that a sink of some kind writes."""

    def write(kind, *records):
        feed(kind(AtomicFile(tmp_path / "out")), *records)
        return (tmp_path / "out").read_bytes().decode()

    return write


def rows(text):
    read = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    assert read.fieldnames == COLUMNS
    return list(read)


def filled(row):
    return {name: value for name, value in row.items() if value != ""}


@pytest.mark.parametrize(
    ("kind", "read"),
    [(JsonSink, json.loads), (JsonLinesSink, lambda text: [*map(json.loads, text.splitlines())])],
)
def test_json_comes_back_in_order(written, kind, read):
    records = [picture(count=2), failure(index=1), picture("b.jpg", index=2, count=0)]
    fields = read(written(kind, *records))
    assert fields == [one.to_json() for one in records]
    for one in fields:
        validator("predict").validate(one)


def test_json_has_one_record_per_line(written):
    lines = written(JsonSink, picture("猫"), failure()).splitlines()
    assert [line[0] for line in lines] == ["[", "{", "{", "]"]
    assert "猫" in lines[1]


def test_odd_names_survive_json(monkeypatch, written):
    for name in (*NAMES, *CODES):
        one, other = json.loads(written(JsonSink, picture(name, name), failure(name, name)))
        text = name.replace("\udcff", "\\xff")
        assert one["source"] == text
        assert one["detections"][0]["class_name"] == text
        assert other["source"] == text
        assert other["error"]["message"] == text
        data = io.BytesIO()
        monkeypatch.setattr("sys.stdout", io.TextIOWrapper(data, encoding="ascii"))
        JsonLinesSink(StandardOutput()).write(picture(name))
        assert name_of(json.loads(data.getvalue())) == name


def test_each_line_is_flushed(monkeypatch):
    data = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(data, write_through=False))
    sink = JsonLinesSink(StandardOutput())
    for count in (1, 2):
        sink.write(picture())
        assert data.getvalue().count(b"\n") == count


def test_the_columns_of_csv_are_fixed():
    assert ",".join(COLUMNS) == (
        "source,index,input,frame,time_s,width,height,class_id,class_name,score,x1,y1,x2,y2,error,"
        "time,warnings,meta,source_bytes"
    )


def test_csv_has_a_row_for_each_detection_and_each_other_record(written):
    records = [
        picture(index=7, count=2, score=0.5123946, bottom=4.567),
        frame(25, count=1),
        failed_frame(26),
        frame(3, count=1, time_s=None),
        failure(index=3),
        picture("b", index=1, count=0),
    ]
    one, again, found, failed, timeless, torn, empty = rows(written(CsvSink, *records))
    values = "a.jpg,7,0,,,60,40,0,cat,0.512395,1.0,2.0,3.0,4.57,,,,,".split(",")
    assert one == again == dict(zip(COLUMNS, values, strict=True))
    assert found["frame"] == "25"
    assert found["time_s"] == "2.5"
    assert found["error"] == ""
    assert failed["frame"] == "26"
    assert failed["time_s"] == "2.6"
    assert failed["error"] == "it failed"
    assert timeless["frame"] == "3"
    assert timeless["time_s"] == ""
    assert filled(torn) == {"source": "torn.jpg", "index": "3", "input": "0", "error": "it is torn"}
    size = {"width": "60", "height": "40"}
    assert filled(empty) == {"source": "b", "index": "1", "input": "0", **size}


def test_warnings_are_in_each_row_of_a_picture(written):
    both = damaged(picture(count=2), "damaged: torn", "damaged: cut")
    one, other, alone = rows(written(CsvSink, both, damaged(picture(count=0), "damaged: torn")))
    assert one["warnings"] == other["warnings"] == "damaged: torn; damaged: cut"
    values = {"source": "a.jpg", "index": "0", "input": "0", "width": "60", "height": "40"}
    assert filled(alone) == values | {"warnings": "damaged: torn"}


def test_no_cell_has_control_codes_or_begins_like_a_formula(written):
    for name, shown in (SHOWN | {one: f"'{one}" for one in FORMULAS}).items():
        one, other = rows(written(CsvSink, picture(name, name), failure(name, name)))
        assert one["source"] == shown
        assert one["class_name"] == shown
        assert one["x1"] == "1.0"
        assert other["source"] == shown
        assert other["error"] == shown
    assert '"a;=1+1"' in written(CsvSink, picture("a;=1+1"))


@pytest.fixture
def shown(monkeypatch):
    """A table on a terminal."""
    for variable in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "TTY_COMPATIBLE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    master, slave = os.openpty()

    def write(*records):
        with os.fdopen(slave, "w") as terminal:
            monkeypatch.setattr("sys.stdout", terminal)
            feed(TableSink(StandardOutput()), *records)
        return terminals.read_all(master).decode()

    yield write
    os.close(master)


def test_a_picture_has_a_heading_and_one_row_per_detection(written):
    name = "x" * 300
    heading, columns, *found = written(TableSink, picture("a.jpg", name, bottom=1234.567, count=2)
    ).splitlines()  # fmt: skip
    assert heading.split() == ["a.jpg", "60x40"]
    assert columns.split() == ["class", "score", "x1", "y1", "x2", "y2"]
    assert [row.split() for row in found] == [[name, "0.50", "1.0", "2.0", "3.0", "1234.6"]] * 2


LONG = "folder of pictures/" * 20


def test_what_has_no_detections_has_a_line_and_one_for_each_remark(written):
    for record, line in (
        (picture(count=0), "a.jpg  60x40  nothing found"),
        (picture(LONG, count=0), f"{LONG}  60x40  nothing found"),
        (failure(LONG, hint=""), f"{LONG}: it is torn"),
        (failure(hint="fetch it"), "torn.jpg: it is torn\n  hint: fetch it"),
        (frame(12), "in/film.avi  frame 12  1.20 s  60x40  nothing found"),
        (damaged(picture(count=0), "torn\x1b"), "a.jpg  60x40  nothing found\n  torn\\x1b"),
    ):
        assert written(TableSink, record) == f"{line}\n"


def test_names_in_tables_are_neither_markup_nor_control_codes(written):
    for name, shown in SHOWN.items():
        text = written(TableSink, damaged(picture(name, name), "odd"), failure(name, name, hint=""))
        heading, remark, _, row, blank, error, end = text.split("\n")
        assert heading == f"{shown}  60x40"
        assert remark == "  odd"
        assert blank == ""
        assert row.startswith(shown)
        assert error == f"{shown}: {shown}"
        assert end == ""
        assert "\x1b" not in text


def test_a_blank_line_keeps_pictures_apart_that_take_several(written):
    nothing, found = picture(count=0), picture(count=1)
    lines = written(TableSink, nothing, nothing, found, found, nothing, nothing).splitlines()
    assert [not line for line in lines] == [
        *(False, False, True, False, False, False),
        *(True, False, False, False, True, False, False),
    ]  # fmt: skip


def test_a_narrow_terminal_breaks_sentences_between_words(shown, monkeypatch):
    monkeypatch.setattr(os, "get_terminal_size", lambda *_: os.terminal_size((30, 9)))
    monkeypatch.setenv("NO_COLOR", "1")
    said = "a damaged picture, of which half was read"
    text = shown(damaged(picture(), said), failure(LONG, hint=said))
    lines = re.sub(r"\x1b\[[0-9;]*m|\r", "", text).splitlines()
    assert lines[1:3] == ["  a damaged picture, of which", "    half was read"]
    assert lines[-2:] == ["  hint: a damaged picture, of", "    which half was read"]


@pytest.mark.parametrize("plain", [False, True])
def test_a_terminal_gets_colours_unless_it_wants_none(shown, monkeypatch, plain):
    if plain:
        monkeypatch.setenv("NO_COLOR", "1")
    text = shown(failure(), picture())
    assert "cat" in text
    assert ("\x1b[31m" in text) == (not plain)
    assert ("\x1b[36m" in text) == (not plain)
    assert ("\x1b[3" in text) == (not plain)


def test_frames_without_detections_take_no_line_on_a_terminal(shown):
    frames = [frame(number, count=number % 2) for number in range(3)]
    text = shown(*frames, picture(count=0), failure())
    assert re.findall(r"frame \d", text) == ["frame 1"]
    assert "nothing found" in text  # of the picture
