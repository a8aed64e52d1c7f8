"""Ranges of whole numbers that are joined in one array."""

import numpy as np

from detcli.data.ranges import joined_ranges


def test_ranges_follow_one_another():
    assert joined_ranges(np.array([7, 4]), np.array([2, 3])).tolist() == [7, 8, 4, 5, 6]


def test_a_range_may_be_empty():
    assert joined_ranges(np.array([7, 1, 4]), np.array([2, 0, 1])).tolist() == [7, 8, 4]


def test_nothing_is_joined_of_no_ranges():
    nothing = np.array([], np.int64)
    assert joined_ranges(nothing, nothing).tolist() == []
