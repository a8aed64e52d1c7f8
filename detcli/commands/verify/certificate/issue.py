"""Issues certificates of what was found, as JSON and as a page."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from detcli.commands.shared.reports import encode
from detcli.commands.verify.certificate.page import lay_out
from detcli.commands.verify.drawing import draw
from detcli.commands.verify.report import Certificate
from detcli.commands.verify.request import VerifyRequest
from detcli.commands.verify.results import Verification, titles
from detcli.errors import UsageError
from detcli.files import AtomicFile, DirectFile, open_output
from detcli.record import iso_time
from detcli.sink.page.page import render


def page_of(path: Path) -> Path:
    """The page beside a certificate.

    Raises:
        UsageError: The certificate does not have the name of JSON.
    """
    if path.suffix.lower() != ".json":
        raise UsageError(
            f"--certificate {path} does not end with .json",
            "name the JSON as in gpu.json; its page is then gpu.html",
        )
    return path.with_suffix(".html")


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """The two files of a certificate, open from the start, so that a run is not for nothing."""

    paths: tuple[Path, Path]
    json: AtomicFile | DirectFile
    page: AtomicFile | DirectFile

    def write(self, certificate: Certificate, drawings: list[tuple[str, bytes]]) -> None:
        """Write both.

        Args:
            certificate: What they say.
            drawings: Titles and JPEGs of the pictures that differ most.

        Raises:
            OutputError: A file cannot be written.
        """
        text = (encode(certificate) + "\n").encode("utf-8", "backslashreplace")
        digest = hashlib.sha256(text).hexdigest()
        self.json.write(text)
        self.page.write(lay_out(certificate, self.paths[0].name, digest, drawings))
        self.json.commit()
        self.page.commit()


@contextmanager
def open_certificate(path: Path | None) -> Iterator[CertificateFiles | None]:
    """Open both files; None without a path. What is not written is discarded.

    Raises:
        OutputError: A file cannot be written.
        UsageError: The path does not have the name of JSON.
    """
    if path is None:
        yield None
        return
    page = page_of(path)
    json = open_output(path)
    try:
        files = CertificateFiles((path, page), json, open_output(page))
    except BaseException:
        json.discard()
        raise
    try:
        yield files
    finally:
        files.json.discard()
        files.page.discard()


def issue(request: VerifyRequest, verification: Verification) -> Certificate:
    """Make a certificate of what was just found."""
    left, right = verification.sides
    date = iso_time(datetime.now(UTC))
    pictures = tuple(verification.results.certified)
    return Certificate(date, request, left, right, pictures, verification.report)


def certify(files: CertificateFiles, request: VerifyRequest, verification: Verification) -> None:
    """Write a certificate, with the pictures that differ most.

    Raises:
        OutputError: A file cannot be written.
    """
    files.write(issue(request, verification), [*_drawings(verification)])


def _drawings(verification: Verification) -> Iterator[tuple[str, bytes]]:
    """Titles and JPEGs of the worst pictures, of those that are found."""
    report = verification.report
    names = titles(report.left, report.right)
    for shown in verification.results.worst:
        if (picture := shown.seen.load()) is not None:
            one = shown.report
            frame = "" if one.frame is None else f", frame {one.frame}"
            title = (
                f"{one.source}{frame}: {len(one.missing)} missing, {len(one.extra)} extra, "
                f"{one.over} over the tolerance; {one.largest_score_difference:.2g} in score, "
                f"{one.largest_corner_difference:.2g} pixels"
            )
            yield title, render(draw(picture.pixels, shown.comparison, names)).picture
