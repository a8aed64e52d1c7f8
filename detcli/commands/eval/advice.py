"""Advice: the confidence that gives the best F1, and the `--conf` that asks for it.

F1 is the harmonic mean of precision and recall, at IoU 0.5. Overall, it is that of all boxes of all
classes together, false alarms of classes without boxes included.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from detcli.commands.eval.classes import ClassMapping
from detcli.commands.eval.curves import Curve
from detcli.commands.eval.metrics import Ranking

FEW = 10
"""Boxes; what rests on fewer is as much chance as knowledge."""


MOST_DECIMALS = 10


@dataclass(frozen=True, slots=True)
class Quality:
    """What a confidence gives, at IoU 0.5, from 0 to 1; without detections, precision is None."""

    f1: float
    precision: float | None
    recall: float

    @classmethod
    def of(cls, hits: int, alarms: int, boxes: int) -> "Quality":
        """Of counts; there is at least one box."""
        return cls(
            round(2 * hits / (hits + alarms + boxes), 6),
            round(hits / (hits + alarms), 6) if hits + alarms else None,
            round(hits / boxes, 6),
        )


@dataclass(frozen=True, slots=True)
class ClassAdvice:
    """The best confidence of one class.

    Attributes:
        name: Of the class.
        boxes: How many the advice rests on.
        conf: The confidence; None if no detection of the class is right.
        best: What it gives.
        at_overall: What the best confidence of all classes gives for this one.
    """

    name: str
    boxes: int
    conf: float | None
    best: Quality | None
    at_overall: Quality


@dataclass(frozen=True, slots=True)
class Advice:
    """The best confidences.

    Attributes:
        conf: Of all classes.
        overall: What it gives.
        argument: As an argument for a shell.
        by_class: What the best confidence of each class gives, all classes together.
        by_class_argument: As an argument; names classes that gain by a confidence of their own.
        classes: Each class with boxes.
    """

    conf: float
    overall: Quality
    argument: str
    by_class: Quality
    by_class_argument: str
    classes: tuple[ClassAdvice, ...]


def advise(
    rankings: Mapping[int, Ranking],
    mapping: ClassMapping,
    names: Sequence[str],
    floor: float,
) -> Advice | None:
    """Find the best confidences.

    Args:
        rankings: Of each category that was evaluated.
        mapping: Which classes these are.
        names: Of the model's classes.
        floor: The confidence of this run: detections below it are not known.

    Returns:
        None if no detection at all is right.
    """
    together = Curve.of(rankings.values())
    overall = best_confidence(together, floor)
    if overall is None:
        return None
    classes, entries = [], []
    hits, alarms = 0, 0
    for category, ranking in rankings.items():
        curve = Curve.of([ranking])
        chosen, best = overall, best_confidence(curve, floor)
        class_ids = mapping.classes_of(category)
        if curve.boxes:
            before = Quality.of(*curve.counts(overall), curve.boxes)
            after = None if best is None else Quality.of(*curve.counts(best), curve.boxes)
            name = names[class_ids[0]]
            classes.append(ClassAdvice(name, curve.boxes, best, after, before))
            if best is not None and after is not None and after.f1 > before.f1:
                chosen = best
                entries += [f"{one}={decimal(best)}" for one in _spellings(class_ids, names)]
        counts = curve.counts(chosen)
        hits, alarms = hits + counts[0], alarms + counts[1]
    return Advice(
        overall,
        Quality.of(*together.counts(overall), together.boxes),
        f"--conf {decimal(overall)}",
        Quality.of(hits, alarms, together.boxes),
        f"--conf {shlex.quote(','.join([decimal(overall), *entries]))}",
        tuple(classes),
    )


def best_confidence(curve: Curve, floor: float) -> float | None:
    """The confidence with the best F1; None if no detection is right.

    Of the numbers that part the detections to keep from the others, it has the fewest decimals, two
    at least, and is near the middle: what comes close to it is on neither side by chance.
    """
    if not curve.hits.any():
        return None
    place = int(curve.f1.argmax())  # of equals the one with fewer detections
    high = np.float32(curve.score[place])
    below = curve.score[place + 1] if place + 1 < len(curve.score) else floor
    low = np.float32(below)
    middle = (float(low) + float(high)) / 2
    # A score is kept if it is above the confidence, both in float32, as the detector compares them.
    rounded = (round(middle, decimals) for decimals in range(2, MOST_DECIMALS))
    fitting = (number for number in rounded if low <= np.float32(number) < high)
    return next(fitting, float(decimal(low)))  # two neighbours among the float32 numbers


def decimal(number: float | np.float32) -> str:
    """A number as people write it: without an exponent, which not everything reads."""
    return np.format_float_positional(number, trim="-")


def _spellings(class_ids: Sequence[int], names: Sequence[str]) -> list[str]:
    """How `--conf` calls classes: by name, by id where a name does not fit into its list."""
    name = names[class_ids[0]]
    fits = name == name.strip() and "," not in name and name != ""
    if fits and all(names[class_id] == name for class_id in class_ids):
        return [name]
    return [str(class_id) for class_id in class_ids]
