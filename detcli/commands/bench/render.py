"""Reports as tables."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from detcli.commands.bench.report import (
    MIN_FOR_P90,
    MIN_FOR_P99,
    BaselineComparison,
    BenchMachine,
    Latency,
    Overhead,
    RegressionVerdict,
    RunReport,
    Summary,
    Throughput,
    WarmUp,
)
from detcli.commands.shared.reports import facts
from detcli.text import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

T = TypeVar("T")

EMPTY = "-"
VERDICTS: dict[RegressionVerdict | None, Text] = {
    RegressionVerdict.WITHIN: Text("within", style="green"),
    RegressionVerdict.UNDECIDED: Text("undecided", style="yellow"),
    RegressionVerdict.REGRESSION: Text("slower", style="red"),
}
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
    if (latency := report.latency) is not None:
        table = _table("stage", *FIGURES, "share")
        for stage in latency.stages:
            share = _shown(stage.share, "{:.1%}".format)
            table.add_row(stage.name, *_summary(stage.summary), share)
        table.add_section()
        table.add_row("all stages", *_summary(latency.wall), "100.0%")
        table.add_row(Text("undisturbed", style="bold"), *_summary(latency.undisturbed), "")
        yield table
    yield facts(_facts(report))
    if report.comparison is not None:
        yield from _comparison(report.comparison)


def _facts(report: RunReport) -> Iterator[tuple[str, str]]:
    if report.latency is not None:
        yield from _latency_facts(report.latency, report.conditions.batch)
    if report.throughput is not None:
        yield from _throughput_facts(report.throughput)
    if (cold := report.cold_start) is not None:
        taken = "" if cold.peak_memory_bytes is None else f", {decimal(cold.peak_memory_bytes)}"
        first, whole = seconds(cold.first_record_s), seconds(cold.whole_process_s)
        processes = f"medians of {cold.processes} processes"
        yield "cold start", f"{first} to the first record, {whole} in all{taken} ({processes})"
    memory = report.memory
    device = "" if memory.device_bytes is None else f", GPU {decimal(memory.device_bytes)}"
    yield "peak memory", f"{_shown(memory.host_peak_bytes, decimal)}{device}"


def _latency_facts(latency: Latency, batch: int) -> Iterator[tuple[str, str]]:
    if (middle := latency.undisturbed_median) is not None:
        between = f"{seconds(middle.low)} to {seconds(middle.high)}"
        rate = f"{batch / middle.estimate:.1f} pictures/s"
        yield "median", f"{seconds(middle.estimate)}, 95% interval {between}; {rate}"
    lacking = [stage.name for stage in latency.stages if stage.summary is None]
    why = [f"{' and '.join(lacking)} on this device"] if lacking else []
    for name, least in (("p90", MIN_FOR_P90), ("p99", MIN_FOR_P99)):
        if latency.wall.samples < least:
            why.append(f"{name} (needs {least} runs)")
    if why:
        yield "missing", ", ".join(why)
    yield "runs", f"{latency.wall.samples} with timed stages, as many undisturbed, in turns"
    yield "warm-up", _warm_up(latency.warm_up, "runs")
    gpu = latency.synchronised
    when = "after each stage, to time it" if gpu else "always: the CPU runs synchronously"
    yield "synchronised", when
    yield "overhead", _overhead(latency.overhead)


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
    uncertain = ratio.low <= 1 <= ratio.high
    cost = "nothing measurable" if uncertain else f"{ratio.estimate - 1:+.1%}"
    return f"{clock}; timing the stages cost {cost} ({ratio.low - 1:+.1%} to {ratio.high - 1:+.1%})"


def _warm_up(before: WarmUp, what: str) -> str:
    settled = "until stable" if before.stable else "never stable"
    first = seconds(before.first_s)
    return f"{before.runs} {what} in {before.seconds:.1f} s, {settled}; the first took {first}"


def _comparison(found: BaselineComparison) -> Iterator["RenderableType"]:
    yield ""
    yield Text(
        printable(f"compared with {found.file}, limit {found.max_regress:+.0%}"), style="bold"
    )
    table = _table("", "before", "now", "change", "verdict")
    for change in found.changes:
        before, after = seconds(change.before_s), seconds(change.after_s)
        ratio = EMPTY
        if (times := change.ratio) is not None:
            low, high = 100 * (times.low - 1), 100 * (times.high - 1)
            ratio = f"{times.estimate - 1:+.1%} ({low:+.1f} to {high:+.1f})"
        table.add_row(change.name, before, after, ratio, VERDICTS.get(change.verdict, ""))
    yield table
    yield Text(
        f"other programs took {found.taken_before:.0%} of the cores then, {found.taken_after:.0%} "
        "now; the times may be off by as much"
    )
    for warning in found.warnings:
        yield Text.assemble(("baseline: ", "yellow"), printable(warning))


def _summary(summary: Summary | None) -> list[str]:
    return [_shown(getattr(summary, f"{name}_s", None), seconds) for name in FIGURES]


def _shown(value: T | None, show: Callable[[T], str]) -> str:
    return EMPTY if value is None else show(value)


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
            title, justify="right" if number else "left", no_wrap=bool(number), overflow="fold"
        )
    return table
