"""`detcli verify`: whether two models, devices, selections or saved runs find the same."""

import json
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from detcli.cli.messages import report as report_error
from detcli.cli.messages import say, set_verbosity
from detcli.cli.options import LINE, adapted, command
from detcli.cli.report import encode, to_json, write_report
from detcli.commands.verify.request import (
    VerifyRequest,
    about_running,
    complete_side,
    read_certificate,
)
from detcli.core.config import Config, Messages
from detcli.core.device import Device
from detcli.core.errors import (
    CheckError,
    DetcliError,
    DetcliWarning,
    InputError,
    SourceError,
    UsageError,
)
from detcli.core.files import open_output

if TYPE_CHECKING:
    from detcli.commands.verify.report import (
        Certificate,
        CertificateChange,
        CheckReport,
        VerifyReport,
    )

Value = tuple[str, bool, tuple[str, ...]]
"""What a check calls a value of certificates, whether it matters, and where it is."""

BESIDE_CHECK = {"check", "report", "format", "quiet", "verbose"}
"""Parameters that go with --check: the certificate says the rest."""

MAX_SHOWN = 80  # characters of a certificate's value that is shown

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
"""Numbers that may change while the verdict stays, and what a check calls them."""


@command(
    adapted(
        "model",
        spelled="MODEL",
        help="ONNX file, or a name from `detcli models list`; or records that predict saved.",
        default=None,
        complete=complete_side,
    ),
    "recursive",
    adapted(
        "device",
        help="Where MODEL runs: auto, cpu, cuda, cuda:N, tensorrt or tensorrt:N.",
        default=(Device.parse("cpu"),),
    ),
    "half",
    adapted(
        "conf",
        help="Compare detections with scores above this; default: as in predict, or that of saved "
        "records.",
        spread=None,
    ),
    "nms",
    "imgsz",
    "box_format",
    "preprocess",
    adapted(
        "report",
        help="Write a page of what is missing, extra or moved to this folder: open its index.html.",
    ),
    Messages,
)
def verify(config: Config, origins: Mapping[str, str], request: VerifyRequest) -> None:
    """Compare the detections of two models, two devices, two selections, or two saved runs.

    MODEL with detcli's selection is compared with OTHER, with itself on another device, or with
    the selection that is part of an end-to-end graph.
    Records that predict has saved stand for a side; OTHER may then be COCO results, too.

    The exit code is 6 if they differ by more than the tolerance.
    """
    quiet, check = config.messages.quiet, request.check
    report_format, certificate = request.format, request.certificate
    set_verbosity(quiet=quiet, verbose=config.messages.verbose)
    # What follows loads OpenCV, onnx and ONNX Runtime, which --help does not need.
    from detcli.commands.verify.report import render, render_check
    from detcli.core.opencv import silence_opencv

    silence_opencv()
    before = None
    if check is not None:
        _require_only_check(origins)
        request, before = read_certificate(check)
        config = replace(request.config, writing=config.writing, messages=config.messages)
        request = replace(request, config=config)
    elif request.is_saved and origins.get("device") == LINE:
        raise about_running("--device")
    file = None if certificate is None else open_output(certificate)  # a run is not for nothing
    try:
        certify = file is not None or before is not None
        made = _compare(request, certify=certify)
        if file is not None:
            file.write((encode(made) + "\n").encode("utf-8", "backslashreplace"))
            file.commit()
            if not quiet:
                say(f"wrote a certificate: {certificate}")
    finally:
        if file is not None:
            file.discard()
    found = made.report
    if before is None:
        write_report(found, report_format, render)
        _say_what_is_odd(found, quiet=quiet)
        _judge(found, _next_step(request, found))
    else:
        checked = compare_certificates(before, made)
        write_report(checked, report_format, render_check)
        _say_what_is_odd(found, quiet=quiet)
        if serious := [change for change in checked.changes if change.matters]:
            raise CheckError(
                f"{check} no longer holds: {_first(serious)}",
                "restore what was certified, or issue another certificate with --certificate",
            )
        _judge(found, "--tolerance sets what is allowed, in another certificate")


def _require_only_check(origins: Mapping[str, str]) -> None:
    """Refuse what a certificate says already; the user's own defaults give way to it."""
    for name in (name for name, origin in origins.items() if origin == LINE):
        if name not in BESIDE_CHECK:
            title = f"--{name.replace('_', '-')}"
            title = name.upper() if name in {"model", "other"} else title
            raise UsageError(
                f"--check compares what its certificate names, and takes no {title}",
                f"leave out {title}",
            )


