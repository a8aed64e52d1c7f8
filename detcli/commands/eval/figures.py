"""Plots by matplotlib, and the page of what was found, what is false, and what was missed."""

import io
import warnings
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from detcli.commands.eval.evaluator import FALSE, IOU, Evaluator, Score, figure_text
from detcli.commands.eval.labels import ClassMapping
from detcli.commands.eval.report import Confusions, EvalReport
from detcli.core import Fields
from detcli.core.text import escape_unprintable, plot_text
from detcli.data.record import Record, RecordJson
from detcli.page.page import (
    BoxKind,
    Conclusion,
    Curves,
    Page,
    PageBox,
    PagePicture,
    PageTable,
    RunInfo,
    versions,
)
from detcli.storage.files import make_folder, write_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D


FILES = ("precision_recall.png", "f1_confidence.png", "confusion_matrix.png")

MAX_COLOURS = 10  # classes drawn in colour; the others are grey
MAX_NUMBERED = 30  # rows of a matrix whose cells have room for a number
MAX_NAME = 24  # characters
MAX_MATRIX = 100  # classes in a matrix; more would be indistinguishable
Scores = Sequence[tuple[str, Score]]  # name and result of each category; the last is of all


def plot(folder: Path, title: str, scores: Scores, confusions: Confusions) -> tuple[Path, ...]:
    """Write the plots, and return their names."""
    lines = (_draw(title, one) for one in curves_of(scores, confusions.conf))
    figures = (*lines, _matrix(title, confusions))
    for name, figure in zip(FILES, figures, strict=True):
        buffer = io.BytesIO()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing")  # drawn as a box
            figure.savefig(buffer, format="png", dpi=120)
        write_file(make_folder(folder) / name, buffer.getvalue())
    return tuple(folder / name for name in FILES)


def curves_of(scores: Scores, conf: float) -> tuple[Curves, Curves]:
    """Precision by recall, and F1 by confidence, of each category and of all, in 100 steps."""
    precision = [
        (name, one.curve.boxes, one.metrics.map50 or 0.0, one.precision.round(3).tolist())
        for name, one in scores
        if one.precision[0] >= 0
    ]
    f1 = []
    for name, (_, curve, _) in scores:
        if curve.boxes:
            heights = np.append(0, curve.f1).round(3)
            above = np.searchsorted(-curve.score, -np.linspace(0, 1, 101))  # how many are kept
            f1.append((name, curve.boxes, float(heights.max()), heights[above].tolist()))
    return (
        Curves(f"Precision at IoU {IOU:g}, with AP50", ("recall", "precision"), precision),
        Curves(f"F1 at IoU {IOU:g}, with the best", ("confidence", "F1"), f1, conf),
    )


def _draw(title: str, curves: Curves) -> "Figure":
    """A line for each class, those with most boxes in colour; the last one, of all, is bold."""
    from matplotlib.figure import Figure  # without pyplot, which keeps state and opens windows

    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.subplots()
    across, up = curves.axes
    axes.set(xlim=(0, 1), ylim=(0, 1.02), xlabel=across, ylabel=up)
    axes.set_title(f"{plot_text(title)}\n{curves.title}", fontsize=10)
    axes.grid(color="0.9")
    if curves.marked is not None:
        axes.axvline(curves.marked, color="black", linewidth=0.8, linestyle=":")
    ordered, together = sorted(curves.lines[:-1], key=lambda one: -one[1]), curves.lines[-1:]
    coloured, grey = ordered[:MAX_COLOURS], ordered[MAX_COLOURS:]
    handles: list[Line2D] = []
    steps = np.linspace(0, 1, 101)
    for *_, heights in grey:
        handles = axes.plot(steps, heights, color="0.8", linewidth=0.6)  # one entry for all of them
    for *_, heights in coloured:
        handles += axes.plot(steps, heights, linewidth=1.2)
    for *_, heights in together:
        handles += axes.plot(steps, heights, color="black", linewidth=2.2)
    labels = [f"each of {len(grey)} other classes"] if grey else []
    labels += [f"{_name(name)} {figure:.3f}" for name, _, figure, _ in (*coloured, *together)]
    if handles:
        axes.legend(handles, labels, loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)
    return figure


