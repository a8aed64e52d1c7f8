"""What a verification has found so far; memory grows with what is kept of the pictures."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from detcli.commands.shared.comparison import (
    DetectionsReport,
    PictureReport,
    Rules,
    Totals,
    compare,
    picture_report,
)
from detcli.commands.shared.provenance import FileHashes
from detcli.commands.verify.page import DifferencePage
from detcli.commands.verify.pictures import ComparedPicture, SeenPicture, WorstPictures
from detcli.commands.verify.report import CertifiedPicture
from detcli.detections import Detections
from detcli.geometry import Picture
from detcli.record import Origin
from detcli.sink.folder import OutputFolder
from detcli.sink.page.page import Rendering, render


class Results:
    """Adds up pictures as they are compared.

    Attributes:
        compared: How many there were.
        page: Gets all pictures; None for no page.
        certifies: Whether files are hashed.
        worst: Those that differ most.
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
        self.worst = WorstPictures()
        self.certified: list[CertifiedPicture] = []
        self.certifies = certify
        self.page = page
        self._rules, self._keep_all = rules, keep_all
        self._totals = Totals(rules)
        self._kept: dict[int, PictureReport] = {}
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
        shown = ComparedPicture(self.compared, seen, compared, report)
        self.compared += 1
        self._totals.add(report)
        self.worst.add(report.severity(self._rules.tolerance), shown)
        if self._keep_all or not report.agrees:
            self._kept[shown.index] = report
        if self.page is not None:
            self.page.add(seen, rendering or partial(_rendered, seen.load), compared)

    def certify(self, origin: Origin, digest: str | None = None) -> None:
        """Note the hash of a file, of a video once.

        Args:
            origin: Where the picture comes from.
            digest: The hash, if it is known.
        """
        again = (
            origin.frame is not None
            and self.certified
            and self.certified[-1].source == origin.source
        )
        if again or not self.certifies:
            return
        digest = digest or self._hashes.of(origin)
        self.certified.append(CertifiedPicture(origin.source, digest))

    def summarise(self, folder: OutputFolder | None, titles: tuple[str, str]) -> DetectionsReport:
        """Draw the worst pictures and add up all.

        Raises:
            OutputError: A picture cannot be written.
        """
        kept = self._kept | {shown.index: shown.report for shown in self.worst}
        if folder is not None:
            for index, path in self.worst.save(folder, titles).items():
                kept[index] = replace(kept[index], drawn=str(path))
        return self._totals.report(kept[index] for index in sorted(kept))


def _rendered(load: Callable[[], Picture | None]) -> Rendering | None:
    picture = load()
    return None if picture is None else render(picture.pixels)
