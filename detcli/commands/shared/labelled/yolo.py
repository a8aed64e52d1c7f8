"""YOLO's data: a text file per picture, its lines `class cx cy w h` in fractions of the sides.

    data.yaml      path, train, val, test; names (a list or a mapping) or nc
    a list         .txt, one picture a line
    a folder       its pictures, and those of its subfolders

The labels of `a/images/b/c.jpg` are in `a/labels/b/c.txt`, else beside the picture. A line with a
polygon, `class x y x y x y ...`, stands for the box around it. A picture without labels, or without
a label file, is background. YOLO's trainers read data the same way, see
https://docs.ultralytics.com/datasets/detect/.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Event
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
from detcli.commands.shared.saved import MAX_CLASS
from detcli.errors import SourceError, UsageError
from detcli.model.names import COCO, COCO_IDS, parse_names
from detcli.source.folders import is_video, search
from detcli.source.item import Item
from detcli.source.lists import read_list

NOTHING = frozenset({"", "~", "null"})  # the null of YAML
KEYS = frozenset({"path", "train", "val", "test", "names", "nc"})
"""What is read of a `data.yaml`."""

DESCRIPTIONS = ("data.yaml", "data.yml", "dataset.yaml", "dataset.yml")


def read_yolo(data: Path, split: str | None, class_count: int, findings: Findings) -> Dataset:
    """Read the labels of pictures.

    Args:
        data: A `data.yaml`, a list of pictures, or a folder.
        split: The part of a `data.yaml`; None for `val`.
        class_count: Number of categories where the data gives none.
        findings: Receives problems with the data.

    Raises:
        UsageError: The data cannot be read, or has no such part.
    """
    if data.is_dir():
        data = next(filter(Path.is_file, (data / name for name in DESCRIPTIONS)), data)
    content: Mapping[str, Any] = {}
    if data.suffix.lower() in {".yaml", ".yml"}:
        content = _read_yaml(data)
        split = split or "val"
        places, roots = _places(data, content, split)
    elif split is not None:
        raise UsageError(f"--split: {data} has no parts", "only a data.yaml has parts")
    else:
        places, roots = [data], [data.parent]
    names, named = _names(data, content, class_count)
    ids = COCO_IDS if names == COCO else range(len(names))
    categories = tuple(Category(*both) for both in zip(ids, names, strict=True))
    samples = _samples(_pictures(places, roots), len(names), findings)
    return Dataset("yolo", split, categories, named, samples, (data, *places))


def _read_yaml(path: Path) -> Mapping[str, Any]:
    """A `data.yaml`; scalars are text, so that a class may be named no."""
    import yaml

    hint = "give a data.yaml with val (a folder of pictures) and names (of the classes)"
    try:
        text = path.read_text(encoding="utf-8-sig")
        content = yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506 - makes only text
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}", hint) from error
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"cannot read {path}: it is not YAML: {reason}", hint) from error
    if not isinstance(content, dict):
        raise UsageError(f"{path} is not a data.yaml: it is not a mapping", hint)
    for key in KEYS & content.keys():  # a few lines of YAML may stand for lists of any size
        value = content[key]
        parts = value.values() if isinstance(value, dict) else value
        if not isinstance(value, str) and not all(isinstance(part, str) for part in parts):
            raise UsageError(f"{path} is not a data.yaml: {key} is nested", hint)
    return content


def _names(path: Path, content: Mapping[str, Any], classes: int) -> tuple[tuple[str, ...], bool]:
    """Names of the categories, and whether they come from the file and are more than numbers."""
    listed = content.get("names")
    hint = "make names a list, or a mapping from 0 on"
    if isinstance(listed, str) and listed not in NOTHING:
        raise UsageError(f"{path}: names is {listed!r}", hint)
    try:
        count = None if content.get("nc") in {None, *NOTHING} else int(content["nc"])
        names = parse_names(json.dumps(listed)) if isinstance(listed, list | dict) else []
    except (TypeError, ValueError):
        names, count = None, None
    if names is None or (count is not None and not 0 <= count < MAX_CLASS):
        raise UsageError(f"{path}: names or nc are malformed", f"{hint}, and nc their number")
    if not names:
        return tuple(f"class_{index}" for index in range(count or classes)), False
    if count not in {None, len(names)}:
        reason = f"nc is {count}, but names has {len(names)}"
        raise UsageError(f"{path}: {reason}", "correct one of the two")
    names = [name.strip() for name in names]
    return tuple(names), any(name != str(index) for index, name in enumerate(names))


def _places(
    path: Path, content: Mapping[str, Any], split: str
) -> tuple[list[Path], Sequence[Path]]:
    """The folders and lists of a part, and the folders that names in a list may be relative to."""
    wanted = content.get(split)
    entries = wanted if isinstance(wanted, list) else [wanted or ""]
    entries = [str(entry) for entry in entries if str(entry).strip() not in NOTHING]
    if not entries:
        splits = "train", "val", "test"
        has = [name for name in splits if str(content.get(name) or "") not in NOTHING]
        raise UsageError(
            f"{path} has no part '{split}'",
            f"it has {', '.join(has)}: --split {has[0]}" if has else "name its folder of pictures",
        )
    root = Path(str(content.get("path") or "."))
    # Trainers take `path` from where they run, and exporters write `../val/images` for val/images.
    roots = [path.parent / root, Path.cwd() / root, path.parent]
    places = []
    for entry in entries:
        spellings = (entry, entry.removeprefix("../"))
        tried = [base / spelling for spelling in spellings for base in roots]
        place = next(filter(os.path.exists, tried), None)
        if place is None:
            raise UsageError(
                f"{path}: its {split} pictures do not exist: {tried[0]}",
                "correct path, or run detcli in the folder that path is relative to",
            )
        places.append(place)
    return places, roots


def _pictures(places: Iterable[Path], roots: Sequence[Path]) -> Iterator[str]:
    """The names of the pictures in folders and lists; a list may name missing ones.

    Names in a list are relative to it, to the root of the data, or to the working directory.
    """
    for place in places:
        if place.is_dir():
            for part in search(str(place), recursive=True):
                if isinstance(part, Item):
                    reason = f"{part.origin.source} cannot be listed"
                    raise UsageError(reason, "check its permissions")
                yield from (name for name in part if not is_video(name))
        elif place.suffix.lower() == ".txt":
            bases = place.parent, *roots, Path.cwd()
            for entry in read_list(str(place), Event(), null_separated=False):
                if isinstance(entry, SourceError):
                    raise UsageError(f"{place}: {entry}", entry.hint)
                if name := entry.strip():
                    tried = [os.path.join(base, name) for base in bases]
                    yield next(filter(os.path.isfile, tried), tried[0])
        else:
            raise UsageError(
                f"{place} is neither a folder of pictures nor a list of them",
                "give a data.yaml, a COCO instances.json, a folder, or a list (.txt)",
            )


def _samples(pictures: Iterable[str], class_count: int, findings: Findings) -> list[Sample]:
    unique: dict[str, str] = {}
    for name in pictures:
        key = os.path.abspath(name)
        if key in unique:
            findings.add(Kind.REPEATED, name)
        unique.setdefault(key, name)
    # Image ids are the names where all are numbers, as COCO's are; else the places, from 1.
    stems = [Path(name).stem for name in unique]
    numbers = [int(stem) for stem in stems if re.fullmatch(r"\d{1,18}", stem, re.ASCII)]
    if len(set(numbers)) < len(stems):
        numbers = list(range(1, len(stems) + 1))
    samples = []
    for number, (full, name) in zip(numbers, unique.items(), strict=True):
        there = os.path.isfile(full)
        labels = next(filter(os.path.isfile, _label_files(Path(full))), None)
        if labels is None and there:
            findings.add(Kind.UNLABELLED, name)
        objects = [] if labels is None else [*_read_labels(labels, class_count, findings)]
        path = Path(name) if there else None
        samples.append(Sample(name, path, number, None, np.array(objects, OBJECT), labels))
    return samples


def _label_files(picture: Path) -> Iterator[Path]:
    """Where a picture's labels may be, likeliest first."""
    root, images, name = str(picture).rpartition(f"{os.sep}images{os.sep}")
    if images:
        yield Path(f"{root}{os.sep}labels{os.sep}{name}").with_suffix(".txt")
    yield picture.with_suffix(".txt")


