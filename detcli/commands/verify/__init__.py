"""`detcli verify`: whether two models, devices, selections or saved runs find the same.

request.py is what is asked for; running.py compares sides that run, by a plan that running_plan.py
makes, and class_pairs.py pairs their classes; saved.py compares saved runs, which saved_run.py and
coco_results.py read. images.py adds images up and shows them on a page, class_totals.py by class;
tensors.py compares raw outputs, bisection.py finds the first node that differs, and causes.py says
what is different about it. report.py is the result as JSON and in certificates, tables.py for
people.
"""

import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

import typer

from detcli.cli.command import command
from detcli.cli.console import print_error, print_line, set_verbosity
from detcli.cli.defaults import COMMAND_LINE
from detcli.cli.report import (
    ReportFormat,
    choose_report_format,
    encode,
    require_output,
    write_report,
)
from detcli.commands.verify.request import (
    CONFIG_OPTIONS,
    VerifyRequest,
    about_running,
    read_certificate,
    uncertified_names,
)
from detcli.config.config import Config
from detcli.core.errors import (
    CheckError,
    DetcliError,
    DetcliWarning,
    InputError,
    SourceError,
    UsageError,
)
from detcli.storage.files import open_output

if TYPE_CHECKING:
    from detcli.commands.verify.report import Certificate, VerifyReport
    from detcli.source.guard import InputGuard


@command(*CONFIG_OPTIONS)
def verify(config: Config, value_sources: Mapping[str, str], request: VerifyRequest) -> None:
    """Compare the detections of two models, two devices, two selections, or two saved runs.

    MODEL with detcli's selection is compared with OTHER, with itself on another device, or with
    the selection that is part of an end-to-end graph.
    Records that predict has saved stand for a side; OTHER may then be COCO results, too.

    The exit code is 6 if they differ by more than the tolerance.
    """
    quiet = config.verbosity.quiet
    report_format = request.format
    set_verbosity(quiet=quiet, verbose=config.verbosity.verbose)
    other_results = (request.certificate, config.outputs.report)
    require_output(other_results)
    # What follows loads OpenCV, onnx and ONNX Runtime, which --help does not need.
    from detcli.commands.verify.report import check
    from detcli.commands.verify.tables import render, render_check
    from detcli.core.opencv import silence_opencv

    silence_opencv()
    earlier = None
    if request.check is not None:
        _require_only_check(value_sources)
        request, earlier = read_certificate(request.check, request)
    elif request.compares_saved_runs and value_sources.get("device") == COMMAND_LINE:
        raise about_running("--device")
    certificate = _compare_and_certify(request)
    report = certificate.report
    comparison = None
    if earlier is not None:
        comparison = check(earlier, certificate)
    if comparison is None:
        write_report(report, report_format, render, other_results=other_results)
    else:
        write_report(comparison, report_format, render_check, other_results=other_results)
    if not quiet:
        for sentence in report.unlike:
            warnings.warn(sentence, DetcliWarning, stacklevel=1)
    for failure in report.failed:
        print_error(DetcliError(failure.error), failure.source)
    # A table lists what differs.
    is_table = choose_report_format(report_format) is ReportFormat.TABLE
    if comparison is None:
        _require_agreement(report, _next_step(request, report), is_table=is_table)
        return
    serious = [change for change in comparison.changes if change.matters]
    if serious:
        raise CheckError(
            f"{request.check} no longer holds: {_first(serious)}",
            "restore what was certified, or issue another certificate with --certificate",
        )
    _require_agreement(
        report, "--tolerance sets what is allowed, in another certificate", is_table=is_table
    )


def _require_only_check(value_sources: Mapping[str, str]) -> None:
    """Refuse options beside --check that say what to compare, since the certificate says so.

    Only options on the command line are refused; the user's own defaults give way to the
    certificate.

    Args:
        value_sources: Where the value of each option is from, by its name, such as
            `{"model": "the command line"}`.

    Raises:
        UsageError: Such an option was given.
    """
    allowed_names = uncertified_names() - {"certificate"}
    for name, source in value_sources.items():
        if source != COMMAND_LINE or name in allowed_names:
            continue
        is_argument = name in {"model", "other"}
        if is_argument:
            title = name.upper()
        else:
            title = f"--{name.replace('_', '-')}"
        raise UsageError(
            f"--check compares what its certificate names, and takes no {title}",
            f"leave out {title}",
        )


