"""Labelled pictures in COCO's and YOLO's form.

COCO's `instances.json` has pictures, categories and boxes in one file; boxes are x, y, width,
height in pixels (https://cocodataset.org/#format-data). YOLO's data is a text file per picture, its
lines `class cx cy w h` in fractions of the sides:

    data.yaml      path, train, val, test; names (a list or a mapping) or nc
    a list         .txt, one picture a line
    a folder       its pictures, and those of its subfolders

The labels of `a/images/b/c.jpg` are in `a/labels/b/c.txt`, else beside the picture. A line with a
polygon, `class x y x y x y ...`, stands for the box around it. Where a data.yaml has `kpt_shape`,
keypoints follow the box, `class cx cy w h x y x y ...`, and are passed over. A picture without
labels, or without a label file, is background (https://docs.ultralytics.com/datasets/detect/).
"""

import json
import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from threading import Event
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from detcli.commands.eval.findings import Findings, Kind
from detcli.core.errors import SourceError, UsageError
from detcli.data.detections import COCO, COCO_IDS
from detcli.data.record import MAX_CLASS, coco_box, finite, read_fields
from detcli.model.contract import parse_names
from detcli.sink.labels import coco_path
from detcli.source.loading import Item
from detcli.source.names import is_video, read_list, search
from detcli.storage.files import read_json, read_text

Form = Literal["coco", "yolo"]  # the format of the labels
AnyPath = TypeVar("AnyPath", str, Path)
StructuredRows = npt.NDArray[np.void]  # one row per box, its columns by name

OBJECT = np.dtype([
    ("box", "f8", (4,)),  # left, top, width, height in pixels; of YOLO's data in fractions
    ("category", "i8"),  # an index into the data's categories
    ("area", "f8"),  # in square pixels; NaN stands for the area of the box
    ("crowd", "?"),  # the box surrounds many objects
    ("ignored", "?"),  # neither missed nor, where detected, a false positive
])  # fmt: skip
"""The row of a labelled object."""

Object = tuple[tuple[float, float, float, float], int, float, bool, bool]


class Category(NamedTuple):
    """A class of the data."""

    id: int
    name: str


class Sample(NamedTuple):
    """A labelled picture."""

    name: str  # in the data
    path: Path | None  # None if the file is missing
    image_id: int  # in COCO results
    size: tuple[int, int] | None  # height and width according to the data; None if not given
    objects: StructuredRows  # (N,) of OBJECT
    labels: Path | None = None  # the file of its labels alone, where it has one


class Dataset(NamedTuple):
    """Labelled pictures."""

    form: Form
    split: str | None  # None for data without parts
    categories: tuple[Category, ...]  # as many as the model has classes if the data gives none
    named: bool  # whether the categories have names
    samples: Sequence[Sample]
    origins: tuple[Path, ...] = ()  # the file that describes the data, lists and folders

    @property
    def files(self) -> list[str]:
        """All that was read, and the pictures: nothing may be written over them."""
        paths: list[Path | None] = list(self.origins)
        for sample in self.samples:
            paths.append(sample.path)
            paths.append(sample.labels)
        return [str(path) for path in paths if path is not None]


