"""Lays out the report of a verification as tables and text."""

import heapq
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from rich.table import Table
from rich.text import Text

from detcli.commands.shared.comparison import Box, DetectionsReport, PictureReport, Tolerance
from detcli.commands.shared.reports import facts
from detcli.commands.verify.report import (
    WORST,
    BisectReport,
    CheckReport,
    NodeReport,
    SideReport,
    TensorReport,
    VerifyReport,
)
from detcli.text import printable

NOTHING = "-"
MAX_LISTED = 3  # boxes, nodes or tensors that are listed in full


def render(report: VerifyReport) -> Iterator[Table | Text]:
    """Lay out a report: both sides, sums, the worst pictures, tensors, and whether they agree."""
    yield facts([("left", _side(report.left)), ("right", _side(report.right))])
    if report.detections is not None:
        yield _sums(report.detections, report.tolerance, report.compared)
        worst = _worst(report.detections, report.tolerance)
        if worst:
            yield _pictures(worst)
    elif report.no_detections:
        yield Text(f"detections were not compared: {printable(report.no_detections)}", "yellow")
    if report.tensors is not None:
        yield _tensors(report.tensors)
    if report.bisect is not None:
        yield _bisect(report.bisect)
    yield _verdict(report)


def render_check(found: CheckReport) -> Iterator[Table | Text]:
    """Lay out a check: the report, and what changed since the certificate."""
    yield from render(found.report)
    if found.changes:
        table = Table(title=f"changed since {printable(found.date)}", title_justify="left")
        for title in ("what", "certified", "now"):
            table.add_column(title, overflow="fold")
        for change in found.changes:
            texts = (change.what, change.before or NOTHING, change.now or NOTHING)
            style = "red" if change.matters else ""
            table.add_row(*(Text(printable(one), style) for one in texts))
        yield table
    else:
        yield Text(f"nothing changed since {printable(found.date)}")
    yield Text(*(("the certificate holds", "green") if found.holds else
                 ("the certificate does not hold", "red")))  # fmt: skip


def _side(side: SideReport) -> str:
    where = f" on {side.device}" if side.device else ""
    selection = None if side.selection is None else f"selection by {side.selection}"
    parts = ", ".join(filter(None, (f"{side.model}{where}", side.precision, selection)))
    saved = f"{side.records}: " if side.records else ""
    return f"{saved}{parts}" + (f" ({side.sha256[:12]})" if side.sha256 else "")


def _sums(found: DetectionsReport, tolerance: Tolerance, compared: int) -> Table:
    sides = f"{found.left} on the left, {found.right} on the right, above {found.conf:g}"
    largest = (
        f"{found.largest_score_difference:.3g} in score (allowed {tolerance.score:g}), "
        f"{found.largest_corner_difference:.3g} pixels in a corner ({tolerance.corner:g})"
    )
    return facts(
        [
            ("pictures", f"{compared}, {found.reordered} with pairs in another order"),
            ("boxes", sides),
            ("pairs", f"{found.pairs}, {found.over} over the tolerance"),
            ("missing", f"{found.missing} on the left only"),
            ("extra", f"{found.extra} on the right only"),
            ("borderline", f"{found.borderline} at the confidence threshold"),
            ("largest difference", largest),
            ("disagreeing boxes", f"{found.disagreeing:.2%} (allowed {tolerance.boxes:.2%})"),
        ]
    )


def _worst(found: DetectionsReport, tolerance: Tolerance) -> list[PictureReport]:
    """The pictures that differ most, if at all, the worst first."""
    different = (one for one in found.pictures if one.severity(tolerance) > (0, 0.0))
    return heapq.nlargest(WORST, different, key=lambda one: one.severity(tolerance))


