"""Which files need eyes: all but those of units below the promised threshold."""

import json
from collections.abc import Callable
from pathlib import Path

from detcli.commands.promise.checking import Checker, read_answers
from detcli.commands.promise.deck import read_deck
from detcli.commands.promise.labels import Answer
from detcli.commands.promise.promise_file import PROMISE, read_promise
from detcli.commands.promise.reading import read_units_of
from detcli.commands.promise.units import NO_UNIT
from detcli.core.errors import CheckError, UsageError

EYES = "eyes"
NO_EYES = "no-eyes"


def promised_threshold(
    review: Path, records: str | None, advance: Callable[[str], object]
) -> float:
    """Return the threshold that a review promises, after computing the promise again.

    So a promise.json that was changed, or is older than the labels, is refused.

    Args:
        review: The folder of the review.
        records: Where the records are now; None for where they were.
        advance: Is called with the source of each record.

    Raises:
        UsageError: The review was not checked, or promise.json does not follow from its labels.
        CheckError: The review promises nothing.
    """
    path = review / PROMISE
    stored_fields = read_promise(path)
    # Whether the bounds allow for animals that reviewers overlook: --correct of check.
    is_corrected = stored_fields["seen_share"] is not None
    computed = Checker(review, records, advance).compute(is_corrected=is_corrected)

    # As JSON has them: with lists in place of tuples.
    computed_fields = json.loads(json.dumps(computed.fields))
    # Another version of detcli may have written the file.
    stored_fields["detcli"] = None
    computed_fields["detcli"] = None
    if stored_fields != computed_fields:
        raise UsageError(
            f"{path} does not follow from the labels, the deck and the records",
            f"check the review again: detcli promise check {review}",
        )

    if computed.promise is None:
        raise CheckError(f"{review} promises nothing", "all images need eyes")
    return float(computed.promise.row.threshold)


def split_files(
    review: Path, records: str | None, threshold: float, advance: Callable[[str], object]
) -> list[tuple[str, str]]:
    """Sort the files of a review into those that a person should look at, and the others.

    A unit is an image, or a group of images that reviewers answered as one. The files of a unit
    need eyes if it scores at least the threshold, or if a reviewer saw an animal in it or was in
    doubt. So does a file that could not be read, as it has no score.

    Args:
        review: The folder of the review.
        records: Where the records are now; None for where they were.
        threshold: The promised threshold.
        advance: Is called with the source of each record.

    Returns:
        The name of each file, in the order of the records, and its folder: EYES or NO_EYES.

    Raises:
        UsageError: The records are not those that the review was made from.
    """
    deck = read_deck(review)
    units = read_units_of(deck, records or deck.records, advance)
    answers = read_answers(review)
    unit_needs_eyes = units.scores >= threshold  # (U,) by the index of the unit
    for unit in range(len(units)):
        answer = answers.to_unit(units.name(unit))
        if answer in {Answer.ANIMAL, Answer.DOUBTFUL}:
            unit_needs_eyes[unit] = True

    files = []
    for name, unit in units.files():
        folder = NO_EYES
        if unit == NO_UNIT or unit_needs_eyes[unit]:
            folder = EYES
        files.append((name, folder))
    return files
