# mypy: disable-error-code=arg-type
"""Detections: parallel arrays that stay parallel."""

import copy
import pickle
import sys
from dataclasses import FrozenInstanceError, replace

import numpy as np
import optional
import pytest
from json_lines import column_of

from detcli.core.errors import DependencyError
from detcli.data.barcode import Barcode
from detcli.data.coco import COCO
from detcli.data.detections import DTYPES, Detections, with_rows

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
    boxes = [row[0].tolist() for row in rows]
    assert boxes == [[0.0] * 4, [1.0] * 4, [2.0] * 4]
    assert rows[0][1:] == (np.float32(0.9), 2, "猫")
    assert rows[1][1:] == (0.5, 0, "person")
    assert rows[2][1:] == (0.25, 1, "car")
    _, score, class_id, name = rows[0]
    assert type(score) is float
    assert type(class_id) is int
    assert type(name) is str


@pytest.mark.parametrize(
    ("index", "rows"),
    [
        (np.array([True, False, True]), [0, 2]),
        (np.array([False] * 3), []),
        ([True, False, False], [0]),
        (detections().score > 0.4, [0, 1]),
        (slice(1, None), [1, 2]),
        (slice(None, None, -1), [2, 1, 0]),
        (slice(5, 9), []),
        ([2, 0], [2, 0]),
        ([-1], [2]),
        (1, [1]),
        (np.int64(-1), [2]),
        ([], []),
        (np.array([1, 1]), [1, 1]),
        (np.array([], np.int64), []),
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
    [((2, 4), (3,), (3,)), ((3, 4), (2,), (3,)), ((3, 4), (3,), (2,)), ((3, 5), (3,), (3,))]
    + [((12,), (3,), (3,)), ((3, 4), (3, 1), (3,)), ((3, 4), (3,), (3, 1)), ((0,), (0,), (0,))],
)
def test_arrays_of_different_lengths_are_refused(boxes, scores, ids):
    xyxy = np.zeros(boxes, np.float32)
    score = np.zeros(scores, np.float32)
    class_id = np.zeros(ids, int)
    with pytest.raises(ValueError, match="must be"):
        Detections(xyxy, score, class_id, NAMES)


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


@pytest.mark.slow
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
    tracked = Detections(
        boxes, np.ones(1, np.float32), np.zeros(1, int), NAMES, track_id=np.ones(1, int)
    )
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
    row = detections().to_dict()[0]
    corners = {"x1": 0.0, "y1": 0.0, "x2": 0.0, "y2": 0.0}
    assert row == {"class_id": 2, "class_name": "猫", "score": 0.9, **corners}
    assert type(row["x1"]) is float
    assert type(row["score"]) is float
    zones = np.fromiter([("door",)], object, 1)
    crossed = np.fromiter([(("gate", "left"),)], object, 1)
    symbols = np.fromiter([None], object, 1)
    full = replace(detections()[0], track_id=np.array([4]), zones=zones, crossed=crossed)
    (row,) = replace(full, symbols=symbols).to_dict()
    assert row["track_id"] == 4
    assert row["zones"] == ["door"]
    assert row["text"] is None
    assert row["crossed"] == [{"line": "gate", "to": "left"}]
    corners = np.zeros((4, 2))
    for text, content in (("x", {}), (None, {"bytes": "eA=="})):
        symbols[0] = Barcode(text, "QR Code", b"x", corners, "qr_code")
        (row,) = replace(full, symbols=symbols).to_dict()
        expected = {"text": text, "symbology": "QR Code", **content, "corners": corners.tolist()}  # type: ignore[attr-defined]
        assert expected.items() <= row.items()
        assert ("bytes" in row) == bool(content)


def test_coco_results_have_cocos_ids():
    boxes, scores = np.array([[1, 2, 4, 8]], np.float32), np.array([0.25], np.float32)
    (row,) = Detections(boxes, scores, np.array([11]), COCO).to_coco(9)
    assert row == {"image_id": 9, "category_id": 13, "bbox": [1, 2, 3, 6], "score": 0.25}
    assert column_of(detections().to_coco(9), "category_id") == [2, 0, 1]
    results = detections().to_coco(
        9, category_id=lambda class_id, names: {"car": 77}.get(names[class_id])
    )
    assert column_of(results, "category_id") == [77]


@optional.needs("pandas")
def test_pandas_gets_typed_columns():
    frame = replace(detections(), track_id=np.array([1, -1, 2])).to_pandas()
    assert list(frame) == "class_id class_name score x1 y1 x2 y2 track_id".split()
    assert frame[frame.class_name == "person"].x1.tolist() == [1]
    none = Detections.empty(NAMES).to_pandas()
    assert len(none) == 0
    assert none.score.dtype == np.float32
    assert list(none) == list(frame)[:-1]
    assert none.class_name.dtype == frame.class_name.dtype


def objects(*values):
    """Make an array of objects, also of tuples."""
    return np.fromiter(values, object, len(values))


def barcode(text="x"):
    return Barcode(text, "QR Code", b"x", np.zeros((4, 2)), "qr_code")


def full_detections():
    """Three rows, with all that options add."""
    return replace(
        detections(),
        track_id=np.array([4, -1, 2]),
        track_class=objects("car", None, "car"),
        zones=objects(("door",), (), ("door", "yard")),
        crossed=objects((("gate", "left"),), (), ()),
        symbols=objects(barcode(), None, None),
        repeated=np.array([0, 17, 0]),
        selected=np.array([0.9, 0.5, 0.25, 0.2], np.float32),
        image_size=(48, 64),
    )


@pytest.mark.parametrize(
    "duplicate",
    [copy.copy, copy.deepcopy, lambda original: pickle.loads(pickle.dumps(original))],  # noqa: S301
    ids=["copy", "deepcopy", "pickle"],
)
def test_copies_are_equal_and_read_only(duplicate):
    original = full_detections()
    result = duplicate(original)
    assert result == original
    assert result.image_size == (48, 64)
    assert result.selected.tolist() == original.selected.tolist()
    for name in DTYPES:
        assert not getattr(result, name).flags.writeable


def test_lists_become_arrays_of_the_promised_types():
    converted = Detections(
        [[0, 0, 1, 1]],
        [0.5],
        [1],
        ["person", "car"],
        track_id=[7],
        track_class=["car"],
        zones=[("door", "yard")],
        crossed=[(("gate", "left"),)],
        symbols=[None],
        repeated=[17],
        selected=[0.5, 0.25],
        image_size=np.array([48, 64]),
    )
    assert converted.image_size == (48, 64)
    assert converted.names == ("person", "car")
    for name, dtype in DTYPES.items():
        assert getattr(converted, name).dtype == dtype
    assert converted.zones.tolist() == [("door", "yard")]
    assert converted.crossed.tolist() == [(("gate", "left"),)]


def test_other_numbers_become_those_that_are_promised():
    converted = Detections(
        np.zeros((1, 4)), np.ones(1), np.array([1.0]), NAMES, track_id=np.ones(1, np.int32)
    )
    for name in ("xyxy", "score", "class_id", "track_id"):
        assert getattr(converted, name).dtype == DTYPES[name]


@pytest.mark.parametrize("ids", [[1.5], [np.nan], [np.inf], [True], ["1"]])
def test_ids_that_are_no_whole_numbers_are_refused(ids):
    with pytest.raises(ValueError, match="class_id must be whole numbers"):
        Detections([[0, 0, 1, 1]], [0.5], ids, NAMES)
    with pytest.raises(ValueError, match="track_id must be whole numbers"):
        Detections([[0, 0, 1, 1]], [0.5], [1], NAMES, track_id=ids)


@pytest.mark.parametrize("names", ["person", {0: "person"}, None])
def test_names_that_are_no_sequence_are_refused(names):
    with pytest.raises(TypeError, match="names must be a tuple"):
        Detections([[0, 0, 1, 1]], [0.5], [0], names)
    with pytest.raises(TypeError, match="names must be a tuple"):
        Detections.empty(names)


def test_what_was_selected_is_of_the_whole_image():
    original = full_detections()
    for index in (slice(None), [0], np.array([True, False, True]), 0):
        assert original[index].selected is None
        assert original[index].image_size == (48, 64)
    for result in (with_rows(original, [0]), original.within((48, 64)), original.sort_by("x1")):
        assert result.selected.tolist() == original.selected.tolist()


def test_detections_are_compared_by_value():
    original = full_detections()
    assert original == full_detections()
    assert original[:] == original
    assert Detections.empty(NAMES) == Detections.empty(NAMES)
    assert original != original[::-1]
    assert original != original[:2]
    assert original != "detections"
    changes = {
        "xyxy": original.xyxy + 1,
        "score": original.score / 2,
        "class_id": original.class_id[::-1],
        "names": ("person", "car", "cat"),
        "track_id": None,
        "track_class": objects("car", None, "person"),
        "zones": objects(("door",), (), ("door",)),
        "crossed": objects((("gate", "right"),), (), ()),
        "symbols": objects(barcode("y"), None, None),
        "repeated": np.array([0, 3, 0]),
        "image_size": (64, 48),
    }
    for name, value in changes.items():
        assert replace(original, **{name: value}) != original


def test_detections_have_no_hash():
    with pytest.raises(TypeError, match="unhashable"):
        hash(detections())
    with pytest.raises(TypeError, match="unhashable"):
        hash(barcode())


def test_barcodes_are_compared_by_value():
    assert barcode() == barcode()
    assert barcode() != barcode("y")
    assert barcode() != replace(barcode(), corners=np.ones((4, 2)))
    assert barcode() != "x"


def test_concat_joins_in_order():
    joined = Detections.concat([detections()[1:], Detections.empty(NAMES), detections()[:1]])
    assert joined == detections()[[1, 2, 0]]
    assert Detections.concat(iter([full_detections()])) == full_detections()


def test_concat_keeps_what_all_parts_have():
    full = full_detections()
    twice = Detections.concat([full, full])
    assert twice.track_id.tolist() == [4, -1, 2, 4, -1, 2]
    assert twice.zones.tolist() == list(full.zones) + list(full.zones)
    assert len(twice.selected) == 8
    assert twice.image_size == (48, 64)
    assert Detections.concat([full, Detections.empty(NAMES)]).track_id.tolist() == [4, -1, 2]
    mixed = Detections.concat([full, detections()])
    assert len(mixed) == 6
    assert mixed.track_id is None
    assert mixed.zones is None
    assert mixed.selected is None
    assert mixed.image_size is None


def test_concat_needs_parts_of_one_model():
    with pytest.raises(ValueError, match="one part or more"):
        Detections.concat([])
    with pytest.raises(ValueError, match="different class names"):
        Detections.concat([Detections.empty(NAMES), Detections.empty(("person",))])


@pytest.mark.parametrize(
    ("key", "descending", "rows"),
    [
        ("score", False, [2, 1, 0]),
        ("score", True, [0, 1, 2]),
        ("class_id", False, [1, 2, 0]),
        ("class_name", True, [0, 1, 2]),
        ("x1", True, [2, 1, 0]),
        ("track_id", False, [1, 2, 0]),
        ("area", False, [0, 1, 2]),
        ("area", True, [0, 1, 2]),
        ([3, 3, 1], False, [2, 0, 1]),
        ([3, 3, 1], True, [0, 1, 2]),
        (np.array([1, 3, 3]), True, [1, 2, 0]),
    ],
)
def test_sort_by(key, descending, rows):
    """The boxes of all three rows have no area, so they are equals."""
    full = full_detections()
    assert full.sort_by(key, descending=descending) == full[rows]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("width", "cannot sort by 'width': use score, area, class_id, .* x1, y1, x2, y2"),
        ("track_id", "cannot sort by track_id: the detections have none"),
        ([1, 2], r"must be \(N,\), got \(2,\)"),
    ],
)
def test_sort_by_needs_a_value_for_each(key, message):
    with pytest.raises(ValueError, match=message):
        detections().sort_by(key)


