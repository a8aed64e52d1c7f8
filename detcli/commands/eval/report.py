"""The report of an evaluation, as JSON (see schema.json) and as tables.

Figures are from 0 to 1. None stands for what was not measured.
"""

from collections.abc import Iterator, Sequence
from dataclasses import astuple
from pathlib import Path

from rich.table import Table
from rich.text import Text

from detcli.cli.report import EMPTY, facts_table, report_field, styled_line, table
from detcli.commands.eval.classes import MappedBy
from detcli.commands.eval.confidence import (
    MIN_BOXES_FOR_ADVICE,
    ClassAdvice,
    ConfidenceAdvice,
    Quality,
)
from detcli.commands.eval.findings import Finding, Level
from detcli.commands.eval.labels import Form
from detcli.commands.eval.matches import IOU
from detcli.commands.eval.metrics import Metrics, metric_text
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
    input_size: tuple[int, int]  # height and width that images were letterboxed to
    classes: int  # number of classes it knows


@frozen
class EvalData:
    """The labelled images."""

    path: Path  # as given
    form: Form  # the format of the labels
    split: str | None  # the part of the data
    listed: int  # number of images it has
    evaluated: int  # number of images that were evaluated
    boxes: int  # number of boxes to be found in these, of classes that the model knows
    mapped_by: MappedBy  # how classes were assigned to categories
    categories: int  # number of categories the model has a class for


@frozen
class EvalLimits:
    """The detections that were evaluated."""

    conf: float  # their scores are above it
    max_det: int  # at most this many in an image, or in a tile
    per_class: int  # at most this many of a class in an image, a limit of the evaluator
    nms: float | None  # IoU of the non-maximum suppression; None if there is none
    tile: str | None  # side and overlap of the tiles, as in `640,overlap=0.2`; None if untiled


@frozen
class ClassReport:
    """One class."""

    class_id: int  # of the model; the first of several with one name
    category_id: int  # of the data
    name: str = report_field("class")  # in the model
    boxes: int = report_field("boxes")  # number of boxes to be found
    detections: int = report_field()  # number of detections that were evaluated
    metrics: Metrics = report_field()  # its figures


@frozen
class Confusion:
    """How often one class was taken for another; None as `found` is a miss, as `true` nothing."""

    true: str | None
    found: str | None
    count: int


@frozen
class Confusions:
    """Confusions above a confidence and at or above an IoU, the most frequent first."""

    conf: float
    iou: float
    counts: tuple[Confusion, ...]


@frozen
class UnevaluatedImage:
    """An image that could not be evaluated, and why."""

    source: str
    error: str


@frozen
class EvalReport:
    """The whole report."""

    evaluator: str  # the program that computed the figures, with its version
    model: EvalModel  # the evaluated model
    data: EvalData  # the labelled images
    limits: EvalLimits  # the detections that were evaluated
    metrics: Metrics  # over all classes with boxes
    classes: tuple[ClassReport, ...]  # each class that is a category of the data
    confusions: Confusions  # classes taken for others
    advice: ConfidenceAdvice | None  # the confidences; None unless asked for or none is right
    findings: tuple[Finding, ...]  # problems and notes, the most serious first
    failed: tuple[UnevaluatedImage, ...]  # images that were left out
    plots: tuple[Path, ...]  # files that were written


def render(report: EvalReport) -> Iterator[Table | Text]:
    """Lay out the report of an evaluation for a terminal.

    It yields, in this order: the model and the data, each class, what is confused, what is odd
    about the data, the plots, the best confidences if asked for, and the figures over all classes.
    """
    yield facts_table(_facts(report))
    classes = [class_report for class_report in report.classes if class_report.boxes]
    if classes:
        yield Text()
        yield table(classes)
    confusions = _most_frequent(report.confusions)
    if confusions:
        yield Text()
        limit = f"confused above {report.confusions.conf:g}: "
        yield styled_line((limit, "cyan"), (", ".join(confusions), ""))
    if report.findings:
        yield Text()
    for finding in report.findings:
        yield finding_text(finding)
    for path in report.plots:
        yield styled_line(("plot: ", "dim"), (str(path), ""))
    if report.advice is not None:
        yield Text()
        yield from _advice_tables(report.advice)
    yield Text()
    yield _figures(report.metrics)


def _most_frequent(confusions: Confusions) -> list[str]:
    """The most frequent confusions of one class with another, as text."""
    texts = []
    for confusion in confusions.counts:
        between_classes = confusion.true is not None and confusion.found is not None
        if between_classes and confusion.true != confusion.found:
            texts.append(f"{confusion.true} found as {confusion.found} {confusion.count}x")
    return texts[:MAX_CONFUSIONS]


def finding_text(finding: Finding) -> Text:
    """A problem or a note, with examples on a line of their own."""
    text = Text.assemble((f"{finding.level}: ", STYLES[finding.level]), finding.text())
    examples = escape_unprintable(", ".join(finding.examples))
    if finding.count > len(finding.examples):
        examples += ", ..."
    return text.append(f"\n  {examples}", style="dim")


