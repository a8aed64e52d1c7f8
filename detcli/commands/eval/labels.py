"""Labelled images in COCO's and YOLO's form.

COCO's `instances.json` has images, categories and boxes in one file; boxes are x, y, width,
height in pixels (https://cocodataset.org/#format-data). YOLO's data is a text file per image, its
lines `class cx cy w h` in fractions of the sides:

    data.yaml      path, train, val, test; names (a list or a mapping) or nc
    a list         .txt, one image a line
    a folder       its images, and those of its subfolders

The labels of `a/images/b/c.jpg` are in `a/labels/b/c.txt`, else beside the image. A line with a
polygon, `class x y x y x y ...`, stands for the box around it. Where a data.yaml has `kpt_shape`,
keypoints follow the box, `class cx cy w h x y x y ...`, and are passed over. An image without
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
from detcli.commands.eval.label_files import LabelReader, Object
from detcli.core.errors import SourceError, UsageError
from detcli.data.detections import COCO, COCO_IDS
from detcli.data.saved_record import MAX_CLASS, coco_box, read_fields
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


class Category(NamedTuple):
    """A class of the data."""

    id: int
    name: str


class Sample(NamedTuple):
    """A labelled image."""

    name: str  # in the data
    path: Path | None  # None if the file is missing
    image_id: int  # in COCO results
    size: tuple[int, int] | None  # height and width according to the data; None if not given
    objects: StructuredRows  # (N,) of OBJECT
    labels: Path | None = None  # the file of its labels alone, where it has one


class Dataset(NamedTuple):
    """Labelled images."""

    form: Form
    split: str | None  # None for data without parts
    categories: tuple[Category, ...]  # as many as the model has classes if the data gives none
    named: bool  # whether the categories have names
    samples: Sequence[Sample]
    origins: tuple[Path, ...] = ()  # the file that describes the data, lists and folders

    @property
    def files(self) -> list[str]:
        """All that was read, and the images: nothing may be written over them."""
        paths: list[Path | None] = list(self.origins)
        for sample in self.samples:
            paths.append(sample.path)
            paths.append(sample.labels)
        return [str(path) for path in paths if path is not None]


def read_coco(path: Path, images: Path | None, findings: Findings) -> Dataset:
    """Read labelled images from COCO's `instances.json`.

    Args:
        path: The `instances.json`.
        images: The folder of the images; None for the folder `images` beside the file.
        findings: Collects what is odd about the data.

    Raises:
        UsageError: The file is something else, or the folder does not exist.
    """
    content = _read_instances(path)
    folder = images or path.with_name("images")
    if not os.path.isdir(folder):
        raise UsageError(f"{folder}: no such folder", "name the images' folder: --images FOLDER")
    names: dict[int, str] = {}
    sizes: dict[int, tuple[int, int] | None] = {}
    try:
        for position, image in enumerate(content["images"]):
            image_id, name = read_fields(f"images[{position}]", image, id=int, file_name=str)
            if image_id in names:
                findings.add(Kind.REPEATED, f"{names[image_id]} (id {image_id})")
            else:
                names[image_id] = name
                sizes[image_id] = _size(image)
        categories, category_index = _categories(content["categories"], findings)
    except ValueError as error:
        raise _unusable(path, str(error)) from error
    objects = _objects(content["annotations"], category_index, names, findings)
    for image_id, labelled in objects.items():
        unique_labels = {(box, category) for box, category, _, _, _ in labelled}
        repeat_count = len(labelled) - len(unique_labels)
        if repeat_count:
            findings.add(Kind.REPEATED_ANNOTATION, names[image_id], repeat_count)

    files = _files(folder, names)
    samples = []
    for image_id, name in sorted(names.items()):
        sample = Sample(
            name=name,
            path=files[image_id],
            image_id=image_id,
            size=sizes[image_id],
            objects=np.array(objects[image_id], OBJECT),
        )
        samples.append(sample)
    return Dataset("coco", None, categories, named=True, samples=samples, origins=(path,))


def _read_instances(path: Path) -> dict[str, Any]:
    """Read an `instances.json`, which has lists of images, categories and annotations."""
    content = read_json(path, _unusable)
    if not isinstance(content, dict):
        reason = "it is not a COCO instances.json"
        if isinstance(content, list):
            reason = "it is a list, as COCO results are; labels are needed here"
        raise _unusable(path, reason)
    for name in ("images", "categories", "annotations"):
        if not isinstance(content.get(name), list):
            raise _unusable(path, f"it has no list of {name}")
    return content


def _files(folder: Path, names: Mapping[int, str]) -> dict[int, Path | None]:
    """Find the files of images in a folder.

    Args:
        folder: The folder.
        names: The name of each image, by its image id; it may begin with folders.

    Returns:
        The file of each image, by its image id; None for those that are missing.
    """
    paths = {image_id: coco_path(name) for image_id, name in names.items()}
    file_names = Counter(path.name for path in paths.values())
    files = {}
    for image_id, path in paths.items():
        candidates = []
        if not path.is_absolute() and ".." not in path.parts:
            candidates.append(folder / path)
        # Data may list `val2014/name.jpg` where the folder has `name.jpg`. That is no other image
        # if no other one has this file name.
        if file_names[path.name] == 1:
            candidates.append(folder / path.name)
        files[image_id] = _first_file(candidates)
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
    """Read the categories of an `instances.json`.

    Categories of one name, regardless of case, become one; of one id, only the first counts.

    Args:
        listed: The categories as the file has them.
        findings: Collects what is there twice.

    Returns:
        The categories, sorted by id, and by each id the index of its category among these.
    """
    ids_and_names = []
    for position, category in enumerate(listed):
        where = f"categories[{position}]"
        fields = read_fields(where, category, id=int, name=lambda name: str(name).strip())
        ids_and_names.append(fields)

    categories: list[Category] = []
    index_of_name: dict[str, int] = {}
    index_of_id: dict[int, int] = {}
    for category_id, name in sorted(ids_and_names, key=itemgetter(0)):
        folded_name = name.casefold()
        if category_id in index_of_id or folded_name in index_of_name:
            findings.add(Kind.REPEATED_CATEGORY, f"{name} (id {category_id})")
        if category_id in index_of_id:
            continue
        if folded_name not in index_of_name:
            index_of_name[folded_name] = len(categories)
            categories.append(Category(category_id, name))
        index_of_id[category_id] = index_of_name[folded_name]
    return tuple(categories), index_of_id


def _objects(
    annotations: Iterable[Any],
    category_index: Mapping[int, int],
    names: Mapping[int, str],
    findings: Findings,
) -> defaultdict[int, list[Object]]:
    """Read the labelled objects of an `instances.json`.

    Args:
        annotations: The objects as the file has them; those that cannot be read are left out.
        category_index: The index of each category, by its id.
        names: The names of the images, by image id.
        findings: Collects what is left out.

    Returns:
        The objects of each image, by its image id.
    """
    objects: defaultdict[int, list[Object]] = defaultdict(list)
    for position, annotation in enumerate(annotations):
        where = f"annotations[{position}]"
        try:
            image_id, category_id, box = read_fields(
                where, annotation, image_id=int, category_id=int, bbox=coco_box
            )
            # These may be missing or null; some tools write -1 for an unknown area.
            fields = {"area": -1, "iscrowd": 0, "ignore": 0}
            fields |= {key: value for key, value in annotation.items() if value is not None}
            area, crowd, ignored = read_fields(where, fields, area=float, iscrowd=int, ignore=int)
        except ValueError as error:
            findings.add(Kind.BAD_LABEL, str(error))
            continue
        if image_id not in names:
            findings.add(Kind.UNKNOWN_IMAGE, f"{where}: image_id {image_id}")
        elif category_id not in category_index:
            findings.add(Kind.UNKNOWN_CATEGORY, f"{names[image_id]}: category_id {category_id}")
        else:
            if not 0 <= area < math.inf:
                area = math.nan  # which stands for the area of the box
            objects[image_id].append((box, category_index[category_id], area, crowd, ignored))
    return objects


DESCRIPTIONS = ("data.yaml", "data.yml", "dataset.yaml", "dataset.yml")
KEYS = frozenset(
    {"path", "train", "val", "test", "names", "nc", "kpt_shape"}
)  # what is read of one
SPLITS = ("train", "val", "test")
NOTHING = frozenset({"", "~", "null"})  # the null of YAML


def read_yolo(data: Path, split: str | None, class_count: int, findings: Findings) -> Dataset:
    """Read labelled images in YOLO's form.

    Args:
        data: A `data.yaml`, a list of images, or a folder.
        split: The part of a `data.yaml` to read; None for val.
        class_count: The number of the model's classes, for data that does not name its own.
        findings: Collects what is odd about the data.

    Raises:
        UsageError: The data is something else, or does not have this part.
    """
    path = data
    if data.is_dir():
        path = _description_in(data)
    content: Mapping[str, Any] = {}
    part = split
    if path.suffix.lower() in {".yaml", ".yml"}:
        content = _read_yaml(path)
        part = split or "val"
        folders, roots = _folders_of_split(path, content, part)
    elif split is not None:
        raise UsageError(f"--split: {path} has no parts", "only a data.yaml has parts")
    else:
        folders, roots = [path], [path.parent]

    names, has_names = _names(path, content, class_count)
    ids: Sequence[int] = range(len(names))
    if names == COCO:
        ids = COCO_IDS  # so that results have the ids that COCO's tools expect
    categories = []
    for category_id, name in zip(ids, names, strict=True):
        categories.append(Category(category_id, name))
    reader = LabelReader(len(names), _keypoint_count(path, content), findings)
    samples = _samples(_images(folders, roots), reader, findings)
    reader.report_form()
    return Dataset("yolo", part, tuple(categories), has_names, samples, (path, *folders))


def _description_in(folder: Path) -> Path:
    """The `data.yaml` in a folder, or the folder itself."""
    for name in DESCRIPTIONS:
        path = folder / name
        if path.is_file():
            return path
    return folder


def _read_yaml(path: Path) -> Mapping[str, Any]:
    """Read a `data.yaml`. All its values are text, so that a class may be named no."""
    import yaml

    hint = "give a data.yaml with val (a folder of images) and names (of the classes)"
    try:
        content = yaml.load(read_text(path), Loader=yaml.BaseLoader)  # noqa: S506 - makes only text
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}", hint) from error
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"cannot read {path}: it is not YAML: {reason}", hint) from error
    if not isinstance(content, dict):
        raise UsageError(f"{path} is not a data.yaml: it is not a mapping", hint)
    # YAML may refer to one list many times, so a few lines may stand for nested lists of any size.
    for key in KEYS & content.keys():
        value = content[key]
        elements = value.values() if isinstance(value, dict) else value
        is_flat = all(isinstance(element, str) for element in elements)
        if not isinstance(value, str) and not is_flat:
            raise UsageError(f"{path} is not a data.yaml: {key} is nested", hint)
    return content


def _names(path: Path, content: Mapping[str, Any], classes: int) -> tuple[tuple[str, ...], bool]:
    """Read the names of the categories from a `data.yaml`.

    Without `names` they are called class_0, class_1 and so on: `nc` of them, or as many as the
    model has classes.

    Args:
        path: The file, for errors.
        content: What is in it; nothing for data that is described by no `data.yaml`.
        classes: The number of the model's classes.

    Returns:
        The names, and whether they are names from the file, not only numbers.
    """
    listed = content.get("names")
    hint = "make names a list, or a mapping from 0 on"
    if isinstance(listed, str) and listed not in NOTHING:
        raise UsageError(f"{path}: names is {listed!r}", hint)
    count = None
    names: list[str] | None = []
    try:
        if content.get("nc") not in {None, *NOTHING}:
            count = int(content["nc"])
        if isinstance(listed, list | dict):
            names = parse_names(json.dumps(listed))  # None if they are malformed
    except (TypeError, ValueError):
        names = None
    if names is None or (count is not None and not 0 <= count < MAX_CLASS):
        raise UsageError(f"{path}: names or nc are malformed", f"{hint}, and nc their number")
    if not names:
        return tuple(f"class_{index}" for index in range(count or classes)), False
    if count is not None and count != len(names):
        reason = f"nc is {count}, but names has {len(names)}"
        raise UsageError(f"{path}: {reason}", "correct one of the two")
    names = [name.strip() for name in names]
    are_only_numbers = names == [str(index) for index in range(len(names))]
    return tuple(names), not are_only_numbers


def _keypoint_count(path: Path, content: Mapping[str, Any]) -> int | None:
    """How many numbers of keypoints follow each box in a line; None for data without keypoints.

    The `kpt_shape` of a `data.yaml` is the number of keypoints, and how many numbers each one has.
    """
    shape = content.get("kpt_shape")
    if shape is None or (isinstance(shape, str) and shape in NOTHING):
        return None
    try:
        count, dimensions = map(int, shape)
    except (TypeError, ValueError):
        count = 0
        dimensions = 0
    if count < 1 or dimensions not in {2, 3}:
        raise UsageError(
            f"{path}: kpt_shape is malformed",
            "make it the number of keypoints, and 2 for x and y or 3 with visibility: [17, 3]",
        )
    return count * dimensions


def _folders_of_split(
    path: Path, content: Mapping[str, Any], split: str
) -> tuple[list[Path], Sequence[Path]]:
    """Find the images of a part of the data, such as val, which a `data.yaml` names.

    It names a folder or a list, or several of them.

    Returns:
        The folders and lists of the part, and the folders that names in a list may be relative to.
    """
    entries = content.get(split) or ""
    if isinstance(entries, str):
        entries = [entries]
    entries = [entry for entry in entries if entry.strip() not in NOTHING]
    if not entries:
        hint = "name its folder of images"
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
        candidates = [base / spelling for spelling in spellings for base in roots]
        existing = [candidate for candidate in candidates if os.path.exists(candidate)]
        if not existing:
            raise UsageError(
                f"{path}: its {split} images do not exist: {candidates[0]}",
                "correct path, or run detcli in the folder that path is relative to",
            )
        folders.append(existing[0])
    return folders, roots


def _images(folders: Iterable[Path], roots: Sequence[Path]) -> Iterator[str]:
    """Yield the names of the images in folders and lists; a list may name missing ones.

    Args:
        folders: The folders and lists.
        roots: The folders that names in a list may be relative to, besides that of the list.
    """
    for folder in folders:
        if folder.is_dir():
            for names in search(str(folder), recursive=True):
                if isinstance(names, Item):  # a folder that cannot be listed
                    reason = f"{names.origin.source} cannot be listed"
                    raise UsageError(reason, "check its permissions")
                yield from (name for name in names if not is_video(name))
        elif folder.suffix.lower() == ".txt":
            yield from _listed_images(folder, [folder.parent, *roots, Path.cwd()])
        else:
            raise UsageError(
                f"{folder} is neither a folder of images nor a list of them",
                "give a data.yaml, a COCO instances.json, a folder, or a list (.txt)",
            )


def _listed_images(path: Path, bases: Sequence[Path]) -> Iterator[str]:
    """Yield the images that a list names: where they exist below one of the bases, in order."""
    for entry in read_list(str(path), Event(), null_separated=False):
        if isinstance(entry, SourceError):
            raise UsageError(f"{path}: {entry}", entry.hint)
        name = entry.strip()
        if name:
            candidates = [os.path.join(base, name) for base in bases]
            yield _first_file(candidates) or candidates[0]


def _samples(images: Iterable[str], reader: LabelReader, findings: Findings) -> list[Sample]:
    """Read the labels of images in YOLO's form; an image that is named twice counts once."""
    name_of_path: dict[str, str] = {}
    for name in images:
        path = os.path.abspath(name)
        if path in name_of_path:
            findings.add(Kind.REPEATED, name)
        name_of_path.setdefault(path, name)
    samples = []
    image_ids = _image_ids(list(name_of_path))
    for image_id, (path, name) in zip(image_ids, name_of_path.items(), strict=True):
        labels = _label_file(path)
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
            image_id=image_id,
            size=None,
            objects=np.array(objects, OBJECT),
            labels=labels,
        )
        samples.append(sample)
    return samples


