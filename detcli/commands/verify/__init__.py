"""`detcli verify`: whether two models, devices, selections or saved runs find the same."""

import json
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from detcli.commands.shared import options
from detcli.commands.shared.completion import complete_device, complete_side
from detcli.commands.shared.defaults_file import DEVICE_VARIABLE, MODEL_VARIABLE
from detcli.commands.shared.formats import require_disk
from detcli.commands.shared.layout import DEVICES, INPUT, OUTPUT, SELECTION
from detcli.commands.shared.messages import report as report_error
from detcli.commands.shared.messages import say, set_verbosity
from detcli.commands.shared.options import flag, is_typed, option
from detcli.commands.shared.reports import ReportFormat, to_json
from detcli.errors import (
    CheckError,
    DetcliError,
    DetcliWarning,
    InputError,
    SourceError,
    UsageError,
)
from detcli.files import AtomicFile, DirectFile, open_output, read_json
from detcli.model.contract import BoxFormat
from detcli.record import iso_time

if TYPE_CHECKING:
    from detcli.commands.verify.pictures import Verification
    from detcli.commands.verify.report import (
        Certificate,
        CertificateChange,
        CheckReport,
        Outputs,
        VerifyReport,
        VerifyRequest,
    )


BESIDE_CHECK = {"check", "report_page", "report_format", "quiet", "verbose"}
"""Parameters that go with --check: the certificate says the rest."""


