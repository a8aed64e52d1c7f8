import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_records import detected as detections

from detcli.compare.detections import Rules, Tolerance, compare, match

CAT = (10, 10, 50, 50, 0.9, 0)  # x1, y1, x2, y2, score, class id
DOG_THERE = (10, 10, 50, 50, 0.9, 1)
LOWER_CAT = (10, 10, 50, 50, 0.7, 0)
FAR_CAT = (100, 100, 150, 150, 0.8, 0)


def matched_rows(left, right):
    """The rows of each pair, on the left and on the right."""
    return [(pair.left, pair.right) for pair in match(detections(left), detections(right))]


def test_boxes_of_two_classes_are_no_pair():
    assert matched_rows([CAT], [DOG_THERE]) == []


def test_boxes_are_a_pair_from_an_iou_of_one_half_on():
    square = (0, 0, 40, 40, 0.9, 0)
    half = (0, 0, 40, 20, 0.9, 0)
    less_than_half = (0, 0, 40, 19, 0.9, 0)
    assert matched_rows([square], [half]) == [(0, 0)]
    assert matched_rows([square], [less_than_half]) == []


def test_a_duplicate_is_left_over():
    assert matched_rows([CAT], [CAT, LOWER_CAT]) == [(0, 0)]


def test_of_equal_boxes_the_lower_rows_are_pairs():
    cats = [(10, 10, 50, 50, 0.5, 0)] * 4
    assert matched_rows(cats, cats) == [(0, 0), (1, 1), (2, 2), (3, 3)]


def test_pairs_may_stand_in_another_order():
    cat_of_equal_score = (10, 10, 50, 50, 0.8, 0)
    assert matched_rows([CAT, FAR_CAT], [FAR_CAT, cat_of_equal_score]) == [(0, 1), (1, 0)]


def test_a_perfect_pair_is_not_split_into_two_poor_ones():
    left = [(0, 0, 40, 40, 0.9, 0), (0, 0, 40, 58, 0.8, 0)]
    right = [(0, 0, 40, 40, 0.9, 0), (15, 0, 40, 40, 0.8, 0)]
    assert matched_rows(left, right) == [(0, 0)]


def test_boxes_with_hardly_an_area_are_pairs_where_all_corners_are_near():
    """Cut to nothing by the edge of the image, or so small that half a pixel halves the IoU."""
    left = [(0, 5, 0, 9, 0.5, 0), (20, 20, 22, 22, 0.5, 0)]
    right = [(0, 5, 0.1, 9, 0.5, 0), (20.9, 20, 22.9, 22, 0.5, 0)]
    assert matched_rows(left, right) == [(0, 0), (1, 1)]
    too_far = (0, 6.1, 0.1, 10.1, 0.5, 0)
    assert matched_rows(left[:1], [too_far]) == []


def test_boxes_in_one_place_are_told_apart_by_score():
    """By IoU alone, the best pair is 0.9 with 0.3."""
    left = [(10, 10, 50, 50, 0.9, 0), (10, 10, 50, 51, 0.3, 0)]
    right = [(10, 10, 50, 51, 0.9, 0), (10, 10, 50, 50, 0.3, 0)]
    assert matched_rows(left, right) == [(0, 0), (1, 1)]


def test_equal_empty_boxes_come_first():
    empty = (0, 5, 0, 9, 0.5, 0)
    narrow = (0, 5, 0.5, 9, 0.5, 0)
    assert matched_rows([empty, narrow], [narrow, empty]) == [(0, 1), (1, 0)]


def test_a_pair_and_its_differences():
    (pair,) = match(detections([CAT]), detections([(12, 9, 50, 50, 0.8, 0)]))
    assert pair.left == 0
    assert pair.right == 0
    assert pair.corner_difference == 2
    assert pair.score_difference == pytest.approx(0.1)


@st.composite
def row_lists(draw):
    """Rows of small boxes of two classes, with scores that are often equal."""
    rows = []
    for _ in range(draw(st.integers(0, 8))):
        x = draw(st.integers(0, 6))
        y = draw(st.integers(0, 6))
        width = draw(st.integers(1, 4))
        height = draw(st.integers(1, 4))
        score = draw(st.integers(0, 8)) / 8
        class_id = draw(st.integers(0, 1))
        rows.append((x, y, x + width, y + height, score, class_id))
    return rows


@given(row_lists(), row_lists())
def test_every_detection_is_matched_once_or_missing_or_extra(left_rows, right_rows):
    left = detections(left_rows)
    right = detections(right_rows)
    comparison = compare(left, right, Rules(-1, 0.5, 300, Tolerance(0, 0, 0, 0)))
    pairs = comparison.agreeing_pairs + comparison.disagreeing_pairs
    rows_on_the_left = list(comparison.missing) + [pair.left for pair in pairs]
    rows_on_the_right = list(comparison.extra) + [pair.right for pair in pairs]
    assert sorted(rows_on_the_left) == list(range(len(left)))
    assert sorted(rows_on_the_right) == list(range(len(right)))
    for pair in pairs:
        assert left.class_id[pair.left] == right.class_id[pair.right]


@given(row_lists(), st.randoms())
def test_a_shuffled_copy_matches_without_a_difference(rows, random):
    shuffled = random.sample(rows, len(rows))
    pairs = match(detections(rows), detections(shuffled))
    assert len(pairs) == len(rows)
    for pair in pairs:
        assert pair.score_difference == 0
        assert pair.corner_difference == 0
