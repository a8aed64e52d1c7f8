"""Plots by matplotlib, and the page of what was found, what is false, and what was missed."""

import io
import warnings
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from detcli.commands.eval.classes import ClassMapping
from detcli.commands.eval.confidence import Curve
from detcli.commands.eval.deferred_page import DeferredPage
from detcli.commands.eval.evaluator import Evaluator
from detcli.commands.eval.matches import CORRECT, FALSE, IOU, MISSED, MatchedBox
from detcli.commands.eval.metrics import Score, metric_or_unknown
from detcli.commands.eval.report import Confusions, EvalReport
from detcli.core.text import escape_unprintable, plot_text
from detcli.page.entries import BoxKind, PageBox
from detcli.page.page import Conclusion, Curves, PageTable
from detcli.page.run_info import RunInfo, versions
from detcli.sink.colours import colour_of
from detcli.storage.files import make_folder, write_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D


FILES = ("precision_recall.png", "f1_confidence.png", "confusion_matrix.png")

MAX_COLOURS = 10  # classes drawn in colour; the others are grey
MAX_LARGE_ROWS = 30  # rows of a matrix that are drawn high; those of a larger one are low
MAX_PAIRS = 10  # pairs of classes that are listed beside a matrix
MAX_LIGHT_SHARE = 0.35  # of a cell whose colour is light enough for a black number
MAX_NAME = 24  # characters
MAX_MATRIX = 100  # classes in a matrix; more would be indistinguishable
Scores = Sequence[tuple[str, Score]]  # name and result of each category; the last is of all


def plot(
    folder: Path,
    title: str,
    scores: Scores,
    confusions: Confusions,
    class_ids: Mapping[str, int],
) -> tuple[Path, ...]:
    """Draw the precision-recall curves, the F1 curves and the confusion matrix as PNG files.

    Args:
        folder: The folder to write them to.
        title: The title of each plot.
        scores: The result of each category by name, and that of all categories together as the
            last one.
        confusions: Which category was detected as which, above the best confidence.
        class_ids: The id of the model's class for each category, by the category's name. It
            determines the colour of a category's curves.

    Returns:
        The files that were written.
    """
    colours = _class_colours(class_ids)
    figures = []
    for curves in curves_of(scores, confusions.conf):
        figures.append(_draw_curves(title, curves, colours))
    figures.append(_draw_matrix(title, confusions))

    real_folder = make_folder(folder)
    for name, figure in zip(FILES, figures, strict=True):
        png = io.BytesIO()
        with warnings.catch_warnings():
            # A character that the font lacks is drawn as a box.
            warnings.filterwarnings("ignore", "Glyph .* missing")
            figure.savefig(png, format="png", dpi=120)
        write_file(real_folder / name, png.getvalue())
    return tuple(folder / name for name in FILES)


def curves_of(scores: Scores, conf: float) -> tuple[Curves, Curves]:
    """Compute the curves to draw: precision by recall, and F1 by confidence, in 100 steps.

    The legend shows the AP50 beside the name of a precision curve, and the best F1 beside that of
    an F1 curve.

    Args:
        scores: The result of each category by name, and that of all categories together as the
            last one. Categories without boxes have no curve.
        conf: The confidence with the best F1, to be marked.
    """
    precision_lines = []
    f1_lines = []
    for name, score in scores:
        has_precision = score.precision[0] >= 0  # COCO's tools put -1 where there are no boxes
        if has_precision:
            precision_lines.append(_precision_line(name, score))
        if score.curve.boxes:
            f1_lines.append(_f1_line(name, score.curve))

    precision_curves = Curves(
        title=f"Precision at IoU {IOU:g}, with AP50",
        axes=("recall", "precision"),
        lines=precision_lines,
    )
    f1_curves = Curves(
        title=f"F1 at IoU {IOU:g}, with the best",
        axes=("confidence", "F1"),
        lines=f1_lines,
        marked=conf,
    )
    return precision_curves, f1_curves


