"""What verify finds, as JSON and as tables, and certificates of it."""

import heapq
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePath
from typing import Any, ClassVar

from rich.table import Table
from rich.text import Text

from detcli.cli.report import EMPTY, facts_table, to_json
from detcli.compare.detections import (
    DetectionsReport,
    PictureReport,
    tolerance_for,
)
from detcli.config.values import Tolerance
from detcli.core import frozen
from detcli.core.text import escape_unprintable
from detcli.model.precision import Precision

WORST = 10  # pictures that a table has, and that are kept of two saved runs though they agree
MAX_LISTED = 3  # boxes, nodes or tensors that are listed in full
MAX_SHOWN = 80  # characters of a certificate's value that is shown

COLUMNS = ("picture", "pairs", "over", "score", "pixels", "order", "missing", "extra")
NUMBERS = {"pairs", "over", "score", "pixels"}

FileCounts = Counter[tuple[str, str | None]]

FIGURES = {
    "left": "boxes on the left",
    "right": "boxes on the right",
    "pairs": "pairs",
    "over": "pairs beyond the tolerance",
    "borderline": "borderline",
    "missing": "missing boxes",
    "extra": "extra boxes",
    "largest_score_difference": "largest score difference",
    "largest_corner_difference": "largest corner difference",
    "reordered": "pictures with pairs in another order",
    "disagreeing": "share of disagreeing boxes",
}
"""Numbers that may change while the verdict stays, and what a check calls them."""


class SelectedBy(StrEnum):
    DETCLI = "detcli"
    GRAPH = "graph"


@frozen
class SideReport:
    """One side of the comparison; None is what is unknown."""

    model: str  # the file, as the user named it; of saved records the model's name
    sha256: str | None = None
    device: str | None = None
    selection: SelectedBy | None = None  # None where only tensors are compared, and for records
    precision: Precision | None = None  # the lowest one that the network computes in
    records: str | None = None  # the saved records; None where the model ran


def tolerance_of(sides: Iterable[SideReport], wanted: Mapping[str, float] | None) -> Tolerance:
    """What is allowed between two sides, where the user does not say: it depends on both."""
    return tolerance_for({side.precision or Precision.FLOAT32 for side in sides}, wanted or {})


@frozen
class TensorSide:
    dtype: str
    shape: tuple[int, ...]
    nan: int
    infinite: int
    least: float | None  # of the finite values
    greatest: float | None


@frozen
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

    def failures(self, limit: float) -> Iterator[str]:
        """What is wrong with it, in a sentence."""
        left, right = self.left, self.right
        if self.agrees:
            if left.nan + left.infinite and self.max_absolute is None:
                yield f"{self.name}: no value is finite on either side"
        elif left.shape != right.shape:
            yield f"{self.name}: {list(left.shape)} and {list(right.shape)}"
        elif self.max_scaled is not None and self.max_scaled > limit:
            yield (
                f"{self.name}: differs by {self.max_scaled:.3g} of its largest magnitude "
                f"({limit:g} allowed)"
            )
        else:
            one, other = (
                f"{side.nan} NaN and {side.infinite} infinities" for side in (left, right)
            )
            yield f"{self.name}: {one} on the left, {other} on the right"


@frozen
class NodeReport:
    """A node; without a name it has that of its first output."""

    name: str
    operator: str

    def __str__(self) -> str:
        return f"{self.operator} {self.name}"


@frozen
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


@frozen
class FailedInput:
    source: str
    error: str


