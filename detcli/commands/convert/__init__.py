"""The command `detcli convert`."""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from detcli.cli.command import MODEL_ARGUMENT, command, override_option
from detcli.cli.console import download_progress, progress, set_verbosity
from detcli.cli.report import REPORT_FORMAT, ReportFormat, facts_table, write_report
from detcli.commands.convert.options import ConversionOptions
from detcli.config.config import Config, Verbosity
from detcli.core.errors import CheckError
from detcli.core.text import escape_unprintable, short_number

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from detcli.commands.convert.comparison import Difference
    from detcli.commands.convert.run import Conversion, File


@command(
    MODEL_ARGUMENT,
    override_option("recursive", needs={"calibrate": "name a folder of images"}),
    override_option("imgsz", range=(1, 16384)),  # an anchor grid for 16384 has 5 million cells
    *("names", "box_format", "preprocess"),
    Verbosity,
)
def convert(
    config: Config,
    conversion: ConversionOptions,
    report_format: ReportFormat | None = REPORT_FORMAT,
) -> None:
    """Convert a model file: cut, float16, 8 bits, batch, size, names, selection.

    Both models run on an image. If their detections differ by more than the tolerance, nothing
    is written and the exit code is 6.
    """
    quiet = config.verbosity.quiet
    set_verbosity(quiet=quiet, verbose=config.verbosity.verbose)
    # What follows loads OpenCV, onnx and ONNX Runtime, which --help does not need.
    from detcli.commands.convert.run import built_in, load_images
    from detcli.commands.convert.run import convert as run
    from detcli.core.opencv import silence_opencv
    from detcli.run import locate
    from detcli.source.guard import InputGuard
    from detcli.source.sources import Sources

    silence_opencv()
    output = conversion.output
    compared_on = []
    if conversion.image:
        compared_on.append(conversion.image)
    InputGuard([*compared_on, *conversion.calibrate], config.inputs).refuse([output])
    with download_progress() as show:
        located = locate(config, show)
    shows_progress = bool(conversion.calibrate) and not quiet
    with (
        Sources(compared_on) as image,
        Sources(conversion.calibrate, config.inputs) as sources,
        progress(lambda: sources.progress.total, enabled=shows_progress) as advance,
    ):
        item = built_in()
        if compared_on:
            item = next(iter(image))
        calibration_images = None
        if conversion.calibrate:
            calibration_images = partial(load_images, sources, advance)
        report = run(located, conversion, item, calibration_images)
    write_report(report, report_format, render, other_results=[output])
    if report.failures:
        raise CheckError(
            f"{output} was not written: {'; '.join(report.failures)}",
            "--image FILE compares on another image; --tolerance sets what is allowed",
        )


def render(report: "Conversion") -> "Iterator[Table | Text]":
    """Lay out the report of a conversion for a terminal.

    It yields the model with what each pass did, how the detections differ, and whether the result
    was written, or why not.
    """
    from rich.text import Text

    rows = [("model", _file_text(report.model))]
    for step in report.steps:
        finding = step.finding
        if not step.changed:
            finding += " (nothing to do)"
        rows.append((step.name, f"{finding}; {step.nodes} nodes"))
    yield facts_table(rows)
    yield facts_table(_difference_facts(report.difference))
    if report.written:
        yield Text.assemble(("written: ", "green"), escape_unprintable(_file_text(report.output)))
        return
    text = Text.assemble(("not written: ", "red"), escape_unprintable(report.output.path))
    for failure in report.failures:
        text.append(f"\n  {escape_unprintable(failure)}")
    yield text


def _file_text(file: "File") -> str:
    """Describe a model file in a line: its path, its size on disk, its input size and batch.

    Example:
        "model.onnx, 9.4 MB, 640x640, batch 1 (0123456789ab)", with the start of its SHA-256
    """
    from rich.filesize import decimal

    size = "any size"
    if file.size:
        height, width = file.size
        size = f"{width}x{height}"
    batch = "any batch"
    if file.batch is not None:
        batch = f"batch {file.batch}"
    return f"{file.path}, {decimal(file.bytes)}, {size}, {batch} ({file.sha256[:12]})"


def _difference_facts(difference: "Difference") -> Iterator[tuple[str, str]]:
    """Yield labels and values about how the detections of the old and the new model differ.

    They say which image was compared, how many boxes the models have in common and how many not,
    and the largest difference of a pair in score and in corners, with the tolerance.
    """
    yield "compared on", difference.source
    boxes = f"{difference.old} boxes before, {difference.new} after"
    yield f"above {difference.conf:g}", f"{boxes}, {difference.pairs} pairs"

    disagreement = (
        f"{difference.missing} missing, {difference.extra} extra, "
        f"{difference.over} beyond the tolerance"
    )
    if difference.borderline:
        disagreement += f"; {difference.borderline} at the confidence threshold"
    yield "disagree", disagreement

    allowed_score = f"(allowed {difference.score_tolerance:g})"
    yield "score", f"differs by {difference.largest_score:.3g} {allowed_score}"
    allowed_corner = f"(allowed {difference.corner_tolerance:g})"
    yield "corners", f"differ by {short_number(difference.largest_corner)} pixels {allowed_corner}"

    if difference.batch is not None:
        yield "in a batch", f"the output differs by {difference.batch:.3g} of its largest value"
