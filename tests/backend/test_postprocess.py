# mypy: disable-error-code=arg-type
"""The selection from a head and its parts, against slow, plainly right implementations."""

import itertools
import math
import warnings
from dataclasses import replace

import colour_model
import numpy as np
import pytest
from backend.plain_selection import (
    BY_CLASS,
    options,
    plain_select,
    plain_select_with_nms,
    with_conf_thresholds,
)
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from detcli import DetcliWarning
from detcli.backend.image_boxes import to_detections
from detcli.backend.logits import sigmoid
from detcli.backend.postprocess import (
    SelectionOptions,
    select,
    select_rows,
)
from detcli.data.geometry import Letterbox
from detcli.model.contract import MultiLabel
from detcli.model.recognise import read_graph

CONTRACT = read_graph(colour_model.build(), "colours").contract
ALL = SelectionOptions(conf=-math.inf, max_det=300, class_ids=None, nms_iou=None)


def head_of(scores, dtype=np.float32):
    """A head in which x1 of each box is its anchor."""
    scores = np.asarray(scores, dtype)
    boxes = np.zeros((4, scores.shape[1]), dtype)
    boxes[0] = np.arange(scores.shape[1])
    return np.concatenate([boxes, scores])


def rows(selection):
    return list(
        zip(
            selection.boxes[:, 0].astype(int).tolist(),
            selection.class_id.tolist(),
            selection.score.tolist(),
            strict=True,
        )
    )


SCORES = st_numpy.arrays(
    np.float32,
    st.tuples(st.integers(1, 5), st.integers(1, 12)),
    elements=st.sampled_from([0.0, -0.0, 0.25, 0.5, 1.0, -math.inf, math.nan]),
)