def verify(  # noqa: PLR0913 - one parameter per option; they become objects at once
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="ONNX file, or a name from `detcli models list`; or records that predict saved.",
            show_default=False,
            envvar=MODEL_VARIABLE,
            autocompletion=complete_side,
        ),
    ] = None,
    other: Annotated[
        str | None,
        typer.Argument(
            metavar="OTHER",
            help="ONNX file, records or COCO results to compare with; default: MODEL.",
            show_default=False,
            autocompletion=complete_side,
        ),
    ] = None,
    *,
    context: typer.Context,
    images: Annotated[
        list[str] | None,
        option(
            "FOLDER",
            "Pictures to compare on: a folder, a file or a quoted glob pattern; repeatable. Of "
            "saved records the folder where the pictures are now.",
            show_default=False,
            panel=INPUT,
        ),
    ] = None,
    random: Annotated[
        int | None,
        option(
            "SEED",
            "Use a random picture instead; only for --tensors and --bisect.",
            "--random",
            min=0,
            panel=INPUT,
        ),
    ] = None,
    recursive: options.RecursiveOption = False,
    device: Annotated[
        str,
        option(
            "DEVICE",
            "Where MODEL runs: auto, cpu, cuda, cuda:N, tensorrt or tensorrt:N.",
            panel=DEVICES,
            envvar=DEVICE_VARIABLE,
            autocompletion=complete_device,
        ),
    ] = "cpu",
    against: Annotated[
        str | None,
        option(
            "DEVICE|graph",
            "Where the other side runs; graph for the graph's own selection, on the CPU. "
            "Default: graph for an end-to-end MODEL without OTHER, else the same as --device.",
            panel=DEVICES,
            autocompletion=complete_device,
        ),
    ] = None,
    half: options.HalfOption = False,
    conf: Annotated[
        float | None,
        option(
            "SCORE",
            "Compare detections with scores above this; default: as in predict, or that of saved "
            "records.",
            panel=SELECTION,
        ),
    ] = None,
    nms: options.NmsOption = None,
    imgsz: options.ImageSizeOption = None,
    box_format: options.BoxesOption = None,
    preprocess: options.PreprocessOption = None,
    least_iou: Annotated[
        float, option("IOU", "Boxes that overlap less do not match.", "--iou")
    ] = 0.5,
    tolerance: Annotated[
        str | None,
        option(
            "LIST",
            "Allowed differences, as in score=0.02,corner=2,boxes=1%,tensor=0.05; corner is in "
            "pixels, boxes a share of all. Default: depends on the precision.",
        ),
    ] = None,
    tensors: Annotated[
        bool, flag("Also compare the raw outputs of the networks.", "--tensors")
    ] = False,
    bisect: Annotated[bool, flag("Find the first node whose output differs.", "--bisect")] = False,
    coco_images: Annotated[
        Path | None,
        option(
            "FILE",
            "COCO instances.json with the ids of pictures and categories in COCO results.",
            panel=INPUT,
        ),
    ] = None,
    report_page: Annotated[
        Path | None,
        option(
            "DIR",
            "Write a page of what is missing, extra or moved to this folder: open its index.html.",
            "--report",
            panel=OUTPUT,
        ),
    ] = None,
    certificate: Annotated[
        Path | None,
        option(
            "FILE.json",
            "Write what was compared, with what, and the verdict to this file.",
            panel=OUTPUT,
        ),
    ] = None,
    check: Annotated[
        Path | None,
        option(
            "FILE.json",
            "Compare what this certificate names again, and say what changed.",
            panel=INPUT,
        ),
    ] = None,
    report_format: options.ReportFormatOption = None,
    quiet: options.QuietOption = False,
    verbose: options.VerboseOption = 0,
) -> None:
    """Compare the detections of two models, two devices, two selections, or two saved runs.

    MODEL with detcli's selection is compared with OTHER, with itself on another device, or with
    the selection that is part of an end-to-end graph.
    Records that predict has saved stand for a side; OTHER may then be COCO results, too.

    The exit code is 6 if they differ by more than the tolerance.
    """
    set_verbosity(quiet=quiet, verbose=verbose)
    require_disk({"--report": report_page, "--certificate": certificate})
    # What follows loads OpenCV, onnx and ONNX Runtime, which --help does not need.
    from detcli.commands.shared.comparison import parse_tolerance
    from detcli.commands.shared.reports import encode, write_report
    from detcli.commands.verify.report import Outputs, VerifyRequest, about_running, render
    from detcli.opencv import silence_opencv

    silence_opencv()
    if check is not None:
        _require_only_check(context)
        _check(check, report_page, report_format, quiet=quiet)
        return
    if model is None:
        raise UsageError(
            "missing argument 'MODEL'", "name an ONNX file, a model, or records that predict saved"
        )
    if certificate is not None and (tensors or bisect or random is not None):
        raise UsageError(
            "--certificate is about detections",
            "leave out --tensors, --bisect and --random, or leave out --certificate",
        )
    request = VerifyRequest(
        model=model,
        other=other,
        images=tuple(images or ()),
        random=random,
        recursive=recursive,
        device=device,
        against=against,
        half=half,
        conf=conf,
        nms=nms,
        imgsz=imgsz,
        box_format=box_format,
        preprocess=preprocess,
        iou=least_iou,
        tolerance=parse_tolerance(tolerance),
        coco_images=None if coco_images is None else str(coco_images),
        tensors=tensors,
        bisect=bisect,
    )
    if request.is_saved and is_typed(context, "device"):
        raise about_running("--device")
    with open_certificate(certificate) as file:
        outputs = Outputs(report_page, certificate)
        verification = _compare(request, outputs, certify=file is not None, quiet=quiet)
        if file is not None:
            text = encode(issue(request, verification)) + "\n"
            file.write(text.encode("utf-8", "backslashreplace"))
            file.commit()
            if not quiet:
                say(f"wrote a certificate: {certificate}")
    found = verification.report
    write_report(found, report_format, render)
    _say_what_is_odd(found, quiet=quiet)
    _judge(
        found,
        _next_step(
            looked_inside=bisect or request.is_saved or _is_one_network(request, found),
            may_show=report_page is None and random is None and found.compared > 0,
            unlike=found.unlike,
        ),
    )


def _compare(
    request: "VerifyRequest", outputs: "Outputs", *, certify: bool, quiet: bool
) -> "Verification":
    """Compare two sides that run, or that were saved."""
    if request.is_saved:
        from detcli.commands.verify.saved import verify_saved

        return verify_saved(request, outputs, certify=certify, quiet=quiet)
    from detcli.commands.verify.running import verify_running

    return verify_running(request, outputs, certify=certify, quiet=quiet)