def _compare(request: VerifyRequest, *, certify: bool) -> "Certificate":
    """Compare two sides that run, or that were saved."""
    from detcli.run import source_options
    from detcli.sink.page.folder import require_apart
    from detcli.source.sources import InputGuard

    named = filter(None, [request.other, request.coco_images])
    inputs = InputGuard([*request.images, request.model, *named], source_options(request.config))
    require_apart(request.config.writing.report, [request.certificate])
    inputs.refuse([request.certificate])
    if request.is_saved:
        from detcli.commands.verify.saved import verify_saved

        return verify_saved(request, inputs, certify=certify)
    from detcli.commands.verify.running import verify_running

    return verify_running(request, inputs, certify=certify)


def _say_what_is_odd(found: "VerifyReport", *, quiet: bool) -> None:
    """Warn of differences between the runs' settings, and report which inputs failed."""
    if quiet:
        return
    for sentence in found.unlike:
        warnings.warn(sentence, DetcliWarning, stacklevel=1)
    for failed in found.failed:
        report_error(DetcliError(failed.error), failed.source)


def _next_step(request: VerifyRequest, found: "VerifyReport") -> str:
    steps = [f"the runs are not alike: {found.unlike[0]}"] if found.unlike else []
    if request.config.writing.report is None and request.random is None and found.compared:
        steps.append("--report DIR shows the pictures")
    one_network = request.other is None and found.right.selection == "graph"
    if not (request.bisect or request.is_saved or one_network):
        steps.append("--bisect names the first node that differs")
    steps.append("--tolerance sets what is allowed")
    return "; ".join(steps)


def _judge(found: "VerifyReport", hint: str) -> None:
    """End with the exit code of the verdict.

    Raises:
        CheckError: The sides do not agree.
        SourceError: Nothing could be compared.
    """
    if found.failures:
        raise CheckError(f"the two sides do not agree: {_first(found.failures)}", hint)
    if not found.compared:
        hint = "the errors above say why" if found.failed else "name records of the same pictures"
        raise SourceError("no picture could be compared", hint)
    if not found.agree:
        least = found.detections.conf if found.detections else 0
        raise CheckError(
            f"neither side found anything above {least:g}, so nothing was compared",
            "use pictures with objects the model knows, lower --conf, or compare --tensors",
        )
    if found.failed:
        raise typer.Exit(InputError.exit_code)


def _first(found: Sequence[object]) -> str:
    first, *others = found
    return f"{first} (and {len(others)} more, see the report)" if others else str(first)


def compare_certificates(before: dict[str, Any], made: "Certificate") -> "CheckReport":
    """Say what is not as a certificate says, now that the same was compared again."""
    from detcli.commands.verify.report import CheckReport

    changes = tuple(_changes(before, to_json(made)))
    date = before.get("date")
    holds = made.report.agree and not any(change.matters for change in changes)
    date = date if isinstance(date, str) else "unknown"
    return CheckReport(date, holds, changes, made.report)


def _changes(before: dict[str, Any], now: dict[str, Any]) -> Iterator["CertificateChange"]:
    """What changed, the verdict first."""
    values: list[Value] = [("verdict", True, ("report", "agree"))]
    for side in ("left", "right"):
        values += [
            (f"{side} model sha256", True, ("report", side, "sha256")),
            (f"{side} precision", True, ("report", side, "precision")),
            (f"{side} device", False, ("report", side, "device")),
            (f"{side} records sha256", True, (side, "records_sha256")),
        ]
        for name in now[side]["settings"] or ():
            values.append((f"{side} setting {name}", True, (side, "settings", name)))
        for name in now[side]["provenance"] or ():
            if name != "begun":
                values.append((f"{side} {name}", False, (side, "provenance", name)))
    for name in now["report"]["tolerance"]:
        values.append((f"tolerance of {name}", True, ("report", "tolerance", name)))
    yield from _unequal(before, now, values)
    yield from _other_pictures(before.get("pictures"), now["pictures"])
    values = [("pictures compared", False, ("report", "compared"))]
    for name, title in FIGURES.items():
        values.append((title, False, ("report", "detections", name)))
    yield from _unequal(before, now, values)


def _unequal(before: object, now: object, values: Iterable[Value]) -> Iterator["CertificateChange"]:
    """The values of two certificates that are not the same."""
    from detcli.commands.verify.report import CertificateChange

    for what, matters, path in values:
        was, is_now = before, now
        for name in path:
            was, is_now = (
                part.get(name) if isinstance(part, dict) else None for part in (was, is_now)
            )
        if was != is_now:
            yield CertificateChange(what, _shown(was), _shown(is_now), matters)


def _other_pictures(before: object, now: list[dict[str, Any]]) -> Iterator["CertificateChange"]:
    """Files that are other ones, gone or new; an input may be there several times."""
    from detcli.commands.verify.report import CertificateChange

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
