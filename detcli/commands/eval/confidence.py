"""How good detections are at each confidence, and which confidences are the best."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from detcli.commands.eval.classes import ClassMapping
from detcli.core import frozen
from detcli.core.text import shell_line
from detcli.data.topk import rank_descending

Doubles = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

MIN_BOXES_FOR_ADVICE = 10  # of a class; a confidence that rests on fewer boxes may be chance


@frozen
class Quality:
    """How good the detections above a confidence are, at IoU 0.5."""

    f1: float
    precision: float | None  # None if there are no detections
    recall: float

    @classmethod
    def of(cls, true_positives: int, false_positives: int, boxes: int) -> Self:
        """Compute F1, precision and recall from counts; there must be at least one box.

        Args:
            true_positives: Number of detections that match a labelled box.
            false_positives: Number of detections that match none.
            boxes: Number of labelled boxes.
        """
        detections = true_positives + false_positives
        precision = None
        if detections:
            precision = round(true_positives / detections, 6)
        return cls(
            f1=round(2 * true_positives / (detections + boxes), 6),
            precision=precision,
            recall=round(true_positives / boxes, 6),
        )


class Curve(NamedTuple):
    """True and false positives by confidence, at IoU 0.5.

    The evaluator matches detections by descending score, so those above a confidence are matched as
    if there were no others: one pass with a low confidence covers all higher ones. Detections
    of crowds and of ignored objects are left out.
    """

    score: Doubles  # (N,) descending, each score once
    true_positives: Indices  # (N,) that score as much or more
    false_positives: Indices  # (N,) that score as much or more
    boxes: int  # number of objects to be detected

    @classmethod
    def of(cls, scores: Doubles, matches_object: npt.NDArray[np.bool_], boxes: int) -> Self:
        """Count true and false positives down to each score that a detection has.

        Args:
            scores: `(N,)` scores of all detections, in any order.
            matches_object: `(N,)` whether each of them matches an object.
            boxes: Number of objects to be detected.
        """
        best_first = rank_descending(scores)
        sorted_scores = scores[best_first]
        is_true_positive = matches_object[best_first]
        true_positives = np.cumsum(is_true_positive, dtype=np.int64)
        false_positives = np.cumsum(~is_true_positive, dtype=np.int64)

        # Detections with the same score are either all above a confidence or none of them is. So
        # only the counts at the last of them are used.
        is_last_of_equals = np.ones(len(scores), np.bool_)
        is_last_of_equals[:-1] = sorted_scores[1:] < sorted_scores[:-1]
        return cls(
            score=sorted_scores[is_last_of_equals],
            true_positives=true_positives[is_last_of_equals],
            false_positives=false_positives[is_last_of_equals],
            boxes=boxes,
        )

    @property
    def f1(self) -> Doubles:
        """`(N,)` the harmonic mean of precision and recall, of the detections down to each score.

        Precision is tp / (tp + fp) and recall tp / boxes, so it is 2 tp / (tp + fp + boxes).
        """
        return 2 * self.true_positives / (self.true_positives + self.false_positives + self.boxes)

    def counts(self, confidence: float) -> tuple[int, int]:
        """Return the numbers of true and of false positives above a confidence."""
        scores_above = int(np.count_nonzero(self.score > confidence))
        if scores_above == 0:
            return 0, 0
        lowest = scores_above - 1  # index of the lowest score above the confidence
        return int(self.true_positives[lowest]), int(self.false_positives[lowest])

    def quality(self, confidence: float) -> Quality:
        """Compute how good the detections above a confidence are; there must be labelled boxes."""
        true_positives, false_positives = self.counts(confidence)
        return Quality.of(true_positives, false_positives, self.boxes)

    def best_confidence(self, floor: float) -> float | None:
        """Find the confidence with the best F1; None if no detection is right.

        The best F1 is that of the detections down to some score. The confidence separates this
        score from the next lower one: near the middle, so that scores may vary a little, and with
        as few decimals as possible. Between 0.31 and 0.37, for example, it is 0.34.

        Args:
            floor: The confidence of the run, which has dropped all detections with lower scores.
        """
        if not self.true_positives.any():
            return None

        # The lowest score of the run has none below it, so the floor stands for the next one. All
        # are float32, as the detector compares scores with a confidence in float32.
        descending_scores = np.append(self.score, floor).astype(np.float32)
        best_index = int(self.f1.argmax())  # the first of several equal maxima: fewest boxes
        lowest_above = descending_scores[best_index]
        highest_below = descending_scores[best_index + 1]
        return _confidence_between(highest_below, lowest_above)


def _confidence_between(low: np.float32, high: np.float32) -> float:
    """Return a confidence that keeps detections with the score `high` and drops those with `low`.

    It is near the middle of the two, with as few decimals as possible, but at least two.
    """
    middle = (float(low) + float(high)) / 2
    for decimals in range(2, 10):
        confidence = round(middle, decimals)
        # A score equal to the confidence is dropped, and one above it is kept.
        if low <= np.float32(confidence) < high:
            return confidence

    # The scores are so close that nine decimals do not separate them. The lower score itself does.
    # Its text has just enough digits to give the same float32 number again; a float made directly
    # from it would have many more.
    return float(decimal(low))


@frozen
class ClassAdvice:
    """The best confidence of one class."""

    name: str  # the class
    boxes: int  # number of boxes the advice rests on
    conf: float | None  # the confidence; None if no detection of the class is right
    best: Quality | None  # its result
    at_overall: Quality  # the result of the best confidence of all classes for this one

    @property
    def is_worthwhile(self) -> bool:
        """Whether a confidence for this class alone gains, and does not rest on chance."""
        has_gain = self.best is not None and self.best.f1 > self.at_overall.f1
        return has_gain and self.boxes >= MIN_BOXES_FOR_ADVICE


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
    """Find the confidences with the best F1, for all classes together and for individual ones.

    Args:
        together: True and false positives of all categories.
        curves: The same of each evaluated category, by its index.
        mapping: Which classes of the model stand for which category.
        names: Names of the model's classes, by class id.
        floor: The confidence of the run; whatever scores less is unknown.

    Returns:
        None if no detection at all is right.
    """
    overall = together.best_confidence(floor)
    if overall is None:
        return None

    class_advices = []
    entries = [decimal(overall)]  # of the list that `--conf` takes, such as 0.5,person=0.3
    true_positives = 0
    false_positives = 0
    for category, curve in curves.items():
        class_ids = mapping.classes_of(category)
        conf = overall
        if curve.boxes:
            advice = _advise_class(names[class_ids[0]], curve, overall, floor)
            class_advices.append(advice)
            if advice.conf is not None and advice.is_worthwhile:
                conf = advice.conf
                for class_text in _conf_keys(class_ids, names):
                    entries.append(f"{class_text}={decimal(conf)}")
        true_count, false_count = curve.counts(conf)
        true_positives += true_count
        false_positives += false_count
    return ConfidenceAdvice(
        conf=overall,
        overall=together.quality(overall),
        argument=f"--conf {decimal(overall)}",
        by_class=Quality.of(true_positives, false_positives, together.boxes),
        by_class_argument=f"--conf {shell_line([','.join(entries)])}",
        classes=tuple(class_advices),
    )


def _advise_class(name: str, curve: Curve, overall: float, floor: float) -> ClassAdvice:
    """Compare the best confidence of one class with the best one of all classes, `overall`.

    `floor` is the confidence of the run; whatever scores less is unknown.
    """
    conf = curve.best_confidence(floor)
    best = None
    if conf is not None:
        best = curve.quality(conf)
    return ClassAdvice(name, curve.boxes, conf, best, at_overall=curve.quality(overall))


def decimal(number: float | np.float32) -> str:
    """Format a number without an exponent, which not every reader accepts."""
    return np.format_float_positional(number, trim="-")


def _conf_keys(class_ids: Sequence[int], names: Sequence[str]) -> list[str]:
    """Format classes with the same name as --conf takes them: by name, or else by id.

    In `--conf person=0.3,car=0.4`, a name stands for all classes of this name. So it can only be
    used if all of these are meant, and if it has no comma and no spaces at its ends.

    Args:
        class_ids: The classes to write.
        names: Names of all classes of the model, by class id.

    Returns:
        The name alone, ["person"], or the ids, ["0", "7"].
    """
    name = names[class_ids[0]]
    fits_into_list = name != "" and name == name.strip() and "," not in name
    ids_of_name = {class_id for class_id, other_name in enumerate(names) if other_name == name}
    if fits_into_list and ids_of_name == set(class_ids):
        return [name]
    return [str(class_id) for class_id in class_ids]
