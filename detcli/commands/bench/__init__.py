"""`detcli bench`: how long each stage takes, how many pictures a second, and whether it got slower.

run.py        one measurement: latency, throughput, cold starts; the pictures, over and over
sampling.py   the clock, warm-up, confidence intervals
machine.py    hardware, versions, what disturbed a measurement
report.py     the results, as JSON and as tables; an earlier run beside them
"""

import math
import warnings
from dataclasses import dataclass
from functools import partial
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
from detcli.commands.shared.reports import ReportFormat, write_report
from detcli.errors import CheckError, DetcliWarning, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from detcli.commands.bench.report import Limit, Measured


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
    from detcli.commands.bench.report import Limit, load_baseline
    from detcli.commands.bench.run import BenchRequest, measure
    from detcli.commands.shared.setup import run_options, set_up_process
    from detcli.model.zoo import DEFAULT

    set_up_process()
    share = parse_percentage(max_regress)
    limit = Limit(load_baseline(baseline), share) if baseline else None
    inputs = (*(source or ()), *([] if model is None else [model]))
    outputs = _Outputs(report_format, save_baseline, limit, inputs, quiet)
    plan = f"a warm-up, then {seconds:g} s of measuring"
    from detcli.backend.device import available_cores

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
    request = BenchRequest(run, mode, tuple(source or ()), seconds, cold_starts)
    if cold_starts:
        plan = f"{cold_starts} cold start{'s' if cold_starts > 1 else ''}, then {plan}"
    _bench(partial(measure, request), outputs, plan)


@dataclass(frozen=True, slots=True)
class _Outputs:
    """Where results go, and what they are compared with."""

    report_format: ReportFormat | None
    save_baseline: Path | None
    limit: "Limit | None"
    inputs: tuple[str, ...]
    quiet: bool

    def check(self) -> None:
        """Check, before anything is measured, that the results can be written, over no input."""
        from detcli.files import open_output
        from detcli.source.sources import InputGuard

        InputGuard(self.inputs).refuse((self.save_baseline,))
        if self.save_baseline is not None:
            open_output(self.save_baseline).discard()

    def tell(self, message: str) -> None:
        """Announce a step in one line; a progress bar would be measured too."""
        if not self.quiet:
            say(message)


def _bench(measure: "Callable[[Limit | None], Measured]", outputs: _Outputs, plan: str) -> None:
    """Measure and report; warn of noise, fail on a regression, else save the samples.

    Raises:
        CheckError: The measurement is slower than the baseline allows.
    """
    from detcli.commands.bench.report import Baseline, RegressionVerdict, render_run, save_baseline

    outputs.check()
    outputs.tell(plan)
    measured = measure(outputs.limit)
    report = measured.report
    write_report(report, outputs.report_format, render_run)
    noise, found = report.noise, report.comparison
    for doubt in noise.warnings:
        warnings.warn(f"these figures may be off: {doubt}", DetcliWarning, stacklevel=1)
    if found is not None:
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
    if outputs.save_baseline is not None:
        own = measured.identity, report.software, measured.samples
        save_baseline(Baseline(str(outputs.save_baseline), *own, noise.warnings, noise.taken))


def parse_percentage(text: str) -> float:
    """Parse "5%" as 0.05.

    Raises:
        UsageError: The text is not a percentage; a bare number would be ambiguous.
    """
    number, sign, rest = text.strip().partition("%")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not sign or rest or not 0 <= value < math.inf:
        raise UsageError(f"--max-regress '{text}' is not a percentage", "write 5%")
    return value / 100
