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

import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from detcli.commands.eval.data_yaml import (
    ImageSources,
    category_names,
    count_keypoint_numbers,
    find_description,
    find_image_sources,
    read_yaml,
)
from detcli.commands.eval.findings import Findings, Kind
from detcli.commands.eval.label_files import LabelBox, LabelReader, Object
from detcli.core.errors import SourceError, UsageError
from detcli.data.coco import COCO, COCO_IDS
from detcli.data.saved_record import coco_box, read_fields
from detcli.sink.labels import coco_path
from detcli.source.loading import Item
from detcli.source.names import is_video, read_list, search
from detcli.storage.file_names import did_you_mean
from detcli.storage.files import read_json

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
    image_folder = images or path.with_name("images")
    if not os.path.isdir(image_folder):
        raise UsageError(
            f"{image_folder}: no such folder", "name the images' folder: --images FOLDER"
        )

    try:
        images_by_id = _read_listed_images(content["images"], findings)
        categories = _read_categories(content["categories"], findings)
    except ValueError as error:
        raise _unusable(path, str(error)) from error
    image_names = {image_id: image.name for image_id, image in images_by_id.items()}
    objects_by_image_id = _read_annotations(
        content["annotations"],
        category_index_by_id=categories.index_by_id,
        image_names=image_names,
        findings=findings,
    )
    for image_id, objects in objects_by_image_id.items():
        _report_repeated_annotations(image_names[image_id], objects, findings)

    files_by_image_id = _files_of_images(image_folder, image_names)
    samples = []
    for image_id, image in sorted(images_by_id.items()):
        sample = Sample(
            name=image.name,
            path=files_by_image_id[image_id],
            image_id=image_id,
            size=image.size,
            objects=np.array(objects_by_image_id[image_id], OBJECT),
        )
        samples.append(sample)
    return Dataset(
        form="coco",
        split=None,
        categories=categories.distinct,
        named=True,
        samples=samples,
        origins=(path,),
    )


def _report_repeated_annotations(
    image_name: str, objects: Collection[Object], findings: Findings
) -> None:
    """Report objects of an image that occur twice, with the same box and category."""
    unique_labels = {(label.box, label.category) for label in objects}
    repeat_count = len(objects) - len(unique_labels)
    if repeat_count:
        findings.add(Kind.REPEATED_ANNOTATION, image_name, repeat_count)


class _ListedImage(NamedTuple):
    """An image of an `instances.json`."""

    name: str
    size: tuple[int, int] | None  # height and width


def _read_listed_images(entries: Iterable[Any], findings: Findings) -> dict[int, _ListedImage]:
    """Read the images of an `instances.json`, by id.

    If several have the same id, the first is used, and the others become findings.

    Raises:
        ValueError: An entry has no id or no name.
    """
    images_by_id: dict[int, _ListedImage] = {}
    for position, fields in enumerate(entries):
        image_id, name = read_fields(f"images[{position}]", fields, id=int, file_name=str)
        if image_id in images_by_id:
            findings.add(Kind.REPEATED, f"{images_by_id[image_id].name} (id {image_id})")
        else:
            images_by_id[image_id] = _ListedImage(name, _size(fields))
    return images_by_id


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


def _files_of_images(folder: Path, names: Mapping[int, str]) -> dict[int, Path | None]:
    """Find the files of images in a folder.

    Data may list `val2014/name.jpg` where the folder has `name.jpg`. That is taken for the image if
    no other image of the data has this file name.

    Args:
        folder: The folder.
        names: The name of each image, by its image id; it may begin with folders.

    Returns:
        The file of each image, by its image id; None for those that are missing.
    """
    paths = {image_id: coco_path(name) for image_id, name in names.items()}
    file_name_counts = Counter(path.name for path in paths.values())
    files = {}
    for image_id, path in paths.items():
        candidates = []
        leaves_folder = path.is_absolute() or ".." in path.parts
        if not leaves_folder:
            candidates.append(folder / path)
        if file_name_counts[path.name] == 1:
            candidates.append(folder / path.name)
        files[image_id] = _first_file(candidates)
    return files


def _first_file(paths: Iterable[AnyPath]) -> AnyPath | None:
    """Return the first of these paths that is a file; None if there is none."""
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


class _Categories(NamedTuple):
    """The categories of an `instances.json`."""

    distinct: tuple[Category, ...]  # each name once, sorted by id
    index_by_id: dict[int, int]  # in `distinct`, by each id in the file, merged or not


def _read_categories(entries: Iterable[Mapping[str, Any]], findings: Findings) -> _Categories:
    """Read the categories of an `instances.json`.

    Categories that repeat an id or a name are merged, see `_merge_categories`.

    Args:
        entries: The list `categories` of the file.
        findings: Collects categories that repeat a name or an id.

    Raises:
        ValueError: An entry has no id or no name.
    """
    categories = []
    for position, fields in enumerate(entries):
        category_id, name = read_fields(f"categories[{position}]", fields, id=int, name=str)
        categories.append(Category(category_id, name.strip()))
    return _merge_categories(categories, findings)


