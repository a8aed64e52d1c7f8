"""Pictures that both sides have seen: added up, and shown on a page."""

import heapq
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from operator import itemgetter
from pathlib import Path, PurePath

from detcli.cli.report import to_json
from detcli.commands.verify.report import (
    WORST,
    CertifiedPicture,
    FailedInput,
    SideReport,
    VerifyReport,
    failures,
)
from detcli.core.comparison import (
    Comparison,
    DetectionsReport,
    Match,
    PictureReport,
    Rules,
    Totals,
    compare,
    picture_report,
)
from detcli.core.detections import Detections
from detcli.core.errors import InputError
from detcli.core.geometry import Picture
from detcli.core.record import Origin, RecordJson, error_to_json
from detcli.run.machine import FileHashes
from detcli.sink.page import About, BoxKind, Page, Rendering, Row, render, versions

BOTH, MOVED, MISSING, EXTRA = range(4)

# BGR; Okabe and Ito's reddish purple, vermillion and blue, which every kind of colour vision tells
# apart.
KINDS = (
    BoxKind("on both sides", (140, 140, 140), wrong=False),
    BoxKind("moved", (167, 121, 204)),
    BoxKind("on the left only", (0, 94, 213)),
    BoxKind("on the right only", (178, 114, 0), dashed=True),
)


class Results:
    """Adds up pictures as they are compared; memory grows with what is kept of them."""

    def __init__(
        self,
        rules: Rules,
        page: Page | None = None,
        *,
        keep_all: bool = True,  # not only pictures that disagree, and the worst
        certify: bool = False,  # hash all files
    ) -> None:
        self.compared = 0
        self.failed: list[FailedInput] = []
        self.certified: list[CertifiedPicture] = []
        self.certifies = certify
        self.summary: tuple[str, ...] = ()  # what the page says of the whole
        self._rules, self._page, self._keep_all = rules, page, keep_all
        self._shown = 0  # on the page
        self._totals = Totals(rules)
        self._kept: dict[int, PictureReport] = {}
        self._worst: list[tuple[tuple[int, float], int, PictureReport]] = []
        self._videos = set[str]()  # that are certified
        self._hashes = FileHashes()

    def add(
        self,
        origin: Origin,
        size: tuple[int, int],
        sides: Sequence[Detections],
        shown: Picture | Callable[[], Picture | None],
        warnings: Sequence[str] = (),
    ) -> None:
        """Compare the detections of a picture of (height, width), which may not be found."""
        left, right = sides
        compared = compare(left, right, self._rules)
        report = picture_report(origin, compared, self._rules)
        self._totals.add(report)
        severity = report.severity(self._rules.tolerance)
        if self._keep_all or not report.agrees:
            self._kept[self.compared] = report
        if severity > (0, 0.0):
            entries = [*self._worst, (severity, -self.compared, report)]  # of equals the first
            self._worst = heapq.nlargest(WORST, entries, key=itemgetter(0, 1))
        self.compared += 1
        if self._page is not None:
            fields = self._fields(origin)
            fields["height"], fields["width"] = size
            fields["detections"] = []
            if warnings:
                fields["warnings"] = list(warnings)

            def rendering() -> Rendering | None:
                picture = shown if isinstance(shown, Picture) else shown()
                return None if picture is None else render(picture.pixels)

            self._page.add(fields, rendering, [*_rows(compared)])

    def fail(self, name: str, origin: Origin, error: InputError) -> None:
        """Note an input that cannot be read or compared."""
        self.failed.append(FailedInput(name, str(error)))
        if self._page is not None:
            fields = self._fields(origin)
            fields["error"] = error_to_json(error)
            self._page.add(fields, None)

    def certify(self, origin: Origin, digest: str | None = None) -> None:
        """Note the hash of a file, of a video once; None if it is not known yet."""
        if not self.certifies or origin.source in self._videos:
            return
        if origin.frame is not None:
            self._videos.add(origin.source)
        digest = digest or self._hashes.of(origin)
        self.certified.append(CertifiedPicture(origin.source, digest))

    def detections(self) -> DetectionsReport:
        kept = self._kept | {-place: report for _, place, report in self._worst}
        return self._totals.report(kept[index] for index in sorted(kept))

    def judge(self, report: VerifyReport, more: Sequence[str] = ()) -> VerifyReport:
        """The report with all that exceeds the tolerance, and `more`; the page says it, too."""
        wrong = (*failures(report), *more)
        self.summary = (*(wrong or ("The two sides agree",)), *report.unlike)
        return replace(report, failures=wrong, agree=not wrong and report.is_evidence)

    def _fields(self, origin: Origin) -> RecordJson:
        fields: RecordJson = {"schema_version": 1, "source": origin.source, "index": self._shown}
        self._shown += 1
        if origin.frame is not None:
            fields["frame"] = origin.frame
        if origin.time_s is not None:
            fields["time_s"] = round(origin.time_s, 3)
        return fields


def _rows(compared: Comparison) -> Iterator[Row]:
    """The boxes of a picture, those that differ first."""

    def box(found: Detections, row: int) -> tuple[int, str, float, list[float]]:
        ((corners, score, class_id, name),) = found[row]
        return class_id, name, round(score, 4), corners.tolist()

    def pair(match: Match, kind: int) -> Row:
        _, _, score, corners = box(compared.right, match.right)
        return Row(*box(compared.left, match.left), kind, (score, corners))

    yield from (pair(match, MOVED) for match in compared.over)
    yield from (Row(*box(compared.left, row), MISSING) for row in compared.missing)
    yield from (Row(*box(compared.right, row), EXTRA) for row in compared.extra)
    yield from (pair(match, BOTH) for match in compared.pairs)


@contextmanager
def open_results(
    path: Path | None,
    inputs: Container[Path],
    rules: Rules,
    sides: tuple[SideReport, SideReport],
    *,
    certify: bool,
) -> Iterator[Results]:
    """Begin to add up, on a page if there is a path for one.

    Raises:
        UsageError: The folder has something else in it, or another run is writing to it.
        OutputError: It cannot be written to.
    """
    page = None
    if path is not None:
        tolerance = rules.tolerance
        facts: list[tuple[str, str]] = []
        for name, side in zip(("left", "right"), sides, strict=True):
            values = to_json(replace(side, model=PurePath(side.model).name))
            facts += [(f"{name} {what}", one) for what, one in values.items() if one is not None]
        facts += [
            ("conf", f"{rules.conf:g}"),
            ("IoU of a match", f"{rules.least_iou:g}"),
            ("tolerance", f"score {tolerance.score:g}, corner {tolerance.corner:g} pixels"),
            *versions(),
        ]
        page = Page(path, About("verify", facts, KINDS, floor=rules.lowered_conf), inputs)
    results = Results(rules, page, keep_all=sides[0].records is None, certify=certify)
    try:
        yield results
    finally:
        if page is not None:
            page.close(results.summary)
