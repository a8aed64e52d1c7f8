"""Advice: the confidence that gives the best F1, and the `--conf` that asks for it.

F1 is the harmonic mean of precision and recall, at IoU 0.5. Overall, it covers the boxes of all
classes, and false positives of classes without boxes.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from detcli.commands.shared.labelled.dataset import ClassMapping
from detcli.commands.shared.labelled.evaluator import Curve

FEW = 10
"""Boxes of a class; a confidence that rests on fewer may be chance."""


@dataclass(frozen=True, slots=True)
class Quality:
    """The result of a confidence, at IoU 0.5; precision is None without detections."""

    f1: float
    precision: float | None
    recall: float

    @classmethod
    def of(cls, hits: int, wrong: int, boxes: int) -> "Quality":
        """From counts of true and false positives and of boxes, of which there is at least one."""
        return cls(
            round(2 * hits / (hits + wrong + boxes), 6),
            round(hits / (hits + wrong), 6) if hits + wrong else None,
            round(hits / boxes, 6),
        )


@dataclass(frozen=True, slots=True)
class ClassAdvice:
    """The best confidence of one class.

    Attributes:
        name: The class.
        boxes: Number of boxes the advice rests on.
        conf: The confidence; None if no detection of the class is right.
        best: Its result.
        at_overall: The result of the best confidence of all classes for this one.
    """

    name: str
    boxes: int
    conf: float | None
    best: Quality | None
    at_overall: Quality


@dataclass(frozen=True, slots=True)
class ConfidenceAdvice:
    """The best confidences.

    Attributes:
        conf: The best for all classes.
        overall: Its result.
        argument: As a shell argument.
        by_class: The result of all classes together with `by_class_argument`.
        by_class_argument: As a shell argument; names the classes that gain by their own confidence
            and have at least ten boxes.
        classes: Each class with boxes.
    """

    conf: float
    overall: Quality
    argument: str
    by_class: Quality
    by_class_argument: str
    classes: tuple[ClassAdvice, ...]


def advise(
    together: Curve,
    curves: Mapping[int, Curve],
    mapping: ClassMapping,
    names: Sequence[str],
    floor: float,
) -> ConfidenceAdvice | None:
    """Find the best confidences.

    Args:
        together: All categories.
        curves: Each evaluated category, by its index.
        mapping: Classes and categories.
        names: The model's classes.
        floor: The confidence of the run; detections below it are unknown.

    Returns:
        None if no detection at all is right.
    """
    overall = best_confidence(together, floor)
    if overall is None:
        return None
    classes, entries = [], []
    hits = wrong = 0
    for category, curve in curves.items():
        chosen, best = overall, best_confidence(curve, floor)
        class_ids = mapping.classes_of(category)
        if curve.boxes:
            before = Quality.of(*curve.counts(overall), curve.boxes)
            after = None if best is None else Quality.of(*curve.counts(best), curve.boxes)
            name = names[class_ids[0]]
            classes.append(ClassAdvice(name, curve.boxes, best, after, before))
            gains = best is not None and after is not None and after.f1 > before.f1
            if best is not None and gains and curve.boxes >= FEW:
                chosen = best
                entries += [f"{one}={decimal(best)}" for one in _spellings(class_ids, names)]
        counts = curve.counts(chosen)
        hits, wrong = hits + counts[0], wrong + counts[1]
    return ConfidenceAdvice(
        overall,
        Quality.of(*together.counts(overall), together.boxes),
        f"--conf {decimal(overall)}",
        Quality.of(hits, wrong, together.boxes),
        f"--conf {shlex.quote(','.join([decimal(overall), *entries]))}",
        tuple(classes),
    )


def best_confidence(curve: Curve, floor: float) -> float | None:
    """The confidence with the best F1; None if no detection is right.

    Of the numbers that separate the detections to keep from the others, it has the fewest decimals,
    at least two, and is near the middle, away from either score.
    """
    if not curve.hits.any():
        return None
    place = int(curve.f1.argmax())  # of equals, the one with fewer detections
    high = np.float32(curve.score[place])
    low = np.float32(curve.score[place + 1] if place + 1 < len(curve.score) else floor)
    middle = (float(low) + float(high)) / 2
    # A score is kept if it is above the confidence, both in float32, as the detector compares them.
    rounded = (round(middle, decimals) for decimals in range(2, 10))
    fitting = (number for number in rounded if low <= np.float32(number) < high)
    return next(fitting, float(decimal(low)))  # two neighbours among the float32 numbers


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
