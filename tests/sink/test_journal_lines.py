"""The lines of a journal: whole records, and what a kill or a power cut leaves of them."""

import pytest

from detcli.data.record import SCHEMA_VERSION
from detcli.sink.journal_lines import encode_line, parse_line

RECORD = {
    "schema_version": SCHEMA_VERSION,
    "source": "a.jpg",
    "index": 0,
    "input": 0,
    "width": 4,
    "height": 3,
    "detections": [],
}
LINE = encode_line(RECORD)


def test_a_line_is_read_as_it_was_written():
    assert parse_line(LINE, after_record=False) == RECORD


@pytest.mark.parametrize("byte_count", [1, 20, len(LINE) - 1])
def test_the_beginning_of_a_record_is_a_damaged_line(byte_count):
    assert parse_line(LINE[:byte_count], after_record=False) == {}


def test_zeros_in_place_of_the_end_are_a_damaged_line():
    assert parse_line(LINE[:50] + bytes(10) + b"\n", after_record=False) == {}


def test_a_line_of_zeros_is_a_damaged_line():
    assert parse_line(bytes(10) + b"\n", after_record=False) == {}


def test_zeros_before_the_end_of_a_line_are_damage_behind_a_record_only():
    line = bytes(10) + LINE[-30:]
    assert parse_line(line, after_record=True) == {}
    with pytest.raises(ValueError, match="NUL bytes"):
        parse_line(line, after_record=False)


def test_a_line_of_something_else_without_an_end_is_refused():
    with pytest.raises(ValueError, match="no line feed ends it"):
        parse_line(b"name,score", after_record=True)


def test_utf_16_is_refused():
    with pytest.raises(ValueError, match="UTF-16"):
        parse_line(LINE.decode().encode("utf-16"), after_record=False)
