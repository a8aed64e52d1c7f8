"""Labels of an earlier review that still count: of units above, whose images did not change."""

from collections.abc import Collection, Mapping
from pathlib import Path

from detcli.commands.promise.deck import read_deck, review_id_of
from detcli.commands.promise.images import UnitCopies, read_copies
from detcli.commands.promise.labels import LABELS, read_labels_of_review
from detcli.core import Fields


def kept_lines(
    earlier_review: Path,
    above: Collection[str],
    copies: Mapping[str, UnitCopies],
    review_id: str,
) -> list[Fields]:
    """Return the labels of an earlier review that a new one takes over, as labels of the new one.

    Only those of units above the threshold are: what is dealt from below is looked at anew, as the
    promise rests on it.

    Args:
        earlier_review: The folder of the earlier review.
        above: The names of the units above that are looked at now.
        copies: The copies of their images, which know the hashes of the files.
        review_id: What tells the new review from others.

    Raises:
        UsageError: The folder is not that of a review, or has labels of another one.
        SourceError: It has no labels.
    """
    earlier_copies = read_copies(earlier_review)
    lines = []
    earlier_id = review_id_of(read_deck(earlier_review))
    for fields in read_labels_of_review(earlier_review / LABELS, earlier_id):
        name = fields["source"]
        if name not in above or name not in earlier_copies:
            continue
        earlier_hashes = [image["sha256"] for image in earlier_copies[name]["images"]]
        if earlier_hashes == list(copies[name].sha256):
            lines.append({**fields, "review": review_id})
    return lines
