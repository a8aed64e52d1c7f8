"""What verify finds, as tables for people."""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, Literal

from rich.table import Table
from rich.text import Text

from detcli.cli.report import EMPTY, facts_table
from detcli.commands.verify.report import (
    BisectReport,
    CheckReport,
    SideReport,
    TensorReport,
    VerifyReport,
)
from detcli.compare.detections import DetectionsReport, ImageReport
from detcli.config.values import Tolerance
from detcli.core.text import escape_unprintable, short_number

MAX_WORST = 10  # images in the table of the worst; also kept of saved runs although they agree
MAX_LISTED = 3  # boxes, nodes or tensors that are listed in full

# The columns of the table of the worst images; those in NUMBERS are aligned to the right.
COLUMNS = ("image", "pairs", "over", "score", "pixels", "order", "missing", "extra")
NUMBERS = {"pairs", "over", "score", "pixels"}


def render(report: VerifyReport) -> Iterator[Table | Text]:
    """Lay out a report for a terminal.

    It yields, in this order: both sides, the sums over all images, the worst images, the raw
    outputs, the first node that differs, and whether the sides agree.
    """
    yield facts_table([("left", side_text(report.left)), ("right", side_text(report.right))])
    yield Text()
    if report.detections is not None:
        yield facts_table(_sums(report.detections, report.tolerance, report.compared))
        yield from _worst_images(report.detections, report.tolerance)
    elif report.no_detections:
        yield Text(
            f"detections were not compared: {escape_unprintable(report.no_detections)}", "yellow"
        )
    if report.tensors is not None:
        lines = ["raw outputs, each on its worst image"]
        for tensor in report.tensors:
            lines += _tensor_lines(f"{tensor.name} on {_file(tensor.source)}", tensor)
        yield _paragraph(lines, "italic")
    if report.bisect is not None:
        style = "" if report.bisect.node is None else "bold"
        yield _paragraph(_bisect_lines(report.bisect), style)
    yield Text()
    verdict = "\n".join(escape_unprintable(sentence) for sentence in report.verdict)
    yield Text(verdict, _colour(is_good=report.agree))


def render_check(comparison: CheckReport) -> Iterator[Table | Text]:
    """Lay out the check of a certificate: the new report, and what changed since it was issued.

    Changes that matter, such as another model, are red.
    """
    yield from render(comparison.report)
    date = escape_unprintable(comparison.date)
    if comparison.changes:
        table = _table(f"changed since {date}", ("what", "certified", "now"))
        for change in comparison.changes:
            style = "red" if change.matters else ""
            texts = (change.what, change.before or EMPTY, change.now or EMPTY)
            cells = [Text(escape_unprintable(text), style) for text in texts]
            table.add_row(*cells)
        yield table
    else:
        yield Text(f"nothing changed since {date}")
    if comparison.holds:
        conclusion = "the certificate holds"
    else:
        conclusion = "the certificate does not hold"
    yield Text(conclusion, _colour(is_good=comparison.holds))


def _colour(*, is_good: bool) -> str:
    return "green" if is_good else "red"


