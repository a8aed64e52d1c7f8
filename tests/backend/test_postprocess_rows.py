"""What is kept of the rows of a graph that selects its detections itself."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detcli.backend.postprocess import SelectionOptions, select, select_rows

CLASSES = 3
ANY = SelectionOptions(confidence=0.25, max_det=300, class_ids=None, nms_iou=None)


def made(*rows, dtype=np.float32):
    """Rows of (score, class id); x1 of each box is its place."""
    boxes = [(place, 0, place + 10, 10) for place in range(len(rows))]
    values = [(*box, *row) for box, row in zip(boxes, rows, strict=True)]
    return np.array(values, dtype).reshape(-1, 6)


def places(chosen):
    return chosen.boxes[:, 0].astype(int).tolist()


def plain_select_rows(rows, wanted):
    """One loop at a time."""
    known = [
        (-score, place)
        for place, (*_, score, class_id) in enumerate(rows.tolist())
        if score > wanted.confidence
        and class_id in range(CLASSES)
        and (wanted.class_ids is None or class_id in wanted.class_ids)
    ]
    return [place for _, place in sorted(known)][: wanted.max_det]


@pytest.mark.filterwarnings("ignore::detcli.DetcliWarning")
@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.0, -1.0, 0.25, 0.3, 0.5, 1.0, 1.2, math.nan, math.inf]),
            st.sampled_from([0, 1, 2, 3, -1, 0.5, math.nan, math.inf, 2**31]),
        ),
        max_size=12,
    ),
    st.sampled_from([0.0, 0.25, 1.0]),
    st.integers(1, 15),
    st.sampled_from([None, frozenset({1}), frozenset({0, 2})]),
    st.sampled_from([np.float32, np.float64]),
)
def test_every_rule_and_every_tie(rows, confidence, max_det, class_ids, dtype):
    wanted = SelectionOptions(confidence, max_det, class_ids, None)
    found = made(*rows, dtype=dtype)
    chosen = select_rows(found, wanted, CLASSES)
    assert places(chosen) == plain_select_rows(found, wanted)
    assert (chosen.score <= 1).all()


def test_float16_rows_are_compared_as_float32():
    chosen = select_rows(made((0.3, 1), (0.9, 2), dtype=np.float16), ANY, CLASSES)
    assert chosen.score.tolist() == [np.float16(0.9), np.float16(0.3)]
    assert [part.dtype for part in chosen] == [np.float32, np.float32, np.int64]


def test_they_are_the_rows_that_the_head_would_have_given(random):
    head = np.concatenate([random.random((4, 50)) * 600, random.random((CLASSES, 50))])
    own = select(head.astype(np.float32), ANY)
    rows = np.column_stack([*own])[random.permutation(len(own.score))]
    for part, wanted in zip(select_rows(rows, ANY, CLASSES), own, strict=True):
        np.testing.assert_array_equal(part, wanted)


@pytest.mark.parametrize(
    ("rows", "said", "kept"),
    [
        (
            [(0.9, 1), (0.8, 3), (0.7, -1), (0.6, 1.5), (0.1, 9)],
            "3 rows have an unknown class id, such as 3, and",
            [0],
        ),
        ([(0.9, 1), (0, -1), (0, -1)], None, [0]),  # padding
        ([(math.nan, 1), (0.5, 1)], "1 of 2 scores are NaN", [1]),
        ([(0.5, 0), (7.3, 1)], "without a sigmoid", [1, 0]),
    ],
)
def test_warnings(rows, said, kept, recwarn):
    assert places(select_rows(made(*rows), ANY, CLASSES)) == kept
    assert [said in str(one.message) for one in recwarn] == [True] * (said is not None)


def test_nms_among_the_wanted():
    rows = made((0.5, 1), (0.9, 1), (0.7, 0), (0.6, 1))
    rows[3, [0, 2]] += 100
    wanted = SelectionOptions(0.25, 2, None, nms_iou=0.5)
    assert places(select_rows(rows, wanted, CLASSES)) == [1, 2]
    wanted = SelectionOptions(0.25, 300, frozenset({1}), nms_iou=0.5)
    assert places(select_rows(rows, wanted, CLASSES)) == [1, 103]


def test_no_rows_and_rows_of_centre_and_size(recwarn):
    for nms_iou in (None, 0.5):
        wanted = SelectionOptions(0.25, 300, frozenset({0}), nms_iou)
        found = select_rows(np.zeros((0, 6), np.float16), wanted, CLASSES)
        assert [part.shape for part in found] == [(0, 4), (0,), (0,)]
    rows = np.array([[10, 20, 4, 6, 0.5, 1]], np.float32)
    chosen = select_rows(rows, ANY, CLASSES, cxcywh=True)
    np.testing.assert_array_equal(chosen.boxes, [[8, 17, 12, 23]])
    assert not recwarn
