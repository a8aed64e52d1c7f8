"""Non-maximum suppression beside its definition, and what it must not take."""

import tracemalloc

import numpy as np
import numpy.typing as npt
import pytest
from data.greedy_suppression import greedy_suppression, weighted_suppression
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from detcli.data import suppression
from detcli.data.suppression import blend_overlapping, non_maximum_suppression

THRESHOLDS = st.sampled_from([0.0, 0.1, 1 / 3, 0.45, 0.7, 1.0])
OF_ONE_CLASS = np.zeros(9, np.int64)


def boxes_of(
    count: int, sides: st.SearchStrategy[float]
) -> st.SearchStrategy[npt.NDArray[np.float32]]:
    shapes = st.tuples(st.integers(0, count), st.just(4))
    return st_numpy.arrays(np.float32, shapes, elements=sides)


SMALL_BOXES = boxes_of(12, st.integers(0, 6))
ANY_BOXES = boxes_of(8, st.floats(width=32))


@given(SMALL_BOXES | ANY_BOXES, st.data(), THRESHOLDS, st.integers(1, 14))
def test_the_definition(boxes, data, threshold, limit):
    classes = st_numpy.arrays(np.int64, len(boxes), elements=st.integers(0, 2))
    class_id = data.draw(classes)
    with np.errstate(all="ignore"):  # of infinite sides
        survivors = non_maximum_suppression(boxes, class_id, threshold, limit)
        assert survivors.tolist() == greedy_suppression(boxes, class_id, threshold, limit)


@pytest.mark.parametrize("many_pairs", [0, 1 << 20], ids=["tables", "lists of pairs"])
@pytest.mark.parametrize("limit", [1, 7, 300])
@pytest.mark.parametrize("class_count", [1, 5, 80])
def test_chunks_heads_and_both_ways_to_compare(random, monkeypatch, class_count, limit, many_pairs):
    monkeypatch.setattr(suppression, "FIRST_CHUNK", 5)
    monkeypatch.setattr(suppression, "GROWTH", 2)
    monkeypatch.setattr(suppression, "HEAD", 3)
    monkeypatch.setattr(suppression, "PAIRS_IN_TABLE", 7)
    monkeypatch.setattr(suppression, "MANY_OF_CLASS", many_pairs)
    corners = random.uniform(0, 100, (150, 2))
    sides = random.uniform(5, 60, (150, 2))
    boxes = np.concatenate([corners, corners + sides], axis=1).astype(np.float32)
    class_id = random.integers(0, class_count, 150)

    survivors = non_maximum_suppression(boxes, class_id, 0.3, limit)

    assert survivors.tolist() == greedy_suppression(boxes, class_id, 0.3, limit)


def test_boxes_that_reach_above_the_best_overlap_by_what_they_share():
    """Half of each, which is an IoU of 1/3; the best has its left side and its top far apart."""
    boxes = np.array([[0, 50, 10, 60], [0, 45, 10, 55]], np.float32)
    assert non_maximum_suppression(boxes, OF_ONE_CLASS[:2], 0.4, 9).tolist() == [0, 1]


@pytest.mark.parametrize(("threshold", "expected"), [(1 / 3, [0, 1]), (0.33, [0])])
def test_overlap_at_the_threshold_stays(threshold, expected):
    boxes = np.array([[0, 0, 4, 1], [2, 0, 6, 1]], np.float32)  # IoU 1/3
    assert non_maximum_suppression(boxes, OF_ONE_CLASS[:2], threshold, 9).tolist() == expected


def test_equal_boxes_stay_at_a_threshold_of_one():
    boxes = np.array([[0, 0, 4, 1]] * 4, np.float32)
    assert len(non_maximum_suppression(boxes, OF_ONE_CLASS[:4], 1.0, 9)) == 4


def test_a_threshold_of_zero_drops_whatever_touches():
    boxes = np.array([[0, 0, 1, 1], [0, 0, 1, 1], [3, 3, 4, 4]], np.float32)
    assert non_maximum_suppression(boxes, OF_ONE_CLASS[:3], 0.0, 9).tolist() == [0, 2]


def test_memory_grows_with_the_boxes_alone(random):
    """Not with the pairs of them: these would take 6 GB."""
    corners = random.uniform(0, 600, (40_000, 2))
    boxes = np.concatenate([corners, corners + 40], axis=1).astype(np.float32)
    class_id = np.zeros(len(boxes), np.int64)
    tracemalloc.start()
    try:
        survivors = non_maximum_suppression(boxes, class_id, 0.1, len(boxes))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(survivors) > 100
    assert peak < 20 * boxes.nbytes


@given(SMALL_BOXES, st.data(), THRESHOLDS, st.integers(1, 14))
def test_blending_is_mediapipes(boxes, data, threshold, limit):
    classes = st_numpy.arrays(np.int64, len(boxes), elements=st.integers(0, 2))
    class_id = data.draw(classes)
    scores = st_numpy.arrays(np.float32, len(boxes), elements=st.floats(0.125, 1, width=32))
    score = np.sort(data.draw(scores))[::-1]
    blended, best = blend_overlapping(boxes, score, class_id, iou_threshold=threshold, limit=limit)
    expected = weighted_suppression(boxes, score, class_id, threshold)[:limit]
    assert best.tolist() == [index for index, _ in expected]
    assert blended.shape == (len(expected), 4)
    for box, (_, expected_box) in zip(blended, expected, strict=True):
        np.testing.assert_allclose(box, expected_box, rtol=1e-5, atol=1e-5)


def test_a_blend_is_nearer_to_the_better_box():
    boxes = np.array([[0, 0, 10, 10], [2, 0, 12, 10], [50, 0, 60, 10]], np.float32)
    score = np.array([0.75, 0.25, 0.5], np.float32)
    blended, best = blend_overlapping(boxes, score, OF_ONE_CLASS[:3], iou_threshold=0.3, limit=9)
    assert blended.tolist() == [[0.5, 0, 10.5, 10], [50, 0, 60, 10]]
    assert best.tolist() == [0, 2]


def test_boxes_of_other_classes_are_not_blended():
    boxes = np.array([[0, 0, 10, 10], [2, 0, 12, 10]], np.float32)
    score = np.array([0.75, 0.25], np.float32)
    blended, _ = blend_overlapping(boxes, score, np.array([0, 1]), iou_threshold=0.3, limit=9)
    assert blended.tolist() == boxes.tolist()
