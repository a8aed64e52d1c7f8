"""Most records take a short way through the checks, which gives what all checks give."""

import copy
import json

import hypothesis.strategies as st
import pytest
from hypothesis import given

from detcli.data import saved_record as module
from detcli.data.saved_record import parse_outline, parse_record

DETECTION = {
    "class_id": 0,
    "class_name": "person",
    "score": 0.5,
    "x1": 1.0,
    "y1": 2.0,
    "x2": 3.0,
    "y2": 4.0,
}
RECORD = {
    "schema_version": 2,
    "source": "a.jpg",
    "index": 0,
    "input": 0,
    "frame": 3,
    "time_s": 0.1,
    "width": 8,
    "height": 9,
    "detections": [DETECTION, DETECTION],
    "model": "m",
    "device": "cpu",
    "file_stamp": "1-2",
}

odd_value = st.sampled_from(
    [
        None,
        True,
        False,
        -1,
        0,
        1,
        2,
        1.5,
        -0.0,
        1e15,
        1e300,
        1 << 53,
        1 << 70,
        "",
        "a",
        [],
        {},
        [{}],
    ]
)


@st.composite
def changed_records(draw):
    """Records of which some fields were changed, removed or added."""
    record = copy.deepcopy(RECORD)
    changes = st.sampled_from(["detection", "record", "none"])
    for change in draw(st.lists(changes, max_size=2)):
        fields = record
        if change == "none" or (change == "detection" and not record.get("detections")):
            continue
        if change == "detection":
            fields = record["detections"]
            if not isinstance(fields, list) or not isinstance(fields[-1], dict):
                continue
            fields = fields[-1]
        name = draw(
            st.sampled_from(list(fields) + ["track_id", "warnings", "error", "settings", "odd"])
        )
        if draw(st.booleans()):
            fields[name] = copy.deepcopy(draw(odd_value))  # as it may be changed next
        else:
            fields.pop(name, None)
    return record


def result_of(parse, line):
    """The record, or what is wrong with the line."""
    try:
        return parse(line)
    except ValueError as error:
        return str(error)


@given(changed_records())
def test_the_short_way_gives_what_all_checks_give(record):
    line = json.dumps(record).encode()
    short_way = result_of(parse_record, line)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_has_usual_outline", lambda _: False)
        assert short_way == result_of(parse_record, line)


@pytest.mark.parametrize("number", [1e15, -1e300, float("inf"), float("nan")])
@pytest.mark.parametrize("parse", [parse_record, parse_outline])
def test_times_that_are_no_numbers_of_seconds_are_refused(parse, number):
    line = json.dumps(RECORD | {"time_s": number}).encode()
    with pytest.raises(ValueError, match="time_s is"):
        parse(line)


def test_most_records_take_the_short_way(monkeypatch):
    def refuse(*_):
        raise AssertionError("the long way")

    monkeypatch.setattr(module, "_fault_of_value", refuse)
    line = json.dumps(RECORD).encode()
    assert parse_record(line) == RECORD
    assert parse_outline(line) == RECORD


@pytest.mark.parametrize("line", [b"[]", b"3", b"null", b"{", b"", b'"a"', b"[" * 100_000])
def test_what_is_no_object_is_no_record(line):
    for parse in (parse_record, parse_outline):
        with pytest.raises(ValueError, match="it is not a JSON object"):
            parse(line)
