"""The report of an evaluation; its JSON form is described by schema.json.

Figures are from 0 to 1. None stands for what was not measured.
"""

from dataclasses import dataclass
from pathlib import Path

from detcli.commands.eval.advice import ConfidenceAdvice
from detcli.commands.shared.labelled.dataset import Finding, Form, MappedBy
from detcli.commands.shared.labelled.evaluator import Metrics


@dataclass(frozen=True, slots=True)
class EvalModel:
    """The evaluated model.

    Attributes:
        file: Its path or name, as given.
        sha256: Of the file.
        device: Where it ran.
        input_size: Height and width that pictures were letterboxed to.
        classes: Number of classes it knows.
    """

    file: str
    sha256: str
    device: str
    input_size: tuple[int, int]
    classes: int


@dataclass(frozen=True, slots=True)
class EvalData:
    """The labelled pictures.

    Attributes:
        path: As given.
        form: The format of the labels.
        split: The part of the data.
        listed: Number of pictures it has.
        evaluated: Number of pictures that took part.
        boxes: Number of boxes to be found in these, of classes that the model knows.
        mapped_by: How classes were assigned to categories.
        categories: Number of categories the model has a class for.
    """

    path: Path
    form: Form
    split: str | None
    listed: int
    evaluated: int
    boxes: int
    mapped_by: MappedBy
    categories: int


@dataclass(frozen=True, slots=True)
class EvalLimits:
    """The detections that took part.

    Attributes:
        conf: Their scores are above it.
        max_det: At most this many in a picture, or in a tile.
        per_class: At most this many of a class in a picture, a limit of the evaluator.
        nms: IoU of the non-maximum suppression; None without one.
        tile: Side of the tiles and their overlap, as in `640,overlap=0.2`; None without tiles.
    """

    conf: float
    max_det: int
    per_class: int
    nms: float | None
    tile: str | None


@dataclass(frozen=True, slots=True)
class ClassReport:
    """One class.

    Attributes:
        class_id: Of the model; the first of several with one name.
        category_id: Of the data.
        name: In the model.
        boxes: Number of boxes to be found.
        detections: Number of detections that took part.
        metrics: Its figures.
    """

    class_id: int
    category_id: int
    name: str
    boxes: int
    detections: int
    metrics: Metrics


@dataclass(frozen=True, slots=True)
class Confusion:
    """How often one class was taken for another; None as `found` is a miss, as `true` nothing."""

    true: str | None
    found: str | None
    count: int


@dataclass(frozen=True, slots=True)
class Confusions:
    """Confusions above a confidence and from an IoU on, the most frequent first."""

    conf: float
    iou: float
    counts: tuple[Confusion, ...]


@dataclass(frozen=True, slots=True)
class UnevaluatedPicture:
    """A picture that could not be evaluated, and why."""

    source: str
    error: str


@dataclass(frozen=True, slots=True)
class EvalReport:
    """The whole report.

    Attributes:
        evaluator: The program that computed the figures, with its version.
        model: The evaluated model.
        data: The labelled pictures.
        limits: The detections that took part.
        metrics: Over all classes with boxes.
        classes: Each class that is a category of the data.
        confusions: Classes taken for others.
        advice: The confidences to use; None unless asked for, or if no detection is right.
        findings: Problems and notes, the most serious first.
        failed: Pictures that were left out.
        plots: Files that were written.
    """

    evaluator: str
    model: EvalModel
    data: EvalData
    limits: EvalLimits
    metrics: Metrics
    classes: tuple[ClassReport, ...]
    confusions: Confusions
    advice: ConfidenceAdvice | None
    findings: tuple[Finding, ...]
    failed: tuple[UnevaluatedPicture, ...]
    plots: tuple[Path, ...]
