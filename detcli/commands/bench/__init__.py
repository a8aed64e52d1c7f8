"""`detcli bench`: how long each stage takes, how many pictures a second, and whether it got slower.

run.py        one measurement: latency, throughput, cold starts; the pictures, over and over
sampling.py   the clock, warm-up, confidence intervals
machine.py    hardware, versions, what disturbed a measurement
report.py     the results, as JSON and as tables; an earlier run beside them
"""

import math
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from detcli.commands.shared import options
from detcli.commands.shared.completion import complete_device, complete_model
from detcli.commands.shared.defaults_file import DEVICE_VARIABLE, MODEL_VARIABLE
from detcli.commands.shared.formats import require_disk
from detcli.commands.shared.layout import DEVICES, MODEL, OUTPUT
from detcli.commands.shared.messages import say, set_verbosity
from detcli.commands.shared.options import option
from detcli.commands.shared.reports import write_report
from detcli.errors import CheckError, DetcliWarning, UsageError

if TYPE_CHECKING:
    from detcli.commands.bench.report import BaselineComparison

SourcesOption = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SOURCE]...",
        help="Pictures, folders or videos; default: a built-in picture.",
        show_default=False,
    ),
]
BenchModelOption = Annotated[
    str | None,
    typer.Option(
        *("--model", "-m"),
        metavar="FILE|NAME",
        help="ONNX file, or a name from `detcli models list`; default: yolov10n.",
        show_default=False,
        rich_help_panel=MODEL,
        envvar=MODEL_VARIABLE,
        autocompletion=complete_model,
    ),
]
BenchDeviceOption = Annotated[
    str,
    option(
        "DEVICE",
        "Where to run: auto, cpu, cuda, cuda:N, tensorrt or tensorrt:N.",
        panel=DEVICES,
        envvar=DEVICE_VARIABLE,
        autocompletion=complete_device,
    ),
]
ModeOption = Annotated[
    Literal["latency", "throughput"],
    typer.Option(
        metavar="latency|throughput",
        help="One batch after the other by stage, or all stages in parallel.",
    ),
]
SecondsOption = Annotated[
    float, typer.Option(metavar="S", help="How long to measure, after the warm-up.")
]
ColdStartsOption = Annotated[
    int, typer.Option(metavar="N", min=0, help="Time this many whole processes first.")
]
SaveBaselineOption = Annotated[
    Path | None, option("FILE", "Save the samples for a later --baseline.", panel=OUTPUT)
]
BaselineOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Compare with this; exit with 6 if certainly slower."),
]
MaxRegressOption = Annotated[
    str, typer.Option(metavar="PERCENT", help="How much slower than the baseline is allowed.")
]


def bench(  # noqa: PLR0913 - one parameter an option; they become objects at once
    source: SourcesOption = None,
    *,
    model: BenchModelOption = None,
    device: BenchDeviceOption = "auto",
    mode: ModeOption = "latency",
    seconds: SecondsOption = 10,
    cold_starts: ColdStartsOption = 5,
    batch: options.BatchOption = None,
    workers: options.WorkersOption = None,
    nms: options.NmsOption = None,
    imgsz: options.ImageSizeOption = None,
    box_format: options.BoxesOption = None,
    preprocess: options.PreprocessOption = None,
    boxes_only: options.BoxesOnlyOption = False,
    cuda_graph: options.CudaGraphOption = None,
    gpu_mem_limit: options.MemoryLimitOption = None,
    half: options.HalfOption = False,
    save_baseline: SaveBaselineOption = None,
    baseline: BaselineOption = None,
    max_regress: MaxRegressOption = "5%",
    report_format: options.ReportFormatOption = None,
    quiet: options.QuietOption = False,
    verbose: options.VerboseOption = 0,
) -> None:
    """Measure latency by stage, or throughput.

    Without SOURCE it runs on a built-in picture. Warnings about a noisy machine go to stderr and
    into the report.
    """
    set_verbosity(quiet=quiet, verbose=verbose)
    require_disk({"--save-baseline": save_baseline})
    if not 0 <= seconds < math.inf:
        raise UsageError(f"--seconds {seconds:g} is not a duration", "give a number such as 10")
    # What follows loads NumPy, OpenCV and ONNX Runtime, which --help does not need.
    from detcli.backend.device import available_cores
    from detcli.commands.bench.report import Baseline, render_run
    from detcli.commands.bench.run import BenchRequest, measure
    from detcli.commands.shared.setup import run_options, set_up_process
    from detcli.files import open_output
    from detcli.model.zoo import DEFAULT
    from detcli.source.sources import InputGuard

    set_up_process()
    share = parse_percentage(max_regress)
    earlier = Baseline.load(baseline) if baseline else None
    run = run_options(
        model or DEFAULT,
        device,
        batch=batch,
        workers=workers or (1 if mode == "latency" else available_cores()),
        cuda_graph=cuda_graph,
        gpu_mem_limit=gpu_mem_limit,
        half=half,
        nms=nms,
        imgsz=imgsz,
        box_format=box_format,
        preprocess=preprocess,
        boxes_only=boxes_only,
    )
    sources = tuple(source or ())
    request = BenchRequest(run, mode, sources, seconds, cold_starts)
    InputGuard(sources if model is None else (*sources, model)).refuse((save_baseline,))
    if save_baseline is not None:
        open_output(save_baseline).discard()  # an error now, not after the measurement
    if not quiet:  # one line: a progress bar would be measured too
        before = f"{cold_starts} cold start{'s' * (cold_starts > 1)}, then " if cold_starts else ""
        say(f"{before}a warm-up, then {seconds:g} s of measuring")
    report, own = measure(request, earlier, share)
    write_report(report, report_format, render_run)
    for doubt in report.noise.warnings:
        warnings.warn(f"these figures may be off: {doubt}", DetcliWarning, stacklevel=1)
    if report.comparison is not None:
        _require_no_regression(report.comparison)
    if save_baseline is not None:
        own.save(save_baseline)


def _require_no_regression(found: "BaselineComparison") -> None:
    from detcli.commands.bench.report import RegressionVerdict

    slower = f"slower than {found.file} by more than {found.max_regress:.0%}"
    if found.verdict is RegressionVerdict.UNDECIDED:
        how = "measure longer, with --seconds, on an idle machine"
        warnings.warn(f"cannot tell whether this is {slower}: {how}", DetcliWarning, 1)
    if found.verdict is RegressionVerdict.REGRESSION:
        names = [one.name for one in found.changes if one.verdict is found.verdict]
        raise CheckError(
            f"{slower}: {', '.join(names)}",
            "see the comparison in the report; measure again if the machine was busy",
        )


def parse_percentage(text: str) -> float:
    """Parse "5%" as 0.05; a bare number would be ambiguous."""
    number, sign, rest = text.strip().partition("%")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not sign or rest or not 0 <= value < math.inf:
        raise UsageError(f"--max-regress '{text}' is not a percentage", "write 5%")
    return value / 100
