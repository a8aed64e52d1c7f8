"""Bounds from random samples, held against exact fractions and against scipy."""

from fractions import Fraction
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st
from thinning import thin

from detcli.commands.promise.bounds import (
    chance_of_at_most,
    max_positives,
    max_trials,
    min_positives,
    smallest_share,
)

ERRORS = [Fraction(1, 20), Fraction(1, 40)]


def exact_chance(hits, units, positives, drawn):
    """The chance of at most so many hits, as a fraction."""
    draws = 0
    for count in range(hits + 1):
        draws += comb(positives, count) * comb(units - positives, drawn - count)
    return Fraction(draws, comb(units, drawn))


def exact_bound(hits, units, drawn, error):
    """The largest number of positives that is still possible, tried one after the other."""
    positives = hits
    most_possible = units - (drawn - hits)
    while positives < most_possible and exact_chance(hits, units, positives + 1, drawn) > error:
        positives += 1
    return positives


@pytest.mark.parametrize("units", thin("numbers of units", range(1, 61), count=8))
def test_the_upper_bound_is_that_of_exact_fractions(units):
    """Where the chance is the error exactly, it may be one larger, which is the safe side."""
    for drawn in thin("sizes of samples", range(1, units + 1), count=8):
        for hits in range(min(drawn, 6) + 1):
            for error in ERRORS:
                exact = exact_bound(hits, units, drawn, error)
                bound = max_positives(hits, units=units, drawn=drawn, error=float(error))
                if bound != exact:
                    assert bound == exact + 1
                    assert exact_chance(hits, units, bound, drawn) == error


@given(st.integers(1, 40), st.data())
def test_the_lower_bound_is_the_upper_bound_of_the_others(units, data):
    drawn = data.draw(st.integers(1, units))
    hits = data.draw(st.integers(0, drawn))
    most_others = exact_bound(drawn - hits, units, drawn, Fraction(1, 10))
    bound = min_positives(hits, units=units, drawn=drawn, error=0.1)
    assert hits <= bound <= units - most_others
    assert units - most_others - bound <= 1


def test_a_sample_of_everything_says_it_exactly():
    assert max_positives(7, units=500, drawn=500, error=0.05) == 7
    assert min_positives(7, units=500, drawn=500, error=0.05) == 7


def test_chances_are_those_of_scipy():
    stats = pytest.importorskip("scipy.stats")
    for units, positives, drawn, hits in [
        (100, 5, 50, 2),
        (91_765, 264, 2484, 2),
        (10**8, 50_000, 3_000, 1),
        (10, 9, 9, 8),
    ]:
        chance = chance_of_at_most(hits, units=units, positives=positives, drawn=drawn)
        expected = stats.hypergeom.cdf(hits, units, positives, drawn)
        assert chance == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("hits", "trials"), [(0, 5), (1, 1), (19, 20), (20, 20), (370, 400)])
def test_the_bound_on_a_share_is_that_of_clopper_and_pearson(hits, trials):
    stats = pytest.importorskip("scipy.stats")
    expected = 0.0
    if hits:
        expected = stats.beta.ppf(0.005, hits, trials - hits + 1)
    assert smallest_share(hits, trials=trials, error=0.005) == pytest.approx(expected, abs=1e-8)


def test_the_bound_on_a_share_of_all_hits_is_a_root():
    assert smallest_share(20, trials=20, error=0.005) == pytest.approx(0.005 ** (1 / 20))


@pytest.mark.parametrize(("hits", "share"), [(0, 0.8), (3, 0.8), (40, 0.95), (400, 0.7), (2, 1.0)])
def test_the_bound_on_trials_is_that_of_scipy(hits, share):
    stats = pytest.importorskip("scipy.stats")
    bound = max_trials(hits, share=share, error=0.02, most=10_000)
    assert stats.binom.cdf(hits, bound, share) > 0.02
    assert stats.binom.cdf(hits, bound + 1, share) <= 0.02


def test_trials_without_a_lower_share_may_be_as_many_as_there_are():
    assert max_trials(3, share=0.0, error=0.02, most=70) == 70
    assert max_trials(60, share=0.8, error=0.02, most=70) == 70
