"""COCO's `instances.json`: pictures, categories and boxes in one file.

The format is that of https://cocodataset.org/#format-data: boxes are x, y, width, height in pixels.
"""

import math
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from detcli.commands.shared.labelled.dataset import (
    OBJECT,
    Category,
    Dataset,
    Findings,
    Kind,
    Object,
    Sample,
    are_coordinates,
)
from detcli.errors import UsageError
from detcli.files import read_json

MALFORMED = (LookupError, TypeError, ValueError, AttributeError, OverflowError)


def read_coco(path: Path, images: Path | None, findings: Findings) -> Dataset:
    """Read an `instances.json`.

    Args:
        path: The file.
        images: The folder of its pictures; None for `images` beside the file.
        findings: Receives problems with the file.

    Raises:
        UsageError: The file is not an `instances.json`, or the folder does not exist.
    """
    content = read_json(path, _unusable)
    if not isinstance(content, dict):
        results = "it is a list, as COCO results are; labels are needed here"
        other = "it is not a COCO instances.json"
        raise _unusable(path, results if isinstance(content, list) else other)
    for part in ("images", "categories", "annotations"):
        if not isinstance(content.get(part), list):
            raise _unusable(path, f"it has no list of {part}")
    folder = images or path.with_name("images")
    if not os.path.isdir(folder):
        raise UsageError(f"{folder}: no such folder", "name the pictures' folder: --images FOLDER")
    try:
        pictures = {int(image["id"]): image for image in reversed(content["images"])}
        names = {number: str(image["file_name"]) for number, image in pictures.items()}
        categories, index = _categories(content["categories"], findings)
    except MALFORMED as error:
        reason = "its images or categories lack a name, or an id that is a number"
        raise _unusable(path, reason) from error
    for number, count in Counter(int(image["id"]) for image in content["images"]).items():
        findings.add(Kind.REPEATED, f"{names[number]} (id {number})", count - 1)
    objects = _objects(content["annotations"], index, names, findings)
    # Data lists `val2014/name.jpg` where the folder has `name.jpg`; safe if no other has that name.
    last_parts = Counter(_relative(name).name for name in names.values())
    samples = []
    for number, name in sorted(names.items()):
        relative = _relative(name)
        inside = not relative.is_absolute() and ".." not in relative.parts
        places = [folder / relative] if inside else []
        if last_parts[relative.name] == 1:
            places.append(folder / relative.name)
        found = next(filter(os.path.isfile, places), None)
        rows = np.array(objects[number], OBJECT)
        samples.append(Sample(name, found, number, _size(pictures[number]), rows))
    return Dataset("coco", None, categories, named=True, samples=samples, origins=(path,))


def _unusable(path: Path, reason: str) -> UsageError:
    return UsageError(
        f"cannot evaluate on {path}: {reason}",
        "give a COCO instances.json: images (id, file_name), categories (id, name), "
        "annotations (image_id, category_id, bbox)",
    )


def _categories(
    listed: Iterable[Mapping[str, Any]], findings: Findings
) -> tuple[tuple[Category, ...], dict[int, int]]:
    """The categories by id, and the index of each id among them."""
    found: dict[str, tuple[int, Category]] = {}  # by name, each with its index
    index: dict[int, int] = {}
    for category in sorted(listed, key=lambda entry: int(entry["id"])):
        number, name = int(category["id"]), str(category["name"]).strip()
        key = name.casefold()
        if number in index or key in found:
            findings.add(Kind.REPEATED_CATEGORY, f"{name} (id {number})")
        if number not in index:
            index[number], _ = found.setdefault(key, (len(found), Category(number, name)))
    return tuple(category for _, category in found.values()), index


def _objects(
    annotations: Iterable[Any],
    index: Mapping[int, int],
    names: Mapping[int, str],
    findings: Findings,
) -> Mapping[int, list[Object]]:
    objects: defaultdict[int, list[Object]] = defaultdict(list)
    for place, annotation in enumerate(annotations):
        try:
            number, category = int(annotation["image_id"]), int(annotation["category_id"])
            x, y, width, height = map(float, annotation["bbox"])
            area = -1.0 if (given := annotation.get("area")) is None else float(given)
            crowd, ignored = (bool(int(annotation.get(key) or 0)) for key in ("iscrowd", "ignore"))
        except MALFORMED:
            findings.add(Kind.BAD_LABEL, f"annotations[{place}]")
            continue
        if not are_coordinates((x, y, width, height)):
            findings.add(Kind.BAD_LABEL, f"annotations[{place}]: its bbox is out of range")
        elif number not in names:
            findings.add(Kind.UNKNOWN_PICTURE, f"annotations[{place}]: image_id {number}")
        elif category not in index:
            findings.add(Kind.UNKNOWN_CATEGORY, f"{names[number]}: category_id {category}")
        else:
            known = area if 0 <= area < math.inf else math.nan  # some tools write -1
            box = x, y, width, height
            objects[number].append(Object(box, index[category], known, crowd, ignored))
    return objects


def _size(image: Mapping[str, Any]) -> tuple[int, int] | None:
    try:
        return int(image["height"]), int(image["width"])
    except MALFORMED:
        return None


def _relative(name: str) -> PurePosixPath:
    return PurePosixPath(name.replace("\\", "/"))  # Windows writes backslashes
