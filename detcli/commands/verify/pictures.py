"""Pictures that both sides have seen: added up, and shown on a page."""

import heapq
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path, PurePath

from detcli.cli.report import to_json
from detcli.commands.verify.report import (
    Certificate,
    CertifiedPicture,
    CertifiedSide,
    FailedInput,
    SideReport,
    VerifyReport,
)
from detcli.commands.verify.request import VerifyRequest
from detcli.commands.verify.tables import (
    COLUMNS,
    WORST,
    picture_row,
    side_names,
    side_text,
)
from detcli.compare.detections import (
    Comparison,
    Match,
    PictureReport,
    Rules,
    Totals,
    compare,
    picture_report,
)
from detcli.core.errors import InputError
from detcli.data.detections import Detections
from detcli.data.geometry import Picture
from detcli.data.record import Origin, Record, RecordJson, iso_time, name_of
from detcli.page.page import (
    BoxKind,
    Conclusion,
    Page,
    PageBox,
    PagePicture,
    PageTable,
    RunInfo,
    versions,
)
from detcli.run.machine import FileHashes

BOTH, MOVED, MISSING, EXTRA = range(4)


def _kinds(left: str, right: str) -> tuple[BoxKind, ...]:
    """What is said of boxes; by side, in the order of the numbers above.

    The colours, in BGR, are Okabe and Ito's reddish purple, vermillion and blue, which every kind
    of colour vision tells apart.
    """
    return (
        BoxKind("on both sides", (140, 140, 140), wrong=False),
        BoxKind("moved", (167, 121, 204)),
        BoxKind(f"only {left}", (0, 94, 213), side=0),
        BoxKind(f"only {right}", (178, 114, 0), dashed=True, side=1),
    )


class Results:
    """Adds up pictures as they are compared; memory grows with what is kept of them.

    `made` has what is known so far: `finish` completes its report.
    """

    def __init__(
        self, made: Certificate, rules: Rules, page: Page | None, *, certifies: bool
    ) -> None:
        self.made, self.report, self.certifies = made, made.report, certifies
        self.conclusion = Conclusion()  # what the page says of the whole
        self.one_sided: list[str] = []  # inputs of saved runs with an error on one side only
        self._rules, self._page = rules, page
        self._totals = Totals(rules)
        # Of saved runs, which may be long, only pictures that disagree are kept, and the worst.
        self._keep_all = made.report.left.records is None
        self._kept: dict[int, PictureReport] = {}
        self._worst: list[tuple[tuple[int, float], int, PictureReport]] = []
        self._videos = set[str]()  # that are certified
        self._hashes = FileHashes()

    def add(
        self,
        fields: RecordJson,
        sides: Sequence[Detections],
        picture: Callable[[], PagePicture | None],
    ) -> None:
        """Compare the detections of a picture, whose record the page shows."""
        left, right = sides
        origin = Origin(name_of(fields), frame=fields.get("frame"))
        compared = compare(left, right, self._rules)
        report = picture_report(origin, compared, self._rules)
        self._totals.add(report)
        number, severity = self.report.compared, report.severity(self._rules.tolerance)
        if self._page is not None:
            number = self._page.add(fields, picture, [*_page_boxes(compared)])
        self.report.compared += 1
        if self._keep_all or not report.agrees:
            self._kept[number] = report
        if severity > (0, 0.0):  # of equals the first
            self._worst = heapq.nlargest(WORST, [*self._worst, (severity, -number, report)])

    def fail(self, origin: Origin, error: InputError) -> None:
        """Note an input that cannot be read or compared."""
        frame = "" if origin.frame is None else f" frame {origin.frame}"
        self.report.failed.append(FailedInput(f"{origin.source}{frame}", str(error)))
        if self._page is not None:
            self._page.add(Record(origin, 0, "", "", error=error).to_json(), None)

    def certify(
        self, origin: Origin, digest: str | None = None, picture: Picture | None = None
    ) -> None:
        """Note the hash of a file, of a video once; `digest` is what its record says.

        A file that is another one now than its record says is one of `other_files`.
        """
        if not self.certifies or origin.source in self._videos:
            return
        if origin.frame is not None:
            self._videos.add(origin.source)
        now = self._hashes.of(origin, picture)
        if None not in {now, digest} and now != digest:
            self.report.other_files.append(origin.source)
        self.made.pictures.append(CertifiedPicture(origin.source, digest or now, now is not None))

    def finish(self, more: Iterable[str] = ()) -> Certificate:
        """Complete the report, with `more` that differs; the page says it, too."""
        report = self.report
        if report.no_detections is None:
            kept = dict(self._kept)
            for _, negative_number, picture in self._worst:
                kept[-negative_number] = picture
            report.detections = self._totals.report(kept[number] for number in sorted(kept))
        report.judge(more)
        sides = (
            f"{name}: {side_text(_without_folder(side))}"
            for name, side in (("left", report.left), ("right", report.right))
        )
        rows = [picture_row(picture) for _, _, picture in self._worst]
        numbers = [[-negative_number] for _, negative_number, _ in self._worst]
        worst = PageTable("Worst pictures", COLUMNS, rows, numbers)
        self.conclusion = Conclusion(
            [*report.verdict, *sides, *report.unlike], [worst] if rows else [], agree=report.agree
        )
        return self.made


