"""Images that both sides have seen: added up, and shown on a page."""

import heapq
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import NamedTuple

from detcli.cli.report import to_json
from detcli.commands.verify.class_totals import ClassTotals
from detcli.commands.verify.report import (
    Certificate,
    CertifiedImage,
    CertifiedSide,
    FailedInput,
    SideReport,
    VerifyReport,
)
from detcli.commands.verify.request import VerifyRequest
from detcli.commands.verify.tables import (
    COLUMNS,
    MAX_WORST,
    image_row,
    side_names,
    side_text,
)
from detcli.compare.detections import (
    Comparison,
    ImageReport,
    Match,
    Rules,
    Totals,
    compare,
    image_report,
)
from detcli.core.errors import InputError
from detcli.data.detections import Detections
from detcli.data.geometry import Image
from detcli.data.record import Origin, Record, RecordJson, iso_time, name_of
from detcli.page.entries import BoxKind, PageBox
from detcli.page.page import Conclusion, Page, PageImage, PageTable
from detcli.page.run_info import RunInfo, versions
from detcli.run.machine import FileHashes

BOTH, MOVED, MISSING, EXTRA = range(4)


def _box_kinds(left: str, right: str) -> tuple[BoxKind, ...]:
    """Describe how the page shows boxes of both sides, moved, missing and extra boxes.

    The order is that of the numbers BOTH, MOVED, MISSING and EXTRA. The colours, in BGR, are grey
    and Okabe and Ito's reddish purple, vermillion and blue, which every kind of colour vision tells
    apart.

    Args:
        left: The name of the first side on the page.
        right: The name of the second side on the page.
    """
    return (
        BoxKind("on both sides", (140, 140, 140), wrong=False),
        BoxKind("moved", (167, 121, 204)),
        BoxKind(f"only {left}", (0, 94, 213), side=0),
        BoxKind(f"only {right}", (178, 114, 0), dashed=True, side=1),
    )


class _RankedImage(NamedTuple):
    """An image whose sides differ, and how much."""

    severity: tuple[int, float]  # see `ImageReport.severity`
    number: int  # of the image, in the order in which they were compared
    report: ImageReport

    def sort_key(self) -> tuple[tuple[int, float], int]:
        """Return a key that is largest for the worst image; among equal ones, for the earliest."""
        return self.severity, -self.number


