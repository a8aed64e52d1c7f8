"""Reads the units of a file of records, and refuses records that a promise should not rest on."""

from collections.abc import Callable, Collection
from math import isinf
from pathlib import Path
from typing import TYPE_CHECKING

from detcli.cli.records import STDIN, take_records
from detcli.commands.promise.inputs import InputColumns, WantedClasses
from detcli.commands.promise.unit_kind import UnitKind
from detcli.core.errors import UsageError
from detcli.core.text import closest, is_object, pluralize
from detcli.storage.files import sha256

if TYPE_CHECKING:
    from detcli.commands.promise.deck import Deck
    from detcli.commands.promise.units import Units

MAX_LOWEST_SCORE = 0.01
"""Records whose scores begin above this leave most images without a score."""

SHOWN_CLASSES = 10
"""How many classes of the records are named where a wanted one is not among them."""


def read_inputs(
    records: str, wanted_classes: WantedClasses, kind: UnitKind, advance: Callable[[str], object]
) -> InputColumns:
    """Read the images and videos of a file of records.

    Args:
        records: The name of the file, or of the folder of a run in shards.
        wanted_classes: The classes whose scores count.
        kind: What units are.
        advance: Is called with the source of each record, for a progress bar.

    Raises:
        UsageError: The records come from standard input, or name an image twice; or units are
            grouped by a key of `meta`, and a record has no value for it. Other errors are those of
            `take_records`.
    """
    if records == STDIN:
        raise UsageError(
            "records come from standard input, and check reads them again", "name a file"
        )
    inputs = InputColumns(wanted_classes, kind)
    take_records(records, inputs.add, advance)
    inputs.require_unique_names()
    return inputs


def require_usable(
    inputs: InputColumns, wanted_classes: WantedClasses, records: str, *, force: bool
) -> None:
    """Refuse records from which no promise, or hardly any, can come.

    Args:
        inputs: The images and videos of the records.
        wanted_classes: The classes that are looked for. They have noted which classes the records
            have.
        records: The name of the file, for messages.
        force: Whether to accept records in which the wanted classes or scores are missing.

    Raises:
        UsageError: No image could be read, or several models made the records. Or, without
            `force`: no detection belongs to a wanted class, or the scores of many images are
            missing.
    """
    readable_count = len(inputs) - sum(inputs.is_failed)
    if not readable_count:
        raise UsageError(
            f"{records} has no image with detections", "name records that predict wrote"
        )

    if len(inputs.models) > 1:
        models = ", ".join(sorted(inputs.models))
        raise UsageError(
            f"several models made {records}: {models}",
            "their scores cannot be compared: deal from the records of one model",
        )
    if force:
        return

    unseen_names = wanted_classes.unseen
    if unseen_names:
        suggestion = closest(unseen_names[0], wanted_classes.seen)
        hint = f"the records have {_names_text(wanted_classes.seen_names)}; --force goes on"
        if suggestion:
            hint = f"did you mean {suggestion}? --force goes on"
        raise UsageError(f"no box is of the class {unseen_names[0]}", hint)

    _require_low_scores(inputs, records)
    if inputs.cut_off_count:
        images = pluralize(inputs.cut_off_count, "image")
        raise UsageError(
            f"{images} have as many boxes as --max-det allows, none of them of "
            f"{wanted_classes}, so that their scores are not known",
            "run predict with --classes, or a larger --max-det; --force goes on",
        )


def _names_text(names: Collection[str]) -> str:
    """List the names of the classes that records have, or a part of them."""
    if not names:
        return "no boxes at all"
    text = ", ".join(sorted(names)[:SHOWN_CLASSES])
    if len(names) > SHOWN_CLASSES:
        text += f" and {len(names) - SHOWN_CLASSES} more"
    return text


def _require_low_scores(inputs: InputColumns, records: str) -> None:
    """Refuse records that lack low scores, as most of their images then have no score at all.

    Args:
        inputs: The images and videos of the records.
        records: The name of the records, for the message.

    Raises:
        UsageError: The scores begin above MAX_LOWEST_SCORE.
    """
    # The confidence that predict ran with. Where the records do not say it, the lowest score in
    # them, which is infinite if they have no detection.
    scores_begin_at = inputs.settings.get("conf", inputs.lowest_score)
    has_no_detection = isinf(scores_begin_at)
    if scores_begin_at <= MAX_LOWEST_SCORE or has_no_detection:
        return

    without_box_count = 0
    for score in inputs.scores:
        if score == 0:  # an image without a box of a wanted class
            without_box_count += 1
    raise UsageError(
        f"the scores in {records} begin at {scores_begin_at:.3g}, above {MAX_LOWEST_SCORE}: what "
        f"is lower is missing, and the {without_box_count:,} of {len(inputs):,} images without a "
        "score cannot be told from one another",
        "run predict with --conf 0.001; --force goes on",
    )


def file_hash(records: str) -> str | None:
    """Return the SHA-256 of a file of records; None for the folder of a run in shards."""
    if is_object(records) or not Path(records).is_file():
        return None
    return sha256(Path(records))


def read_units_of(deck: "Deck", records: str, advance: Callable[[str], object]) -> "Units":
    """Read the units of a review, images or groups of images, from its records again.

    Args:
        deck: The review, which says what was looked for, and has the hash of the scores.
        records: The path or URL of the records, which may have moved since the deal.
        advance: Is called with the source of each record.

    Raises:
        UsageError: The records are gone, or their scores have changed since the review was dealt.
    """
    from detcli.commands.promise.units import make_units

    if not is_object(records) and not Path(records).exists():
        raise UsageError(f"{records} is gone", "name the records of the review with --records")

    inputs = read_inputs(records, WantedClasses(deck.classes), deck.kind, advance)
    units = make_units(inputs, deck.kind, deck.seed)
    require_unchanged(deck.scores_sha256, units, records)
    return units


def require_unchanged(scores_sha256: str, units: "Units", records: str) -> None:
    """Refuse records whose scores differ from those that a review was made from.

    Args:
        scores_sha256: The hash of the names and scores that the review was made from.
        units: The images of the records, or groups of images, with their scores now.
        records: The name of the records, for the message.

    Raises:
        UsageError: A name or a score differs.
    """
    if units.scores_sha256 != scores_sha256:
        raise UsageError(
            f"{records} has changed since the deal: the hash of its scores is "
            f"{units.scores_sha256[:12]}, and was {scores_sha256[:12]}",
            "a promise holds for the records that it was dealt from: deal anew for other records; "
            "--keep-labels FOLDER keeps what was seen above the threshold",
        )
