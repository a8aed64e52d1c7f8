"""`detcli convert`: a model file made into another, and held against it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from detcli.commands.shared import options
from detcli.commands.shared.messages import set_verbosity
from detcli.errors import CheckError, UsageError

if TYPE_CHECKING:
    from detcli.commands.convert.options import Batch

OutputOption = Annotated[
    Path,
    typer.Option(
        *("--output", "-o"), metavar="OUT", help="ONNX file to write.", show_default=False
    ),
]
CutOption = Annotated[
    bool, typer.Option("--cut", help="Leave the network body alone: [B, 4+C, N].")
]
GuardOption = Annotated[
    bool,
    typer.Option(
        "--guard-transpose",
        help="Put a Concat behind a Transpose that feeds an output; some engines forget it there.",
    ),
]
HalfOption = Annotated[
    bool,
    typer.Option(
        "--half",
        help="Compute in float16; in float32 where that would overflow, and where boxes are made.",
    ),
]
KeepIoOption = Annotated[
    bool, typer.Option("--keep-io", help="With --half: inputs and outputs stay float32.")
]
Int8Option = Annotated[
    bool,
    typer.Option("--int8", help="Compute convolutions in 8 bits; needs --calibrate."),
]
CalibrateOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FOLDER",
        help="Pictures that show which values occur, for --int8 and --half; a folder, a file, a "
        "quoted glob pattern; may be repeated.",
        show_default=False,
    ),
]
BatchSizeOption = Annotated[
    str | None, typer.Option(metavar="N|dynamic", help="Take so many pictures at a time.")
]
ImageSizeOption = Annotated[
    int | None,
    typer.Option(metavar="N", help="Take pictures of NxN pixels."),
]
MetadataOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="Set an entry of the metadata, or remove it (KEY=); may be repeated.",
        show_default=False,
    ),
]
EndToEndOption = Annotated[
    bool,
    typer.Option(
        "--end-to-end",
        help="Append detcli's selection as nodes of the graph: [B, K, 6] for other runtimes.",
    ),
]
MaxDetOption = Annotated[
    int | None,
    typer.Option(
        "--max-det", metavar="K", help="With --end-to-end: rows of its output; default: 300."
    ),
]
ImageOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="Picture to compare old and new on; default: one that is built in."
    ),
]
ToleranceOption = Annotated[
    str | None,
    typer.Option(
        metavar="LIST",
        help="What may differ, as in score=0.02,corner=2,boxes=1%; corners in pixels, boxes a "
        "share of all; default: by what was converted.",
    ),
]
ForceOption = Annotated[bool, typer.Option("--force", help="Write over OUT if it is there.")]


def convert(  # noqa: PLR0913 - one parameter an option; they become objects at once
    model: options.ModelFileOption,
    *,
    output: OutputOption,
    cut: CutOption = False,
    guard_transpose: GuardOption = False,
    half: HalfOption = False,
    keep_io: KeepIoOption = False,
    int8: Int8Option = False,
    calibrate: CalibrateOption = None,
    recursive: options.RecursiveOption = False,
    batch: BatchSizeOption = None,
    imgsz: ImageSizeOption = None,
    names: options.NamesOption = None,
    metadata: MetadataOption = None,
    end_to_end: EndToEndOption = False,
    max_det: MaxDetOption = None,
    box_format: options.BoxesOption = None,
    image: ImageOption = None,
    tolerance: ToleranceOption = None,
    force: ForceOption = False,
    report_format: options.ReportFormatOption = None,
    quiet: options.QuietOption = False,
    verbose: options.VerboseOption = 0,
) -> None:
    """Make another model file of one: cut, float16, 8 bits, batch, size, names, selection.

    Old and new run on the same picture and the difference is reported. Above the tolerance
    nothing is written, and the exit code is 6.
    """
    set_verbosity(quiet=quiet, verbose=verbose)
    # What follows loads OpenCV, onnx and ONNX Runtime, which --help does not need.
    from detcli.commands.convert.calibration import built_in, loaded
    from detcli.commands.convert.convert import Task
    from detcli.commands.convert.convert import convert as run
    from detcli.commands.convert.options import ConversionOptions
    from detcli.commands.convert.render import render
    from detcli.commands.shared.comparison import parse_tolerance
    from detcli.commands.shared.progress import count_on_stderr, find_model
    from detcli.commands.shared.reports import write_report
    from detcli.opencv import silence_opencv
    from detcli.source.sources import SourceOptions, Sources

    silence_opencv()
    if int8 and not calibrate:
        raise UsageError(
            "--int8 has to know which values occur in the network",
            "name a folder of pictures like those to come, with --calibrate; a hundred will do",
        )
    if calibrate and not int8 and not half:
        raise UsageError("--calibrate belongs to --int8 and --half", "leave it out, or add one")
    task = Task(
        model=find_model(model).path,
        output=output,
        force=force,
        options=ConversionOptions(
            cut=cut,
            guard_transpose=guard_transpose,
            half=half,
            keep_io=keep_io,
            int8=int8,
            batch=_batch(batch),
            imgsz=imgsz,
            names=names,
            metadata=_entries(metadata or []),
            end_to_end=end_to_end,
            max_det=max_det,
            box_format=box_format,
        ),
        tolerance=parse_tolerance(tolerance),
    )
    source_options = SourceOptions(recursive=recursive)
    with (
        Sources([image] if image else []) as picture,
        Sources(calibrate or [], source_options) as sources,
        count_on_stderr(lambda: sources.total, wanted=bool(calibrate) and not quiet) as advance,
    ):
        found = run(
            task,
            next(iter(picture)) if image else built_in(),
            (lambda: loaded(sources, advance)) if calibrate else None,
        )
    write_report(found, report_format, render)
    if found.failures:
        raise CheckError(
            f"{output} was not written: {'; '.join(found.failures)}",
            "--image FILE compares on another picture; --tolerance says what may differ",
        )


def _batch(text: str | None) -> "Batch | None":
    """Read what --batch says.

    Raises:
        UsageError: It is neither a number nor "dynamic".
    """
    if text is None:
        return None
    if text == "dynamic":
        return "dynamic"
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"--batch '{text}' is no number", "write 1, 8 or dynamic") from None


def _entries(texts: list[str]) -> dict[str, str]:
    """Read the KEY=VALUE of --metadata.

    Raises:
        UsageError: One has no key, or no value.
    """
    entries = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise UsageError(f"--metadata '{text}' is no KEY=VALUE", "write author=me, say")
        entries[key] = value
    return entries
