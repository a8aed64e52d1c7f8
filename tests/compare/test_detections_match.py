import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_records import detected as detections

from detcli.compare.detections import Rules, Tolerance, compare, match

BOX = (10, 10, 50, 50)
FAR = (100, 100, 150, 150)


ONE = (*BOX, 0.9, 0)


@pytest.mark.parametrize(
    ("left", "right", "matched"),
    [
        ([ONE], [(*BOX, 0.9, 1)], []),  # of another class
        ([(0, 0, 40, 40, 0.9, 0)], [(0, 0, 40, 20, 0.9, 0)], [(0, 0)]),  # just enough
        ([(0, 0, 40, 40, 0.9, 0)], [(0, 0, 40, 19, 0.9, 0)], []),
        ([ONE], [ONE, (*BOX, 0.7, 0)], [(0, 0)]),  # a duplicate is left over
        ([(*BOX, 0.5, 0)] * 4, [(*BOX, 0.5, 0)] * 4, [(i, i) for i in range(4)]),  # ties
        ([ONE, (*FAR, 0.8, 0)], [(*FAR, 0.8, 0), (*BOX, 0.8, 0)], [(0, 1), (1, 0)]),
        # A perfect pair is not split into two poor ones.
        (
            [(0, 0, 40, 40, 0.9, 0), (0, 0, 40, 58, 0.8, 0)],
            [(0, 0, 40, 40, 0.9, 0), (15, 0, 40, 40, 0.8, 0)],
            [(0, 0)],
        ),
        # Cut to nothing by the edge of the picture, or so small that half a pixel halves the IoU.
        (
            [(0, 5, 0, 9, 0.5, 0), (20, 20, 22, 22, 0.5, 0)],
            [(0, 5, 0.1, 9, 0.5, 0), (20.9, 20, 22.9, 22, 0.5, 0)],
            [(0, 0), (1, 1)],
        ),
        ([(0, 5, 0, 9, 0.5, 0)], [(0, 6.1, 0.1, 10.1, 0.5, 0)], []),
        # Boxes in one place are told apart by score: by IoU alone the best pair is 0.9 with 0.3.
        (
            [(10, 10, 50, 50, 0.9, 0), (10, 10, 50, 51, 0.3, 0)],
            [(10, 10, 50, 51, 0.9, 0), (10, 10, 50, 50, 0.3, 0)],
            [(0, 0), (1, 1)],
        ),
        # Equal empty boxes come first.
        (
            [(0, 5, 0, 9, 0.5, 0), (0, 5, 0.5, 9, 0.5, 0)],
            [(0, 5, 0.5, 9, 0.5, 0), (0, 5, 0, 9, 0.5, 0)],
            [(0, 1), (1, 0)],
        ),
    ],
)
def test_pairs(left, right, matched):
    found = match(detections(*left), detections(*right))
    assert [(pair.left, pair.right) for pair in found] == matched


def test_a_pair_and_its_differences():
    (pair,) = match(detections(ONE), detections((12, 9, 50, 50, 0.8, 0)))
    assert pair.left == 0
    assert pair.right == 0
    assert pair.corner_difference == 2
    assert pair.score_difference == pytest.approx(0.1)


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