@dataclass(slots=True, kw_only=True)
class VerifyReport:
    """How two sides compare; it is filled in as they are compared, then judged."""

    schema_version: ClassVar[int] = 2
    agree: bool = False  # something was compared, and all of it is within the tolerance
    failures: list[str] = field(default_factory=list)  # what exceeds it, one sentence each
    left: SideReport
    right: SideReport
    tolerance: Tolerance
    compared: int = 0  # inputs
    failed: list[FailedInput] = field(default_factory=list)  # or whose saved records are errors
    unlike: list[str] = field(default_factory=list)  # how saved runs differ, and what they hide
    left_only: list[str] = field(default_factory=list)  # inputs of one saved run
    right_only: list[str] = field(default_factory=list)
    other_files: list[str] = field(default_factory=list)  # different files in two saved runs
    detections: DetectionsReport | None = None
    no_detections: str | None = None  # why they were not compared
    tensors: tuple[TensorReport, ...] | None = None  # None unless asked for
    bisect: BisectReport | None = None

    def judge(self, more: Iterable[str] = ()) -> None:
        """Say what exceeds the tolerance, and `more`; two sides that find nothing prove nothing."""
        found, tensors, bisected = self.detections, self.tensors or (), self.bisect
        if found is not None:
            self.failures += found.failures(self.tolerance)
        for tensor in tensors:
            self.failures += tensor.failures(self.tolerance.tensor)
        if bisected is not None and bisected.node is not None:
            why = f"is the first node that differs: {bisected.finding}"
            self.failures.append(f"{bisected.node} {why}")
        self.failures += more
        boxes = found.pairs + found.borderline + found.missing + found.extra if found else 0
        is_evidence = boxes > 0 or any(tensor.max_absolute is not None for tensor in tensors)
        self.agree = is_evidence and not self.failures

    @property
    def verdict(self) -> list[str]:
        """The verdict, a sentence for each thing that differs."""
        verdict = "the two sides agree" if self.agree else "nothing was compared"
        return [f"differs: {one}" for one in self.failures] or [verdict]


@frozen
class CertifiedSide:
    """What a certificate says of one side, besides the report."""

    records_sha256: str | None = None  # of the file of saved records
    settings: dict[str, Any] | None = None  # what the detections depend on
    provenance: dict[str, str | None] | None = None  # versions, processor, GPU and driver


@frozen
class CertifiedPicture:
    source: str
    sha256: str | None  # of the record, else of the file; None where it is not found either
    found: bool = True  # whether the file was there to be looked at


@dataclass(slots=True)
class Certificate:
    """What was compared, with what, and what came of it."""

    schema_version: ClassVar[int] = 2
    date: str  # UTC in ISO 8601
    request: dict[str, Any]  # which `--check` uses again
    left: CertifiedSide
    right: CertifiedSide
    pictures: list[CertifiedPicture]
    report: VerifyReport


@frozen
class CertificateChange:
    """Something that is not as a certificate says."""

    what: str
    before: str | None
    now: str | None
    matters: bool  # the certificate does not hold for that

    def __str__(self) -> str:
        return f"{self.what} was {self.before or 'not there'} and is {self.now or 'gone'}"


@frozen
class CheckReport:
    """Whether a certificate holds when the same is compared again."""

    schema_version: ClassVar[int] = 2
    date: str  # of the certificate
    holds: bool  # the sides agree, and nothing changed that matters
    changes: tuple[CertificateChange, ...]
    report: VerifyReport


NOTED_LATER = {"unique"}
"""Settings that follow from the others, and that earlier certificates do not have."""


def _has_setting(certificate: dict[str, Any], side: str, name: str) -> bool:
    """Whether a certificate, which may come from a stranger, says a setting of a side."""
    about = certificate.get(side)
    settings = about.get("settings") if isinstance(about, dict) else None
    return isinstance(settings, dict) and name in settings


def check(before: dict[str, Any], made: Certificate) -> CheckReport:
    """Say what is not as a certificate says, now that the same was compared again."""
    changes = tuple(_changes(before, to_json(made)))
    date = before.get("date")
    holds = made.report.agree and not any(change.matters for change in changes)
    return CheckReport(date if isinstance(date, str) else "unknown", holds, changes, made.report)


def _changes(before: dict[str, Any], now: dict[str, Any]) -> Iterator[CertificateChange]:
    """What changed, the verdict first; the certificate may come from a stranger."""

    def unequal(what: str, *path: str, matters: bool = False) -> Iterator[CertificateChange]:
        was: Any = before
        is_now: Any = now
        for name in path:
            was, is_now = (
                part.get(name) if isinstance(part, dict) else None for part in (was, is_now)
            )
        if was != is_now:
            yield CertificateChange(what, _shown(was), _shown(is_now), matters)

    yield from unequal("verdict", "report", "agree", matters=True)
    for side in ("left", "right"):
        yield from unequal(f"{side} model sha256", "report", side, "sha256", matters=True)
        yield from unequal(f"{side} precision", "report", side, "precision", matters=True)
        for name in ("device", "model", "selection", "records"):
            yield from unequal(f"{side} {name}", "report", side, name)
        yield from unequal(f"{side} records sha256", side, "records_sha256", matters=True)
        for name in now[side]["settings"] or ():
            if name in NOTED_LATER and not _has_setting(before, side, name):
                continue
            yield from unequal(f"{side} setting {name}", side, "settings", name, matters=True)
        made = dict(now[side]["provenance"] or ())
        made.pop("begun", None)
        for name in made:
            yield from unequal(f"{side} {name}", side, "provenance", name)
    for name in now["report"]["tolerance"]:
        yield from unequal(f"tolerance of {name}", "report", "tolerance", name, matters=True)
    yield from _other_pictures(before.get("pictures"), now["pictures"])
    yield from unequal("confidence", "report", "detections", "conf", matters=True)
    yield from unequal("IoU of a match", "report", "detections", "least_iou", matters=True)
    yield from unequal("pictures compared", "report", "compared")
    for name, title in FIGURES.items():
        yield from unequal(title, "report", "detections", name)


