"""The thresholds that a review may promise, chosen from the scores before anything is looked at."""

import numpy as np

from detcli.commands.promise.units import UnitScores

QUANTILES = 20
"""How many thresholds are spread over the scores that are positive and below the highest one."""

SHARE_ABOVE = 0.1
"""The share of the units that is above the highest threshold, unless more animals are expected."""

MAX_DIGITS = 17
"""Digits that write any floating point number exactly."""


def highest_threshold(scores: UnitScores, expected_share: float) -> float:
    """Choose the score that no promised threshold is above, where --below does not say it.

    Twice as many units as are expected to show an animal are above it, and at least a tenth.

    Args:
        scores: `(U,)`, the scores of all units.
        expected_share: The share of the units that is expected to show an animal.
    """
    share_above = min(max(SHARE_ABOVE, 2 * expected_share), 1.0)
    score = float(np.quantile(scores, 1 - share_above, method="lower"))
    if score > 0:
        return cut_below(scores, score)
    return cut_above_zero(scores)


def grid_of(scores: UnitScores, below: float) -> list[float]:
    """Return the thresholds that may be promised, the lowest first.

    The lowest has nothing below it but units without a box. The others are spread evenly over the
    units that have a score, and the last one is the highest that was allowed. None of them equals
    the score of a unit, so it does not matter whether a score has to be above or at a threshold.

    Args:
        scores: `(U,)`, the scores of all units.
        below: No threshold is above this.
    """
    candidates = scores[(scores > 0) & (scores < below)]
    thresholds = {below}
    if bool((scores == below).any()):
        thresholds = {cut_below(scores, below)}
    lowest_threshold = cut_above_zero(scores)
    if lowest_threshold <= below:
        thresholds.add(lowest_threshold)
    if len(candidates):
        shares = np.linspace(0, 1, QUANTILES)
        for score in np.quantile(candidates, shares, method="inverted_cdf"):
            thresholds.add(cut_below(scores, float(score)))
    return sorted(thresholds)


def cut_above_zero(scores: UnitScores) -> float:
    """Return a threshold that only units without a box are below."""
    positive_scores = scores[scores > 0]
    if not len(positive_scores):
        return 1.0
    return cut_below(scores, float(positive_scores.min()))


def cut_below(scores: UnitScores, score: float) -> float:
    """Return a short number, at most a score, that divides the units below it from the others.

    Args:
        scores: `(U,)`, the scores of all units.
        score: The score; units that have it exactly are on the upper side.
    """
    lower_scores = scores[scores < score]
    lower = 0.0
    if len(lower_scores):
        lower = float(lower_scores.max())
    return shortest_between(lower, score)


def shortest_between(lower: float, upper: float) -> float:
    """Return a number with few digits between two others; the upper one if nothing is between.

    Examples:
        >>> shortest_between(0.001889, 0.001893), shortest_between(0.19, 0.3)
        (0.00189, 0.2)
    """
    middle = (lower + upper) / 2
    for digits in range(1, MAX_DIGITS + 1):
        number = float(f"{middle:.{digits}g}")
        if lower < number < upper:
            return number
    return upper
