"""The report as tables."""

from collections.abc import Iterator
from dataclasses import astuple

from rich.table import Table
from rich.text import Text

from detcli.commands.eval.advice import FEW, ConfidenceAdvice, Quality
from detcli.commands.eval.report import Confusions, EvalReport
from detcli.commands.shared.labelled.dataset import Finding, Level
from detcli.commands.shared.labelled.evaluator import IOU, Metrics
from detcli.commands.shared.reports import facts, line
from detcli.text import printable

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