def read_coco(path: Path, images: Path | None, findings: Findings) -> Dataset:
    """Read an `instances.json`; its pictures are in `images`, or in such a folder beside it."""
    content = read_json(path, _unusable)
    if not isinstance(content, dict):
        reason = "it is not a COCO instances.json"
        if isinstance(content, list):
            reason = "it is a list, as COCO results are; labels are needed here"
        raise _unusable(path, reason)
    for part in ("images", "categories", "annotations"):
        if not isinstance(content.get(part), list):
            raise _unusable(path, f"it has no list of {part}")
    folder = images or path.with_name("images")
    if not os.path.isdir(folder):
        raise UsageError(f"{folder}: no such folder", "name the pictures' folder: --images FOLDER")
    names: dict[int, str] = {}
    sizes: dict[int, tuple[int, int] | None] = {}
    try:
        for position, image in enumerate(content["images"]):
            number, name = read_fields(f"images[{position}]", image, id=int, file_name=str)
            if number in names:
                findings.add(Kind.REPEATED, f"{names[number]} (id {number})")
            else:
                names[number] = name
                sizes[number] = _size(image)
        categories, index = _categories(content["categories"], findings)
    except ValueError as error:
        raise _unusable(path, str(error)) from error
    objects = _objects(content["annotations"], index, names, findings)
    for number, labelled in objects.items():
        unique = {(box, category) for box, category, _, _, _ in labelled}
        repeats = len(labelled) - len(unique)
        if repeats:
            findings.add(Kind.REPEATED_ANNOTATION, names[number], repeats)

    files = _files(folder, names)
    samples = []
    for number, name in sorted(names.items()):
        sample = Sample(
            name=name,
            path=files[number],
            image_id=number,
            size=sizes[number],
            objects=np.array(objects[number], OBJECT),
        )
        samples.append(sample)
    return Dataset("coco", None, categories, named=True, samples=samples, origins=(path,))


def _files(folder: Path, names: Mapping[int, str]) -> dict[int, Path | None]:
    """The pictures of these names inside the folder; None for those that are missing."""
    paths = {number: coco_path(name) for number, name in names.items()}
    last_parts = Counter(path.name for path in paths.values())
    files = {}
    for number, path in paths.items():
        candidates = []
        if not path.is_absolute() and ".." not in path.parts:
            candidates.append(folder / path)
        # Data lists `val2014/name.jpg` where the folder has `name.jpg`; safe if no other has it.
        if last_parts[path.name] == 1:
            candidates.append(folder / path.name)
        files[number] = _first_file(candidates)
    return files


def _first_file(paths: Iterable[AnyPath]) -> AnyPath | None:
    """The first of these paths that is a file."""
    for path in paths:
        if os.path.isfile(path):
            return path
    return None


def _unusable(path: Path, reason: str) -> UsageError:
    return UsageError(
        f"cannot evaluate on {path}: {reason}",
        "give a COCO instances.json: images (id, file_name), categories (id, name), "
        "annotations (image_id, category_id, bbox)",
    )


def _size(image: Mapping[str, Any]) -> tuple[int, int] | None:
    try:
        return int(image["height"]), int(image["width"])
    except (LookupError, TypeError, ValueError, OverflowError):
        return None


def _categories(
    listed: Iterable[Mapping[str, Any]], findings: Findings
) -> tuple[tuple[Category, ...], dict[int, int]]:
    """The categories by id, and the index of each id among them."""
    categories: list[Category] = []
    position_of: dict[str, int] = {}  # of each category, by its name
    index: dict[int, int] = {}
    categories_by_position = []
    for position, category in enumerate(listed):
        where = f"categories[{position}]"
        fields = read_fields(where, category, id=int, name=lambda name: str(name).strip())
        categories_by_position.append(fields)
    for number, name in sorted(categories_by_position, key=itemgetter(0)):
        if number in index or name.casefold() in position_of:
            findings.add(Kind.REPEATED_CATEGORY, f"{name} (id {number})")
        if number not in index:
            index[number] = position_of.setdefault(name.casefold(), len(categories))
            if index[number] == len(categories):
                categories.append(Category(number, name))
    return tuple(categories), index


def _objects(
    annotations: Iterable[Any],
    index: Mapping[int, int],
    names: Mapping[int, str],
    findings: Findings,
) -> defaultdict[int, list[Object]]:
    objects: defaultdict[int, list[Object]] = defaultdict(list)
    for position, annotation in enumerate(annotations):
        where = f"annotations[{position}]"
        try:
            number, category, box = read_fields(
                where, annotation, image_id=int, category_id=int, bbox=coco_box
            )
            fields = {"area": -1, "iscrowd": 0, "ignore": 0}  # -1 as some tools write
            fields |= {key: value for key, value in annotation.items() if value is not None}
            area, crowd, ignored = read_fields(where, fields, area=float, iscrowd=int, ignore=int)
        except ValueError as error:
            findings.add(Kind.BAD_LABEL, str(error))
            continue
        if number not in names:
            findings.add(Kind.UNKNOWN_PICTURE, f"{where}: image_id {number}")
        elif category not in index:
            findings.add(Kind.UNKNOWN_CATEGORY, f"{names[number]}: category_id {category}")
        else:
            if not 0 <= area < math.inf:
                area = math.nan
            objects[number].append((box, index[category], area, crowd, ignored))
    return objects


