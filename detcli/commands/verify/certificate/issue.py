"""Issues certificates of what was found, as JSON."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from detcli.commands.verify.report import Certificate
from detcli.commands.verify.request import VerifyRequest
from detcli.commands.verify.results import Verification
from detcli.errors import UsageError
from detcli.files import AtomicFile, DirectFile, open_output
from detcli.record import iso_time


@contextmanager
def open_certificate(path: Path | None) -> Iterator[AtomicFile | DirectFile | None]:
    """Open the file from the start, so that a run is not for nothing; None without a path.

    Raises:
        OutputError: The file cannot be written.
        UsageError: The path does not have the name of JSON.
    """
    if path is None:
        yield None
        return
    if path.suffix.lower() != ".json":
        raise UsageError(
            f"--certificate {path} does not end with .json", "name the JSON, as in gpu.json"
        )
    file = open_output(path)
    try:
        yield file
    finally:
        file.discard()


def issue(request: VerifyRequest, verification: Verification) -> Certificate:
    """Make a certificate of what was just found."""
    left, right = verification.sides
    date = iso_time(datetime.now(UTC))
    pictures = tuple(verification.results.certified)
    return Certificate(date, request, left, right, pictures, verification.report)
