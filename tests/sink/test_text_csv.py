"""CSV, read back by the csv module."""

import csv
from functools import partial

import pytest
import sample_records
from sample_records import damaged, failed_frame, frame
from small_disk import small_disk

from detcli.errors import DetcliWarning, OutputError
from detcli.files import AtomicFile
from detcli.sink.text import COLUMNS, CsvSink

NAMES = [
    *("a,b", "q\"uo'te", "猫 é 😀", " padded ", "", "semi;colon", "back\\slash", "a=b", "'quoted'"),
]
CODES = {
    "new\nline": "new\\nline",
    "carriage\rreturn": "carriage\\rreturn",
    "\ttab": "\\ttab",
    "\x1b[1m": "\\x1b[1m",
    "\u202edetrevni": "\\u202edetrevni",
    "\u2028": "\\u2028",
    "nul\0": "nul\\x00",
}
FORMULAS = [
    *("=1+1", "+1", "-1", "@SUM(A1)", "=cmd|' /C calc'!A0", ' =HYPERLINK("http://x")', "\uff1d1"),
]


picture = partial(sample_records.picture, score=0.51239, bottom=4.567)
failure = sample_records.failure


@pytest.fixture
def read_back(tmp_path):
    """Write records and read the rows back; the header is checked here."""

    def read(*records):
        path = tmp_path / "out.csv"
        sink = CsvSink(AtomicFile(path))
        for one in records:
            sink.write(one)
        assert not path.exists()
        sink.close()
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file, strict=True)
            assert rows.fieldnames == COLUMNS
            return list(rows)

    return read


def test_the_columns_are_fixed():
    assert ",".join(COLUMNS) == (
        "source,index,frame,time_s,width,height,class_id,class_name,score,x1,y1,x2,y2,error,"
        "time,warnings"
    )


def test_an_empty_run_writes_only_the_header(read_back):
    assert read_back() == []


def test_one_row_per_detection(read_back):
    (row, again) = read_back(picture(index=7, count=2))
    values = "a.jpg,7,,,60,40,0,cat,0.5124,1.0,2.0,3.0,4.57,,,".split(",")
    assert row == again == dict(zip(COLUMNS, values, strict=True))


def test_a_frame_has_its_number_and_time(read_back):
    found, failed = read_back(frame(25, count=1), failed_frame(26))
    assert (found["frame"], found["time_s"], found["error"]) == ("25", "2.5", "")
    assert (failed["frame"], failed["time_s"], failed["error"]) == ("26", "2.6", "it failed")


def test_a_frame_without_a_time(read_back):
    (row,) = read_back(frame(3, count=1, time_s=None))
    assert (row["frame"], row["time_s"]) == ("3", "")


def test_one_row_per_error(read_back):
    (row,) = read_back(failure(index=3))
    filled = {name: value for name, value in row.items() if value != ""}
    assert filled == {"source": "torn.jpg", "index": "3", "error": "it is torn"}


def test_a_picture_without_detections_has_no_row(read_back):
    rows = read_back(picture("a"), picture("b", index=1, count=0), failure("c", index=2))
    assert [(row["source"], row["index"]) for row in rows] == [("a", "0"), ("c", "2")]


@pytest.mark.parametrize("name", NAMES)
def test_odd_names_survive(read_back, name):
    one, other = read_back(picture(name, name), failure(name, name))
    assert (one["source"], one["class_name"]) == (name, name)
    assert (other["source"], other["error"]) == (name, name)


@pytest.mark.parametrize(("name", "shown"), CODES.items())
def test_control_codes_are_escaped(read_back, name, shown):
    one, other = read_back(picture(name, name), failure(name, name))
    assert (one["source"], one["class_name"]) == (shown, shown)
    assert (other["source"], other["error"]) == (shown, shown)


@pytest.mark.parametrize("name", FORMULAS)
def test_no_text_begins_like_a_formula(read_back, name):
    one, other = read_back(picture(name, name), failure(name, name))
    assert (one["source"], one["class_name"], one["x1"]) == (f"'{name}", f"'{name}", "1.0")
    assert (other["source"], other["error"]) == (f"'{name}", f"'{name}")


def test_a_cell_with_a_semicolon_is_quoted(tmp_path):
    sink = CsvSink(AtomicFile(tmp_path / "out.csv"))
    sink.write(picture("a;=1+1"))
    sink.close()
    assert '"a;=1+1"' in (tmp_path / "out.csv").read_text()


def test_invalid_unicode_is_escaped(read_back):
    (row,) = read_back(picture("\udcff.jpg", "\udcfe"))
    assert (row["source"], row["class_name"]) == ("\\udcff.jpg", "\\udcfe")


def test_what_was_written_before_the_disk_was_full_is_readable(tmp_path):
    path = tmp_path / "out.csv"
    sink = CsvSink(AtomicFile(path))
    sink.write(picture(count=2))
    before = next(tmp_path.iterdir()).read_text()
    with small_disk():
        with pytest.raises(OutputError, match=r"out\.csv"):
            sink.write(picture(index=1, count=100))
        with pytest.warns(DetcliWarning, match="not complete"):
            sink.close()
    assert path.read_text() == before
    assert before.count("\n") == 3


def test_warnings_are_in_each_row_of_a_picture(read_back):
    rows = read_back(damaged(picture(count=2), "damaged: torn", "damaged: cut"))
    assert [row["warnings"] for row in rows] == ["damaged: torn; damaged: cut"] * 2


def test_a_damaged_picture_without_detections_has_a_row(read_back):
    (row,) = read_back(damaged(picture(count=0), "damaged: torn"))
    filled = {name: value for name, value in row.items() if value != ""}
    assert filled == {
        "source": "a.jpg",
        "index": "0",
        "width": "60",
        "height": "40",
        "warnings": "damaged: torn",
    }
