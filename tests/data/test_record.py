# mypy: disable-error-code=arg-type
"""A record as JSON."""

import json
import os
import pprint
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path, PureWindowsPath

import jsonschema
import numpy as np
import pytest
from json_lines import column_of
from report_schemas import validator
from sample_records import detected as detections

from detcli.core.errors import DecodeError, InferenceError, SourceError
from detcli.data.capture_time import CaptureTime
from detcli.data.detections import Detections
from detcli.data.geometry import Image
from detcli.data.record import (
    BOX,
    SCHEMA_VERSION,
    Origin,
    Record,
    RecordNotes,
    box_of,
    name_of,
)
from detcli.data.saved_record import finite, parse_outline, to_marks, to_record


def record(detections_of_image, height=40, width=60, origin=Origin("a.jpg"), **fields):  # noqa: B008 - frozen
    return Record(
        origin,
        **{"index": 3, "model": "m", "device": "cpu"} | fields,
        picture=Image(np.zeros((2, 3, 3), np.uint8), (height, width)),
        detections=detections_of_image,
    )


def box(*sides):
    return dict(zip(BOX, sides, strict=True))


def read_back(record):
    """The fields after a round trip through JSON, checked against the schema."""
    fields = json.loads(json.dumps(record.to_json(), allow_nan=False))
    validator("predict", strict=True).validate(fields)
    return fields


def test_a_record_with_detections_matches_the_schema():
    two_detections = detections([(1, 2, 3.5, 4.25, 0.9, 1), (0, 0, 60, 40, 0.5, 0)])
    assert read_back(record(two_detections)) == {
        "schema_version": SCHEMA_VERSION,
        "source": "a.jpg",
        "index": 3,
        "input": 0,
        "width": 60,
        "height": 40,
        "detections": [
            {"class_id": 1, "class_name": "car", "score": 0.9, **box(1, 2, 3.5, 4.25)},
            {"class_id": 0, "class_name": "person", "score": 0.5, **box(0, 0, 60, 40)},
        ],
        "model": "m",
        "device": "cpu",
    }


def test_a_frame_has_its_number_and_time_and_a_live_one_when_it_came():
    fields = read_back(record(detections([]), origin=Origin("a.mp4", frame=7, time_s=0.28034)))
    assert fields["frame"] == 7
    assert fields["time_s"] == 0.28
    local_zone = timezone(timedelta(hours=2))
    origin = Origin("camera:0", frame=7, time=datetime(2026, 1, 1, 0, 30, 5, 123_999, local_zone))
    assert read_back(record(detections([]), origin=origin))["time"] == "2025-12-31T22:30:05.123Z"
    assert not {"frame", "time"} & read_back(record(detections([]))).keys()


def photograph(offset=None):
    """The record of an image that was taken in 2021."""
    capture_time = CaptureTime("2021-05-06T07:08:09.25", offset)
    untimed = record(detections([(1, 2, 3.5, 4.25, 0.9, 1)]))
    return replace(untimed, picture=replace(untimed.picture, capture_time=capture_time))


def test_a_photograph_has_its_time_before_its_size():
    fields = read_back(photograph())
    assert fields["taken"] == "2021-05-06T07:08:09.25"
    assert list(fields)[3:7] == ["input", "taken", "width", "height"]
    with_offset = read_back(photograph("+02:00"))
    assert with_offset["taken_offset"] == "+02:00"
    assert list(with_offset)[3:6] == ["input", "taken", "taken_offset"]


def test_the_text_of_a_photograph_is_that_of_its_fields():
    for offset in (None, "-09:30"):
        text = photograph(offset).to_json_text()
        assert text == json.dumps(photograph(offset).to_json(), ensure_ascii=False)


def test_the_outline_of_a_photograph_is_read_without_its_detections():
    fields = photograph("+02:00").to_json()
    burst = {"burst": 3, "burst_score": 0.5}
    line = json.dumps({**fields, **burst, "detections": ["unread"]}).encode()
    assert parse_outline(line)["taken"] == "2021-05-06T07:08:09.25"


def test_damage_is_a_warning():
    undamaged = record(detections([]))
    damaged = replace(undamaged, picture=replace(undamaged.picture, warnings=("damaged: torn",)))
    assert read_back(damaged)["warnings"] == ["damaged: torn"]
    assert "warnings" not in read_back(undamaged)


def test_an_image_without_detections_has_an_empty_list():
    assert read_back(record(Detections.empty(("person",))))["detections"] == []


@pytest.mark.parametrize(
    ("error", "hint"), [(SourceError, ""), (DecodeError, "try again"), (InferenceError, "")]
)
def test_a_record_with_an_error_matches_the_schema(error, hint):
    failed = Record(Origin("a.jpg"), 3, "m", "cpu", error=error("it is torn", hint))
    assert read_back(failed) == {
        "schema_version": SCHEMA_VERSION,
        "source": "a.jpg",
        "index": 3,
        "input": 0,
        "error": {"type": error.__name__, "message": "it is torn", "hint": hint},
    }


def test_scores_have_six_decimals_and_boxes_two():
    """Boxes may lie beyond the image."""
    for score, expected in ((0.1234564, 0.123456), (0.1234566, 0.123457), (1.0, 1.0)):
        fields = read_back(record(detections([(-2, 0.006, 1 / 3, 1279.996, score, 0)])))
        (detection,) = fields["detections"]
        assert detection["score"] == expected
        assert box_of(detection) == (-2.0, 0.01, 0.33, 1280.0)