def _other_pictures(
    certified: object, pictures: list[dict[str, Any]]
) -> Iterator[CertificateChange]:
    """Files that are other ones, gone or new."""
    found = {one["source"] for one in _pictures(certified) if one.get("found") is True}
    there = [one for one in pictures if one["found"] or one["source"] not in found]
    before, now = _hashes(certified), _hashes(there)
    gone, new = dict((before - now).elements()), dict((now - before).elements())
    for source in new | gone:
        what = f"input {source}"
        yield CertificateChange(what, gone.get(source), new.get(source), matters=True)


def _hashes(pictures: object) -> FileCounts:
    """Inputs with the hashes of their files; an input may be there several times."""
    return Counter((one["source"], _shown(one.get("sha256"))) for one in _pictures(pictures))


def _pictures(pictures: object) -> list[dict[str, Any]]:
    return [
        one
        for one in (pictures if isinstance(pictures, list) else ())
        if isinstance(one, dict) and isinstance(one.get("source"), str)
    ]


def _shown(value: object) -> str | None:
    if value is None:
        return None
    return shortened(value if isinstance(value, str) else json.dumps(value))


def shortened(text: str) -> str:
    """A text that a stranger may have chosen."""
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "..."


def render(report: VerifyReport) -> Iterator[Table | Text]:
    """Lay out a report: both sides, sums, the worst pictures, tensors, and whether they agree."""
    yield facts_table([("left", side_text(report.left)), ("right", side_text(report.right))])
    yield Text()
    if report.detections is not None:
        yield facts_table(_sums(report.detections, report.tolerance, report.compared))
        yield from _worst(report.detections, report.tolerance)
    elif report.no_detections:
        yield Text(
            f"detections were not compared: {escape_unprintable(report.no_detections)}", "yellow"
        )
    if report.tensors is not None:
        lines = ["raw outputs, each on its worst picture"]
        for tensor in report.tensors:
            lines += _tensor(f"{tensor.name} on {_file(tensor.source)}", tensor)
        yield _paragraph(lines, "italic")
    if report.bisect is not None:
        yield _paragraph(_bisect(report.bisect), "bold" if report.bisect.node else "")
    yield Text()
    yield Text(
        "\n".join(map(escape_unprintable, report.verdict)), "green" if report.agree else "red"
    )


def render_check(found: CheckReport) -> Iterator[Table | Text]:
    """Lay out a check: the report, and what changed since the certificate."""
    yield from render(found.report)
    if found.changes:
        table = _table(
            f"changed since {escape_unprintable(found.date)}", ("what", "certified", "now")
        )
        for change in found.changes:
            texts = (change.what, change.before or EMPTY, change.now or EMPTY)
            style = "red" if change.matters else ""
            table.add_row(*(Text(escape_unprintable(one), style) for one in texts))
        yield table
    else:
        yield Text(f"nothing changed since {escape_unprintable(found.date)}")
    holds = ("the certificate holds", "green")
    yield Text(*(holds if found.holds else ("the certificate does not hold", "red")))


