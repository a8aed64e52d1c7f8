"""What reviewers answered, read from labels.jsonl, and which answers apply."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from detcli.core import Fields, frozen
from detcli.core.errors import SourceError, UsageError, system_reason
from detcli.core.lines import bounded_lines
from detcli.storage.files import AppendedFile, open_lines

LABELS = "labels.jsonl"
"""The file in a review's folder to which answers are only ever added."""

UNDO = "undo"
"""In place of an answer: it withdraws the latest one of its unit, reviewer and pass."""

LABEL_OF_ANIMAL = 1
LABEL_OF_NOTHING = 0
"""What a label says about a unit, unless it is null for "unsure"."""

DECIDING_PASS = 3
"""From this pass onwards, an answer decides where those before it differ."""


LabelValue = int | None
"""What a label says about a unit: LABEL_OF_ANIMAL, LABEL_OF_NOTHING, or None for "unsure"."""


class Answer(Enum):
    """What is known about a unit."""

    ANIMAL = "animal"
    NOTHING = "nothing"
    DOUBTFUL = "doubtful"
    """Unsure, answered differently, or gone. It counts as an animal that is lost, but not as one
    that is seen, so that no promise comes from a doubt."""


@frozen
class ReviewLabel:
    """One line of labels.jsonl."""

    source: str  # the name of the unit
    animal: Any  # 1, 0, null for unsure, or undo
    who: str
    at: str  # when, UTC in ISO 8601
    pass_: int  # 1, or 2 for the second look at a unit
    review: str | None  # the review that it answers; None if the line does not say


def read_labels(path: Path) -> list[Fields]:
    """Read the lines of a file of labels, each a JSON object.

    Raises:
        SourceError: The file cannot be read.
        UsageError: A line is not a label.
    """
    labels: list[Fields] = []
    try:
        with open_lines(path) as file:
            for line in bounded_lines(file):
                if line.strip():
                    fields = json.loads(line)
                    to_label(fields)  # raises ValueError if it is not a label
                    labels.append(fields)
    except OSError as error:
        raise SourceError(f"cannot read {path}: {system_reason(error)}", "check it") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"line {len(labels) + 1} of {path} is not a label: {error}",
            "name a file that the review page saved",
        ) from error
    return labels


def read_labels_of_review(path: Path, review_id: str) -> list[Fields]:
    """Read a file of labels, and refuse those that answer a different review.

    A label that does not say which review it answers is taken.

    Args:
        path: The file.
        review_id: What tells the review from others, see `review_id_of`.

    Raises:
        UsageError: A label belongs to a different review, or to this one before its deck was
            changed; or a line is not a label.
        SourceError: The file cannot be read.
    """
    lines = read_labels(path)
    for number, fields in enumerate(lines, 1):
        label = to_label(fields)
        if label.review not in {None, review_id}:
            raise UsageError(
                f"label {number} of {path} answers the review {label.review}, not this one, which "
                f"is {review_id}",
                "name the labels that the page of this review saved; if they are, its deck.json "
                "was changed after the deal: deal anew",
            )
    return lines


def to_label(fields: Any) -> ReviewLabel:  # noqa: ANN401 - JSON
    """Check that the JSON value of a line is a label, and return the label.

    Raises:
        ValueError: It is not a label; the message says what is wrong.
    """
    if not isinstance(fields, dict):
        raise ValueError("it is not an object")  # noqa: TRY004 - ValueError for every fault
    for name in ("source", "who", "at"):
        if not isinstance(fields.get(name), str):
            raise ValueError(f"its {name} is not text")  # noqa: TRY004 - ValueError for every fault

    # The answer is 1, 0, null for "unsure", or "undo". A missing key is not an answer, while null
    # is one. Numbers are checked by `type`, as `isinstance` would take true for 1.
    has_answer = "animal" in fields
    answer = fields.get("animal")
    is_unsure = answer is None
    is_number = type(answer) is int and answer in {LABEL_OF_NOTHING, LABEL_OF_ANIMAL}
    if not has_answer or not (is_number or is_unsure or answer == UNDO):
        raise ValueError("its animal is not 1, 0, null or undo")

    pass_number = fields.get("pass", 1)
    if type(pass_number) is not int or pass_number < 1:
        raise ValueError("its pass is not a number from 1 on")

    review = fields.get("review")
    if review is not None and not isinstance(review, str):
        raise ValueError("its review is not text")
    return ReviewLabel(
        source=fields["source"],
        animal=answer,
        who=fields["who"],
        at=fields["at"],
        pass_=pass_number,
        review=review,
    )


