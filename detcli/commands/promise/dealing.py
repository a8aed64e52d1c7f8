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
from detcli.config.config import InputOptions
from detcli.core import frozen
from detcli.core.errors import CheckError, SourceError, UsageError
from detcli.core.text import is_object
from detcli.page.find_images import Finder
from detcli.page.review_page import Look, write_review_page
from detcli.storage.files import make_folder, writing

MAX_SHARE_OF_LOOKS = 0.6
"""A first round of more than this share of the units below is not worth it."""

IMAGES_OF_BURST = 3
"""How many images a burst is taken to have, where it is only estimated what bursts would take."""

SHOWN_NAMES = 5
"""How many names of units that are gone are printed."""

SUGGESTED_SAMPLE = 400
"""How many units above are enough to know about how many animals are there."""

LARGE_EXPECTED_SHARE = 0.3
"""Where a plan for fewer animals is not worth it, it is said what so many would take."""

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
        """Read the records, plan the rounds, draw the units, and write the folder.

        Raises:
            UsageError: The records cannot be used, or the folder has something in it.
            CheckError: It is not worth it.
            SourceError: No image of what was dealt is found.
        """
        options = self._options
        inputs = read_inputs(options.records, self._wanted, options.unit, self._advance)
        require_usable(inputs, self._wanted, options.records, force=options.force)
        seed = options.seed
        if seed is None:
            seed = secrets.randbits(53)
        units = make_units(inputs, options.unit, seed)
        deck = self._deck(units, inputs, seed)
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
        rounds = []
        for round_number in range(1, len(plan) + 1):
            names = draw.names_of_round(round_number, known_names)
            rounds.append(looks_of_round(names, round_number, seed, options.repeat))
        repeated = [look.name for looks in rounds for look in looks if look.pass_ == 2]
        deck = replace(deck, plan=plan, known=known_names, repeat=repeated)
        deck = self._write(deck, units, draw, known_units, rounds)
        lines = _lines(deck, expectation, rounds[0])
        if deck.above == ALL and draw.units_above > SUGGESTED_SAMPLE:
            lines.append(_line_about_sample(options, deck, expectation))
        lines += self._notes
        lines += _lines_about_spelling(self._wanted)
        page = self._folder / "index.html"
        return Dealt(deck, [*lines, f"wrote {self._folder}: open {page}"])

    def _deck(self, units: Units, inputs: InputColumns, seed: int) -> Deck:
        """Make the deck, still without its plan and what is drawn."""
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
        self, deck: Deck, units: Units, looked_at: Sequence[int]
    ) -> dict[str, UnitCopies]:
        """Copy the images of units, and return the copies by the name of the unit.

        Args:
            deck: What was asked for.
            units: All units.
            looked_at: The numbers of those to copy.
        """
        records_by_unit = records_of_units(
            self._options.records, units.unit_by_record(), looked_at, self._wanted
        )
        records_by_name = {}
        for unit, records in records_by_unit.items():
            records_by_name[units.name(unit)] = records
        in_order_of_names = {name: records_by_name[name] for name in sorted(records_by_name)}
        records_folder = Path(deck.records).parent
        finder = Finder(self._options.images, InputOptions(), records_folder=records_folder)
        with closing(finder):
            copies = Copier(self._folder, finder).copy_all(in_order_of_names, self._advance)
        return {unit.name: unit for unit in copies}

    def _keep_labels(
        self, above: Collection[str], copies: Mapping[str, UnitCopies], review_id: str
    ) -> set[str]:
        """Take over what an earlier review says of units above, and return their names.

        Args:
            above: The names of the units above that are looked at.
            copies: The copies of the images of all units that are looked at.
            review_id: What tells this review from others.
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
        lines = labels_still_valid(earlier_review, above, copies, review_id)
        add_labels(self._folder, lines)
        return set(Answers(lines).sources)


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
    """Return the lines that say what was dealt, and how likely it suffices.

    Args:
        deck: What was dealt.
        expectation: What is expected of the review.
        first_round: The looks of the first round.
    """
    wording = Wording(deck)
    again_count = sum(look.pass_ == 2 for look in first_round)
    chances = []
    for share in LOST_SHARES:
        true_loss = share * deck.lost[0]
        chances.append((true_loss, chance_of_promise(deck.plan, expectation, true_loss)))
    return [
        wording.contents(),
        wording.plan(
            looks=len(first_round),
            below=deck.plan[0],
            above=len(first_round) - deck.plan[0] - again_count,
            repeats=again_count,
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
    """Plan the rounds.

    Raises:
        CheckError: The first of them is not worth it, and --force was not given.
    """
    first_error = round_error(expectation.error, 1, options.rounds)
    first_round = replace(expectation, error=first_error).looks(options.misses)
    most_looks = MAX_SHARE_OF_LOOKS * expectation.units
    is_worth_it = first_round is not None and first_round <= most_looks
    if not is_worth_it and not options.force:
        raise _not_worth_it(options, replace(expectation, error=first_error), wording)
    if first_round is None:
        first_round = expectation.units
    return rounds_of(max(first_round, 1), options.rounds, expectation.units)


def _not_worth_it(options: DealOptions, expectation: Expectation, wording: Wording) -> CheckError:
    """Make the error that says how much there would be to look at, and what would take less."""
    message = (
        f"not worth it: a loss of {percent(expectation.loss)} takes "
        f"{_looks_text(expectation, options.misses)} of the {expectation.units:,} "
        f"{wording.noun}s below {wording.deck.below}"
    )
    twice = replace(expectation, loss=min(2 * expectation.loss, 0.99))
    hints = [f"--lost {percent(twice.loss)} takes {_looks_text(twice, options.misses)}"]
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
    """Say which share of animals was expected, and what a larger one would take; "" if it is large.

    Args:
        options: What was asked for.
        deck: What would be dealt.
        units: All units.
    """
    if options.expect >= LARGE_EXPECTED_SHARE:
        return ""
    expected = f"it was dealt for --expect {percent(options.expect)}"
    if options.expect == DEFAULT_EXPECTED_SHARE:
        expected = f"--expect is {percent(options.expect)} where it is not given"
    below = deck.below
    if options.below is None:
        below = highest_threshold(units.scores, LARGE_EXPECTED_SHARE)
    other_options = replace(options, expect=LARGE_EXPECTED_SHARE)
    other_deck = replace(deck, below=below, units_below=units.count_below(below))
    expectation = _expectation(other_options, other_deck)
    expectation = replace(expectation, error=round_error(expectation.error, 1, options.rounds))
    return (
        f"{expected}: if more units show an animal, say so, as --expect "
        f"{percent(LARGE_EXPECTED_SHARE)} takes {_looks_text(expectation, options.misses)} of "
        f"{expectation.units:,} below; "
    )


def _looks_text(expectation: Expectation, misses: int) -> str:
    """Write how many looks the first round takes: a number, or all."""
    looks = expectation.looks(misses)
    if looks is None:
        return "looks at all"
    return f"about {looks:,} looks"