def _compare_and_certify(request: VerifyRequest) -> "Certificate":
    """Compare two models or two saved runs, and write a certificate if the user asked for one.

    Raises:
        UsageError: The certificate would be written over an input, or into the folder of the page.
    """
    from detcli.page.folder import require_apart
    from detcli.source.guard import InputGuard

    config = request.config
    certificate_path = request.certificate
    input_names = [*request.images, request.model]
    for name in (request.other, request.coco_images):
        if name:
            input_names.append(name)
    inputs = InputGuard(input_names, config.inputs, config.outputs.written)
    require_apart(config.outputs.report, [certificate_path])
    inputs.refuse([certificate_path])
    if certificate_path is None:
        return _compare(request, inputs)

    with ExitStack() as stack:
        file = open_output(certificate_path)  # before all the work, in case it cannot be written
        stack.callback(file.discard)  # does nothing after `commit`
        certificate = _compare(request, inputs)
        file.write((encode(certificate) + "\n").encode("utf-8", "backslashreplace"))
        file.commit()
    if not config.verbosity.quiet:
        print_line(f"wrote a certificate: {certificate_path}")
    return certificate


def _compare(request: VerifyRequest, inputs: "InputGuard") -> "Certificate":
    """Compare saved runs, or models that run now; `inputs` are files not to be overwritten."""
    if request.compares_saved_runs:
        from detcli.commands.verify.saved import verify_saved

        return verify_saved(request, inputs)
    from detcli.commands.verify.running import verify_running

    return verify_running(request, inputs)


def _next_step(request: VerifyRequest, report: "VerifyReport") -> str:
    """Suggest what the user may do next if the two sides do not agree."""
    steps = []
    if report.unlike:
        steps.append(f"the runs are not alike: {report.unlike[0]}")
    has_page = request.config.outputs.report is not None
    has_images = request.random is None and report.compared > 0
    if has_images and not has_page:
        steps.append("--report DIR shows the images")

    # If a model is compared with the selection of boxes in its graph, both sides run one network,
    # so there is no node that differs.
    is_one_network = request.other is None and report.right.selection == "graph"
    if not (request.bisect or request.compares_saved_runs or is_one_network):
        steps.append("--bisect names the first node that differs")

    steps.append("--tolerance sets what is allowed")
    return "; ".join(steps)


def _require_agreement(report: "VerifyReport", hint: str, *, is_table: bool) -> None:
    """Raise an error whose exit code says why the comparison failed; return if the sides agree.

    Args:
        report: The report of the comparison.
        hint: What the user may do if the sides differ by more than the tolerance.
        is_table: Whether the report was printed as a table, which says why already.

    Raises:
        CheckError: The sides differ, or neither has detected anything that could be compared.
        SourceError: Nothing could be compared.
        typer.Exit: The sides agree, but some images could not be read.
    """
    if report.failures:
        message = "the two sides do not agree"
        if not is_table:
            message += f": {_first(report.failures)}"
        raise CheckError(message, hint)

    if not report.compared:
        next_step = "name records of the same images"
        if report.failed:
            next_step = "the errors above say why"
        raise SourceError("no image could be compared", next_step)

    # Without failures, the sides do not agree only if there was not a single box to compare.
    if not report.agree:
        conf = 0.0
        if report.detections is not None:
            conf = report.detections.conf
        raise CheckError(
            f"neither side found anything above {conf:g}, so nothing was compared",
            "use images with objects the model knows, lower --conf, or compare --tensors",
        )

    if report.failed:
        raise typer.Exit(InputError.exit_code)


def _first(items: Sequence[object]) -> str:
    """Format the first of several items, and how many more there are."""
    if len(items) == 1:
        return str(items[0])
    return f"{items[0]} (and {len(items) - 1} more, see the report)"
