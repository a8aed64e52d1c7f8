"""Reads a certificate, and says what changed when the same was compared again."""

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detcli.commands.shared.reports import to_json
from detcli.commands.verify.certificate.issue import issue
from detcli.commands.verify.report import CertificateChange, CheckReport
from detcli.commands.verify.request import VerifyRequest
from detcli.commands.verify.results import Verification
from detcli.errors import UsageError
from detcli.files import read_json
from detcli.model.contract import BoxFormat

TEXT, NUMBER = (str,), (float, int)
FIELDS: dict[str, tuple[type, ...]] = {
    "model": TEXT,
    "other": (str, type(None)),
    "images": (list,),
    "recursive": (bool,),
    "device": TEXT,
    "against": (str, type(None)),
    "half": (bool,),
    "conf": (*NUMBER, type(None)),
    "nms": (*NUMBER, type(None)),
    "imgsz": (int, type(None)),
    "box_format": (str, type(None)),
    "preprocess": (str, type(None)),
    "iou": NUMBER,
    "tolerance": (dict,),
    "coco_images": (str, type(None)),
}
"""Types of what a certificate says was asked for."""

FIGURES = {
    "left": "boxes on the left",
    "right": "boxes on the right",
    "pairs": "pairs",
    "over": "pairs beyond the tolerance",
    "borderline": "borderline",
    "missing": "missing boxes",
    "extra": "extra boxes",
    "largest_score_difference": "largest score difference",
    "largest_corner_difference": "largest corner difference",
}
"""Numbers of the report that may change while the verdict stays, and what a check calls them."""

MAX_SHOWN = 80
"""Characters of a value that is shown."""


@dataclass(frozen=True, slots=True)
class Certified:
    """A certificate that was read: what to compare, and the whole of it."""

    request: VerifyRequest
    content: dict[str, Any]


def read_certificate(path: Path) -> Certified:
    """Read a certificate, which may come from a stranger.

    Raises:
        UsageError: It is something else, or cannot be read.
    """
    content = read_json(path, _unusable)
    request = content.get("request") if isinstance(content, dict) else None
    if not isinstance(request, dict) or not isinstance(content.get("report"), dict):
        raise _unusable(path, "it is not a certificate of detcli verify")
    if request.get("gpu_decode"):  # of earlier certificates
        raise _unusable(path, "it compares decoders, which verify no longer does")
    for name, kinds in FIELDS.items():
        value = request.get(name)
        if type(value) not in kinds:
            raise _unusable(path, f"its request has no usable {name}")
    tolerance = request["tolerance"]
    if not all(isinstance(one, str) for one in request["images"]):
        raise _unusable(path, "its request has no usable images")
    if not all(type(one) in NUMBER for one in tolerance.values()) or not tolerance.keys() <= {
        "score", "corner", "boxes", "tensor",
    }:  # fmt: skip
        raise _unusable(path, "its request has no usable tolerance")
    values = {name: request[name] for name in FIELDS}
    values["images"] = tuple(request["images"])
    if request["box_format"] is not None:
        if request["box_format"] not in set(BoxFormat):
            raise _unusable(path, "its request has no usable box_format")
        values["box_format"] = BoxFormat(request["box_format"])
    return Certified(VerifyRequest(**values), content)


def _unusable(path: Path, reason: str) -> UsageError:
    return UsageError(f"cannot check {path}: {reason}", "name the JSON that --certificate wrote")


def check(certified: Certified, verification: Verification) -> CheckReport:
    """Say what is not as a certificate says.

    Args:
        certified: The certificate.
        verification: What was found when its request was compared again.
    """
    now = to_json(issue(certified.request, verification))
    before = certified.content
    changes = tuple(_changes(before, now))
    date = before.get("date")
    return CheckReport(
        date=date if isinstance(date, str) else "unknown",
        holds=verification.report.agree and not any(change.matters for change in changes),
        changes=changes,
        report=verification.report,
    )


def _changes(before: dict[str, Any], now: dict[str, Any]) -> Iterator[CertificateChange]:
    """What changed, the verdict first."""
    reports = _part(before, "report"), now["report"]
    yield from _compared("verdict", "agree", reports, matters=True)
    for side in ("left", "right"):
        sides = _part(reports[0], side), reports[1][side]
        yield from _compared(f"{side} model sha256", "sha256", sides, matters=True)
        yield from _compared(f"{side} precision", "precision", sides, matters=True)
        yield from _compared(f"{side} device", "device", sides)
        mades = _part(before, side), now[side]
        yield from _compared(f"{side} records sha256", "records_sha256", mades, matters=True)
        for name in now[side]["settings"] or ():
            settings = _part(mades[0], "settings"), mades[1]["settings"]
            yield from _compared(f"{side} setting {name}", name, settings, matters=True)
        for name in now[side]["provenance"] or ():
            made = _part(mades[0], "provenance"), mades[1]["provenance"]
            if name != "begun":
                yield from _compared(f"{side} {name}", name, made)
    tolerances = _part(reports[0], "tolerance"), reports[1]["tolerance"]
    for name in tolerances[1]:
        yield from _compared(f"tolerance of {name}", name, tolerances, matters=True)
    yield from _pictures(before.get("pictures"), now["pictures"])
    yield from _compared("pictures compared", "compared", reports)
    found = _part(reports[0], "detections"), reports[1]["detections"] or {}
    for name, title in FIGURES.items():
        yield from _compared(title, name, found)


def _part(content: Any, name: str) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """An object in JSON, which is empty if it is something else."""
    part = content.get(name) if isinstance(content, dict) else None
    return part if isinstance(part, dict) else {}


def _compared(
    title: str, name: str, parts: tuple[dict[str, Any], dict[str, Any]], *, matters: bool = False
) -> Iterator[CertificateChange]:
    before, now = (part.get(name) for part in parts)
    if before != now:
        yield CertificateChange(title, _shown(before), _shown(now), matters)


def _pictures(before: Any, now: list[dict[str, Any]]) -> Iterator[CertificateChange]:  # noqa: ANN401
    """Files that are other ones, gone or new; an input may be there several times."""
    hashes: defaultdict[str, list[Any]] = defaultdict(list)
    for one in before if isinstance(before, list) else ():
        if isinstance(one, dict) and isinstance(one.get("source"), str):
            hashes[one["source"]].append(one.get("sha256"))
    for one in now:
        source, digest = one["source"], one["sha256"]
        was = hashes[source]
        if digest in was:
            was.remove(digest)
        else:
            known = _shown(was.pop(0)) if was else None
            yield CertificateChange(f"input {source}", known, _shown(digest), matters=True)
    for source, left in hashes.items():
        for digest in left:
            yield CertificateChange(f"input {source}", _shown(digest), None, matters=True)


def _shown(value: object) -> str | None:
    """A value as text; None for none."""
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "..."
