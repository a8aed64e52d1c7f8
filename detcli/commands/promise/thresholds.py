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
    """Choose the highest threshold that a review may promise, if --below does not set it.

    A unit is an image or a group of images. Twice as many units score above the threshold as are
    expected to show an animal, but at least a tenth of all.

    Args:
        scores: `(U,)`, the scores of all units.
        expected_share: The share of the units that is expected to show an animal, such as 0.05.
    """
    share_above = min(max(SHARE_ABOVE, 2 * expected_share), 1.0)
    score = float(np.quantile(scores, 1 - share_above, method="lower"))
    if score > 0:
        return cut_below(scores, score)
    return cut_above_zero(scores)  # so few units have a box that all of them are above


def candidate_thresholds(scores: UnitScores, max_threshold: float) -> list[float]:
    """Choose the thresholds that a review may promise, the lowest first.

    A unit is an image, or a group of images, with one score. Only units without a box are below the
    lowest threshold. The highest threshold is the largest that is allowed. Between them, QUANTILES
    thresholds at most divide the units into parts of about the same size.

    No threshold equals the score of a unit: each is a short number between two scores. So it does
    not matter whether a score has to be above or at a threshold.

    Args:
        scores: `(U,)`, the scores of all units, 0 for a unit without a box.
        max_threshold: No threshold is above this.
    """
    last_threshold = max_threshold
    if bool((scores == max_threshold).any()):
        last_threshold = cut_below(scores, max_threshold)
    thresholds = {last_threshold}

    lowest_threshold = cut_above_zero(scores)
    if lowest_threshold <= max_threshold:
        thresholds.add(lowest_threshold)

    scores_between = scores[(scores > 0) & (scores < max_threshold)]
    if len(scores_between):
        shares = np.linspace(0, 1, QUANTILES)
        # This method returns scores that units have, and none in between.
        for score in np.quantile(scores_between, shares, method="inverted_cdf"):
            thresholds.add(cut_below(scores, float(score)))
    return sorted(thresholds)


def cut_above_zero(scores: UnitScores) -> float:
    """Return a threshold between the score 0, of units without a box, and all other scores."""
    positive_scores = scores[scores > 0]
    if not len(positive_scores):
        return 1.0
    return cut_below(scores, float(positive_scores.min()))


def cut_below(scores: UnitScores, score: float) -> float:
    """Return a short number between a score and the next lower one that a unit has.

    As a threshold, it divides the units below the score from those that have it or a higher one. It
    is the score itself if no number lies between the two.

    Args:
        scores: `(U,)`, the scores of all units.
        score: The score.
    """
    lower_scores = scores[scores < score]
    next_lower = 0.0
    if len(lower_scores):
        next_lower = float(lower_scores.max())
    return shortest_between(next_lower, score)


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