def _precision_line(name: str, score: Score) -> "_Line":
    """Make the line of a category's precision by recall, with its AP50."""
    return _Line(
        name=name,
        box_count=score.curve.boxes,
        figure=score.metrics.map50 or 0.0,
        heights=score.precision.round(3).tolist(),
    )


def _f1_line(name: str, curve: Curve) -> "_Line":
    """Make the line of a category's F1 by confidence, with its best F1."""
    best_f1 = np.max(curve.f1, initial=0)  # 0 if there are no detections
    return _Line(
        name=name,
        box_count=curve.boxes,
        figure=float(best_f1.round(3)),
        heights=_f1_by_confidence(curve),
    )


def _f1_by_confidence(curve: Curve) -> list[float]:
    """Look up F1 at the confidences 0, 0.01, ... 1, rounded for a plot."""
    f1_of_counts = np.append(0, curve.f1).round(3)  # of the best 0, 1, 2 ... distinct scores
    confidences = np.linspace(0, 1, 101)
    # Scores descend, and `searchsorted` needs ascending numbers: so both are negated.
    counts_above = np.searchsorted(-curve.score, -confidences)
    heights: list[float] = f1_of_counts[counts_above].tolist()
    return heights


class _Line(NamedTuple):
    """A line of a plot, with the fields of a line in `Curves`."""

    name: str
    box_count: int
    figure: float  # AP50 or the best F1, shown beside the name in the legend
    heights: Sequence[float]  # in equal steps from 0 to 1

    def draw(self, axes: "Axes", **style: Any) -> "Line2D":  # noqa: ANN401 - as in `plot`
        """Draw the line, and return it for the legend."""
        steps = np.linspace(0, 1, 101)
        [line] = axes.plot(steps, self.heights, **style)
        return line

    @property
    def label(self) -> str:
        """The text in the legend."""
        return f"{_short_name(self.name)} {self.figure:.3f}"


def _draw_curves(title: str, curves: Curves, colours: Mapping[str, str]) -> "Figure":
    """Draw a line for each class, and a bold one for all classes together.

    The ten classes with most boxes are in colour and in the legend; the others are grey, and one of
    them stands for all in the legend.

    Args:
        title: The title of the plot.
        curves: The lines; the last is of all classes. There are none if there are no boxes.
        colours: The colour of each class, by name.
    """
    from matplotlib.figure import Figure  # without pyplot, which keeps state and opens windows

    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.subplots()
    marked_line = _prepare_axes(axes, title, curves)

    lines = [_Line(*line) for line in curves.lines]
    class_lines = sorted(lines[:-1], key=lambda line: -line.box_count)
    coloured_lines = class_lines[:MAX_COLOURS]
    grey_lines = class_lines[MAX_COLOURS:]
    handles: list[Line2D] = []
    labels: list[str] = []

    # Grey lines come first, so that the others are drawn over them.
    drawn_grey_lines = []
    for line in grey_lines:
        drawn_grey_lines.append(line.draw(axes, color="0.8", linewidth=0.6))
    if drawn_grey_lines:
        handles.append(drawn_grey_lines[-1])
        labels.append(f"each of {len(grey_lines)} other classes")

    for line in coloured_lines:
        handles.append(line.draw(axes, color=colours[line.name], linewidth=1.2))
        labels.append(line.label)

    if lines:
        overall_line = lines[-1]
        handles.append(overall_line.draw(axes, color="black", linewidth=2.2))
        labels.append(overall_line.label)

    if marked_line is not None:
        handles.append(marked_line)
        labels.append(f"best F1 of all, at {curves.marked:.3g}")
    if handles:
        axes.legend(handles, labels, loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)
    return figure


