"""Reports of verifications, and certificates; `detcli schema verify` describes their JSON."""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from detcli.commands.shared.comparison import (
    Box,
    DetectionsReport,
    PictureReport,
    Precision,
    Tolerance,
)
from detcli.commands.shared.reports import facts
from detcli.commands.shared.saved import GZIP, SUFFIXES
from detcli.errors import UsageError
from detcli.model.contract import BoxFormat
from detcli.settings import Settings
from detcli.text import printable

WORST = 10
"""Pictures that a table has, and that are kept of two saved runs though they agree."""


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """What to compare; each field is named as on the command line, and in certificates.

    Raises:
        UsageError: The options contradict each other.
    """

    model: str
    other: str | None = None
    images: tuple[str, ...] = ()
    random: int | None = None
    recursive: bool = False
    device: str = "cpu"
    against: str | None = None
    half: bool = False
    conf: float | None = None
    nms: float | None = None
    imgsz: int | None = None
    box_format: BoxFormat | None = None
    preprocess: str | None = None
    iou: float = 0.5
    tolerance: dict[str, float] = field(default_factory=dict)
    coco_images: str | None = None
    tensors: bool = False
    bisect: bool = False

    def __post_init__(self) -> None:
        if self.is_saved:
            self._check_saved()
        else:
            self._check_running()
        if not 0 < self.iou <= 1:
            raise UsageError(f"--iou is {self.iou}", "give an IoU above 0, up to 1")

    @property
    def is_saved(self) -> bool:
        """Whether saved runs are compared."""
        return is_saved(self.model) or (self.other is not None and is_saved(self.other))

    @property
    def compares_tensors(self) -> bool:
        """Whether tensors are compared, not only detections."""
        return self.tensors or self.bisect

    @property
    def settings(self) -> Settings:
        """What the detections of both sides depend on.

        Raises:
            UsageError: A value is out of range.
        """
        return Settings(
            conf=self.conf,
            nms=self.nms,
            imgsz=self.imgsz,
            box_format=self.box_format,
            preprocess=self.preprocess,
        )

    def _check_running(self) -> None:
        if self.coco_images is not None:
            raise UsageError("--coco-images needs saved records and COCO results", "leave it out")
        if bool(self.images) == (self.random is not None):
            raise UsageError(
                "--images and --random are mutually exclusive"
                if self.images
                else "no pictures to compare on",
                "name a folder of real pictures with --images",
            )
        if self.random is not None and not self.compares_tensors:
            raise UsageError(
                "random pictures cannot compare detections: two detectors that find nothing agree",
                "name a folder of pictures with --images; or compare --tensors or --bisect",
            )

    def _check_saved(self) -> None:
        names = [self.model, *filter(None, [self.other])]
        if len(names) == 1:
            raise UsageError(
                f"{self.model} holds saved records, which are compared with other saved records, "
                "or with COCO results",
                "name two: detcli verify here.jsonl there.jsonl",
            )
        saved = [name for name in names if is_saved(name)]
        for name in names:
            if name not in saved:
                raise UsageError(
                    f"{saved[0]} holds saved records, and {name} is neither saved records nor COCO "
                    "results",
                    "name two saved runs, or two models",
                )
        running = {
            "--random": self.random,
            "--recursive": self.recursive,
            "--against": self.against,
            "--half": self.half,
            "--nms": self.nms,
            "--imgsz": self.imgsz,
            "--box-format": self.box_format,
            "--preprocess": self.preprocess,
            "--tensors": self.tensors,
            "--bisect": self.bisect,
        }
        for name, value in running.items():
            if value is not None and value is not False:
                raise about_running(name)
        if len(self.images) > 1:
            raise UsageError(
                "saved records have their pictures in one folder", "give --images once"
            )


def about_running(option: str) -> UsageError:
    """The error for an option that saved records leave nothing to do."""
    return UsageError(
        f"{option} applies to running a model; saved records are compared as they are",
        f"leave out {option}",
    )


