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
    TENTH,
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
from detcli.core.text import is_object
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
    """A review that was dealt."""

    deck: Deck
    lines: list[str]  # what to print


class Dealer:
    """Deals one review into a folder."""

    def __init__(
        self,
        options: DealOptions,
        folder: Path,
        classes: Sequence[str],
        advance: Callable[[str], object],
    ) -> None:
        """Take what was asked for.

        Args:
            options: The options of the command.
            folder: The folder of the review.
            classes: The classes that are looked for.
            advance: Is called with the name of each record, and of each unit that is copied.
        """
        self._options = options
        self._folder = folder
        self._wanted = WantedClasses(classes)
        self._advance = advance
        self._notes: list[str] = []  # what a person should know of the images that are shown

    def deal(self) -> Dealt:
        """Choose the images that people will look at, and write the folder of their review.

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
        expectation = _expectation(options, deck)
        try:
            plan = _plan(options, expectation, Wording(deck))
        except CheckError as refusal:
            hint = _hint_about_expect(options, deck, units)
            raise CheckError(str(refusal), f"{hint}{refusal.hint}") from refusal

        draw = Draw(units, below=deck.below, plan=plan, above=deck.above)
        known_units = draw.best_above(options.known)
        known_names = units.names(known_units)
        rounds = self._plan_looks(draw, plan, known_names, seed)
        repeated_names = [look.name for looks in rounds for look in looks if look.pass_ == 2]
        deck = replace(deck, plan=plan, known=known_names, repeat=repeated_names)
        deck = self._write(deck, units, draw, known_units, rounds)

        lines = _lines(deck, expectation, rounds[0])
        if deck.above == ALL and draw.units_above > SUGGESTED_SAMPLE:
            lines.append(_line_about_sample(options, deck, expectation))
        lines += self._notes
        lines += _lines_about_spelling(self._wanted)
        page = self._folder / "index.html"
        return Dealt(deck, [*lines, f"wrote {self._folder}: open {page}"])

    def _plan_looks(
        self, draw: Draw, plan: Sequence[int], known_names: Sequence[str], seed: int
    ) -> list[list[PlannedLook]]:
        """List what is looked at in each round of the review, in its order.

        Args:
            draw: The units that were drawn at random.
            plan: How many of these each round looks at.
            known_names: The names of the best-scoring units, which the first round shows as well.
            seed: Decides the order.
        """
        rounds = []
        for round_number in range(1, len(plan) + 1):
            names = draw.names_of_round(round_number, known_names)
            rounds.append(looks_of_round(names, round_number, seed, self._options.repeat))
        return rounds

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

    def _write(
        self,
        deck: Deck,
        units: Units,
        draw: Draw,
        known_units: Integers,
        rounds: Sequence[Sequence[PlannedLook]],
    ) -> Deck:
        """Copy the images, and write the page and all files of the review.

        Args:
            deck: All of the deck but for what is gone.
            units: All units.
            draw: Those that are looked at.
            known_units: Those with the best scores, which are looked at, too.
            rounds: The looks of each round.

        Returns:
            The deck with the names of the units whose images are gone.

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
            looked_at = [*draw.below, *draw.above, *known_units]
            copies = self._copy_images(deck, units, looked_at)
            deck = replace(
                deck,
                gone=[name for name, unit in copies.items() if unit.is_gone],
                shortened=[name for name, unit in copies.items() if unit.left_out],
            )
            _require_images(deck.gone, copies)
            self._notes = _notes(deck)
            write_copies(folder, copies.values())
            review_id = review_id_of(deck)
            answered = self._keep_labels(set(units.names(draw.above)), copies, review_id)
            write_review_page(
                folder,
                deck_id=review_id,
                review_id=review_id,
                wanted=str(self._wanted),
                looks=_page_looks(rounds, copies, answered),
            )
            write_deck(folder, deck, units.names(draw.below))
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)  # it was empty
            raise
        return deck

    def _copy_images(
        self, deck: Deck, units: Units, numbers: Sequence[int]
    ) -> dict[str, UnitCopies]:
        """Make small copies of the images that people will look at.

        Args:
            deck: The review, which knows the file of the records.
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
        """Take over labels from the earlier review of --keep-labels, if they still hold.

        Args:
            names_above: The names of the units, images or groups of images, that score above the
                threshold and are looked at. Only their labels can be taken over.
            copies: By name, the copies of the images of all units that are looked at.
            review_id: What tells this review from others.

        Returns:
            The names of the units whose labels were taken over.

        Raises:
            UsageError: The earlier review looked for other classes, or had other units.
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
    """Refuse a review none of whose images is there.

    Args:
        gone_names: The names of the units whose images are gone.
        copies: The copies of all units that were dealt.

    Raises:
        SourceError: All are gone.
    """
    if len(gone_names) == len(copies):
        raise SourceError(
            f"none of the {len(copies):,} images that were dealt is found as predict read it",
            "run it where predict ran, or name their folder with --images; an image of another "
            "size in pixels, or with another hash, than the records say is another one",
        )


