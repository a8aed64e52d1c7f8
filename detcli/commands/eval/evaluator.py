"""The evaluator, pycocotools, with labels and detections as it wants them."""

import contextlib
import io
import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from detcli.commands.eval.objects import Objects
from detcli.errors import DependencyError

if TYPE_CHECKING:
    from pycocotools.cocoeval import COCOeval

IOU = 0.5
"""From which overlap on a detection is a hit, in curves, advice and confusions."""

PER_CLASS = 100
"""Detections of a class in a picture that the evaluator looks at, best first."""


@dataclass(frozen=True, eq=False, slots=True)
class Found:
    """The detections in one picture, of classes that the data has.

    Attributes:
        boxes: `(N, 4)` float64: x, y, width, height in pixels.
        score: `(N,)` float64.
        category: `(N,)` int64, an index into the data's categories.
    """

    boxes: npt.NDArray[np.float64]
    score: npt.NDArray[np.float64]
    category: npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False, slots=True)
class Compared:
    """One picture: what is in it, and what was found. Boxes of both are in pixels."""

    image_id: int
    objects: Objects
    found: Found


def require_evaluator() -> str:
    """The name and version of the evaluator.

    Raises:
        DependencyError: It is not installed.
    """
    try:
        import pycocotools.cocoeval  # noqa: F401 - whether it loads
    except ImportError as error:
        raise DependencyError(
            f"pycocotools does not load: {error}", "pip install 'detcli[eval]'"
        ) from error
    from importlib import metadata

    return f"pycocotools {metadata.version('pycocotools')}"


def no_prints() -> AbstractContextManager[object]:
    """Keeps off standard output what the evaluator prints: all that it does."""
    return contextlib.redirect_stdout(io.StringIO())


def evaluator_for(pictures: Sequence[Compared], categories: Sequence[int]) -> "COCOeval":
    """The evaluator with labels and detections.

    Args:
        pictures: In the order that settles ties between equal scores: by image id.
        categories: Indices of those to evaluate, which are its category ids.
    """
    from pycocotools.cocoeval import COCOeval

    wanted = np.array(categories, np.int64)
    evaluator = COCOeval(
        _index(pictures, categories, _labels(pictures, wanted)),
        _index(pictures, categories, _detections(pictures, wanted)),
        "bbox",
    )
    evaluator.params.catIds = list(categories)
    return evaluator


def _index(
    pictures: Sequence[Compared], categories: Sequence[int], annotations: Iterator[dict[str, Any]]
) -> Any:  # noqa: ANN401 - pycocotools.coco.COCO, which has no type
    """What the evaluator reads labels and detections from.

    Ids begin with 1: for the evaluator, a match with number 0 would be none.
    """
    from pycocotools.coco import COCO

    index = COCO()
    index.dataset = {
        "images": [{"id": picture.image_id} for picture in pictures],
        "categories": [{"id": number} for number in categories],
        "annotations": [{"id": place, **one} for place, one in enumerate(annotations, 1)],
    }
    index.createIndex()
    return index


def _labels(
    pictures: Sequence[Compared], wanted: npt.NDArray[np.int64]
) -> Iterator[dict[str, Any]]:
    for picture in pictures:
        objects = picture.objects[np.isin(picture.objects.category, wanted)]
        for row in range(len(objects)):
            box = objects.boxes[row].tolist()
            area = float(objects.area[row])
            if objects.ignored[row] and not objects.crowd[row]:
                area = math.inf  # what is larger than any range, the evaluator ignores
            yield {
                "image_id": picture.image_id,
                "category_id": int(objects.category[row]),
                "bbox": box,
                "area": box[2] * box[3] if math.isnan(area) else area,
                "iscrowd": int(objects.crowd[row]),
            }


def _detections(
    pictures: Sequence[Compared], wanted: npt.NDArray[np.int64]
) -> Iterator[dict[str, Any]]:
    for picture in pictures:
        found = picture.found
        for row in np.flatnonzero(np.isin(found.category, wanted)):
            box = found.boxes[row].tolist()
            yield {
                "image_id": picture.image_id,
                "category_id": int(found.category[row]),
                "bbox": box,
                "area": box[2] * box[3],
                "score": float(found.score[row]),
            }
