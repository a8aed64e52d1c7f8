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
"""How many units above are enough to know roughly how many animals are among them."""

LARGE_EXPECTED_SHARE = 0.3
"""The share of animals for which the looks are also estimated, where the plan is not worth it."""

LOST_SHARES = (0.4, 0.8)
"""Shares of the promised loss for which the report says how likely the plan is to suffice."""


def lines_about_plan(
    deck: Deck, expectation: Expectation, first_round: Sequence[PlannedLook]
) -> list[str]:
    """Describe what the records contain, what people will look at, and how likely a promise is.

    A look shows a unit, an image or a group of images, to a reviewer.

    Args:
        deck: The review.
        expectation: How many units are below the highest threshold, and how many animals are
            expected above it.
        first_round: The looks of the first round: at a random sample of the units below the highest
            threshold, at units above it, and a second time at some of both.
    """
    look_count = len(first_round)
    second_look_count = sum(look.pass_ == 2 for look in first_round)
    below_count = deck.round_sizes[0]  # how many units the first round looks at below the threshold
    above_count = look_count - below_count - second_look_count

    smallest_loss = deck.losses[0]  # they are in ascending order
    chances = []
    for share in LOST_SHARES:
        true_loss = share * smallest_loss
        chance = chance_of_promise(deck.round_sizes, expectation, true_loss)
        chances.append((true_loss, chance))

    wording = Wording(deck)
    plan_text = wording.plan_text(
        look_count=look_count,
        below_count=below_count,
        above_count=above_count,
        second_look_count=second_look_count,
    )
    return [wording.contents_text(), plan_text, wording.chances_text(chances)]


def line_about_sample(options: DealOptions, deck: Deck, expectation: Expectation) -> str:
    """Describe how long the first round would be with only a sample from above the threshold.

    A unit is an image, or a group of images.

    Args:
        options: The options of the command.
        deck: The review, in which people look at all units above the threshold.
        expectation: How many animals are expected in this review.
    """
    # From a sample, the number of animals above the threshold is only bounded. This bound takes a
    # tenth of the probability of a false promise, and leaves the rest to the rounds.
    error_of_rounds = expectation.error * (1 - FURTHER_BOUND_SHARE)
    first_round = _expectation_of_first_round(options, expectation, error_of_rounds)
    below_count = first_round.look_count(options.misses)
    if below_count is None:  # no sample from below suffices
        below_count = deck.units_below
    below_count = max(below_count, 1)  # a round has a look even if the promise needs none
    look_count = below_count + SUGGESTED_SAMPLE
    return (
        f"--above {SUGGESTED_SAMPLE} would take about {look_count:,} looks in the "
        "first round, and promise a little less"
    )


def expectation_of(options: DealOptions, deck: Deck) -> Expectation:
    """Return what is expected of a review: its animals, and the error that its rounds may have."""
    error = deck.error / len(deck.losses)
    if deck.is_above_sampled(deck.unit_count - deck.units_below):
        error *= 1 - FURTHER_BOUND_SHARE
    return Expectation(
        units=deck.units_below,
        animals_above=round(options.expect * deck.unit_count),
        loss=deck.losses[0],
        error=error,
    )


def _expectation_of_first_round(
    options: DealOptions, expectation: Expectation, error_of_rounds: float
) -> Expectation:
    """Return the expectation of a review with the first round's part of the error in it.

    Args:
        options: The options of the command, with the number of rounds.
        expectation: What is expected of the review.
        error_of_rounds: The probability of a false promise that all rounds have together. The first
            round has half of it, or all if it is the only one.
    """
    error_of_first_round = round_error(error_of_rounds, round_number=1, round_count=options.rounds)
    return replace(expectation, error=error_of_first_round)


def choose_round_sizes(
    options: DealOptions, deck: Deck, units: Units, expectation: Expectation
) -> list[int]:
    """Decide how many units from below the highest threshold each round looks at.

    Args:
        options: The options of the command.
        deck: The review, still without its rounds.
        units: All units, images or groups of images, with their scores.
        expectation: How many animals are expected, and the loss that is to be promised.

    Raises:
        CheckError: The first round takes too many looks to be worth it, and --force is not set.
    """
    first_round = _expectation_of_first_round(options, expectation, expectation.error)
    first_size = first_round.look_count(options.misses)
    max_size = MAX_SHARE_OF_LOOKS * expectation.units
    if first_size is None:  # no size suffices
        is_worth_it = False
        first_size = expectation.units
    else:
        is_worth_it = first_size <= max_size

    if not is_worth_it and not options.force:
        hint_about_expect = _hint_about_expect(options, deck, units)
        raise _not_worth_it_error(options, first_round, Wording(deck), hint_about_expect)
    return rounds_of(max(first_size, 1), options.rounds, expectation.units)


