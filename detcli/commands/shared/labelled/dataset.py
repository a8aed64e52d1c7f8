"""Labelled pictures in any format, their categories as classes, and findings about them."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from detcli.errors import UsageError
from detcli.model.contract import UNKNOWN_CLASSES

MAX_EXAMPLES = 5

MAX_COORDINATE = 1e9
"""Numbers of a box must be below this, so that areas stay finite."""

Form = Literal["coco", "yolo"]
"""The format of the labels."""

StructuredRows = npt.NDArray[np.void]
"""A structured array: one row per box, its columns by name."""

MappedBy = Literal["name", "order", "id"]
"""How classes were assigned to categories."""

OBJECT = np.dtype(
    [("box", "f8", (4,)), ("category", "i8"), ("area", "f8"), ("crowd", "?"), ("ignored", "?")]
)
"""The row of a labelled object, see `Object`."""


class Object(NamedTuple):
    """A labelled object; its box is in pixels, or with YOLO's data in fractions of the picture."""

    box: tuple[float, float, float, float]  # left, top, width, height
    category: int  # an index into the data's categories
    area: float = np.nan  # in square pixels; NaN stands for the area of the box
    crowd: bool = False  # the box surrounds many objects
    ignored: bool = False  # neither missed nor, where detected, a false positive


@dataclass(frozen=True, slots=True)
class Category:
    """A class of the data."""

    id: int
    name: str


@dataclass(frozen=True, eq=False, slots=True)
class Sample:
    """A labelled picture."""

    name: str  # in the data
    path: Path | None  # None if the file is missing
    image_id: int  # in COCO results
    size: tuple[int, int] | None  # height and width according to the data; None if not given
    objects: StructuredRows  # (N,) of OBJECT
    labels: Path | None = None  # the file of its labels alone, where it has one


@dataclass(frozen=True, slots=True)
class Dataset:
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
        own = (path for one in self.samples for path in (one.path, one.labels))
        return [str(path) for path in (*self.origins, *own) if path is not None]


class Level(StrEnum):
    """How serious a finding is."""

    FAILURE = "failure"  # pictures are left out: exit code 3
    WARNING = "warning"  # the figures may not mean what the reader thinks
    NOTE = "note"


_FAILURE, _WARNING, _NOTE = Level
_OUT = "left out of the figures"
_NEITHER = "neither missed nor, where detected, a false positive"


class Kind(Enum):
    """A kind of finding: its title, level and consequence."""

    MISSING = "missing picture", _FAILURE, f"{_OUT}, with its boxes"
    UNREADABLE = "unreadable picture", _FAILURE, f"{_OUT}, with its boxes"
    REPEATED = "picture listed twice", _WARNING, "evaluated once"
    OTHER_SIZE = (
        *("picture of another size than the data says", _WARNING),
        "boxes are compared unchanged; they may belong to another picture or orientation",
    )
    UNLABELLED = "picture without a label file", _NOTE, "treated as background"
    BAD_LABEL = "unreadable label", _WARNING, _OUT
    OUTSIDE = (
        *("box outside the picture", _WARNING),
        "by more than a pixel; kept unchanged, although most models' boxes end at the edge",
    )
    NO_AREA = "box without area", _WARNING, "kept, although no detection can match it"
    UNKNOWN_CATEGORY = "box of an unknown category", _WARNING, _OUT
    UNKNOWN_PICTURE = "box of an unknown picture", _WARNING, _OUT
    REPEATED_CATEGORY = (
        *("category listed twice", _WARNING),
        "boxes of both count as boxes of the first",
    )
    NO_CLASS = (
        *("category that the model does not know", _WARNING),
        f"no class of the model has this name: its boxes are {_OUT}",
    )
    NO_CATEGORY = (
        *("class that the data does not know", _WARNING),
        f"no category of the data has this name: its detections are {_OUT}",
    )
    EMPTY = "class without boxes", _NOTE, "has no figures; its false positives lower only F1"
    CROWD = "crowd", _NOTE, _NEITHER
    IGNORED = "box to be ignored", _NOTE, _NEITHER
    CUT = (
        *("picture with more detections of a class than are evaluated", _NOTE),
        "only the best 100 of each class in a picture are evaluated",
    )
    HIGH_CONFIDENCE = (
        *("high --conf", _WARNING),
        "detections at or below it count as missed: the figures are too low",
    )


