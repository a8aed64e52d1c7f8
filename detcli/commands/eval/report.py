"""The report of an evaluation, as JSON (see schema.json) and as tables.

Figures are from 0 to 1. None stands for what was not measured.
"""

from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path

from rich.table import Table
from rich.text import Text

from detcli.cli.report import EMPTY, facts_table, report_field, styled_line, table
from detcli.commands.eval.evaluator import FEW, IOU, ConfidenceAdvice, Metrics, Quality, figure_text
from detcli.commands.eval.labels import Finding, Form, Level, MappedBy
from detcli.core import frozen
from detcli.core.text import escape_unprintable

MAX_CONFUSIONS = 5
STYLES = {Level.FAILURE: "red", Level.WARNING: "yellow", Level.NOTE: "dim"}


@frozen
class EvalModel:
    """The evaluated model."""

    file: str  # its path or name, as given
    sha256: str  # of the file
    device: str  # where it ran
    input_size: tuple[int, int]  # height and width that pictures were letterboxed to
    classes: int  # number of classes it knows


@frozen
class EvalData:
    """The labelled pictures."""

    path: Path  # as given
    form: Form  # the format of the labels
    split: str | None  # the part of the data
    listed: int  # number of pictures it has
    evaluated: int  # number of pictures that took part
    boxes: int  # number of boxes to be found in these, of classes that the model knows
    mapped_by: MappedBy  # how classes were assigned to categories
    categories: int  # number of categories the model has a class for


@frozen
class EvalLimits:
    """The detections that took part."""

    conf: float  # their scores are above it
    max_det: int  # at most this many in a picture, or in a tile
    per_class: int  # at most this many of a class in a picture, a limit of the evaluator
    nms: float | None  # IoU of the non-maximum suppression; None without one
    tile: str | None  # side of the tiles and their overlap, as in `640,overlap=0.2`; None without


@frozen
class ClassReport:
    """One class."""

    class_id: int  # of the model; the first of several with one name
    category_id: int  # of the data
    name: str = report_field("class")  # in the model
    boxes: int = report_field("boxes")  # number of boxes to be found
    detections: int = report_field()  # number of detections that took part
    metrics: Metrics = report_field()  # its figures


@frozen
class Confusion:
    """How often one class was taken for another; None as `found` is a miss, as `true` nothing."""

    true: str | None
    found: str | None
    count: int


@frozen
class Confusions:
    """Confusions above a confidence and from an IoU on, the most frequent first."""

    conf: float
    iou: float
    counts: tuple[Confusion, ...]


@frozen
class UnevaluatedPicture:
    """A picture that could not be evaluated, and why."""

    source: str
    error: str


@frozen
class EvalReport:
    """The whole report."""

    evaluator: str  # the program that computed the figures, with its version
    model: EvalModel  # the evaluated model
    data: EvalData  # the labelled pictures
    limits: EvalLimits  # the detections that took part
    metrics: Metrics  # over all classes with boxes
    classes: tuple[ClassReport, ...]  # each class that is a category of the data
    confusions: Confusions  # classes taken for others
    advice: ConfidenceAdvice | None  # the confidences; None unless asked for or none is right
    findings: tuple[Finding, ...]  # problems and notes, the most serious first
    failed: tuple[UnevaluatedPicture, ...]  # pictures that were left out
    plots: tuple[Path, ...]  # files that were written


def render(report: EvalReport) -> Iterator[Table | Text]:
    """Lay out a report: model and data, each class, findings, and last the figures."""
    yield facts_table(_facts(report))
    if classes := [one for one in report.classes if one.boxes]:
        yield Text()
        yield table(classes)
    confused = [
        f"{one.true} found as {one.found} {one.count}x"
        for one in report.confusions.counts
        if one.true is not None and one.found is not None and one.true != one.found
    ]
    if confused:
        yield Text()
        limit = f"confused above {report.confusions.conf:g}: "
        yield styled_line((limit, "cyan"), (", ".join(confused[:MAX_CONFUSIONS]), ""))
    if report.findings:
        yield Text()
    for one in report.findings:
        more = ", ..." if one.count > len(one.examples) else ""
        text = Text.assemble((f"{one.level}: ", STYLES[one.level]), one.text())
        yield text.append(f"\n  {escape_unprintable(', '.join(one.examples))}{more}", style="dim")
    for path in report.plots:
        yield styled_line(("plot: ", "dim"), (str(path), ""))
    if report.advice is not None:
        yield Text()
        yield from _advice(report.advice)
    yield Text()
    yield _figures(report.metrics)