OBB_NUMBERS = 8  # of an oriented box: its four corners
DESCRIPTIONS = ("data.yaml", "data.yml", "dataset.yaml", "dataset.yml")
KEYS = frozenset(
    {"path", "train", "val", "test", "names", "nc", "kpt_shape"}
)  # what is read of one
SPLITS = ("train", "val", "test")
NOTHING = frozenset({"", "~", "null"})  # the null of YAML


def read_yolo(data: Path, split: str | None, class_count: int, findings: Findings) -> Dataset:
    """Read a `data.yaml`, a list of pictures, or a folder."""
    if data.is_dir():
        data = _description_in(data)
    content: Mapping[str, Any] = {}
    if data.suffix.lower() in {".yaml", ".yml"}:
        content = _read_yaml(data)
        split = split or "val"
        folders, roots = _folders_of_split(data, content, split)
    elif split is not None:
        raise UsageError(f"--split: {data} has no parts", "only a data.yaml has parts")
    else:
        folders, roots = [data], [data.parent]
    names, named = _names(data, content, class_count)
    ids: Sequence[int] = range(len(names))
    if names == COCO:
        ids = COCO_IDS
    categories = tuple(
        Category(category_id, name) for category_id, name in zip(ids, names, strict=True)
    )
    reader = LabelReader(len(names), _keypoint_count(data, content), findings)
    samples = _samples(_pictures(folders, roots), reader, findings)
    reader.report_form()
    return Dataset("yolo", split, categories, named, samples, (data, *folders))


def _description_in(folder: Path) -> Path:
    """The `data.yaml` in a folder, or the folder itself."""
    for name in DESCRIPTIONS:
        path = folder / name
        if path.is_file():
            return path
    return folder


def _read_yaml(path: Path) -> Mapping[str, Any]:
    """A `data.yaml`; scalars are text, so that a class may be named no."""
    import yaml

    hint = "give a data.yaml with val (a folder of pictures) and names (of the classes)"
    try:
        content = yaml.load(read_text(path), Loader=yaml.BaseLoader)  # noqa: S506 - makes only text
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


def _keypoint_count(path: Path, content: Mapping[str, Any]) -> int | None:
    """How many numbers of keypoints follow each box, by `kpt_shape`; None for data without."""
    shape = content.get("kpt_shape")
    if shape is None or (isinstance(shape, str) and shape in NOTHING):
        return None
    try:
        count, dimensions = map(int, shape)
    except (TypeError, ValueError):
        count, dimensions = 0, 0
    if count < 1 or dimensions not in {2, 3}:
        raise UsageError(
            f"{path}: kpt_shape is malformed",
            "make it the number of keypoints, and 2 for x and y or 3 with visibility: [17, 3]",
        )
    return count * dimensions