def test_any_name_survives_json():
    for source in ("-", "a,b", 'q"uote', "new\nline", "猫.jpg", "猫\udcff.jpg", "a\0b", "\ud800"):
        named_record = record(detections([]), origin=Origin(source))
        fields = json.loads(json.dumps(named_record.to_json(), ensure_ascii=False).encode())
        assert fields["source"] == source.replace("\udcff", r"\xff").replace("\ud800", r"\ud800")
        assert ("source_bytes" in fields) == ("\udcff" in source)
        assert name_of(fields) == source.replace("\ud800", r"\ud800")  # which no file is called


def test_all_texts_are_unicode():
    odd = detections([(1, 2, 3, 4, 0.5, 0)], names=("\udcff",))
    for odd_record in (
        replace(record(odd, model="\udcff"), _notes=RecordNotes([Path("\udcff")])),
        Record(Origin("a"), 0, "m", "cpu", error=SourceError("\udcff", "\udcff")),
    ):
        json.dumps(odd_record.to_json(), ensure_ascii=False).encode()


def test_the_schema_rejects_an_invalid_row():
    fields = record(detections([(1, 2, 3, 4, 0.9, 1)])).to_json()
    fields["detections"][0]["score"] = 1.5
    with pytest.raises(jsonschema.ValidationError):
        validator("predict").validate(fields)


OLD = {
    "schema_version": 1,
    "source": "caf\udce9.jpg",
    "index": 3,
    "width": 60,
    "height": 40,
    "detections": [
        {"class_id": 1, "class_name": "car", "score": 0.9, "box": [1, 2, 3.5, 4.25], "track_id": 7}
    ],
    "model": "m",
    "device": "openvino:CPU (bf16)",
}


def test_a_record_of_version_1_is_read():
    fields = to_record(json.loads(json.dumps(OLD)))
    assert fields["source"] == "caf\\xe9.jpg"
    assert name_of(fields) == OLD["source"]
    assert fields["device"] == "openvino:CPU"
    assert fields["precision"] == "bf16"
    assert fields["detections"] == [
        {"class_id": 1, "class_name": "car", "score": 0.9, **box(1, 2, 3.5, 4.25), "track_id": 7}
    ]
    validator("predict", strict=True).validate(fields)
    assert to_record(json.loads(json.dumps(fields))) == fields


@pytest.mark.parametrize(
    "field", [{"detections": [{"box": [1, 2, 3]}]}, {"detections": [5]}, {"source": 3}]
)
def test_what_is_no_record_of_version_1_is_none_of_version_2(field):
    for fields in (OLD | field, {**OLD, "schema_version": 2}):
        with pytest.raises(ValueError, match=r"^(detections\[0\]|source)"):
            to_record(fields)


def test_a_mark_that_is_none_is_named():
    with pytest.raises(ValueError, match=r'^marks\[1\]\.mark is "odd"$'):
        to_marks([{"source": "a", "mark": "drop"}, {"source": "a", "mark": "odd"}])


def test_an_error_may_have_no_hint():
    fields = record(None, error=DecodeError("it is torn")).to_json()
    fields["error"]["hint"] = None
    assert to_record(fields)["error"]["hint"] == ""
    del fields["error"]["message"]
    with pytest.raises(ValueError, match=r"^error\.message is missing$"):
        to_record(fields)


def test_names_have_the_same_slashes_on_every_system(monkeypatch):
    monkeypatch.setattr(os, "sep", "\\")
    origins = [Origin("pics\\a.jpg"), Origin("C:\\a.mp4"), Origin("s3://bucket/a\\b.jpg")]
    notes = RecordNotes([PureWindowsPath("out/a.jpg")])  # type: ignore[list-item]
    all_fields = []
    for origin in origins:
        all_fields.append(record(detections([]), origin=origin, _notes=notes).to_json())
    assert column_of(all_fields, "source") == [
        "pics/a.jpg",
        "C:/a.mp4",
        "s3://bucket/a\\b.jpg",
    ]
    assert all_fields[0]["saved"] == ["out/a.jpg"]


def changed_row(**fields):
    """A record as JSON, of whose only detection some fields are others."""
    read = read_back(record(detections([(1, 2, 3.5, 4.25, 0.9, 1)])))
    read["detections"][0] |= fields
    return read


@pytest.mark.parametrize("class_id", [0, 999_999])
def test_a_class_id_below_a_million_is_read(class_id):
    read = to_record(changed_row(class_id=class_id))
    assert read["detections"][0]["class_id"] == class_id


@pytest.mark.parametrize("class_id", [-1, 1_000_000])
def test_another_class_id_is_refused(class_id):
    with pytest.raises(ValueError, match="class_id"):
        to_record(changed_row(class_id=class_id))


@pytest.mark.parametrize("side", [-999_999_999_999_999, 999_999_999_999_999])
def test_a_number_below_10_to_the_15_is_read(side):
    assert to_record(changed_row(x1=side))["detections"][0]["x1"] == side
    assert finite(str(side)) == side


@pytest.mark.parametrize("side", [-1e15, 1e15])
def test_a_number_of_10_to_the_15_is_refused(side):
    with pytest.raises(ValueError, match="x1"):
        to_record(changed_row(x1=side))
    with pytest.raises(ValueError, match="out of range"):
        finite(side)


def test_pprint_shows_a_record_and_its_image_with_a_line_for_each_field():
    text = pprint.pformat(record(Detections.empty(("a",))))
    assert "\n       picture=Image(pixels=" in text
    assert "\n                     size=(40, 60)" in text
