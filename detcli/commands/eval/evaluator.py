"""The evaluator, hotcoco: COCO's figures, and which detection found which object.

hotcoco computes and matches as pycocotools does; tests compare the two. Confusions and curves are
counted here, from its matches: its confusion matrix counts detections of crowds as false positives,
its F-scores come without the confidence, and by class it has no more than AP.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from detcli.cli.report import report_field
from detcli.commands.eval.classes import ClassMapping
from detcli.commands.eval.labels import OBJECT, StructuredRows
from detcli.core import frozen
from detcli.core.errors import loading
from detcli.core.text import shell_line
from detcli.data.topk import rank_descending

if TYPE_CHECKING:
    from hotcoco import COCOeval


Doubles = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

IOU = 0.5  # makes a detection a true positive in curves, advice and confusions
PER_CLASS = 100  # detections of a class in a picture that the evaluator considers, best first
PICTURES_AT_ONCE = 500  # that are matched
FEW = 10  # boxes of a class; a confidence that rests on fewer may be chance

FOUND = np.dtype([("box", "f8", (4,)), ("category", "i8"), ("score", "f8")])
"""The row of a detection: x, y, width, height in pixels; an index into the data's categories."""

CORRECT, FALSE, MISSED = range(3)
"""What became of a box: detected and right, detected and wrong, or not detected."""


def require_evaluator() -> str:
    """The name and version of the evaluator, or a DependencyError."""
    with loading("hotcoco", 'pip install "detcli[eval]"'):
        import hotcoco
    return f"hotcoco {hotcoco.__version__}"


def figure_text(value: float) -> str:
    """A figure as people read it."""
    return f"{value:.3f}"


class EvaluatedPicture(NamedTuple):
    """A picture's labels, rows of `OBJECT`, and its detections, rows of `FOUND`; both in pixels."""

    image_id: int
    objects: StructuredRows
    found: StructuredRows


@frozen
class Metrics:
    """COCO's twelve figures, from 0 to 1; None without boxes to be found.

    `ar_1` is the average recall of the best detection alone, `ar_10` of the best ten, `ar_100` of
    the best hundred. Small objects have less than 32x32 pixels, large ones 96x96 or more.
    """

    map50_95: float | None = report_field("AP50-95", form=figure_text)
    map50: float | None = report_field("AP50", form=figure_text)
    map75: float | None = report_field("AP75", form=figure_text)
    map_small: float | None = report_field()
    map_medium: float | None = report_field()
    map_large: float | None = report_field()
    ar_1: float | None = report_field()
    ar_10: float | None = report_field()
    ar_100: float | None = report_field("AR", form=figure_text)
    ar_small: float | None = report_field()
    ar_medium: float | None = report_field()
    ar_large: float | None = report_field()

    @classmethod
    def of(cls, precision: Doubles, recall: Doubles) -> Self:
        """Average what the evaluator accumulated, where -1 stands for no boxes.

        `precision` is `(10, 101, K, 4, 3)`: IoU from 0.5 to 0.95, recall, category, size (all,
        small, medium, large), detections (1, 10, 100); `recall` is the same without recall.
        """
        parts = (
            *(precision[..., 0, -1], precision[0, ..., 0, -1], precision[5, ..., 0, -1]),
            *(precision[..., size, -1] for size in (1, 2, 3)),
            *(recall[..., 0, most] for most in (0, 1, 2)),
            *(recall[..., size, -1] for size in (1, 2, 3)),
        )
        known = (part[part > -1] for part in parts)
        return cls(*(round(float(part.mean()), 6) if part.size else None for part in known))


@frozen
class Quality:
    """The result of a confidence, at IoU 0.5; precision is None without detections."""

    f1: float
    precision: float | None
    recall: float

    @classmethod
    def of(cls, hits: int, wrong: int, boxes: int) -> Self:
        """From counts of true and false positives and of at least one box."""
        return cls(
            round(2 * hits / (hits + wrong + boxes), 6),
            round(hits / (hits + wrong), 6) if hits + wrong else None,
            round(hits / boxes, 6),
        )