def _folders_of_split(
    path: Path, content: Mapping[str, Any], split: str
) -> tuple[list[Path], Sequence[Path]]:
    """The folders and lists of a part, and the folders that names in a list may be relative to."""
    entries = content.get(split) or ""
    if isinstance(entries, str):
        entries = [entries]
    entries = [entry for entry in entries if entry.strip() not in NOTHING]
    if not entries:
        hint = "name its folder of pictures"
        parts = [part for part in SPLITS if str(content.get(part) or "") not in NOTHING]
        if parts:
            hint = f"it has {', '.join(parts)}: --split {parts[0]}"
        raise UsageError(f"{path} has no part '{split}'", hint)
    root = Path(str(content.get("path") or "."))
    # Trainers take `path` from where they run, and exporters write `../val/images` for val/images.
    roots = [path.parent / root, Path.cwd() / root, path.parent]
    folders = []
    for entry in entries:
        spellings = (entry, entry.removeprefix("../"))
        tried = [base / spelling for spelling in spellings for base in roots]
        existing = [candidate for candidate in tried if os.path.exists(candidate)]
        if not existing:
            raise UsageError(
                f"{path}: its {split} pictures do not exist: {tried[0]}",
                "correct path, or run detcli in the folder that path is relative to",
            )
        folders.append(existing[0])
    return folders, roots


def _pictures(folders: Iterable[Path], roots: Sequence[Path]) -> Iterator[str]:
    """The names of the pictures in folders and lists; a list may name missing ones.

    Names in a list are relative to it, to the root of the data, or to the working directory.
    """
    for folder in folders:
        if folder.is_dir():
            for part in search(str(folder), recursive=True):
                if isinstance(part, Item):
                    reason = f"{part.origin.source} cannot be listed"
                    raise UsageError(reason, "check its permissions")
                yield from (name for name in part if not is_video(name))
        elif folder.suffix.lower() == ".txt":
            bases = folder.parent, *roots, Path.cwd()
            for entry in read_list(str(folder), Event(), null_separated=False):
                if isinstance(entry, SourceError):
                    raise UsageError(f"{folder}: {entry}", entry.hint)
                name = entry.strip()
                if name:
                    candidates = [os.path.join(base, name) for base in bases]
                    yield _first_file(candidates) or candidates[0]
        else:
            raise UsageError(
                f"{folder} is neither a folder of pictures nor a list of them",
                "give a data.yaml, a COCO instances.json, a folder, or a list (.txt)",
            )


def _samples(pictures: Iterable[str], reader: "LabelReader", findings: Findings) -> list[Sample]:
    unique: dict[str, str] = {}
    for name in pictures:
        path = os.path.abspath(name)
        if path in unique:
            findings.add(Kind.REPEATED, name)
        unique.setdefault(path, name)
    # Image ids are the names where all are numbers, as COCO's are; else their positions, from 1.
    stems = [Path(name).stem for name in unique]
    numbers = [int(stem) for stem in stems if re.fullmatch(r"\d{1,18}", stem, re.ASCII)]
    if len(set(numbers)) < len(stems):
        numbers = list(range(1, len(stems) + 1))
    samples = []
    for number, (path, name) in zip(numbers, unique.items(), strict=True):
        candidates = [Path(path).with_suffix(".txt")]
        root, images, rest = path.rpartition(f"{os.sep}images{os.sep}")
        if images:
            candidates.insert(0, Path(f"{root}{os.sep}labels{os.sep}{rest}").with_suffix(".txt"))
        labels = _first_file(candidates)
        image_path = None
        if os.path.isfile(path):
            image_path = Path(name)
        if labels is None and image_path is not None:
            findings.add(Kind.UNLABELLED, name)
        objects: list[Object] = []
        if labels is not None:
            objects.extend(reader.read(labels))
        sample = Sample(
            name=name,
            path=image_path,
            image_id=number,
            size=None,
            objects=np.array(objects, OBJECT),
            labels=labels,
        )
        samples.append(sample)
    return samples


