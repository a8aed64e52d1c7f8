"""COCO results as the second side of a comparison: detections by picture."""

import json
import warnings
import zlib
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np

from detcli.commands.shared.saved import MAX_CLASS, MAX_NUMBER, open_lines
from detcli.errors import SourceError, UsageError, system_reason
from detcli.model.names import COCO, COCO_IDS
from detcli.record import Origin, Record, RecordJson
from detcli.sink.labels import COCO_ID_OF, CocoIds

PEEK = 4096
"""Bytes in which the first element of COCO results shows what it is."""

ROW = np.dtype([
    ("image", np.int64), ("category", np.int64), ("box", np.float32, 4), ("score", np.float32)
])  # fmt: skip

MALFORMED = (LookupError, TypeError, ValueError, OverflowError)

BoxRows = list[tuple[list[float], float, int, str]]
"""Boxes x1, y1, x2, y2 with their scores, class ids and names."""


def is_results(path: Path) -> bool:
    """Whether a file is an array of COCO results."""
    try:
        with open_lines(path) as file:
            begins = file.read(PEEK)
    except (OSError, EOFError, zlib.error, ValueError):  # ValueError: no file can have this name
        return False
    return begins.lstrip()[:1] == b"[" and b'"image_id"' in begins.partition(b"}")[0]


class CocoResults:
    """COCO results, which are held as a whole, 40 bytes a box.

    Attributes:
        name: The file.
        asked: Image ids that records had.
    """

    def __init__(self, name: str, path: Path, ids: CocoIds, classes: Mapping[int, str]) -> None:
        """Read a file.

        Args:
            name: As the user gave it.
            path: Where to read it.
            ids: Gives records their image ids, and classes their category ids.
            classes: Names of the classes of the other side, by id.

        Raises:
            SourceError: It cannot be read.
            UsageError: It is something else, or has no category of the classes.
        """
        self.name = name
        self.asked: set[int] = set()
        self._ids = ids
        rows = _read(path)
        by_score = np.argsort(-rows["score"], kind="stable")
        rows = rows[by_score][np.argsort(rows["image"][by_score], kind="stable")]
        images, starts = np.unique(rows["image"], return_index=True)
        ends = (*starts.tolist(), len(rows))
        self._rows = rows
        self._places = dict(zip(images.tolist(), pairwise(ends), strict=True))
        categories = set(np.unique(rows["category"]).tolist())
        self._classes = _classes(ids, classes, categories)

    def rows(self, fields: RecordJson) -> BoxRows:
        """The boxes of the picture of a record, best first.

        Raises:
            UsageError: The picture has no image id.
        """
        index = fields.get("index")
        if not isinstance(index, int):
            raise UsageError("a record has no index", "name records that detcli wrote")
        origin = Origin(fields["source"], frame=fields.get("frame"))
        image = self._ids.image_id(Record(origin, index, "", ""))
        self.asked.add(image)
        found: BoxRows = []
        for row in self._rows[slice(*self._places.get(image, (0, 0)))]:
            class_id, name = self._class(int(row["category"]))
            found.append((row["box"].tolist(), float(row["score"]), class_id, name))
        return found

    def left_over(self) -> list[str]:
        """Pictures that no record was about."""
        return [f"image_id {image}" for image in self._places if image not in self.asked]

    def _class(self, category: int) -> tuple[int, str]:
        """Class id and name of a category; one that the other side has not found has its own."""
        known = self._classes.get(category)
        return known or (MAX_CLASS + category % MAX_CLASS, f"category {category}")


def _read(path: Path) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """The rows of a file, in its order."""
    try:
        with open_lines(path) as file:
            elements = json.load(file)
    except (OSError, EOFError, zlib.error) as error:
        raise SourceError(f"cannot read {path}: {system_reason(error)}", "check it") from error
    except (ValueError, RecursionError) as error:
        raise _unusable(path, "it is not JSON") from error
    if not isinstance(elements, list):
        raise _unusable(path, "it is not a list")
    rows = np.empty(len(elements), ROW)
    for place, element in enumerate(elements):
        try:
            x, y, width, height = map(float, element["bbox"])
            numbers = x, y, x + width, y + height, float(element["score"])
            finite = all(abs(one) < MAX_NUMBER for one in numbers)
            ids = int(element["image_id"]), int(element["category_id"])
            rows[place] = (*ids, numbers[:4], numbers[4]) if finite else (*ids, (0, 0, 0, 0), 0)
        except MALFORMED:
            raise _unusable(path, f"element {place} lacks a field") from None
        if not finite:
            raise _unusable(path, f"a number of element {place} is not finite")
    return rows


def _unusable(path: Path, reason: str) -> UsageError:
    return UsageError(
        f"cannot compare with {path}: {reason}",
        "give COCO results: a list of image_id, category_id, bbox and score",
    )


def _classes(
    ids: CocoIds, seen: Mapping[int, str], categories: Iterable[int]
) -> Mapping[int, tuple[int, str]]:
    """Class id and name of each category, in the numbering that `--save-coco` would have used."""
    names = tuple(seen.get(class_id, "") for class_id in range(max(seen, default=-1) + 1))
    for whole in (COCO, *map(_numbered_from, (0, 1))):
        if set(categories) <= set(COCO_IDS) and all(
            class_id < len(whole) and whole[class_id] == name for class_id, name in seen.items()
        ):
            names = whole
            break
    found: dict[int, tuple[int, str]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of classes without a category, of which none may be found
        for class_id, name in enumerate(names):
            category = ids.category_id(class_id, names) if name else None
            if category is not None:
                found.setdefault(category, (class_id, name))
    return found


def _numbered_from(first: int) -> tuple[str, ...]:
    """Names of a model with a class for each number of COCO."""
    by_number = {number: name for name, number in COCO_ID_OF.items()}
    return tuple(by_number.get(number, "") for number in range(first, 91))
