"""The figures: all of them the arithmetic of pycocotools, none of our own."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt

from detcli.commands.eval.evaluator import IOU, Compared, evaluator_for, no_prints

if TYPE_CHECKING:
    from pycocotools.cocoeval import COCOeval


@dataclass(frozen=True, slots=True)
class Metrics:
    """The evaluator's twelve figures, from 0 to 1; None where there is nothing to be found.

    `ar_1` is the average recall with the best detection alone, `ar_10` with ten, `ar_100` with a
    hundred. Small objects have less than 32x32 pixels, large ones 96x96 or more.
    """

    map50_95: float | None
    map50: float | None
    map75: float | None
    map_small: float | None
    map_medium: float | None
    map_large: float | None
    ar_1: float | None
    ar_10: float | None
    ar_100: float | None
    ar_small: float | None
    ar_medium: float | None
    ar_large: float | None

    @classmethod
    def of(cls, stats: npt.NDArray[np.float64]) -> Self:
        """Of `COCOeval.stats`, where -1 stands for none."""
        figures = [None if figure < 0 else round(float(figure), 6) for figure in stats]
        return cls(**dict(zip((field.name for field in fields(cls)), figures, strict=True)))


@dataclass(frozen=True, eq=False, slots=True)
class Ranking:
    """The detections of one class in all pictures, as the evaluator matched them at IoU 0.5.

    Those that it ignores, on crowds, are not among them.

    Attributes:
        score: `(N,)` float64, descending.
        hit: `(N,)` bool, whether it is an object that no better detection has.
        boxes: How many objects there are to be found.
    """

    score: npt.NDArray[np.float64]
    hit: npt.NDArray[np.bool_]
    boxes: int


@dataclass(frozen=True, eq=False, slots=True)
class Scores:
    """What the evaluator says.

    Attributes:
        overall: Over all classes.
        by_category: Of each category that was evaluated, by its index.
        rankings: Of each of them.
        precision: Of each of them `(101,)` float64: the interpolated precision at recall 0, 0.01,
            ... 1 and IoU 0.5; -1 where there is nothing to be found.
    """

    overall: Metrics
    by_category: Mapping[int, Metrics]
    rankings: Mapping[int, Ranking]
    precision: Mapping[int, npt.NDArray[np.float64]]


def score(pictures: Sequence[Compared], categories: Sequence[int]) -> Scores:
    """Evaluate.

    Args:
        pictures: In the order that settles ties between equal scores: by image id.
        categories: Indices of those to evaluate; objects and detections of others do not count.
    """
    with no_prints():
        evaluator = evaluator_for(pictures, categories)
        evaluator.evaluate()
        evaluator.accumulate()
        evaluator.summarize()
        overall = Metrics.of(evaluator.stats)
        everything = evaluator.eval
        by_category = {}
        for place, index in enumerate(categories):
            evaluator.eval = {
                "precision": everything["precision"][:, :, [place]],
                "recall": everything["recall"][:, [place]],
            }
            evaluator.summarize()
            by_category[index] = Metrics.of(evaluator.stats)
    at_iou = int(np.flatnonzero(evaluator.params.iouThrs == IOU)[0])
    precision = everything["precision"][at_iou, :, :, 0, -1]  # (101, categories)
    rankings = _rankings(evaluator, at_iou)
    return Scores(
        overall,
        by_category,
        dict(zip(categories, rankings, strict=True)),
        dict(zip(categories, precision.T, strict=True)),
    )


def _rankings(evaluator: "COCOeval", at_iou: int) -> Iterator[Ranking]:
    """Each category's detections with the evaluator's verdict, for objects of any size."""
    parameters = evaluator.params
    count = len(parameters.imgIds)
    for place in range(len(parameters.catIds)):
        start = place * len(parameters.areaRng) * count  # all sizes come first
        results = [one for one in evaluator.evalImgs[start : start + count] if one is not None]
        scores = np.array([one for each in results for one in each["dtScores"]], np.float64)
        hits = [each["dtMatches"][at_iou] > 0 for each in results]
        ignored = [each["dtIgnore"][at_iou] for each in results]
        hit = np.concatenate([np.zeros(0, np.bool_), *hits])
        counted = ~np.concatenate([np.zeros(0, np.bool_), *ignored]).astype(np.bool_)
        boxes = sum(int(np.count_nonzero(each["gtIgnore"] == 0)) for each in results)
        order = np.argsort(-scores[counted], kind="stable")
        yield Ranking(scores[counted][order], hit[counted][order], boxes)
