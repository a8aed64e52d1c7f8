"""`detcli bench`: how fast everything is."""

import math
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from detcli.commands.bench import options as own
from detcli.commands.bench.modes import Mode, Verdict
from detcli.commands.shared import options
from detcli.commands.shared.messages import say, set_verbosity
from detcli.commands.shared.reports import ReportFormat, write_report
from detcli.errors import CheckError, DetcliError, DetcliWarning, UsageError

if TYPE_CHECKING:
    from detcli.commands.bench.baseline import Limit
    from detcli.commands.bench.request import Request
    from detcli.commands.bench.run import Measured
    from detcli.commands.bench.topk.measure import TopKMeasured


def bench(  # noqa: PLR0913 - one parameter an option; they become objects at once
    source: own.SourcesOption = None,
    *,
    model: own.ModelOption = None,
    device: own.DeviceOption = "auto",
    mode: own.ModeOption = None,
    sweep: own.SweepOption = None,
    seconds: own.SecondsOption = 10,
    cold_starts: own.ColdStartsOption = 5,
    batch: options.BatchOption = None,
    workers: options.WorkersOption = None,
    n: own.LengthsOption = "8400,33600,1000000",
    k: own.WantedOption = 300,
    nms: options.NmsOption = None,
    imgsz: options.ImageSizeOption = None,
    box_format: options.BoxesOption = None,
    cuda_graph: options.CudaGraphOption = None,
    gpu_mem_limit: options.MemoryLimitOption = None,
    half: options.HalfOption = False,
    plot: own.PlotOption = None,
    save_baseline: own.SaveBaselineOption = None,
    baseline: own.BaselineOption = None,
    max_regress: own.MaxRegressOption = "5%",
    report_format: options.ReportFormatOption = None,
    quiet: options.QuietOption = False,
    verbose: options.VerboseOption = 0,
) -> None:
    """Measure: the whole path by stage, pictures a second, or top-k beside other libraries' ways.

    Without SOURCE it runs on a built-in picture. Warnings about a noisy machine go to stderr, and
    are in the report too.
    """
    set_verbosity(quiet=quiet, verbose=verbose)
    # What follows loads NumPy, OpenCV and ONNX Runtime, which --help does not need.
    from detcli.commands.bench.request import Request
    from detcli.commands.shared.setup import run_options, set_up_process
    from detcli.model.zoo import DEFAULT

    outputs = _Outputs(report_format, plot, save_baseline, baseline, max_regress)
    mode = mode or (Mode.THROUGHPUT if sweep else Mode.LATENCY)
    set_up_process()
    if mode is Mode.TOPK:
        _refuse_pictures(source, sweep, model)
        _tell_duration(seconds, 0, quiet=quiet)
        _bench_top_k(n, k, device, seconds, outputs)
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
    request = Request(
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
        _tell_duration(seconds, cold_starts, quiet=quiet)
        _bench_run(request, outputs)


def _tell_duration(seconds: float, cold_starts: int, *, quiet: bool) -> None:
    """Say what comes, in a line: a bar that moves would be measured too."""
    if not quiet:
        plural = "" if cold_starts == 1 else "s"
        cold = f"{cold_starts} cold start{plural}, then " if cold_starts else ""
        say(f"{cold}a warm-up, then {seconds:g} s of measuring")


@dataclass(frozen=True, slots=True)
class _Outputs:
    """Where results go, and what they are held against."""

    report_format: ReportFormat | None
    plot: Path | None
    save_baseline: Path | None
    baseline: Path | None
    max_regress: str

    def limit(self) -> "Limit | None":
        """The baseline, if there is one."""
        from detcli.commands.bench.baseline import Limit, load_baseline

        share = parse_percentage(self.max_regress)
        return None if self.baseline is None else Limit(load_baseline(self.baseline), share)

    def check(self) -> None:
        """Find out before anything is measured whether what it comes to can be written.

        Raises:
            UsageError: The plot has another suffix.
            DependencyError: There is no matplotlib.
            OutputError: A folder cannot be written to.
        """
        from detcli.files import AtomicFile

        if self.plot is not None:
            from detcli.commands.bench.plot import check_plot

            check_plot(self.plot)
        for path in (self.plot, self.save_baseline):
            if path is not None:
                AtomicFile(path, binary=True).discard()


def _bench_run(request: "Request", outputs: _Outputs) -> None:
    from detcli.commands.bench.render import render_run
    from detcli.commands.bench.run import measure

    if outputs.plot is not None:
        raise UsageError("--plot draws several measurements", "use it with --sweep or --mode topk")
    outputs.check()
    measured = measure(request, outputs.limit())
    write_report(measured.report, outputs.report_format, render_run)
    _conclude(measured, outputs)


def _bench_top_k(n: str, k: int, device: str, seconds: float, outputs: _Outputs) -> None:
    from detcli.commands.bench.render import render_top_k
    from detcli.commands.bench.topk.measure import TopKRequest, measure_top_k

    request = TopKRequest(_parse_lengths(n), k, device, seconds)
    outputs.check()
    measured = measure_top_k(request, outputs.limit())
    write_report(measured.report, outputs.report_format, render_top_k)
    if outputs.plot is not None:
        from detcli.commands.bench.plot import write_plot

        write_plot(measured.report, outputs.plot)
    _conclude(measured, outputs)


def _bench_sweep(request: "Request", sweep: list[str], outputs: _Outputs, *, quiet: bool) -> None:
    from detcli.commands.bench.cold_start import KINDS
    from detcli.commands.bench.render import render_sweep
    from detcli.commands.bench.sweep import run_sweep, split_axes

    if outputs.baseline is not None or outputs.save_baseline is not None:
        raise UsageError("a sweep has no baseline", "measure one combination, without --sweep")
    axes, sources = split_axes(sweep, request.sources)
    outputs.check()
    report = run_sweep(replace(request, sources=sources), axes, (lambda _: None) if quiet else say)
    write_report(report, outputs.report_format, render_sweep)
    if outputs.plot is not None:
        from detcli.commands.bench.plot import write_plot

        write_plot(report, outputs.plot)
    failed = [point.failure for point in report.points if point.failure is not None]
    if failed:
        kind = KINDS.get(failed[0].exit_code, DetcliError)
        raise kind(
            f"{len(failed)} of {len(report.points)} combinations failed: {failed[0].message}"
        )


def _conclude(measured: "Measured | TopKMeasured", outputs: _Outputs) -> None:
    """Warn of noise; fail if it has become slower, else keep the samples.

    Raises:
        CheckError: It has become slower than the baseline allows.
    """
    report = measured.report
    for doubt in report.noise.warnings:
        warnings.warn(f"these figures may be off: {doubt}", DetcliWarning, stacklevel=1)
    found = report.comparison
    if found is not None and found.verdict is Verdict.REGRESSION:
        slower = [one.name for one in found.changes if one.verdict is Verdict.REGRESSION]
        raise CheckError(
            f"slower than {found.file} by more than {found.max_regress:.0%}: {', '.join(slower)}",
            "see the comparison in the report; measure again if the machine was busy",
        )
    if found is not None and found.verdict is Verdict.UNDECIDED:
        warnings.warn(
            f"whether this is slower than {found.file} by more than {found.max_regress:.0%} "
            "cannot be told: measure longer, with --seconds, on a machine that has nothing else "
            "to do",
            DetcliWarning,
            stacklevel=1,
        )
    if outputs.save_baseline is not None:
        from detcli.commands.bench.baseline import Baseline, save_baseline

        file, noise = str(outputs.save_baseline), report.noise
        identity, samples = measured.identity, measured.samples
        told = noise.warnings, noise.taken
        save_baseline(Baseline(file, identity, report.software, samples, *told))


def _refuse_pictures(source: list[str] | None, sweep: list[str] | None, model: str | None) -> None:
    """Top-k is measured on random numbers, without a network.

    Raises:
        UsageError: Something is given that it has no use for.
    """
    for given, name in ((source, "SOURCE"), (sweep, "--sweep"), (model, "--model")):
        if given:
            raise UsageError(
                f"--mode topk takes no {name}", "it sorts random numbers: see --n, --k"
            )


def _parse_lengths(text: str) -> tuple[int, ...]:
    """Read "8400,33600".

    Raises:
        UsageError: These are no whole numbers.
    """
    entries = [entry.strip() for entry in text.split(",")]
    if not all(entry.isascii() and entry.isdecimal() for entry in entries):
        raise UsageError(f"--n '{text}' is no list of lengths", "write --n 8400,33600")
    return tuple(dict.fromkeys(map(int, entries)))


def parse_percentage(text: str) -> float:
    """Read "5%" as 0.05.

    Raises:
        UsageError: It is something else; a number alone could be meant either way.
    """
    number, sign, rest = text.strip().partition("%")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not sign or rest or not 0 <= value < math.inf:
        raise UsageError(f"--max-regress '{text}' is no percentage", "write 5%")
    return value / 100