def _prepare_axes(axes: "Axes", title: str, curves: Curves) -> "Line2D | None":
    """Draw what a plot of curves has besides the lines: titles, a grid, and a marked x.

    Returns:
        The dotted line at the marked x, for the legend; None if none is marked.
    """
    x_label, y_label = curves.axes
    axes.set(xlim=(0, 1), ylim=(0, 1.02), xlabel=x_label, ylabel=y_label)
    axes.set_title(f"{plot_text(title)}\n{curves.title}", fontsize=10)
    axes.grid(color="0.9")
    if curves.marked is None:
        return None
    return axes.axvline(curves.marked, color="black", linewidth=0.8, linestyle=":")


class _MatrixLayout(NamedTuple):
    """How large a confusion matrix is drawn."""

    side: float  # inches
    font_size: float  # points, of the names of rows and columns
    number_size: float  # points, of the counts in cells

    @classmethod
    def of(cls, row_count: int) -> Self:
        """Choose the layout of a matrix by its number of rows; a large one gets narrow rows."""
        if row_count <= MAX_LARGE_ROWS:
            side = max(5.0, 0.45 * row_count)
            return cls(side, font_size=8, number_size=7)
        side = min(max(5.0, 0.24 * row_count), 30.0)
        return cls(side, font_size=8, number_size=6)


def _draw_matrix(title: str, confusions: Confusions) -> "Figure":
    """Draw the confusion matrix: what each object is, by row, and what it was found as, by column.

    Colours are shares of the row, and cells have counts. Beside the matrix are the pairs of classes
    that were confused most often.
    """
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    names, counts = _confusion_matrix(confusions)
    row_count = len(counts)
    layout = _MatrixLayout.of(row_count)
    # There is room for the pairs at the right, and for the title above.
    figure_size = (layout.side + 5, layout.side + 1)  # inches
    figure = Figure(figsize=figure_size, layout="constrained")
    axes = figure.subplots()
    title_size = max(9, 0.6 * layout.side)  # points; larger on a large matrix

    boxes_by_row = counts.sum(axis=1, keepdims=True)
    shares = counts / np.maximum(boxes_by_row, 1)
    # Colours follow the square root of the shares, so that small ones are seen.
    square_root = PowerNorm(gamma=0.5, vmin=0, vmax=1)
    cells = axes.imshow(shares, cmap="Blues", norm=square_root)
    colour_scale = figure.colorbar(cells, ax=axes, fraction=0.04)
    colour_scale.set_label("share of the row's boxes", fontsize=title_size)
    _write_counts(axes, counts, shares, font_size=layout.number_size)
    _write_pairs(figure, confusions, font_size=title_size)

    axes.set_xticks(range(row_count), [*names, "(missed)"], rotation=90, fontsize=layout.font_size)
    axes.set_yticks(range(row_count), [*names, "(nothing)"], fontsize=layout.font_size)
    axes.set_xlabel("found as", fontsize=title_size)
    axes.set_ylabel("is", fontsize=title_size)
    limits = f"confidence above {confusions.conf:g}, IoU {confusions.iou:g}"
    axes.set_title(f"{plot_text(title)}\n{limits}", fontsize=title_size)
    return figure


def _write_counts(
    axes: "Axes",
    counts: npt.NDArray[np.int64],
    shares: npt.NDArray[np.float64],
    font_size: float,
) -> None:
    """Write the counts into the cells of a matrix, in white where the share makes a cell dark."""
    for row, column in np.argwhere(counts):
        colour = "black"
        if shares[row, column] > MAX_LIGHT_SHARE:
            colour = "white"
        number = str(counts[row, column])
        axes.text(column, row, number, ha="center", va="center", fontsize=font_size, color=colour)


def _write_pairs(figure: "Figure", confusions: Confusions, font_size: float) -> None:
    """List the most confused pairs of classes at the right of a figure, if there are any."""
    pairs = _most_confused(confusions)
    if not pairs:
        return
    lines = ["most confused", ""]
    for true_name, found_name, count in pairs:
        lines.append(f"{count}  {_short_name(true_name)} as {_short_name(found_name)}")
    # A legend without handles, as the layout makes room for it and for no other text.
    figure.legend(
        handles=[],
        loc="outside right upper",
        title="\n".join(lines),
        title_fontsize=font_size,
        alignment="left",
        frameon=False,
    )


