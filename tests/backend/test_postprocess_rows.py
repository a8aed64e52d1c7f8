# mypy: disable-error-code=arg-type
"""The selection from the rows of a graph that selects, against a slow, plain implementation."""

import math

import numpy as np
import pytest
from backend.plain_selection import BY_CLASS, confidence_of, with_conf_thresholds
from hypothesis import given
from hypothesis import strategies as st

from detcli import DetcliWarning
from detcli.backend.postprocess import SelectionOptions, as_selection, select, select_rows

CLASSES = 3
ANY = SelectionOptions(conf=0.25, max_det=300, class_ids=None, nms_iou=None)


def row_array(rows, dtype=np.float32):
    """An array with a row for each (score, class id); x1 of its box is its position."""
    values = []
    for position, (score, class_id) in enumerate(rows):
        values.append((position, 0, position + 10, 10, score, class_id))
    return np.array(values, dtype).reshape(-1, 6)


def places(selection):
    return selection.boxes[:, 0].astype(int).tolist()


def plain_select_rows(rows, selection_options):
    """One loop at a time."""
    class_ids = selection_options.class_ids
    candidates = []
    for position, row in enumerate(rows.tolist()):
        score = row[4]
        class_id = row[5]
        if class_id not in range(CLASSES):
            continue
        if class_ids is not None and class_id not in class_ids:
            continue
        if score > np.float32(confidence_of(int(class_id), selection_options)):
            candidates.append((-score, position))
    best_first = sorted(candidates)[: selection_options.max_det]
    return [position for _, position in best_first]


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
def test_every_rule_and_every_tie_of_rows(rows, confidence, max_det, class_ids, dtype):
    selection_options = SelectionOptions(confidence, max_det, class_ids, None)
    array = row_array(rows, dtype=dtype)
    selection = select_rows(array, selection_options, CLASSES)
    assert places(selection) == plain_select_rows(array, selection_options)
    assert (selection.score <= 1).all()


@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 0.25, 0.3, 0.5, 1.0]), st.sampled_from([0, 1, 2])),
        max_size=12,
    ),
    BY_CLASS,
    st.integers(1, 15),
    st.sampled_from([None, frozenset({0, 2})]),
)
def test_confidences_of_classes_act_on_rows_before_the_limit(rows, confidences, max_det, class_ids):
    selection_options = SelectionOptions(0, max_det, class_ids, None)
    selection_options = with_conf_thresholds(selection_options, confidences, CLASSES)
    array = row_array(rows)
    assert places(select_rows(array, selection_options, CLASSES)) == plain_select_rows(
        array, selection_options
    )


def test_float16_rows_are_compared_as_float32():
    selection = select_rows(row_array([(0.3, 1), (0.9, 2)], dtype=np.float16), ANY, CLASSES)
    assert selection.score.tolist() == [np.float16(0.9), np.float16(0.3)]
    assert [part.dtype for part in selection] == [np.float32, np.float32, np.int64]


def test_they_are_the_rows_that_the_head_would_have_given(random):
    head = np.concatenate([random.random((4, 50)) * 600, random.random((CLASSES, 50))])
    selection = select(head.astype(np.float32), ANY)
    rows = np.column_stack(list(selection))[random.permutation(len(selection.score))]
    for part, expected in zip(select_rows(rows, ANY, CLASSES), selection, strict=True):
        np.testing.assert_array_equal(part, expected)


@pytest.mark.parametrize(
    ("rows", "message", "remaining_scores"),
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
def test_warnings_about_rows(rows, message, remaining_scores, recwarn):
    assert places(select_rows(row_array(rows), ANY, CLASSES)) == remaining_scores
    if message is not None:
        assert message in str(recwarn.pop(DetcliWarning).message)
    assert len(recwarn) == 0


def test_nms_among_the_wanted():
    rows = row_array([(0.8, 1), (0.9, 1), (0.7, 0), (0.6, 1)])
    rows[3, [0, 2]] += 100
    selection_options = SelectionOptions(0.25, 2, None, nms_iou=0.5)
    assert places(select_rows(rows, selection_options, CLASSES)) == [1, 2]
    selection_options = SelectionOptions(0.25, 300, frozenset({1}), nms_iou=0.5)
    assert places(select_rows(rows, selection_options, CLASSES)) == [1, 103]


def test_no_rows_and_rows_of_centre_and_size(recwarn):
    for nms_iou in (None, 0.5):
        selection_options = SelectionOptions(0.25, 300, frozenset({0}), nms_iou)
        empty_selection = select_rows(np.zeros((0, 6), np.float16), selection_options, CLASSES)
        assert [part.shape for part in empty_selection] == [(0, 4), (0,), (0,)]
    rows = np.array([[10, 20, 4, 6, 0.5, 1]], np.float32)
    selection = select_rows(rows, ANY, CLASSES, cxcywh=True)
    np.testing.assert_array_equal(selection.boxes, [[8, 17, 12, 23]])
    assert not recwarn


def test_rows_are_split_into_box_score_and_class():
    selection = as_selection(np.array([[1, 2, 3, 4, 0.5, 7]], np.float32))
    assert selection.boxes.tolist() == [[1, 2, 3, 4]]
    assert selection.score.tolist() == [0.5]
    assert selection.class_id.tolist() == [7]
