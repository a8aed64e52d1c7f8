"""The results of a measurement, as JSON and as tables, and an earlier one beside them.

Times are in seconds, memory in bytes. None stands for a figure that was not measured, or that does
not exist on the device.
"""

import warnings
from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, NamedTuple

from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from detcli.cli.report import EMPTY, facts_table, format_seconds, report_field, styled_line
from detcli.commands.bench.sampling import (
    MIN_FOR_P99,
    WALL,
    Interval,
    Summary,
    WarmUp,
)
from detcli.config.values import BenchMode
from detcli.core import frozen
from detcli.core.errors import CheckError, DetcliWarning
from detcli.core.text import escape_unprintable

if TYPE_CHECKING:
    from rich.console import RenderableType


@frozen
class BenchMachine:
    """The hardware; `gpu` and `driver` are None on the CPU."""

    processor: str | None
    architecture: str
    system: str
    cores: int
    memory_bytes: int
    gpu: str | None
    driver: str | None

    def __str__(self) -> str:
        parts = [self.processor or self.architecture, f"{self.cores} cores"]
        parts.append(decimal(self.memory_bytes))
        if self.gpu:
            parts.append(self.gpu)
        return ", ".join(parts)


Software = dict[str, str | None]
"""Versions; None for a package that is not installed."""


@frozen
class BenchModel:
    """The model as it was named, and the SHA-256 of its file."""

    file: str
    sha256: str


@frozen
class Conditions:
    """How it was measured."""

    mode: BenchMode
    device: str
    batch: int  # images in a batch
    workers: int  # detectors running in parallel
    sources: tuple[str, ...]  # empty for the built-in image
    inputs_sha256: str  # of all that was read
    canvas: tuple[int, int]  # height, width


@frozen
class StageFigures:
    """A stage, in order of the flow; `summary` is None where the device lacks the stage."""

    name: str = report_field("stage")
    summary: Summary | None = report_field(default=None)
    share: float | None = report_field("share", "%", default=None)


@frozen
class Overhead:
    """The cost of measuring."""

    clock_s: float  # of the clock in a run
    clock_share: float  # the same as a fraction of the mean wall clock
    observed: Interval | None = None
    """Ratio of a run with timed stages to the untimed run beside it; on a GPU, the cost of
    synchronising after each stage."""

    def __str__(self) -> str:
        clock = f"the clock took {format_seconds(self.clock_s)}, {self.clock_share:.3%}"
        ratio = self.observed
        if ratio is None:
            return clock
        cost = f"{ratio.estimate - 1:+.1%}"
        if ratio.low <= 1 <= ratio.high:
            cost = "nothing measurable"
        return f"{clock}; timing the stages cost {cost} ({ratio.change()})"


@frozen
class Latency:
    """One batch after the other."""

    undisturbed: Summary  # a batch without timed stages, as users experience it
    undisturbed_median: Interval | None  # with its confidence interval
    wall: Summary  # a batch with timed stages
    stages: tuple[StageFigures, ...]  # their means sum to the mean of `wall`
    synchronised: bool  # each stage waited for the device; the CPU runs synchronously anyway
    warm_up: WarmUp
    overhead: Overhead


@frozen
class Throughput:
    """All stages in parallel, as in `predict`."""

    pictures_per_second: float  # images, from file to detections
    interval: Interval | None  # the 95% confidence interval of this rate
    pictures: int  # how many images were timed
    seconds: float
    warm_up: WarmUp  # its `runs` are images
    work_s: dict[str, float]  # per image and stage, warm-up included; threads overlap
    overhead: Overhead


@frozen
class ColdStart:
    """Whole processes, such as `detcli predict` on the built-in image; medians of several."""

    processes: int  # how many were timed; the figures are their medians
    first_record_s: float  # from its start to the first line of its output
    whole_process_s: float  # from its start to its end
    peak_memory_bytes: int | None  # resident; None on Windows


@frozen
class PeakMemory:
    """Peak memory of this process, and what the device held for it at most."""

    host_peak_bytes: int | None  # the most resident memory of the process
    device_bytes: int | None  # the most on a GPU beyond what was in use before


@frozen
class Noise:
    """What else the machine did during the measurement."""

    deviation: float  # of the times, as a fraction of their mean
    other_load: float  # cores that other programs kept busy
    stolen: float | None  # fraction of the time that the host of a virtual machine took; on Linux
    taken: float  # fraction of the cores that both took together
    gpu_slowed_by: tuple[str, ...]  # why its driver slowed the GPU down
    warnings: tuple[str, ...]  # what disturbed the measurement


class RegressionVerdict(StrEnum):
    """The outcome of a comparison with a baseline."""

    WITHIN = "within the limit"
    UNDECIDED = "undecided"
    REGRESSION = "regression"


