"""Checks a review: which rounds are complete, and what they promise."""

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from detcli.commands.promise.bounds import smallest_share
from detcli.commands.promise.deck import (
    DEAL,
    DECK,
    DISPUTED,
    FURTHER_BOUND_SHARE,
    Deck,
    read_deck,
    review_id_of,
)
from detcli.commands.promise.draw import RandomSample
from detcli.commands.promise.evaluation import (
    AnswersByUnit,
    Promise,
    RoundResult,
    best_promise,
    evaluate,
)
from detcli.commands.promise.images import images_of, read_copies
from detcli.commands.promise.labels import (
    DECIDING_PASS,
    LABELS,
    Answer,
    Answers,
    add_labels,
    answers_to_units,
    read_labels_of_review,
)
from detcli.commands.promise.promise_file import PROMISE, promise_fields, write_promise
from detcli.commands.promise.reading import read_units_of
from detcli.commands.promise.statements import Reliability, Wording, count_text, misses_by_folder
from detcli.commands.promise.thresholds import candidate_thresholds
from detcli.commands.promise.units import Units
from detcli.core import Fields, frozen
from detcli.core.errors import CheckError, InputError, SourceError, UsageError, system_reason
from detcli.page.review_page import Look, write_review_page

ENOUGH_SEEN = 0.95
"""There is a warning about reviewers who see animals in fewer of the best-scoring units."""


@frozen
class Computed:
    """What the answers of complete rounds lead to."""

    answers: Answers
    answers_by_unit: AnswersByUnit
    complete_rounds: int
    result: RoundResult  # of the round that promises most, or of the last complete one
    results: list[RoundResult]  # of all complete rounds
    promise: Promise | None
    reliability: Reliability
    fields: Fields  # of promise.json


@frozen
class Checked:
    """What a review promises, and what to print about it."""

    promise: Promise | None
    lines: list[str]
    warnings: list[str]
    failure: CheckError | None  # why nothing is promised


class RoundProgress(NamedTuple):
    """The answers to what a review shows, and how far the reviewers have come."""

    answers_by_unit: AnswersByUnit  # of all rounds
    complete_count: int  # how many rounds are complete


