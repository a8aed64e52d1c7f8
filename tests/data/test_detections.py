"""Detections: parallel arrays that stay parallel."""

import sys
from dataclasses import FrozenInstanceError, replace

import numpy as np
import optional
import pytest

from detcli.core.errors import DependencyError
from detcli.data.barcode import Barcode
from detcli.data.detections import COCO, Detections, Symbol

NAMES = ("person", "car", "猫")


def detections():
    """Three rows; each box is four times the number of its row."""
    return Detections(
        np.repeat(np.arange(3, dtype=np.float32), 4).reshape(3, 4),
        np.array([0.9, 0.5, 0.25], np.float32),
        np.array([2, 0, 1]),
        NAMES,
    )


def test_rows_are_box_score_id_and_name():
    rows = list(detections())
    assert len(detections()) == len(rows) == 3
    expected = [(np.float32(0.9), 2, "猫"), (0.5, 0, "person"), (0.25, 1, "car")]
    assert [row[1:] for row in rows] == expected
    assert [box.tolist() for box, *_ in rows] == [[0.0] * 4, [1.0] * 4, [2.0] * 4]
    assert [type(value) for value in rows[0][1:]] == [float, int, str]


@pytest.mark.parametrize(
    ("index", "rows"),
    [
        *((np.array([True, False, True]), [0, 2]), (np.array([False] * 3), [])),
        *(([True, False, False], [0]), (detections().score > 0.4, [0, 1])),
        *((slice(1, None), [1, 2]), (slice(None, None, -1), [2, 1, 0]), (slice(5, 9), [])),
        *(([2, 0], [2, 0]), ([-1], [2]), (1, [1]), (np.int64(-1), [2]), ([], [])),
        *((np.array([1, 1]), [1, 1]), (np.array([], np.int64), [])),
    ],
)
def test_indexing_gives_detections_again(index, rows):
    selected = detections()[index]
    assert isinstance(selected, Detections)
    assert selected.names == NAMES
    assert selected.xyxy.shape == (len(rows), 4)
    assert selected.xyxy[:, 0].tolist() == rows
    assert selected.score.tolist() == detections().score[rows].tolist()
    assert selected.class_id.tolist() == [[2, 0, 1][row] for row in rows]


@pytest.mark.parametrize("index", [3, [3], np.array([True, False])])
def test_an_index_out_of_range_is_an_error(index):
    with pytest.raises(IndexError):
        detections()[index]


def test_empty_has_the_usual_shapes_and_types():
    none, some = Detections.empty(NAMES), detections()
    assert len(none) == 0
    assert list(none) == []
    assert none.class_name.tolist() == []
    assert none.names == NAMES
    assert none.xyxy.shape == (0, 4)
    assert none.score.shape == (0,)
    assert none.class_id.shape == (0,)
    assert len(Detections.empty(())) == 0
    for field in ("xyxy", "score", "class_id"):
        assert getattr(none, field).dtype == getattr(some, field).dtype


@pytest.mark.parametrize(
    ("boxes", "scores", "ids"),
    [
        *(((2, 4), (3,), (3,)), ((3, 4), (2,), (3,)), ((3, 4), (3,), (2,)), ((3, 5), (3,), (3,))),
        *(((12,), (3,), (3,)), ((3, 4), (3, 1), (3,)), ((3, 4), (3,), (3, 1)), ((0,), (0,), (0,))),
    ],
)
def test_arrays_of_different_lengths_are_refused(boxes, scores, ids):
    arrays = np.zeros(boxes, np.float32), np.zeros(scores, np.float32), np.zeros(ids, int)
    with pytest.raises(ValueError, match="must be"):
        Detections(*arrays, NAMES)


def test_a_class_without_a_name_is_refused():
    for class_id in (-1, 3, 80):
        with pytest.raises(ValueError, match=r"0\.\.2"):
            replace(detections(), class_id=np.array([0, 1, class_id]))


def test_fields_cannot_be_replaced():
    for field in ("xyxy", "score", "class_id", "names"):
        with pytest.raises(FrozenInstanceError):
            setattr(detections(), field, None)


def test_within_an_image():
    boxes = np.array([[-5, 1, 3, 9], [-5, 1, -3, 9], [1, 2, 3, 4]], np.float32)
    unclipped = Detections(
        boxes, np.array([0.9, 0.5, 0.25], np.float32), np.array([2, 0, 1]), NAMES
    )
    clipped = unclipped.within((8, 9))
    assert clipped.xyxy.tolist() == [[0, 1, 3, 8], [1, 2, 3, 4]]
    assert clipped.class_name.tolist() == ["猫", "car"]
    assert unclipped.xyxy[0, 0] == -5