def _without_folder(side: SideReport) -> SideReport:
    return replace(side, model=PurePath(side.model).name)


def _page_boxes(compared: Comparison) -> Iterator[PageBox]:
    """The boxes of a picture, those that differ first."""
    for match in compared.over:
        yield _paired_box(compared, match, MOVED)
    for index in compared.missing:
        yield _single_box(compared.left, index, MISSING)
    for index in compared.extra:
        yield _single_box(compared.right, index, EXTRA)
    for match in compared.pairs:
        yield _paired_box(compared, match, BOTH)


def _single_box(detections: Detections, index: int, kind: int) -> PageBox:
    [(corners, score, class_id, name)] = detections[index]
    return PageBox(class_id, name, round(score, 4), corners.tolist(), kind)


def _paired_box(compared: Comparison, match: Match, kind: int) -> PageBox:
    """The box on the left, with its counterpart on the right."""
    box = _single_box(compared.left, match.left, kind)
    right = _single_box(compared.right, match.right, kind)
    return box._replace(counterpart=(right.score, right.box))


@contextmanager
def open_results(
    request: VerifyRequest, inputs: Container[Path], rules: Rules, sides: Sequence[SideReport]
) -> Iterator[Results]:
    """Begin to add up, on a page if one is asked for.

    Raises:
        UsageError: The folder has something else in it, or another run is writing to it.
        OutputError: It cannot be written to.
    """
    left, right = sides
    page, path = None, request.config.outputs.report
    if path is not None:
        tolerance = rules.tolerance
        facts: list[tuple[str, str]] = []
        for name, side in (("left", left), ("right", right)):
            values = to_json(_without_folder(side))
            facts += [(f"{name} {what}", one) for what, one in values.items() if one is not None]
        facts += [
            ("conf", f"{rules.conf:g}"),
            ("IoU of a match", f"{rules.least_iou:g}"),
            ("tolerance", f"score {tolerance.score:g}, corner {tolerance.corner:g} pixels"),
            *versions(),
        ]
        names = side_names(left, right)
        about = RunInfo("verify", facts, _kinds(*names), names, min_score=rules.lowered_conf)
        page = Page(path, about, inputs, linked=request.config.outputs.report_link)
    report = VerifyReport(left=left, right=right, tolerance=rules.tolerance)
    date, asked = iso_time(datetime.now(UTC)), request.to_json()
    made = Certificate(date, asked, CertifiedSide(), CertifiedSide(), [], report)
    results = Results(made, rules, page, certifies=request.certifies)
    try:
        yield results
    finally:
        if page is not None:
            page.close(results.conclusion)
