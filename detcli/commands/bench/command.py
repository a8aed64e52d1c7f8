"""`detcli bench`: its options, and what each mode prints."""

import math
import warnings
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from detcli.commands.bench.request import BenchRequest, Mode
from detcli.commands.shared import options
from detcli.commands.shared.completion import complete_device, complete_model
from detcli.commands.shared.defaults_file import DEVICE_VARIABLE, MODEL_VARIABLE, DefaultsContext
from detcli.commands.shared.formats import require_disk
from detcli.commands.shared.layout import DEVICES, MODEL, OUTPUT
from detcli.commands.shared.messages import say, set_verbosity
from detcli.commands.shared.options import option
from detcli.commands.shared.reports import ReportFormat, write_report
from detcli.errors import CheckError, DetcliError, DetcliWarning, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rich.console import RenderableType

    from detcli.commands.bench.baseline import AnyReport, Limit, Measured
    from detcli.commands.bench.report import RunReport, SweepReport, TopKReport

SourcesOption = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SOURCE]...",
        help="Pictures, folders or videos; default: a built-in picture. After --sweep, more axes.",
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
    Mode | None,
    typer.Option(
        metavar="latency|throughput|topk",
        help="One batch after the other by stage, all stages in parallel, or top-k beside other "
        "libraries. Default: latency; with --sweep, throughput.",
    ),
]
SweepOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="AXIS=A,B...",
        help="Measure all combinations, as in --sweep batch=1,2,4,8 device=cpu,cuda; the axes are "
        "batch, device, workers, imgsz and model.",
    ),
]
SecondsOption = Annotated[
    float, typer.Option(metavar="S", help="How long to measure, after the warm-up.")
]
ColdStartsOption = Annotated[
    int, typer.Option(metavar="N", min=0, help="Time this many whole processes first.")
]
LengthsOption = Annotated[
    str, typer.Option("--n", metavar="LIST", help="Lengths of the rows, for --mode topk.")
]
WantedOption = Annotated[
    int, typer.Option("--k", metavar="N", min=1, help="How many values to find, for --mode topk.")
]
PlotOption = Annotated[
    Path | None, option("FILE", "Plot a sweep, or --mode topk, as PNG or SVG.", panel=OUTPUT)
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
    ctx: DefaultsContext,
    source: SourcesOption = None,
    *,
    model: BenchModelOption = None,
    device: BenchDeviceOption = "auto",
    mode: ModeOption = None,
    sweep: SweepOption = None,
    seconds: SecondsOption = 10,
    cold_starts: ColdStartsOption = 5,
    batch: options.BatchOption = None,
    workers: options.WorkersOption = None,
    n: LengthsOption = "8400,33600,1000000",
    k: WantedOption = 300,
    nms: options.NmsOption = None,
    imgsz: options.ImageSizeOption = None,
    box_format: options.BoxesOption = None,
    preprocess: options.PreprocessOption = None,
    boxes_only: options.BoxesOnlyOption = False,
    cuda_graph: options.CudaGraphOption = None,
    gpu_mem_limit: options.MemoryLimitOption = None,
    half: options.HalfOption = False,
    plot: PlotOption = None,
    save_baseline: SaveBaselineOption = None,
    baseline: BaselineOption = None,
    max_regress: MaxRegressOption = "5%",
    report_format: options.ReportFormatOption = None,
    quiet: options.QuietOption = False,
    verbose: options.VerboseOption = 0,
) -> None:
    """Measure latency by stage, throughput, or top-k beside other libraries.

    Without SOURCE it runs on a built-in picture. Warnings about a noisy machine go to stderr and
    into the report.
    """
    set_verbosity(quiet=quiet, verbose=verbose)
    require_disk({"--plot": plot, "--save-baseline": save_baseline})
    mode = mode or (Mode.THROUGHPUT if sweep else Mode.LATENCY)
    if mode is Mode.TOPK:
        typed = None if ctx.origin("model") else model
        for given, name in ((source, "SOURCE"), (sweep, "--sweep"), (typed, "--model")):
            if given:
                raise UsageError(
                    f"--mode topk takes no {name}", "it sorts random numbers: see --n, --k"
                )
    elif sweep and (baseline or save_baseline):
        raise UsageError("a sweep has no baseline", "measure one combination, without --sweep")
    elif plot and not sweep:
        raise UsageError("--plot draws several measurements", "use it with --sweep or --mode topk")
    if not 0 <= seconds < math.inf:
        raise UsageError(f"--seconds {seconds:g} is not a duration", "give a number such as 10")
    # What follows loads NumPy, OpenCV and ONNX Runtime, which --help does not need.
    from detcli.commands.bench.baseline import Limit, load_baseline
    from detcli.commands.bench.render import render_run, render_top_k
    from detcli.commands.bench.run import measure
    from detcli.commands.bench.topk import measure_top_k
    from detcli.commands.shared.setup import run_options, set_up_process
    from detcli.model.zoo import DEFAULT

    set_up_process()
    share = parse_percentage(max_regress)
    limit = Limit(load_baseline(baseline), share) if baseline else None
    inputs = (*(source or ()), *([] if model is None else [model]))
    outputs = _Outputs(report_format, plot, save_baseline, limit, inputs, quiet)
    plan = f"a warm-up, then {seconds:g} s of measuring"
    if mode is Mode.TOPK:
        measuring = partial(measure_top_k, _parse_lengths(n), k, device, seconds)
        _bench(measuring, render_top_k, outputs, plan)
        return
    from detcli.backend.device import available_cores

    run = run_options(
        model or DEFAULT,
        device,
        batch=batch,
        workers=workers or (1 if mode is Mode.LATENCY else available_cores()),
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
    if sweep:
        _bench_sweep(request, sweep, outputs)
        return
    if cold_starts:
        plan = f"{cold_starts} cold start{'s' if cold_starts > 1 else ''}, then {plan}"
    _bench(partial(measure, request), render_run, outputs, plan)


@dataclass(frozen=True, slots=True)
class _Outputs:
    """Where results go, and what they are compared with."""

    report_format: ReportFormat | None
    plot: Path | None
    save_baseline: Path | None
    limit: "Limit | None"
    inputs: tuple[str, ...]
    quiet: bool

    def check(self) -> None:
        """Check, before anything is measured, that the results can be written, over no input."""
        from detcli.commands.bench.plot import check_plot
        from detcli.files import open_output
        from detcli.source.sources import InputGuard

        if self.plot is not None:
            check_plot(self.plot)
        outputs = (self.plot, self.save_baseline)
        InputGuard(self.inputs).refuse(outputs)
        for path in filter(None, outputs):
            open_output(path).discard()

    def write(
        self,
        report: "RunReport | SweepReport | TopKReport",
        render: "Callable[..., Iterable[RenderableType]]",
    ) -> None:
        """Print a report and draw its plot."""
        from detcli.commands.bench.plot import write_plot
        from detcli.commands.bench.report import RunReport

        write_report(report, self.report_format, render)
        if self.plot is not None and not isinstance(report, RunReport):
            write_plot(report, self.plot)

    def tell(self, message: str) -> None:
        """Announce a step in one line; a progress bar would be measured too."""
        if not self.quiet:
            say(message)


def _bench(
    measure: "Callable[[Limit | None], Measured[AnyReport]]",
    render: "Callable[[AnyReport], Iterable[RenderableType]]",
    outputs: _Outputs,
    plan: str,
) -> None:
    """Measure and report; warn of noise, fail on a regression, else save the samples.

    Raises:
        CheckError: The measurement is slower than the baseline allows.
    """
    from detcli.commands.bench.baseline import Baseline, save_baseline
    from detcli.commands.bench.report import RegressionVerdict

    outputs.check()
    outputs.tell(plan)
    measured = measure(outputs.limit)
    report = measured.report
    outputs.write(report, render)
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


def _bench_sweep(request: BenchRequest, sweep: list[str], outputs: _Outputs) -> None:
    from detcli.commands.bench.cold_start import ERROR_TYPES
    from detcli.commands.bench.render import render_sweep
    from detcli.commands.bench.sweep import run_sweep, split_axes

    axes, sources = split_axes(sweep, request.sources)
    outputs.check()
    report = run_sweep(replace(request, sources=sources), axes, outputs.tell)
    outputs.write(report, render_sweep)
    failed = [point.failure for point in report.points if point.failure is not None]
    if failed:
        kind = ERROR_TYPES.get(failed[0].exit_code, DetcliError)
        raise kind(
            f"{len(failed)} of {len(report.points)} combinations failed: {failed[0].message}"
        )


def _parse_lengths(text: str) -> tuple[int, ...]:
    """Parse "8400,33600"."""
    entries = [entry.strip() for entry in text.split(",")]
    if not all(entry.isascii() and entry.isdecimal() for entry in entries):
        raise UsageError(f"--n '{text}' is not a list of lengths", "write --n 8400,33600")
    lengths = tuple(dict.fromkeys(map(int, entries)))
    if min(lengths) < 1:
        raise UsageError("--n takes lengths of 1 or more", "as in --n 8400,33600")
    return lengths


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