def _page_looks(
    rounds: Sequence[Sequence[PlannedLook]],
    copies: Mapping[str, UnitCopies],
    answered: Collection[str],
) -> list[Look]:
    """Return what the page shows: all looks at units that are there and have no answer yet.

    Args:
        rounds: The looks of each round.
        copies: The copies of the images of each unit.
        answered: The names of units that an earlier review has answered.
    """
    looks = []
    for planned_looks in rounds:
        for look in planned_looks:
            if look.name not in answered and not copies[look.name].is_gone:
                looks.append(Look(look.name, copies[look.name].images, look.round, look.pass_))
    return looks


def _notes(deck: Deck) -> list[str]:
    """Return the lines about units whose images are not all shown.

    Args:
        deck: What was dealt.
    """
    notes = []
    noun = Wording(deck).noun
    if deck.gone:
        names = ", ".join(deck.gone[:SHOWN_NAMES])
        notes.append(
            f"{count_text(len(deck.gone), noun)} not found, or another file by now (by its size in "
            f"pixels or hash), which count as lost: {names}"
        )
    notes += Wording(deck).shortened()
    return notes


def _lines(deck: Deck, expectation: Expectation, first_round: Sequence[PlannedLook]) -> list[str]:
    """Say what people are to look at, and how likely it suffices for a promise.

    Args:
        deck: The review.
        expectation: How many animals are expected.
        first_round: What is looked at in the first round: a random sample of the units, images or
            groups of images, below the highest threshold; units above it; and some of both for a
            second time.
    """
    wording = Wording(deck)
    look_count = len(first_round)
    second_look_count = sum(look.pass_ == 2 for look in first_round)
    below_count = deck.plan[0]
    chances = []
    for share in LOST_SHARES:
        true_loss = share * deck.lost[0]
        chances.append((true_loss, chance_of_promise(deck.plan, expectation, true_loss)))
    return [
        wording.contents(),
        wording.plan(
            looks=look_count,
            below=below_count,
            above=look_count - below_count - second_look_count,
            repeats=second_look_count,
        ),
        wording.chances(chances),
    ]


def _line_about_sample(options: DealOptions, deck: Deck, expectation: Expectation) -> str:
    """Return the line that says how much less there is to look at with a sample from above.

    Args:
        options: What was asked for.
        deck: What was dealt.
        expectation: What is expected of the review.
    """
    error = round_error(expectation.error * (1 - TENTH), 1, options.rounds)
    looks = replace(expectation, error=error).looks(options.misses) or deck.units_below
    return (
        f"--above {SUGGESTED_SAMPLE} would take about {looks + SUGGESTED_SAMPLE:,} looks in the "
        "first round, and promise a little less"
    )


def _expectation(options: DealOptions, deck: Deck) -> Expectation:
    """Return what is expected of a review: animals above, and the probability that is left."""
    error = deck.error / len(deck.lost)
    if deck.is_above_sampled(deck.units - deck.units_below):
        error *= 1 - TENTH
    return Expectation(
        units=deck.units_below,
        animals_above=round(options.expect * deck.units),
        loss=deck.lost[0],
        error=error,
    )


