"""The command `detcli convert`."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from detcli.cli.messages import fetching, progress, set_verbosity
from detcli.cli.options import MODEL_ARGUMENT, adapted, command
from detcli.cli.report import REPORT_FORMAT, ReportFormat, facts, write_report
from detcli.core import frozen
from detcli.core.config import INPUT, OUTPUT, Config, Messages
from detcli.core.errors import CheckError, UsageError
from detcli.core.options import REQUIRED, option
from detcli.core.text import printable
from detcli.core.values import parse_tolerance, parse_writable

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from detcli.commands.convert.run import Conversion, Difference, File


MAX_SIDE = 16384
"""Largest input side, in pixels: its anchor grid alone has 5 million cells."""

MAX_ROWS = 300
TWICE = "convert twice, into two files"


def _batch(text: str) -> int | Literal["dynamic"]:
    if text == "dynamic":
        return "dynamic"
    try:
        return int(text)
    except ValueError:
        why = f"'{text}' must be a number or dynamic"
        raise ValueError(why, "give 1, 8 or dynamic") from None


def _entry(text: str) -> tuple[str, str]:
    """An entry of the metadata; an empty one stands for what is always written."""
    key, equals, value = text.partition("=")
    if text == "contract":
        return "", ""
    if not key or not equals:
        raise UsageError(
            f"--metadata '{text}' is not KEY=VALUE", "give KEY=VALUE, as in author=me; or contract"
        )
    return key, value


@frozen
class ConversionOptions:
    """What to convert: the model and how it is read, in a Config, and what convert has besides."""

    config: Config
    output: Path = option(
        REQUIRED,
        "-o, --output OUT",
        "ONNX file to write.",
        panel=OUTPUT,
        parse=parse_writable,
    )
    cut: bool = option(
        False,
        "--cut",
        "Drop everything after the network body: [B, 4+C, N].",
        excludes={"end_to_end": ("--cut and --end-to-end are mutually exclusive", TWICE)},
    )
    guard_transpose: bool = option(
        False,
        "--guard-transpose",
        "Add a Concat after a Transpose that feeds an output; some engines drop it otherwise.",
    )
    half: bool = option(
        False,
        "--half",
        "Compute in float16, except box decoding and nodes that would overflow.",
        excludes={"int8": ("--half and --int8 are mutually exclusive", TWICE)},
    )
    keep_io: bool = option(
        False,
        "--keep-io",
        "With --half: inputs and outputs stay float32.",
        needs={"half": "leave it out, or add --half"},
    )
    int8: bool = option(False, "--int8", "Compute convolutions in 8 bits; needs --calibrate.")
    calibrate: tuple[str, ...] = option(
        (),
        "--calibrate FOLDER",
        "Pictures to calibrate --int8 and --half on: a folder, a file or a quoted glob pattern; "
        "repeatable.",
        panel=INPUT,
    )
    batch: int | Literal["dynamic"] | None = option(
        None, "--batch N|dynamic", "Pictures in a batch.", parse=_batch
    )
    metadata: tuple[tuple[str, str], ...] = option(
        (),
        "--metadata KEY=VALUE",
        "Set an entry of the metadata, or remove it with KEY=; repeatable. 'contract' writes what "
        "files beside the model and options say about it, as any conversion does.",
        parse=_entry,
    )
    end_to_end: bool = option(
        False,
        "--end-to-end",
        "Append detcli's selection to the graph, for other runtimes: [B, K, 6].",
    )
    max_det: int | None = option(
        None,
        "--max-det K",
        f"With --end-to-end: rows of the output; default: {MAX_ROWS}.",
        needs={"end_to_end": "leave it out, or add --end-to-end"},
    )
    image: str | None = option(
        None,
        "--image FILE",
        "Picture to compare both models on; default: a built-in one.",
        panel=INPUT,
    )
    tolerance: dict[str, float] | None = option(
        None,
        "--tolerance LIST",
        "Allowed differences, as in score=0.02,corner=2,boxes=1%; corner is in pixels, boxes a "
        "share of all. Default: depends on the conversion.",
        parse=parse_tolerance,
    )
    force: bool = option(False, "--force", "Overwrite OUT.", panel=OUTPUT)

    def __post_init__(self) -> None:
        settings = self.config.settings
        if settings.imgsz is not None and settings.imgsz > MAX_SIDE:
            raise UsageError(f"--imgsz is {settings.imgsz}", f"give 1 to {MAX_SIDE} pixels")
        if isinstance(self.batch, int) and self.batch < 1:
            raise UsageError(f"--batch is {self.batch}", "give 1 or more")
        if self.rows < 1:
            raise UsageError(f"--max-det is {self.max_det}", "give 1 or more")
        switches = (self.cut, self.guard_transpose, self.half, self.int8, self.end_to_end)
        if not any((*switches, self.batch, settings.imgsz, settings.names, self.metadata)):
            raise UsageError(
                "there is nothing to do",
                "give at least one of --cut, --guard-transpose, --half, --int8, "
                "--batch, --imgsz, --names, --metadata, --end-to-end",
            )

    @property
    def entries(self) -> dict[str, str]:
        """The metadata to set; an empty value removes an entry."""
        return {key: value for key, value in self.metadata if key}

    @property
    def rows(self) -> int:
        """Number of rows that the selection keeps."""
        return MAX_ROWS if self.max_det is None else self.max_det


@command(
    MODEL_ARGUMENT,
    adapted("recursive", needs={"calibrate": "name a folder of pictures"}),
    *("imgsz", "names", "box_format", "preprocess"),
    Messages,
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
    quiet = config.messages.quiet
    set_verbosity(quiet=quiet, verbose=config.messages.verbose)
    # What follows loads OpenCV, onnx and ONNX Runtime, which --help does not need.
    from detcli.commands.convert.run import built_in, load_pictures
    from detcli.commands.convert.run import convert as run
    from detcli.core.opencv import silence_opencv
    from detcli.run import locate
    from detcli.source.sources import InputGuard, Sources

    silence_opencv()
    calibrate, output = conversion.calibrate, conversion.output
    if conversion.int8 and not calibrate:
        raise UsageError(
            "--int8 needs pictures to calibrate on",
            "name a folder of about a hundred typical pictures with --calibrate",
        )
    if calibrate and not conversion.int8 and not conversion.half:
        raise UsageError("--calibrate needs --int8 or --half", "leave it out, or add one")
    pictured = [conversion.image] if conversion.image else []
    InputGuard([*pictured, *calibrate], config.inputs).refuse([output])
    with fetching() as show:
        located = locate(config, show)
    with (
        Sources(pictured) as picture,
        Sources(calibrate, config.inputs) as sources,
        progress(lambda: sources.progress.total, wanted=bool(calibrate) and not quiet) as advance,
    ):
        compared_on = next(iter(picture)) if pictured else built_in()
        calibration = (lambda: load_pictures(sources, advance)) if calibrate else None
        found = run(located, conversion, compared_on, calibration)
    write_report(found, report_format, render)
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
    yield facts(rows)
    yield facts(_differences(report.difference))
    if report.written:
        yield Text.assemble(("written: ", "green"), printable(_file(report.output)))
    else:
        reasons = "".join(f"\n  {printable(failure)}" for failure in report.failures)
        yield Text.assemble(("not written: ", "red"), printable(report.output.path), reasons)


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