def _require_only_check(context: typer.Context) -> None:
    """Refuse what a certificate says already; the user's own defaults give way to it.

    Raises:
        UsageError: The command line has a side, or an option about the comparison.
    """
    for param in context.command.params:
        name = str(param.name)
        if name not in BESIDE_CHECK and is_typed(context, name):
            title = param.opts[0] if param.opts[0].startswith("-") else name.upper()
            raise UsageError(
                f"--check compares what its certificate names, and takes no {title}",
                f"leave out {title}",
            )


def _check(
    path: Path,
    report_page: Path | None,
    report_format: ReportFormat | None,
    *,
    quiet: bool,
) -> None:
    """Compare what a certificate names again, and say what changed."""
    from detcli.commands.shared.reports import write_report
    from detcli.commands.verify.report import Outputs, render_check

    certified = read_certificate(path)
    outputs = Outputs(report_page)
    found = check(certified, _compare(certified.request, outputs, certify=True, quiet=quiet))
    write_report(found, report_format, render_check)
    _say_what_is_odd(found.report, quiet=quiet)
    serious = [change for change in found.changes if change.matters]
    if serious:
        first, *others = serious
        more = f" (and {len(others)} more, see the report)" if others else ""
        raise CheckError(
            f"{path} no longer holds: {first}{more}",
            "restore what was certified, or issue another certificate with --certificate",
        )
    _judge(found.report, "--tolerance sets what is allowed, in another certificate")


def _say_what_is_odd(found: "VerifyReport", *, quiet: bool) -> None:
    """Warn of differences between the runs' settings, and report which inputs failed."""
    if quiet:
        return
    for sentence in found.unlike:
        warnings.warn(sentence, DetcliWarning, stacklevel=1)
    for failed in found.failed:
        report_error(DetcliError(failed.error), failed.source)


def _judge(found: "VerifyReport", hint: str) -> None:
    """End with the exit code of the verdict.

    Raises:
        CheckError: The sides do not agree.
        SourceError: Nothing could be compared.
    """
    if found.failures:
        first, *others = found.failures
        more = f" (and {len(others)} more, see the report)" if others else ""
        raise CheckError(f"the two sides do not agree: {first}{more}", hint)
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


def _is_one_network(request: "VerifyRequest", found: "VerifyReport") -> bool:
    """Whether both sides run the same network, so that bisecting finds nothing."""
    return request.other is None and found.right.selection == "graph"


def _next_step(*, looked_inside: bool, may_show: bool, unlike: Sequence[str]) -> str:
    """The hint for a disagreement."""
    steps = [f"the runs are not alike: {unlike[0]}"] if unlike else []
    if may_show:
        steps.append("--report DIR shows the pictures")
    if not looked_inside:
        steps.append("--bisect names the first node that differs")
    steps.append("--tolerance sets what is allowed")
    return "; ".join(steps)


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


def issue(request: "VerifyRequest", verification: "Verification") -> "Certificate":
    """Make a certificate of what was just found."""
    from detcli.commands.verify.report import Certificate

    left, right = verification.sides
    date = iso_time(datetime.now(UTC))
    pictures = tuple(verification.results.certified)
    return Certificate(date, request, left, right, pictures, verification.report)


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

    request: "VerifyRequest"
    content: dict[str, Any]


def read_certificate(path: Path) -> Certified:
    """Read a certificate, which may come from a stranger.

    Raises:
        UsageError: It is something else, or cannot be read.
    """
    from detcli.commands.verify.report import VerifyRequest

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


def check(certified: Certified, verification: "Verification") -> "CheckReport":
    """Say what is not as a certificate says.

    Args:
        certified: The certificate.
        verification: What was found when its request was compared again.
    """
    from detcli.commands.verify.report import CheckReport

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


def _changes(before: dict[str, Any], now: dict[str, Any]) -> Iterator["CertificateChange"]:
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
) -> Iterator["CertificateChange"]:
    from detcli.commands.verify.report import CertificateChange

    before, now = (part.get(name) for part in parts)
    if before != now:
        yield CertificateChange(title, _shown(before), _shown(now), matters)


def _pictures(before: Any, now: list[dict[str, Any]]) -> Iterator["CertificateChange"]:  # noqa: ANN401
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
