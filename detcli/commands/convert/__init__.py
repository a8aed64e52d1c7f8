"""The command `detcli convert`."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from detcli.commands.shared import options
from detcli.commands.shared.layout import INPUT, OUTPUT
from detcli.commands.shared.messages import set_verbosity
from detcli.commands.shared.options import flag, option
from detcli.commands.shared.reports import facts
from detcli.errors import CheckError, UsageError
from detcli.text import printable

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from detcli.commands.convert.run import Conversion, Difference, File

CONTRACT = "contract"
"""The value of --metadata that asks for what a model's neighbours and the options say."""


def convert(  # noqa: PLR0913 - one parameter per option; they become objects at once
    model: options.ModelFileOption,
    *,
    output: Annotated[
        Path,
        option("OUT", "ONNX file to write.", "--output", "-o", show_default=False, panel=OUTPUT),
    ],
    cut: Annotated[
        bool, flag("Drop everything after the network body: [B, 4+C, N].", "--cut")
    ] = False,
    guard_transpose: Annotated[
        bool,
        flag(
            "Add a Concat after a Transpose that feeds an output; some engines drop it otherwise.",
            "--guard-transpose",
        ),
    ] = False,
    half: Annotated[
        bool,
        flag("Compute in float16, except box decoding and nodes that would overflow.", "--half"),
    ] = False,
    keep_io: Annotated[
        bool, flag("With --half: inputs and outputs stay float32.", "--keep-io")
    ] = False,
    int8: Annotated[
        bool, flag("Compute convolutions in 8 bits; needs --calibrate.", "--int8")
    ] = False,
    calibrate: Annotated[
        list[str] | None,
        option(
            "FOLDER",
            "Pictures to calibrate --int8 and --half on: a folder, a file or a quoted glob "
            "pattern; repeatable.",
            show_default=False,
            panel=INPUT,
        ),
    ] = None,
    recursive: options.RecursiveOption = False,
    batch: Annotated[str | None, option("N|dynamic", "Pictures in a batch.")] = None,
    imgsz: options.ImageSizeOption = None,
    names: options.NamesOption = None,
    metadata: Annotated[
        list[str] | None,
        option(
            "KEY=VALUE",
            "Set an entry of the metadata, or remove it with KEY=; repeatable. 'contract' writes "
            "what files beside the model and options say about it, as any conversion does.",
            show_default=False,
        ),
    ] = None,
    end_to_end: Annotated[
        bool,
        flag(
            "Append detcli's selection to the graph, for other runtimes: [B, K, 6].", "--end-to-end"
        ),
    ] = False,
    max_det: Annotated[
        int | None, option("K", "With --end-to-end: rows of the output; default: 300.", "--max-det")
    ] = None,
    box_format: options.BoxesOption = None,
    preprocess: options.PreprocessOption = None,
    image: Annotated[
        str | None,
        option("FILE", "Picture to compare both models on; default: a built-in one.", panel=INPUT),
    ] = None,
    tolerance: Annotated[
        str | None,
        option(
            "LIST",
            "Allowed differences, as in score=0.02,corner=2,boxes=1%; corner is in pixels, boxes "
            "a share of all. Default: depends on the conversion.",
        ),
    ] = None,
    force: Annotated[bool, flag("Overwrite OUT.", "--force", panel=OUTPUT)] = False,
    report_format: options.ReportFormatOption = None,
    quiet: options.QuietOption = False,
    verbose: options.VerboseOption = 0,
) -> None:
    """Convert a model file: cut, float16, 8 bits, batch, size, names, selection.

    Both models run on a picture. If their detections differ by more than the tolerance, nothing
    is written and the exit code is 6.
    """
    set_verbosity(quiet=quiet, verbose=verbose)
    # What follows loads OpenCV, onnx and ONNX Runtime, which --help does not need.
    from detcli.commands.convert.run import built_in, load_pictures
    from detcli.commands.convert.run import convert as run
    from detcli.commands.convert.steps import ConversionOptions
    from detcli.commands.shared.comparison import parse_tolerance
    from detcli.commands.shared.formats import require_disk
    from detcli.commands.shared.progress import progress
    from detcli.commands.shared.reports import write_report
    from detcli.commands.shared.setup import find_model
    from detcli.opencv import silence_opencv
    from detcli.source.loading import SourceOptions
    from detcli.source.sources import InputGuard, Sources

    silence_opencv()
    require_disk({"--output": output})
    calibrate, pictured = calibrate or [], [image] if image else []
    for wrong, problem, hint in (
        (recursive and not calibrate, "--recursive needs --calibrate", "name a folder of pictures"),
        (
            int8 and not calibrate,
            "--int8 needs pictures to calibrate on",
            "name a folder of about a hundred typical pictures with --calibrate",
        ),
        (
            calibrate and not int8 and not half,
            "--calibrate needs --int8 or --half",
            "leave it out, or add one",
        ),
    ):
        if wrong:
            raise UsageError(problem, hint)
    InputGuard([*pictured, *calibrate], SourceOptions(recursive=recursive)).refuse([output])
    located = find_model(model)
    conversion = ConversionOptions(
        cut=cut,
        guard_transpose=guard_transpose,
        half=half,
        keep_io=keep_io,
        int8=int8,
        batch=_batch(batch),
        imgsz=imgsz,
        names=names,
        metadata=_entries(metadata or []),
        contract=CONTRACT in (metadata or []),
        end_to_end=end_to_end,
        max_det=max_det,
        box_format=box_format,
        preprocess=preprocess,
        tolerance=parse_tolerance(tolerance),
        force=force,
    )
    with (
        Sources(pictured) as picture,
        Sources(calibrate, SourceOptions(recursive=recursive)) as sources,
        progress(lambda: sources.progress.total, wanted=bool(calibrate) and not quiet) as advance,
    ):
        compared_on = next(iter(picture)) if image else built_in()
        calibration = (lambda: load_pictures(sources, advance)) if calibrate else None
        found = run(located, output, conversion, compared_on, calibration)
    write_report(found, report_format, render)
    if found.failures:
        raise CheckError(
            f"{output} was not written: {'; '.join(found.failures)}",
            "--image FILE compares on another picture; --tolerance sets what is allowed",
        )


def _batch(text: str | None) -> int | Literal["dynamic"] | None:
    if text == "dynamic":
        return "dynamic"
    try:
        return None if text is None else int(text)
    except ValueError:
        raise UsageError(
            f"--batch '{text}' must be a number or dynamic", "give 1, 8 or dynamic"
        ) from None


def _entries(texts: Sequence[str]) -> dict[str, str]:
    """Parse the KEY=VALUE texts of --metadata."""
    entries = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if text == CONTRACT:
            continue
        if not key or not equals:
            raise UsageError(
                f"--metadata '{text}' is not KEY=VALUE",
                "give KEY=VALUE, as in author=me; or contract",
            )
        entries[key] = value
    return entries


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