def add_labels(folder: Path, new_lines: Sequence[Fields]) -> int:
    """Add lines to the labels of a review, but for those that it has already.

    Args:
        folder: The folder of the review.
        new_lines: Lines that the page saved, perhaps with those that it had saved before.

    Returns:
        How many were added.
    """
    path = folder / LABELS
    earlier_lines: Counter[str] = Counter()
    if path.exists():
        earlier_lines.update(json.dumps(line, sort_keys=True) for line in read_labels(path))
    missing_lines = []
    for line in new_lines:
        text = json.dumps(line, sort_keys=True)
        if earlier_lines[text]:
            earlier_lines[text] -= 1
        else:
            missing_lines.append(f"{json.dumps(line)}\n")
    if missing_lines:
        file = AppendedFile(path)
        file.write("".join(missing_lines))
        file.commit()
    return len(missing_lines)


class RepeatCounts(NamedTuple):
    """How often reviewers answered twice to the same."""

    repeated: int
    changed: int  # those of them in which the second answer differed


class AnswersToUnit(NamedTuple):
    """The different answers to a unit, of all reviewers."""

    first_two_looks: set[LabelValue]
    third_look: set[LabelValue]  # it decides if the answers before it differ


class Answers:
    """The answers of all reviewers to all units, after undo.

    The order of lines matters, not their times, as a clock may be set back.

    Attributes:
        count_without_review: How many lines do not say which review they answer.
    """

    def __init__(self, lines: Iterable[Fields]) -> None:
        """Group the labels by unit, reviewer and pass, and remove the answers that were withdrawn.

        Args:
            lines: The lines of labels.jsonl, in which an undo follows the answer that it withdraws.
        """
        labels = [to_label(line) for line in lines]
        self.count_without_review = sum(label.review is None for label in labels)

        # The answers to a unit by a reviewer in a pass: `self._answers[unit][reviewer][pass]`. It
        # is a set of one answer, or of several if they contradict each other.
        self._answers: defaultdict[str, dict[str, dict[int, set[LabelValue]]]] = defaultdict(dict)
        for (source, who, pass_number), answers in _answers_after_undo(labels).items():
            if answers:
                passes = self._answers[source].setdefault(who, {})
                passes[pass_number] = _without_settled_doubts(answers)

    @property
    def reviewers(self) -> list[str]:
        """The names of all who answered, sorted."""
        names: set[str] = set()
        for answers in self._answers.values():
            names.update(answers)
        return sorted(names)

    @property
    def sources(self) -> list[str]:
        """The names of all units that have an answer."""
        return list(self._answers)

    def to_unit(self, source: str) -> Answer | None:
        """Return the answer that applies to a unit, an image or several that are labelled together.

        A third look decides where the answers before it differ. The unit is doubtful if the answers
        that apply differ, or if one of them is "unsure".

        Args:
            source: The name of the unit.

        Returns:
            None if nobody has answered.
        """
        answers = self._counting_answers(source)
        if not answers:
            return None
        if answers == {LABEL_OF_ANIMAL}:
            return Answer.ANIMAL
        if answers == {LABEL_OF_NOTHING}:
            return Answer.NOTHING
        return Answer.DOUBTFUL

    def disagreements(self, sources: Iterable[str]) -> list[str]:
        """Return the units with different answers between which no third look decides.

        A third look that is unsure ends it, too: the unit stays doubtful.
        """
        disputed_sources = []
        for source in sources:
            answers = self._answers_to(source)
            if len(answers.first_two_looks) > 1 and len(answers.third_look) != 1:
                disputed_sources.append(source)
        return disputed_sources

    def _counting_answers(self, source: str) -> set[LabelValue]:
        """Return the answers that apply to a unit, several if they contradict each other.

        A third look is meant for units whose answers in the first two looks differ, and replaces
        these answers. If nobody has answered in the first two looks, a third look is ignored. If
        the answers of the first two looks agree, the third look is used as well.
        """
        answers = self._answers_to(source)
        if not answers.first_two_looks:
            return set()
        looks_agree = len(answers.first_two_looks) == 1
        if looks_agree:
            return answers.first_two_looks | answers.third_look
        if answers.third_look:
            return answers.third_look
        return answers.first_two_looks

    def _answers_to(self, source: str) -> AnswersToUnit:
        """Return all answers to a unit that were not withdrawn."""
        first_two_looks: set[LabelValue] = set()
        third_look: set[LabelValue] = set()
        for passes in self._answers.get(source, {}).values():
            for pass_number, answers in passes.items():
                if pass_number >= DECIDING_PASS:
                    third_look |= answers
                else:
                    first_two_looks |= answers
        return AnswersToUnit(first_two_looks, third_look)

    def count_repeats(self, sources: Iterable[str]) -> RepeatCounts:
        """Count how often a reviewer answered twice to the same image, or group of images.

        Args:
            sources: The names of what was shown twice.
        """
        repeated_count = 0
        changed_count = 0
        for source in sources:
            for passes in self._answers.get(source, {}).values():
                if {1, 2} <= passes.keys():
                    repeated_count += 1
                    changed_count += passes[1] != passes[2]
        return RepeatCounts(repeated_count, changed_count)