def _plan(options: DealOptions, expectation: Expectation, wording: Wording) -> list[int]:
    """Decide how many units, images or groups of images, each round looks at.

    Raises:
        CheckError: The first round takes nearly all, which is not worth it, and --force was not
            given.
    """
    first_error = round_error(expectation.error, 1, options.rounds)
    expectation_of_first_round = replace(expectation, error=first_error)
    first_round = expectation_of_first_round.looks(options.misses)  # None if none suffices
    most_looks = MAX_SHARE_OF_LOOKS * expectation.units
    is_worth_it = first_round is not None and first_round <= most_looks
    if not is_worth_it and not options.force:
        raise _not_worth_it(options, expectation_of_first_round, wording)
    if first_round is None:
        first_round = expectation.units
    return rounds_of(max(first_round, 1), options.rounds, expectation.units)


def _not_worth_it(options: DealOptions, expectation: Expectation, wording: Wording) -> CheckError:
    """Make the error that says how much there would be to look at, and what would take less.

    Args:
        options: What was asked for.
        expectation: How many animals are expected, and the loss that is to be promised.
        wording: What messages call the units, images or groups of images.
    """
    message = (
        f"not worth it: a loss of {percent(expectation.loss)} takes "
        f"{_looks_text(expectation, options.misses)} of the {expectation.units:,} "
        f"{wording.noun}s below {wording.deck.below}"
    )
    twice_the_loss = replace(expectation, loss=min(2 * expectation.loss, MAX_LOSS))
    hints = [
        f"--lost {percent(twice_the_loss.loss)} takes {_looks_text(twice_the_loss, options.misses)}"
    ]
    if options.unit.grouping is Grouping.IMAGE:
        bursts = replace(
            expectation,
            units=expectation.units // IMAGES_OF_BURST,
            animals_above=expectation.animals_above // IMAGES_OF_BURST,
        )
        hints.append(
            f"bursts of {IMAGES_OF_BURST} images (--unit burst:60s) take "
            f"{_looks_text(bursts, options.misses)} of {bursts.units:,}"
        )
    hints.append("or look at all; --force deals all the same")
    return CheckError(message, "; ".join(hints))


def _cure_for_nothing(options: DealOptions) -> str:
    """Return the hint for a highest threshold that no unit is below."""
    if options.below is not None:
        return "raise --below"
    return (
        f"--expect {percent(options.expect)} puts twice as many units above it: lower --expect, or "
        "name a threshold with --below"
    )


def _hint_about_expect(options: DealOptions, deck: Deck, units: Units) -> str:
    """Suggest to expect more animals, as fewer images are to be looked at then.

    Args:
        options: What was asked for. `expect` is the share of units that may show an animal.
        deck: What would be looked at.
        units: All units, images or groups of images, with their scores.

    Returns:
        How many units a large share takes; "" if a large share is expected already.
    """
    if options.expect >= LARGE_EXPECTED_SHARE:
        return ""
    expected = f"it was dealt for --expect {percent(options.expect)}"
    if options.expect == DEFAULT_EXPECTED_SHARE:
        expected = f"--expect is {percent(options.expect)} where it is not given"
    threshold = deck.below
    if options.below is None:  # Otherwise it does not depend on what is expected.
        threshold = highest_threshold(units.scores, LARGE_EXPECTED_SHARE)
    other_options = replace(options, expect=LARGE_EXPECTED_SHARE)
    other_deck = replace(deck, below=threshold, units_below=units.count_below(threshold))
    expectation = _expectation(other_options, other_deck)
    error_of_first_round = round_error(expectation.error, 1, options.rounds)
    looks = _looks_text(replace(expectation, error=error_of_first_round), options.misses)
    return (
        f"{expected}: if more units show an animal, say so, as --expect "
        f"{percent(LARGE_EXPECTED_SHARE)} takes {looks} of {expectation.units:,} below; "
    )


def _looks_text(expectation: Expectation, misses: int) -> str:
    """Write how many looks the first round takes: a number, or all."""
    looks = expectation.looks(misses)
    if looks is None:
        return "looks at all"
    return f"about {looks:,} looks"
