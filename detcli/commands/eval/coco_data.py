"""COCO's `instances.json`: pictures, categories and boxes in one file.

The format is that of https://cocodataset.org/#format-data: boxes are x, y, width, height in pixels.
"""

import math
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from detcli.commands.eval.dataset import Category, Dataset, Form, Sample
from detcli.commands.eval.findings import (
    BAD_LABEL,
    MISSING,
    REPEATED,
    REPEATED_CATEGORY,
    UNKNOWN_CATEGORY,
    UNKNOWN_PICTURE,
    Findings,
)
from detcli.commands.eval.objects import Object, Objects
from detcli.errors import UsageError
from detcli.files import read_json

BESIDE = "images"
"""The folder beside the file that its pictures are in unless --images says otherwise."""

MALFORMED = (LookupError, TypeError, ValueError, AttributeError, OverflowError)


def read_coco(path: Path, images: Path | None, findings: Findings) -> Dataset:
    """Read an `instances.json`.

    Args:
        path: The file.
        images: The folder of its pictures; None is `images` beside the file.
        findings: Is told what is wrong with it.

    Raises:
        UsageError: It is none, or there is no such folder.
    """
    content = read_json(path, _unusable)
    if reason := _missing_part(content):
        raise _unusable(path, reason)
    folder = _folder(path, images)
    try:
        pictures = {int(image["id"]): image for image in reversed(content["images"])}
        names = {number: str(image["file_name"]) for number, image in pictures.items()}
        categories, index = _categories(content["categories"], findings)
    except MALFORMED as error:
        raise _unusable(
            path, "its images or categories lack a name, or an id that is a number"
        ) from error
    for number, count in Counter(int(image["id"]) for image in content["images"]).items():
        findings.add(REPEATED, f"{names[number]} (id {number})", count - 1)
    objects = _objects(content["annotations"], index, names, findings)
    files = _Files(folder, names.values())
    samples = []
    for number, name in sorted(names.items()):
        found = files.find(name)
        if found is None:
            findings.add(MISSING, name)
        gathered = Objects.of(objects[number])
        samples.append(Sample(name, found, number, _size(pictures[number]), gathered))
    return Dataset(Form.COCO, None, categories, named=True, samples=samples, relative=False)


def _unusable(path: Path, reason: str) -> UsageError:
    return UsageError(
        f"cannot evaluate on {path}: {reason}",
        "give a COCO instances.json: images (id, file_name), categories (id, name), "
        "annotations (image_id, category_id, bbox)",
    )


def _missing_part(content: object) -> str:
    """Why a file is no `instances.json`; empty if it looks like one."""
    if isinstance(content, list):
        return "it is a list, as COCO results are; labels are needed here"
    if not isinstance(content, dict):
        return "it is no COCO instances.json"
    for part in ("images", "categories", "annotations"):
        if not isinstance(content.get(part), list):
            return f"it has no list of {part}"
    return ""


def _folder(path: Path, images: Path | None) -> Path:
    folder = images or path.with_name(BESIDE)
    if os.path.isdir(folder):
        return folder
    if images is not None:
        raise UsageError(f"--images {images}: there is no such folder", "check the path")
    raise UsageError(
        f"where are the pictures of {path}? There is no folder {BESIDE} beside it",
        "name their folder: --images FOLDER",
    )


def _categories(
    listed: Iterable[Mapping[str, Any]], findings: Findings
) -> tuple[tuple[Category, ...], dict[int, int]]:
    """The categories by id, and the index of each id among them."""
    found: dict[str, int] = {}  # index by name
    categories: list[Category] = []
    index: dict[int, int] = {}
    for category in sorted(listed, key=lambda entry: int(entry["id"])):
        number, name = int(category["id"]), str(category["name"]).strip()
        if number in index or name.casefold() in found:
            findings.add(REPEATED_CATEGORY, f"{name} (id {number})")
        if number not in index:
            if name.casefold() not in found:
                found[name.casefold()] = len(categories)
                categories.append(Category(number, name))
            index[number] = found[name.casefold()]
    return tuple(categories), index


def _objects(
    annotations: Iterable[Any],
    index: Mapping[int, int],
    names: Mapping[int, str],
    findings: Findings,
) -> Mapping[int, list[Object]]:
    """The objects of each picture, by its id."""
    objects: defaultdict[int, list[Object]] = defaultdict(list)
    for place, annotation in enumerate(annotations):
        try:
            number, category = int(annotation["image_id"]), int(annotation["category_id"])
            x, y, width, height = map(float, annotation["bbox"])
            area = _area(annotation)
            crowd, ignored = (bool(int(annotation.get(key) or 0)) for key in ("iscrowd", "ignore"))
        except MALFORMED:
            findings.add(BAD_LABEL, f"annotations[{place}]")
            continue
        if not all(map(math.isfinite, (x, y, width, height))):
            findings.add(BAD_LABEL, f"annotations[{place}]: its bbox is not finite")
        elif number not in names:
            findings.add(UNKNOWN_PICTURE, f"annotations[{place}]: image_id {number}")
        elif category not in index:
            findings.add(UNKNOWN_CATEGORY, f"{names[number]}: category_id {category}")
        else:
            found = Object((x, y, width, height), index[category], area, crowd, ignored)
            objects[number].append(found)
    return objects


def _area(annotation: Mapping[str, Any]) -> float:
    """NaN, for that of the box, where there is none that an object can have, as -1."""
    area = annotation.get("area")
    return math.nan if area is None or not 0 <= float(area) < math.inf else float(area)


def _size(image: Mapping[str, Any]) -> tuple[int, int] | None:
    try:
        return int(image["height"]), int(image["width"])
    except MALFORMED:
        return None


class _Files:
    """The files of a folder, by the names that the data gives them. None outside is looked at."""

    def __init__(self, folder: Path, names: Iterable[str]) -> None:
        self._folder = folder
        # Data lists `val2014/name.jpg` where the folder has `name.jpg`; clear if it is one name.
        self._alone = Counter(PurePosixPath(_slashes(name)).name for name in names)

    def find(self, name: str) -> Path | None:
        """The file; None if there is none."""
        relative = PurePosixPath(_slashes(name))
        inside = not relative.is_absolute() and ".." not in relative.parts
        if inside and os.path.isfile(found := self._folder / relative):
            return found
        if self._alone[relative.name] == 1 and os.path.isfile(
            found := self._folder / relative.name
        ):
            return found
        return None


def _slashes(name: str) -> str:
    return name.replace("\\", "/")  # as Windows writes paths
