"""Deals a review: reads the records, plans the rounds, draws the units and copies their images."""

import os
import secrets
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from detcli import __version__
from detcli.commands.promise.deck import (
    ALL,
    FURTHER_BOUND_SHARE,
    VERSION,
    Deck,
    read_deck,
    review_id_of,
    write_deck,
)
from detcli.commands.promise.draw import Draw, PlannedLook, looks_of_round
from detcli.commands.promise.images import (
    Copier,
    UnitCopies,
    records_of_units,
    write_copies,
)
from detcli.commands.promise.inputs import InputColumns, WantedClasses
from detcli.commands.promise.kept_labels import labels_still_valid
from detcli.commands.promise.labels import Answers, add_labels
from detcli.commands.promise.options import DEFAULT_EXPECTED_SHARE, DealOptions
from detcli.commands.promise.plan import Expectation, chance_of_promise, round_error, rounds_of
from detcli.commands.promise.reading import file_hash, read_inputs, require_usable
from detcli.commands.promise.statements import Wording, count_text, percent
from detcli.commands.promise.thresholds import cut_below, grid_of, highest_threshold
from detcli.commands.promise.unit_kind import Grouping
from detcli.commands.promise.units import Integers, Units, make_units
from detcli.config.inputs import InputOptions
from detcli.core import frozen
from detcli.core.errors import CheckError, SourceError, UsageError
from detcli.core.text import is_object, shell_line
from detcli.page.find_images import Finder
from detcli.page.review_page import Look, write_review_page
from detcli.storage.files import make_folder, writing

SEED_BITS = 53
"""As many as a number in JSON holds exactly, as JavaScript reads it."""

MAX_LOSS = 0.99
"""No larger loss is suggested."""

MAX_SHARE_OF_LOOKS = 0.6
"""A first round of more than this share of the units below is not worth it."""

IMAGES_OF_BURST = 3
"""How many images a burst is taken to have, where it is only estimated what bursts would take."""

SHOWN_NAMES = 5
"""How many names of units that are gone are printed."""

SUGGESTED_SAMPLE = 400
"""How many units above are enough to know about how many animals are there."""

LARGE_EXPECTED_SHARE = 0.3
"""The share of animals for which the looks are also estimated, where the plan is not worth it."""

LOST_SHARES = (0.4, 0.8)
"""Shares of the promised loss for which it is said how likely the plan suffices."""


@frozen
class Dealt:
    """A review that was dealt, and what to print about it."""

    deck: Deck
    lines: list[str]


