import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detcli.commands.shared.comparison import Rules, Tolerance, compare, match
from detcli.detections import Detections

NAMES = ("person", "car")


def detections(*rows):
    """From rows of x1, y1, x2, y2, score, class id."""
    table = np.array(rows, np.float64).reshape(-1, 6)
    return Detections(
        table[:, :4].astype(np.float32),
        table[:, 4].astype(np.float32),
        table[:, 5].astype(np.int64),
        NAMES,
    )


BOX = (10, 10, 50, 50)
FAR = (100, 100, 150, 150)


def pairs(left, right, **options):
    return [(pair.left, pair.right) for pair in match(left, right, **options)]


def test_nothing_on_one_side_or_both():
    one, none = detections((*BOX, 0.9, 0)), detections()
    assert match(none, none) == match(one, none) == match(none, one) == []


def test_a_pair_and_its_differences():
    left, right = detections((*BOX, 0.9, 0)), detections((12, 9, 50, 50, 0.8, 0))
    (pair,) = match(left, right)
    assert (pair.left, pair.right, pair.corner_difference) == (0, 0, 2)
    assert pair.score_difference == pytest.approx(0.1)


def test_boxes_of_different_classes_do_not_match():
    assert match(detections((*BOX, 0.9, 0)), detections((*BOX, 0.9, 1))) == []


def test_the_least_iou_is_enough():
    left, right = detections((0, 0, 40, 40, 0.9, 0)), detections((0, 0, 40, 20, 0.9, 0))
    assert pairs(left, right) == [(0, 0)]
    assert pairs(left, right, least_iou=0.51) == []


def test_a_duplicate_is_left_over():
    twice = detections((*BOX, 0.9, 0), (*BOX, 0.7, 0))
    assert pairs(detections((*BOX, 0.9, 0)), twice) == [(0, 0)]


def test_boxes_in_one_place_are_told_apart_by_score():
    """By IoU alone the best pair would be 0.9 with 0.3."""
    left = detections((10, 10, 50, 50, 0.9, 0), (10, 10, 50, 51, 0.3, 0))
    right = detections((10, 10, 50, 51, 0.9, 0), (10, 10, 50, 50, 0.3, 0))
    assert pairs(left, right) == [(0, 0), (1, 1)]
    assert max(pair.score_difference for pair in match(left, right)) < 1e-6


def test_a_perfect_pair_is_not_split_into_two_poor_ones():
    left = detections((0, 0, 40, 40, 0.9, 0), (0, 0, 40, 58, 0.8, 0))
    right = detections((0, 0, 40, 40, 0.9, 0), (15, 0, 40, 40, 0.8, 0))
    assert pairs(left, right) == [(0, 0)]


def test_ties_pair_up_in_order():
    same = detections(*[(*BOX, 0.5, 0)] * 4)
    assert pairs(same, same) == [(i, i) for i in range(4)]


def test_order():
    left = detections((*BOX, 0.9, 0), (*FAR, 0.8, 0))
    right = detections((*FAR, 0.8, 0), (*BOX, 0.8, 0))
    assert pairs(left, right) == [(0, 1), (1, 0)]


def test_empty_and_tiny_boxes():
    """Cut to nothing by the edge of the picture, or so small that half a pixel halves the IoU."""
    left = detections((0, 5, 0, 9, 0.5, 0), (20, 20, 22, 22, 0.5, 0))
    right = detections((0, 5, 0.1, 9, 0.5, 0), (20.9, 20, 22.9, 22, 0.5, 0))
    assert pairs(left, right) == pairs(left, left) == [(0, 0), (1, 1)]
    assert pairs(left[0], detections((0, 6.1, 0.1, 10.1, 0.5, 0))) == []


def test_equal_empty_boxes_come_first():
    left = detections((0, 5, 0, 9, 0.5, 0), (0, 5, 0.5, 9, 0.5, 0))
    assert pairs(left, left[[1, 0]]) == [(0, 1), (1, 0)]


box = st.tuples(*[st.integers(0, 6)] * 2, *[st.integers(1, 4)] * 2).map(
    lambda b: (b[0], b[1], b[0] + b[2], b[1] + b[3])
)
row = st.tuples(box, st.integers(0, 8), st.integers(0, 1)).map(lambda r: (*r[0], r[1] / 8, r[2]))


@given(st.lists(row, max_size=8), st.lists(row, max_size=8))
def test_every_detection_is_matched_once_or_missing_or_extra(left, right):
    one, other = detections(*left), detections(*right)
    both = compare(one, other, Rules(-1, 0.5, 300, Tolerance(0, 0, 0, 0)))
    found = (*both.pairs, *both.over)
    assert sorted([*both.missing, *(pair.left for pair in found)]) == list(range(len(left)))
    assert sorted([*both.extra, *(pair.right for pair in found)]) == list(range(len(right)))
    assert all(one.class_id[pair.left] == other.class_id[pair.right] for pair in found)


@given(st.lists(row, max_size=8), st.randoms())
def test_a_shuffled_copy_matches_without_a_difference(rows, random):
    found = match(detections(*rows), detections(*random.sample(rows, len(rows))))
    assert len(found) == len(rows)
    assert all(pair.score_difference == pair.corner_difference == 0 for pair in found)
