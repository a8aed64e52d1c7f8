"""Which files need eyes: all but those of units below the promised threshold."""

from collections.abc import Callable
from pathlib import Path

from detcli.commands.promise.checking import read_answers
from detcli.commands.promise.deck import read_deck
from detcli.commands.promise.labels import Answer
from detcli.commands.promise.promise_file import PROMISE, read_promise
from detcli.commands.promise.reading import read_units_of
from detcli.commands.promise.units import NO_UNIT
from detcli.core.errors import CheckError

EYES = "eyes"
NO_EYES = "no-eyes"


def promised_threshold(review: Path) -> float:
    """Return the threshold that a review has promised.

    Raises:
        UsageError: It was not checked.
        CheckError: It promises nothing.
    """
    threshold = read_promise(review / PROMISE)["t"]
    if threshold is None:
        raise CheckError(f"{review} promises nothing", "all images need eyes")
    return float(threshold)


def split_files(
    review: Path, records: str | None, threshold: float, advance: Callable[[str], object]
) -> list[tuple[str, str]]:
    """Return the name of each file, and whether it needs eyes, in the order of the records.

    Args:
        review: The folder of the review.
        records: Where the records are now; None for where they were.
        threshold: The promised threshold.
        advance: Is called with the source of each record.

    Raises:
        UsageError: The records have changed since the deal.
    """
    deck = read_deck(review)
    units = read_units_of(deck, records or deck.records, advance)
    needs_eyes = units.scores >= threshold
    answers = read_answers(review)
    for unit in units.order:
        answer = answers.of(units.name(int(unit)))
        if answer in {Answer.ANIMAL, Answer.DOUBTFUL}:
            needs_eyes[unit] = True
    files = []
    for name, unit in units.files():
        folder = NO_EYES
        if unit == NO_UNIT or needs_eyes[unit]:
            folder = EYES
        files.append((name, folder))
    return files