def _matrix(title: str, confusions: Confusions) -> "Figure":
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    names, counts = _square(confusions)
    size = len(names) + 1
    numbered = size <= MAX_NUMBERED
    side = max(5.0, 0.45 * size) if numbered else min(max(5.0, 0.24 * size), 30.0)
    figure = Figure(figsize=(side + 2, side + 1), layout="constrained")
    axes = figure.subplots()
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    image = axes.imshow(shares, cmap="Blues", norm=PowerNorm(0.5, 0, 1))
    figure.colorbar(image, ax=axes, fraction=0.04, label="share of the row")
    text, heading = (8 if numbered else 6), max(9, 0.6 * side)
    axes.set_xticks(range(size), [*names, "(missed)"], rotation=90, fontsize=text)
    axes.set_yticks(range(size), [*names, "(nothing)"], fontsize=text)
    axes.set_xlabel("found as", fontsize=heading)
    axes.set_ylabel("is", fontsize=heading)
    limits = f"confidence above {confusions.conf:g}, IoU {confusions.iou:g}"
    axes.set_title(f"{plot_text(title)}\n{limits}", fontsize=heading)
    for row, column in zip(*np.nonzero(counts), strict=True) if numbered else ():
        colour = "white" if shares[row, column] > 0.35 else "black"
        number = str(counts[row, column])
        axes.text(column, row, number, ha="center", va="center", fontsize=7, color=colour)
    return figure


def _square(confusions: Confusions) -> tuple[list[str], npt.NDArray[np.int64]]:
    """The most frequent classes, and their counts `(N + 1, N + 1)`; the last row is nothing."""
    seen: Counter[str] = Counter()
    for one in confusions.counts:
        for name in (one.true, one.found):
            if name is not None:
                seen[name] += one.count
    names = sorted(seen, key=lambda name: (-seen[name], name))[:MAX_MATRIX]
    index_of = {name: index for index, name in enumerate([*names, None])}
    counts = np.zeros((len(index_of), len(index_of)), np.int64)
    for one in confusions.counts:
        if one.true in index_of and one.found in index_of:
            counts[index_of[one.true], index_of[one.found]] += one.count
    return [_name(name) for name in names], counts


def _name(name: str) -> str:
    """A class's name for a label, shortened."""
    shown = escape_unprintable(name)
    return plot_text(shown if len(shown) <= MAX_NAME else f"{shown[: MAX_NAME - 1]}…")


# In the order of outcomes. Okabe and Ito's bluish green, vermillion and blue, which every kind of
# colour vision tells apart.
KINDS = (
    BoxKind("found", (115, 158, 0), wrong=False),
    BoxKind("false positive", (0, 94, 213), side=0),
    BoxKind("missed", (178, 114, 0), dashed=True, side=1),
)