def is_saved(name: str) -> bool:
    """Whether a name is that of saved records, and not of a model.

    Those are files of JSON, behind gzip or not; folders of runs in shards; and pipes.
    """
    if name.lower().endswith(SUFFIXES):
        return True
    path = Path(name)
    try:
        if path.is_dir():
            return (path / "manifest.jsonl").is_file()
        if path.is_fifo():
            return True
        with path.open("rb") as file:
            begins = file.read(2)
    except (OSError, ValueError):  # ValueError: no file can have this name
        return False
    return begins == GZIP or begins[:1] in {b"{", b"["}  # as no ONNX model does


@dataclass(frozen=True, slots=True)
class Outputs:
    """A folder for a page, and a certificate's file; both optional."""

    report: Path | None = None
    certificate: Path | None = None

    def check(self, guard: "InputGuard") -> None:
        """Refuse to write over an input, or into the folder of the page.

        Raises:
            UsageError: The certificate is one of the inputs, or in the folder of the page.
        """
        from detcli.sink.page.folder import require_apart

        require_apart(self.report, [self.certificate])
        guard.refuse([self.certificate])


class SelectedBy(StrEnum):
    """What selects the detections from a network's head."""

    DETCLI = "detcli"
    GRAPH = "graph"


@dataclass(frozen=True, slots=True)
class SideReport:
    """One side of the comparison.

    Attributes:
        model: The model's file, as the user named it; of saved records the model's name.
        sha256: SHA-256 of the file; None if unknown.
        device: Where the network runs; None if unknown.
        selection: What selects the detections; None where only tensors are compared, and for
            saved records.
        precision: The lowest precision that the network computes in; None if unknown.
        records: The saved records that were compared; None where the model ran.
    """

    model: str
    sha256: str | None
    device: str | None
    selection: SelectedBy | None
    precision: Precision | None
    records: str | None = None


@dataclass(frozen=True, slots=True)
class TensorSide:
    """One of two tensors.

    Attributes:
        dtype: NumPy's name of its type.
        shape: Its shape.
        nan: Number of NaN values.
        infinite: Number of infinite values.
        least: Smallest finite value; None if no value is finite.
        greatest: Largest finite value; None if no value is finite.
    """

    dtype: str
    shape: tuple[int, ...]
    nan: int
    infinite: int
    least: float | None
    greatest: float | None


