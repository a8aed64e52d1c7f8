"""Checks a review: which rounds are complete, and what they promise."""

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from detcli.commands.promise.bounds import smallest_share
from detcli.commands.promise.deck import DEAL, DISPUTED, TENTH, read_deck, review_id_of
from detcli.commands.promise.draw import Draw
from detcli.commands.promise.evaluation import (
    NotedAnswers,
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
    read_labels_of_review,
    with_gone,
)
from detcli.commands.promise.promise_file import PROMISE, promise_fields, write_promise
from detcli.commands.promise.reading import read_units_of
from detcli.commands.promise.statements import Reviewing, Wording, count_text, misses_by_folder
from detcli.commands.promise.units import Units
from detcli.core import Fields, frozen
from detcli.core.errors import CheckError, InputError, SourceError, UsageError, system_reason
from detcli.page.review_page import Look, write_review_page

ENOUGH_SEEN = 0.95
"""Reviewers who see animals in fewer of the best-scoring units are warned of."""


@frozen
class Computed:
    """What the answers of complete rounds lead to."""

    answers: Answers
    noted: NotedAnswers
    complete_rounds: int
    result: RoundResult  # of the round that promises most, or of the last complete one
    results: list[RoundResult]  # of all complete rounds
    promise: Promise | None
    reviewing: Reviewing
    fields: Fields  # of promise.json


@frozen
class Checked:
    """What a review promises, and what to print about it."""

    promise: Promise | None
    lines: list[str]
    warnings: list[str]
    failure: CheckError | None  # why nothing is promised


class NotedRounds(NamedTuple):
    """The answers to what a review shows, and how far the reviewers have come."""

    answers: NotedAnswers  # of all rounds
    complete_count: int


