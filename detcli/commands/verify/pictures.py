"""The page of a verification: both sides' boxes on each picture, what differs first."""

import heapq
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path, PurePath

from detcli.commands.shared.comparison import (
    Comparison,
    DetectionsReport,
    Match,
    PictureReport,
    Rules,
    Tolerance,
    Totals,
    compare,
    picture_report,
)
from detcli.commands.shared.page import versions
from detcli.commands.shared.provenance import FileHashes
from detcli.commands.verify.report import (
    WORST,
    BisectReport,
    CertifiedPicture,
    CertifiedSide,
    SideReport,
    TensorReport,
    VerifyReport,
)
from detcli.detections import Detections
from detcli.errors import InputError
from detcli.geometry import Picture
from detcli.record import Origin, RecordJson, error_to_json
from detcli.sink.draw import Colour
from detcli.sink.page.page import About, BoxKind, Page, Rendering, Row, render

# BGR; Okabe and Ito's vermillion and blue, which every kind of colour vision tells apart.
LEFT: Colour = (0, 94, 213)
RIGHT: Colour = (178, 114, 0)

BOTH, MOVED, MISSING, EXTRA = range(4)

# Okabe and Ito's reddish purple, as LEFT and RIGHT are colours of theirs.
KINDS = (
    BoxKind("on both sides", (140, 140, 140), wrong=False),
    BoxKind("moved", (167, 121, 204)),
    BoxKind("on the left only", LEFT),
    BoxKind("on the right only", RIGHT, dashed=True),
)


@dataclass(frozen=True, eq=False, slots=True)
class SeenPicture:
    """A picture that both sides have seen.

    Attributes:
        origin: Where it comes from.
        size: Its height and width.
        load: Reads it; None where it is not found any more.
        warnings: What is wrong with it.
    """

    origin: Origin
    size: tuple[int, int]
    load: Callable[[], Picture | None]
    warnings: Sequence[str] = ()


@dataclass(slots=True)
class DifferencePage:
    """A page to which pictures are added as they are compared.

    Attributes:
        summary: What the page says of the whole, when it is complete.
    """

    page: Page
    summary: tuple[str, ...] = ()
    count: int = 0

    def add(
        self, seen: SeenPicture, rendering: Callable[[], Rendering | None], compared: Comparison
    ) -> None:
        """Add a picture.

        Args:
            seen: The picture.
            rendering: Makes what the page shows of it.
            compared: Its boxes.

        Raises:
            OutputError: It cannot be written.
        """
        fields = self._fields(seen.origin)
        fields["height"], fields["width"] = seen.size
        fields["detections"] = []
        if seen.warnings:
            fields["warnings"] = list(seen.warnings)
        self.page.add(fields, rendering, [*_rows(compared)])

    def fail(self, origin: Origin, error: InputError) -> None:
        """Add an input that cannot be read.

        Raises:
            OutputError: It cannot be written.
        """
        self.page.add({**self._fields(origin), "error": error_to_json(error)}, lambda: None)

    def _fields(self, origin: Origin) -> RecordJson:
        fields: RecordJson = {"schema_version": 1, "source": origin.source, "index": self.count}
        self.count += 1
        if origin.frame is not None:
            fields["frame"] = origin.frame
        if origin.time_s is not None:
            fields["time_s"] = round(origin.time_s, 3)
        return fields


def _rows(compared: Comparison) -> Iterator[Row]:
    """The boxes of a picture, those that differ first."""
    for match in compared.over:
        yield _pair(compared, match, MOVED)
    for found, rows, kind in (
        (compared.left, compared.missing, MISSING),
        (compared.right, compared.extra, EXTRA),
    ):
        for row in rows:
            yield Row(*_box(found, row), kind)
    for match in compared.pairs:
        yield _pair(compared, match, BOTH)


def _pair(compared: Comparison, match: Match, kind: int) -> Row:
    _, _, score, sides = _box(compared.right, match.right)
    return Row(*_box(compared.left, match.left), kind, (score, sides))


def _box(found: Detections, row: int) -> tuple[int, str, float, list[float]]:
    ((box, score, class_id, name),) = found[row]
    return class_id, name, round(score, 4), box.tolist()


@contextmanager
def open_page(
    path: Path | None, sides: tuple[SideReport, SideReport], rules: Rules, inputs: Container[Path]
) -> Iterator[DifferencePage | None]:
    """Open a page, and complete it when the block ends; None without a path.

    Raises:
        UsageError: The folder has something else in it, or another run is writing to it.
        OutputError: It cannot be written to.
    """
    if path is None:
        yield None
        return
    tolerance = rules.tolerance
    facts = [
        *(
            (f"{name} {what}", value)
            for name, side in zip(("left", "right"), sides, strict=True)
            for what, value in (
                ("records", side.records),
                ("model", PurePath(side.model).name),
                ("sha256", side.sha256),
                ("device", side.device),
                ("selection", side.selection),
                ("precision", side.precision),
            )
            if value is not None
        ),
        ("conf", f"{rules.conf:g}"),
        ("IoU of a match", f"{rules.least_iou:g}"),
        ("tolerance", f"score {tolerance.score:g}, corner {tolerance.corner:g} pixels"),
        *versions(),
    ]
    about = About("verify", facts, KINDS, floor=rules.lowered_conf)
    opened = DifferencePage(Page(path, about, inputs))
    try:
        yield opened
    finally:
        opened.page.close(opened.summary)