class Curve(NamedTuple):
    """True and false positives by confidence, at IoU 0.5.

    The evaluator matches detections by descending score, so those above a confidence are matched as
    if there were no others: one pass with a low confidence covers all higher ones. Detections
    of crowds and of ignored objects do not count.
    """

    score: Doubles  # (N,) descending, each score once
    hits: Indices  # (N,) true positives that score as much or more
    wrong: Indices  # (N,) false positives that score as much or more
    boxes: int  # number of objects to be found

    @classmethod
    def of(cls, score: Doubles, hit: npt.NDArray[np.bool_], boxes: int) -> Self:
        """From detections `(N,)` in any order: their scores, and whether they match an object."""
        order = rank_descending(score)
        score, hit = score[order], hit[order]
        # A confidence keeps or drops equal scores together: count behind the last of them.
        last = np.append(score[1:] < score[:-1], True)[: len(score)]
        return cls(score[last], np.cumsum(hit)[last], np.cumsum(~hit)[last], boxes)

    @property
    def f1(self) -> Doubles:
        """`(N,)` the harmonic mean of precision and recall."""
        return 2 * self.hits / (self.hits + self.wrong + self.boxes)

    def counts(self, confidence: float) -> tuple[int, int]:
        """True and false positives above a confidence."""
        above = int(np.count_nonzero(self.score > confidence))
        return (int(self.hits[above - 1]), int(self.wrong[above - 1])) if above else (0, 0)

    def quality(self, confidence: float) -> Quality:
        """The result of a confidence; there must be boxes."""
        return Quality.of(*self.counts(confidence), self.boxes)

    def best(self, floor: float) -> float | None:
        """The confidence with the best F1; None if no detection is right.

        Of the numbers that separate the detections to keep from the others, it has the fewest
        decimals, at least two, and is near the middle, away from either score. Detections below
        `floor`, the confidence of the run, are unknown.
        """
        if not self.hits.any():
            return None
        best = int(self.f1.argmax())  # of equals, the one with fewer detections
        scores = np.append(self.score, floor).astype(np.float32)
        high, low = scores[best], scores[best + 1]
        middle = (float(low) + float(high)) / 2
        # A score is kept if it is above the confidence, both in float32, as the detector compares.
        rounded = (round(middle, decimals) for decimals in range(2, 10))
        fitting = (number for number in rounded if low <= np.float32(number) < high)
        return next(fitting, float(decimal(low)))  # two neighbours among the float32 numbers


class Score(NamedTuple):
    """The result for one category; for all, metrics and precision are means, counts are summed."""

    metrics: Metrics
    curve: Curve
    precision: Doubles  # (101,) interpolated, at recall 0, 0.01, ... 1 and IoU 0.5; -1 if no boxes


class MatchedBox(NamedTuple):
    category: int
    box: list[float]
    score: float | None  # None for one that was missed
    kind: int  # CORRECT, FALSE or MISSED
    label: list[float] | None = None  # the object that one that is right matches