def _read_labels(path: Path, class_count: int, findings: Findings) -> Iterator[Object]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        findings.add(Kind.BAD_LABEL, f"{path}: {error}")
        return
    for number, line in enumerate(lines, 1):
        fields = line.split()
        if not fields:
            continue
        try:
            category, box = float(fields[0]), _box([float(field) for field in fields[1:]])
            if not category.is_integer():
                raise ValueError(f"class {fields[0]}")  # noqa: TRY301
        except ValueError as error:
            findings.add(Kind.BAD_LABEL, f"{path}:{number}: {error}")
            continue
        if 0 <= category < class_count:
            yield Object(box, int(category))
        else:
            findings.add(Kind.UNKNOWN_CATEGORY, f"{path}:{number}: class {category:.0f}")


def _box(numbers: list[float]) -> tuple[float, float, float, float]:
    """x, y, width, height in fractions, of a box or around a polygon."""
    if not are_coordinates(numbers):
        raise ValueError("a coordinate is out of range")
    if len(numbers) == 4:
        x, y, width, height = numbers
        return x - width / 2, y - height / 2, width, height
    if len(numbers) >= 6 and len(numbers) % 2 == 0:
        left, top = min(numbers[0::2]), min(numbers[1::2])
        return left, top, max(numbers[0::2]) - left, max(numbers[1::2]) - top
    raise ValueError(f"{len(numbers) + 1} numbers in a line")
