"""The review page, on which a person says of images whether something is in them."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from detcli.storage.files import make_folder, write_file


class ReviewImage(NamedTuple):
    """An image that the page shows."""

    file: str
    boxes: Sequence[tuple[float, float, float, float]]


class Look(NamedTuple):
    """What a reviewer looks at and answers at once: an image, a burst of them or a video."""

    source: str
    images: Sequence[ReviewImage]
    round: int
    pass_: int


def write_review_page(folder: Path, *, deck_id: str, wanted: str, looks: Sequence[Look]) -> None:
    """Write a review page; one that is in the folder is replaced."""
    make_folder(folder)
    write_file(folder / "index.html", f"{deck_id} {wanted} {len(looks)}".encode())
