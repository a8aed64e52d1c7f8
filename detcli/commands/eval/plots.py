"""Plots, by matplotlib, as PNG."""

import io
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from detcli.commands.eval.curves import Curve
from detcli.commands.eval.evaluator import IOU
from detcli.commands.eval.metrics import Scores
from detcli.commands.eval.report import Confusions
from detcli.errors import DependencyError
from detcli.files import write_file
from detcli.text import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

FILES = ("precision_recall.png", "f1_confidence.png", "confusion_matrix.png")

MOST_COLOURS = 10  # classes that are told apart by colour; the others are drawn in grey
MOST_NUMBERS = 30  # rows of a matrix whose cells have room for a number
LONGEST_NAME = 24
MATRIX_CLASSES = 100  # rows that a picture can hold; the rest is told apart by nobody


@dataclass(frozen=True, eq=False, slots=True)
class Plotted:
    """What the plots show.

    Attributes:
        title: Of which model, on which data.
        names: Of the categories that were evaluated, by index.
        scores: What the evaluator says.
        confusions: What was taken for what, above the best confidence if there is one.
        floor: The confidence of the run.
    """

    title: str
    names: Mapping[int, str]
    scores: Scores
    confusions: Confusions
    floor: float


def require_matplotlib() -> None:
    """Look whether plots can be made.

    Raises:
        DependencyError: They cannot.
    """
    try:
        import matplotlib as mpl  # noqa: F401 - whether it loads
    except ImportError as error:
        raise DependencyError(
            f"matplotlib does not load: {error}", "pip install 'detcli[eval]'"
        ) from error


def plot(folder: Path, plotted: Plotted) -> Iterator[Path]:
    """Write the plots, and yield the name of each.

    Raises:
        OutputError: One cannot be written.
    """
    figures = (_precision_recall(plotted), _f1(plotted), _matrix(plotted))
    for name, figure in zip(FILES, figures, strict=True):
        buffer = io.BytesIO()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing")  # drawn as a box
            figure.savefig(buffer, format="png", dpi=120)
        write_file(folder / name, buffer.getvalue())
        yield folder / name


def _precision_recall(plotted: Plotted) -> "Figure":
    figure, axes = _axes(plotted.title, "recall", f"precision (interpolated, IoU {IOU:g})")
    recall = np.linspace(0, 1, 101)
    lines = {
        index: (recall, line) for index, line in plotted.scores.precision.items() if line[0] >= 0
    }
    mean = None
    if lines:
        mean = recall, np.mean([line for _, line in lines.values()], axis=0)
    overall = plotted.scores.overall.map50
    label = "no class has boxes" if overall is None else f"mean of classes: mAP50 {overall:.3f}"
    ap50 = {index: one.map50 or 0.0 for index, one in plotted.scores.by_category.items()}
    _lines(axes, plotted, lines, mean, (label, ap50))
    return figure


def _f1(plotted: Plotted) -> "Figure":
    figure, axes = _axes(plotted.title, "confidence", f"F1 (IoU {IOU:g})")
    curves = {
        index: Curve.of([ranking])
        for index, ranking in plotted.scores.rankings.items()
        if ranking.boxes
    }
    together = Curve.of(plotted.scores.rankings.values())
    best = {index: float(max(curve.f1, default=0)) for index, curve in curves.items()}
    label = f"all boxes: best {max(together.f1, default=0):.3f}"
    if together.hits.any():
        label += f" above {plotted.confusions.conf:g}"
        axes.axvline(plotted.confusions.conf, color="black", linewidth=0.8, linestyle=":")
    lines = {index: _steps(curve, plotted.floor) for index, curve in curves.items()}
    _lines(axes, plotted, lines, _steps(together, plotted.floor), (label, best))
    return figure


def _steps(curve: Curve, floor: float) -> "Line":
    """F1 by confidence: from each score down to the next one it stays as it is."""
    score = np.concatenate([[1.0], curve.score, [floor]])
    f1 = np.concatenate([[0.0], curve.f1])
    return np.repeat(score, 2)[1:-1], np.repeat(f1, 2)


Line = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]