def _image_ids(paths: Sequence[str]) -> list[int]:
    """Ids of images: their file names if all are numbers, as COCO's are, else 1, 2, 3 ..."""
    stems = [Path(path).stem for path in paths]
    ids = [int(stem) for stem in stems if re.fullmatch(r"\d{1,18}", stem, re.ASCII)]
    if len(set(ids)) < len(stems):
        return list(range(1, len(stems) + 1))
    return ids


def _label_file(path: str) -> Path | None:
    """Find the labels of an image: in a folder `labels` beside `images`, else beside it."""
    candidates = [Path(path).with_suffix(".txt")]
    root, images, path_in_images = path.rpartition(f"{os.sep}images{os.sep}")
    if images:
        labels_path = Path(f"{root}{os.sep}labels{os.sep}{path_in_images}")
        candidates.insert(0, labels_path.with_suffix(".txt"))
    return _first_file(candidates)


def open_dataset(
    data: Path, images: Path | None, split: str | None, class_count: int, findings: Findings
) -> Dataset:
    """Read labelled images in COCO's or YOLO's form.

    Args:
        data: What the user named: a file or a folder.
        images: The folder of the images of COCO's `instances.json`; None for the usual one.
        split: The part of a `data.yaml` to read; None for val.
        class_count: The number of the model's classes, for data that does not name its own.
        findings: Collects what is odd about the data.

    Raises:
        UsageError: The data cannot be read, or has no labelled object.
    """
    if not os.path.exists(data):
        raise UsageError(f"--data {data}: no such file or folder", "check the path")
    if data.is_file() and data.suffix.lower() == ".json":
        if split is not None:
            raise UsageError(f"--split: {data} has no parts", "name another instances.json")
        dataset = read_coco(data, images, findings)
    else:
        if images is not None:
            raise UsageError(
                f"--images: {data} itself says where its images are",
                "leave it out; it belongs to COCO's instances.json",
            )
        dataset = read_yolo(data, split, class_count, findings)
    for sample in dataset.samples:
        if sample.path is None:
            findings.add(Kind.MISSING, sample.name)
    if not dataset.samples:
        raise UsageError(f"{data} lists no images", "check whether it is the right file")
    if not any(len(sample.objects) for sample in dataset.samples):
        reasons = [
            f"{finding.kind} ({finding.count}): {finding.examples[0]}"
            for finding in findings.report()
        ]
        if dataset.form == "yolo":
            reasons.append("labels are looked for in a folder labels beside images")
        raise UsageError(
            f"{data}: none of the {len(dataset.samples)} images has a labelled object",
            "; ".join(reasons) or "check whether it is the right file",
        )
    return dataset