def test_sides_and_areas():
    boxes = Detections([[1, 2, 4, 8], [0, 0, 0, 5]], [0.9, 0.5], [0, 0], NAMES)
    assert boxes.xywh.tolist() == [[1, 2, 3, 6], [0, 0, 0, 5]]
    assert boxes.area.tolist() == [18, 0]
    assert boxes.xywh.dtype == boxes.area.dtype == np.float32
    none = Detections.empty(NAMES)
    assert none.xywh.shape == (0, 4)
    assert none.area.shape == (0,)
    assert none.iou(boxes).shape == (0, 2)


@optional.needs("supervision")
def test_intersections_are_those_of_supervision(random):
    import supervision

    corners = random.uniform(0, 100, (2, 20, 2, 2)).astype(np.float32)
    corners.sort(axis=2)
    scores = np.ones(20)
    class_ids = np.zeros(20, int)
    first = Detections(corners[0].reshape(20, 4), scores, class_ids, NAMES)
    second = Detections(corners[1].reshape(20, 4), scores, class_ids, NAMES)
    expected = supervision.box_iou_batch(first.xyxy, second.xyxy)
    assert expected.max() > 0.3
    np.testing.assert_allclose(first.iou(second), expected, atol=1e-5)
    assert first.iou(second).dtype == np.float32
    np.testing.assert_allclose(first.area, first.to_supervision().area, rtol=1e-5)