@optional.needs("supervision")
def test_supervision_gets_the_same():
    converted = detections().to_supervision()
    assert np.array_equal(converted["class_name"], detections().class_name)
    assert np.array_equal(converted.xyxy, detections().xyxy)
    assert np.array_equal(converted.confidence, detections().score)
    assert np.array_equal(converted.class_id, detections().class_id)
    assert len(Detections.empty(NAMES).to_supervision()) == 0


@pytest.mark.parametrize("library", ["supervision", "pandas"])
def test_without_a_library_it_is_asked_for(monkeypatch, library):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(DependencyError) as caught:
        getattr(detections(), f"to_{library}")()
    assert caught.value.hint == f"pip install {library}"


def test_a_mask_of_class_names_keeps_these():
    three_detections, none = detections(), Detections.empty(NAMES)
    assert three_detections[three_detections.class_name == "person"].score.tolist() == [0.5]
    assert len(three_detections[three_detections.class_name != "猫"]) == 2
    assert len(none[none.class_name == "person"]) == 0


@pytest.mark.parametrize("index", [True, False, np.True_, np.array(1, bool)])
def test_a_single_bool_is_no_index(index):
    """As what `class_name == "person"` would be if the names were a list."""
    with pytest.raises(TypeError, match="a bool for each detection, got a single one"):
        detections()[index]


def test_arrays_are_read_only():
    boxes = np.zeros((1, 4), np.float32)
    tracked = Detections(boxes, np.ones(1, np.float32), np.zeros(1, int), NAMES, np.ones(1, int))
    for array in (
        tracked.xyxy,
        tracked.score,
        tracked.class_id,
        tracked.track_id,
        tracked[:1].xyxy,
    ):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 7
    boxes[0] = 7  # whoever made them still may


@optional.needs("supervision")
def test_arrays_of_supervision_may_be_changed():
    detections().to_supervision().xyxy[0] = 8


def test_a_summary_is_what_is_printed():
    assert repr(detections()) == "Detections(1 猫, 1 person, 1 car)"
    assert repr(detections()[[1, 1]]) == "Detections(2 person)"
    assert repr(Detections.empty(NAMES)) == "Detections()"


def test_the_fields_of_records():
    row, *_ = detections().to_dict()
    corners = {"x1": 0.0, "y1": 0.0, "x2": 0.0, "y2": 0.0}
    assert row == {"class_id": 2, "class_name": "猫", "score": 0.9, **corners}
    assert {type(row[name]) for name in ("x1", "score")} == {float}
    objects = (np.fromiter([value], object, 1) for value in (("door",), (("gate", "left"),), None))
    zones, crossed, symbols = objects
    full = replace(detections()[0], track_id=np.array([4]), zones=zones, crossed=crossed)
    (row,) = replace(full, symbols=symbols).to_dict()
    assert row["track_id"] == 4
    assert row["zones"] == ["door"]
    assert row["text"] is None
    assert row["crossed"] == [{"line": "gate", "to": "left"}]
    corners = np.zeros((4, 2))
    for text, content in (("x", {}), (None, {"bytes": "eA=="})):
        symbols[0] = Barcode(text, "QR Code", b"x", corners, "qr_code")  # type: ignore[arg-type]
        (row,) = replace(full, symbols=symbols).to_dict()
        expected = {"text": text, "symbology": "QR Code", **content, "corners": corners.tolist()}  # type: ignore[attr-defined]
        assert expected.items() <= row.items()
        assert ("bytes" in row) == bool(content)


def test_coco_results_have_cocos_ids():
    boxes, scores = np.array([[1, 2, 4, 8]], np.float32), np.array([0.25], np.float32)
    (row,) = Detections(boxes, scores, np.array([11]), COCO).to_coco(9)
    assert row == {"image_id": 9, "category_id": 13, "bbox": [1, 2, 3, 6], "score": 0.25}
    assert [row["category_id"] for row in detections().to_coco(9)] == [2, 0, 1]
    results = detections().to_coco(9, lambda class_id, names: {"car": 77}.get(names[class_id]))
    assert [row["category_id"] for row in results] == [77]


@optional.needs("pandas")
def test_pandas_gets_typed_columns():
    frame = replace(detections(), track_id=np.array([1, -1, 2])).to_pandas()
    assert [*frame] == "class_id class_name score x1 y1 x2 y2 track_id".split()
    assert frame[frame.class_name == "person"].x1.tolist() == [1]
    none = Detections.empty(NAMES).to_pandas()
    assert len(none) == 0
    assert none.score.dtype == np.float32
    assert [*none] == [*frame][:-1]


def test_a_barcode_has_its_earlier_name_too():
    assert Symbol is Barcode
