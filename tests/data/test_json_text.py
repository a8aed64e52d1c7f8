"""The text of records: to the byte what `json` and Python's `round` make of the same numbers."""

import json
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as arrays

from detcli.core.errors import DecodeError
from detcli.data import json_text
from detcli.data.detections import Detections
from detcli.data.geometry import Image
from detcli.data.record import Origin, Record, RecordNotes

NAMES = ("person", 'a "quoted", name: {}', "Größe", "\udcff.jpg", "")

any_float = st.floats(width=32)
finite_float = st.floats(width=32, allow_nan=False, allow_infinity=False)
usual_float = st.floats(0, 10_000, width=32)


def by_json(value):
    """What Python's own module writes."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def by_round(detections):
    """The fields of detections, rounded by Python."""
    rows = []
    for box, score, class_id, name in detections:
        x1, y1, x2, y2 = box.tolist()
        rows.append({
            "class_id": class_id,
            "class_name": name.replace("\udcff", "\\xff"),
            "score": round(score, 6),
            "x1": round(x1, 2),
            "y1": round(y1, 2),
            "x2": round(x2, 2),
            "y2": round(y2, 2),
        })  # fmt: skip
    return rows


def single(box, score, **arrays):
    """A single detection of the class `Größe`."""
    return Detections(
        xyxy=np.array([box], np.float32),
        score=np.array([score], np.float32),
        class_id=np.array([2]),
        names=NAMES,
        **arrays,
    )


@st.composite
def any_detections(draw, numbers):
    """Detections of any classes with any scores and corners."""
    count = draw(st.integers(0, 6))
    return Detections(
        xyxy=draw(arrays.arrays(np.float32, (count, 4), elements=numbers)),
        score=draw(arrays.arrays(np.float32, count, elements=numbers)),
        class_id=draw(arrays.arrays(np.int64, count, elements=st.integers(0, len(NAMES) - 1))),
        names=NAMES,
    )


@given(any_detections(usual_float | finite_float))
def test_numbers_are_rounded_as_python_rounds_them(detections):
    assert by_json(detections.to_dict()) == by_json(by_round(detections))


@given(any_detections(usual_float | finite_float))
def test_the_text_is_that_of_the_json_module(detections):
    assert json_text.encode_detections(detections) == by_json(by_round(detections))


def test_lists_become_arrays_of_the_promised_types():
    detections = Detections([[0, 0, 3, 4]], [0.5], [2], NAMES)
    assert detections.xyxy.dtype == np.float32
    assert detections.score.dtype == np.float32
    assert detections.class_id.dtype == np.int64
    assert detections.to_dict() == single([0, 0, 3, 4], 0.5).to_dict()


@pytest.mark.parametrize("score", [1e-6, 0.000099, 0.0001, 0.000101, 0.0, -0.0, 1.0])
def test_numbers_that_orjson_writes_otherwise_are_as_json_has_them(score):
    row = single([0, 0.125, 1e15, 3e20], score)
    assert json_text.encode_detections(row) == by_json(by_round(row))


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_numbers_that_json_does_not_have_are_an_error(number):
    row = single([0, 0, 1, number], 0.5)
    with pytest.raises(ValueError, match="JSON"):
        json_text.encode_detections(row)


def test_it_is_the_same_without_orjson(monkeypatch):
    row = single([0, 0.125, 3, 4], 0.5)
    text = json_text.encode_detections(row)
    monkeypatch.setattr(json_text, "has_orjson", False)
    assert json_text.encode_detections(row) == text


def test_what_options_add_is_in_the_text():
    tracked = single([0, 0, 3, 4], 0.5, track_id=np.array([7]))
    assert json.loads(json_text.encode_detections(tracked)) == tracked.to_dict()
    assert '"track_id": 7' in json_text.encode_detections(tracked)


IMAGE = Image(np.zeros((4, 6, 3), np.uint8), (4, 6))
RECORDS = {
    "detections": Record(
        Origin("a.jpg"), 3, "m", "cpu", picture=IMAGE, detections=single([0, 0, 3, 4], 0.5)
    ),
    "no detections": Record(
        Origin("a.jpg"), 3, "m", "cpu", picture=IMAGE, detections=Detections.empty(NAMES)
    ),
    "a list that says the same words": Record(
        Origin("a.jpg", meta='{"detections": [], "}": "{"}'),
        3,
        "m {",
        "cpu",
        picture=IMAGE,
        detections=Detections.empty(NAMES),
    ),
    "a frame with files": Record(
        Origin("a}.mp4", frame=4, time_s=0.1234567),
        3,
        "m",
        "openvino:CPU",
        picture=IMAGE,
        detections=Detections.empty(NAMES),
        _notes=RecordNotes([Path("out/a.jpg")], {"sha256": "00"}),
        precision="f32",
    ),
    "an error": Record(Origin("\udcff.jpg"), 3, "m", "cpu", error=DecodeError("no", "try")),
}


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_the_text_of_a_record_is_that_of_its_fields(record):
    assert record.to_json_text() == by_json(record.to_json())
