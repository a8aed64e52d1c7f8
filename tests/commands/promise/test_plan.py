"""How much a review looks at, held against figures that were computed elsewhere."""

import pytest

from detcli.commands.promise.plan import (
    Expectation,
    chance_of_promise,
    fewest_that_break,
    keeps_loss,
    looks_needed,
    most_misses,
    round_error,
    rounds_of,
)

LOOKS = [
    (0.3, 0.05, (120, 253, 368)),
    (0.3, 0.01, (627, 1314, 1909)),
    (0.1, 0.05, (362, 760, 1104)),
    (0.1, 0.02, (927, 1943, 2820)),
    (0.05, 0.05, (721, 1512, 2195)),
    (0.05, 0.01, (3650, 7573, 10914)),
    (0.01, 0.05, (3516, 7299, 10523)),
    (0.01, 0.01, (15257, 30085, 41611)),
]
"""The share of animals among 100,000 images, the loss, and looks for 0, 2 and 4 misses."""


@pytest.mark.parametrize(("share", "loss", "expected"), LOOKS)
def test_looks_are_those_of_the_table(share, loss, expected):
    animals_above = round(share * 100_000)
    for misses, looks in zip((0, 2, 4), expected, strict=True):
        needed = looks_needed(
            units=64_000, animals_above=animals_above, loss=loss, error=0.05, misses=misses
        )
        assert needed == looks


def test_more_misses_than_may_be_lost_cannot_be_planned_for():
    assert looks_needed(units=100, animals_above=20, loss=0.05, error=0.05, misses=2) is None
    assert looks_needed(units=100, animals_above=20, loss=0.05, error=0.05, misses=0) is not None


def test_fewer_units_than_may_be_lost_need_no_looks():
    assert looks_needed(units=5, animals_above=1000, loss=0.05, error=0.05, misses=0) == 0


def test_as_many_as_the_share_are_kept_and_one_more_breaks_it():
    assert keeps_loss(5, 95, 0.05)
    assert not keeps_loss(6, 95, 0.05)
    assert not keeps_loss(0, 0, 0.05)
    assert fewest_that_break(95, 0.05) == 6
    assert fewest_that_break(0, 0.05) == 1


@pytest.mark.parametrize("animals_above", [1, 19, 20, 949, 950, 951, 123_456])
@pytest.mark.parametrize("loss", [0.01, 0.05, 0.3])
def test_the_fewest_that_break_a_promise_are_the_fewest(animals_above, loss):
    breaking = fewest_that_break(animals_above, loss)
    assert not keeps_loss(breaking, animals_above, loss)
    assert breaking == 1 or keeps_loss(breaking - 1, animals_above, loss)


def test_later_rounds_have_half_of_the_first_until_nothing_is_left():
    assert rounds_of(2484, 3, 91_765) == [2484, 1243, 1243]
    assert rounds_of(60, 3, 100) == [60, 31, 9]
    assert rounds_of(100, 3, 100) == [100]


def test_rounds_share_the_probability_of_an_error():
    assert round_error(0.05, 1, 3) == 0.025
    assert round_error(0.05, 2, 3) == 0.0125
    assert round_error(0.05, 3, 3) == 0.00625
    assert round_error(0.05, 1, 1) == 0.05
    error_of_eight_rounds = 0.0
    for number in range(1, 9):
        error_of_eight_rounds += round_error(0.05, number, 8)
    assert error_of_eight_rounds < 0.05


EXPECTATION = Expectation(units=90_000, animals_above=5000, loss=0.05, error=0.05)


def test_a_round_promises_with_as_many_misses_as_it_was_planned_for():
    first_round = looks_needed(units=90_000, animals_above=5000, loss=0.05, error=0.025, misses=4)
    assert most_misses(EXPECTATION, first_round, 0.025) == 4
    assert most_misses(EXPECTATION, first_round - 1, 0.025) == 3
    assert most_misses(EXPECTATION, 10, 0.025) == -1


def test_the_chance_of_a_promise_falls_with_what_is_lost():
    plan = [3700, 1851, 1851]
    chances = [chance_of_promise(plan, EXPECTATION, loss) for loss in (0.0, 0.02, 0.04, 0.06)]
    assert chances[0] == 1
    assert chances == sorted(chances, reverse=True)
    assert chances[-1] < 0.05