class LabelReader:
    """Reads files of labels, and notes what is odd about them."""

    def __init__(self, class_count: int, keypoints: int | None, findings: Findings) -> None:
        """`keypoints` is how many numbers of keypoints follow a box; None for none, or unknown."""
        self._class_count = class_count
        self._keypoints = keypoints
        self._findings = findings
        # Of lines that were taken for polygons: how often each count of numbers came, and where.
        self._polygons: Counter[int] = Counter()
        self._first_polygon = ""

    def read(self, path: Path) -> Iterator[Object]:
        """Yield the objects of a file."""
        try:
            lines = read_text(path).splitlines()
        except (OSError, ValueError) as error:
            self._findings.add(Kind.BAD_LABEL, f"{path}: {error}")
            return
        labels: set[tuple[float, ...]] = set()
        for number, line in enumerate(lines, 1):
            fields = line.split()
            if not fields:
                continue
            where = f"{path}:{number}"
            try:
                label = float(fields[0]), *map(finite, fields[1:])
                box = self._box([*label[1:]], where)
                if not label[0].is_integer():
                    raise ValueError(f"class {fields[0]}")  # noqa: TRY301
            except ValueError as error:
                self._findings.add(Kind.BAD_LABEL, f"{where}: {error}")
                continue
            if label in labels:
                self._findings.add(Kind.REPEATED_LABEL, where)
                continue
            labels.add(label)
            category = label[0]
            if 0 <= category < self._class_count:
                yield box, int(category), math.nan, False, False
            else:
                self._findings.add(Kind.UNKNOWN_CATEGORY, f"{where}: class {category:.0f}")

    def report_form(self) -> None:
        """Report polygons that may be keypoints: polygons differ in their number of corners."""
        if len(self._polygons) != 1:
            return
        ((numbers, lines),) = self._polygons.items()
        if lines == 1:
            return
        example = f"{self._first_polygon}: {numbers + 1} numbers"
        if numbers == OBB_NUMBERS:
            self._findings.add(Kind.CORNERS, example, lines)
        else:
            self._findings.add(Kind.KEYPOINTS, example, lines)

    def _box(self, numbers: list[float], where: str) -> tuple[float, float, float, float]:
        """x, y, width, height in fractions, of a box, with keypoints or not, or of a polygon."""
        count = len(numbers)
        has_keypoints = self._keypoints is not None and count == 4 + self._keypoints
        if count == 4 or has_keypoints:
            x, y, width, height = numbers[:4]
            return x - width / 2, y - height / 2, width, height
        if self._keypoints is not None:
            raise ValueError(f"{count + 1} numbers in a line, not {5 + self._keypoints}")
        if count < 6 or count % 2:
            reason = f"{count + 1} numbers in a line"
            if count > 4 and (count - 4) % 3 == 0:
                reason += "; boxes with keypoints need a data.yaml with kpt_shape"
            raise ValueError(reason)
        self._polygons[count] += 1
        self._first_polygon = self._first_polygon or where
        left = min(numbers[0::2])
        top = min(numbers[1::2])
        return left, top, max(numbers[0::2]) - left, max(numbers[1::2]) - top


def open_dataset(
    data: Path, images: Path | None, split: str | None, class_count: int, findings: Findings
) -> Dataset:
    """Read labelled pictures; without names, as many categories as the model has classes."""
    if not os.path.exists(data):
        raise UsageError(f"--data {data}: no such file or folder", "check the path")
    if data.is_file() and data.suffix.lower() == ".json":
        if split is not None:
            raise UsageError(f"--split: {data} has no parts", "name another instances.json")
        dataset = read_coco(data, images, findings)
    else:
        if images is not None:
            raise UsageError(
                f"--images: {data} itself says where its pictures are",
                "leave it out; it belongs to COCO's instances.json",
            )
        dataset = read_yolo(data, split, class_count, findings)
    for sample in dataset.samples:
        if sample.path is None:
            findings.add(Kind.MISSING, sample.name)
    if not dataset.samples:
        raise UsageError(f"{data} lists no pictures", "check whether it is the right file")
    if not any(len(sample.objects) for sample in dataset.samples):
        reasons = [
            f"{finding.kind} ({finding.count}): {finding.examples[0]}"
            for finding in findings.report()
        ]
        if dataset.form == "yolo":
            reasons.append("labels are looked for in a folder labels beside images")
        raise UsageError(
            f"{data}: none of the {len(dataset.samples)} pictures has a labelled object",
            "; ".join(reasons) or "check whether it is the right file",
        )
    return dataset
