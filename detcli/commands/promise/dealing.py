"""Deals a review: reads the records, plans the rounds, draws the units and copies their images."""

import os
import secrets
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from detcli import __version__
from detcli.commands.promise.deck import ALL, VERSION, Deck, read_deck, review_id_of, write_deck
from detcli.commands.promise.draw import PlannedLook, RandomSample, looks_of_round
from detcli.commands.promise.effort import (
    SUGGESTED_SAMPLE,
    choose_round_sizes,
    expectation_of,
    line_about_sample,
    lines_about_plan,
)
from detcli.commands.promise.images import Copier, UnitCopies, records_of_units, write_copies
from detcli.commands.promise.inputs import InputColumns, WantedClasses
from detcli.commands.promise.kept_labels import labels_still_valid
from detcli.commands.promise.labels import Answers, add_labels
from detcli.commands.promise.options import DealOptions
from detcli.commands.promise.reading import file_hash, read_inputs, require_usable
from detcli.commands.promise.statements import Wording, count_text, percent
from detcli.commands.promise.thresholds import candidate_thresholds, cut_below, highest_threshold
from detcli.commands.promise.units import Integers, Units, make_units
from detcli.config.inputs import InputOptions
from detcli.core import frozen
from detcli.core.errors import SourceError, UsageError
from detcli.core.text import is_object, shell_line
from detcli.page.find_images import Finder
from detcli.page.review_page import Look, write_review_page
from detcli.storage.files import make_folder, writing

SEED_BITS = 53
"""As many as JavaScript reads exactly from a number in JSON."""