class Checker:
    """Checks one review."""

    def __init__(self, folder: Path, records: str | None, advance: Callable[[str], object]) -> None:
        """Read what a review asked for, and read its records again, which give the same draw.

        Args:
            folder: The folder of the review.
            records: Where the records are now; None for where they were.
            advance: Is called with the source of each record.

        Raises:
            UsageError: The records have changed since the deal, or the folder is not a review.
        """
        deck = read_deck(folder)
        self._folder = folder
        self._deck = deck
        self._units = read_units_of(deck, records or deck.records, advance)
        self._draw = RandomSample.of(deck, self._units)
        self._wording = Wording(deck)
        require_same_draw(folder / DEAL, self._units, self._draw)
        _require_same_numbers(folder / DECK, deck, self._units)

    def check(self, *, is_corrected: bool) -> Checked:
        """Compute what the complete rounds of a review promise, and write it to promise.json.

        If reviewers disagree, a page is written on which a third look decides.

        Args:
            is_corrected: Whether the bound allows for animals that the reviewers overlook.

        Returns:
            The promise, if any, and what to print about it.

        Raises:
            InputError: The first round is incomplete. Or the answers promise nothing, and the round
                that might is begun and incomplete.
            UsageError: `is_corrected`, and no best-scoring images were looked at.
        """
        promise_path = self._folder / PROMISE
        promise_path.unlink(missing_ok=True)  # an earlier one may be of other answers
        computed = self.compute(is_corrected=is_corrected)
        write_promise(promise_path, computed.fields)
        promise = computed.promise
        if promise is None:
            self._require_next_round_not_begun(computed.answers_by_unit, computed.complete_rounds)

        last_threshold = self._deck.thresholds[-1]
        threshold = last_threshold
        lines = []
        if promise is not None:
            threshold = promise.row.threshold
            lines.append(self._wording.promise_text(promise))
        lines += self._wording.withdrawn_lines(computed.results)
        lines += self._wording.shortened_lines()
        lines += self._lines_about_doubts(computed.answers, computed.answers_by_unit)
        lost_names = self._names_of_lost(
            computed.answers_by_unit, threshold, computed.complete_rounds
        )
        if lost_names:
            lines.append(misses_by_folder(lost_names))

        warnings = self._unknown_name_warnings(computed.answers)
        warnings += _unassigned_label_warnings(computed.answers)
        if promise is None:
            failure = self._wording.no_promise_error(computed.result)
            return Checked(None, lines, warnings, failure)

        are_rounds_left = computed.complete_rounds < len(self._deck.round_sizes)
        if threshold < last_threshold and are_rounds_left:
            lines.append(f"round {computed.complete_rounds + 1} may promise a higher threshold")
        lines.append(computed.reliability.text)
        warnings += _overlooked_animal_warnings(computed.reliability, is_corrected=is_corrected)
        return Checked(promise, lines, warnings, None)

    def compute(self, *, is_corrected: bool) -> Computed:
        """Compute what the complete rounds of a review promise, without writing promise.json.

        Labels that the page saved in the folder are added to labels.jsonl.

        Args:
            is_corrected: Whether the bounds allow for animals that the reviewers overlook.

        Raises:
            InputError: The first round is incomplete.
            UsageError: `is_corrected`, and no best-scoring images were looked at.
        """
        answers = read_answers(self._folder)
        answers_by_unit, complete_rounds = self._collect_answers(answers)
        reliability = self._measure_reliability(answers, answers_by_unit)
        # At least this share of the animals is seen by the reviewers; without it, every answer is
        # taken as true.
        seen_share = None
        if is_corrected:
            seen_share = self._seen_share(reliability)

        results = []
        for round_number in range(1, complete_rounds + 1):
            result = evaluate(
                self._deck,
                self._units,
                answers=answers_by_unit,
                round_number=round_number,
                seen_share=seen_share,
            )
            results.append(result)
        promise = best_promise(self._deck, results)
        decisive_result = results[-1]
        if promise is not None:
            decisive_result = promise.result

        fields = promise_fields(
            self._deck,
            self._units,
            answers=answers_by_unit,
            result=decisive_result,
            promise=promise,
            reliability=reliability,
            seen_share=seen_share,
        )
        fields["who"] = answers.reviewers
        return Computed(
            answers=answers,
            answers_by_unit=answers_by_unit,
            complete_rounds=complete_rounds,
            result=decisive_result,
            results=results,
            promise=promise,
            reliability=reliability,
            fields=fields,
        )

    def _unknown_name_warnings(self, answers: Answers) -> list[str]:
        """Return a warning if there are answers to units that no round of this review shows.

        A unit is an image, or a group of images.

        Returns:
            A list of the warning; an empty list without such answers.
        """
        best_names = self._deck.best_scoring_units
        names_in_review = set(best_names)
        for round_number in range(1, len(self._deck.round_sizes) + 1):
            names_in_review.update(self._draw.names_of_round(round_number, best_names))
        unknown_names = [name for name in answers.sources if name not in names_in_review]
        if not unknown_names:
            return []
        warning = (
            f"the labels answer {count_text(len(unknown_names), self._wording.noun)} that this "
            f"review did not deal, such as {unknown_names[0]}: these answers do not count"
        )
        return [warning]

    def _collect_answers(self, answers: Answers) -> RoundProgress:
        """Collect the answers that apply, and count the complete rounds.

        A round is complete if everything that it shows has an answer, and the rounds before it are
        complete, too.

        Raises:
            InputError: The first round is not complete.
        """
        answers_by_unit: dict[str, Answer] = {}  # the answer that applies, of all rounds
        complete_count = 0
        for round_number in range(1, len(self._deck.round_sizes) + 1):
            names = self._draw.names_of_round(round_number, self._deck.best_scoring_units)
            answers_of_round = answers_to_units(answers, names, gone_names=self._deck.missing_units)
            answers_by_unit.update(answers_of_round)
            are_all_answered = len(answers_of_round) == len(names)
            are_earlier_complete = complete_count == round_number - 1
            if are_all_answered and are_earlier_complete:
                complete_count = round_number
        if not complete_count:
            raise self._incomplete(answers_by_unit, 1)
        return RoundProgress(answers_by_unit, complete_count)

    def _require_next_round_not_begun(
        self, answers_by_unit: AnswersByUnit, complete_rounds: int
    ) -> None:
        """Refuse to say that nothing is promised if the next round has begun, but is not complete.

        At its end, that round may promise something.

        Args:
            answers_by_unit: The answers to what the review shows.
            complete_rounds: How many rounds are complete.

        Raises:
            InputError: The round after these has some answers, but not all.
        """
        if complete_rounds == len(self._deck.round_sizes):
            return
        next_round = complete_rounds + 1
        for name in self._draw.names_of_round(next_round, self._deck.best_scoring_units):
            is_gone = name in self._deck.missing_units  # then it counts as answered
            if name in answers_by_unit and not is_gone:
                raise self._incomplete(answers_by_unit, next_round)

    def _incomplete(self, answers_by_unit: AnswersByUnit, round_number: int) -> InputError:
        """Make the error for a round in which something was not looked at yet."""
        names = self._draw.names_of_round(round_number, self._deck.best_scoring_units)
        looked_at = sum(name in answers_by_unit for name in names)
        return InputError(
            f"{looked_at:,} of {len(names):,} looked at in round {round_number}: nothing is "
            "promised before the round ends",
            f"go on in {self._folder / 'index.html'}, and name the labels that it saves",
        )

    def _measure_reliability(self, answers: Answers, answers_by_unit: AnswersByUnit) -> Reliability:
        """Count how reliable the reviewers were."""
        repeats, changed = answers.count_repeats(self._deck.repeated_units)
        known_names = [
            name for name in self._deck.best_scoring_units if answers.to_unit(name) is not None
        ]
        known_seen = sum(answers_by_unit.get(name) is Answer.ANIMAL for name in known_names)
        return Reliability(repeats, changed, len(known_names), known_seen)

    def _seen_share(self, reliability: Reliability) -> float:
        """Return a lower bound on the share of animals that the reviewers see.

        It takes for granted that each of the best-scoring images shows an animal.

        Raises:
            UsageError: No best-scoring images were looked at.
        """
        if not reliability.known_count:
            raise UsageError(
                "--correct needs best-scoring units that were looked at", "deal with --known 20"
            )
        return smallest_share(
            reliability.known_seen_count,
            trials=reliability.known_count,
            error=FURTHER_BOUND_SHARE * self._deck.error,
        )

    def _lines_about_doubts(self, answers: Answers, answers_by_unit: AnswersByUnit) -> list[str]:
        """Report how many units are doubtful, and write a page for those with conflicting answers.

        A unit is an image, or a group of images. It is doubtful if a reviewer is unsure, if answers
        contradict each other, or if an image of it is gone. The page asks for a third look at units
        with different answers, which then decides.

        Args:
            answers: All answers of all reviewers.
            answers_by_unit: The answer that applies to each unit.
        """
        lines = []
        doubtful_names = [
            name for name, answer in answers_by_unit.items() if answer is Answer.DOUBTFUL
        ]
        if doubtful_names:
            lines.append(
                f"{count_text(len(doubtful_names), self._wording.noun)} unsure, disputed or gone: "
                "they count as lost if they are below the threshold"
            )

        disputed_names = answers.disagreements(answers_by_unit)
        if disputed_names:
            page = self._write_third_look_page(disputed_names)
            lines.append(f"{len(disputed_names):,} answered differently: decide them in {page}")
        return lines

    def _names_of_lost(
        self, answers_by_unit: AnswersByUnit, threshold: float, round_number: int
    ) -> list[str]:
        """Return the names of units below a threshold in which an animal was seen.

        Args:
            answers_by_unit: The answer to each unit.
            threshold: An animal in a unit with a lower score is lost.
            round_number: Only units that were looked at up to this round are used.
        """
        dealt = self._draw.sample_below_by(round_number)
        is_below = self._units.scores[dealt] < threshold
        names = self._units.names(dealt[is_below])
        return [name for name in names if answers_by_unit[name] is Answer.ANIMAL]

    def _write_third_look_page(self, disputed_names: Sequence[str]) -> Path:
        """Write a page that asks once more about the units with different answers.

        Args:
            disputed_names: The names of these units, images or groups of images.

        Returns:
            The path of the page.
        """
        lines_of_copies = read_copies(self._folder)
        looks = []
        for name in disputed_names:
            images = []
            for image in images_of(lines_of_copies[name]):
                # The page is in a subfolder of the review, which has the images.
                images.append(image._replace(file=f"../{image.file}"))
            # The page asks for all of these looks in a single round.
            looks.append(Look(source=name, images=images, round=1, pass_=DECIDING_PASS))

        folder = self._folder / DISPUTED
        # A browser stores answers under the id of the page. A page about other units gets a
        # different id, so that it does not begin with the answers of this one.
        names_hash = hashlib.sha256(json.dumps(disputed_names).encode()).hexdigest()
        write_review_page(
            folder,
            deck_id=f"{self._deck.seed}-{names_hash[:16]}",
            review_id=review_id_of(self._deck),
            class_name=self._wording.wanted,
            looks=looks,
        )
        return folder / "index.html"