class Dealer:
    """Deals one review into a folder."""

    def __init__(
        self,
        options: DealOptions,
        folder: Path,
        classes: Sequence[str],
        advance: Callable[[str], object],
    ) -> None:
        """Remember what to deal; `deal` then reads the records and writes the review.

        Args:
            options: The options of the command.
            folder: The folder of the review.
            classes: The names or ids of the classes that are looked for; empty for all.
            advance: Is called with the name of each record that is read, and of each unit, an image
                or a group of images, that is copied.
        """
        self._options = options
        self._folder = folder
        self._wanted = WantedClasses(classes)
        self._advance = advance

    def deal(self) -> Dealt:
        """Choose the images that people will look at, and write the folder of their review.

        What was asked for and drawn is collected in a deck, which deck.json in the folder has.

        Raises:
            UsageError: The records cannot be used, or the folder has something in it.
            CheckError: So many images would have to be looked at that it is not worth it.
            SourceError: No image of what was chosen is found.
        """
        options = self._options
        inputs = read_inputs(options.records, self._wanted, options.unit, self._advance)
        require_usable(inputs, self._wanted, options.records, force=options.force)

        seed = options.seed
        if seed is None:
            seed = secrets.randbits(SEED_BITS)
        units = make_units(inputs, options.unit, seed)
        deck = self._begin_deck(units, inputs, seed)
        if not deck.units_below:
            raise UsageError(
                f"no {options.unit.noun} has a score below {deck.below}", _cure_for_nothing(options)
            )

        # Each step uses what the steps before it have put into the deck: the draw needs the sizes
        # of the rounds, and the list of looks needs the draw.
        expectation = _expectation(options, deck)
        deck = replace(deck, plan=_choose_round_sizes(options, deck, units, expectation))
        draw = Draw.of(deck, units)
        best_units = draw.best_above(options.known)
        deck = replace(deck, known=units.names(best_units))
        looks_by_round = _list_looks(deck, draw, options.repeat)
        deck = replace(deck, repeat=_names_shown_twice(looks_by_round))

        written = self._write_review(deck, units, draw, best_units, looks_by_round)
        deck = written.deck
        lines = _lines_about_plan(deck, expectation, looks_by_round[0])
        if deck.above == ALL and draw.count_above > SUGGESTED_SAMPLE:
            lines.append(_line_about_sample(options, deck, expectation))
        lines += written.lines
        lines += _lines_about_spelling(self._wanted)
        page = self._folder / "index.html"
        next_command = shell_line(["detcli", "promise", "check", str(self._folder), "LABELS"])
        lines.append(
            f"wrote {self._folder}: answer in {page}, save the labels there, and then: "
            f"{next_command}"
        )
        return Dealt(deck, lines)

    def _begin_deck(self, units: Units, inputs: InputColumns, seed: int) -> Deck:
        """Describe the review, as deck.json does, still without its plan and what is drawn.

        Args:
            units: What people may look at: images, or groups of images.
            inputs: The images and videos of the records, and the settings that these were made
                with.
            seed: Decides what is drawn.
        """
        options = self._options
        below = highest_threshold(units.scores, options.expect)
        if options.below is not None:
            below = cut_below(units.scores, options.below)
        above: int | str = ALL
        if options.above != ALL:
            above = int(options.above)
        (model,) = inputs.models
        records = options.records
        if not is_object(records):
            records = os.path.abspath(records)  # noqa: PTH100 - links stay
        return Deck(
            v=VERSION,
            detcli=__version__,
            records=records,
            records_sha256=file_hash(options.records),
            scores_sha256=units.scores_sha256,
            model=model,
            model_sha256=inputs.settings.get("model_sha256"),
            settings=inputs.settings,
            units=len(units),
            failed=len(units.failed),
            classes=self._wanted.names,
            unit=str(options.unit),
            below=below,
            units_below=units.count_below(below),
            lost=sorted(set(options.lost)),
            sure=options.sure,
            expect=options.expect,
            plan=[],
            grid=grid_of(units.scores, below),
            seed=seed,
            above=above,
            repeat=[],
            known=[],
            gone=[],
            shortened=[],
        )

    def _write_review(
        self,
        deck: Deck,
        units: Units,
        draw: Draw,
        known_units: Integers,
        looks_by_round: Sequence[Sequence[PlannedLook]],
    ) -> Dealt:
        """Copy the images, and write the page and all files of the review.

        Args:
            deck: The review, still without the units whose images are gone or not all shown.
            units: All units, images or groups of images.
            draw: The units that were drawn for a look.
            known_units: The numbers of the best-scoring units, which are looked at as well.
            looks_by_round: The looks of each round.

        Returns:
            The complete deck, and lines about units that people are not shown, or not asked about.

        Raises:
            UsageError: The folder has something in it.
            SourceError: No image is found.
        """
        folder = make_folder(self._folder)
        if self._folder.is_symlink():
            self._folder = folder
        with writing(folder):
            is_empty = not any(folder.iterdir())
        if not is_empty:
            raise UsageError(f"{folder} has something in it", "name a new folder")
        try:
            looked_at = [*draw.sample_below, *draw.sample_above, *known_units]
            copies = self._copy_images(deck, units, looked_at)
            deck = replace(
                deck,
                gone=[name for name, unit in copies.items() if unit.is_gone],
                shortened=[name for name, unit in copies.items() if unit.left_out],
            )
            _require_images(deck.gone, copies)
            lines = _lines_about_missing_images(deck)
            write_copies(folder, copies.values())
            review_id = review_id_of(deck)
            answered = self._keep_labels(set(units.names(draw.sample_above)), copies, review_id)
            if answered:
                noun = Wording(deck).noun
                labels_path = self._options.keep_labels
                lines.append(_line_about_answers(len(answered), noun, labels_path))
            write_review_page(
                folder,
                deck_id=review_id,
                review_id=review_id,
                class_name=str(self._wanted),
                looks=_page_looks(looks_by_round, copies, answered),
            )
            write_deck(folder, deck, units.names(draw.sample_below))
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)  # it was empty
            raise
        return Dealt(deck, lines)

    def _copy_images(
        self, deck: Deck, units: Units, numbers: Sequence[int]
    ) -> dict[str, UnitCopies]:
        """Make small copies of the images that people will look at, for the page.

        Args:
            deck: The review, which names the file of the records.
            units: All units, images or groups of images.
            numbers: The numbers of the units to copy.

        Returns:
            The copies by the name of the unit.
        """
        records_by_number = records_of_units(
            self._options.records, units.unit_by_record(), numbers, self._wanted
        )
        records_by_name = {}
        for number, records in records_by_number.items():
            records_by_name[units.name(number)] = records
        # The names of the files follow the order, which should tell nothing about scores.
        sorted_by_name = dict(sorted(records_by_name.items()))
        records_folder = Path(deck.records).parent
        finder = Finder(self._options.images, InputOptions(), records_folder=records_folder)
        with closing(finder):
            copies = Copier(self._folder, finder).copy_all(sorted_by_name, self._advance)
        return {unit_copies.name: unit_copies for unit_copies in copies}

    def _keep_labels(
        self, names_above: Collection[str], copies: Mapping[str, UnitCopies], review_id: str
    ) -> set[str]:
        """Take over labels from the earlier review that --keep-labels names, if they still hold.

        A label is a person's answer to a unit, an image or a group of images.

        Args:
            names_above: The names of the units that score above the threshold and are looked at.
                Only their labels can be taken over.
            copies: By name, the copies of the images of all units that are looked at.
            review_id: What tells this review from others.

        Returns:
            The names of the units whose labels were taken over; empty without --keep-labels.

        Raises:
            UsageError: The earlier review looked for other classes, or grouped images differently.
        """
        options = self._options
        earlier_review = options.keep_labels
        if earlier_review is None:
            return set()
        earlier_deck = read_deck(earlier_review)
        if sorted(earlier_deck.classes) != sorted(self._wanted.names):
            raise UsageError(
                f"{earlier_review} looked for {WantedClasses(earlier_deck.classes)}, and this "
                f"review looks for {self._wanted}: its labels mean something else",
                "deal without --keep-labels, or with the same --classes",
            )
        if earlier_deck.unit != str(options.unit):
            raise UsageError(
                f"the units of {earlier_review} are {earlier_deck.unit}, and those of this "
                f"review {options.unit}: its labels mean something else",
                "deal without --keep-labels, or with the same --unit",
            )
        labels = labels_still_valid(earlier_review, names_above, copies, review_id)
        add_labels(self._folder, labels)
        return set(Answers(labels).sources)