def _merge_categories(categories: Sequence[Category], findings: Findings) -> _Categories:
    """Merge categories with the same name, regardless of case, into the one with the lowest id.

    If several categories have the same id, the first is used. For example, of `cat` with the id 1,
    `dog` with 2 and `Cat` with 3, `cat` and `dog` remain, and the ids 1 and 3 both stand for `cat`.

    Args:
        categories: The categories, in any order of their ids.
        findings: Collects categories that repeat a name or an id.
    """
    distinct_categories: list[Category] = []
    index_by_name: dict[str, int] = {}  # in `distinct_categories`, by the name in lower case
    index_by_id: dict[int, int] = {}  # in `distinct_categories`
    for category in sorted(categories, key=lambda category: category.id):
        folded_name = category.name.casefold()
        has_repeated_id = category.id in index_by_id
        has_repeated_name = folded_name in index_by_name
        if has_repeated_id or has_repeated_name:
            findings.add(Kind.REPEATED_CATEGORY, f"{category.name} (id {category.id})")
        if has_repeated_id:
            continue

        if not has_repeated_name:
            index_by_name[folded_name] = len(distinct_categories)
            distinct_categories.append(category)
        index_by_id[category.id] = index_by_name[folded_name]
    return _Categories(tuple(distinct_categories), index_by_id)


class _Annotation(NamedTuple):
    """A labelled object as in an `instances.json`."""

    image_id: int
    category_id: int
    box: LabelBox
    area: float  # NaN stands for the area of the box
    crowd: bool
    ignored: bool


def _read_annotations(
    entries: Iterable[Any],
    category_index_by_id: Mapping[int, int],
    image_names: Mapping[int, str],
    findings: Findings,
) -> defaultdict[int, list[Object]]:
    """Read the labelled objects of an `instances.json`.

    Objects that cannot be read, or whose image or category is unknown, are left out.

    Args:
        entries: The list `annotations` of the file.
        category_index_by_id: The index of each category, by its id.
        image_names: The names of the images, by image id.
        findings: Collects the objects that are left out.

    Returns:
        The objects of each image, by its image id; an empty list for any other id.
    """
    objects_by_image_id: defaultdict[int, list[Object]] = defaultdict(list)
    for position, fields in enumerate(entries):
        where = f"annotations[{position}]"
        try:
            annotation = _read_annotation(where, fields)
        except ValueError as error:
            findings.add(Kind.BAD_LABEL, str(error))
            continue

        image_id = annotation.image_id
        if image_id not in image_names:
            findings.add(Kind.UNKNOWN_IMAGE, f"{where}: image_id {image_id}")
            continue
        category_id = annotation.category_id
        if category_id not in category_index_by_id:
            example = f"{image_names[image_id]}: category_id {category_id}"
            findings.add(Kind.UNKNOWN_CATEGORY, example)
            continue

        labelled_object = Object(
            box=annotation.box,
            category=category_index_by_id[category_id],
            area=annotation.area,
            crowd=annotation.crowd,
            ignored=annotation.ignored,
        )
        objects_by_image_id[image_id].append(labelled_object)
    return objects_by_image_id


def _read_annotation(where: str, fields: Any) -> _Annotation:  # noqa: ANN401 - JSON
    """Read an entry of the list `annotations`.

    Args:
        where: The name of the entry in errors.
        fields: The entry, which may be any JSON.

    Raises:
        ValueError: A field is missing or malformed.
    """
    image_id, category_id, box = read_fields(
        where, fields, image_id=int, category_id=int, bbox=coco_box
    )
    # The other fields may be missing or null; some tools write -1 for an unknown area.
    defaults = {"area": -1, "iscrowd": 0, "ignore": 0}
    present_fields = {name: value for name, value in fields.items() if value is not None}
    area, crowd, ignored = read_fields(
        where, defaults | present_fields, area=float, iscrowd=int, ignore=int
    )
    if not 0 <= area < math.inf:
        area = math.nan
    return _Annotation(
        image_id=image_id,
        category_id=category_id,
        box=box,
        area=area,
        crowd=bool(crowd),
        ignored=bool(ignored),
    )


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
        path = find_description(data)  # the data.yaml in the folder, or the folder if it has none

    description: Mapping[str, Any] = {}  # what a data.yaml says
    if path.suffix.lower() in {".yaml", ".yml"}:
        description = read_yaml(path)
        split = split or "val"
        sources = find_image_sources(path, description, split)
    elif split is not None:
        raise UsageError(f"--split: {path} has no parts", "only a data.yaml has parts")
    else:
        sources = ImageSources([path], roots=[path.parent])

    names, are_real_names = category_names(path, description, class_count)
    label_reader = LabelReader(
        class_count=len(names),
        numbers_of_keypoints=count_keypoint_numbers(path, description),
        findings=findings,
    )
    samples = _read_samples(_image_names(sources), label_reader, findings)
    label_reader.report_doubtful_polygons()
    return Dataset(
        form="yolo",
        split=split,
        categories=_numbered_categories(names),
        named=are_real_names,
        samples=samples,
        origins=(path, *sources.paths),
    )


