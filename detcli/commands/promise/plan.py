"""How many units a review looks at in each round, and how likely that suffices."""

from collections.abc import Sequence

import numpy as np

from detcli.commands.promise.bounds import chance_of_at_most, max_positives
from detcli.core import frozen

SIMULATED_REVIEWS = 4000
"""How many reviews are simulated for the chance that a plan suffices: it is exact to about 1%."""


def keeps_loss(lost: int, animals_above: int, loss: float) -> bool:
    """Return whether this many lost animals are at most the promised share of all animals.

    Args:
        lost: How many animals are lost.
        animals_above: How many are not lost, as they are at the threshold or above it.
        loss: The share that was promised, such as 0.05.
    """
    return lost + animals_above > 0 and lost <= loss * (lost + animals_above)


def round_error(error: float, round_number: int, round_count: int) -> float:
    """Return the probability of a false promise that a round may have: a half, a quarter and so on.

    Args:
        error: The probability that all rounds may have together.
        round_number: The number of the round, from 1.
        round_count: How many rounds there are; a single one has all of the probability.
    """
    if round_count == 1:
        return error
    return error * 0.5**round_number


def fewest_that_break(animals_above: int, loss: float) -> int:
    """Return the smallest number of lost animals that breaks a promise.

    Args:
        animals_above: How many animals are not lost.
        loss: The share of all animals that may be lost, such as 0.05.
    """
    lost = int(loss * animals_above / (1 - loss))
    while keeps_loss(lost + 1, animals_above, loss):
        lost += 1
    while lost and not keeps_loss(lost, animals_above, loss):
        lost -= 1
    return lost + 1


def looks_needed(
    *, units: int, animals_above: int, loss: float, error: float, misses: int
) -> int | None:
    """Return how large a random sample has to be for a promise in which some animals turn up.

    A unit is an image, or a group of images; a unit with an animal counts as one animal.

    Args:
        units: How many units are below the threshold.
        animals_above: How many animals are expected to be above it.
        loss: The share of animals that may be lost.
        error: The probability of a false promise.
        misses: How many animals below the threshold may turn up in the sample.

    Returns:
        The number of units; None if that many misses break the promise however many are looked at.
    """
    too_many_lost = fewest_that_break(animals_above, loss)
    if too_many_lost > units:
        return 0  # Even if all units show an animal, the promise holds.
    if misses >= too_many_lost:
        return None

    # If too many animals were lost, a sample with few misses would be unlikely; the larger it is,
    # the less likely. The smallest sufficient size is found by bisection.
    smallest = 1
    largest = units
    while smallest < largest:
        drawn = (smallest + largest) // 2
        chance = chance_of_at_most(misses, units=units, positives=too_many_lost, drawn=drawn)
        is_sufficient = chance <= error
        if is_sufficient:
            largest = drawn
        else:
            smallest = drawn + 1
    return largest


def rounds_of(first_round: int, round_count: int, units: int) -> list[int]:
    """Return how many units each round looks at: after the first, about half as many each.

    Where the units do not suffice, the last round is smaller, and later ones are left out:
    `rounds_of(60, 3, 100)` is `[60, 31, 9]`, and `rounds_of(100, 3, 100)` is `[100]`.

    Args:
        first_round: How many units the first round looks at.
        round_count: How many rounds there are at most.
        units: How many units there are to look at in all.
    """
    round_sizes = []
    remaining = units
    next_size = first_round
    for _ in range(round_count):
        if not remaining:
            break
        size = min(next_size, remaining)
        round_sizes.append(size)
        remaining -= size
        next_size = first_round // 2 + 1
    return round_sizes


@frozen
class Expectation:
    """What is expected of a review, for its plan; nothing that is promised depends on it."""

    units: int  # below the highest threshold
    animals_above: int  # animals above it
    loss: float  # the share that may be lost
    error: float  # the probability of a false promise

    def look_count(self, misses: int) -> int | None:
        """Return how many looks a promise takes, see `looks_needed`; None if no number suffices."""
        return looks_needed(
            units=self.units,
            animals_above=self.animals_above,
            loss=self.loss,
            error=self.error,
            misses=misses,
        )


def chance_of_promise(
    round_sizes: Sequence[int], expectation: Expectation, true_loss: float
) -> float:
    """Simulate reviews, and return the share of them that promise the highest threshold.

    In each round of a review, people look at more randomly drawn units below the threshold. The
    threshold is promised if, after any round, few enough lost animals have turned up.

    Args:
        round_sizes: How many units, images or groups of images, each round looks at.
        expectation: How many units are below the threshold and how many animals above it; its
            probability of a false promise is that of all rounds together.
        true_loss: The share of all animals that is below the threshold, and so is lost.
    """
    random = np.random.default_rng(0)  # the same chance whenever it is asked for
    # true_loss is lost / (lost + above), solved for lost.
    lost_count = round(true_loss * expectation.animals_above / (1 - true_loss))
    lost_count = min(lost_count, expectation.units)

    # Each array has an element for each simulated review. A lost animal is a unit below the
    # threshold that shows an animal.
    hidden_animals = np.full(SIMULATED_REVIEWS, lost_count)  # in units that nobody looked at yet
    seen_animals = np.zeros(SIMULATED_REVIEWS, np.int64)
    is_promised = np.zeros(SIMULATED_REVIEWS, np.bool_)
    looked_at = 0  # units, the same number in each review
    for round_number, size in enumerate(round_sizes, start=1):
        undrawn_units = expectation.units - looked_at
        undrawn_without_animal = undrawn_units - hidden_animals
        seen_in_round = random.hypergeometric(hidden_animals, undrawn_without_animal, size)
        seen_animals += seen_in_round
        hidden_animals -= seen_in_round
        looked_at += size

        error = round_error(expectation.error, round_number, len(round_sizes))
        is_promised |= seen_animals <= most_misses(expectation, looked_at, error)
    return float(is_promised.mean())


def most_misses(expectation: Expectation, looked_at: int, error: float) -> int:
    """Return the largest number of lost animals with which a round still promises the threshold.

    Args:
        expectation: How many units are below the threshold, how many animals above it, and the
            share of animals that may be lost.
        looked_at: How many of the units below were looked at by the end of the round.
        error: The probability of a false promise that the round may have.

    Returns:
        The number of lost animals that may turn up among the units that were looked at; -1 if the
        threshold is not promised even if none turns up.
    """
    largest_sufficient = -1
    for misses in range(looked_at + 1):
        max_lost = max_positives(misses, units=expectation.units, drawn=looked_at, error=error)
        if not keeps_loss(max_lost, expectation.animals_above, expectation.loss):
            break
        largest_sufficient = misses
    return largest_sufficient