def _facts(report: EvalReport) -> Iterator[tuple[str, str]]:
    model, data, limits = report.model, report.data, report.limits
    height, width = model.input_size
    yield "model", f"{model.file} ({model.sha256[:12]}) on {model.device}, {width}x{height}"
    split = f", {data.split}" if data.split else ""
    yield "data", f"{data.path} ({data.form}{split})"
    yield "pictures", f"{data.evaluated} of {data.listed}, {data.boxes} boxes"
    known = f"{data.categories} of the model's {model.classes} are categories of the data"
    yield "classes", f"{known}, by {data.mapped_by}"
    where = "picture" if limits.tile is None else f"tile ({limits.tile})"
    nms = "" if limits.nms is None else f", NMS {limits.nms:g}"
    kept = f"above {limits.conf:g}, at most {limits.max_det} in a {where}{nms}"
    yield "detections", f"{kept}; of each class the best {limits.per_class} are compared"
    yield "evaluator", report.evaluator


def _table(title: str, *columns: str) -> Table:
    made = Table(box=None, pad_edge=False)
    made.add_column(title, style="cyan", no_wrap=not title)
    for column in columns:
        made.add_column(column, justify="right")
    return made


def _figures(metrics: Metrics) -> Table:
    made = _table("", "all", "small", "medium", "large")
    sizes = metrics.map_small, metrics.map_medium, metrics.map_large
    recall = metrics.ar_small, metrics.ar_medium, metrics.ar_large
    made.add_row("mAP50-95", *_numbers(metrics.map50_95, *sizes), style="bold")
    made.add_row("mAP50", *_numbers(metrics.map50))
    made.add_row("mAP75", *_numbers(metrics.map75))
    made.add_row("AR, best 100", *_numbers(metrics.ar_100, *recall))
    made.add_row("AR, best 10", *_numbers(metrics.ar_10))
    made.add_row("AR, best 1", *_numbers(metrics.ar_1))
    return made


def _advice(advice: ConfidenceAdvice) -> Iterator[Table | Text]:
    columns = "boxes", "conf", "F1", "precision", "recall", f"F1 at {advice.conf:g}"
    made = _table(f"best F1 at IoU {IOU:g}", *columns)
    made.add_row("all boxes", "", f"{advice.conf:g}", *_quality(advice.overall), style="bold")
    for one in advice.classes:
        conf = EMPTY if one.conf is None else f"{one.conf:g}"
        few = "*" if one.boxes < FEW else ""
        cells = f"{few}{one.boxes}", conf, *_quality(one.best), *_numbers(one.at_overall.f1)
        made.add_row(Text(escape_unprintable(one.name)), *cells)
    yield made
    if any(one.boxes < FEW for one in advice.classes):
        yield styled_line((f"* fewer than {FEW} boxes: may be chance, left out of --conf", "dim"))
    for title, argument, quality in (
        ("one for all: ", advice.argument, advice.overall),
        ("by class:    ", advice.by_class_argument, advice.by_class),
    ):
        yield styled_line((f"F1 {quality.f1:.3f}, {title}", "dim"), (argument, "bold"))


def _quality(quality: Quality | None) -> Iterator[str]:
    return _numbers(*(astuple(quality) if quality else [None] * 3))


def _numbers(*figures: float | None) -> Iterator[str]:
    return (EMPTY if one is None else figure_text(one) for one in figures)
