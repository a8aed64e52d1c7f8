"""The sentences that say what is planned, promised or missing."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from decimal import ROUND_DOWN, Decimal

from detcli.commands.promise.bounds import max_positives
from detcli.commands.promise.deck import FURTHER_BOUND_SHARE, Deck
from detcli.commands.promise.evaluation import Promise, RoundResult, Row
from detcli.commands.promise.images import MAX_IMAGES
from detcli.core import frozen
from detcli.core.errors import CheckError

MAX_SUGGESTED_LOSS = 0.5
"""A larger loss is not suggested to anybody."""

MAX_FOLDERS = 8
"""How many folders are named with their misses."""

SURENESS_DIGITS = 6
"""How many digits of a sureness are printed."""

NUMBER_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight")


def count_text(number: int, noun: str) -> str:
    """Format a count of things, as in `1 image` or `2,484 images`."""
    ending = "s"
    if number == 1:
        ending = ""
    return f"{number:,} {noun}{ending}"


def percent(share: float) -> str:
    """Format a share that was asked for, as in 5% or 2.5%."""
    return f"{100 * share:.6g}%"


def loss_text(lost: int, animals: int) -> str:
    """Format the share of animals that may be lost, rounded up, so that it is never too good.

    Args:
        lost: How many may be lost.
        animals: How many there are; 0 if nobody knows of any.
    """
    if not animals:
        return "100.0%"
    tenths_of_percent = -(-1000 * lost // animals)
    return f"{tenths_of_percent / 10:.1f}%"


def sureness_text(sure: float) -> str:
    """Format how sure a promise is, in up to six digits, rounded down so as never to be too good.

    Args:
        sure: The probability, such as 0.95.
    """
    percentage = 100 * Decimal(repr(sure))
    digits_after_point = SURENESS_DIGITS - 1 - percentage.adjusted()
    step = Decimal(1).scaleb(-digits_after_point)
    rounded = percentage.quantize(step, rounding=ROUND_DOWN).normalize()
    return f"{rounded:f}%"


def duration_text(seconds: int) -> str:
    """Format roughly how long something takes, as in `41 minutes` or `3.2 hours`."""
    if seconds < 90:
        return f"{seconds} s"
    minutes = seconds / 60
    if minutes < 90:
        return f"{minutes:.0f} minutes"
    return f"{minutes / 60:.1f} hours"


@frozen
class Reliability:
    """How reliable the reviewers were."""

    repeat_count: int  # answers that were given twice
    changed_count: int  # of these, answered differently the second time
    known_count: int  # best-scoring units that were looked at, which may show no animal
    known_seen_count: int  # of these, in which a reviewer saw an animal

    @property
    def text(self) -> str:
        """A sentence that says what a promise holds for, and how reliable the reviewers were."""
        about_repeats = "no repeats were answered"
        if self.repeat_count:
            about_repeats = (
                f"{self.changed_count} of {self.repeat_count} repeats were answered differently"
            )
        about_animals = "no best-scoring units were shown"
        if self.known_count:
            about_animals = (
                f"animals were seen in {self.known_seen_count} of {self.known_count} best-scoring "
                "units"
            )
        return (
            "for these records and this model only; as sure as the reviewers: "
            f"{about_repeats}, {about_animals}"
        )


class Wording:
    """The words for the units of one deck."""

    def __init__(self, deck: Deck) -> None:
        """Take the deck whose units are written about."""
        self.deck = deck
        self.noun = deck.kind.noun
        self.wanted = " or ".join(deck.classes) or "object"
        self.total = deck.unit_count + deck.failed_count  # of units and inputs that failed

    @property
    def wanted_units(self) -> str:
        """What is counted, as in `animal images`."""
        return f"{self.wanted} {self.noun}s"

    def contents_text(self) -> str:
        """Describe how many units there are, and how many are below the highest threshold."""
        failed = ""
        if self.deck.failed_count:
            failed = f" ({self.deck.failed_count:,} failed: always to be looked at)"
        return (
            f"{count_text(self.total, self.noun)}{failed}, {self.deck.units_below:,} have no "
            f"{self.wanted} above {self.deck.highest_threshold}"
        )

    def plan_text(
        self, *, look_count: int, below_count: int, above_count: int, second_look_count: int
    ) -> str:
        """Describe how many units, images or groups of images, people look at in each round.

        Args:
            look_count: How many looks the first round has: the sum of the other three numbers.
            below_count: How many of these are at units that score below the highest threshold.
            above_count: How many are at units that score above it.
            second_look_count: How many are second looks at one of these units.
        """
        text = (
            f"first round {count_text(look_count, self.noun)} ({below_count:,} below, "
            f"{above_count:,} above, {second_look_count:,} again), about "
            f"{duration_text(look_count)} at one a second"
        )
        later_rounds = [f"{size:,}" for size in self.deck.round_sizes[1:]]
        if later_rounds:
            text += f"; then at most {' and '.join(later_rounds)}"
        return text

    def chances_text(self, chances: Iterable[tuple[float, float]]) -> str:
        """Describe how likely the planned rounds are to suffice for a promise.

        For example "chance that three rounds suffice: 99% if 2% are lost, 71% if 4% are lost".

        Args:
            chances: Pairs such as `(0.02, 0.99)`: a share of the animals that may be lost, and how
                likely the rounds are to suffice if this share is lost.
        """
        cases = []
        for loss, chance in chances:
            cases.append(f"{chance:.0%} if {percent(loss)} are lost")
        round_count = len(self.deck.round_sizes)
        rounds = f"{NUMBER_WORDS[round_count]} rounds suffice"
        if round_count == 1:
            rounds = "one round suffices"
        return f"chance that {rounds}: {', '.join(cases)}"

    def shortened_lines(self) -> list[str]:
        """Report how many units have too many images to show them all; no line if none has."""
        if not self.deck.shortened_units:
            return []
        line = (
            f"of {count_text(len(self.deck.shortened_units), self.noun)}, only {MAX_IMAGES} images "
            "are shown: the best ones and some in between; an animal in the others is not noticed, "
            "and the promise is about what is shown"
        )
        return [line]

    def promise_text(self, promise: Promise) -> str:
        """Describe what is promised: how many animals are lost at most, and how sure that is.

        For example "--conf 0.2: at most 4.9% of animal images are lost (49 of 1,000), 95% sure;
        8,000 of 10,000 images need no eyes".

        Args:
            promise: A threshold, and how many animals may be lost if everything below is put aside.
        """
        row = promise.row
        all_animals = row.max_lost + row.animals_seen
        about_loss = (
            f"{loss_text(row.max_lost, all_animals)} of {self.wanted_units} are lost "
            f"({row.max_lost:,} of {all_animals:,})"
        )
        if self._is_certain(promise):
            about_sureness = "100% sure, as everything below was looked at"
        else:
            about_loss = f"at most {about_loss}"
            about_sureness = f"{sureness_text(self.deck.sureness)} sure"
        put_aside = f"{row.units_below:,} of {count_text(self.total, self.noun)} need no eyes"
        return f"--conf {row.threshold}: {about_loss}, {about_sureness}; {put_aside}"

    def _is_certain(self, promise: Promise) -> bool:
        """Return whether a promise estimates nothing, so that only a reviewer may be wrong."""
        above = promise.result.above
        are_all_looked_at = promise.row.is_exact and above.looked_at == above.units
        # No group of images was too large for the page.
        are_all_shown = not self.deck.shortened_units
        is_corrected = promise.result.seen_share is not None  # by an estimate of what is overlooked
        return are_all_looked_at and are_all_shown and not is_corrected

    def withdrawn_lines(self, results: Sequence[RoundResult]) -> list[str]:
        """List which promises of earlier rounds the answers of later rounds have refuted.

        Args:
            results: The results of all complete rounds. The bound on lost animals is the one from
                the end of a round, while the count of lost animals includes later rounds.

        Returns:
            A line for each round whose promise no longer holds.
        """
        largest_loss = self.deck.losses[-1]  # they are in ascending order
        lines = []
        for result in results:
            promised_row = result.row_promised_at_first(largest_loss)
            if promised_row is None:
                continue
            is_refuted = not promised_row.keeps(largest_loss)  # with the answers of later rounds
            if is_refuted:
                lines.append(
                    f"round {result.round} promised --conf {promised_row.threshold}, which is "
                    f"withdrawn: at most {promised_row.max_lost:,} {self.wanted_units} could be "
                    f"below it, and {promised_row.all_misses:,} are by later answers"
                )
        return lines

    def no_promise_error(self, result: RoundResult) -> CheckError:
        """Make the error that says why nothing is promised, and what to do next.

        There are three reasons: nobody has seen an animal, there are so few animals that even one
        is a larger share than may be lost, or too many may be lost.

        Args:
            result: The result of the last complete round. At its lowest threshold the fewest
                animals are lost, and even these are too many.
        """
        seen_count = _count_seen(result)
        if not seen_count:
            return CheckError(
                self._no_animals_text(result), "a share of no animals cannot be promised"
            )

        largest_loss = self.deck.losses[-1]  # they are in ascending order
        is_single_loss_too_large = largest_loss * seen_count < 1
        are_all_above_looked_at = result.above.looked_at == result.above.units
        if is_single_loss_too_large and are_all_above_looked_at:
            return self._too_few_animals_error(seen_count, largest_loss)
        return self._too_many_lost_error(result, largest_loss)

    def _too_few_animals_error(self, animal_count: int, largest_loss: float) -> CheckError:
        """Make the error for so few animals that a single lost animal breaks any promise.

        Args:
            animal_count: How many animals there are.
            largest_loss: The largest share of the animals that may be lost.
        """
        share_of_single_animal = f"{100 / animal_count:.3g}%"
        return CheckError(
            f"{count_text(animal_count, self.wanted)} in all: one lost is "
            f"{share_of_single_animal}, more than {percent(largest_loss)}",
            f"look at every {self.noun}, or deal from more records at once",
        )

    def _too_many_lost_error(self, result: RoundResult, largest_loss: float) -> CheckError:
        """Make the error that says how many animals may be lost at the lowest threshold.

        Args:
            result: The result of the last complete round.
            largest_loss: The largest share of the animals that may be lost.
        """
        row = result.lowest_row
        all_animals = row.max_lost + row.animals_seen
        message = (
            f"round {result.round}: no promise: below {row.threshold} up to {row.max_lost:,} "
            f"{self.wanted_units} of {all_animals:,} may be lost "
            f"({loss_text(row.max_lost, all_animals)} > {percent(largest_loss)})"
        )
        if result.round < len(self.deck.round_sizes):
            # Rounds count from 1, so this is the size of the next one.
            next_size = self.deck.round_sizes[result.round]
            return CheckError(message, f"go on with round {result.round + 1} ({next_size:,} more)")
        return CheckError(message, self._hint_at_other_reviews(result))

    def _no_animals_text(self, result: RoundResult) -> str:
        """Describe how many images, or groups of images, may show an animal though none was seen.

        Args:
            result: The result of the last complete round.
        """
        above = result.above
        row_of_last_threshold = result.rows[-1]
        most_animals = row_of_last_threshold.max_lost  # below the highest threshold
        is_only_sample_seen = above.looked_at < above.units
        if is_only_sample_seen:
            # Those above it are bounded from a sample without an animal. The bound may be wrong
            # with a tenth of the probability of a false promise, which is set aside for it.
            most_animals += max_positives(
                hits=0,
                units=above.units,
                drawn=above.looked_at,
                error=FURTHER_BOUND_SHARE * self.deck.error,
            )
        return (
            f"no {self.wanted} was seen: at most {most_animals:,} of "
            f"{count_text(self.total, self.noun)} have one, "
            f"{sureness_text(self.deck.sureness)} sure"
        )

    def _hint_at_other_reviews(self, result: RoundResult) -> str:
        """Suggest which other options of deal might lead to a promise, after the last round.

        Args:
            result: The result of that round. It has a row for each threshold: how many animals may
                be lost if everything below is put aside, and which share of all animals that is.
        """
        hints = []
        lowest_row = result.lowest_row
        if lowest_row.share < MAX_SUGGESTED_LOSS:
            hints.append(self._hint_at_larger_loss(lowest_row))

        best_row = _row_of_smallest_share(result)
        last_threshold = result.rows[-1].threshold
        if best_row.threshold < last_threshold:
            # A review whose thresholds end here might promise this one.
            beginning = "deal anew"
            if hints:
                beginning = "or"
            hints.append(f"{beginning} with --below {best_row.threshold}")

        hints.append("with bursts as units, or with a better model, fewer are lost")
        return "; ".join(hints)

    def _hint_at_larger_loss(self, lowest_row: Row) -> str:
        """Suggest a larger loss, and state what would have been promised with it.

        Args:
            lowest_row: The row of the lowest threshold, which is the first to be promised.
        """
        all_animals = lowest_row.max_lost + lowest_row.animals_seen
        lost_text = loss_text(lowest_row.max_lost, all_animals)
        smallest_loss_text = percent(self.deck.losses[0])
        sufficient_loss_text = f"{math.ceil(100 * lowest_row.share)}%"
        return (
            f"{lost_text} would have been promised below {lowest_row.threshold}, had it been "
            f"asked for: deal anew with --lost {smallest_loss_text},{sufficient_loss_text}"
        )


def _row_of_smallest_share(result: RoundResult) -> Row:
    """Return the row at which the smallest share of animals may be lost."""
    rows_with_units = [row for row in result.rows if row.units_below]
    return min(rows_with_units, key=lambda row: row.share, default=result.lowest_row)


def _count_seen(result: RoundResult) -> int:
    """Count the animals that reviewers have seen by the end of a round, and the doubtful units.

    They are above the highest threshold, below the lowest, or between the two.
    """
    lowest_row = result.lowest_row
    # `animals_seen` is the animals between the thresholds, and a bound on those above.
    between_count = lowest_row.animals_seen - result.above.at_least
    return result.above.animals + between_count + lowest_row.misses


def misses_by_folder(names: Sequence[str]) -> str:
    """Describe in which folders lost animals turned up; empty if there are none.

    Args:
        names: The names of the images, or groups of images, that score below the threshold, and
            show an animal all the same.
    """
    count_by_folder = Counter(name.rpartition("/")[0] or "." for name in names)
    if not count_by_folder:
        return ""
    texts = [f"{folder} {count}" for folder, count in count_by_folder.most_common(MAX_FOLDERS)]
    if len(count_by_folder) > MAX_FOLDERS:
        texts.append(f"{len(count_by_folder) - MAX_FOLDERS} more folders")
    return f"lost among those looked at, by folder and without a bound: {', '.join(texts)}"