@dataclass(frozen=True, slots=True)
class TensorReport:
    """Two tensors that should be alike, compared where both are finite.

    Attributes:
        name: The tensor's name; "scores" and "boxes" for the parts of a detector's head.
        left: The tensor on the first side.
        right: On the second.
        max_absolute: Largest difference; None if shapes differ or no value is finite.
        max_relative: Largest difference of two values, as a share of the larger one.
        max_scaled: Largest difference, as a share of the largest magnitude on the first side; the
            tolerance limits this.
        cosine: Cosine of the angle between the two; 1 for the same direction.
        agrees: `max_scaled` is within the tolerance, and NaN and infinities are in the same places.
        source: The input with the largest difference, which these figures are of.
    """

    name: str
    left: TensorSide
    right: TensorSide
    max_absolute: float | None
    max_relative: float | None
    max_scaled: float | None
    cosine: float | None
    agrees: bool
    source: str

    @property
    def sides(self) -> tuple[TensorSide, TensorSide]:
        """Both sides."""
        return self.left, self.right


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A node: its name, or that of its first output if it has none, and its operator."""

    name: str
    operator: str


@dataclass(frozen=True, slots=True)
class BisectReport:
    """The first node at which two graphs differ.

    Attributes:
        source: The input that both graphs ran on.
        node: The first node whose output differs although its inputs agree; None if no such node
            was found, for the reason in `finding`.
        finding: What differs about the node.
        output: Its output on both sides, or the next tensor that both graphs have.
        inputs: The nearest tensors before it that both graphs have; all agree.
        left_nodes: The nodes from those inputs to the output in the first graph.
        right_nodes: In the second graph.
        compared: Number of tensors compared.
        rounds: Number of runs of both graphs.
    """

    source: str
    node: NodeReport | None
    finding: str
    output: TensorReport | None
    inputs: tuple[TensorReport, ...]
    left_nodes: tuple[NodeReport, ...]
    right_nodes: tuple[NodeReport, ...]
    compared: int
    rounds: int


@dataclass(frozen=True, slots=True)
class FailedInput:
    """An input that could not be read, and why."""

    source: str
    error: str


@dataclass(frozen=True, slots=True)
class CertifiedPicture:
    """A file that was compared.

    Attributes:
        source: The input, as the user named it.
        sha256: SHA-256 of the file; None where there is none, or it is not found.
    """

    source: str
    sha256: str | None


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """Whether two sides agree.

    Attributes:
        agree: Something was compared, and all of it is within the tolerance.
        failures: What exceeds the tolerance, one sentence each.
        left: The first side.
        right: The second side.
        tolerance: How far the sides may differ.
        compared: Number of inputs compared.
        failed: Inputs that could not be read, or whose saved records are errors.
        unlike: Settings in which saved runs differ, and what they do not say, a sentence each.
        left_only: Inputs of which only the first of two saved runs has a record.
        right_only: Of which only the second has one.
        other_files: Inputs that are different files in two saved runs.
        detections: The comparison of detections; None if there was none.
        no_detections: Why detections were not compared; None if they were.
        tensors: The comparison of raw outputs; None unless asked for.
        bisect: The first node that differs; None unless asked for.
    """

    agree: bool
    failures: tuple[str, ...]
    left: SideReport
    right: SideReport
    tolerance: Tolerance
    compared: int
    failed: tuple[FailedInput, ...]
    unlike: tuple[str, ...] = ()
    left_only: tuple[str, ...] = ()
    right_only: tuple[str, ...] = ()
    other_files: tuple[str, ...] = ()
    detections: DetectionsReport | None = None
    no_detections: str | None = None
    tensors: tuple[TensorReport, ...] | None = None
    bisect: BisectReport | None = None


@dataclass(frozen=True, slots=True)
class CertifiedSide:
    """What a certificate says of one side, besides the report.

    Attributes:
        records_sha256: SHA-256 of the file of saved records; None where the model ran, and of runs
            in shards.
        settings: What the detections depend on; None if saved records do not say.
        provenance: Versions, processor, GPU and driver; None if saved records do not say.
    """

    records_sha256: str | None
    settings: dict[str, Any] | None
    provenance: dict[str, str | None] | None


@dataclass(frozen=True, slots=True)
class Certificate:
    """That two sides agree, or do not.

    Attributes:
        date: When it was written, UTC in ISO 8601.
        request: What was asked for, which `--check` asks for again.
        left: The first side.
        right: The second side.
        pictures: Each picture and video that was compared, with its hash.
        report: What was found, and the verdict.
    """

    date: str
    request: VerifyRequest
    left: CertifiedSide
    right: CertifiedSide
    pictures: tuple[CertifiedPicture, ...]
    report: VerifyReport


@dataclass(frozen=True, slots=True)
class CertificateChange:
    """Something that is not as a certificate says.

    Attributes:
        what: What it is.
        before: What the certificate says; None if it says nothing.
        now: What was found; None if it is gone.
        matters: Whether the certificate does not hold for that.
    """

    what: str
    before: str | None
    now: str | None
    matters: bool

    def __str__(self) -> str:
        return f"{self.what} was {self.before or 'not there'} and is {self.now or 'gone'}"


@dataclass(frozen=True, slots=True)
class CheckReport:
    """Whether a certificate holds when the same is compared again.

    Attributes:
        date: When the certificate was written.
        holds: The sides agree, and nothing changed that matters: models, saved records, settings,
            tolerance, files and verdict.
        changes: Everything that changed.
        report: What was found now.
    """

    date: str
    holds: bool
    changes: tuple[CertificateChange, ...]
    report: VerifyReport


if TYPE_CHECKING:
    from detcli.source.sources import InputGuard

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