def _most_confused(confusions: Confusions) -> list[tuple[str, str, int]]:
    """List the pairs of classes that were confused most often, such as ("dog", "cat", 12).

    So 12 dogs were found as cats. Objects that were missed, and detections of nothing, are not
    confused with a class.
    """
    pairs = []
    for confusion in confusions.counts:
        if confusion.true is None or confusion.found is None or confusion.true == confusion.found:
            continue
        pairs.append((confusion.true, confusion.found, confusion.count))
    pairs.sort(key=lambda pair: (-pair[2], pair[0], pair[1]))
    return pairs[:MAX_PAIRS]


def _class_colours(class_ids: Mapping[str, int]) -> dict[str, str]:
    """Return the colour of each class as on annotated images and the page, such as `#ee2244`."""
    colours = {}
    for name, class_id in class_ids.items():
        blue, green, red = colour_of(class_id)
        colours[name] = f"#{red:02x}{green:02x}{blue:02x}"
    return colours


def _confusion_matrix(confusions: Confusions) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Arrange the confusions of the N most frequent classes as a matrix.

    Returns:
        The names of the classes, and counts `(N + 1, N + 1)`: rows are what objects are, columns
        what they were found as. The last row is detections of nothing, the last column are objects
        that were missed.
    """
    box_counts: Counter[str] = Counter()  # of objects and detections, by class
    for confusion in confusions.counts:
        if confusion.true is not None:
            box_counts[confusion.true] += confusion.count
        if confusion.found is not None:
            box_counts[confusion.found] += confusion.count
    names = sorted(box_counts, key=lambda name: (-box_counts[name], name))[:MAX_MATRIX]

    index_of: dict[str | None, int] = {name: index for index, name in enumerate(names)}
    index_of[None] = len(names)  # nothing, or missed
    counts = np.zeros((len(index_of), len(index_of)), np.int64)
    for confusion in confusions.counts:
        if confusion.true in index_of and confusion.found in index_of:
            row = index_of[confusion.true]
            column = index_of[confusion.found]
            counts[row, column] += confusion.count
    return [_short_name(name) for name in names], counts


def _short_name(name: str) -> str:
    """Shorten the name of a class for a label, and replace what cannot be drawn."""
    printable = escape_unprintable(name)
    if len(printable) > MAX_NAME:
        printable = f"{printable[: MAX_NAME - 1]}…"
    return plot_text(printable)


# In the order of outcomes. Okabe and Ito's bluish green, vermillion and blue, which every kind of
# colour vision tells apart.
KINDS = (
    BoxKind("found", (115, 158, 0), wrong=False),
    BoxKind("false positive", (0, 94, 213), side=0),
    BoxKind("missed", (178, 114, 0), dashed=True, side=1),
)


class EvaluationPage(DeferredPage):
    """A page of one model: what was found, what is false, and what was missed."""

    def __init__(self, path: Path, inputs: Container[Path], *, linked: bool) -> None:
        """Begin the page; the arguments are those of `DeferredPage`."""
        super().__init__(path, KINDS, inputs, linked=linked)

    def finish(
        self,
        report: EvalReport,
        evaluator: Evaluator,
        mapping: ClassMapping,
        names: Sequence[str],
        scores: Scores,
    ) -> None:
        """Add the boxes of all images and the figures to the page, after the evaluation.

        Boxes are shown above the confidence of the report's confusions.

        Args:
            report: The report of the evaluation.
            evaluator: Says what became of each box.
            mapping: Which class of the model stands for which category.
            names: The names of the model's classes, by class id.
            scores: The results of each category and of all, for the curves.
        """
        conf = report.confusions.conf
        sides = (Path(report.model.file).name, "labels")
        self._page.describe(RunInfo("eval", _facts(report), KINDS, sides, min_score=conf))

        outcomes = evaluator.outcomes(conf)
        record_indices: dict[int, int] = {}  # by image id
        records_with_errors: dict[int, list[int]] = {}  # record indices, by class id
        outcome_counts: dict[int, list[int]] = {}  # by class id: CORRECT, FALSE, MISSED
        for class_report in report.classes:
            records_with_errors[class_report.class_id] = []
            outcome_counts[class_report.class_id] = [0] * len(KINDS)

        for image_id, fields, image in self._records:
            boxes = []
            wrong_classes = set()
            for outcome in outcomes.get(image_id, ()):
                class_id = mapping.classes_of(outcome.category)[0]
                outcome_counts[class_id][outcome.kind] += 1
                boxes.append(_page_box(outcome, class_id, names[class_id]))
                if outcome.kind != CORRECT:
                    wrong_classes.add(class_id)
            record_index = self._page.add(fields, image, boxes)
            record_indices[image_id] = record_index
            for class_id in wrong_classes:
                records_with_errors[class_id].append(record_index)

        records_by_confusion = []  # in the order of the report's confusions
        for image_ids in evaluator.confusions(conf).values():
            unique_ids = dict.fromkeys(image_ids)
            records_by_confusion.append([record_indices[image_id] for image_id in unique_ids])
        self._conclusion = Conclusion(
            summary=_summary(report, outcome_counts),
            tables=_tables(report, outcome_counts, records_with_errors, records_by_confusion),
            curves=curves_of(scores, conf),
        )


def _facts(report: EvalReport) -> list[tuple[str, str]]:
    """List what the figures depend on, as pairs of a label and a value for the page."""
    facts = [
        ("sha256", report.model.sha256),
        ("data", str(report.data.path)),
        ("evaluator", report.evaluator),
        ("evaluated above", f"{report.limits.conf:g}"),
        ("shown above", f"{report.confusions.conf:g}"),
        ("IoU of a match", f"{IOU:g}"),
    ]
    facts.extend(versions())
    return facts


def _page_box(outcome: MatchedBox, class_id: int, class_name: str) -> PageBox:
    """Convert a detection or a missed object to a box of the page.

    A correct detection gets the labelled object that it matches as its counterpart.
    """
    counterpart = None
    if outcome.object_box is not None:
        counterpart = (None, _corners(outcome.object_box))  # labels have no score
    return PageBox(
        class_id=class_id,
        class_name=class_name,
        score=outcome.score,
        corners=_corners(outcome.box),
        kind=outcome.kind,
        counterpart=counterpart,
    )


def _corners(box: Sequence[float]) -> list[float]:
    """Convert left, top, width and height to left, top, right and bottom."""
    left, top, width, height = box
    return [left, top, left + width, top + height]


def _summary(report: EvalReport, outcome_counts: Mapping[int, Sequence[int]]) -> list[str]:
    """Sum up the figures over all classes in two lines.

    Args:
        report: The report of the evaluation.
        outcome_counts: By class id, the numbers of correct detections, of false positives and of
            missed objects; CORRECT, FALSE and MISSED are their indexes.
    """
    correct_count = 0
    false_count = 0
    missed_count = 0
    for counts in outcome_counts.values():
        correct_count += counts[CORRECT]
        false_count += counts[FALSE]
        missed_count += counts[MISSED]

    map50_95 = metric_or_unknown(report.metrics.map50_95)
    map50 = metric_or_unknown(report.metrics.map50)
    counts_text = f"{correct_count} found, {false_count} false positives, {missed_count} missed"
    limits_text = f"above {report.confusions.conf:g} and from an IoU of {IOU:g} on"
    return [f"mAP50-95 {map50_95}, mAP50 {map50}", f"{counts_text}, {limits_text}"]


class _ConfusionTable:
    """A table of the page that counts confusions of one kind."""

    def __init__(self, title: str, columns: Sequence[str]) -> None:
        self._title = title
        self._columns = columns
        self._rows: list[list[str | int]] = []
        self._records: list[Sequence[int]] = []  # for each row

    def add(self, row: list[str | int], records: Sequence[int]) -> None:
        """Add a confusion, with the record indices of the images that have it."""
        self._rows.append(row)
        self._records.append(records)

    def page_tables(self) -> list[PageTable]:
        """Return a list of this table for the page; it is empty if the table has no rows."""
        if not self._rows:
            return []
        return [PageTable(self._title, self._columns, self._rows, self._records)]


def _tables(
    report: EvalReport,
    outcome_counts: Mapping[int, Sequence[int]],
    records_with_errors: Mapping[int, Sequence[int]],
    records_by_confusion: Sequence[Sequence[int]],
) -> list[PageTable]:
    """Lay out the tables of the page: each class, and then which classes were confused.

    The page numbers its records, and each row of a table leads to the records that it is about.

    Args:
        report: The report of the evaluation.
        outcome_counts: By class id, the numbers of correct detections, of false positives and of
            missed objects; CORRECT, FALSE and MISSED are their indexes.
        records_with_errors: By class id, the record indices of images with a false positive or a
            missed object of the class.
        records_by_confusion: The record indices of each of the report's confusions, in their order.
    """
    class_table = _class_table(report, outcome_counts, records_with_errors)
    return [class_table, *_confusion_tables(report.confusions, records_by_confusion)]


def _confusion_tables(
    confusions: Confusions, records_by_confusion: Sequence[Sequence[int]]
) -> list[PageTable]:
    """Lay out a table of each kind of confusion that occurs.

    Args:
        confusions: How often which class was taken for which.
        records_by_confusion: The record indices of each confusion, in their order.
    """
    wrong_class_table = _ConfusionTable("Taken for another class", ["is", "found as", "times"])
    missed_table = _ConfusionTable("Not found as anything", ["class", "times"])
    no_object_table = _ConfusionTable("Found where nothing is", ["class", "times"])
    for confusion, record_indices in zip(confusions.counts, records_by_confusion, strict=True):
        true_name = confusion.true  # None if the detection matches no object
        found_name = confusion.found  # None if the object was missed
        if true_name == found_name:
            continue  # detected as what it is
        if true_name is None:
            no_object_table.add([str(found_name), confusion.count], record_indices)
        elif found_name is None:
            missed_table.add([true_name, confusion.count], record_indices)
        else:
            wrong_class_table.add([true_name, found_name, confusion.count], record_indices)

    tables = []
    for confusion_table in (wrong_class_table, missed_table, no_object_table):
        tables += confusion_table.page_tables()
    return tables


def _class_table(
    report: EvalReport,
    outcome_counts: Mapping[int, Sequence[int]],
    records_with_errors: Mapping[int, Sequence[int]],
) -> PageTable:
    """Lay out the outcomes and figures of each class, those with most false positives first.

    Args:
        report: The report of the evaluation.
        outcome_counts: By class id, the numbers of correct detections, of false positives and of
            missed objects; CORRECT, FALSE and MISSED are their indexes.
        records_with_errors: By class id, the record indices of images with a false positive or a
            missed object of the class; the row of the class leads to these.
    """
    most_false_first = sorted(
        report.classes,
        key=lambda class_report: -outcome_counts[class_report.class_id][FALSE],
    )
    rows = []
    record_indices_by_row = []
    for class_report in most_false_first:
        counts = outcome_counts[class_report.class_id]
        row: list[str | int | float | None] = [
            class_report.name,
            class_report.boxes,
            counts[CORRECT],
            counts[FALSE],
            counts[MISSED],
            class_report.metrics.map50_95,
            class_report.metrics.map50,
        ]
        rows.append(row)
        record_indices_by_row.append(records_with_errors[class_report.class_id])
    columns = ["class", "boxes", "found", "false positives", "missed", "AP50-95", "AP50"]
    return PageTable("By class", columns, rows=rows, images=record_indices_by_row)