class Results:
    """Adds up pictures as they are compared.

    Attributes:
        compared: How many there were.
        page: Gets all pictures; None for no page.
        certifies: Whether files are hashed.
        certified: Each file with its hash, if a certificate is wanted.
    """

    def __init__(
        self,
        rules: Rules,
        page: DifferencePage | None = None,
        *,
        keep_all: bool = True,
        certify: bool = False,
    ) -> None:
        """Begin.

        Args:
            rules: How strictly to compare.
            page: Gets all pictures; None for no page.
            keep_all: Whether the report has all pictures, or those that disagree and the worst.
            certify: Whether files are hashed.
        """
        self.compared = 0
        self.certified: list[CertifiedPicture] = []
        self.certifies = certify
        self.page = page
        self._rules, self._keep_all = rules, keep_all
        self._totals = Totals(rules)
        self._kept: dict[int, PictureReport] = {}
        self._worst: list[tuple[tuple[int, float], int, PictureReport]] = []
        self._videos = set[str]()  # that are certified
        self._hashes = FileHashes()

    def add(
        self,
        seen: SeenPicture,
        left: Detections,
        right: Detections,
        rendering: Callable[[], Rendering | None] | None = None,
    ) -> None:
        """Compare the detections of a picture.

        Args:
            seen: The picture.
            left: What the first side found.
            right: What the second side found.
            rendering: Makes what a page shows of the picture; None to make it of its pixels.

        Raises:
            OutputError: The page cannot be written.
        """
        compared = compare(left, right, self._rules)
        report = picture_report(seen.origin, compared, self._rules)
        self._totals.add(report)
        severity = report.severity(self._rules.tolerance)
        if self._keep_all or not report.agrees:
            self._kept[self.compared] = report
        if severity > (0, 0.0):
            entries = [*self._worst, (severity, -self.compared, report)]  # of equals the first
            self._worst = heapq.nlargest(WORST, entries, key=itemgetter(0, 1))
        self.compared += 1
        if self.page is not None:
            self.page.add(seen, rendering or partial(_rendered, seen.load), compared)

    def certify(self, origin: Origin, digest: str | None = None) -> None:
        """Note the hash of a file, of a video once.

        Args:
            origin: Where the picture comes from.
            digest: The hash, if it is known.
        """
        if not self.certifies or origin.source in self._videos:
            return
        if origin.frame is not None:
            self._videos.add(origin.source)
        digest = digest or self._hashes.of(origin)
        self.certified.append(CertifiedPicture(origin.source, digest))

    def summarise(self) -> DetectionsReport:
        """Add up all pictures."""
        kept = self._kept | {-place: report for _, place, report in self._worst}
        return self._totals.report(kept[index] for index in sorted(kept))


def _rendered(load: Callable[[], Picture | None]) -> Rendering | None:
    picture = load()
    return None if picture is None else render(picture.pixels)


@dataclass(frozen=True, slots=True)
class Verification:
    """What was found.

    Attributes:
        report: The report.
        results: The hashes of all pictures.
        sides: What a certificate says of both sides; empty where none is wanted.
    """

    report: VerifyReport
    results: Results
    sides: tuple[CertifiedSide, ...]


def failures(
    detections: DetectionsReport | None,
    tensors: Sequence[TensorReport] | None,
    bisected: BisectReport | None,
    tolerance: Tolerance,
) -> tuple[str, ...]:
    """What exceeds the tolerance, one sentence each; empty if both sides agree."""
    found = [] if detections is None else detections.failures(tolerance)
    for tensor in tensors or ():
        if not tensor.agrees:
            found.append(_tensor_failure(tensor, tolerance))
        elif tensor.left.nan + tensor.left.infinite and tensor.max_absolute is None:
            found.append(f"{tensor.name}: no value is finite on either side")
    if bisected is not None and bisected.node is not None:
        found.append(
            f"{bisected.node.operator} {bisected.node.name} is the first node that differs: "
            f"{bisected.finding}"
        )
    return tuple(found)


def _tensor_failure(tensor: TensorReport, tolerance: Tolerance) -> str:
    if tensor.left.shape != tensor.right.shape:
        return f"{tensor.name}: {list(tensor.left.shape)} and {list(tensor.right.shape)}"
    if tensor.max_scaled is not None and tensor.max_scaled > tolerance.tensor:
        return (
            f"{tensor.name}: differs by {tensor.max_scaled:.3g} of its largest magnitude "
            f"({tolerance.tensor:g} allowed)"
        )
    left, right = (f"{side.nan} NaN and {side.infinite} infinities" for side in tensor.sides)
    return f"{tensor.name}: {left} on the left, {right} on the right"


def is_evidence(
    detections: DetectionsReport | None, tensors: Sequence[TensorReport] | None
) -> bool:
    """Whether anything was compared: two sides that find nothing always agree."""
    found = detections
    boxes = found.pairs + found.borderline + found.missing + found.extra if found else 0
    return boxes > 0 or any(tensor.max_absolute is not None for tensor in tensors or ())
