"""`detcli bench`: its options, and what each mode prints."""

import math
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from detcli.commands.bench.request import BenchRequest, Mode, TopKRequest
from detcli.commands.shared import options
from detcli.commands.shared.messages import say, set_verbosity
from detcli.commands.shared.reports import ReportFormat, write_report
from detcli.errors import CheckError, DetcliError, DetcliWarning, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rich.console import RenderableType

    from detcli.commands.bench.baseline import AnyReport, Limit, Measured
    from detcli.commands.bench.report import SweepReport, TopKReport

SourcesOption = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SOURCE]...",
        help="Pictures, folders or videos; default: a built-in picture. After --sweep, more axes.",
        show_default=False,
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        *("--model", "-m"),
        metavar="FILE|NAME",
        help="ONNX file, or a name that `detcli models list` shows; default: yolov10n.",
        show_default=False,
    ),
]
DeviceOption = Annotated[
    str,
    typer.Option(
        metavar="DEVICE", help="Where to run: auto, cpu, cuda, cuda:N, tensorrt or tensorrt:N."
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
    Path | None, typer.Option(metavar="FILE", help="Plot a sweep, or --mode topk, as PNG or SVG.")
]
SaveBaselineOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Save the samples for a later --baseline.")
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
    model: ModelOption = None,
    device: DeviceOption = "auto",
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
    # What follows loads NumPy, OpenCV and ONNX Runtime, which --help does not need.
    from detcli.commands.shared.setup import run_options, set_up_process
    from detcli.model.zoo import DEFAULT

    outputs = _Outputs(report_format, plot, save_baseline, baseline, max_regress)
    mode = mode or (Mode.THROUGHPUT if sweep else Mode.LATENCY)
    set_up_process()
    if mode is Mode.TOPK:
        for given, name in ((source, "SOURCE"), (sweep, "--sweep"), (model, "--model")):
            if given:
                raise UsageError(
                    f"--mode topk takes no {name}", "it sorts random numbers: see --n, --k"
                )
        _announce(seconds, 0, quiet=quiet)
        _bench_top_k(TopKRequest(_parse_lengths(n), k, device, seconds), outputs)
        return
    run = run_options(
        model or DEFAULT,
        device,
        batch=batch,
        cuda_graph=cuda_graph,
        gpu_mem_limit=gpu_mem_limit,
        half=half,
        nms=nms,
        imgsz=imgsz,
        box_format=box_format,
    )
    request = BenchRequest(
        model=run.model,
        mode=mode,
        device=device,
        sources=tuple(source or ()),
        batch=batch,
        workers=workers,
        settings=run.settings,
        options=run.device_options,
        seconds=seconds,
        cold_starts=cold_starts,
    )
    if sweep:
        _bench_sweep(request, sweep, outputs, quiet=quiet)
    else:
        _announce(seconds, cold_starts, quiet=quiet)
        _bench_run(request, outputs)


def _announce(seconds: float, cold_starts: int, *, quiet: bool) -> None:
    """Announce the steps in one line; a progress bar would be measured too."""
    if not quiet:
        plural = "" if cold_starts == 1 else "s"
        cold = f"{cold_starts} cold start{plural}, then " if cold_starts else ""
        say(f"{cold}a warm-up, then {seconds:g} s of measuring")


@dataclass(frozen=True, slots=True)
class _Outputs:
    """Where results go, and what they are compared with."""

    report_format: ReportFormat | None
    plot: Path | None
    save_baseline: Path | None
    baseline: Path | None
    max_regress: str

    def limit(self) -> "Limit | None":
        from detcli.commands.bench.baseline import Limit, load_baseline

        share = parse_percentage(self.max_regress)
        return None if self.baseline is None else Limit(load_baseline(self.baseline), share)

    def check(self) -> None:
        """Check, before anything is measured, that the results can be written."""
        from detcli.files import AtomicFile

        if self.plot is not None:
            from detcli.commands.bench.plot import check_plot

            check_plot(self.plot)
        for path in (self.plot, self.save_baseline):
            if path is not None:
                AtomicFile(path, binary=True).discard()

    def write(
        self,
        report: "SweepReport | TopKReport",
        render: "Callable[..., Iterable[RenderableType]]",
    ) -> None:
        """Print a report and draw its plot."""
        write_report(report, self.report_format, render)
        if self.plot is not None:
            from detcli.commands.bench.plot import write_plot

            write_plot(report, self.plot)

    def conclude(self, measured: "Measured[AnyReport]") -> None:
        """Warn of noise; fail on a regression, else save the samples.

        Raises:
            CheckError: The measurement is slower than the baseline allows.
        """
        from detcli.commands.bench.baseline import Baseline, save_baseline
        from detcli.commands.bench.report import RegressionVerdict

        report = measured.report
        noise, found = report.noise, report.comparison
        doubts = [f"these figures may be off: {doubt}" for doubt in noise.warnings]
        if found is not None and found.verdict is RegressionVerdict.UNDECIDED:
            doubts.append(
                f"cannot tell whether this is slower than {found.file} by more than "
                f"{found.max_regress:.0%}: measure longer, with --seconds, on an idle machine"
            )
        for doubt in doubts:
            warnings.warn(doubt, DetcliWarning, stacklevel=1)
        if found is not None and found.verdict is RegressionVerdict.REGRESSION:
            slower = [one.name for one in found.changes if one.verdict is found.verdict]
            raise CheckError(
                f"slower than {found.file} by more than {found.max_regress:.0%}: "
                f"{', '.join(slower)}",
                "see the comparison in the report; measure again if the machine was busy",
            )
        if self.save_baseline is not None:
            file = str(self.save_baseline)
            own = measured.identity, report.software, measured.samples
            save_baseline(Baseline(file, *own, noise.warnings, noise.taken))


def _bench_run(request: BenchRequest, outputs: _Outputs) -> None:
    from detcli.commands.bench.render import render_run
    from detcli.commands.bench.run import measure

    if outputs.plot is not None:
        raise UsageError("--plot draws several measurements", "use it with --sweep or --mode topk")
    outputs.check()
    measured = measure(request, outputs.limit())
    write_report(measured.report, outputs.report_format, render_run)
    outputs.conclude(measured)


def _bench_top_k(request: TopKRequest, outputs: _Outputs) -> None:
    from detcli.commands.bench.render import render_top_k
    from detcli.commands.bench.topk import measure_top_k

    outputs.check()
    measured = measure_top_k(request, outputs.limit())
    outputs.write(measured.report, render_top_k)
    outputs.conclude(measured)


def _bench_sweep(
    request: BenchRequest, sweep: list[str], outputs: _Outputs, *, quiet: bool
) -> None:
    from detcli.commands.bench.cold_start import ERROR_TYPES
    from detcli.commands.bench.render import render_sweep
    from detcli.commands.bench.sweep import run_sweep, split_axes

    if outputs.baseline is not None or outputs.save_baseline is not None:
        raise UsageError("a sweep has no baseline", "measure one combination, without --sweep")
    axes, sources = split_axes(sweep, request.sources)
    outputs.check()
    report = run_sweep(replace(request, sources=sources), axes, (lambda _: None) if quiet else say)
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
    return tuple(dict.fromkeys(map(int, entries)))


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
