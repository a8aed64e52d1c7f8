"""Which units are looked at, in which round, and in which order."""

from collections.abc import Sequence
from math import inf
from typing import Self

from detcli.commands.promise.deck import ALL, Deck
from detcli.commands.promise.units import Integers, Units, draw_key
from detcli.core import frozen


class RandomSample:
    """The units that a review draws at random, from below and from above a threshold.

    A unit is an image, or a group of images that are looked at together, and has one score.

    Attributes:
        sample_below: `(B,)`, the indices of the units that are drawn from below, for all rounds.
        sample_above: `(A,)`, the indices of the units that are drawn from above.
        count_above: How many units there are above, drawn or not.
    """

    def __init__(
        self, units: Units, *, threshold: float, round_sizes: Sequence[int], above_limit: int | str
    ) -> None:
        """Draw units with scores below a threshold, enough for all rounds, and units above it.

        A unit is an image, or a group of images that are looked at together. All units have a
        random order, which depends on the seed of the review; the first ones in it are drawn.

        Args:
            units: All units, with their scores and their random order.
            threshold: The highest threshold that may be promised. A unit with exactly this score
                counts as above it.
            round_sizes: How many units from below each round looks at.
            above_limit: How many units from above are looked at, or "all".
        """
        self._units = units
        self._round_sizes = list(round_sizes)

        units_below = units.in_order(from_score=-inf, below_score=threshold)
        self.sample_below: Integers = units_below[: sum(round_sizes)]

        units_above = units.in_order(from_score=threshold, below_score=inf)
        self.count_above = len(units_above)
        self.sample_above: Integers = units_above
        if above_limit != ALL:
            self.sample_above = units_above[: int(above_limit)]

    @classmethod
    def of(cls, deck: Deck, units: Units) -> Self:
        """Draw the units that a review asked for."""
        return cls(
            units,
            threshold=deck.highest_threshold,
            round_sizes=deck.round_sizes,
            above_limit=deck.sample_above,
        )

    def sample_below_by(self, round_number: int) -> Integers:
        """Return the units from below that are looked at by the end of a round, from 1."""
        return self.sample_below[: sum(self._round_sizes[:round_number])]

    def names_of_round(self, round_number: int, best_names: Sequence[str]) -> list[str]:
        """Return the names of all units, images or groups of images, that a round looks at.

        Each round looks at new units of the random sample from below the threshold. The first
        round looks at the sample from above and at the best-scoring units as well.

        Args:
            round_number: The number of the round, from 1.
            best_names: The names of the best-scoring units, some of which may be in the sample.

        Returns:
            Each name once.
        """
        begin = sum(self._round_sizes[: round_number - 1])
        end = begin + self._round_sizes[round_number - 1]
        names = self._units.names(self.sample_below[begin:end])
        if round_number == 1:
            names += self._units.names(self.sample_above)
            names += best_names
        return list(dict.fromkeys(names))

    def best_above(self, count: int) -> Integers:
        """Return the units with the best scores, the best first; none of them is from below.

        Args:
            count: How many to return, if there are that many.
        """
        # In the random order, so that it decides between units of the same score.
        order = self._units.order
        scores = self._units.scores[order]
        best_first = order[(-scores).argsort(kind="stable")]
        return best_first[: min(count, self.count_above)]


@frozen
class PlannedLook:
    """A look at a unit."""

    name: str  # of the unit
    round: int
    pass_: int  # 1, or 2 for the second look at a repeated unit


def looks_of_round(
    names: Sequence[str], round_number: int, seed: int, repeat_share: float
) -> list[PlannedLook]:
    """Put the units of a round in the order in which a person looks at them, some of them twice.

    The order is random, so it tells nothing about scores. A unit that is looked at twice comes once
    in the first half of the units, and once among those of the second half.

    Args:
        names: The names of the units, images or groups of images.
        round_number: The number of the round, from 1.
        seed: Decides the order.
        repeat_share: The share of the units that are looked at twice, at most a half.
    """
    looks = [PlannedLook(name, round_number, 1) for name in names]
    looks.sort(key=lambda look: draw_key(seed, f"{look.name}\0look"))
    half_count = len(looks) // 2
    first_half = looks[:half_count]
    second_half = looks[half_count:]

    repeat_count = min(round(repeat_share * len(looks)), half_count)
    for look in first_half[:repeat_count]:
        second_half.append(PlannedLook(look.name, round_number, 2))
    second_half.sort(key=lambda look: draw_key(seed, f"{look.name}\0again"))
    return first_half + second_half
