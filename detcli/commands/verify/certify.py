"""Issues certificates of what was found."""

from collections.abc import Iterator
from datetime import UTC, datetime

from detcli.commands.verify.call import VerifyCall
from detcli.commands.verify.certificate import Certificate, CertificateFiles
from detcli.commands.verify.perform import Performed
from detcli.commands.verify.pictures import draw
from detcli.commands.verify.run import titles
from detcli.record import iso_time
from detcli.sink.page.page import render


def issue(call: VerifyCall, performed: Performed) -> Certificate:
    """Make a certificate of what was just found."""
    left, right = performed.sides
    date = iso_time(datetime.now(UTC))
    pictures = tuple(performed.results.certified)
    return Certificate(date, call, left, right, pictures, performed.report)


def certify(files: CertificateFiles, call: VerifyCall, performed: Performed) -> None:
    """Write a certificate, with the pictures that differ most.

    Raises:
        OutputError: A file cannot be written.
    """
    files.write(issue(call, performed), [*_drawings(performed)])


def _drawings(performed: Performed) -> Iterator[tuple[str, bytes]]:
    """Titles and JPEGs of the worst pictures, of those that are found."""
    report = performed.report
    names = titles(report.left, report.right)
    for shown in performed.results.worst:
        if (picture := shown.seen.load()) is not None:
            one = shown.report
            frame = "" if one.frame is None else f", frame {one.frame}"
            title = (
                f"{one.source}{frame}: {len(one.missing)} missing, {len(one.extra)} extra, "
                f"{one.over} over the tolerance; {one.largest_score_difference:.2g} in score, "
                f"{one.largest_corner_difference:.2g} pixels"
            )
            yield title, render(draw(picture.pixels, shown.comparison, names)).picture
