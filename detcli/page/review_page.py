"""The review page, on which a person says whether something is in an image.

    index.html, files/         what shows any review
    data/deck.js               what is reviewed
    data/0.js, data/1.js       the looks in chunks, in the order in which they are asked for
    images/0001.jpg            the images, which the caller writes wherever it wants in the folder

Data are scripts, as a page from a disk may load those and nothing else. They call two functions of
files/review.js, which has no other source of data:

    deck({id, review, wanted, rounds, looks, chunks})
        id          keys what the browser keeps: labels of one page do not belong to another
        review      tells the review from others; labels have it
        wanted      the class that is looked for, as text
        rounds      how many looks each round has
        looks       how many there are in all
        chunks      how many chunks of looks there are

    looks([{source, round, pass, images: [{file, boxes}, ...]}, ...])
        source      the name of the unit, as in labels; it is never shown
        round       which round it belongs to, from 1
        pass        1, or 2 for the second look at a unit
        file        the address of an image, relative to the page
        boxes       [left, top, right, bottom] of each, as fractions of the image

The page answers with lines of labels.jsonl, in the order of answering; lines are only added:

    {"source": "a.jpg", "animal": 1, "who": "anna", "at": "2026-11-28T15:01:07Z", "seconds": 1.2,
     "pass": 1, "boxes_seen": false, "review": "1f0c6a5e9d24b730"}
        animal      1 or 0 whatever the class is, null if the reviewer is unsure, or "undo", which
                    withdraws the latest answer of the same source, reviewer and pass
        seconds     how long the reviewer looked; an equal share for each look of a grid
        boxes_seen  whether the reviewer has had boxes shown
        review      that of the data

Whatever the page shows must not tell why a look is in the deck, so it has neither names nor scores.
"""

from collections import Counter
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from detcli.page.folder import script_call
from detcli.storage.files import make_folder, write_file

CHUNK_LOOKS = 1000
FILES = {
    "review.html": "index.html",
    "parts.js": "files/parts.js",
    "review.js": "files/review.js",
    "review.css": "files/review.css",
    "page.css": "files/page.css",
    "icon.svg": "files/icon.svg",
}
"""Where the page has each of its files."""


class ReviewImage(NamedTuple):
    """An image that the page shows."""

    file: str
    """The path of the JPEG, relative to the folder of the page, with "/" between its parts."""

    boxes: Sequence[tuple[float, float, float, float]]
    """Left, top, right and bottom of each box, as fractions of the image; hidden at first."""


MISSING = ReviewImage("", ())
"""Shown for a look without images: a sentence that says that there are none."""


class Look(NamedTuple):
    """What a reviewer looks at and answers at once: an image, a burst of them or a video.

    The page is never told why a look is in the deck.
    """

    source: str
    """The name of the unit, as in labels."""

    images: Sequence[ReviewImage]
    """In the order of time; the page plays several at two a second."""

    round: int
    """The round that it belongs to, from 1."""

    pass_: int
    """1, or 2 for the second look at a unit."""


def write_review_page(
    folder: Path, *, deck_id: str, review_id: str, class_name: str, looks: Sequence[Look]
) -> None:
    """Write a review page, in place of any existing one in the folder.

    A look is what the reviewer looks at and answers at once, such as an image or a burst of them.

    Args:
        folder: The folder of the page, in which the images are or will be.
        deck_id: Distinguishes this page from others, so that the browser keeps the labels of each
            apart.
        review_id: Distinguishes the review from others; a review may have several pages.
        class_name: The class that the reviewer looks for, such as "animal".
        looks: The looks in the order in which the page shows them. Their rounds are numbered from 1
            without gaps.

    Raises:
        OutputError: It cannot be written.
    """
    for subfolder in ("files", "data"):
        make_folder(folder / subfolder)
    for packaged_name, page_path in FILES.items():
        file = resources.files(__package__).joinpath("files", packaged_name)
        write_file(folder / page_path, file.read_bytes())

    chunk_starts = range(0, len(looks), CHUNK_LOOKS)
    for chunk_number, start in enumerate(chunk_starts):
        chunk = [_look_json(look) for look in looks[start : start + CHUNK_LOOKS]]
        write_file(folder / f"data/{chunk_number}.js", script_call("looks", chunk))

    look_count_by_round = Counter(look.round for look in looks)
    deck = {
        "id": deck_id,
        "review": review_id,
        "wanted": class_name,
        "rounds": [look_count_by_round[number] for number in sorted(look_count_by_round)],
        "looks": len(looks),
        "chunks": len(chunk_starts),
    }
    write_file(folder / "data/deck.js", script_call("deck", deck))


def _look_json(look: Look) -> dict[str, Any]:
    """Describe a look for the page."""
    images = []
    for image in look.images or [MISSING]:
        boxes = []
        for box in image.boxes:
            boxes.append([round(edge, 4) for edge in box])
        images.append({"file": quote(image.file), "boxes": boxes})
    return {"source": look.source, "round": look.round, "pass": look.pass_, "images": images}
