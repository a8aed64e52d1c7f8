"""The selection against a slow, plainly right implementation of its four steps."""

import math
from dataclasses import replace

import colour_model
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from detcli import DetcliWarning, Letterbox
from detcli.backend.postprocess import (
    SelectedRows,
    SelectionOptions,
    select,
    sigmoid,
    to_detections,
)
from detcli.model.recognise import recognise

CONTRACT = recognise(colour_model.build(), "colours")
ALL = SelectionOptions(confidence=-math.inf, max_det=300, class_ids=None, nms_iou=None)


def options(confidence=-math.inf, max_det=300, class_ids=None, nms_iou=None):
    return SelectionOptions(confidence, max_det, class_ids, nms_iou)


def plain_select(head, wanted):
    """The four steps, one loop at a time; rows are (anchor, class id, score)."""
    classes = sorted(wanted.class_ids if wanted.class_ids is not None else range(len(head) - 4))
    scores = {
        (anchor, class_id): float(head[4 + class_id, anchor])
        for anchor in range(head.shape[1])
        for class_id in classes
        if not math.isnan(head[4 + class_id, anchor])
    }
    # 1. anchor score = maximum over the classes
    best = {}
    for (anchor, _), score in scores.items():
        best[anchor] = max(score, best.get(anchor, -math.inf))
    # 2. the max_det best anchors; of equals, the lower
    anchors = sorted(best, key=lambda anchor: (-best[anchor], anchor))[: wanted.max_det]
    # 3. the max_det best of their scores; of equals, the lower position
    flat = [(anchor, class_id) for anchor in anchors for class_id in classes]
    flat = [pair for pair in flat if pair in scores]
    kept = sorted(flat, key=lambda pair: (-scores[pair], flat.index(pair)))[: wanted.max_det]
    # 4. strictly above the confidence
    return [(*pair, scores[pair]) for pair in kept if scores[pair] > wanted.confidence]


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
    wanted = options(confidence, max_det, class_ids)
    head = head_of(scores, dtype)
    assert rows(select(head, wanted)) == plain_select(head, wanted)


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
    wanted = options(confidence, max_det, **classes)
    everything = plain_select(head, options(-math.inf, max_det, **classes))
    expected = [(*place, float(sigmoid(logit))) for *place, logit in everything]
    expected = [row for row in expected if row[-1] > np.float32(confidence)]
    assert rows(select(head, wanted, logits=True)) == expected


@given(
    st_numpy.arrays(
        np.float32,
        st.tuples(st.integers(1, 6), st.integers(1, 20)),
        elements=st.floats(-20, 15, width=16) | st.sampled_from([-1.0, 0.0, 2.0]),
    ),
    st.integers(1, 130),
)
def test_the_two_stages_find_the_flat_top_k_of_detr(logits, k):
    """`topk(sigmoid(logits).flatten(), k)`: the same scores, and without ties the same places."""
    flat = sigmoid(logits.T).ravel()  # (N * C,), a query's classes side by side
    best = np.sort(flat)[::-1][:k]
    chosen = select(head_of(logits), options(0.0, k), logits=True)
    assert chosen.score.tolist() == best.tolist()
    if len(np.unique(flat)) == flat.size:
        place = chosen.boxes[:, 0].astype(int) * len(logits) + chosen.class_id
        assert sorted(place.tolist()) == sorted(np.argsort(-flat)[:k].tolist())


@pytest.mark.parametrize("anchors", [1, 31, 1023, 1024, 1025, 2100])
@pytest.mark.parametrize("confidence", [-math.inf, 0.25, 0.9])
@pytest.mark.parametrize("levels", [3, 1000])
def test_real_sizes(anchors, confidence, levels, random):
    scores = random.integers(0, levels, (8, anchors)) / np.float32(levels)
    head = head_of(scores)
    wanted = options(confidence, max_det=30)
    assert rows(select(head, wanted)) == plain_select(head, wanted)


def test_confidence_is_strict_and_compared_as_float32():
    third = np.float32(0.3)
    head = head_of([[third, np.nextafter(third, np.float32(1))]])
    assert [anchor for anchor, *_ in rows(select(head, options(0.3)))] == [1]


