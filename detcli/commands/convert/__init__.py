"""The command `detcli convert`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from detcli.cli.command import MODEL_ARGUMENT, command, override_option
from detcli.cli.console import download_progress, progress, set_verbosity
from detcli.cli.report import REPORT_FORMAT, ReportFormat, facts_table, write_report
from detcli.commands.convert.options import ConversionOptions
from detcli.config.config import Config, Verbosity
from detcli.core.errors import CheckError
from detcli.core.text import escape_unprintable

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from detcli.commands.convert.run import Conversion, Difference, File


@command(
    MODEL_ARGUMENT,
    override_option("recursive", needs={"calibrate": "name a folder of pictures"}),
    override_option("imgsz", range=(1, 16384)),  # whose anchor grid alone has 5 million cells
    *("names", "box_format", "preprocess"),
    Verbosity,
)
def convert(
    config: Config,
    conversion: ConversionOptions,
    report_format: ReportFormat | None = REPORT_FORMAT,
) -> None:
    """Convert a model file: cut, float16, 8 bits, batch, size, names, selection.

    Both models run on a picture. If their detections differ by more than the tolerance, nothing
    is written and the exit code is 6.
    """
    quiet = config.verbosity.quiet
    set_verbosity(quiet=quiet, verbose=config.verbosity.verbose)
    # What follows loads OpenCV, onnx and ONNX Runtime, which --help does not need.
    from detcli.commands.convert.run import built_in, load_pictures
    from detcli.commands.convert.run import convert as run
    from detcli.core.opencv import silence_opencv
    from detcli.run import locate
    from detcli.source.sources import InputGuard, Sources

    silence_opencv()
    calibrate, output = conversion.calibrate, conversion.output
    pictured = [conversion.image] if conversion.image else []
    InputGuard([*pictured, *calibrate], config.inputs).refuse([output])
    with download_progress() as show:
        located = locate(config, show)
    with (
        Sources(pictured) as picture,
        Sources(calibrate, config.inputs) as sources,
        progress(lambda: sources.progress.total, enabled=bool(calibrate) and not quiet) as advance,
    ):
        compared_on = next(iter(picture)) if pictured else built_in()
        calibration = (lambda: load_pictures(sources, advance)) if calibrate else None
        found = run(located, conversion, compared_on, calibration)
    write_report(found, report_format, render, other_results=[output])
    if found.failures:
        raise CheckError(
            f"{output} was not written: {'; '.join(found.failures)}",
            "--image FILE compares on another picture; --tolerance sets what is allowed",
        )


def render(report: "Conversion") -> "Iterator[Table | Text]":
    """Lay out a report: the model, the passes, the difference, and what was written."""
    from rich.text import Text

    rows = [("model", _file(report.model))]
    for step in report.steps:
        nothing = "" if step.changed else " (nothing to do)"
        rows.append((step.name, f"{step.finding}{nothing}; {step.nodes} nodes"))
    yield facts_table(rows)
    yield facts_table(_differences(report.difference))
    if report.written:
        yield Text.assemble(("written: ", "green"), escape_unprintable(_file(report.output)))
    else:
        reasons = "".join(f"\n  {escape_unprintable(failure)}" for failure in report.failures)
        yield Text.assemble(
            ("not written: ", "red"), escape_unprintable(report.output.path), reasons
        )


def _file(file: "File") -> str:
    from rich.filesize import decimal

    size = f"{file.size[1]}x{file.size[0]}" if file.size else "any size"
    batch = "any batch" if file.batch is None else f"batch {file.batch}"
    return f"{file.path}, {decimal(file.bytes)}, {size}, {batch} ({file.sha256[:12]})"


def _differences(found: "Difference") -> Iterator[tuple[str, str]]:
    yield "compared on", found.source
    boxes = f"{found.old} boxes before, {found.new} after, {found.pairs} pairs"
    yield f"above {found.conf:g}", boxes
    near = f"; {found.borderline} at the confidence threshold" if found.borderline else ""
    disagree = f"{found.missing} missing, {found.extra} extra, {found.over} beyond the tolerance"
    yield "disagree", disagree + near
    yield "score", f"differs by {found.largest_score:.3g} (allowed {found.score_tolerance:g})"
    corners = f"{found.largest_corner:.3g} pixels (allowed {found.corner_tolerance:g})"
    yield "corners", f"differ by {corners}"
    if found.batch is not None:
        yield "in a batch", f"the output differs by {found.batch:.3g} of its largest value"
