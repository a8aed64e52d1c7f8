"""The report of an evaluation, as JSON (see schema.json) and as tables.

Figures are from 0 to 1. None stands for what was not measured.
"""

from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path

from rich.table import Table
from rich.text import Text

from detcli.commands.eval.evaluator import FEW, IOU, ConfidenceAdvice, Metrics, Quality
from detcli.commands.eval.labels import Finding, Form, Level, MappedBy
from detcli.commands.shared.reports import facts, line
from detcli.text import printable


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


NOTHING = "-"
MAX_CONFUSIONS = 5
STYLES = {Level.FAILURE: "red", Level.WARNING: "yellow", Level.NOTE: "dim"}


def render(report: EvalReport) -> Iterator[Table | Text]:
    """Lay out a report: the figures, model and data, each class, the findings."""
    yield _figures(report.metrics)
    yield Text()
    yield facts(_facts(report))
    if any(one.boxes for one in report.classes):
        yield Text()
        yield _classes(report)
    if confused := _confused(report.confusions):
        yield Text()
        yield confused
    if report.advice is not None:
        yield Text()
        yield from _advice(report.advice)
    if report.findings:
        yield Text()
    yield from map(_finding, report.findings)
    for path in report.plots:
        yield line(("plot: ", "dim"), (str(path), ""))


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
    table = Table(box=None, pad_edge=False)
    table.add_column(title, style="cyan", no_wrap=not title)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _figures(metrics: Metrics) -> Table:
    table = _table("", "all", "small", "medium", "large")
    sizes = metrics.map_small, metrics.map_medium, metrics.map_large
    table.add_row("mAP50-95", *map(_number, (metrics.map50_95, *sizes)), style="bold")
    table.add_row("mAP50", _number(metrics.map50))
    table.add_row("mAP75", _number(metrics.map75))
    recall = metrics.ar_small, metrics.ar_medium, metrics.ar_large
    table.add_row("AR, best 100", *map(_number, (metrics.ar_100, *recall)))
    table.add_row("AR, best 10", _number(metrics.ar_10))
    table.add_row("AR, best 1", _number(metrics.ar_1))
    return table


def _classes(report: EvalReport) -> Table:
    table = _table("class", "boxes", "AP50-95", "AP50", "AP75", "AR")
    for one in report.classes:
        metrics = one.metrics
        figures = metrics.map50_95, metrics.map50, metrics.map75, metrics.ar_100
        if one.boxes:
            table.add_row(Text(printable(one.name)), str(one.boxes), *map(_number, figures))
    return table


def _confused(confusions: Confusions) -> Text | None:
    pairs = [
        f"{one.true} found as {one.found} {one.count}x"
        for one in confusions.counts
        if one.true is not None and one.found is not None and one.true != one.found
    ]
    if not pairs:
        return None
    limit = f"confused above {confusions.conf:g}: "
    return line((limit, "cyan"), (", ".join(pairs[:MAX_CONFUSIONS]), ""))


def _advice(advice: ConfidenceAdvice) -> Iterator[Table | Text]:
    columns = "boxes", "conf", "F1", "precision", "recall", f"F1 at {advice.conf:g}"
    table = _table(f"best F1 at IoU {IOU:g}", *columns)
    table.add_row("all boxes", "", f"{advice.conf:g}", *_quality(advice.overall), style="bold")
    for one in advice.classes:
        conf = NOTHING if one.conf is None else f"{one.conf:g}"
        few = "*" if one.boxes < FEW else ""
        cells = f"{few}{one.boxes}", conf, *_quality(one.best), _number(one.at_overall.f1)
        table.add_row(Text(printable(one.name)), *cells)
    yield table
    if any(one.boxes < FEW for one in advice.classes):
        yield line((f"* fewer than {FEW} boxes: may be chance, left out of --conf", "dim"))
    for title, argument, quality in (
        ("one for all: ", advice.argument, advice.overall),
        ("by class:    ", advice.by_class_argument, advice.by_class),
    ):
        yield line((f"F1 {quality.f1:.3f}, {title}", "dim"), (argument, "bold"))


def _quality(quality: Quality | None) -> Iterator[str]:
    return (_number(figure) for figure in (astuple(quality) if quality else [None] * 3))


def _finding(finding: Finding) -> Text:
    more = ", ..." if finding.count > len(finding.examples) else ""
    text = Text.assemble(
        (f"{finding.level}: ", STYLES[finding.level]),
        f"{finding.kind} ({finding.count}): {finding.meaning}",
    )
    return text.append(f"\n  {printable(', '.join(finding.examples))}{more}", style="dim")


def _number(figure: float | None) -> str:
    return NOTHING if figure is None else f"{figure:.3f}"
