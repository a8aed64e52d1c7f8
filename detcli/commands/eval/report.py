"""What an evaluation comes to; its JSON form is described by schemas/eval.json.

Figures are from 0 to 1. None is what was not measured, or has nothing to be measured on.
"""

from dataclasses import dataclass
from pathlib import Path

from detcli.commands.eval.advice import Advice
from detcli.commands.eval.classes import MappedBy
from detcli.commands.eval.dataset import Form
from detcli.commands.eval.findings import Finding
from detcli.commands.eval.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Model:
    """What was evaluated.

    Attributes:
        file: As it was given.
        sha256: Of the file.
        device: Where it ran.
        input_size: Height and width that pictures were letterboxed to.
        classes: How many it knows.
    """

    file: str
    sha256: str
    device: str
    input_size: tuple[int, int]
    classes: int


@dataclass(frozen=True, slots=True)
class Data:
    """What it was evaluated on.

    Attributes:
        path: As it was given.
        form: How it is labelled.
        split: Which part of it.
        listed: How many pictures it has.
        evaluated: How many of these took part.
        boxes: How many there were to be found in these, of classes that the model knows.
        mapped_by: How classes were assigned to categories.
        categories: How many categories the model has a class for.
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
class Limits:
    """Which detections took part.

    Attributes:
        conf: Those with scores above it.
        max_det: At most so many in a picture.
        per_class: Of these, at most so many of a class, as the evaluator has it.
        nms: IoU of the non-maximum suppression; None if there was none.
    """

    conf: float
    max_det: int
    per_class: int
    nms: float | None


@dataclass(frozen=True, slots=True)
class ClassReport:
    """One class.

    Attributes:
        class_id: Of the model; of several with that name, the first.
        category_id: Of the data.
        name: As the model calls it.
        boxes: How many there were to be found.
        detections: How many took part.
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
    """How often one thing was taken for another; None as `found` is a miss, as `true` nothing."""

    true: str | None
    found: str | None
    count: int


@dataclass(frozen=True, slots=True)
class Confusions:
    """Above which confidence, and at which IoU; the most frequent first."""

    conf: float
    iou: float
    counts: tuple[Confusion, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    """A picture that could not be evaluated, and why."""

    source: str
    error: str


@dataclass(frozen=True, slots=True)
class EvalReport:
    """All of it.

    Attributes:
        evaluator: Whose arithmetic it is, with its version.
        model: What was evaluated.
        data: What it was evaluated on.
        limits: Which detections took part.
        metrics: Over all classes that have boxes.
        classes: Each class that the data has as well.
        confusions: What was taken for what.
        advice: The confidences to use; None if nobody asked, or nothing was found.
        findings: What deserves a look.
        failed: Pictures that were left out.
        plots: Files that were written.
    """

    evaluator: str
    model: Model
    data: Data
    limits: Limits
    metrics: Metrics
    classes: tuple[ClassReport, ...]
    confusions: Confusions
    advice: Advice | None
    findings: tuple[Finding, ...]
    failed: tuple[Failed, ...]
    plots: tuple[Path, ...]