@frozen
class Change:
    """One duration beside the baseline's; those without a verdict explain the others."""

    name: str  # what was timed
    before_s: float
    after_s: float
    ratio: Interval | None  # above 1 is slower
    verdict: RegressionVerdict | None  # None for a stage, which decides nothing

    def __str__(self) -> str:
        text = f"{format_seconds(self.before_s)} before, {format_seconds(self.after_s)} now"
        if self.ratio is not None:
            text += f", {self.ratio.estimate - 1:+.1%} ({self.ratio.change()})"
        if self.verdict:
            text += f": {self.verdict}"
        return text


@frozen
class BaselineComparison:
    """All durations beside a baseline's."""

    file: str  # the baseline
    software: Software  # the baseline's, as are the warnings
    warnings: tuple[str, ...]
    taken_before: float  # of the cores, by other programs
    taken_after: float  # the same in this run
    max_regress: float  # how much slower is allowed, as a share
    changes: tuple[Change, ...]
    verdict: RegressionVerdict

    def require_no_regression(self) -> None:
        """Raise an error if the model got slower than allowed, and warn if that is undecided.

        Raises:
            CheckError: It certainly got slower.
        """
        regression = f"slower than {self.file} by more than {self.max_regress:.0%}"
        if self.verdict is RegressionVerdict.REGRESSION:
            raise CheckError(
                f"{regression}: {WALL}",  # the times of whole runs decide, not those of stages
                "see the comparison in the report; measure again if the machine was busy",
            )
        if self.verdict is RegressionVerdict.UNDECIDED:
            warnings.warn(
                f"cannot tell whether this is {regression}: measure longer, with --seconds, on an "
                "idle machine",
                DetcliWarning,
                stacklevel=2,
            )


@frozen
class RunReport:
    """One measurement of latency or throughput."""

    kind: Literal["run"]
    machine: BenchMachine
    software: Software
    model: BenchModel
    conditions: Conditions
    latency: Latency | None  # None in mode throughput
    throughput: Throughput | None  # None in mode latency
    cold_start: ColdStart | None  # None with --cold-starts 0
    memory: PeakMemory
    noise: Noise
    comparison: BaselineComparison | None = None  # None unless --baseline is set


# For people

SYNCHRONOUS = "always: the CPU runs synchronously"


def render_run(report: RunReport) -> Iterator["RenderableType"]:
    """Lay out a report for a terminal: what was measured, the figures, and an earlier measurement.

    The figures of a latency begin with a table of the stages of a batch.
    """
    yield Text(escape_unprintable(_title(report)), "bold")
    yield styled_line((str(report.machine), "dim"))
    if report.latency is not None:
        yield _stage_table(_stage_rows(report.latency))
    yield facts_table(_facts(report))
    if report.comparison is not None:
        yield from _comparison_lines(report.comparison)


def _title(report: RunReport) -> str:
    """Name the model that was measured, and the conditions."""
    conditions = report.conditions
    height, width = conditions.canvas
    return (
        f"{report.model.file} on {conditions.device}, {conditions.mode}, "
        f"batch {conditions.batch}, workers {conditions.workers}, {width}x{height}"
    )


DURATION_COLUMNS = ("p50", "p90", "p99", "mean", "deviation")


class _StageRow(NamedTuple):
    """A row of the table of stages."""

    name: str
    summary: Summary
    share: float | None  # of the time of all stages; None where it says nothing

    def durations_s(self) -> dict[str, float | None]:
        """Return the seconds in each of DURATION_COLUMNS; None where too few runs were measured."""
        return {
            "p50": self.summary.p50_s,
            "p90": self.summary.p90_s,
            "p99": self.summary.p99_s,
            "mean": self.summary.mean_s,
            "deviation": self.summary.deviation_s,
        }


def _stage_rows(latency: Latency) -> list[_StageRow]:
    """Return the rows of the table of stages.

    The stages are followed by a batch as a whole, with timed stages, and without ("undisturbed").
    A stage that the device lacks has no row; the row "missing" below the table names it.
    """
    rows = []
    for stage in latency.stages:
        if stage.summary is not None:
            rows.append(_StageRow(stage.name, stage.summary, stage.share))
    rows.append(_StageRow("all stages", latency.wall, share=1.0))
    rows.append(_StageRow("undisturbed", latency.undisturbed, share=None))
    return rows


class _TimeUnit(NamedTuple):
    """A unit that the table of stages shows durations in."""

    name: str
    per_second: float  # how many of them make a second
    decimals: int


MILLISECONDS = _TimeUnit("ms", per_second=1e3, decimals=3)
MICROSECONDS = _TimeUnit("us", per_second=1e6, decimals=1)