def read_answers(folder: Path) -> Answers:
    """Read the answers in the folder of a review, and first add those that the page saved there.

    The page saves files such as `labels-anna.jsonl`. Lines that `labels.jsonl` lacks are added
    to it.

    Raises:
        UsageError: A file has labels of a different review.
    """
    review_id = review_id_of(read_deck(folder))
    for saved_path in sorted(folder.glob("labels-*.jsonl")):
        add_labels(folder, read_labels_of_review(saved_path, review_id))

    labels_path = folder / LABELS
    if not labels_path.exists():
        return Answers([])
    return Answers(read_labels_of_review(labels_path, review_id))


def require_same_draw(path: Path, units: Units, draw: RandomSample) -> None:
    """Refuse a review whose list of randomly drawn units is not the one that its seed leads to.

    Args:
        path: The list: a line of JSON with the name of each unit below the threshold.
        units: The images of the records, or groups of images.
        draw: Those that the seed draws.

    Raises:
        SourceError: The list cannot be read.
        UsageError: It differs.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SourceError(f"cannot read {path}: {system_reason(error)}", "deal anew") from error
    expected_text = "".join(f"{json.dumps(name)}\n" for name in units.names(draw.sample_below))
    if text != expected_text:
        raise UsageError(f"{path} was changed, or its deck was", "deal anew")


def _require_same_numbers(path: Path, deck: Deck, units: Units) -> None:
    """Refuse a deck whose thresholds or numbers of units do not follow from the records.

    Args:
        path: The file of the deck, for the message.
        deck: What it says.
        units: The images of the records, or groups of images.

    Raises:
        UsageError: They do not.
    """
    has_same_counts = (deck.unit_count, deck.failed_count) == (len(units), len(units.failed))
    has_same_count_below = deck.units_below == units.count_below(deck.highest_threshold)
    has_same_thresholds = deck.thresholds == candidate_thresholds(
        units.scores, deck.highest_threshold
    )
    if not (has_same_counts and has_same_count_below and has_same_thresholds):
        raise UsageError(
            f"{path} was changed: its numbers do not follow from the records", "deal anew"
        )


def _unassigned_label_warnings(answers: Answers) -> list[str]:
    """Return a warning if there are labels that do not say which review they answer.

    The page of a review writes the id of its review into each label. Labels without an id were not
    written by the page, so they may answer a different review.

    Returns:
        A list of the warning; an empty list if all labels name a review.
    """
    if not answers.count_without_review:
        return []
    labels_text = count_text(answers.count_without_review, "label")
    warning = (
        f"{labels_text} without the name of a review, which the page writes into each: they may "
        "answer another review"
    )
    return [warning]


def _overlooked_animal_warnings(reliability: Reliability, *, is_corrected: bool) -> list[str]:
    """Return a warning if reviewers saw few animals in the units with the best scores.

    Nearly all of these units show an animal. So reviewers who see few animals in them may overlook
    animals elsewhere, too.

    Args:
        reliability: How many best-scoring units the reviewers looked at, and in how many they saw
            an animal.
        is_corrected: Whether the bound allows for overlooked animals. Then there is no warning.

    Returns:
        A list of the warning; an empty list if enough animals were seen.
    """
    looked_at_count = reliability.known_count
    seen_count = reliability.known_seen_count
    if is_corrected or not looked_at_count:
        return []
    are_enough_seen = seen_count >= ENOUGH_SEEN * looked_at_count
    if are_enough_seen:
        return []
    warning = (
        f"animals were seen in only {seen_count} of {looked_at_count} "
        "best-scoring units, and the promise assumes that none was overlooked: look at the others "
        "again. If some of them do show an animal, use check --correct, which counts them all as "
        "overlooked. If none does, nothing shows that animals are overlooked"
    )
    return [warning]