def _numbered_categories(names: tuple[str, ...]) -> tuple[Category, ...]:
    """Number categories from 0; COCO's have the ids that COCO's tools expect in results."""
    ids: Sequence[int] = range(len(names))
    if names == COCO:
        ids = COCO_IDS
    return tuple(Category(category_id, name) for category_id, name in zip(ids, names, strict=True))


def _image_names(sources: ImageSources) -> Iterator[str]:
    """Yield the paths of all images in folders and lists, which may name images that do not exist.

    Raises:
        UsageError: A folder cannot be listed, or a file is not a list.
    """
    for path in sources.paths:
        if path.is_dir():
            yield from _images_in(path)
        elif path.suffix.lower() == ".txt":
            yield from _listed_images(path, [path.parent, *sources.roots, Path.cwd()])
        else:
            raise UsageError(
                f"{path} is neither a folder of images nor a list of them",
                "give a data.yaml, a COCO instances.json, a folder, or a list (.txt)",
            )


def _images_in(folder: Path) -> Iterator[str]:
    """Yield the images in a folder and the folders below it."""
    for names in search(str(folder), recursive=True):
        if isinstance(names, Item):  # a folder that cannot be listed
            reason = f"{names.origin.source} cannot be listed"
            raise UsageError(reason, "check its permissions")
        yield from (name for name in names if not is_video(name))


def _listed_images(path: Path, bases: Sequence[Path]) -> Iterator[str]:
    """Yield the path of each image in a list, below the first base where it exists.

    If an image exists below none of the bases, its path is below the first one.

    Raises:
        UsageError: The list cannot be read.
    """
    for entry in read_list(str(path), Event(), null_separated=False):
        if isinstance(entry, SourceError):
            raise UsageError(f"{path}: {entry}", entry.hint)
        name = entry.strip()
        if name:
            candidates = [os.path.join(base, name) for base in bases]
            yield _first_file(candidates) or candidates[0]


def _read_samples(
    image_names: Iterable[str], label_reader: LabelReader, findings: Findings
) -> list[Sample]:
    """Read the labels of images in YOLO's form; an image that is named twice counts once.

    Args:
        image_names: The paths of the images, as the data names them.
        label_reader: Reads their label files.
        findings: Collects images that are named twice or have no label file.
    """
    names_by_path: dict[str, str] = {}  # the first name of each image, by its absolute path
    for name in image_names:
        path = os.path.abspath(name)
        if path in names_by_path:
            findings.add(Kind.REPEATED, name)
        else:
            names_by_path[path] = name

    samples = []
    image_ids = _image_ids(list(names_by_path))
    for image_id, (path, name) in zip(image_ids, names_by_path.items(), strict=True):
        image_path = None
        if os.path.isfile(path):
            image_path = Path(name)
        label_path = _label_file(path)
        if label_path is None and image_path is not None:
            findings.add(Kind.UNLABELLED, name)
        sample = Sample(
            name=name,
            path=image_path,
            image_id=image_id,
            size=None,
            objects=_read_objects(label_path, label_reader),
            labels=label_path,
        )
        samples.append(sample)
    return samples


def _read_objects(label_path: Path | None, label_reader: LabelReader) -> StructuredRows:
    """Read the objects in a label file as rows of OBJECT; none if there is no file."""
    objects: list[Object] = []
    if label_path is not None:
        objects.extend(label_reader.read(label_path))
    return np.array(objects, OBJECT)


def _image_ids(paths: Sequence[str]) -> list[int]:
    """Choose ids of images: their file names if all are numbers, as COCO's are, else 1, 2, 3 ..."""
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
        hint = f"{did_you_mean(data)}check the path"
        raise UsageError(f"--data {data}: no such file or folder", hint)
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
    _require_objects(data, dataset, findings)
    return dataset


def _require_objects(data: Path, dataset: Dataset, findings: Findings) -> None:
    """Refuse data without any labelled object; the error says what is odd about the data.

    Args:
        data: What the user named.
        dataset: What was read from it.
        findings: What was odd about it.
    """
    if not dataset.samples:
        raise UsageError(f"{data} lists no images", "check whether it is the right file")
    if any(len(sample.objects) for sample in dataset.samples):
        return
    reasons = []
    for finding in findings.report():
        reasons.append(f"{finding.kind} ({finding.count}): {finding.examples[0]}")
    if dataset.form == "yolo":
        reasons.append("labels are looked for in a folder labels beside images")
    raise UsageError(
        f"{data}: none of the {len(dataset.samples)} images has a labelled object",
        "; ".join(reasons) or "check whether it is the right file",
    )
