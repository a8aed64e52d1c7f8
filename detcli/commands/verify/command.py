"""`detcli verify`: whether two models, devices, selections or saved runs find the same."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from detcli.commands.shared import options
from detcli.commands.shared.completion import complete_device, complete_side
from detcli.commands.shared.defaults_file import DEVICE_VARIABLE, MODEL_VARIABLE
from detcli.commands.shared.formats import require_disk
from detcli.commands.shared.layout import DEVICES, INPUT, OUTPUT, SELECTION
from detcli.commands.shared.messages import report, say, set_verbosity
from detcli.commands.shared.options import flag, is_typed, option
from detcli.commands.shared.reports import ReportFormat
from detcli.errors import (
    CheckError,
    DetcliError,
    DetcliWarning,
    InputError,
    SourceError,
    UsageError,
)

if TYPE_CHECKING:
    from detcli.commands.verify.report import VerifyReport
    from detcli.commands.verify.request import Outputs, VerifyRequest
    from detcli.commands.verify.results import Verification

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
    from detcli.commands.verify.certificate.issue import issue, open_certificate
    from detcli.commands.verify.render import render
    from detcli.commands.verify.request import Outputs, VerifyRequest, about_running
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
        from detcli.commands.verify.saved.compare import verify_saved

        return verify_saved(request, outputs, certify=certify, quiet=quiet)
    from detcli.commands.verify.running.compare import verify_running

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
    from detcli.commands.verify.certificate.check import check, read_certificate
    from detcli.commands.verify.render import render_check
    from detcli.commands.verify.request import Outputs

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
        report(DetcliError(failed.error), failed.source)


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