def _lines(
    axes: "Axes",
    plotted: Plotted,
    lines: Mapping[int, Line],
    together: Line | None,
    legend: tuple[str, Mapping[int, float]],
) -> None:
    """Draw a line for each class, those with most boxes in colour, and a bold one for all."""
    title, figures = legend
    rankings = plotted.scores.rankings
    coloured = sorted(lines, key=lambda index: -rankings[index].boxes)[:MOST_COLOURS]
    grey = [index for index in lines if index not in coloured]
    handles: list[Line2D] = []
    labels: list[str] = []
    for index in grey:
        (handle,) = axes.plot(*lines[index], linewidth=0.6, color="0.8")
        if index == grey[0]:
            handles.append(handle)
            labels.append(f"each of {len(grey)} other classes")
    for index in coloured:
        (handle,) = axes.plot(*lines[index], linewidth=1.2)
        handles.append(handle)
        labels.append(f"{_name(plotted.names[index])} {figures[index]:.3f}")
    if together is not None:
        (handle,) = axes.plot(*together, color="black", linewidth=2.2)
        handles.append(handle)
        labels.append(title)
    if handles:
        axes.legend(handles, labels, loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)


def _matrix(plotted: Plotted) -> "Figure":
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    confusions = plotted.confusions
    names, counts = _square(confusions)
    size = len(names) + 1
    side = min(max(5.0, 0.24 * size), 30.0) if size > MOST_NUMBERS else max(5.0, 0.45 * size)
    figure = Figure(figsize=(side + 2, side + 1), layout="constrained")
    axes = figure.subplots()
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    image = axes.imshow(shares, cmap="Blues", norm=PowerNorm(0.5, 0, 1))
    figure.colorbar(image, ax=axes, fraction=0.04, label="share of the row")
    text = 8 if size <= MOST_NUMBERS else 6
    axes.set_xticks(range(size), [*names, "(missed)"], rotation=90, fontsize=text)
    axes.set_yticks(range(size), [*names, "(nothing)"], fontsize=text)
    heading = max(9, 0.6 * side)
    axes.set_xlabel("found as", fontsize=heading)
    axes.set_ylabel("is", fontsize=heading)
    limits = f"confidence above {confusions.conf:g}, IoU {confusions.iou:g}"
    axes.set_title(f"{_escape(plotted.title)}\n{limits}", fontsize=heading)
    if size <= MOST_NUMBERS:
        for row, column in zip(*np.nonzero(counts), strict=True):
            colour = "white" if shares[row, column] > 0.35 else "black"
            number = str(counts[row, column])
            axes.text(column, row, number, ha="center", va="center", fontsize=7, color=colour)
    return figure


def _square(confusions: Confusions) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Names of the classes that there are counts of, and the counts `(N + 1, N + 1)`."""
    seen: dict[str, int] = {}
    for one in confusions.counts:
        for name in (one.true, one.found):
            if name is not None:
                seen[name] = seen.get(name, 0) + one.count
    names = sorted(sorted(seen), key=seen.__getitem__, reverse=True)[:MATRIX_CLASSES]
    place: dict[str | None, int] = {name: index for index, name in enumerate(names)}
    counts = np.zeros((len(names) + 1, len(names) + 1), np.int64)
    for one in confusions.counts:
        true, found = (place.get(name, len(names)) for name in (one.true, one.found))
        if (one.true in place or one.true is None) and (one.found in place or one.found is None):
            counts[true, found] += one.count
    return [_name(name) for name in names], counts


def _axes(title: str, x: str, y: str) -> "tuple[Figure, Axes]":
    from matplotlib.figure import Figure  # without pyplot, which keeps state and opens windows

    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.subplots()
    axes.set(xlim=(0, 1), ylim=(0, 1.02), xlabel=x, ylabel=y)
    axes.set_title(_escape(title), fontsize=10)
    axes.grid(color="0.9")
    return figure, axes


def _name(name: str) -> str:
    """A class's name for a label; a long one is cut."""
    shown = printable(name)
    return _escape(shown if len(shown) <= LONGEST_NAME else f"{shown[: LONGEST_NAME - 1]}…")


def _escape(text: str) -> str:
    """Text in which nothing is a formula."""
    return printable(text).replace("$", r"\$")