def _lines_about_spelling(wanted: WantedClasses) -> list[str]:
    """Warn of classes of the records that differ from a wanted one only in upper and lower case."""
    lines = []
    for name in wanted.names:
        for seen_name in sorted(wanted.seen):
            if seen_name not in wanted.names and seen_name.lower() == name.lower():
                lines.append(
                    f"warning: the records have the class {seen_name}, too, which is not {name} "
                    f"and does not count: --classes {name},{seen_name} looks for both"
                )
    return lines


def _require_images(gone_names: Collection[str], copies: Mapping[str, UnitCopies]) -> None:
    """Refuse a review if none of its images was found.

    Args:
        gone_names: The names of the units whose images are gone.
        copies: The copies of all units that were dealt.

    Raises:
        SourceError: All are gone.
    """
    if len(gone_names) == len(copies):
        raise SourceError(
            f"none of the {len(copies):,} images that were dealt was found as predict read it",
            "run this in the folder where predict ran, or name the folder of the images with "
            "--images; an image counts as found if it has the size in pixels and the hash that "
            "the records say",
        )


def _page_looks(
    looks_by_round: Sequence[Sequence[PlannedLook]],
    copies: Mapping[str, UnitCopies],
    answered: Collection[str],
) -> list[Look]:
    """Return what the page shows: all looks at units that are there and have no answer yet.

    Args:
        looks_by_round: The looks of each round.
        copies: The copies of the images of each unit.
        answered: The names of units that an earlier review has answered.
    """
    looks = []
    for planned_looks in looks_by_round:
        for look in planned_looks:
            if look.name not in answered and not copies[look.name].is_gone:
                looks.append(Look(look.name, copies[look.name].images, look.round, look.pass_))
    return looks