SHOWN_NAMES = 5
"""How many names of units that are gone are printed."""


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
            CheckError: Too many images would have to be looked at for it to be worth it.
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
                f"no {options.unit.noun} has a score below {deck.highest_threshold}",
                _cure_for_nothing(options),
            )

        # Each step uses what the steps before it have put into the deck: the draw needs the sizes
        # of the rounds, and the list of looks needs the draw.
        expectation = expectation_of(options, deck)
        deck = replace(deck, round_sizes=choose_round_sizes(options, deck, units, expectation))
        draw = RandomSample.of(deck, units)
        best_units = draw.best_above(options.known_count)
        deck = replace(deck, best_scoring_units=units.names(best_units))
        looks_by_round = _list_looks(deck, draw, options.repeat)
        deck = replace(deck, repeated_units=_names_shown_twice(looks_by_round))

        written = self._write_review(deck, units, draw, best_units, looks_by_round)
        deck = written.deck
        lines = lines_about_plan(deck, expectation, looks_by_round[0])
        if deck.sample_above == ALL and draw.count_above > SUGGESTED_SAMPLE:
            lines.append(line_about_sample(options, deck, expectation))
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
            version=VERSION,
            detcli_version=__version__,
            records=records,
            records_sha256=file_hash(options.records),
            scores_sha256=units.scores_sha256,
            model=model,
            model_sha256=inputs.settings.get("model_sha256"),
            settings=inputs.settings,
            unit_count=len(units),
            failed_count=len(units.failed),
            classes=self._wanted.names,
            unit_option=str(options.unit),
            highest_threshold=below,
            units_below=units.count_below(below),
            losses=sorted(set(options.lost)),
            sureness=options.sure,
            expected_share=options.expect,
            round_sizes=[],
            thresholds=candidate_thresholds(units.scores, below),
            seed=seed,
            sample_above=above,
            repeated_units=[],
            best_scoring_units=[],
            missing_units=[],
            shortened_units=[],
        )

    def _write_review(
        self,
        deck: Deck,
        units: Units,
        draw: RandomSample,
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
                missing_units=[name for name, unit in copies.items() if unit.is_gone],
                shortened_units=[name for name, unit in copies.items() if unit.left_out],
            )
            _require_images(deck.missing_units, copies)
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
            numbers: The indices of the units to copy.

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
            review_id: The id of this review, which each label gets, see `review_id_of`.

        Returns:
            The names of the units whose labels were taken over; empty unless --keep-labels is set.

        Raises:
            UsageError: The earlier review looked for different classes, or grouped images
                differently.
        """
        earlier_review = self._options.keep_labels
        if earlier_review is None:
            return set()
        self._require_same_question(earlier_review)
        labels = labels_still_valid(earlier_review, names_above, copies, review_id)
        add_labels(self._folder, labels)
        return set(Answers(labels).sources)

    def _require_same_question(self, earlier_review: Path) -> None:
        """Refuse the labels of an earlier review that asked reviewers something else.

        Args:
            earlier_review: The folder of the earlier review.

        Raises:
            UsageError: It looked for different classes, or grouped images differently.
        """
        earlier_deck = read_deck(earlier_review)
        if sorted(earlier_deck.classes) != sorted(self._wanted.names):
            raise UsageError(
                f"{earlier_review} looked for {WantedClasses(earlier_deck.classes)}, and this "
                f"review looks for {self._wanted}: its labels mean something else",
                "deal without --keep-labels, or with the same --classes",
            )
        unit = self._options.unit
        if earlier_deck.unit_option != str(unit):
            raise UsageError(
                f"the units of {earlier_review} are {earlier_deck.unit_option}, and those of this "
                f"review {unit}: its labels mean something else",
                "deal without --keep-labels, or with the same --unit",
            )


def _lines_about_spelling(wanted: WantedClasses) -> list[str]:
    """Warn about classes of the records that differ from a wanted one only in letter case."""
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
    """Return the looks that the page shows: at each unit whose images exist and that has no answer.

    A look shows a unit, an image or a group of images, and asks for one answer. Some units are
    looked at twice.

    Args:
        looks_by_round: The planned looks of each round.
        copies: By the name of each unit, the copies of its images.
        answered: The names of units that an earlier review has answered.
    """
    looks = []
    for planned_looks in looks_by_round:
        for planned_look in planned_looks:
            name = planned_look.name
            unit_copies = copies[name]
            if name in answered or unit_copies.is_gone:
                continue
            look = Look(
                source=name,
                images=unit_copies.images,
                round=planned_look.round,
                pass_=planned_look.pass_,
            )
            looks.append(look)
    return looks


def _lines_about_missing_images(deck: Deck) -> list[str]:
    """Report which units the page cannot show, and how many it shows only in part.

    A unit is an image, or a group of images. It cannot be shown if one of its images is gone or has
    changed since predict. A group with very many images is shown in part.

    Args:
        deck: The review, with the names of the units that are gone or shown in part.
    """
    wording = Wording(deck)
    lines = []
    if deck.missing_units:
        names = ", ".join(deck.missing_units[:SHOWN_NAMES])
        lines.append(
            f"{count_text(len(deck.missing_units), wording.noun)} not found or changed since "
            f"predict (in size in pixels or hash), and counted as lost: {names}"
        )
    lines += wording.shortened_lines()  # about units that are shown in part
    return lines


def _line_about_answers(count: int, noun: str, path: Path | None) -> str:
    """Report how many units the page leaves out because labels of a review answer them.

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


def _list_looks(deck: Deck, draw: RandomSample, repeat_share: float) -> list[list[PlannedLook]]:
    """List for each round of a review what people look at, in the order in which they do.

    Args:
        deck: The review: how many units, images or groups of images, each round looks at, and the
            best-scoring ones, which the first round shows as well.
        draw: The units that were drawn at random.
        repeat_share: The share of the units that is looked at twice.
    """
    looks_by_round = []
    for round_number in range(1, len(deck.round_sizes) + 1):
        names = draw.names_of_round(round_number, deck.best_scoring_units)
        looks_by_round.append(looks_of_round(names, round_number, deck.seed, repeat_share))
    return looks_by_round


def _names_shown_twice(looks_by_round: Sequence[Sequence[PlannedLook]]) -> list[str]:
    """Return the names of the units that people look at a second time in any round."""
    names = []
    for looks in looks_by_round:
        names += [look.name for look in looks if look.pass_ == 2]
    return names


def _cure_for_nothing(options: DealOptions) -> str:
    """Return the hint for a highest threshold that no unit is below."""
    if options.below is not None:
        return "raise --below"
    return (
        f"--expect {percent(options.expect)} puts twice as many units above it: lower --expect, or "
        "name a threshold with --below"
    )
