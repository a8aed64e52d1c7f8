"""What verify is asked for, and what it finds, as JSON and as tables."""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath
from typing import Any

from rich.table import Table
from rich.text import Text

from detcli.cli.report import EMPTY, facts
from detcli.core.comparison import Box, DetectionsReport, Precision, Tolerance
from detcli.core.text import printable

WORST = 10  # pictures that a table has, and that are kept of two saved runs though they agree
MAX_LISTED = 3  # boxes, nodes or tensors that are listed in full


class SelectedBy(StrEnum):
    DETCLI = "detcli"
    GRAPH = "graph"


@dataclass(frozen=True, slots=True)
class SideReport:
    """One side of the comparison; None is what is unknown."""

    model: str  # the file, as the user named it; of saved records the model's name
    sha256: str | None = None
    device: str | None = None
    selection: SelectedBy | None = None  # None where only tensors are compared, and for records
    precision: Precision | None = None  # the lowest one that the network computes in
    records: str | None = None  # the saved records; None where the model ran


@dataclass(frozen=True, slots=True)
class TensorSide:
    dtype: str
    shape: tuple[int, ...]
    nan: int
    infinite: int
    least: float | None  # of the finite values
    greatest: float | None


@dataclass(frozen=True, slots=True)
class TensorReport:
    """Two tensors that should be alike, compared where both are finite.

    The figures are None if the shapes differ or no value is finite.
    """

    name: str  # of detectors "scores" and "boxes"
    left: TensorSide
    right: TensorSide
    max_absolute: float | None
    max_relative: float | None  # as a share of the larger of two values
    max_scaled: float | None  # of the largest magnitude on the left; the tolerance limits it
    cosine: float | None
    agrees: bool  # within the tolerance, with NaN and infinities in the same places
    source: str  # the input with the largest difference, which the figures are of

    @property
    def sides(self) -> tuple[TensorSide, TensorSide]:
        return self.left, self.right


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A node; without a name it has that of its first output."""

    name: str
    operator: str


@dataclass(frozen=True, slots=True)
class BisectReport:
    """The first node whose output differs although its inputs agree."""

    source: str  # the input that both graphs ran on
    node: NodeReport | None  # None if there is none, for the reason in `finding`
    finding: str  # what differs about it
    output: TensorReport | None = None  # what it makes, or the next tensor that both graphs have
    inputs: tuple[TensorReport, ...] = ()  # the nearest common tensors before it; all agree
    left_nodes: tuple[NodeReport, ...] = ()  # between the two in the first graph
    right_nodes: tuple[NodeReport, ...] = ()
    compared: int = 0  # tensors
    rounds: int = 0  # runs of both graphs


@dataclass(frozen=True, slots=True)
class FailedInput:
    source: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    agree: bool = False  # something was compared, and all of it is within the tolerance
    failures: tuple[str, ...] = ()  # what exceeds the tolerance, one sentence each
    left: SideReport
    right: SideReport
    tolerance: Tolerance
    compared: int  # inputs
    failed: tuple[FailedInput, ...]  # also inputs whose saved records are errors
    unlike: tuple[str, ...] = ()  # how saved runs differ, and what they do not say
    left_only: tuple[str, ...] = ()  # inputs of one saved run
    right_only: tuple[str, ...] = ()
    other_files: tuple[str, ...] = ()  # inputs that are different files in two saved runs
    detections: DetectionsReport | None = None
    no_detections: str | None = None  # why they were not compared
    tensors: tuple[TensorReport, ...] | None = None  # None unless asked for
    bisect: BisectReport | None = None

    @property
    def is_evidence(self) -> bool:
        """Whether anything was compared: two sides that find nothing always agree."""
        found = self.detections
        boxes = found.pairs + found.borderline + found.missing + found.extra if found else 0
        return boxes > 0 or any(tensor.max_absolute is not None for tensor in self.tensors or ())


def failures(report: VerifyReport) -> Iterator[str]:
    """What exceeds the tolerance, one sentence each."""
    if report.detections is not None:
        yield from report.detections.failures(report.tolerance)
    for tensor in report.tensors or ():
        left, right = tensor.sides
        if tensor.agrees:
            if left.nan + left.infinite and tensor.max_absolute is None:
                yield f"{tensor.name}: no value is finite on either side"
        elif left.shape != right.shape:
            yield f"{tensor.name}: {list(left.shape)} and {list(right.shape)}"
        elif tensor.max_scaled is not None and tensor.max_scaled > report.tolerance.tensor:
            yield (
                f"{tensor.name}: differs by {tensor.max_scaled:.3g} of its largest magnitude "
                f"({report.tolerance.tensor:g} allowed)"
            )
        else:
            one, other = (f"{side.nan} NaN and {side.infinite} infinities" for side in tensor.sides)
            yield f"{tensor.name}: {one} on the left, {other} on the right"
    found = report.bisect
    if found is not None and found.node is not None:
        yield (
            f"{found.node.operator} {found.node.name} is the first node that differs: "
            f"{found.finding}"
        )


@dataclass(frozen=True, slots=True)
class CertifiedSide:
    """What a certificate says of one side, besides the report."""

    records_sha256: str | None = None  # of the file of saved records
    settings: dict[str, Any] | None = None  # what the detections depend on
    provenance: dict[str, str | None] | None = None  # versions, processor, GPU and driver


@dataclass(frozen=True, slots=True)
class CertifiedPicture:
    source: str
    sha256: str | None  # None without a file, or where it is not found


@dataclass(frozen=True, slots=True)
class Certificate:
    """What was compared, with what, and what came of it."""

    date: str  # UTC in ISO 8601
    request: dict[str, Any]  # which `--check` uses again
    left: CertifiedSide
    right: CertifiedSide
    pictures: tuple[CertifiedPicture, ...]
    report: VerifyReport


@dataclass(frozen=True, slots=True)
class CertificateChange:
    """Something that is not as a certificate says."""

    what: str
    before: str | None
    now: str | None
    matters: bool  # the certificate does not hold for that

    def __str__(self) -> str:
        return f"{self.what} was {self.before or 'not there'} and is {self.now or 'gone'}"


@dataclass(frozen=True, slots=True)
class CheckReport:
    """Whether a certificate holds when the same is compared again."""

    date: str  # of the certificate
    holds: bool  # the sides agree, and nothing changed that matters
    changes: tuple[CertificateChange, ...]
    report: VerifyReport


def render(report: VerifyReport) -> Iterator[Table | Text]:
    """Lay out a report: both sides, sums, the worst pictures, tensors, and whether they agree."""
    yield facts([("left", _side(report.left)), ("right", _side(report.right))])
    if report.detections is not None:
        yield from _detections(report.detections, report.tolerance, report.compared)
    elif report.no_detections:
        yield Text(f"detections were not compared: {printable(report.no_detections)}", "yellow")
    if report.tensors is not None:
        lines = ["raw outputs, each on its worst picture"]
        for tensor in report.tensors:
            lines += _tensor(f"{tensor.name} on {_file(tensor.source)}", tensor)
        yield _paragraph(lines, "italic")
    if report.bisect is not None:
        yield _paragraph(_bisect(report.bisect), "bold" if report.bisect.node else "")
    if report.agree:
        yield Text("the two sides agree", "green")
    else:
        lines = [f"differs: {printable(line)}" for line in report.failures]
        yield Text("\n".join(lines or ["nothing was compared"]), "red")


def render_check(found: CheckReport) -> Iterator[Table | Text]:
    """Lay out a check: the report, and what changed since the certificate."""
    yield from render(found.report)
    if found.changes:
        table = Table(title=f"changed since {printable(found.date)}", title_justify="left")
        for title in ("what", "certified", "now"):
            table.add_column(title, overflow="fold")
        for change in found.changes:
            texts = (change.what, change.before or EMPTY, change.now or EMPTY)
            style = "red" if change.matters else ""
            table.add_row(*(Text(printable(one), style) for one in texts))
        yield table
    else:
        yield Text(f"nothing changed since {printable(found.date)}")
    if found.holds:
        yield Text("the certificate holds", "green")
    else:
        yield Text("the certificate does not hold", "red")


def _paragraph(lines: Iterable[str], style: str) -> Text:
    """Lines of text, of which the first has a style."""
    first, *rest = map(printable, lines)
    return Text.assemble((first, style), *(f"\n{line}" for line in rest))


def _side(side: SideReport) -> str:
    where = f" on {side.device}" if side.device else ""
    selection = None if side.selection is None else f"selection by {side.selection}"
    parts = ", ".join(filter(None, (f"{side.model}{where}", side.precision, selection)))
    saved = f"{side.records}: " if side.records else ""
    return f"{saved}{parts}" + (f" ({side.sha256[:12]})" if side.sha256 else "")


def _detections(found: DetectionsReport, tolerance: Tolerance, compared: int) -> Iterator[Table]:
    largest = (
        f"{found.largest_score_difference:.3g} in score (allowed {tolerance.score:g}), "
        f"{found.largest_corner_difference:.3g} pixels in a corner ({tolerance.corner:g})"
    )
    yield facts(
        [
            ("pictures", f"{compared}, {found.reordered} with pairs in another order"),
            (
                "boxes",
                f"{found.left} on the left, {found.right} on the right, above {found.conf:g}",
            ),
            ("pairs", f"{found.pairs}, {found.over} over the tolerance"),
            ("missing", f"{found.missing} on the left only"),
            ("extra", f"{found.extra} on the right only"),
            ("borderline", f"{found.borderline} at the confidence threshold"),
            ("largest difference", largest),
            ("disagreeing boxes", f"{found.disagreeing:.2%} (allowed {tolerance.boxes:.2%})"),
        ]
    )
    different = (one for one in found.pictures if one.severity(tolerance) > (0, 0.0))
    worst = heapq.nlargest(WORST, different, key=lambda one: one.severity(tolerance))
    if not worst:
        return
    table = Table(title="worst pictures", title_justify="left")
    for title in ("picture", "pairs", "over", "score", "pixels", "order", "missing", "extra"):
        right = title in {"pairs", "over", "score", "pixels"}
        table.add_column(title, justify="right" if right else "left", overflow="fold")
    for picture in worst:
        frame = "" if picture.frame is None else f" frame {picture.frame}"
        table.add_row(
            Text(printable(_file(picture.source)) + frame, "" if picture.agrees else "red"),
            str(picture.pairs),
            str(picture.over),
            f"{picture.largest_score_difference:.2g}",
            f"{picture.largest_corner_difference:.2g}",
            str(picture.order),
            Text(_boxes(picture.missing)),
            Text(_boxes(picture.extra)),
        )
    yield table


def _file(source: str) -> str:
    """The name without its folder, which the JSON has."""
    return PurePath(source).name or source


def _boxes(boxes: Sequence[Box]) -> str:
    return _listed([f"{printable(box.class_name)} {box.score:.2f}" for box in boxes], EMPTY)


def _listed(names: Sequence[str], nothing: str) -> str:
    more = [f"{len(names) - MAX_LISTED} more"] if len(names) > MAX_LISTED else []
    return ", ".join([*names[:MAX_LISTED], *more]) or nothing


def _bisect(found: BisectReport) -> Iterator[str]:
    if found.node is None:
        yield f"no node found on {found.source}: {found.finding}"
        return
    yield f"first node that differs: {found.node.operator} {found.node.name}"
    yield f"  {found.finding}"
    yield f"  found in {found.rounds} rounds, {found.compared} tensors compared, on {found.source}"
    if found.output is not None:
        yield from _tensor(f"output {found.output.name}", found.output)
    for tensor in found.inputs[:MAX_LISTED]:
        yield from _tensor(f"input {tensor.name}", tensor)
    if len(found.inputs) > MAX_LISTED:
        yield f"  and {len(found.inputs) - MAX_LISTED} more inputs, all of which agree"
    nodes = (("left: ", found.left_nodes), ("right:", found.right_nodes))
    if any(len(side) > 1 for _, side in nodes):
        for title, side in nodes:
            names = [f"{node.operator} {node.name}" for node in side]
            yield f"  {title} {_listed(names, 'nothing')}"


def _tensor(title: str, tensor: TensorReport) -> Iterator[str]:
    """Both tensors of a name, and how far they differ."""

    def number(value: float | None) -> str:
        return EMPTY if value is None else f"{value:.3g}"

    yield f"  {title}: {'agrees' if tensor.agrees else 'differs'}"
    if tensor.max_scaled is not None:
        yield (
            f"    by up to {number(tensor.max_absolute)}, {number(tensor.max_scaled)} of the "
            f"largest magnitude, {number(tensor.max_relative)} of a value; cosine "
            f"{tensor.cosine:.7f}"
        )
    for side, values in zip(("left: ", "right:"), tensor.sides, strict=True):
        yield (
            f"    {side} {values.dtype}{list(values.shape)} from {number(values.least)} to "
            f"{number(values.greatest)}, {values.nan} NaN, {values.infinite} infinite"
        )