class Checker:
    """Checks one review."""

    def __init__(self, folder: Path, records: str | None, advance: Callable[[str], object]) -> None:
        """Read the deck, and the records again.

        Args:
            folder: The folder of the review.
            records: Where the records are now; None for where they were.
            advance: Is called with the source of each record.

        Raises:
            UsageError: The records have changed since the deal, or the folder is not a review.
        """
        self._folder = folder
        self._deck = read_deck(folder)
        self._units = read_units_of(self._deck, records or self._deck.records, advance)
        deck = self._deck
        self._draw = Draw(self._units, below=deck.below, plan=deck.plan, above=deck.above)
        self._wording = Wording(deck)
        require_same_draw(folder / DEAL, self._units, self._draw)

    def check(self, *, is_corrected: bool) -> Checked:
        """Compute what the complete rounds promise, and write promise.json.

        Args:
            is_corrected: Whether the bound allows for animals that the reviewers overlook.

        Raises:
            InputError: The first round is incomplete; or nothing is promised, and a later one is.
            UsageError: It is to be corrected, and no best-scoring units were looked at.
        """
        (self._folder / PROMISE).unlink(missing_ok=True)  # it is of earlier answers
        computed = self.compute(is_corrected=is_corrected)
        answers = computed.answers
        noted = computed.noted
        complete_rounds = computed.complete_rounds
        promise = computed.promise
        reviewing = computed.reviewing
        write_promise(self._folder / PROMISE, computed.fields)
        warnings = self._warn_of_unknown_names(answers)
        if promise is None:
            self._require_not_begun(noted, complete_rounds)
            lines = self._wording.withdrawn(computed.results)
            lines += self._remarks(answers, noted, self._deck.grid[-1], complete_rounds)
            return Checked(None, lines, warnings, self._wording.no_promise(computed.result))
        threshold = promise.row.threshold
        lines = [self._wording.promise(promise), *self._wording.withdrawn(computed.results)]
        lines += self._remarks(answers, noted, threshold, complete_rounds)
        if threshold < self._deck.grid[-1] and complete_rounds < len(self._deck.plan):
            lines.append(f"round {complete_rounds + 1} may promise a higher threshold")
        lines.append(reviewing.text)
        warnings += _warn_of_overlooked(reviewing, is_corrected=is_corrected)
        return Checked(promise, lines, warnings, None)

    def compute(self, *, is_corrected: bool) -> Computed:
        """Compute what the complete rounds promise, and write nothing.

        Args:
            is_corrected: Whether the bound allows for animals that the reviewers overlook.

        Raises:
            InputError: The first round is incomplete.
            UsageError: It is to be corrected, and no known animals were looked at.
        """
        answers = read_answers(self._folder)
        noted, complete_rounds = self._complete_rounds(answers)
        reviewing = self._reviewing(answers, noted)
        seen_share = None
        if is_corrected:
            seen_share = self._seen_share(reviewing)
        results = []
        for round_number in range(1, complete_rounds + 1):
            result = evaluate(self._deck, self._units, noted, round_number, seen_share)
            results.append(result)
        promise = best_promise(self._deck, results)
        result = results[-1]
        if promise is not None:
            result = promise.result
        fields = promise_fields(
            self._deck, self._units, noted, result, promise, reviewing, seen_share
        )
        return Computed(
            answers=answers,
            noted=noted,
            complete_rounds=complete_rounds,
            result=result,
            results=results,
            promise=promise,
            reviewing=reviewing,
            fields={**fields, "who": answers.reviewers},
        )

    def _warn_of_unknown_names(self, answers: Answers) -> list[str]:
        """Warn of answers to images, or groups of images, that this review does not show.

        Returns:
            The warning, or nothing.
        """
        names_in_review = set(self._deck.known)
        for round_number in range(1, len(self._deck.plan) + 1):
            names_in_review.update(self._draw.names_of_round(round_number, self._deck.known))
        unknown_names = [name for name in answers.sources if name not in names_in_review]
        if not unknown_names:
            return []
        warning = (
            f"{count_text(len(unknown_names), self._wording.noun)} answered that this review did "
            f"not deal, such as {unknown_names[0]}: they count for nothing"
        )
        return [warning]

    def _complete_rounds(self, answers: Answers) -> NotedRounds:
        """Find out which rounds of the review are complete: all that they show has an answer.

        A later round counts only if all before it are complete.

        Raises:
            InputError: The first round is not complete.
        """
        noted: dict[str, Answer] = {}
        complete_rounds = 0
        for round_number in range(1, len(self._deck.plan) + 1):
            names = self._draw.names_of_round(round_number, self._deck.known)
            answers_of_round = with_gone(answers, names, self._deck.gone)
            noted.update(answers_of_round)
            is_complete = len(answers_of_round) == len(names)
            if is_complete and complete_rounds == round_number - 1:
                complete_rounds = round_number
        if not complete_rounds:
            raise self._incomplete(noted, 1)
        return NotedRounds(noted, complete_rounds)

    def _require_not_begun(self, noted: NotedAnswers, complete_rounds: int) -> None:
        """Refuse to judge a review in the middle of a round.

        Args:
            noted: By name, the answers to what the review shows.
            complete_rounds: How many rounds are complete.

        Raises:
            InputError: The next round has answers already.
        """
        if complete_rounds == len(self._deck.plan):
            return
        next_round = complete_rounds + 1
        for name in self._draw.names_of_round(next_round, self._deck.known):
            is_gone = name in self._deck.gone  # then it counts as answered
            if name in noted and not is_gone:
                raise self._incomplete(noted, next_round)

    def _incomplete(self, noted: NotedAnswers, round_number: int) -> InputError:
        """Make the error for a round in which something was not looked at yet."""
        names = self._draw.names_of_round(round_number, self._deck.known)
        looked_at = sum(name in noted for name in names)
        return InputError(
            f"{looked_at:,} of {len(names):,} looked at in round {round_number}: nothing is "
            "promised before the round ends",
            f"go on in {self._folder / 'index.html'}, and name the labels that it saves",
        )

    def _reviewing(self, answers: Answers, noted: NotedAnswers) -> Reviewing:
        """Count how reliable the reviewers were."""
        repeats, changed = answers.count_repeats(self._deck.repeat)
        known_names = [name for name in self._deck.known if answers.to_unit(name) is not None]
        known_seen = sum(noted.get(name) is Answer.ANIMAL for name in known_names)
        return Reviewing(repeats, changed, len(known_names), known_seen)

    def _seen_share(self, reviewing: Reviewing) -> float:
        """Return a lower bound on the share of animals that the reviewers see.

        Raises:
            UsageError: No best-scoring units were looked at.
        """
        if not reviewing.known_count:
            raise UsageError(
                "--correct needs best-scoring units that were looked at", "deal with --known 20"
            )
        return smallest_share(
            reviewing.known_seen_count, trials=reviewing.known_count, error=TENTH * self._deck.error
        )

    def _remarks(
        self, answers: Answers, noted: NotedAnswers, threshold: float, complete_rounds: int
    ) -> list[str]:
        """Say which answers are doubtful, and in which folders animals are lost.

        If reviewers disagree, it writes a page on which a third look decides.

        Args:
            answers: All answers of all reviewers.
            noted: The answer that counts for each unit, an image or a group of images.
            threshold: The threshold below which an animal is lost.
            complete_rounds: How many rounds are complete.
        """
        lines = self._wording.shortened()
        doubtful = [name for name, answer in noted.items() if answer is Answer.DOUBTFUL]
        if doubtful:
            lines.append(
                f"{count_text(len(doubtful), self._wording.noun)} unsure, disputed or gone: they "
                "count as lost where they are below"
            )
        disputed = answers.disagreements(noted)
        if disputed:
            page = self._write_third_pass(disputed)
            lines.append(f"{len(disputed):,} answered differently: decide them in {page}")
        misses = self._misses(noted, threshold, complete_rounds)
        if misses:
            lines.append(misses_by_folder(misses))
        return lines

    def _misses(self, noted: NotedAnswers, threshold: float, round_number: int) -> list[str]:
        """Return the names of dealt units below a threshold in which an animal was seen."""
        dealt = self._draw.below_by(round_number)
        is_below = self._units.scores[dealt] < threshold
        names = self._units.names(dealt[is_below])
        return [name for name in names if noted[name] is Answer.ANIMAL]

    def _write_third_pass(self, disputed: Sequence[str]) -> Path:
        """Write a page that asks once more what reviewers have answered differently.

        Args:
            disputed: The names of the units, images or groups of images, that the page shows.

        Returns:
            The path of the page.
        """
        copies = read_copies(self._folder)
        looks = []
        for name in disputed:
            images = []
            for image in images_of(copies[name]):
                # The page is in a subfolder of the review, which has the images.
                images.append(image._replace(file=f"../{image.file}"))
            looks.append(Look(name, images, 1, DECIDING_PASS))
        folder = self._folder / DISPUTED
        # Another list of units is another page, whose answers browsers keep apart.
        names_hash = hashlib.sha256(json.dumps(disputed).encode()).hexdigest()
        write_review_page(
            folder,
            deck_id=f"{self._deck.seed}-{names_hash[:16]}",
            review_id=review_id_of(self._deck),
            wanted=self._wording.wanted,
            looks=looks,
        )
        return folder / "index.html"