class EvaluationPage:
    """A page whose pictures are written during the run, and the rest when all are compared."""

    def __init__(self, path: Path, inputs: Container[Path], *, linked: bool) -> None:
        self._page = Page(path, RunInfo("eval", [*versions()], KINDS), inputs, linked=linked)
        # Image id, JSON without boxes, and picture of each, until all are compared.
        self._records: list[tuple[int, RecordJson, Fields]] = []
        self._conclusion = Conclusion()

    def keep(self, image_id: int, record: Record) -> None:
        """Write the picture of a record."""
        fields, picture = record.to_json(), Fields()
        if record.picture is not None:
            fields["detections"] = []
            shown = partial(PagePicture, record.picture.pixels, record.origin.path)
            picture = self._page.store(shown)
        self._records.append((image_id, fields, picture))

    def finish(
        self,
        report: EvalReport,
        evaluator: Evaluator,
        mapping: ClassMapping,
        names: Sequence[str],
        scores: Scores,
    ) -> None:
        """Add all records and figures; boxes are those above the confusions' confidence."""
        conf = report.confusions.conf
        facts = [
            *(("sha256", report.model.sha256), ("data", str(report.data.path))),
            *(("evaluator", report.evaluator), ("evaluated above", f"{report.limits.conf:g}")),
            *(("shown above", f"{conf:g}"), ("IoU of a match", f"{IOU:g}"), *versions()),
        ]
        sides = (Path(report.model.file).name, "labels")
        self._page.describe(RunInfo("eval", facts, KINDS, sides, min_score=conf))
        outcomes = evaluator.outcomes(conf)
        numbers: dict[int, int] = {}  # of records, by image id
        wrong: dict[int, list[int]] = {one.class_id: [] for one in report.classes}
        counts = {one.class_id: [0] * len(KINDS) for one in report.classes}
        for image_id, fields, picture in self._records:
            rows = []
            for one in outcomes.get(image_id, ()):
                class_id = mapping.classes_of(one.category)[0]
                counts[class_id][one.kind] += 1
                label = None if one.label is None else (None, _corners(one.label))
                name, box = names[class_id], _corners(one.box)
                rows.append(PageBox(class_id, name, one.score, box, one.kind, label))
            number = numbers[image_id] = self._page.add(fields, picture, rows)
            for class_id in {row.class_id for row in rows if row.kind}:
                wrong[class_id].append(number)
        metrics = report.metrics
        ap50_95, ap50 = (
            "unknown" if value is None else figure_text(value)
            for value in (metrics.map50_95, metrics.map50)
        )
        found, false, missed = map(sum, zip(*counts.values(), strict=True))
        limits = f"above {conf:g} and from an IoU of {IOU:g} on"
        summary = [
            f"mAP50-95 {ap50_95}, mAP50 {ap50}",
            f"{found} found, {false} false positives, {missed} missed, {limits}",
        ]
        confused = evaluator.confusions(conf).values()  # in the order of the report's
        where = [[numbers[image_id] for image_id in dict.fromkeys(one)] for one in confused]
        tables = _tables(report, counts, wrong, where)
        self._conclusion = Conclusion(summary, tables, curves_of(scores, conf))

    def close(self) -> None:
        """Complete the page, as far as it came."""
        self._page.close(self._conclusion)


def _corners(box: Sequence[float]) -> list[float]:
    left, top, width, height = box
    return [left, top, left + width, top + height]


def _tables(
    report: EvalReport,
    counts: Mapping[int, Sequence[int]],
    wrong: Mapping[int, Sequence[int]],
    where: Sequence[Sequence[int]],
) -> list[PageTable]:
    """Each class, those with most false positives first, and what was taken for what.

    `wrong` has the records of each class with something wrong, `where` those of each confusion.
    """
    classes = sorted(report.classes, key=lambda one: -counts[one.class_id][FALSE])
    rows = [
        [one.name, one.boxes, *counts[one.class_id], one.metrics.map50_95, one.metrics.map50]
        for one in classes
    ]
    columns = ["class", "boxes", "found", "false positives", "missed", "AP50-95", "AP50"]
    tables = [PageTable("By class", columns, rows, [wrong[one.class_id] for one in classes])]
    for title, known, columns in (
        ("Taken for another class", (True, True), ["is", "found as", "times"]),
        ("Not found as anything", (True, False), ["class", "times"]),
        ("Found where nothing is", (False, True), ["class", "times"]),
    ):
        chosen = [
            ([name for name in (one.true, one.found) if name is not None] + [one.count], records)
            for one, records in zip(report.confusions.counts, where, strict=True)
            if (one.true is not None, one.found is not None) == known and one.true != one.found
        ]
        if chosen:
            tables.append(PageTable(title, columns, *zip(*chosen, strict=True)))
    return tables