class Results:
    """Compares the detections of two sides image by image, adds up and shows the outcome.

    Call `certify` and `add` for each image, or `fail` if it cannot be compared. Call `finish` once
    at the end, which completes the certificate and its report.

    Attributes:
        certificate: What is filled in; `finish` returns it.
        report: The report in the certificate.
        certifies: Whether the certificate lists the hashes of all images.
        failed_on_one_side: The inputs for which one saved run has an error, and the other one
            detections.
        conclusion: What the page says about the whole comparison; empty before `finish`.
    """

    def __init__(
        self, certificate: Certificate, rules: Rules, page: Page | None, *, certifies: bool
    ) -> None:
        """Create a comparison without any images.

        Args:
            certificate: What is filled in. Its report names both sides already.
            rules: What is compared, and how strictly.
            page: The page that shows the images; None if the user asked for none.
            certifies: Whether the certificate lists the hashes of all images.
        """
        self.certificate = certificate
        self.report = certificate.report
        self.failed_on_one_side: list[str] = []
        self._rules = rules

        self._totals = Totals(rules)
        self._class_totals = ClassTotals()

        # The report lists all images of models that run. Saved runs may be long: of these it lists
        # only images whose sides disagree, and the few that differ most.
        self._lists_agreeing_images = certificate.report.left.records is None
        self._listed_reports: dict[int, ImageReport] = {}  # by image number
        self._worst: list[_RankedImage] = []  # the images that differ most, the worst first

        self._page = page
        self.conclusion = Conclusion()

        self.certifies = certifies
        self._certified_videos = set[str]()  # names of the videos that the certificate lists
        self._hashes = FileHashes()

    def add(
        self,
        record: RecordJson,
        sides: Sequence[Detections],
        load_image: Callable[[], PageImage | None],
    ) -> None:
        """Compare the detections that both sides have in an image, and show them on the page.

        Args:
            record: The record of the image, which the page shows.
            sides: The detections of the first side and those of the second.
            load_image: Loads the image for the page; returns None if it cannot be found.
        """
        left, right = sides
        origin = Origin(name_of(record), frame=record.get("frame"))
        comparison = compare(left, right, self._rules)
        report = image_report(origin, comparison, self._rules)
        self._totals.add(report)
        self._class_totals.add(comparison)

        image_number = self.report.compared
        if self._page is not None:
            # The page counts failed inputs as well, so an image may have a higher number there. The
            # table of the worst images leads to the page's numbers.
            image_number = self._page.add(record, load_image, list(_page_boxes(comparison)))
        self.report.compared += 1
        self._list_and_rank(image_number, report)

    def _list_and_rank(self, image_number: int, report: ImageReport) -> None:
        """Keep the report on an image if it will be listed, or if it is among the worst so far.

        Args:
            image_number: The image's number on the page, or in the comparison if there is no page.
            report: How the two sides compare in the image.
        """
        if self._lists_agreeing_images or not report.agrees:
            self._listed_reports[image_number] = report

        disagreeing_count, largest_difference = report.severity(self._rules.tolerance)
        if disagreeing_count > 0 or largest_difference > 0:
            severity = (disagreeing_count, largest_difference)
            self._worst.append(_RankedImage(severity, image_number, report))
            self._worst = heapq.nlargest(MAX_WORST, self._worst, key=_RankedImage.sort_key)

    def fail(self, origin: Origin, error: InputError) -> None:
        """Record an input that cannot be read or compared."""
        name = origin.source
        if origin.frame is not None:
            name += f" frame {origin.frame}"
        self.report.failed.append(FailedInput(name, str(error)))

        if self._page is not None:
            # The page says once, and not beside each image, which models and devices are compared.
            record = Record(origin, index=0, model="", device="", error=error)
            self._page.add(record.to_json(), None)

    def certify(
        self, origin: Origin, recorded_hash: str | None = None, image: Image | None = None
    ) -> None:
        """List the file of an image in the certificate with its hash, if a certificate is written.

        A video is listed at its first frame. If the file has changed since its record was written,
        its name is added to `other_files` in the report.

        Args:
            origin: The file, and the frame if it is a video.
            recorded_hash: The hash that a saved record has of the file, if any.
            image: The image as it was read from the file, if it was.
        """
        if not self.certifies or origin.source in self._certified_videos:
            return
        is_video = origin.frame is not None
        if is_video:
            self._certified_videos.add(origin.source)

        current_hash = self._hashes.of(origin, image)  # None if the file is gone
        are_both_known = current_hash is not None and recorded_hash is not None
        if are_both_known and current_hash != recorded_hash:
            self.report.other_files.append(origin.source)

        # The hash of the record is that of the file which was compared.
        certified_image = CertifiedImage(
            source=origin.source,
            sha256=recorded_hash or current_hash,
            found=current_hash is not None,
        )
        self.certificate.pictures.append(certified_image)

    def finish(self, more_failures: Iterable[str] = ()) -> Certificate:
        """Complete the report after the last image, and set `conclusion` for the page.

        Args:
            more_failures: What differs besides detections and tensors, one sentence each.

        Returns:
            The certificate, with the report.
        """
        report = self.report
        compares_detections = report.no_detections is None  # this would be the reason why not
        if compares_detections:
            report.detections = self._totals.report(self._listed_images())
        report.judge(more_failures)
        self.conclusion = self._conclude()
        return self.certificate

    def _conclude(self) -> Conclusion:
        """Sum up the finished report for the page: the verdict, both sides and tables."""
        report = self.report
        sentences = list(report.verdict)
        for name, side in (("left", report.left), ("right", report.right)):
            sentences.append(f"{name}: {side_text(_without_folder(side))}")
        sentences += report.unlike  # in what the runs differ besides detections

        left_name, right_name = side_names(report.left, report.right)
        tables = self._class_totals.tables(left_name, right_name)
        tables += self._worst_tables()
        return Conclusion(sentences, tables, agree=report.agree)

    def _listed_images(self) -> list[ImageReport]:
        """Return the reports on listed images and on the worst ones, in the order of the images."""
        reports = dict(self._listed_reports)
        for ranked_image in self._worst:
            reports[ranked_image.number] = ranked_image.report
        return [reports[image_number] for image_number in sorted(reports)]

    def _worst_tables(self) -> list[PageTable]:
        """Return a list of the table of the worst images; it is empty if no image differs."""
        if not self._worst:
            return []
        rows = []
        numbers = []
        for ranked_image in self._worst:
            rows.append(image_row(ranked_image.report))
            numbers.append([ranked_image.number])
        return [PageTable("Worst images", COLUMNS, rows, numbers)]