@dataclass(frozen=True, slots=True)
class Finding:
    """The findings of one kind, with the first five as examples."""

    kind: str
    level: Level
    count: int
    meaning: str
    examples: tuple[str, ...]


class Findings:
    """Counts findings; memory does not grow with their number."""

    def __init__(self) -> None:
        self._counts: Counter[Kind] = Counter()
        self._examples: defaultdict[Kind, list[str]] = defaultdict(list)

    def add(self, kind: Kind, example: str, count: int = 1) -> None:
        """Count findings of a kind, the example among them; a count of 0 adds nothing."""
        if count:
            self._counts[kind] += count
            self._examples[kind] = [*self._examples[kind], example][:MAX_EXAMPLES]

    def report(self) -> tuple[Finding, ...]:
        """All findings, failures first."""
        findings = []
        for kind in sorted(self._counts, key=[*Kind].index):
            title, level, meaning = kind.value
            examples = tuple(self._examples[kind])
            findings.append(Finding(title, level, self._counts[kind], meaning, examples))
        return tuple(sorted(findings, key=lambda one: [*Level].index(one.level)))


@dataclass(frozen=True, slots=True)
class ClassMapping:
    """The model's classes and the data's categories."""

    by: MappedBy
    category_of: tuple[int | None, ...]  # index of each class's category; None for classes without

    def classes_of(self, category: int) -> tuple[int, ...]:
        """Ids of the classes of a category; several if the model has a name twice."""
        return tuple(one for one, index in enumerate(self.category_of) if index == category)

    @property
    def categories(self) -> tuple[int, ...]:
        """Indices of the categories that the model has a class for."""
        return tuple(sorted({index for index in self.category_of if index is not None}))


def are_coordinates(numbers: Iterable[float]) -> bool:
    """Whether numbers can be those of a box; NaN and infinities cannot."""
    return all(abs(number) < MAX_COORDINATE for number in numbers)


def map_classes(names: Sequence[str], dataset: Dataset, findings: Findings) -> ClassMapping:
    """Assign classes to categories: by name where both have names, else in their order.

    The second class of a name has the second category of it, or the only one.
    Where a graph that selects for itself neither names its classes nor shows how many there are,
    they are the ids of COCO data.

    Args:
        names: The model's classes.
        dataset: Has the categories.
        findings: Receives classes and categories without a counterpart.

    Raises:
        UsageError: The model and the data have no name in common.
    """
    nameless = all(name == f"class_{index}" for index, name in enumerate(names))
    categories = [category.name for category in dataset.categories]
    if nameless and dataset.form == "coco" and len(names) == UNKNOWN_CLASSES:
        index_by_id = {category.id: index for index, category in enumerate(dataset.categories)}
        mapping = ClassMapping("id", tuple(map(index_by_id.get, range(len(names)))))
    elif nameless or not dataset.named:
        indices = [index if index < len(categories) else None for index in range(len(names))]
        mapping = ClassMapping("order", tuple(indices))
    else:
        index_of = {key: index for index, key in enumerate(_numbered(categories))}
        mapping = ClassMapping(
            "name", tuple(index_of.get(key, index_of.get((key[0], 0))) for key in _numbered(names))
        )
    if not mapping.categories:
        raise UsageError(
            "the model's classes and the data's categories have no name in common: "
            f"{_some(names)}; {_some(categories)}",
            "give the model's classes the names of the categories: --names FILE",
        )
    for name, index in zip(names, mapping.category_of, strict=True):
        if index is None and mapping.by != "id":
            findings.add(Kind.NO_CATEGORY, name)
    boxes = Counter(index for one in dataset.samples for index in one.objects["category"].tolist())
    for index, count in sorted(boxes.items()):
        if index not in mapping.categories:
            findings.add(Kind.NO_CLASS, f"{dataset.categories[index].name} ({count} boxes)")
    return mapping


def _numbered(names: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Names regardless of case, each with how often it was there before."""
    seen: Counter[str] = Counter()
    for name in names:
        plain = name.strip().casefold()
        yield plain, seen[plain]
        seen[plain] += 1


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