def _table(title: str, columns: Iterable[str]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for one in columns:
        table.add_column(one, justify="right" if one in NUMBERS else "left", overflow="fold")
    return table


def _paragraph(lines: Iterable[str], style: str) -> Text:
    """Lines of text, of which the first has a style."""
    first, *rest = map(escape_unprintable, lines)
    return Text.assemble((first, style), *(f"\n{line}" for line in rest))


def side_names(left: SideReport, right: SideReport) -> tuple[str, str]:
    """Short names that tell two sides apart: by model, and by what else they differ in."""
    one, other = PurePath(left.model).name, PurePath(right.model).name
    for what in ("device", "selection", "precision", "records"):
        parts = getattr(left, what), getattr(right, what)
        if one == other and parts[0] != parts[1]:
            one, other = (f"{one}, {part or 'unknown'}" for part in parts)
    return (one, other) if one != other else (f"{one}, left", f"{other}, right")


def side_text(side: SideReport) -> str:
    """All that is known of a side."""
    where = f" on {side.device}" if side.device else ""
    selection = None if side.selection is None else f"selection by {side.selection}"
    parts = ", ".join(filter(None, (f"{side.model}{where}", side.precision, selection)))
    saved = f"{side.records}: " if side.records else ""
    return f"{saved}{parts}" + (f" ({side.sha256[:12]})" if side.sha256 else "")


def _sums(
    found: DetectionsReport, tolerance: Tolerance, compared: int
) -> Iterator[tuple[str, str]]:
    yield "pictures", f"{compared}, {found.reordered} with pairs in another order"
    yield "boxes", f"{found.left} on the left, {found.right} on the right, above {found.conf:g}"
    yield "pairs", f"{found.pairs}, {found.over} over the tolerance"
    yield "missing", f"{found.missing} on the left only"
    yield "extra", f"{found.extra} on the right only"
    yield "borderline", f"{found.borderline} at the confidence threshold"
    score = f"{found.largest_score_difference:.3g} in score (allowed {tolerance.score:g})"
    corner = f"{found.largest_corner_difference:.3g} pixels in a corner ({tolerance.corner:g})"
    yield "largest difference", f"{score}, {corner}"
    yield "disagreeing boxes", f"{found.disagreeing:.2%} (allowed {tolerance.boxes:.2%})"


def _worst(found: DetectionsReport, tolerance: Tolerance) -> Iterator[Table | Text]:
    different = (one for one in found.pictures if one.severity(tolerance) > (0, 0.0))
    worst = heapq.nlargest(WORST, different, key=lambda one: one.severity(tolerance))
    if not worst:
        return
    yield Text()
    table = _table("worst pictures", COLUMNS)
    for picture in worst:
        name, *cells = picture_row(picture)
        texts = (f"{one:.2g}" if isinstance(one, float) else str(one) for one in cells)
        table.add_row(Text(str(name), "" if picture.agrees else "red"), *map(Text, texts))
    yield table


def picture_row(picture: PictureReport) -> tuple[str | int | float, ...]:
    """What `COLUMNS` have of a picture."""
    frame = "" if picture.frame is None else f" frame {picture.frame}"
    return (
        escape_unprintable(_file(picture.source)) + frame,
        picture.pairs,
        picture.over,
        picture.largest_score_difference,
        picture.largest_corner_difference,
        str(picture.order),
        _boxes(picture.missing),
        _boxes(picture.extra),
    )


def _file(source: str) -> str:
    """The name without its folder, which the JSON has."""
    return PurePath(source).name or source


def _boxes(rows: Iterable[Mapping[str, Any]]) -> str:
    return _listed(
        [f"{escape_unprintable(row['class_name'])} {row['score']:.2f}" for row in rows], EMPTY
    )


def _listed(names: Sequence[str], nothing: str) -> str:
    more = [f"{len(names) - MAX_LISTED} more"] if len(names) > MAX_LISTED else []
    return ", ".join([*names[:MAX_LISTED], *more]) or nothing


def _bisect(found: BisectReport) -> Iterator[str]:
    if found.node is None:
        yield f"no node found on {found.source}: {found.finding}"
        return
    yield f"first node that differs: {found.node}"
    yield f"  {found.finding}"
    yield f"  found in {found.rounds} rounds, {found.compared} tensors compared, on {found.source}"
    if found.output is not None:
        yield from _tensor(f"output {found.output.name}", found.output)
    for tensor in found.inputs[:MAX_LISTED]:
        yield from _tensor(f"input {tensor.name}", tensor)
    if len(found.inputs) > MAX_LISTED:
        yield f"  and {len(found.inputs) - MAX_LISTED} more inputs, all of which agree"
    if len(found.left_nodes) > 1 or len(found.right_nodes) > 1:
        yield f"  left:  {_listed([*map(str, found.left_nodes)], 'nothing')}"
        yield f"  right: {_listed([*map(str, found.right_nodes)], 'nothing')}"


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
    for side, values in (("left: ", tensor.left), ("right:", tensor.right)):
        yield (
            f"    {side} {values.dtype}{list(values.shape)} from {number(values.least)} to "
            f"{number(values.greatest)}, {values.nan} NaN, {values.infinite} infinite"
        )
