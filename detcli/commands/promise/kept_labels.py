"""Labels of an earlier review that still count: of units above, whose images did not change."""

from collections.abc import Collection, Mapping
from pathlib import Path

from detcli.commands.promise.images import UnitCopies, read_copies
from detcli.commands.promise.labels import LABELS, read_labels
from detcli.core import Fields


def kept_lines(
    earlier_review: Path, above: Collection[str], copies: Mapping[str, UnitCopies]
) -> list[Fields]:
    """Return the labels of an earlier review that a new one takes over.

    Only those of units above the threshold are: what is dealt from below is looked at anew, as the
    promise rests on it.

    Args:
        earlier_review: The folder of the earlier review.
        above: The names of the units above that are looked at now.
        copies: The copies of their images, which know the hashes of the files.

    Raises:
        UsageError: The folder is not that of a review.
        SourceError: It has no labels.
    """
    earlier_copies = read_copies(earlier_review)
    lines = []
    for fields in read_labels(earlier_review / LABELS):
        name = fields["source"]
        if name not in above or name not in earlier_copies:
            continue
        earlier_hashes = [image["sha256"] for image in earlier_copies[name]["images"]]
        if earlier_hashes == list(copies[name].sha256):
            lines.append(fields)
    return lines