def _answers_after_undo(
    labels: Iterable[ReviewLabel],
) -> dict[tuple[str, str, int], list[LabelValue]]:
    """Return what each reviewer answered to each unit in each pass, without what was withdrawn.

    Args:
        labels: All labels, the earliest first. An undo withdraws the latest answer of its unit,
            reviewer and pass; without one it does nothing.

    Returns:
        The answers by unit, reviewer and pass, the earliest first; an empty list if all were
        withdrawn.
    """
    answers_by_pass: defaultdict[tuple[str, str, int], list[LabelValue]] = defaultdict(list)
    for label in labels:
        answers = answers_by_pass[label.source, label.who, label.pass_]
        if label.animal != UNDO:
            answers.append(label.animal)
        elif answers:
            answers.pop()
    return answers_by_pass


def _without_settled_doubts(answers: Sequence[LabelValue]) -> set[LabelValue]:
    """Return the different answers of a reviewer to a unit; "unsure" only if it is the last one.

    Whoever is unsure is asked again, and the next answer replaces "unsure". Several answers remain
    if two people used one name, or an answer was not withdrawn first.

    Args:
        answers: 1 for an animal, 0 for nothing, None for unsure; the earliest first. For example
            `[None, 1]` gives `{1}`, and `[1, 0, None]` gives `{1, 0, None}`.
    """
    different_answers: set[LabelValue] = {answer for answer in answers if answer is not None}
    if answers[-1] is None:
        different_answers.add(None)
    return different_answers


def answers_to_units(
    answers: Answers, sources: Sequence[str], gone_names: Sequence[str]
) -> Mapping[str, Answer]:
    """Return the answer that counts for each unit; it is "doubtful" if an image of it is gone.

    A unit is an image, or a group of images that are looked at together.

    Args:
        answers: The answers of all reviewers.
        sources: The names of the units.
        gone_names: The names of the units whose images could not be read for the review, so that
            nobody has seen them.

    Returns:
        The answers by the name of the unit, without the units that have none.
    """
    answer_by_source = {}
    gone_sources = set(gone_names)
    for source in sources:
        answer = answers.to_unit(source)
        if source in gone_sources:
            answer = Answer.DOUBTFUL
        if answer is not None:
            answer_by_source[source] = answer
    return answer_by_source