class Evaluator:
    """Compares labels with detections."""

    def __init__(self, pictures: Sequence[EvaluatedPicture], categories: Sequence[int]) -> None:
        """Gather boxes; equal scores rank in the order of image ids.

        Boxes of other categories than these, by index, do not take part.
        """
        self._categories = list(categories)
        # Numbered from 1: image ids have up to 18 digits, more than the evaluator's floats hold.
        self._numbers = list(range(1, len(pictures) + 1))
        ordered = sorted(pictures, key=lambda one: one.image_id)
        self._ids = [one.image_id for one in ordered]
        self._object_images, self._objects = self._gather(OBJECT, [one.objects for one in ordered])
        self._found_images, self._found = self._gather(FOUND, [one.found for one in ordered])

    def _gather(
        self, dtype: np.dtype[np.void], parts: list[StructuredRows]
    ) -> tuple[Indices, StructuredRows]:
        """The number of each row's picture, and the rows of the evaluated categories."""
        images = np.repeat(self._numbers, [len(rows) for rows in parts])
        rows = np.concatenate([np.zeros(0, dtype), *parts])
        known = np.isin(rows["category"], self._categories)
        return images[known], rows[known]

    def score(self) -> tuple[Score, dict[int, Score]]:
        """The result for all categories, and for each by its index."""
        precision, recall = self._accumulated()
        counted, matches, wanted = self._match(-np.inf, PER_CLASS)
        found, hit, objects = self._found[counted], matches >= 0, self._objects[wanted]

        def score(positions: list[int]) -> Score:
            indices = [self._categories[position] for position in positions]
            of = np.isin(found["category"], indices)
            boxes = int(np.count_nonzero(np.isin(objects["category"], indices)))
            at_iou = precision[0, :, positions, 0, -1]  # (categories, 101)
            known = at_iou[at_iou[:, 0] >= 0]
            return Score(
                Metrics.of(precision[:, :, positions], recall[:, positions]),
                Curve.of(found["score"][of], hit[of], boxes),
                (known if len(known) else at_iou).mean(axis=0),
            )

        by_category = {index: score([position]) for position, index in enumerate(self._categories)}
        return score([*range(len(self._categories))]), by_category

    def confusions(self, confidence: float) -> dict[tuple[int | None, int | None], list[int]]:
        """Image ids of objects of one category found as one of another, the most frequent first.

        Detections above the confidence are matched with objects of any category, best first. None
        as the second is an object that was not found, None as the first a detection of nothing.
        """
        counted, matches, wanted = self._match(confidence, len(self._found), by_class=False)
        categories = [*self._objects["category"].tolist(), None]  # the last is for a match of -1
        confused: dict[tuple[int | None, int | None], list[int]] = {}
        for number, match in zip(counted, matches.tolist(), strict=True):
            pair = categories[match], int(self._found["category"][number])
            confused.setdefault(pair, []).append(self._ids[self._found_images[number] - 1])
        for number in np.setdiff1d(wanted, matches):
            image_id = self._ids[self._object_images[number] - 1]
            confused.setdefault((categories[number], None), []).append(image_id)
        return dict(sorted(confused.items(), key=lambda one: (-len(one[1]), str(one[0]))))

    def outcomes(self, confidence: float) -> dict[int, list[MatchedBox]]:
        """What became of the boxes of each picture, by image id; matched by class at IoU 0.5.

        The best come first, and what was missed last.
        """
        counted, matches, wanted = self._match(confidence, PER_CLASS)
        outcomes: dict[int, list[MatchedBox]] = {image_id: [] for image_id in self._ids}
        for position in rank_descending(self._found["score"][counted]):
            number = counted[position]
            box, category, score = self._found[number].tolist()
            kind = CORRECT if matches[position] >= 0 else FALSE
            image_id = self._ids[self._found_images[number] - 1]
            label = None if kind == FALSE else self._objects["box"][matches[position]].tolist()
            made = MatchedBox(category, box.tolist(), round(score, 4), kind, label)
            outcomes[image_id].append(made)
        for number in np.setdiff1d(wanted, matches):
            box, category, *_ = self._objects[number].tolist()
            image_id = self._ids[self._object_images[number] - 1]
            outcomes[image_id].append(MatchedBox(category, box.tolist(), None, MISSED))
        return outcomes

    def _match(
        self, confidence: float, most: int, *, by_class: bool = True
    ) -> tuple[Indices, Indices, Indices]:
        """Match detections above a confidence with objects at IoU 0.5, the best detections first.

        In each picture `most` detections are considered: of each class, if matched by class.
        Returns the indices of the detections that count; of the object that each of these matches,
        -1 for none; of the objects to be found.

        Each picture is matched by itself, and what the evaluator says of a match takes ten times
        the memory of its boxes: some pictures at a time.
        """
        counted, matches, wanted = ([np.zeros(0, np.int64)] for _ in range(3))
        for first in range(0, len(self._numbers), PICTURES_AT_ONCE):
            numbers = self._numbers[first : first + PICTURES_AT_ONCE]
            part = self._match_pictures(numbers, confidence, most, by_class=by_class)
            counted.append(part[0])
            matches.append(part[1])
            wanted.append(part[2])
        return np.concatenate(counted), np.concatenate(matches), np.concatenate(wanted)

    def _match_pictures(
        self, numbers: Sequence[int], confidence: float, most: int, *, by_class: bool
    ) -> tuple[Indices, Indices, Indices]:
        """Match in consecutive pictures, see `_match`."""
        object_rows = _rows_of(numbers, self._object_images)
        found_rows = _rows_of(numbers, self._found_images)
        found_rows = found_rows[self._found["score"][found_rows] > confidence]
        evaluator = self._evaluate(
            numbers,
            object_rows,
            found_rows,
            iou_thrs=[IOU],
            area_rng=[[0.0, 1e10]],
            area_rng_lbl=["all"],
            max_dets=[most],
            use_cats=by_class,
        )
        result = evaluator.image_diagnostics(IOU)  # by ids, which count from 1
        counted_ids = sorted(result["dt_status"])
        match_ids = [result["dt_match"].get(number, 0) for number in counted_ids]
        counted = found_rows[np.array(counted_ids, np.int64) - 1]
        wanted = object_rows[np.array([*result["gt_status"]], np.int64) - 1]
        matches = np.array(match_ids, np.int64) - 1
        is_match = matches >= 0
        matches[is_match] = object_rows[matches[is_match]]
        return counted, matches, wanted

    def _accumulated(self) -> tuple[Doubles, Doubles]:
        """Precision and recall of all pictures; the evaluator, which is large, is gone then."""
        object_rows = np.arange(len(self._objects))
        found_rows = np.arange(len(self._found))
        evaluator = self._evaluate(self._numbers, object_rows, found_rows)
        evaluator.accumulate()
        result: Any = evaluator.eval
        return result["precision"].copy(), result["recall"].copy()

    def _evaluate(
        self,
        numbers: Sequence[int],
        object_rows: Indices,
        found_rows: Indices,
        **parameters: object,
    ) -> "COCOeval":
        """Run the evaluator on some pictures, by their numbers, and on rows of theirs."""
        from hotcoco import COCO, COCOeval

        objects, found = self._objects[object_rows], self._found[found_rows]
        area = np.where(np.isnan(objects["area"]), objects["box"][:, 2:].prod(1), objects["area"])
        # The evaluator ignores objects larger than every range of areas.
        area[objects["ignored"] & ~objects["crowd"]] = np.inf
        truth = COCO.from_arrays(
            [{"id": number} for number in numbers],
            [{"id": index, "name": str(index)} for index in self._categories],
            self._object_images[object_rows],
            objects["category"],
            objects["box"],
            area=area,
            iscrowd=objects["crowd"],
        )
        images = self._found_images[found_rows]
        results = np.column_stack([images, found["box"], found["score"], found["category"]])
        evaluator = COCOeval(truth, truth.load_res(results), "bbox")
        parameters |= {"img_ids": [*numbers], "cat_ids": self._categories}
        for name, value in parameters.items():
            setattr(evaluator.params, name, value)
        evaluator.evaluate()
        return evaluator


