"""How much people look at in each round, whether that is worth it, and the sentences about it."""

from collections.abc import Sequence
from dataclasses import replace

from detcli.commands.promise.deck import FURTHER_BOUND_SHARE, Deck
from detcli.commands.promise.draw import PlannedLook
from detcli.commands.promise.options import DEFAULT_EXPECTED_SHARE, DealOptions
from detcli.commands.promise.plan import Expectation, chance_of_promise, round_error, rounds_of
from detcli.commands.promise.statements import Wording, percent
from detcli.commands.promise.thresholds import highest_threshold
from detcli.commands.promise.unit_kind import Grouping
from detcli.commands.promise.units import Units
from detcli.core.errors import CheckError

MAX_LOSS = 0.99
"""No larger loss is suggested."""

MAX_SHARE_OF_LOOKS = 0.6
"""A first round of more than this share of the units below is not worth it."""

IMAGES_OF_BURST = 3
"""How many images a burst is taken to have, where it is only estimated what bursts would take."""

SUGGESTED_SAMPLE = 400
"""How many units above are enough to know about how many animals are there."""

LARGE_EXPECTED_SHARE = 0.3
"""The share of animals for which the looks are also estimated, where the plan is not worth it."""

LOST_SHARES = (0.4, 0.8)
"""Shares of the promised loss for which it is said how likely the plan suffices."""


def lines_about_plan(
    deck: Deck, expectation: Expectation, first_round: Sequence[PlannedLook]
) -> list[str]:
    """Say what people are to look at, and how likely it suffices for a promise.

    Args:
        deck: The review.
        expectation: How many animals are expected.
        first_round: The looks of the first round: at a random sample of the units, images or groups
            of images, below the highest threshold; at units above it; and again at some of both.
    """
    look_count = len(first_round)
    second_look_count = sum(look.pass_ == 2 for look in first_round)
    below_count = deck.plan[0]
    above_count = look_count - below_count - second_look_count

    smallest_loss = deck.lost[0]
    chances = []
    for share in LOST_SHARES:
        true_loss = share * smallest_loss
        chances.append((true_loss, chance_of_promise(deck.plan, expectation, true_loss)))

    wording = Wording(deck)
    plan_text = wording.plan_text(
        looks=look_count, below=below_count, above=above_count, repeats=second_look_count
    )
    return [wording.contents_text(), plan_text, wording.chances_text(chances)]


def line_about_sample(options: DealOptions, deck: Deck, expectation: Expectation) -> str:
    """Say how many looks the first round takes if --above asks for a sample of what is above.

    Args:
        options: What was asked for.
        deck: The review, in which all units, images or groups of images, above the threshold are
            looked at.
        expectation: How many animals are expected in it.
    """
    # The animals above are then bounded from the sample. This bound takes its share of the
    # probability of a false promise, and leaves the rest to the rounds.
    error_of_rounds = expectation.error * (1 - FURTHER_BOUND_SHARE)
    first_round = _expect_in_first_round(options, expectation, error_of_rounds)
    looks_below = first_round.looks(options.misses)
    if looks_below is None:  # no sample from below suffices
        looks_below = deck.units_below
    looks_below = max(looks_below, 1)  # a round has a look even if the promise needs none
    look_count = looks_below + SUGGESTED_SAMPLE
    return (
        f"--above {SUGGESTED_SAMPLE} would take about {look_count:,} looks in the "
        "first round, and promise a little less"
    )


def expectation_of(options: DealOptions, deck: Deck) -> Expectation:
    """Return what is expected of a review: animals above, and the probability that is left."""
    error = deck.error / len(deck.lost)
    if deck.is_above_sampled(deck.units - deck.units_below):
        error *= 1 - FURTHER_BOUND_SHARE
    return Expectation(
        units=deck.units_below,
        animals_above=round(options.expect * deck.units),
        loss=deck.lost[0],
        error=error,
    )


def _expect_in_first_round(
    options: DealOptions, expectation: Expectation, error_of_rounds: float
) -> Expectation:
    """Return what is expected of the first round, which has its share of the probability of error.

    Args:
        options: What was asked for, such as how many rounds.
        expectation: What is expected of all rounds.
        error_of_rounds: The probability with which the promise of any round may be false.
    """
    error = round_error(error_of_rounds, 1, options.rounds)
    return replace(expectation, error=error)