def _lines_about_missing_images(deck: Deck) -> list[str]:
    """Say which units people cannot see, and of how many they see only some images.

    A unit cannot be seen if an image of it is gone, or its file is another one by now.

    Args:
        deck: The review, with the names of the units, images or groups of images, that are gone.
    """
    wording = Wording(deck)
    lines = []
    if deck.gone:
        names = ", ".join(deck.gone[:SHOWN_NAMES])
        lines.append(
            f"{count_text(len(deck.gone), wording.noun)} not found or changed since predict (in "
            f"size in pixels or hash), and counted as lost: {names}"
        )
    lines += wording.shortened_lines()
    return lines


def _line_about_answers(count: int, noun: str, path: Path | None) -> str:
    """Say how many units the page does not ask about, as the labels of a review answer them.

    Args:
        count: How many there are.
        noun: What they are called, such as "image".
        path: The file or folder of the labels.
    """
    pronoun = "them"
    if count == 1:
        pronoun = "it"
    return (
        f"{count_text(count, noun)} already answered in {path}: the page does not ask about "
        f"{pronoun} again"
    )


def _lines_about_plan(
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


def _line_about_sample(options: DealOptions, deck: Deck, expectation: Expectation) -> str:
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


def _expectation(options: DealOptions, deck: Deck) -> Expectation:
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


def _choose_round_sizes(
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


def _list_looks(deck: Deck, draw: Draw, repeat_share: float) -> list[list[PlannedLook]]:
    """List for each round of a review what people look at, in the order in which they do.

    Args:
        deck: The review: how many units, images or groups of images, each round looks at, and the
            best-scoring ones, which the first round shows as well.
        draw: The units that were drawn at random.
        repeat_share: The share of the units that is looked at twice.
    """
    looks_by_round = []
    for round_number in range(1, len(deck.plan) + 1):
        names = draw.names_of_round(round_number, deck.known)
        looks_by_round.append(looks_of_round(names, round_number, deck.seed, repeat_share))
    return looks_by_round


def _names_shown_twice(looks_by_round: Sequence[Sequence[PlannedLook]]) -> list[str]:
    """Return the names of the units that people look at a second time in any round."""
    names = []
    for looks in looks_by_round:
        names += [look.name for look in looks if look.pass_ == 2]
    return names


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


def _cure_for_nothing(options: DealOptions) -> str:
    """Return the hint for a highest threshold that no unit is below."""
    if options.below is not None:
        return "raise --below"
    return (
        f"--expect {percent(options.expect)} puts twice as many units above it: lower --expect, or "
        "name a threshold with --below"
    )


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
    expectation = _expectation(large_options, large_deck)
    return _expect_in_first_round(options, expectation, expectation.error)


def _looks_text(expectation: Expectation, misses: int) -> str:
    """Write how many looks the first round takes: a number, or all."""
    looks = expectation.looks(misses)
    if looks is None:
        return "looks at all"
    return f"about {looks:,} looks"
