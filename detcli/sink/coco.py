"""COCO results, as `loadRes` of pycocotools reads them."""

import json
import re
import warnings
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

from detcli.detections import Detections
from detcli.errors import DetcliWarning, UsageError
from detcli.files import read_json
from detcli.model.names import COCO, COCO_IDS
from detcli.record import Record
from detcli.sink import Output
from detcli.sink.json import JsonArray

COCO_ID_OF = dict(zip(COCO, COCO_IDS, strict=True))
ID_IN_STEM = re.compile(r"(?:COCO_\w+_)?([0-9]{1,18})")  # as in COCO 2017 and 2014


class CocoIds:
    """The COCO ids of pictures and classes, taken from their names.

    A picture named by a number, like COCO's 000000000009.jpg, has that id; any other has its place
    among the inputs, from 1. Classes have COCO's ids if all of COCO's 80 are among them, else their
    own.
    """

    def image_id(self, record: Record) -> int:
        """Id of a picture.

        Raises:
            UsageError: The picture has no id.
        """
        match = ID_IN_STEM.fullmatch(PurePath(record.origin.source).stem)
        if match and record.origin.frame is None:
            return int(match[1])
        return record.index + 1

    def category_id(self, class_id: int, names: tuple[str, ...]) -> int | None:
        """Id of a class of the model; None to leave the class out.

        Raises:
            UsageError: None of the classes has an id.
        """
        if names == COCO:
            return COCO_IDS[class_id]
        if not COCO_ID_OF.keys() <= set(names):
            return class_id
        return COCO_ID_OF.get(names[class_id])  # None for numbers that COCO does not use


class CocoIdsFromFile(CocoIds):
    """The ids of an `instances.json`: pictures by file name, classes by name.

    If the file has no categories, classes have their usual ids.
    """

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            UsageError: The file cannot be read, or is not an instances.json.
        """
        self._path = path
        content = read_json(path, _unusable)
        try:
            ids = {str(image["file_name"]): int(image["id"]) for image in content["images"]}
            self._categories = {
                _plain(category["name"]): int(category["id"])
                for category in content.get("categories") or ()
            }
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise _unusable(path, "not a COCO instances.json") from error
        by_name: dict[str, set[int]] = {}
        for name, image_id in ids.items():
            by_name.setdefault(PurePath(name).name, set()).add(image_id)
        alone = {name: min(found) for name, found in by_name.items() if len(found) == 1}
        self._images = alone | ids
        self._left_out: set[str] = set()

    def image_id(self, record: Record) -> int:
        """Id of the picture whose file name the source ends with."""
        parts = PurePath(record.origin.source).parts
        for first in range(len(parts)):
            found = self._images.get("/".join(parts[first:]))
            if found is not None and record.origin.frame is None:
                return found
        raise UsageError(
            f"{record.origin.source} is not among the images of {self._path}",
            "name only its pictures, or leave out --coco-images to take ids from file names",
        )

    def category_id(self, class_id: int, names: tuple[str, ...]) -> int | None:
        """Id of the category of the same name; a class without one is left out, with a warning."""
        if not self._categories:
            return super().category_id(class_id, names)
        name = names[class_id]
        found = self._categories.get(_plain(name))
        if found is not None or name in self._left_out:
            return found
        if self._categories.keys().isdisjoint(map(_plain, names)):
            raise UsageError(
                f"none of the model's classes is a category of {self._path}",
                "rename the model's classes to its categories with --names FILE",
            )
        self._left_out.add(name)
        message = f"{name} is not a category of {self._path}: left out of the COCO results"
        warnings.warn(DetcliWarning(message), stacklevel=2)
        return None


def _plain(name: object) -> str:
    return str(name).strip().casefold()


def _unusable(path: Path, reason: str) -> UsageError:
    return UsageError(
        f"cannot read the ids of pictures from {path}: {reason}",
        "a COCO instances.json has images with id and file_name, and categories with id and name",
    )


class CocoSink:
    """One JSON array of `{"image_id", "category_id", "bbox": [x, y, width, height], "score"}`.

    The elements of each picture are written at once, so memory does not grow with the results.
    """

    def __init__(self, output: Output, ids: CocoIds) -> None:
        self._array = JsonArray(output)
        self._ids = ids
        self._image_ids: set[int] = set()

    def write(self, record: Record) -> None:
        """Write the elements of one picture.

        Raises:
            UsageError: The picture has no id, or that of an earlier one.
            OutputError: The elements could not be written.
        """
        if record.detections is None:
            return
        image_id = self._ids.image_id(record)
        if image_id in self._image_ids:
            raise UsageError(
                f"{record.origin.source} has the COCO image id {image_id} of an earlier picture",
                "name each picture once, or give other ids with --coco-images FILE",
            )
        self._image_ids.add(image_id)
        self._array.extend(map(json.dumps, self._elements(image_id, record.detections)))

    def close(self) -> None:
        """Close the array, and make the file visible."""
        self._array.close()

    def _elements(self, image_id: int, detections: Detections) -> Iterator[dict[str, Any]]:
        """The detections of a picture whose classes have a category."""
        for box, score, class_id, _ in detections:
            category_id = self._ids.category_id(class_id, detections.names)
            if category_id is not None:
                left, top, right, bottom = map(float, box)
                sides = left, top, right - left, bottom - top
                yield {
                    "image_id": image_id,
                    "category_id": category_id,
                    "bbox": [round(side, 3) for side in sides],
                    "score": round(score, 6),
                }