@pytest.mark.parametrize(
    ("scores", "logits", "said", "kept"),
    [
        ([[np.nan, 0.5], [np.nan, 0.25]], False, "2 of 4 scores are NaN", [0.5, 0.25]),
        ([[7.3, -2.0]], False, "without a sigmoid", [1, -2]),
        ([[1.5, -math.inf]], False, None, [1]),
        ([[7.3, -2.0]], True, None, sigmoid([7.3, -2.0])),
    ],
)
def test_warnings(scores, logits, said, kept, recwarn):
    found = select(head_of(scores), ALL, logits=logits)
    np.testing.assert_array_equal(found.score, kept)
    assert [said in str(one.message) for one in recwarn] == [True] * (said is not None)


def test_logits_with_nms_and_with_one_class_for_each_anchor():
    head = head_of([[3, 2, 1], [4, -3, 2]])
    head[:4] = np.array([[0, 0, 10, 10], [1, 0, 11, 10], [0, 0, 10, 10]]).T
    unique = SelectionOptions(0.25, 300, None, None, unique=True)
    for wanted, logits in ((options(0.25, nms_iou=0.5), [4, 2]), (unique, [4, 2, 2])):
        chosen = select(head, wanted, logits=True)
        assert chosen.score.tolist() == sigmoid(logits).tolist()


@pytest.mark.parametrize("logits", [False, True])
@pytest.mark.parametrize("nms_iou", [None, 0.5])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_head_without_anchors(logits, nms_iou, dtype):
    head = np.zeros((7, 0), dtype)
    for class_ids in (None, frozenset({2})):
        found = select(head, options(0.25, 300, class_ids, nms_iou), logits=logits)
        assert [part.shape for part in found] == [(0, 4), (0,), (0,)]
        assert found.boxes.dtype == found.score.dtype == np.float32


def test_scores_above_one_are_clipped_after_selection():
    chosen = select(head_of([[1.01, 1.02]]), ALL)
    assert rows(chosen) == [(1, 0, 1.0), (0, 0, 1.0)]


def test_centre_and_size_become_corners():
    head = head_of([[1.0]])
    head[:4, 0] = [10, 20, 4, 6]
    np.testing.assert_array_equal(select(head, ALL, cxcywh=True).boxes, [[8, 17, 12, 23]])


def test_nms_takes_the_best_class_of_each_anchor():
    head = head_of([[0.9, 0.8, 0.6], [0.9, 0.1, 0.7]])
    head[:4] = np.array([[0, 0, 10, 10], [1, 0, 11, 10], [0, 0, 10, 10]]).T
    chosen = select(head, options(0.25, nms_iou=0.5))
    # anchor 1 overlaps anchor 0 in class 0; anchor 2 is the only one of class 1
    assert chosen.class_id.tolist() == [0, 1]
    np.testing.assert_array_equal(chosen.boxes, [[0, 0, 10, 10], [0, 0, 10, 10]])


def test_nms_ignores_nan_scores():
    head = head_of([[np.nan, 0.5], [0.75, 0.25]])
    with pytest.warns(DetcliWarning, match="1 of 4"):
        chosen = select(head, options(nms_iou=0.5))
    assert chosen.score.tolist() == [0.75, 0.5]
    assert chosen.class_id.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("boxes", "side", "clips", "said", "kept"),
    [
        ([[0.1, 0.2, 0.7, 1.0]], 640, True, "fractions", [[0.1, 0.2, 0.7, 1.0]]),
        (
            *([[0, 0, 5, 5], [0, np.nan, 5, 5], [0, 0, np.inf, 5]], 8, True),
            *("1 of 3 boxes", [[0, 0, 5, 5], [0, 0, 8, 5]]),
        ),
        (
            *([[-9, 0, 5, 5], [0, 0, np.inf, 5]], 8, False),
            *("1 of 2 boxes hold an infinity", [[-9, 0, 5, 5]]),
        ),
    ],
)
def test_odd_boxes_are_warned_about(boxes, side, clips, said, kept):
    boxes = np.array(boxes, np.float32)
    selection = SelectedRows(boxes, np.ones(len(boxes), np.float32), np.zeros(len(boxes), np.int64))
    letterbox = Letterbox.fit((side, side), (side, side))
    with pytest.warns(DetcliWarning, match=said):
        found = to_detections(selection, letterbox, replace(CONTRACT, clips=clips))
    np.testing.assert_array_equal(found.xyxy, np.float32(kept))
