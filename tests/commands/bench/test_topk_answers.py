"""Which answers agree with that of a stable sort."""

import numpy as np
import pytest

from detcli.commands.bench.topk import (
    CLASSES,
    CONFIDENCE,
    DisagreementError,
    require_agreement,
    selection_task,
    top_k_task,
)

VALUES = np.array([9, 7, 7, 5], np.float32)
INDICES = np.array([3, 1, 2, 0])


def test_the_right_answer_agrees():
    require_agreement((VALUES, INDICES), (VALUES, INDICES), exactly=True)


def test_another_value_disagrees():
    with pytest.raises(DisagreementError, match="values"):
        require_agreement((VALUES + 1, INDICES), (VALUES, INDICES), exactly=False)
    with pytest.raises(DisagreementError, match="values"):
        require_agreement((VALUES[:3], INDICES[:3]), (VALUES, INDICES), exactly=False)


def test_equals_may_come_in_any_order_unless_it_is_ours():
    swapped = INDICES[[0, 2, 1, 3]]
    require_agreement((VALUES, swapped), (VALUES, INDICES), exactly=False)
    with pytest.raises(DisagreementError, match="belongs"):
        require_agreement((VALUES, swapped), (VALUES, INDICES), exactly=True)


def test_what_belongs_to_a_single_value_has_to_be_right():
    wrong = INDICES.copy()
    wrong[0] = 8
    with pytest.raises(DisagreementError, match="belongs"):
        require_agreement((VALUES, wrong), (VALUES, INDICES), exactly=False)


def test_the_last_value_may_be_one_of_several_behind_it():
    wrong = INDICES.copy()
    wrong[3] = 8
    require_agreement((VALUES, wrong), (VALUES, INDICES), exactly=False)


def test_nothing_agrees_with_nothing():
    empty = np.array([], np.float32)
    require_agreement((empty, empty), (empty, empty), exactly=True)


def test_a_head_is_like_that_of_a_detector():
    task = selection_task(8400, 300)
    assert task.values.shape == (4 + CLASSES, 8400)
    assert task.n == 8400
    above = np.count_nonzero(task.values[4:].max(axis=0) > CONFIDENCE)
    assert 4 <= above <= 24


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_the_smallest_sizes(n):
    assert selection_task(n, 300).n == top_k_task(n, 1).n == n


def test_random_numbers_are_the_same_each_time():
    assert np.array_equal(selection_task(50, 1).values, selection_task(50, 1).values)
