"""A certificate: what was compared, with what, and what came of it."""

from dataclasses import dataclass
from typing import Any

from detcli.commands.verify.call import VerifyCall
from detcli.commands.verify.report import CertifiedPicture, VerifyReport


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
