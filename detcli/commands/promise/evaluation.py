"""What the answers of a round allow to promise."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from detcli.commands.promise.bounds import max_positives, max_trials, min_positives
from detcli.commands.promise.deck import FURTHER_BOUND_SHARE, Deck
from detcli.commands.promise.draw import RandomSample
from detcli.commands.promise.labels import Answer
from detcli.commands.promise.plan import keeps_loss
from detcli.commands.promise.units import Units, UnitScores
from detcli.core import Fields, frozen

AnswersByUnit = Mapping[str, Answer]
"""The answer to each unit that has one, by the name of the unit."""


@frozen
class Row:
    """How many animals may be lost at one threshold."""

    threshold: float
    units_below: int
    dealt: int  # of the units below
    misses: int  # of those that were dealt, how many show an animal or are doubtful
    max_lost: int  # at most this many of the units below show an animal
    animals_seen: int  # at least this many of the others do
    share: float  # at most this share of all animals is lost
    all_misses: int  # as `misses`, by the answers of all rounds, including later ones
    all_animals_seen: int  # as `animals_seen`, by the answers of all rounds

    @property
    def is_exact(self) -> bool:
        """Whether everything below was looked at, so that nothing is estimated."""
        return self.dealt == self.units_below

    def bound_keeps(self, loss: float) -> bool:
        """Return whether the bound on lost animals is within a loss, such as 5% of all animals."""
        return keeps_loss(self.max_lost, self.animals_seen, loss)

    def keeps(self, loss: float) -> bool:
        """Return whether both the bound and all that was seen so far keep the loss.

        A later round may show that a bound was too small. Such a row is not promised any more,
        which makes no promise less certain. From a later round, only lost animals are used, as
        somebody could choose to answer where animals are kept.

        Args:
            loss: The share of animals that may be lost.
        """
        return self.bound_keeps(loss) and keeps_loss(self.all_misses, self.animals_seen, loss)

    def to_json(self) -> Fields:
        """Return the row as in promise.json, under the symbols that docs/promise.md explains.

        `M` counts the units below the threshold, `m` those that were looked at, and `k` those in
        which an animal may be lost. `A_up`, `B` and `L_up` are bounds on the animals below, on the
        animals above and on the lost share. `_all` counts the answers of later rounds as well.
        """
        return {
            "t": self.threshold,
            "M": self.units_below,
            "m": self.dealt,
            "k": self.misses,
            "A_up": self.max_lost,
            "B": self.animals_seen,
            "L_up": self.share,
            "k_all": self.all_misses,
            "B_all": self.all_animals_seen,
        }


@frozen
class SeenAbove:
    """The animals that are above the highest threshold."""

    units: int  # above it
    looked_at: int
    animals: int  # seen among these
    at_least: int  # this many are above for sure, or with the probability set aside for that


@frozen
class RoundResult:
    """What a complete round allows to promise."""

    round: int
    error: float  # the probability with which each of its bounds may be wrong
    rows: tuple[Row, ...]  # a row for each threshold, the lowest first
    above: SeenAbove
    seen_share: float | None  # corrects the bounds, see `evaluate`

    def highest_row(self, loss: float) -> Row | None:
        """Return the row with the highest threshold that can be promised; None if there is none.

        Rows are tried from the lowest threshold up. The search ends at the first row at which too
        many animals may be lost, even if a higher one looks better.

        So it does no harm that the threshold is chosen when the answers are known. A promise is
        false if it is made for row X or a higher one, where X is the lowest row at which too many
        animals really are lost. Which row that is does not depend on the answers. The search passes
        it only if its bound is wrong, and the probability of that is at most `error`.

        Args:
            loss: The share of animals that may be lost, such as 0.05.
        """
        return _last_row_with_units_below(takewhile(lambda row: row.keeps(loss), self.rows))

    def row_promised_at_first(self, loss: float) -> Row | None:
        """Return the row that was promised when this round ended; None if none was.

        It is chosen as in `highest_row`, but only by the bounds of this round. The answers of later
        rounds may refute it.

        Args:
            loss: The share of animals that may be lost, such as 0.05.
        """
        return _last_row_with_units_below(takewhile(lambda row: row.bound_keeps(loss), self.rows))

    @property
    def lowest_row(self) -> Row:
        """The row of the lowest threshold that some unit is below."""
        for row in self.rows:
            if row.units_below:
                return row
        return self.rows[-1]


def _last_row_with_units_below(rows: Iterable[Row]) -> Row | None:
    """Return the last row with a unit below its threshold; others promise nothing."""
    last_row = None
    for row in rows:
        if row.units_below:
            last_row = row
    return last_row


@frozen
class Promise:
    """A threshold, and what is promised of the units below it."""

    result: RoundResult
    row: Row
    loss: float  # the share of animals that may be lost, as it was asked for


def evaluate(
    deck: Deck,
    units: Units,
    answers: AnswersByUnit,
    round_number: int,
    seen_share: float | None = None,
) -> RoundResult:
    """Bound how many animals are lost below each threshold, by the answers up to a round.

    Args:
        deck: The review: what was asked for, and its thresholds.
        units: All units, images or groups of images, with their scores.
        answers: The answers to all that was dealt up to this round, and to what was looked at of
            later ones, which can only refute a bound.
        round_number: The number of the round, from 1.
        seen_share: At least this share of the animals is seen by reviewers, by which the bound is
            corrected; None for a bound that takes every answer as true.
    """
    draw = RandomSample.of(deck, units)
    above = _count_seen_above(deck, units, draw, answers)
    error = deck.error_of_round(
        round_number,
        is_above_sampled=deck.is_above_sampled(draw.count_above),
        is_corrected=seen_share is not None,
    )
    # The bounds rest on the D units that were looked at below the highest threshold by the end of
    # this round.
    dealt = draw.sample_below_by(round_number)
    dealt_scores = units.scores[dealt]  # (D,)
    dealt_answers = [answers[name] for name in units.names(dealt)]
    may_be_lost = np.array([answer is not Answer.NOTHING for answer in dealt_answers], np.bool_)
    is_seen = np.array([answer is Answer.ANIMAL for answer in dealt_answers], np.bool_)

    # All answers so far, including those of later rounds.
    all_scores = _scores_by_answer(units, draw, answers)
    rows = []
    for threshold in deck.thresholds:
        is_below = dealt_scores < threshold
        row = bound_row(
            threshold,
            units_below=units.count_below(threshold),
            dealt=int(is_below.sum()),
            misses=int((is_below & may_be_lost).sum()),
            animals_seen=above.at_least + int((~is_below & is_seen).sum()),
            error=error,
            seen_share=seen_share,
        )
        all_lost_count = int((all_scores.animals < threshold).sum())
        all_doubtful_count = int((all_scores.doubtful < threshold).sum())
        all_seen_count = len(all_scores.animals) - all_lost_count
        row = replace(
            row,
            all_misses=all_lost_count + all_doubtful_count,
            all_animals_seen=above.at_least + all_seen_count,
        )
        rows.append(row)
    return RoundResult(round_number, error, tuple(rows), above, seen_share)


def bound_row(
    threshold: float,
    *,
    units_below: int,
    dealt: int,
    misses: int,
    animals_seen: int,
    error: float,
    seen_share: float | None = None,
) -> Row:
    """Bound how many animals are lost if everything below a threshold is put aside.

    A unit is an image, or a group of images; a unit with an animal counts as one animal.

    Args:
        threshold: The threshold.
        units_below: How many units are below it.
        dealt: How many of these were looked at, in a random sample.
        misses: How many of those show an animal, or are doubtful.
        animals_seen: How many animals there are for sure at the threshold or above it.
        error: The probability with which the bound may be wrong.
        seen_share: At least this share of the animals is seen by reviewers; None for all.
    """
    if not dealt:
        max_lost = units_below
    elif seen_share is None:
        max_lost = max_positives(misses, units=units_below, drawn=dealt, error=error)
    else:
        # Some of the lost animals would be seen if all were looked at, and the draw bounds these;
        # how many animals there are is bounded from their number. Each bound has half the error.
        noticeable = max_positives(misses, units=units_below, drawn=dealt, error=error / 2)
        max_lost = max_trials(noticeable, share=seen_share, error=error / 2, most=units_below)
    share = 1.0
    if max_lost + animals_seen:
        share = max_lost / (max_lost + animals_seen)
    return Row(
        threshold=threshold,
        units_below=units_below,
        dealt=dealt,
        misses=misses,
        max_lost=max_lost,
        animals_seen=animals_seen,
        share=share,
        all_misses=misses,
        all_animals_seen=animals_seen,
    )


class ScoresByAnswer(NamedTuple):
    """The scores of units, sorted out by what reviewers answered."""

    animals: UnitScores  # units in which an animal was seen
    doubtful: UnitScores  # units that are unsure, disputed, or whose image is gone


def _scores_by_answer(units: Units, draw: RandomSample, answers: AnswersByUnit) -> ScoresByAnswer:
    """Return the scores of units in which reviewers saw an animal, and of those that are doubtful.

    Only units below the highest threshold are counted.

    Args:
        units: All units, images or groups of images, with their scores.
        draw: The units that were drawn for a look.
        answers: The answers so far, of all rounds, by the name of the unit.
    """
    names = units.names(draw.sample_below)
    is_animal = np.array([answers.get(name) is Answer.ANIMAL for name in names], np.bool_)
    is_doubtful = np.array([answers.get(name) is Answer.DOUBTFUL for name in names], np.bool_)
    scores = units.scores[draw.sample_below]
    return ScoresByAnswer(animals=scores[is_animal], doubtful=scores[is_doubtful])


def _count_seen_above(
    deck: Deck, units: Units, draw: RandomSample, answers: AnswersByUnit
) -> SeenAbove:
    """Count the animals that were seen above the highest threshold, and bound how many there are.

    If all units above the threshold were looked at, these are the same. If only a sample was, there
    may be more animals. Then a lower bound is computed from the sample. It is wrong with a tenth of
    the probability of a false promise, which is set aside for it.

    Args:
        deck: The review, with the probability of a false promise.
        units: All units, images or groups of images, with their scores.
        draw: The units that are looked at.
        answers: What reviewers saw, by the name of a unit.
    """
    animal_count = 0
    for name in units.names(draw.sample_above):
        if answers.get(name) is Answer.ANIMAL:
            animal_count += 1

    looked_at_count = len(draw.sample_above)
    if deck.is_above_sampled(draw.count_above):
        fewest_animals = min_positives(
            animal_count,
            units=draw.count_above,
            drawn=looked_at_count,
            error=FURTHER_BOUND_SHARE * deck.error,
        )
    else:
        fewest_animals = animal_count
    return SeenAbove(
        units=draw.count_above,
        looked_at=looked_at_count,
        animals=animal_count,
        at_least=fewest_animals,
    )


def best_promise(deck: Deck, results: Sequence[RoundResult]) -> Promise | None:
    """Return the best promise that a complete round allows; None if none allows any.

    The smallest loss is best. Among promises of the same loss it is the one with the highest
    threshold, as it leaves the fewest images to look at.

    Args:
        deck: The review, with the losses that were asked for, in ascending order.
        results: The results of all complete rounds.
    """
    for loss in deck.losses:
        promises = []
        for result in results:
            row = result.highest_row(loss)
            if row is not None:
                promises.append(Promise(result, row, loss))
        if promises:
            return max(promises, key=lambda promise: promise.row.threshold)
    return None