def _facts(report: EvalReport) -> Iterator[tuple[str, str]]:
    """Yield the facts about the model and the data, as pairs of a label and a value."""
    model = report.model
    height, width = model.input_size
    yield "model", f"{model.file} ({model.sha256[:12]}) on {model.device}, {width}x{height}"
    data = report.data
    labels = str(data.form)
    if data.split:
        labels += f", {data.split}"
    yield "data", f"{data.path} ({labels})"
    yield "images", f"{data.evaluated} of {data.listed}, {data.boxes} boxes"
    mapped = f"{data.categories} of the model's {model.classes} are categories of the data"
    yield "classes", f"{mapped}, by {data.mapped_by}"
    yield "detections", limits_text(report.limits)
    yield "evaluator", report.evaluator


def limits_text(limits: EvalLimits) -> str:
    """Which detections are evaluated."""
    area = "an image"
    if limits.tile is not None:
        area = f"a tile ({limits.tile})"
    text = f"above {limits.conf:g}, at most {limits.max_det} in {area}"
    if limits.nms is not None:
        text += f", NMS {limits.nms:g}"
    return f"{text}; of each class the best {limits.per_class} are compared"


def empty_table(title: str, columns: Sequence[str]) -> Table:
    """A table without rows, whose first column has names and whose others have numbers."""
    table = Table(box=None, pad_edge=False)
    table.add_column(title, style="cyan", no_wrap=not title)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _figures(metrics: Metrics) -> Table:
    """Lay out COCO's figures over all classes, and by size of the objects where there are any."""
    figures = empty_table("", ["all", "small", "medium", "large"])
    precision_by_size = [metrics.map_small, metrics.map_medium, metrics.map_large]
    recall_by_size = [metrics.ar_small, metrics.ar_medium, metrics.ar_large]
    figures.add_row("mAP50-95", *_numbers([metrics.map50_95, *precision_by_size]), style="bold")
    figures.add_row("mAP50", number_text(metrics.map50))
    figures.add_row("mAP75", number_text(metrics.map75))
    figures.add_row("AR, best 100", *_numbers([metrics.ar_100, *recall_by_size]))
    figures.add_row("AR, best 10", number_text(metrics.ar_10))
    figures.add_row("AR, best 1", number_text(metrics.ar_1))
    return figures


def _advice_cells(advice: ClassAdvice) -> list[Text | str]:
    """Lay out the cells of a class in the table of the best confidences.

    A star marks a count of boxes that is too low, see the note below the table.
    """
    boxes = str(advice.boxes)
    if advice.boxes < MIN_BOXES_FOR_ADVICE:
        boxes = f"*{boxes}"
    conf = EMPTY
    if advice.conf is not None:
        conf = f"{advice.conf:g}"
    name = Text(escape_unprintable(advice.name))
    return [name, boxes, conf, *_quality_cells(advice.best), number_text(advice.at_overall.f1)]


def _advice_tables(advice: ConfidenceAdvice) -> Iterator[Table | Text]:
    """Yield a table of the best confidences by class, and then lines that say how to use them.

    The last two lines have arguments of the command line to be copied: one confidence for all
    classes, and one for each class that gains by it.
    """
    columns = ["boxes", "conf", "F1", "precision", "recall", f"F1 at {advice.conf:g}"]
    by_class = empty_table(f"best F1 at IoU {IOU:g}", columns)
    overall_cells = _quality_cells(advice.overall)
    by_class.add_row("all boxes", "", f"{advice.conf:g}", *overall_cells, style="bold")
    for class_advice in advice.classes:
        by_class.add_row(*_advice_cells(class_advice))
    yield by_class

    # `_advice_cells` marks the count of these classes with the star.
    if any(class_advice.boxes < MIN_BOXES_FOR_ADVICE for class_advice in advice.classes):
        note = f"* fewer than {MIN_BOXES_FOR_ADVICE} boxes: may be chance, left out of --conf"
        yield styled_line((note, "dim"))

    # The spaces align the arguments.
    yield _argument_line("one for all: ", advice.overall, advice.argument)
    yield _argument_line("by class:    ", advice.by_class, advice.by_class_argument)


def _argument_line(title: str, quality: Quality, argument: str) -> Text:
    """Format a line with the F1 of the given confidences and the option that sets them.

    Args:
        title: What the confidences are for, such as "one for all: ".
        quality: How good the detections above them are.
        argument: The option with its value, such as "--conf 0.5".
    """
    return styled_line((f"F1 {quality.f1:.3f}, {title}", "dim"), (argument, "bold"))


def _quality_cells(quality: Quality | None) -> list[str]:
    """Format F1, precision and recall as table cells; each a dash if there is no quality."""
    if quality is None:
        return [EMPTY] * 3
    return _numbers(astuple(quality))


def _numbers(figures: Sequence[float | None]) -> list[str]:
    """Format several metrics as table cells."""
    return [number_text(figure) for figure in figures]


def number_text(figure: float | None) -> str:
    """Format a metric for a table cell."""
    if figure is None:
        return EMPTY
    return metric_text(figure)
