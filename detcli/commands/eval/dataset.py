"""Labelled pictures: COCO's `instances.json`, or YOLO's folders and lists."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from detcli.commands.eval.objects import Objects

DEFAULT_SPLIT = "val"


class Form(StrEnum):
    """How data is labelled."""

    COCO = "coco"
    YOLO = "yolo"


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
