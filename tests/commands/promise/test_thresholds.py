"""Thresholds that no score equals."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from detcli.commands.promise.thresholds import (
    candidate_thresholds,
    cut_above_zero,
    cut_below,
    highest_threshold,
    shortest_between,
)

SCORES = st.lists(st.one_of(st.just(0.0), st.integers(1, 40).map(lambda n: n / 1000)), min_size=1)


@given(SCORES, st.integers(1, 41).map(lambda number: number / 1000))
def test_a_grid_has_all_that_may_be_promised_and_no_score(scores, below):
    scores = np.array(scores)
    grid = candidate_thresholds(scores, below)
    assert grid == sorted(set(grid))
    assert not set(grid[:-1]) & set(scores)
    assert np.count_nonzero(scores < grid[-1]) == np.count_nonzero(scores < below)
    has_low_score = bool(((scores > 0) & (scores < below)).any())
    if has_low_score:
        assert np.count_nonzero(scores < grid[0]) == np.count_nonzero(scores == 0)
    assert len(grid) <= 22


def test_the_lowest_threshold_has_only_units_without_a_box_below_it():
    scores = np.array([0, 0, 0.002, 0.004, 0.5])
    assert cut_above_zero(scores) == 0.001
    assert np.count_nonzero(scores < cut_above_zero(scores)) == 2
    assert cut_above_zero(np.zeros(3)) == 1.0


def test_units_with_the_score_itself_are_on_the_upper_side():
    scores = np.array([0.1, 0.2, 0.2, 0.3])
    threshold = cut_below(scores, 0.2)
    assert 0.1 < threshold < 0.2
    assert np.count_nonzero(scores < threshold) == 1
    assert 0.3 < cut_below(scores, 0.9) < 0.9


def test_a_threshold_has_few_digits():
    assert shortest_between(0.001889, 0.001893) == 0.00189
    assert shortest_between(0.1, np.nextafter(0.1, 1)) == np.nextafter(0.1, 1)


def test_a_tenth_is_above_or_twice_as_many_as_are_expected():
    scores = np.linspace(0.001, 1, 1000)
    for expected_share, above in ((0.01, 100), (0.05, 100), (0.2, 400)):
        threshold = highest_threshold(scores, expected_share)
        assert abs(np.count_nonzero(scores >= threshold) - above) <= 1


def test_where_most_have_no_box_the_threshold_is_above_them():
    scores = np.array([0.0] * 95 + [0.3] * 5)
    assert 0 < highest_threshold(scores, 0.05) < 0.3


def test_no_threshold_is_above_what_was_allowed():
    scores = np.array([0.0, 0.19, 0.55])
    below = cut_below(scores, 0.26)
    assert 0.19 < below <= 0.26
    assert candidate_thresholds(scores, below)[-1] <= 0.26
    assert candidate_thresholds(scores, 0.26)[-1] == 0.26


@given(SCORES, st.integers(1, 41).map(lambda number: number / 1000))
def test_a_printed_threshold_puts_aside_exactly_the_units_of_its_row(scores, below):
    """Whether a score has to be above --conf or at it: none of them is equal to it."""
    scores = np.array(scores)
    for threshold in candidate_thresholds(scores, cut_below(scores, below)):
        printed = float(f"{threshold}")
        assert printed == threshold
        assert printed <= below
        assert not (scores == printed).any()
