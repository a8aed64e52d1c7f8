"""Exact bounds on how many of a finite number of units show something, from a random sample.

They assume nothing but the random draw. Probabilities are computed from logarithms of factorials,
so that they hold for a hundred units and for a hundred million.
"""

from collections.abc import Callable
from math import exp, lgamma, log, log1p

PROBABILITY_TOLERANCE = 1e-6
"""How exact the probabilities are, relatively; within it, a bound takes the safe side."""

NEGLIGIBLE = 1e-15
"""A chance that is smaller than this share of a sum is left out of it, with all smaller ones."""

SHARE_PRECISION = 1e-9
"""How exactly the bound on a share is searched for."""


def log_choose(total: int, subset: int) -> float:
    """Return the logarithm of the number of subsets with `subset` of `total` units."""
    return lgamma(total + 1) - lgamma(subset + 1) - lgamma(total - subset + 1)


def chance_of_at_most(hits: int, *, units: int, positives: int, drawn: int) -> float:
    """Return the chance that a random sample has at most `hits` positives (hypergeometric).

    Args:
        hits: The maximum number of positives in the sample.
        units: How many units the sample is drawn from.
        positives: How many of these are positive.
        drawn: How many units are drawn, none of them twice.
    """
    negatives = units - positives
    fewest_hits = max(0, drawn - negatives)
    most_hits = min(drawn, positives)
    if hits >= most_hits:
        return 1.0
    log_draws = log_choose(units, drawn)
    chance = 0.0
    for count in range(fewest_hits, hits + 1):
        log_ways = log_choose(positives, count) + log_choose(negatives, drawn - count)
        chance += exp(log_ways - log_draws)
    return min(chance, 1.0)


def max_positives(hits: int, *, units: int, drawn: int, error: float) -> int:
    """Return an upper bound on how many units are positive, from a random sample of them.

    Assume some number of positive units among all. The more there are, the less likely a sample has
    as few of them as this one. The bound is the largest number for which this probability is above
    `error`. For example, if 0 of 100 units from 1,000 are positive, 28 positive units in all would
    leave none of them in the sample with a probability of 5.0%. So for an error of 5%, at most 28
    are positive.

    Args:
        hits: How many units of the sample are positive.
        units: How many units the sample was drawn from.
        drawn: How many units are in the sample; with all of them, the bound is `hits`.
        error: The probability with which the bound may be too small, above 0 and below 1.
    """
    # Chances are not computed exactly, so one that is just below `error` counts as above it.
    smallest_plausible_chance = error * (1 - PROBABILITY_TOLERANCE)

    def is_plausible(positives: int) -> bool:
        chance = chance_of_at_most(hits, units=units, positives=positives, drawn=drawn)
        return chance > smallest_plausible_chance

    negatives_in_sample = drawn - hits
    return _largest_plausible(is_plausible, low=hits, high=units - negatives_in_sample)


def min_positives(hits: int, *, units: int, drawn: int, error: float) -> int:
    """Return a lower bound on how many units are positive; the arguments are those of the upper."""
    most_negatives = max_positives(drawn - hits, units=units, drawn=drawn, error=error)
    return units - most_negatives


def _largest_plausible(is_plausible: Callable[[int], bool], *, low: int, high: int) -> int:
    """Return the largest number that is plausible, by bisection.

    Args:
        is_plausible: Is true up to some number, and false beyond it.
        low: A number for which it is true.
        high: The largest number to try.
    """
    while low < high:
        middle = (low + high + 1) // 2
        if is_plausible(middle):
            low = middle
        else:
            high = middle - 1
    return low


def max_trials(hits: int, *, share: float, error: float, most: int) -> int:
    """Return an upper bound on how many independent trials there were, given how many were hits.

    A number of trials is plausible if it has this few hits with a probability of more than `error`.
    The bound is the largest plausible number, so it is too small with a probability of at most
    `error`.

    Args:
        hits: How many trials were hits.
        share: At least this is the probability that a trial is a hit, from 0 to 1.
        error: The probability with which the bound may be too small.
        most: There were never more trials than this.
    """
    if hits >= share * most:
        return most
    # Chances are not computed exactly, so one that is just below `error` counts as above it.
    smallest_plausible_chance = error * (1 - PROBABILITY_TOLERANCE)

    def is_plausible(trials: int) -> bool:
        chance = _chance_of_so_few(hits, trials=trials, share=share)
        return chance > smallest_plausible_chance

    return _largest_plausible(is_plausible, low=hits, high=most)


def _chance_of_so_few(hits: int, *, trials: int, share: float) -> float:
    """Return the binomial chance of at most this many hits in independent trials.

    Args:
        hits: How many trials are hits at most.
        trials: How many trials there are.
        share: The probability that a trial is a hit, from 0 to 1.
    """
    if hits >= trials:
        return 1.0
    if share >= 1:
        return 0.0
    chance = 0.0
    for count in range(hits, -1, -1):
        # Logarithms, as the numbers of combinations are too large for a float.
        log_chance_of_one_way = count * log(share) + (trials - count) * log1p(-share)
        term = exp(log_choose(trials, count) + log_chance_of_one_way)
        chance += term
        if 0 < term < NEGLIGIBLE * chance:
            break  # those that follow are smaller still
    return min(chance, 1.0)


def smallest_share(hits: int, *, trials: int, error: float) -> float:
    """Return a lower bound on the share of hits, from independent trials (Clopper and Pearson).

    Args:
        hits: How many trials were hits.
        trials: How many trials there were, at least one.
        error: The probability with which the bound may be too large.
    """
    if hits == 0:
        return 0.0
    low = 0.0
    high = 1.0
    while high - low > SHARE_PRECISION:
        middle = (low + high) / 2
        if _chance_of_at_least(hits, trials=trials, share=middle) > error:
            high = middle
        else:
            low = middle
    return low


def _chance_of_at_least(hits: int, *, trials: int, share: float) -> float:
    """Return the chance that at least `hits` of the independent trials are hits (binomial)."""
    chance = 0.0
    for count in range(hits, trials + 1):
        order_count = exp(log_choose(trials, count))
        chance += order_count * share**count * (1 - share) ** (trials - count)
    return chance
