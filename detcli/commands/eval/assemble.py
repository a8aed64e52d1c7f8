"""From what was compared to the report."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from detcli.commands.eval.advice import advise, best_confidence
from detcli.commands.eval.classes import ClassMapping
from detcli.commands.eval.comparison import Comparison
from detcli.commands.eval.confusion import confusions
from detcli.commands.eval.curves import Curve
from detcli.commands.eval.dataset import Dataset
from detcli.commands.eval.evaluator import IOU, PER_CLASS, Compared, require_evaluator
from detcli.commands.eval.findings import EMPTY, HIGH_CONFIDENCE, Findings
from detcli.commands.eval.metrics import Scores, score
from detcli.commands.eval.plots import Plotted, plot
from detcli.commands.eval.report import (
    ClassReport,
    Confusion,
    Confusions,
    Data,
    EvalReport,
    Limits,
    Model,
)
from detcli.commands.eval.request import Request
from detcli.detector import Detector

if TYPE_CHECKING:
    from pathlib import Path

LOW = 0.01
"""A confidence above it takes a part of the precision-recall curve away."""

USUAL = 0.25
"""The confidence of `predict`, for what is confused where no best one is known."""


@dataclass(frozen=True, slots=True)
class Sides:
    """What is compared: the model's classes with the data's categories."""

    detector: Detector
    dataset: Dataset
    mapping: ClassMapping


def assemble(
    request: Request, sides: Sides, comparison: Comparison, findings: Findings
) -> EvalReport:
    """Let the evaluator compare, and gather what it says; writes the plots.

    Raises:
        OutputError: A plot cannot be written.
    """
    pictures = sorted(comparison.compared, key=lambda one: one.image_id)
    mapping, categories = sides.mapping, sides.mapping.categories
    scores = score(pictures, categories)
    conf = request.run.settings.conf
    names = sides.detector.contract.names
    classes = tuple(_classes(sides, scores))
    for one in classes:
        if not one.boxes:
            findings.add(EMPTY, f"{one.name} ({one.detections} detections)")
    if conf > LOW:
        findings.add(HIGH_CONFIDENCE, f"{conf:g} instead of 0.001")
    best = best_confidence(Curve.of(scores.rankings.values()), conf)
    confused = _confusions(pictures, sides, max(USUAL, conf) if best is None else best)
    plotted: Iterable[Path] = ()
    if request.plots is not None:
        title = f"{sides.detector.model_name} on {request.data.data}, {len(pictures)} pictures"
        called = {index: sides.dataset.categories[index].name for index in categories}
        plotted = plot(request.plots, Plotted(title, called, scores, confused, conf))
    return EvalReport(
        evaluator=require_evaluator(),
        model=_model(request, sides.detector),
        data=_data(request, sides, pictures, scores),
        limits=Limits(conf, request.run.settings.max_det, PER_CLASS, request.run.settings.nms),
        metrics=scores.overall,
        classes=classes,
        confusions=confused,
        advice=advise(scores.rankings, mapping, names, conf) if request.advise else None,
        findings=findings.report(),
        failed=tuple(comparison.failed),
        plots=tuple(plotted),
    )


def _model(request: Request, detector: Detector) -> Model:
    with request.model.path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    classes = detector.contract.class_count
    return Model(request.run.model, digest, detector.device, detector.canvas, classes)


def _data(request: Request, sides: Sides, pictures: list[Compared], scores: Scores) -> Data:
    dataset, mapping = sides.dataset, sides.mapping
    return Data(
        *(request.data.data, dataset.form, dataset.split, len(dataset.samples), len(pictures)),
        sum(ranking.boxes for ranking in scores.rankings.values()),
        *(mapping.by, len(mapping.categories)),
    )


def _classes(sides: Sides, scores: Scores) -> Iterable[ClassReport]:
    """Each class that is a category, in the order of the model."""
    named = [(sides.mapping.classes_of(index)[0], index) for index in sides.mapping.categories]
    for class_id, index in sorted(named):
        ranking = scores.rankings[index]
        yield ClassReport(
            class_id=class_id,
            category_id=sides.dataset.categories[index].id,
            name=sides.detector.contract.names[class_id],
            boxes=ranking.boxes,
            detections=len(ranking.score),
            metrics=scores.by_category[index],
        )


def _confusions(pictures: list[Compared], sides: Sides, conf: float) -> Confusions:
    counts = confusions(pictures, sides.mapping.categories, conf)

    def name(index: int | None) -> str | None:
        return None if index is None else sides.dataset.categories[index].name

    frequent = sorted(counts.items(), key=lambda one: (-one[1], str(one[0])))
    rows = tuple(Confusion(name(true), name(found), count) for (true, found), count in frequent)
    return Confusions(conf, IOU, rows)
