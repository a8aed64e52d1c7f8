"""Reports as tables."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from detcli.commands.bench.report import (
    MIN_FOR_P90,
    MIN_FOR_P99,
    BaselineComparison,
    BenchMachine,
    ColdStart,
    Interval,
    Latency,
    Overhead,
    PeakMemory,
    RegressionVerdict,
    RunReport,
    Summary,
    SweepPoint,
    SweepReport,
    Throughput,
    TopKCase,
    TopKReport,
    WarmUp,
)
from detcli.commands.bench.request import Mode
from detcli.commands.shared.reports import facts
from detcli.text import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

EMPTY = "-"
VERDICTS = {
    RegressionVerdict.WITHIN: Text("within", style="green"),
    RegressionVerdict.UNDECIDED: Text("undecided", style="yellow"),
    RegressionVerdict.REGRESSION: Text("slower", style="red"),
}
TITLE_WIDTH = 26
FIGURES = ("p50", "p90", "p99", "mean", "deviation")


def render_run(report: RunReport) -> Iterator["RenderableType"]:
    """Lay out one measurement: its figures, then their overhead and reliability."""
    asked = report.conditions
    height, width = asked.canvas
    yield Text(
        printable(
            f"{report.model.file} on {asked.device}, {asked.mode}, batch {asked.batch}, "
            f"workers {asked.workers}, {width}x{height}"
        ),
        style="bold",
    )
    yield Text(_machine(report.machine), style="dim")
    if report.latency is not None:
        yield _stages(report.latency)
    yield facts(_facts(report))
    if report.comparison is not None:
        yield from _comparison(report.comparison)


def render_sweep(report: SweepReport) -> Iterator["RenderableType"]:
    """Lay out a sweep, one row per combination."""
    yield Text(f"{report.mode}, {_machine(report.machine)}", style="dim")
    latency = report.mode is Mode.LATENCY
    titles = [*report.axes, "pictures/s", "95% interval"]
    titles += ["p50", "p90"] if latency else []
    table = _table(*titles, "host", "GPU")
    for point in report.points:
        cells = [point.values[name] for name in report.axes]
        if point.failure is None:
            table.add_row(*map(printable, (*cells, *_cells(point, latency=latency))))
        else:
            table.add_row(*map(printable, cells), Text("failed", style="red"))
    yield table
    for message in dict.fromkeys(one.failure.message for one in report.points if one.failure):
        yield Text.assemble(("failed: ", "red"), printable(message))
    noisy = sum(bool(point.warnings) for point in report.points)
    if noisy:
        what = f"{noisy} of {len(report.points)} combinations were disturbed"
        yield Text.assemble(("warning: ", "yellow"), f"{what}; --format json says how")


def render_top_k(report: TopKReport) -> Iterator["RenderableType"]:
    """Lay out a comparison of top-k implementations, one table per case."""
    yield Text(f"{report.device}, {_machine(report.machine)}", style="dim")
    for case in report.cases:
        yield _case(case)
        yield ""
    timings = (one for case in report.cases for one in case.ways if one.missing is not None)
    for missing in dict.fromkeys(f"{one.name} was not timed: {one.missing}" for one in timings):
        yield Text(printable(missing), style="dim")
    yield Text(
        f"All answers agreed before timing; the clock took {report.clock_share:.2%} at most."
    )
    if report.comparison is not None:
        yield from _comparison(report.comparison)


def _stages(latency: Latency) -> Table:
    table = _table("stage", *FIGURES, "share")
    for stage in latency.stages:
        share = EMPTY if stage.share is None else f"{stage.share:.1%}"
        table.add_row(stage.name, *_summary(stage.summary), share)
    table.add_section()
    table.add_row("all stages", *_summary(latency.wall), "100.0%")
    table.add_row(Text("undisturbed", style="bold"), *_summary(latency.undisturbed), "")
    return table


def _facts(report: RunReport) -> Iterator[tuple[str, str]]:
    if report.latency is not None:
        yield from _latency_facts(report.latency, report.conditions.batch)
    if report.throughput is not None:
        yield from _throughput_facts(report.throughput)
    if report.cold_start is not None:
        yield "cold start", _cold_start(report.cold_start)
    yield "peak memory", _memory(report.memory)


def _latency_facts(latency: Latency, batch: int) -> Iterator[tuple[str, str]]:
    middle = latency.undisturbed_median
    if middle is not None:
        between = f"{seconds(middle.low)} to {seconds(middle.high)}"
        rate = f"{batch / middle.estimate:.1f} pictures/s"
        yield "median", f"{seconds(middle.estimate)}, 95% interval {between}; {rate}"
    if lacking := ", ".join(_lacking(latency)):
        yield "missing", lacking
    yield "runs", f"{latency.wall.samples} with timed stages, as many undisturbed, in turns"
    yield "warm-up", _warm_up(latency.warm_up, "runs")
    yield (
        "synchronised",
        "after each stage, to time it"
        if latency.synchronised
        else "always: the CPU runs synchronously",
    )
    yield "overhead", _overhead(latency.overhead)


def _lacking(latency: Latency) -> Iterator[str]:
    """Why cells of the table are empty."""
    if stages := [stage.name for stage in latency.stages if stage.summary is None]:
        yield f"{' and '.join(stages)} on this device"
    for name, least in (("p90", MIN_FOR_P90), ("p99", MIN_FOR_P99)):
        if latency.wall.samples < least:
            yield f"{name} (needs {least} runs)"


def _throughput_facts(found: Throughput) -> Iterator[tuple[str, str]]:
    interval = found.interval
    between = f", 95% interval {interval.low:.1f} to {interval.high:.1f}" if interval else ""
    yield "throughput", f"{found.pictures_per_second:.1f} pictures/s{between}"
    yield "measured", f"{found.pictures} pictures in {found.seconds:.1f} s"
    yield "warm-up", _warm_up(found.warm_up, "pictures")
    parts = ", ".join(f"{name} {seconds(spent)}" for name, spent in found.work_s.items())
    yield "work per picture", f"{parts}; the threads overlap"
    yield "overhead", _overhead(found.overhead)


def _overhead(overhead: Overhead) -> str:
    clock = f"the clock took {seconds(overhead.clock_s)}, {overhead.clock_share:.3%}"
    if (ratio := overhead.observed) is None:
        return clock
    between = f"{ratio.low - 1:+.1%} to {ratio.high - 1:+.1%}"
    if ratio.low <= 1 <= ratio.high:
        return f"{clock}; timing the stages cost nothing measurable ({between})"
    return f"{clock}; timing the stages cost {ratio.estimate - 1:+.1%} ({between})"


def _warm_up(before: WarmUp, what: str) -> str:
    settled = "until stable" if before.stable else "never stable"
    first = seconds(before.first_s)
    return f"{before.runs} {what} in {before.seconds:.1f} s, {settled}; the first took {first}"


def _cold_start(cold: ColdStart) -> str:
    memory = "" if cold.peak_memory_bytes is None else f", {decimal(cold.peak_memory_bytes)}"
    return (
        f"{seconds(cold.first_record_s)} to the first record, {seconds(cold.whole_process_s)} "
        f"in all{memory} (medians of {cold.processes} processes)"
    )


def _memory(memory: PeakMemory) -> str:
    host = EMPTY if memory.host_peak_bytes is None else decimal(memory.host_peak_bytes)
    device = "" if memory.device_bytes is None else f", GPU {decimal(memory.device_bytes)}"
    return f"{host}{device}"


def _comparison(found: BaselineComparison) -> Iterator["RenderableType"]:
    yield ""
    yield Text(
        printable(f"compared with {found.file}, limit {found.max_regress:+.0%}"), style="bold"
    )
    table = _table("", "before", "now", "change", "verdict")
    for change in found.changes:
        verdict = VERDICTS[change.verdict] if change.verdict is not None else Text()
        before, after = seconds(change.before_s), seconds(change.after_s)
        table.add_row(change.name, before, after, _ratio(change.ratio), verdict)
    yield table
    yield Text(
        f"other programs took {found.taken_before:.0%} of the cores then, {found.taken_after:.0%} "
        "now; the times may be off by as much"
    )
    for warning in found.warnings:
        yield Text.assemble(("baseline: ", "yellow"), printable(warning))


def _ratio(ratio: Interval | None) -> str:
    if ratio is None:
        return EMPTY
    low, high = 100 * (ratio.low - 1), 100 * (ratio.high - 1)
    return f"{ratio.estimate - 1:+.1%} ({low:+.1f} to {high:+.1f})"


def _cells(point: SweepPoint, *, latency: bool) -> Iterator[str]:
    rate, interval = point.pictures_per_second, point.interval
    yield EMPTY if rate is None else f"{rate:.1f}"
    yield f"{interval.low:.1f} to {interval.high:.1f}" if interval else EMPTY
    if latency:
        p50, p90, *_ = _summary(point.latency)
        yield from (p50, p90)
    memory = point.memory or PeakMemory(None, None)
    for taken in (memory.host_peak_bytes, memory.device_bytes):
        yield EMPTY if taken is None else decimal(taken)


def _case(case: TopKCase) -> Table:
    table = _table(f"{case.task}, {case.n} to {case.k}", "p50", "p90", "beside detcli")
    table.columns[0].min_width = TITLE_WIDTH  # aligns the tables of all cases
    for timing in case.ways:
        if timing.summary is not None:
            p50, p90, *_ = _summary(timing.summary)
            table.add_row(timing.name, p50, p90, f"{timing.times_ours:.2f} times")
    return table


def _summary(summary: Summary | None) -> list[str]:
    if summary is None:
        return [EMPTY] * len(FIGURES)
    return [
        EMPTY if value is None else seconds(value)
        for value in (
            *(summary.p50_s, summary.p90_s, summary.p99_s),
            *(summary.mean_s, summary.deviation_s),
        )
    ]


def seconds(value: float) -> str:
    """A duration in a suitable unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= size:
            return f"{value / size:.{2 if value / size < 100 else 1}f} {unit}"
    return f"{value * 1e9:.0f} ns"


def _machine(machine: BenchMachine) -> str:
    memory = decimal(machine.memory_bytes)
    parts = [machine.processor or machine.architecture, f"{machine.cores} cores", memory]
    return ", ".join([*parts, machine.gpu] if machine.gpu else parts)


def _table(*titles: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, title in enumerate(titles):
        table.add_column(
            title,
            justify="right" if number else "left",
            no_wrap=bool(number),
            overflow="fold",
        )
    return table