def choose_round_sizes(
    options: DealOptions, deck: Deck, units: Units, expectation: Expectation
) -> list[int]:
    """Decide how many units from below the highest threshold each round looks at.

    Args:
        options: What was asked for.
        deck: The review, still without its rounds.
        units: All units, images or groups of images, with their scores.
        expectation: How many animals are expected, and the loss that is to be promised.

    Raises:
        CheckError: The first round takes nearly all, which is not worth it, and --force was not
            given.
    """
    first_round = _expect_in_first_round(options, expectation, expectation.error)
    first_size = first_round.looks(options.misses)  # None if no size suffices
    max_size = MAX_SHARE_OF_LOOKS * expectation.units
    is_worth_it = first_size is not None and first_size <= max_size
    if not is_worth_it and not options.force:
        hint_about_expect = _hint_about_expect(options, deck, units)
        raise _not_worth_it(options, first_round, Wording(deck), hint_about_expect)

    if first_size is None:
        first_size = expectation.units
    return rounds_of(max(first_size, 1), options.rounds, expectation.units)


def _not_worth_it(
    options: DealOptions, expectation: Expectation, wording: Wording, hint_about_expect: str
) -> CheckError:
    """Make the error that says how much there would be to look at, and what would take less.

    Args:
        options: What was asked for.
        expectation: How many animals are expected, and the loss that the first round is to promise.
        wording: What messages call the units, images or groups of images.
        hint_about_expect: What else would take less, before the other hints; may be empty.
    """
    looks = _looks_text(expectation, options.misses)
    message = (
        f"not worth it: a loss of {percent(expectation.loss)} takes {looks} of the "
        f"{expectation.units:,} {wording.noun}s below {wording.deck.below}"
    )

    larger_loss = min(2 * expectation.loss, MAX_LOSS)
    with_larger_loss = replace(expectation, loss=larger_loss)
    fewer_looks = _looks_text(with_larger_loss, options.misses)
    hints = [f"--lost {percent(larger_loss)} takes {fewer_looks}"]

    if options.unit.grouping is Grouping.IMAGE:
        # If bursts were looked at, there would be fewer units, and fewer of them with an animal.
        with_bursts = replace(
            expectation,
            units=expectation.units // IMAGES_OF_BURST,
            animals_above=expectation.animals_above // IMAGES_OF_BURST,
        )
        looks_at_bursts = _looks_text(with_bursts, options.misses)
        hints.append(
            f"bursts of {IMAGES_OF_BURST} images (--unit burst:60s) take {looks_at_bursts} of "
            f"{with_bursts.units:,}"
        )
    hints.append(f"or look at every {wording.noun}; --force deals anyway")
    return CheckError(message, f"{hint_about_expect}{'; '.join(hints)}")


def _hint_about_expect(options: DealOptions, deck: Deck, units: Units) -> str:
    """Suggest expecting more animals with --expect, as a promise then takes fewer looks.

    Args:
        options: What was asked for. `expect` is the share of units that may show an animal.
        deck: The review as it was asked for.
        units: All units, images or groups of images, with their scores.

    Returns:
        How many looks it takes if a large share shows an animal, with "; " at the end; empty if a
        large share is expected already.
    """
    if options.expect >= LARGE_EXPECTED_SHARE:
        return ""
    expected_share = percent(options.expect)
    about_present_share = f"it was dealt for --expect {expected_share}"
    if options.expect == DEFAULT_EXPECTED_SHARE:
        about_present_share = f"--expect is {expected_share} where it is not given"

    first_round = _expect_with_large_share(options, deck, units)
    looks = _looks_text(first_round, options.misses)
    return (
        f"{about_present_share}: if more units show an animal, say so, as --expect "
        f"{percent(LARGE_EXPECTED_SHARE)} takes {looks} of {first_round.units:,} below; "
    )


def _expect_with_large_share(options: DealOptions, deck: Deck, units: Units) -> Expectation:
    """Return what the first round could expect if LARGE_EXPECTED_SHARE of the units had an animal.

    Args:
        options: What was asked for.
        deck: The review as it was asked for.
        units: All units, images or groups of images, with their scores.
    """
    threshold = deck.below
    if options.below is None:  # --below would keep the threshold, whatever is expected
        threshold = highest_threshold(units.scores, LARGE_EXPECTED_SHARE)
    large_options = replace(options, expect=LARGE_EXPECTED_SHARE)
    large_deck = replace(deck, below=threshold, units_below=units.count_below(threshold))
    expectation = expectation_of(large_options, large_deck)
    return _expect_in_first_round(options, expectation, expectation.error)


def _looks_text(expectation: Expectation, misses: int) -> str:
    """Write how many looks the first round takes: a number, or all."""
    looks = expectation.looks(misses)
    if looks is None:
        return "looks at all"
    return f"about {looks:,} looks"
