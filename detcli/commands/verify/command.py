"""`detcli verify`: whether two models, devices or selections give the same detections."""

from pathlib import Path
from typing import Annotated

import typer

from detcli.commands.shared import options
from detcli.commands.shared.completion import complete_device, complete_model
from detcli.commands.shared.defaults import DEVICE_VARIABLE
from detcli.commands.shared.layout import DEVICES, GOES, KEEP, LOOK_AT
from detcli.commands.shared.messages import report, set_verbosity
from detcli.commands.shared.options import flag, option
from detcli.errors import CheckError, DetcliError, InputError, SourceError, UsageError


def verify(  # noqa: PLR0913 - one parameter per option; they become objects at once
    model: options.ModelFileOption,
    other: Annotated[
        str | None,
        typer.Argument(
            metavar="OTHER",
            help="ONNX file to compare with; default: MODEL.",
            show_default=False,
            autocompletion=complete_model,
        ),
    ] = None,
    *,
    images: Annotated[
        list[str] | None,
        option(
            "FOLDER",
            "Pictures to compare on: a folder, a file or a quoted glob pattern; repeatable.",
            show_default=False,
            panel=LOOK_AT,
        ),
    ] = None,
    random: Annotated[
        int | None,
        option(
            "SEED",
            "Use a random picture instead; only for --tensors and --bisect.",
            "--random",
            min=0,
            panel=LOOK_AT,
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
        float, option("SCORE", "Compare detections with scores above this.", panel=KEEP)
    ] = 0.25,
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
    save: Annotated[
        Path | None,
        option(
            "DIR",
            "Draw the worst pictures, with both sides, into this folder.",
            "--save",
            panel=GOES,
        ),
    ] = None,
    report_page: Annotated[
        Path | None,
        option(
            "DIR",
            "Write a page of what is missing, extra or moved to this folder: open its index.html.",
            "--report",
            panel=GOES,
        ),
    ] = None,
    report_format: options.ReportFormatOption = None,
    quiet: options.QuietOption = False,
    verbose: options.VerboseOption = 0,
) -> None:
    """Compare the detections of two models, two devices, or two selections.

    MODEL with detcli's selection is compared with OTHER, with itself on another device, or with
    the selection that is part of an end-to-end graph.

    The exit code is 6 if they differ by more than the tolerance.
    """
    set_verbosity(quiet=quiet, verbose=verbose)
    if (images is None) == (random is None):
        raise UsageError(
            "no pictures to compare on"
            if images is None
            else "--images and --random are mutually exclusive",
            "name a folder of real pictures with --images",
        )
    if report_page is not None and random is not None:
        raise UsageError(
            "--report shows detections, and random pictures have none",
            "name a folder with --images",
        )
    # What follows loads OpenCV, onnx and ONNX Runtime, which --help does not need.
    from detcli.commands.shared.comparison import parse_tolerance
    from detcli.commands.shared.progress import progress
    from detcli.commands.shared.reports import write_report
    from detcli.commands.shared.setup import find_model
    from detcli.commands.verify.page import open_page
    from detcli.commands.verify.pictures import random_item
    from detcli.commands.verify.plan import VerifyRequest, make_plan
    from detcli.commands.verify.render import render
    from detcli.commands.verify.report import SelectedBy
    from detcli.commands.verify.run import verify as run
    from detcli.opencv import silence_opencv
    from detcli.settings import Settings
    from detcli.sink.folder import OutputFolder
    from detcli.source.item import SourceOptions
    from detcli.source.sources import InputGuard, Sources

    silence_opencv()
    plan = make_plan(
        VerifyRequest(
            model=find_model(model),
            other=None if other is None else find_model(other),
            device=device,
            against=against,
            settings=Settings(
                conf=conf, nms=nms, imgsz=imgsz, box_format=box_format, preprocess=preprocess
            ),
            least_iou=least_iou,
            tolerance=parse_tolerance(tolerance),
            half=half,
            tensors=tensors,
            bisect=bisect,
            random=random is not None,
        )
    )
    source_options = SourceOptions(
        recursive=recursive, written=tuple(filter(None, (save, report_page)))
    )
    read = [*(images or []), model, *([other] if other else [])]
    guard = InputGuard(read, source_options)
    folder = OutputFolder(save, guard) if save else None
    with (
        open_page(report_page, plan, guard) as page,
        Sources(images or [], source_options) as sources,
        progress(lambda: sources.progress.total, wanted=not quiet) as advance,
    ):
        items = sources if random is None else [random_item(random, plan.input_size)]
        found = run(plan, items, folder, page, advance)
    write_report(found, report_format, render)
    if not quiet:
        for failed in found.failed:
            report(DetcliError(failed.error), failed.source)
    if found.failures:
        first, *others = found.failures
        more = f" (and {len(others)} more, see the report)" if others else ""
        one_network = other is None and found.right.selection is SelectedBy.GRAPH
        hint = _next_step(
            looked_inside=bisect or one_network, saved=save is not None or random is not None
        )
        raise CheckError(f"the two sides do not agree: {first}{more}", hint)
    if not found.compared:
        raise SourceError("no picture could be compared", "the errors above say why")
    if not found.agree:
        raise CheckError(
            f"neither side found anything above {conf:g}, so nothing was compared",
            "use pictures with objects the model knows, lower --conf, or compare --tensors",
        )
    if found.failed:
        raise typer.Exit(InputError.exit_code)


def _next_step(*, looked_inside: bool, saved: bool) -> str:
    """The hint for a disagreement."""
    steps = []
    if not saved:
        steps.append("--save DIR draws the worst pictures")
    if not looked_inside:
        steps.append("--bisect names the first node that differs")
    steps.append("--tolerance sets what is allowed")
    return "; ".join(steps)