def _pictures(pictures: Sequence[PictureReport]) -> Table:
    table = Table(title="worst pictures", title_justify="left")
    for title in ("picture", "pairs", "over", "score", "pixels", "order", "missing", "extra"):
        right = title in {"pairs", "over", "score", "pixels"}
        table.add_column(title, justify="right" if right else "left", overflow="fold")
    for picture in pictures:
        frame = "" if picture.frame is None else f" frame {picture.frame}"
        table.add_row(
            Text(_file(picture.source) + frame, "" if picture.agrees else "red"),
            str(picture.pairs),
            str(picture.over),
            f"{picture.largest_score_difference:.2g}",
            f"{picture.largest_corner_difference:.2g}",
            str(picture.order),
            Text(_boxes(picture.missing)),
            Text(_boxes(picture.extra)),
        )
    return table


def _file(source: str) -> str:
    """The name without its folder, which the JSON has."""
    return printable(PurePath(source).name or source)


def _boxes(boxes: Sequence[Box]) -> str:
    names = [f"{printable(box.class_name)} {box.score:.2f}" for box in boxes[:MAX_LISTED]]
    return ", ".join(names + _more(len(boxes))) or NOTHING


def _more(count: int) -> list[str]:
    return [f"{count - MAX_LISTED} more"] if count > MAX_LISTED else []


def _tensors(tensors: Sequence[TensorReport]) -> Text:
    parts = [Text("raw outputs, each on its worst picture", "italic")]
    for tensor in tensors:
        first, *rest = _statistics(f"{tensor.name} on {_file(tensor.source)}", tensor)
        parts.append(Text.assemble(printable(first), "\n", "\n".join(map(printable, rest))))
    return Text("\n").join(parts)


def _number(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.3g}"


def _bisect(found: BisectReport) -> Text:
    if found.node is None:
        return Text(f"no node found on {printable(found.source)}: {printable(found.finding)}")
    lines = [
        f"first node that differs: {found.node.operator} {found.node.name}",
        f"  {found.finding}",
        f"  found in {found.rounds} rounds, {found.compared} tensors compared, on {found.source}",
    ]
    if found.output is not None:
        lines += _statistics(f"output {found.output.name}", found.output)
    for tensor in found.inputs[:MAX_LISTED]:
        lines += _statistics(f"input {tensor.name}", tensor)
    lines += [f"  and {more} inputs, all of which agree" for more in _more(len(found.inputs))]
    if len(found.left_nodes) > 1 or len(found.right_nodes) > 1:
        lines.append(f"  left:  {_nodes(found.left_nodes)}")
        lines.append(f"  right: {_nodes(found.right_nodes)}")
    first, *rest = map(printable, lines)
    return Text.assemble((first, "bold"), *(f"\n{line}" for line in rest))


def _statistics(title: str, tensor: TensorReport) -> list[str]:
    """Both tensors of a name, and how far they differ."""
    lines = [f"  {title}: {'agrees' if tensor.agrees else 'differs'}"]
    if tensor.max_scaled is not None:
        lines.append(
            f"    by up to {_number(tensor.max_absolute)}, {_number(tensor.max_scaled)} of the "
            f"largest magnitude, {_number(tensor.max_relative)} of a value; cosine "
            f"{tensor.cosine:.7f}"
        )
    for side, values in zip(("left: ", "right:"), tensor.sides, strict=True):
        lines.append(
            f"    {side} {values.dtype}{list(values.shape)} from {_number(values.least)} to "
            f"{_number(values.greatest)}, {values.nan} NaN, {values.infinite} infinite"
        )
    return lines


def _nodes(nodes: Sequence[NodeReport]) -> str:
    names = [f"{node.operator} {node.name}" for node in nodes[:MAX_LISTED]]
    return ", ".join(names + _more(len(nodes))) or "nothing"


def _verdict(report: VerifyReport) -> Text:
    if report.agree:
        return Text("the two sides agree", "green")
    if not report.failures:
        return Text("nothing was compared", "red")
    return Text("\n".join(f"differs: {printable(line)}" for line in report.failures), "red")