def _rows_of(numbers: Sequence[int], images: Indices) -> Indices:
    """The rows of consecutive pictures; `images` has the number of each row's, ascending."""
    start = np.searchsorted(images, numbers[0])
    stop = np.searchsorted(images, numbers[-1], side="right")
    return np.arange(start, stop)


@frozen
class ClassAdvice:
    """The best confidence of one class."""

    name: str  # the class
    boxes: int  # number of boxes the advice rests on
    conf: float | None  # the confidence; None if no detection of the class is right
    best: Quality | None  # its result
    at_overall: Quality  # the result of the best confidence of all classes for this one


@frozen
class ConfidenceAdvice:
    """The best confidences; by class, of those that gain by one and have at least ten boxes."""

    conf: float  # the best for all classes
    overall: Quality  # its result
    argument: str  # as a shell argument
    by_class: Quality  # the result of all classes together with `by_class_argument`
    by_class_argument: str  # as a shell argument
    classes: tuple[ClassAdvice, ...]  # each class with boxes


def advise(
    together: Curve,
    curves: Mapping[int, Curve],
    mapping: ClassMapping,
    names: Sequence[str],
    floor: float,
) -> ConfidenceAdvice | None:
    """Find the best confidences; None if no detection at all is right.

    `curves` are of each evaluated category, by its index; `names` of the model's classes.
    """
    overall = together.best(floor)
    if overall is None:
        return None
    classes, entries = [], [decimal(overall)]
    hits = wrong = 0
    for category, curve in curves.items():
        chosen, class_ids = overall, mapping.classes_of(category)
        if curve.boxes:
            conf, before = curve.best(floor), curve.quality(overall)
            best = None if conf is None else curve.quality(conf)
            classes.append(ClassAdvice(names[class_ids[0]], curve.boxes, conf, best, before))
            gains = best is not None and best.f1 > before.f1
            if conf is not None and gains and curve.boxes >= FEW:
                chosen = conf
                entries += [f"{one}={decimal(conf)}" for one in _spellings(class_ids, names)]
        counts = curve.counts(chosen)
        hits, wrong = hits + counts[0], wrong + counts[1]
    return ConfidenceAdvice(
        overall,
        together.quality(overall),
        f"--conf {decimal(overall)}",
        Quality.of(hits, wrong, together.boxes),
        f"--conf {shell_line([','.join(entries)])}",
        tuple(classes),
    )


def decimal(number: float | np.float32) -> str:
    """A number without an exponent, which not every reader accepts."""
    return np.format_float_positional(number, trim="-")


def _spellings(class_ids: Sequence[int], names: Sequence[str]) -> list[str]:
    """Classes as `--conf` takes them: by name, by id where a name does not fit into its list.

    A name stands for all classes of this name.
    """
    name = names[class_ids[0]]
    fits = name == name.strip() != "" and "," not in name
    if fits and all((one == name) == (index in class_ids) for index, one in enumerate(names)):
        return [name]
    return [str(class_id) for class_id in class_ids]
