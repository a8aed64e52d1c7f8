"""A certificate: what was compared, with what, and what came of it, as JSON and as a page."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detcli.commands.shared.reports import encode
from detcli.commands.verify.call import VerifyCall
from detcli.commands.verify.report import CertifiedPicture, VerifyReport
from detcli.errors import UsageError
from detcli.files import AtomicFile, DirectFile, open_output


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
    request: VerifyCall
    left: CertifiedSide
    right: CertifiedSide
    pictures: tuple[CertifiedPicture, ...]
    report: VerifyReport


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
        from detcli.commands.verify.certificate_page import lay_out

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
