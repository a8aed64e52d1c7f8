"""Labelled pictures: COCO's `instances.json`, or YOLO's folders and lists."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from detcli.errors import UsageError
from detcli.evaluation.findings import Findings
from detcli.evaluation.objects import Objects

DEFAULT_SPLIT = "val"


class Form(StrEnum):
    """How data is labelled."""

    COCO = "coco"
    YOLO = "yolo"


@dataclass(frozen=True, slots=True)
class DataOptions:
    """Which data.

    Attributes:
        data: COCO's `instances.json`; YOLO's `data.yaml`; a list of pictures, `.txt`; or a folder.
        images: Where the pictures of an `instances.json` are.
        split: Which part of a `data.yaml`; None is `val`.
    """

    data: Path
    images: Path | None = None
    split: str | None = None


@dataclass(frozen=True, slots=True)
class Category:
    """What the data calls a class."""

    id: int
    name: str


@dataclass(frozen=True, slots=True)
class Sample:
    """A labelled picture.

    Attributes:
        name: What the data calls it.
        path: The file; None if it is not there.
        image_id: Its number in COCO results.
        size: Height and width as the data has them; None if it does not say.
        objects: What is to be found in it.
    """

    name: str
    path: Path | None
    image_id: int
    size: tuple[int, int] | None
    objects: Objects


@dataclass(frozen=True, slots=True)
class Dataset:
    """Labelled pictures.

    Attributes:
        form: How they are labelled.
        split: Which part of the data they are; None if it has no parts.
        categories: Of the data. Without names it has as many as the model has classes.
        named: Whether these have names.
        samples: The pictures.
        relative: Whether boxes are in fractions of the picture, not in pixels.
    """

    form: Form
    split: str | None
    categories: tuple[Category, ...]
    named: bool
    samples: Sequence[Sample]
    relative: bool


def open_dataset(options: DataOptions, class_count: int, findings: Findings) -> Dataset:
    """Read labels.

    Args:
        options: Which.
        class_count: Of the model: how many categories data without names has.
        findings: Is told what is wrong with them.

    Raises:
        UsageError: They cannot be read, or there is nothing to evaluate.
    """
    data = options.data
    if not os.path.exists(data):
        raise UsageError(f"--data {data}: there is no such file or folder", "check the path")
    if data.is_file() and data.suffix.lower() == ".json":
        from detcli.evaluation.coco_data import read_coco

        if options.split is not None:
            raise UsageError(f"--split: {data} has no parts", "name another instances.json")
        dataset = read_coco(data, options.images, findings)
    else:
        from detcli.evaluation.yolo_data import read_yolo

        if options.images is not None:
            raise UsageError(
                f"--images: {data} says itself where its pictures are",
                "leave it out; it belongs to COCO's instances.json",
            )
        dataset = read_yolo(data, options.split, class_count, findings)
    if not dataset.samples:
        raise UsageError(f"{data} lists no pictures", "see whether it is the right file")
    if not any(len(sample.objects) for sample in dataset.samples):
        why = [f"{one.kind} ({one.count}): {one.examples[0]}" for one in findings.report()]
        if dataset.form is Form.YOLO:
            why.append("labels are looked for in a folder labels beside images")
        raise UsageError(
            f"{data}: none of the {len(dataset.samples)} pictures has a labelled object",
            "; ".join(why) or "see whether it is the right file",
        )
    return dataset