def _not_worth_it_error(
    options: DealOptions, expectation: Expectation, wording: Wording, hint_about_expect: str
) -> CheckError:
    """Make the error that says how much there would be to look at, and what would take less.

    Args:
        options: The options of the command.
        expectation: How many animals are expected, and the loss that the first round is to promise.
        wording: The names of the units in messages, images or groups of images.
        hint_about_expect: A hint that comes before the others, with its separator at the end; empty
            if there is none.
    """
    looks_text = _looks_text(expectation, options.misses)
    message = (
        f"not worth it: a loss of {percent(expectation.loss)} takes {looks_text} of the "
        f"{expectation.units:,} {wording.noun}s below "
        f"{wording.deck.highest_threshold}"
    )

    larger_loss = min(2 * expectation.loss, MAX_LOSS)
    with_larger_loss = replace(expectation, loss=larger_loss)
    text_with_larger_loss = _looks_text(with_larger_loss, options.misses)
    hints = [f"--lost {percent(larger_loss)} takes {text_with_larger_loss}"]

    if options.unit.grouping is Grouping.IMAGE:
        # If bursts were looked at, there would be fewer units, and fewer of them with an animal.
        with_bursts = replace(
            expectation,
            units=expectation.units // IMAGES_OF_BURST,
            animals_above=expectation.animals_above // IMAGES_OF_BURST,
        )
        text_with_bursts = _looks_text(with_bursts, options.misses)
        hints.append(
            f"bursts of {IMAGES_OF_BURST} images (--unit burst:60s) take {text_with_bursts} of "
            f"{with_bursts.units:,}"
        )
    hints.append(f"or look at every {wording.noun}; --force deals anyway")
    return CheckError(message, f"{hint_about_expect}{'; '.join(hints)}")


def _hint_about_expect(options: DealOptions, deck: Deck, units: Units) -> str:
    """Suggest a larger --expect: the more units show an animal, the fewer looks a promise takes.

    The hint says how many looks the first round takes with --expect 30%.

    Args:
        options: The options of the command. `expect` is the share of units that the user expects to
            show an animal.
        deck: The review, still without its rounds.
        units: All units, images or groups of images, with their scores.

    Returns:
        The hint, with "; " at the end; empty if the user expects 30% or more already.
    """
    if options.expect >= LARGE_EXPECTED_SHARE:
        return ""
    current_share = percent(options.expect)
    about_current_share = f"it was dealt for --expect {current_share}"
    if options.expect == DEFAULT_EXPECTED_SHARE:
        about_current_share = f"--expect is {current_share} where it is not given"

    first_round = _expectation_with_large_share(options, deck, units)
    looks_text = _looks_text(first_round, options.misses)
    return (
        f"{about_current_share}: if more units show an animal, say so, as --expect "
        f"{percent(LARGE_EXPECTED_SHARE)} takes {looks_text} of {first_round.units:,} below; "
    )


def _expectation_with_large_share(options: DealOptions, deck: Deck, units: Units) -> Expectation:
    """Return the expectation of the first round if the user had asked for --expect 30%.

    The highest threshold would then be different, unless --below sets it.

    Args:
        options: The options of the command.
        deck: The review, still without its rounds.
        units: All units, images or groups of images, with their scores.
    """
    threshold = deck.highest_threshold
    if options.below is None:
        threshold = highest_threshold(units.scores, LARGE_EXPECTED_SHARE)
    changed_options = replace(options, expect=LARGE_EXPECTED_SHARE)
    changed_deck = replace(
        deck, highest_threshold=threshold, units_below=units.count_below(threshold)
    )
    expectation = expectation_of(changed_options, changed_deck)
    return _expectation_of_first_round(options, expectation, error_of_rounds=expectation.error)


def _looks_text(expectation: Expectation, misses: int) -> str:
    """Format how many looks the first round takes: a number, or all.

    Args:
        expectation: What is expected of the first round.
        misses: How many lost animals may turn up in it without breaking the promise.
    """
    look_count = expectation.look_count(misses)
    if look_count is None:
        return "looks at all"
    return f"about {look_count:,} looks"
