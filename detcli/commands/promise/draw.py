"""Which units are looked at, in which round, and in which order."""

from collections.abc import Sequence
from math import inf

from detcli.commands.promise.deck import ALL
from detcli.commands.promise.units import Integers, Units, draw_key
from detcli.core import frozen


class Draw:
    """The units that are dealt from below and from above the highest threshold.

    Attributes:
        below: The units that are dealt from below, in the order of the draw, for all rounds.
        above: The units that are looked at above, in the order of the draw.
        units_above: How many units there are above.
    """

    def __init__(
        self, units: Units, *, below: float, plan: Sequence[int], above: int | str
    ) -> None:
        """Draw the units that are looked at, from below and from above a threshold.

        The seed has put all units in a random order, and those that come first in it are drawn.

        Args:
            units: All units: images, or groups of images that are looked at together.
            below: The highest threshold that may be promised.
            plan: How many units below it each round looks at.
            above: How many units above it are looked at, or "all".
        """
        self._units = units
        self._plan = list(plan)
        all_below = units.in_order(from_score=-inf, below_score=below)
        self.below: Integers = all_below[: sum(plan)]
        all_above = units.in_order(from_score=below, below_score=inf)
        self.units_above = len(all_above)
        self.above: Integers = all_above
        if above != ALL:
            self.above = all_above[: int(above)]

    def below_by(self, round_number: int) -> Integers:
        """Return the units that were dealt from below by the end of a round, from 1."""
        return self.below[: sum(self._plan[:round_number])]

    def names_of_round(self, round_number: int, known_names: Sequence[str]) -> list[str]:
        """Return the names of all units that are looked at in a round, each once.

        The first round has those from above and the best-scoring ones, too.

        Args:
            round_number: The number of the round, from 1.
            known_names: The names of the best-scoring units.
        """
        first = sum(self._plan[: round_number - 1])
        names = self._units.names(self.below[first : first + self._plan[round_number - 1]])
        if round_number == 1:
            names += self._units.names(self.above)
            names += known_names
        return list(dict.fromkeys(names))

    def best_above(self, count: int) -> Integers:
        """Return the units with the best scores, none of them from below.

        Args:
            count: How many to return, if there are so many.
        """
        order = self._units.order
        best_first = order[(-self._units.scores[order]).argsort(kind="stable")]
        return best_first[: min(count, self.units_above)]


@frozen
class PlannedLook:
    """A look at a unit."""

    name: str  # of the unit
    round: int
    pass_: int  # 1, or 2 for the second look at a repeated unit


def looks_of_round(
    names: Sequence[str], round_number: int, seed: int, repeat_share: float
) -> list[PlannedLook]:
    """Put the units of a round in the order in which they are looked at, some of them twice.

    The order tells nothing about scores. What is repeated comes in the first half of the round, and
    again in the second half.

    Args:
        names: The names of the units.
        round_number: The number of the round, from 1.
        seed: Decides the order.
        repeat_share: The share of the units that are looked at twice, at most a half.
    """
    looks = [PlannedLook(name, round_number, 1) for name in names]
    looks.sort(key=lambda look: draw_key(seed, f"{look.name}\0look"))
    repeat_count = min(round(repeat_share * len(looks)), len(looks) // 2)
    half = len(looks) // 2
    second_half = looks[half:]
    for look in looks[:repeat_count]:
        second_half.append(PlannedLook(look.name, round_number, 2))
    second_half.sort(key=lambda look: draw_key(seed, f"{look.name}\0again"))
    return looks[:half] + second_half