def read_answers(folder: Path) -> Answers:
    """Read the answers in the folder of a review; those that the page saved there are added.

    Raises:
        UsageError: Some answer another review.
    """
    review_id = review_id_of(read_deck(folder))
    for path in sorted(folder.glob("labels-*.jsonl")):
        add_labels(folder, read_labels_of_review(path, review_id))
    path = folder / LABELS
    if not path.exists():
        return Answers([])
    return Answers(read_labels_of_review(path, review_id))


def require_same_draw(path: Path, units: Units, draw: Draw) -> None:
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
    expected_text = "".join(f"{json.dumps(name)}\n" for name in units.names(draw.below))
    if text != expected_text:
        raise UsageError(f"{path} was changed, or its deck was", "deal anew")


def _warn_of_overlooked(reviewing: Reviewing, *, is_corrected: bool) -> list[str]:
    """Warn if reviewers saw few animals in the images in which the detector is surest of one.

    Args:
        reviewing: In how many of these "known" images the reviewers saw an animal.
        is_corrected: Whether the bound allows for animals that they overlook, so that nobody needs
            a warning.

    Returns:
        The warning, or nothing.
    """
    if is_corrected or not reviewing.known_count:
        return []
    if reviewing.known_seen_count >= ENOUGH_SEEN * reviewing.known_count:
        return []
    warning = (
        f"animals were seen in only {reviewing.known_seen_count} of {reviewing.known_count} "
        "best-scoring units, and the promise takes every answer as true: look at the others again. "
        "Those that show nothing in both looks are no proof that animals are overlooked; if some "
        "show an animal, check --correct allows for that, and counts all of them as overlooked"
    )
    return [warning]