@pytest.mark.filterwarnings("ignore::detcli.DetcliWarning")
@given(
    SCORES,
    st.sampled_from([np.float32, np.float16]),
    st.sampled_from([-math.inf, 0.0, 0.25, 0.3, 1.0]),
    st.integers(1, 15),
    st.booleans(),
)
def test_every_step_and_every_tie(scores, dtype, confidence, max_det, first_classes_only):
    class_ids = frozenset(range((len(scores) + 1) // 2)) if first_classes_only else None
    selection_options = options(confidence, max_det, class_ids)
    head = head_of(scores, dtype)
    assert rows(select(head, selection_options)) == plain_select(head, selection_options)


@pytest.mark.filterwarnings("ignore::detcli.DetcliWarning")
@given(
    SCORES,
    BY_CLASS,
    st.sampled_from([np.float32, np.float16]),
    st.integers(1, 15),
    st.sampled_from([None, frozenset({0})]),
    st.booleans(),
)
def test_confidences_of_classes_act_before_the_limit(
    scores, confidences, dtype, max_det, class_ids, unique
):
    selection_options = with_conf_thresholds(
        options(0, max_det, class_ids), confidences, len(scores)
    )
    head = head_of(scores, dtype)
    if not unique:
        assert rows(select(head, selection_options)) == plain_select(head, selection_options)
        return
    head[2:4] = head[0] + 0.5  # as with NMS among boxes that do not meet
    expected = plain_select_with_nms(
        head, replace(selection_options, nms_iou=1, multi_label=MultiLabel.NEVER)
    )
    assert rows(select(head, replace(selection_options, multi_label=MultiLabel.NEVER))) == expected


@pytest.mark.filterwarnings("ignore::detcli.DetcliWarning")
@given(
    SCORES,
    BY_CLASS,
    st.integers(1, 15),
    st.sampled_from(MultiLabel),
    st.booleans(),
    st.integers(1, 3),
)
def test_confidences_of_classes_act_before_suppression(
    scores, confidences, max_det, multi_label, class_agnostic, spacing
):
    """Boxes whose neighbours overlap, by more the closer they are."""
    selection_options = options(0, max_det, nms_iou=0.45)
    selection_options = with_conf_thresholds(selection_options, confidences, len(scores))
    selection_options = replace(
        selection_options, multi_label=multi_label, class_agnostic=class_agnostic
    )
    head = head_of(scores)
    head[0] *= spacing
    head[2], head[3] = head[0] + 4, 10
    selected = []
    for left, class_id, score in rows(select(head, selection_options)):
        selected.append((left // spacing, class_id, score))
    assert selected == plain_select_with_nms(head, selection_options)


@pytest.mark.filterwarnings("ignore::detcli.DetcliWarning")
@given(SCORES, st.sampled_from([0.0, 0.25, 0.5]), st.integers(1, 15))
def test_one_confidence_is_the_same_for_all_classes_or_said_of_each(scores, confidence, max_det):
    head = head_of(scores)
    said_of_each = replace(options(0.0, max_det), conf_thresholds=(confidence,) * len(scores))
    assert rows(select(head, said_of_each)) == rows(select(head, options(confidence, max_det)))


def test_confidences_of_classes_and_logits():
    head = head_of([[4, 3, -9], [-9, 1, 2]])
    selection_options = options(0, 1).with_conf_thresholds(np.float32([0.99, 0.3]))
    assert rows(select(head, selection_options, logits=True)) == [(2, 1, float(sigmoid(2)))]


def test_nan_is_counted_once_whatever_the_confidence_of_its_class(recwarn):
    head = head_of([[np.nan, 0.9], [0.5, np.nan]])
    selection_options = options(0).with_conf_thresholds(np.float32([0.95, 0.3]))
    assert rows(select(head, selection_options)) == [(0, 1, 0.5)]
    assert len(recwarn) == 1
    assert str(recwarn[0].message).startswith("2 of 4 scores are NaN ")


@pytest.mark.filterwarnings("ignore::detcli.DetcliWarning")
@pytest.mark.parametrize("nms_iou", [None, 0.5])
@pytest.mark.parametrize("multi_label", MultiLabel)
@pytest.mark.parametrize("class_ids", [None, frozenset({8, 1, 0})])  # a set gives 8 first
def test_anchors_count_once_or_with_every_class(nms_iou, multi_label, class_ids, random):
    """Many ties, which a sort that is not stable would settle in another way, and NaN."""
    head = head_of(random.choice(np.float32([-1, 0.25, 0.5, 0.75, math.nan]), (9, 200)))
    head[0] *= 100
    head[2], head[3] = head[0] + 10, 10  # none over another
    classes = sorted(class_ids or range(9))
    for max_det in (5, 60, 10_000):
        selection_options = SelectionOptions(-0.5, max_det, class_ids, nms_iou, multi_label)
        has_nms = nms_iou is not None
        is_always = multi_label is MultiLabel.ALWAYS
        assert selection_options.suppresses_every_class == (has_nms and is_always)
        counts_once = multi_label is MultiLabel.NEVER or (has_nms and not is_always)
        if counts_once:
            pairs = best_of_each_anchor(pairs_above(head, classes, -0.5))
        elif has_nms:
            pairs = sorted(pairs_above(head, classes, -0.5))
        else:
            pairs = []
            for anchor, class_id, score in plain_select(head, selection_options):
                pairs.append((-score, anchor, class_id))
        pairs.sort(key=lambda pair: pair[0])
        expected = []
        for negative_score, anchor, class_id in pairs[:max_det]:
            expected.append((100 * anchor, class_id, -negative_score))
        assert rows(select(head, selection_options)) == expected


def pairs_above(head, classes, confidence):
    """(-score, anchor, class id) of all scores above a confidence, anchor by anchor."""
    pairs = []
    for anchor in range(head.shape[1]):
        for class_id in classes:
            score = head[4 + class_id, anchor]
            if score > confidence:
                pairs.append((-score, anchor, class_id))
    return pairs


def best_of_each_anchor(pairs):
    """Of the pairs of an anchor the one with the highest score; of equals, the lower class id."""
    best = {}
    for pair in pairs:
        anchor = pair[1]
        best[anchor] = min(pair, best.get(anchor, pair))
    return list(best.values())


def test_a_set_gives_no_more_than_it_has_anchors():
    """As `post_process_object_detection` of Hugging Face's RT-DETR takes the best of all scores."""
    head = head_of([[0.9, 0.1], [0.8, 0.7]])
    within_anchors = replace(ALL, within_anchors=True)
    assert select(head, within_anchors).score.tolist() == np.float32([0.9, 0.8]).tolist()
    assert len(rows(select(head, ALL))) == 4


def test_nms_of_all_classes_together():
    """As FastestDet's and Yolo-FastestV2's authors do."""
    head = head_of([[0.9, 0.1, 0.1], [0.2, 0.8, 0.7]])
    head[:4] = np.array([[0, 0, 10, 10], [1, 0, 11, 10], [40, 0, 50, 10]]).T
    by_class = SelectionOptions(0.25, 300, None, 0.5)
    assert select(head, by_class).class_id.tolist() == [0, 1, 1]
    class_agnostic = replace(by_class, class_agnostic=True)
    assert select(head, class_agnostic).class_id.tolist() == [0, 1]


@pytest.mark.parametrize("confidence", [0.25, 0.5])
def test_nms_with_every_class_suppresses_within_each(confidence):
    head = head_of([[0.9, 0.8], [0.5, np.nan], [0.3, 0.7]])
    head[:4] = np.array([[0, 0, 10, 10], [1, 0, 11, 10]]).T
    selection_options = SelectionOptions(confidence, 300, None, 0.5, multi_label=MultiLabel.ALWAYS)
    with pytest.warns(DetcliWarning, match="1 of 6 scores are NaN"):
        selected = rows(select(head, selection_options))
    assert (
        selected
        == [(0, 0, np.float32(0.9)), (1, 2, np.float32(0.7)), (0, 1, 0.5)][
            : 3 if confidence < 0.5 else 2
        ]
    )


@pytest.mark.filterwarnings("ignore::detcli.DetcliWarning")
@given(
    st_numpy.arrays(
        np.float32,
        st.tuples(st.integers(1, 5), st.integers(0, 12)),
        elements=st.sampled_from([-200, -104, -1.1, -0.0, 0, 1e-9, 3, 17, 18, math.inf, math.nan]),
    ),
    st.sampled_from([0.0, 0.25, 0.3, 0.5, 1.0]),
    st.integers(1, 15),
    st.sampled_from([{}, {"class_ids": frozenset({0})}]),
)
def test_logits_are_ordered_by_themselves_and_kept_by_their_sigmoids(
    logits, confidence, max_det, classes
):
    head = head_of(logits)
    selection_options = options(confidence, max_det, **classes)
    expected = []
    for anchor, class_id, logit in plain_select(head, options(-math.inf, max_det, **classes)):
        score = float(sigmoid(logit))
        if score > np.float32(confidence):
            expected.append((anchor, class_id, score))
    assert rows(select(head, selection_options, logits=True)) == expected


@pytest.mark.parametrize("anchors", [1, 31, 1023, 1024, 1025, 2100])
def test_real_sizes(anchors, random):
    for levels, confidence in ((3, 0.25), (3, -math.inf), (1000, 0.25), (1000, 0.9)):
        head = head_of(random.integers(0, levels, (8, anchors)) / np.float32(levels))
        selection_options = options(confidence, max_det=30)
        assert rows(select(head, selection_options)) == plain_select(head, selection_options)


def test_confidence_is_strict_and_compared_as_float32():
    third = np.float32(0.3)
    head = head_of([[third, np.nextafter(third, np.float32(1))]])
    assert select(head, options(0.3)).boxes[:, 0].tolist() == [1]


@pytest.mark.parametrize(
    ("scores", "logits", "message", "remaining_scores"),
    [
        ([[np.nan, 0.5], [np.nan, 0.25]], False, "2 of 4 scores are NaN", [0.5, 0.25]),
        ([[7.3, -2.0]], False, "without a sigmoid", [1, -2]),
        ([[1.5, -math.inf]], False, None, [1]),
        ([[7.3, -2.0]], True, None, sigmoid([7.3, -2.0])),
    ],
)
def test_warnings(scores, logits, message, remaining_scores, recwarn):
    selection = select(head_of(scores), ALL, logits=logits)
    np.testing.assert_array_equal(selection.score, remaining_scores)
    if message is not None:
        assert message in str(recwarn.pop(DetcliWarning).message)
    assert len(recwarn) == 0


def test_logits_with_nms_and_with_one_class_for_each_anchor():
    head = head_of([[3, 2, 1], [4, -3, 2]])
    head[:4] = np.array([[0, 0, 10, 10], [1, 0, 11, 10], [0, 0, 10, 10]]).T
    unique = SelectionOptions(0.25, 300, None, None, multi_label=MultiLabel.NEVER)
    for selection_options, logits in ((options(0.25, nms_iou=0.5), [4, 2]), (unique, [4, 2, 2])):
        selection = select(head, selection_options, logits=True)
        assert selection.score.tolist() == sigmoid(logits).tolist()


def test_a_head_without_anchors():
    cases = itertools.product(
        (np.float32, np.float16), (None, frozenset({2})), (None, 0.5), (False, True)
    )
    for dtype, class_ids, nms_iou, logits in cases:
        selection_options = options(0.25, 300, class_ids, nms_iou)
        selection = select(np.zeros((7, 0), dtype), selection_options, logits=logits)
        assert [part.shape for part in selection] == [(0, 4), (0,), (0,)]
        assert selection.boxes.dtype == selection.score.dtype == np.float32
        assert len(to_detections(selection, Letterbox.fit((8, 8), (8, 8)), CONTRACT)) == 0


def test_scores_above_one_are_clipped_and_centre_and_size_become_corners():
    head = head_of([[1.01, 1.02]])
    assert rows(select(head, ALL)) == [(1, 0, 1.0), (0, 0, 1.0)]
    head[:4, 1] = [10, 20, 4, 6]
    np.testing.assert_array_equal(select(head, ALL, cxcywh=True).boxes[0], [8, 17, 12, 23])


def test_nms_takes_the_best_class_of_each_anchor():
    head = head_of([[0.9, 0.8, 0.6], [0.9, 0.1, 0.7]])
    head[:4] = np.array([[0, 0, 10, 10], [1, 0, 11, 10], [0, 0, 10, 10]]).T
    selection = select(head, options(0.25, nms_iou=0.5))
    # anchor 1 overlaps anchor 0 in class 0; anchor 2 is the only one of class 1
    assert selection.class_id.tolist() == [0, 1]
    np.testing.assert_array_equal(selection.boxes, [[0, 0, 10, 10], [0, 0, 10, 10]])


def test_nms_ignores_nan_scores():
    head = head_of([[np.nan, 0.5], [0.75, 0.25]])
    with pytest.warns(DetcliWarning, match="1 of 4"):
        selection = select(head, options(nms_iou=0.5))
    assert selection.score.tolist() == [0.75, 0.5]
    assert selection.class_id.tolist() == [1, 0]


@pytest.mark.parametrize(("score", "is_warned"), [(2.0, False), (2.01, True)])
def test_scores_up_to_2_may_come_from_rounding(score, is_warned):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        select(head_of([[score, 0.5]]), options(nms_iou=None))
    assert bool(caught) == is_warned


# ---------------------------------------------------------------- blending


NEIGHBOURS = np.array([[0, 2, 50, 1], [0, 0, 0, 0], [10, 12, 60, 11], [10] * 4], np.float32)
"""Four boxes as columns: three that overlap, and one apart."""
BLENDS = replace(options(0.2, nms_iou=0.3), blends=True)


def head_of_neighbours(scores):
    """A head of these boxes and the scores of one class."""
    return np.concatenate([NEIGHBOURS, np.float32([scores])])


def test_boxes_that_are_dropped_are_blended_into_the_one_that_stays():
    selection = select(head_of_neighbours([0.5, 0.25, 0.375, 0.25]), BLENDS)
    assert selection.score.tolist() == [0.5, 0.375]
    assert selection.boxes.tolist() == [[0.75, 0, 10.75, 10], [50, 0, 60, 10]]


def test_boxes_below_the_confidence_are_not_blended():
    selection = select(head_of_neighbours([0.75, 0.25, 0.1, 0.2]), BLENDS)
    assert selection.boxes.tolist() == [[0.5, 0, 10.5, 10]]


def test_boxes_are_weighted_by_scores_and_not_by_logits():
    scores = np.float32([0.75, 0.25, 0.1, 0.1])
    logits = np.log(scores / (1 - scores))
    selection = select(head_of_neighbours(logits), BLENDS, logits=True)
    np.testing.assert_allclose(selection.boxes, [[0.5, 0, 10.5, 10]], atol=1e-6)
    np.testing.assert_allclose(selection.score, [0.75], atol=1e-6)


def test_blended_boxes_of_a_limited_number_are_the_best():
    head = head_of_neighbours([0.5, 0.25, 0.375, 0.25])
    selection = select(head, replace(BLENDS, max_det=1))
    assert selection.boxes.tolist() == [[0.75, 0, 10.75, 10]]


def test_blending_of_all_classes_keeps_the_class_of_the_best():
    scores = np.array([[0.75, 0.1], [0.1, 0.25]], np.float32)
    head = np.concatenate([NEIGHBOURS[:, :2], scores])
    selection = select(head, replace(BLENDS, class_agnostic=True))
    assert selection.boxes.tolist() == [[0.5, 0, 10.5, 10]]
    assert selection.class_id.tolist() == [0]


def test_rows_of_a_graph_that_selects_are_blended_too():
    boxes = NEIGHBOURS.T
    columns = np.float32([[0.5, 0], [0.25, 0], [0.375, 0], [0.25, 0]])
    selection = select_rows(np.concatenate([boxes, columns], axis=1), BLENDS, 1)
    assert selection.boxes.tolist() == [[0.75, 0, 10.75, 10], [50, 0, 60, 10]]