def _stage_table(rows: list[_StageRow]) -> Table:
    """Lay out the durations of stages, all in one unit, so that a column can be read downwards.

    A percentile that no row has, as too few runs were measured, has no column.
    """
    filled_columns = set()
    longest_s = 0.0
    for row in rows:
        for column, duration_s in row.durations_s().items():
            if duration_s is not None:
                filled_columns.add(column)
                longest_s = max(longest_s, duration_s)
    columns = [column for column in DURATION_COLUMNS if column in filled_columns]
    unit = MILLISECONDS
    if longest_s < 1e-3:
        unit = MICROSECONDS

    layout = Table(box=None, pad_edge=False, header_style="bold")
    layout.add_column("stage", overflow="fold")
    for column in columns:
        layout.add_column(f"{column} {unit.name}", justify="right")
    layout.add_column("share", justify="right")
    for row in rows:
        durations_s = row.durations_s()
        cells = [row.name]
        for column in columns:
            duration_s = durations_s[column]
            if duration_s is None:
                cells.append(EMPTY)
            else:
                cells.append(f"{duration_s * unit.per_second:.{unit.decimals}f}")
        if row.share is not None:
            cells.append(f"{row.share:.1%}")
        layout.add_row(*cells)
    return layout


def _comparison_lines(comparison: BaselineComparison) -> Iterator["RenderableType"]:
    """Lay out the durations beside a baseline's, and what makes them uncertain."""
    yield ""
    limit = f"limit {comparison.max_regress:+.0%}"
    yield styled_line((f"compared with {comparison.file}, {limit}", "bold"))
    yield facts_table((change.name, str(change)) for change in comparison.changes)
    shares = f"{comparison.taken_before:.0%} of the cores then, {comparison.taken_after:.0%} now"
    yield Text(f"other programs took {shares}; the times may be off by as much")
    for warning in comparison.warnings:
        yield styled_line(("baseline: ", "yellow"), (warning, ""))


def _facts(report: RunReport) -> Iterator[tuple[str, str]]:
    """Yield labels and values: what was measured, whole processes, and memory."""
    if report.latency is not None:
        yield from _latency_facts(report.latency, report.conditions.batch)
    if report.throughput is not None:
        yield from _throughput_facts(report.throughput)
    if report.cold_start is not None:
        yield "cold start", _cold_start(report.cold_start)
    memory = report.memory
    host = _memory("", memory.host_peak_bytes) or EMPTY
    yield "peak memory", host + _memory(", GPU ", memory.device_bytes)


def _throughput_facts(throughput: Throughput) -> Iterator[tuple[str, str]]:
    """Yield labels and values about the throughput: rate, number of images, work of each stage."""
    rate = f"{throughput.pictures_per_second:.1f} images/s"
    if throughput.interval is not None:
        low = throughput.interval.low
        high = throughput.interval.high
        rate += f", 95% interval {low:.1f} to {high:.1f}"
    yield "throughput", rate
    yield "measured", f"{throughput.pictures} images in {throughput.seconds:.1f} s"
    yield "warm-up", throughput.warm_up.text("images")

    # The stages work on different images at the same time, so together they work longer on an
    # image than the rate suggests.
    stage_texts = []
    for stage, seconds_per_image in throughput.work_s.items():
        stage_texts.append(f"{stage} {format_seconds(seconds_per_image)}")
    yield "work per image", f"{', '.join(stage_texts)}; the threads overlap"

    yield "overhead", str(throughput.overhead)


def _cold_start(cold_start: ColdStart) -> str:
    """Describe how long whole processes took, and how much memory."""
    first_record = f"{format_seconds(cold_start.first_record_s)} to the first record"
    whole_process = f"{format_seconds(cold_start.whole_process_s)} in all"
    memory = _memory(", ", cold_start.peak_memory_bytes)
    medians = f"(medians of {cold_start.processes} processes)"
    return f"{first_record}, {whole_process}{memory} {medians}"


def _memory(title: str, size: int | None) -> str:
    """Format a size in bytes after a title; empty if it is not known."""
    if size is None:
        return ""
    return title + decimal(size)


def _latency_facts(latency: Latency, batch: int) -> Iterator[tuple[str, str]]:
    """Yield labels and values about the latency of a batch, and about how it was measured.

    Args:
        latency: The latency.
        batch: How many images a batch has, for the rate.
    """
    median = latency.undisturbed_median
    if median is not None:
        bounds = f"{format_seconds(median.low)} to {format_seconds(median.high)}"
        rate = f"{batch / median.estimate:.1f} images/s"
        yield "median", f"{format_seconds(median.estimate)}, 95% interval {bounds}; {rate}"
    missing = _missing_figures(latency)
    if missing:
        yield "missing", ", ".join(missing)

    yield "runs", f"{latency.wall.samples} with timed stages, as many undisturbed, in turns"
    yield "warm-up", latency.warm_up.text("runs")

    synchronised = SYNCHRONOUS  # the CPU never runs ahead
    if latency.synchronised:
        synchronised = "after each stage, to time it"
    yield "synchronised", synchronised
    yield "overhead", str(latency.overhead)


def _missing_figures(latency: Latency) -> list[str]:
    """List the figures that a table of stages would have otherwise, and why it lacks them."""
    missing = []
    for stage in latency.stages:
        if stage.summary is None:
            missing.append(f"{stage.name} on this device")
    if latency.wall.samples < MIN_FOR_P99:
        missing.append(f"p99 (needs {MIN_FOR_P99} runs)")
    return missing