def _without_folder(side: SideReport) -> SideReport:
    """Shorten the path of a side's model to the name of its file."""
    return replace(side, model=PurePath(side.model).name)


def _page_boxes(comparison: Comparison) -> Iterator[PageBox]:
    """Yield the boxes that the page shows of an image, those that differ first."""
    for match in comparison.disagreeing_pairs:
        yield _paired_box(comparison, match, MOVED)
    for index in comparison.missing:
        yield _single_box(comparison.left, index, MISSING)
    for index in comparison.extra:
        yield _single_box(comparison.right, index, EXTRA)
    for match in comparison.agreeing_pairs:
        yield _paired_box(comparison, match, BOTH)


def _single_box(detections: Detections, index: int, kind: int) -> PageBox:
    """Convert a detection to a box of the page; `kind` is BOTH, MOVED, MISSING or EXTRA."""
    [(corners, score, class_id, name)] = detections[index]
    return PageBox(class_id, name, round(score, 4), corners.tolist(), kind)


def _paired_box(comparison: Comparison, match: Match, kind: int) -> PageBox:
    """Convert two matching detections to a box of the page: the left one, beside the right one."""
    box = _single_box(comparison.left, match.left, kind)
    right = _single_box(comparison.right, match.right, kind)
    return box._replace(counterpart=(right.score, right.corners))


@contextmanager
def open_results(
    request: VerifyRequest, inputs: Container[Path], rules: Rules, sides: Sequence[SideReport]
) -> Iterator[Results]:
    """Start a comparison, with a page if the user asked for one, which is completed at the end.

    Args:
        request: What the user asked for.
        inputs: The files that the page must not overwrite.
        rules: What is compared, and how strictly.
        sides: What the report says about the first side and the second.

    Raises:
        UsageError: The folder has something else in it, or another run is writing to it.
        OutputError: It cannot be written to.
    """
    left, right = sides
    page = None
    if request.config.outputs.report is not None:
        page = _open_page(request.config.outputs.report, request, inputs, rules, sides)
    certificate = Certificate(
        date=iso_time(datetime.now(UTC)),
        request=request.to_json(),
        left=CertifiedSide(),
        right=CertifiedSide(),
        pictures=[],
        report=VerifyReport(left=left, right=right, tolerance=rules.tolerance),
    )
    results = Results(certificate, rules, page, certifies=request.certifies)
    try:
        yield results
    finally:
        if page is not None:
            page.close(results.conclusion)


def _open_page(
    path: Path,
    request: VerifyRequest,
    inputs: Container[Path],
    rules: Rules,
    sides: Sequence[SideReport],
) -> Page:
    """Begin the HTML page that shows the images of a comparison, and where their boxes differ.

    Args:
        path: The folder of the page.
        request: What the user asked for.
        inputs: The files that the page must not overwrite.
        rules: What is compared, and how strictly.
        sides: What the report says about the first side and the second.
    """
    left, right = sides
    left_name, right_name = side_names(left, right)
    about = RunInfo(
        command="verify",
        facts=_facts_of_comparison(rules, sides),
        kinds=_box_kinds(left_name, right_name),
        sides=(left_name, right_name),
        # Both sides detect with --conf lowered by the tolerance of scores.
        min_score=rules.lowered_conf,
    )
    return Page(path, about, inputs, linked=request.config.outputs.report_link)


def _facts_of_comparison(rules: Rules, sides: Sequence[SideReport]) -> list[tuple[str, str]]:
    """List both sides and the rules of the comparison, as pairs of a label and a value."""
    left, right = sides
    facts: list[tuple[str, str]] = []
    for name, side in (("left", left), ("right", right)):
        for label, value in to_json(_without_folder(side)).items():
            if value is not None:
                facts.append((f"{name} {label}", value))
    tolerance = rules.tolerance
    allowed = f"score {tolerance.score:g}, corner {tolerance.corner:g} pixels"
    facts.append(("conf", f"{rules.conf:g}"))
    facts.append(("IoU of a match", f"{rules.least_iou:g}"))
    facts.append(("tolerance", allowed))
    facts += versions()
    return facts