def _table(title: str, columns: Iterable[str]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        alignment: Literal["left", "right"] = "left"
        if column in NUMBERS:
            alignment = "right"
        table.add_column(column, justify=alignment, overflow="fold")
    return table


def _paragraph(lines: Iterable[str], style: str) -> Text:
    """Join lines into a `Text` whose first line has a style, such as "bold".

    Control characters, which names of files and tensors may hold, are escaped.
    """
    paragraph = Text()
    for line in lines:
        if paragraph:
            paragraph.append("\n" + escape_unprintable(line))
        else:
            paragraph.append(escape_unprintable(line), style)
    return paragraph


def side_names(left: SideReport, right: SideReport) -> tuple[str, str]:
    """Give the two sides of a comparison short names that tell them apart.

    A name is that of the model's file. If both are the same, the names also say in what the sides
    differ, as in "yolo.onnx, cpu" and "yolo.onnx, cuda", or which side it is.
    """
    left_name = PurePath(left.model).name
    right_name = PurePath(right.model).name
    for field_name in ("device", "selection", "precision", "records"):
        left_value = getattr(left, field_name)
        right_value = getattr(right, field_name)
        if left_name == right_name and left_value != right_value:
            left_name += f", {left_value or 'unknown'}"
            right_name += f", {right_value or 'unknown'}"
    if left_name == right_name:
        return f"{left_name}, left", f"{right_name}, right"
    return left_name, right_name


def side_text(side: SideReport) -> str:
    """Describe a side of the comparison in one line, with all that is known about it.

    For example "yolo.onnx on cpu, float32, selection by detcli (0123456789ab)", with the first
    digits of the hash of the model's file in brackets.
    """
    model_and_device = side.model
    if side.device:
        model_and_device += f" on {side.device}"
    facts = []
    if model_and_device:
        facts.append(model_and_device)
    if side.precision:
        facts.append(side.precision)
    if side.selection is not None:
        facts.append(f"selection by {side.selection}")
    text = ", ".join(facts)
    if side.records:
        text = f"{side.records}: {text}"
    if side.sha256:
        text += f" ({side.sha256[:12]})"
    return text


def _sums(
    detections: DetectionsReport, tolerance: Tolerance, compared: int
) -> Iterator[tuple[str, str]]:
    """Yield the sums over all images as pairs of a label and a value.

    Args:
        detections: The comparison of the detections.
        tolerance: How much the sides may differ.
        compared: The number of images.
    """
    yield "images", f"{compared}, {detections.reordered} with pairs in another order"
    boxes = f"{detections.left} on the left, {detections.right} on the right"
    yield "boxes", f"{boxes}, above {detections.conf:g}"
    yield "pairs", f"{detections.pairs}, {detections.over} over the tolerance"
    yield "missing", f"{detections.missing} on the left only"
    yield "extra", f"{detections.extra} on the right only"
    yield "borderline", f"{detections.borderline} at the confidence threshold"
    score = f"{detections.largest_score_difference:.3g} in score (allowed {tolerance.score:g})"
    corner_difference = short_number(detections.largest_corner_difference)
    corner = f"{corner_difference} pixels in a corner ({tolerance.corner:g})"
    yield "largest difference", f"{score}, {corner}"
    yield "disagreeing boxes", f"{detections.disagreeing:.2%} (allowed {tolerance.boxes:.2%})"


def _worst_images(detections: DetectionsReport, tolerance: Tolerance) -> Iterator[Table | Text]:
    """Lay out a table of the images whose detections differ most; nothing if none differs.

    Images beyond the tolerance are red.
    """
    different = []
    for image in detections.pictures:
        if image.severity(tolerance) > (0, 0.0):
            different.append(image)
    if not different:
        return
    yield Text()
    table = _table("worst images", COLUMNS)
    for image in heapq.nlargest(MAX_WORST, different, key=lambda image: image.severity(tolerance)):
        table.add_row(*_image_cells(image))
    yield table


def _image_cells(image: ImageReport) -> Iterator[Text]:
    """Yield the cells of an image; its name is red if it is beyond the tolerance."""
    name, *figures = image_row(image)
    yield Text(str(name), "" if image.agrees else "red")
    for figure in figures:
        if isinstance(figure, float):
            yield Text(short_number(figure, 2))
        else:
            yield Text(str(figure))


def image_row(image: ImageReport) -> tuple[str | int | float, ...]:
    """The cells of an image in the table of the worst images, in the order of `COLUMNS`."""
    name = escape_unprintable(_file(image.source))
    if image.frame is not None:
        name += f" frame {image.frame}"
    return (
        name,
        image.pairs,
        image.over,
        image.largest_score_difference,
        image.largest_corner_difference,
        str(image.order),
        _boxes(image.missing),
        _boxes(image.extra),
    )


def _file(source: str) -> str:
    """The name of an image's file without its folder, which is only in the JSON."""
    return PurePath(source).name or source


def _boxes(detections: Iterable[Mapping[str, Any]]) -> str:
    """List the classes and scores of the first detections, as in "cat 0.91, dog 0.80, 4 more"."""
    texts = []
    for detection in detections:
        texts.append(f"{escape_unprintable(detection['class_name'])} {detection['score']:.2f}")
    return _listed(texts) or EMPTY


def _listed(names: Sequence[str]) -> str:
    """List the first names and how many more there are; empty if there are none."""
    listed = list(names[:MAX_LISTED])
    if len(names) > MAX_LISTED:
        listed.append(f"{len(names) - MAX_LISTED} more")
    return ", ".join(listed)


def _bisect_lines(report: BisectReport) -> Iterator[str]:
    """Yield lines about the first node that differs between two networks, or why none was found.

    They name the node, what is different about it, its output and first inputs on either side, and
    the nodes around it where these are not the same.
    """
    if report.node is None:
        yield f"no node found on {report.source}: {report.finding}"
        return
    yield f"first node that differs: {report.node}"
    yield f"  {report.finding}"
    effort = f"{report.rounds} rounds, {report.compared} tensors compared"
    yield f"  found in {effort}, on {report.source}"
    if report.output is not None:
        yield from _tensor_lines(f"output {report.output.name}", report.output)
    for tensor in report.inputs[:MAX_LISTED]:
        yield from _tensor_lines(f"input {tensor.name}", tensor)
    if len(report.inputs) > MAX_LISTED:
        yield f"  and {len(report.inputs) - MAX_LISTED} more inputs, all of which agree"
    if len(report.left_nodes) > 1 or len(report.right_nodes) > 1:
        left_nodes = _listed([str(node) for node in report.left_nodes])
        right_nodes = _listed([str(node) for node in report.right_nodes])
        yield f"  left:  {left_nodes or 'nothing'}"
        yield f"  right: {right_nodes or 'nothing'}"


def _tensor_lines(title: str, tensor: TensorReport) -> Iterator[str]:
    """Yield lines about a tensor of both networks: how far its values differ, and their ranges.

    The largest difference is a number, a share of the largest magnitude on the left, and a share of
    the value itself.

    Args:
        title: What the first line calls the tensor.
        tensor: The comparison of the two.
    """
    conclusion = "agrees" if tensor.agrees else "differs"
    yield f"  {title}: {conclusion}"
    if tensor.max_scaled is not None:
        absolute = _number_text(tensor.max_absolute)
        scaled = _number_text(tensor.max_scaled)
        relative = _number_text(tensor.max_relative)
        yield (
            f"    by up to {absolute}, {scaled} of the largest magnitude, {relative} of a value; "
            f"cosine {tensor.cosine:.7f}"
        )
    for label, side in (("left: ", tensor.left), ("right:", tensor.right)):
        least = _number_text(side.least)
        greatest = _number_text(side.greatest)
        yield (
            f"    {label} {side.dtype}{list(side.shape)} from {least} to {greatest}, "
            f"{side.nan} NaN, {side.infinite} infinite"
        )


def _number_text(value: float | None) -> str:
    """A number as a cell of a table or a line."""
    if value is None:
        return EMPTY
    return short_number(value)
