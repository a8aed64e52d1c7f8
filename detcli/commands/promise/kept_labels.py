"""Labels of an earlier review that still hold: of units above, whose images did not change."""

from collections.abc import Collection, Mapping
from pathlib import Path

from detcli.commands.promise.deck import read_deck, review_id_of
from detcli.commands.promise.images import UnitCopies, read_copies
from detcli.commands.promise.labels import LABELS, read_labels_of_review
from detcli.core import Fields


def labels_still_valid(
    earlier_review: Path,
    names_above: Collection[str],
    copies: Mapping[str, UnitCopies],
    review_id: str,
) -> list[Fields]:
    """Return the labels of an earlier review that hold in a new one, as lines of labels.jsonl.

    A unit is an image or several that are labelled together, such as a video. Its label holds if
    detcli scored the unit above the threshold, and its image files have not changed. Units below
    the threshold are labelled again, as the promise of how many animals are missed rests on them.

    Args:
        earlier_review: The folder of the earlier review.
        names_above: The names of the units above the threshold in the new review.
        copies: By the name of a unit, the copies of its images, with the hashes of their files.
        review_id: What tells the new review from others; the returned labels have it.

    Raises:
        UsageError: The folder is not that of a review, or has labels of a different one.
        SourceError: It has no labels.
    """
    earlier_copies = read_copies(earlier_review)
    earlier_id = review_id_of(read_deck(earlier_review))
    valid_labels = []
    for label in read_labels_of_review(earlier_review / LABELS, earlier_id):
        name = label["source"]
        if name not in names_above or name not in earlier_copies:
            continue
        earlier_hashes = [image["sha256"] for image in earlier_copies[name]["images"]]
        hashes = list(copies[name].sha256)
        if earlier_hashes == hashes:
            valid_labels.append({**label, "review": review_id})
    return valid_labels
