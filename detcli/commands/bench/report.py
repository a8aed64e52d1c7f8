"""The results of a measurement, as JSON and as tables, and an earlier one beside them.

Times are in seconds, memory in bytes. None stands for a figure that was not measured, or that does
not exist on the device.

A regression is certain when the whole 95% interval of the ratio of the medians lies above the
limit. That interval does not cover what other programs took from one run and not from the other:
on a busy machine, equal runs differ by half. So each bound is moved by the fraction of the cores
that others took, the most they can have cost; on a busy machine the verdict stays undecided.
"""

import json
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from detcli.cli.report import EMPTY, facts_table, format_seconds, report_field, styled_line
from detcli.commands.bench.sampling import (
    MIN_FOR_P99,
    WALL,
    Interval,
    Samples,
    Summary,
    WarmUp,
    interval,
)
from detcli.config.values import BenchMode
from detcli.core import frozen
from detcli.core.errors import CheckError, DetcliWarning, UsageError
from detcli.core.text import escape_unprintable
from detcli.storage.files import read_text, write_output

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
    batch: int
    workers: int
    sources: tuple[str, ...]  # empty for the built-in image
    inputs_sha256: str
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
    undisturbed_median: Interval | None
    wall: Summary  # a batch with timed stages
    stages: tuple[StageFigures, ...]  # their means sum to the mean of `wall`
    synchronised: bool  # each stage waited for the device; the CPU runs synchronously anyway
    warm_up: WarmUp
    overhead: Overhead


@frozen
class Throughput:
    """All stages in parallel, as in `predict`."""

    pictures_per_second: float
    interval: Interval | None
    pictures: int
    seconds: float
    warm_up: WarmUp  # its `runs` are images
    work_s: dict[str, float]  # per image and stage, warm-up included; threads overlap
    overhead: Overhead


@frozen
class ColdStart:
    """Whole processes, such as `detcli predict` on the built-in image; medians of several."""

    processes: int
    first_record_s: float  # from its start to the first line of its output
    whole_process_s: float
    peak_memory_bytes: int | None  # resident; None on Windows


@frozen
class PeakMemory:
    """Peak memory of this process, and what the device held for it at most."""

    host_peak_bytes: int | None
    device_bytes: int | None


@frozen
class Noise:
    """What else the machine did during the measurement."""

    deviation: float  # of the times, as a fraction of their mean
    other_load: float  # cores that other programs kept busy
    stolen: float | None  # fraction of the time that the host of a virtual machine took; on Linux
    taken: float  # fraction of the cores that both took together
    gpu_slowed_by: tuple[str, ...]
    warnings: tuple[str, ...]


class RegressionVerdict(StrEnum):
    """The outcome of a comparison with a baseline."""

    WITHIN = "within the limit"
    UNDECIDED = "undecided"
    REGRESSION = "regression"


@frozen
class Change:
    """One duration beside the baseline's; those without a verdict explain the others."""

    name: str
    before_s: float
    after_s: float
    ratio: Interval | None  # above 1 is slower
    verdict: RegressionVerdict | None

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

    file: str
    software: Software  # the baseline's, as are the warnings
    warnings: tuple[str, ...]
    taken_before: float  # of the cores, by other programs
    taken_after: float
    max_regress: float
    changes: tuple[Change, ...]
    verdict: RegressionVerdict

    def require_no_regression(self) -> None:
        """Warn if it is undecided whether the model got slower than allowed.

        Raises:
            CheckError: It certainly got slower.
        """
        slower = f"slower than {self.file} by more than {self.max_regress:.0%}"
        if self.verdict is RegressionVerdict.REGRESSION:
            raise CheckError(
                f"{slower}: {WALL}",  # the whole runs decide, not their stages
                "see the comparison in the report; measure again if the machine was busy",
            )
        if self.verdict is RegressionVerdict.UNDECIDED:
            warnings.warn(
                f"cannot tell whether this is {slower}: measure longer, with --seconds, on an "
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
    latency: Latency | None
    throughput: Throughput | None
    cold_start: ColdStart | None
    memory: PeakMemory
    noise: Noise
    comparison: BaselineComparison | None = None


# An earlier measurement

HEADER = {"schema_version": 1, "kind": "detcli bench baseline"}

UNUSABLE = ArithmeticError, AttributeError, KeyError, RecursionError, TypeError, ValueError
"""What arbitrary JSON in place of a baseline may raise."""

Identity = dict[str, Any]
"""What must be equal for two measurements to be comparable: name -> JSON value."""

HINT = "make one with --save-baseline"


@frozen
class Baseline:
    """A measurement that later ones can be compared with.

    Attributes:
        file: The file that it was read from; empty for one that was just made.
        identity: What has to be equal in both measurements.
        software: The versions of the software.
        samples: The seconds of each run, by what was timed.
        warnings: What disturbed the measurement.
        taken: The fraction of the cores that other programs took.
    """

    file: str
    identity: Identity
    software: Software
    samples: Samples
    warnings: tuple[str, ...] = ()
    taken: float = 0.0

    def save(self, path: Path) -> None:
        """Write the measurement to a file, or raise OutputError."""
        document = HEADER | asdict(self)
        del document["file"]
        write_output(path, (json.dumps(document, indent=1) + "\n").encode())

    @classmethod
    def load(cls, path: Path) -> "Baseline":
        """Read a measurement from a file, which may hold anything.

        Raises:
            UsageError: It cannot be read, or is not a baseline.
        """
        try:
            return cls._from_document(json.loads(read_text(path)), str(path))
        except OSError as error:
            raise UsageError(f"cannot read the baseline {path}: {error.strerror}", HINT) from error
        except UNUSABLE as error:
            raise UsageError(f"{path} is not a baseline of detcli bench: {error}", HINT) from error

    @classmethod
    def _from_document(cls, document: Any, file: str) -> "Baseline":  # noqa: ANN401 - JSON
        """Read a measurement from the JSON of a file; raises one of UNUSABLE if it is not one."""
        if any(document[name] != value for name, value in HEADER.items()):
            raise ValueError("unknown kind or version")
        taken = float(document["taken"])
        if not 0 <= taken <= 1:
            raise ValueError(f"{taken} is not a fraction of the cores")
        samples = document["samples"]
        return cls(
            file=file,
            identity=dict(document["identity"]),
            software=dict(document["software"]),
            samples={str(name): _checked(values) for name, values in samples.items()},
            warnings=tuple(str(warning) for warning in document["warnings"]),
            taken=taken,
        )

    def require_same(self, identity: Identity) -> None:
        """Refuse to compare with a measurement under other conditions.

        Args:
            identity: The conditions of the other one.

        Raises:
            UsageError: Some differ; it lists them.
        """
        differences = []
        for name, value in identity.items():
            earlier_value = self.identity.get(name)
            if earlier_value != value:
                differences.append(f"{name} was {earlier_value}, is {value}")
        if differences:
            raise UsageError(
                f"cannot compare with {self.file}: {'; '.join(differences)}",
                "compare under the same conditions, or save a new baseline with --save-baseline",
            )


def _checked(values: Any) -> list[float]:  # noqa: ANN401 - from a file
    """Return the samples of a baseline, or raise ValueError unless they are seconds."""
    samples = np.array(values, np.float64)
    are_seconds = (samples >= 0) & (samples < np.inf)
    if samples.ndim != 1 or not samples.size or not are_seconds.all():
        raise ValueError("its samples are not lists of seconds")
    return [float(sample) for sample in samples]


def identity_of(
    machine: BenchMachine, model: BenchModel, conditions: Conditions | None = None
) -> Identity:
    """Collect what must be equal in two measurements that are compared.

    Versions of the software and the size of the memory may differ.

    Args:
        machine: The machine.
        model: The model.
        conditions: How it is measured; None if that is not known yet. Then the GPU that is in use
            is not known either.

    Returns:
        Values of JSON by name, as a baseline has them.
    """
    identity: Identity = {
        "processor": machine.processor,
        "architecture": machine.architecture,
        "system": machine.system,
        "cores": machine.cores,
        "model": model.sha256,
    }
    if conditions is None:
        return identity
    return identity | {
        "mode": conditions.mode,
        "device": conditions.device,
        "batch": conditions.batch,
        "workers": conditions.workers,
        "canvas": list(conditions.canvas),  # a list, as it is read back from JSON
        "gpu": machine.gpu,
        "inputs": conditions.inputs_sha256,
    }


def compare(before: Baseline, after: Baseline, max_regress: float) -> BaselineComparison:
    """Compare two measurements, to find out whether the model got slower.

    Whole runs decide, and the times of the stages explain the difference.

    Args:
        before: The earlier measurement.
        after: The later one, under the same conditions.
        max_regress: How much slower it may be: 0.05 for 5%.

    Raises:
        UsageError: The earlier one has no times of whole runs.
    """
    if not before.samples.get(WALL):
        raise UsageError(f"{before.file} has nothing in common with this measurement", HINT)
    wall_ratio = interval(np.median, after.samples[WALL], before.samples[WALL])
    verdict = judge(wall_ratio, max_regress, before.taken, after.taken)
    changes = []
    for name, samples in after.samples.items():
        if name not in before.samples:
            continue
        verdict_of_change = None
        if name == WALL:
            verdict_of_change = verdict
        change = Change(
            name,
            before_s=float(np.median(before.samples[name])),
            after_s=float(np.median(samples)),
            ratio=interval(np.median, samples, before.samples[name]),
            verdict=verdict_of_change,
        )
        changes.append(change)
    return BaselineComparison(
        file=before.file,
        software=before.software,
        warnings=before.warnings,
        taken_before=before.taken,
        taken_after=after.taken,
        max_regress=max_regress,
        changes=tuple(changes),
        verdict=verdict,
    )


def judge(ratio: Interval | None, limit: float, before: float, after: float) -> RegressionVerdict:
    """Decide whether a model certainly got slower than allowed, certainly not, or neither.

    Without the other programs that ran, each time may have been shorter by the fraction of the
    cores that they took. So the lowest possible ratio has the later time shortened by it, and the
    highest possible ratio the earlier time.

    Args:
        ratio: The later time by the earlier one, with its interval; None if it is not known.
        limit: How much slower is allowed: 0.05 for 5%.
        before: The fraction of the cores that other programs took in the earlier measurement.
        after: The same of the later one.
    """
    if ratio is None:
        return RegressionVerdict.UNDECIDED
    allowed_ratio = 1 + limit
    if ratio.low * (1 - after) > allowed_ratio:
        return RegressionVerdict.REGRESSION
    if ratio.high <= allowed_ratio * (1 - before):
        return RegressionVerdict.WITHIN
    return RegressionVerdict.UNDECIDED


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


def _stage_rows(latency: Latency) -> list[StageFigures]:
    """Return the rows of the table of stages.

    The stages are followed by a batch as a whole, with timed stages, and without ("undisturbed").
    A stage that the device lacks has no row; the row "missing" below the table names it.
    """
    rows = [stage for stage in latency.stages if stage.summary is not None]
    rows.append(StageFigures("all stages", latency.wall, share=1.0))
    rows.append(StageFigures("undisturbed", latency.undisturbed))
    return rows


def _stage_table(rows: list[StageFigures]) -> Table:
    """Lay out the durations of stages, all in one unit, so that a column can be read downwards.

    A percentile that no row has, as too few runs were measured, has no column.
    """
    durations_by_column: dict[str, list[float | None]] = {}
    for column in ("p50", "p90", "p99", "mean", "deviation"):
        durations = [getattr(row.summary, f"{column}_s") for row in rows]
        if any(duration is not None for duration in durations):
            durations_by_column[column] = durations
    longest_s = 0.0
    for durations in durations_by_column.values():
        for duration in durations:
            longest_s = max(longest_s, duration or 0.0)
    unit = "ms"
    units_per_second = 1e3
    decimals = 3
    if longest_s < 1e-3:
        unit = "us"
        units_per_second = 1e6
        decimals = 1

    layout = Table(box=None, pad_edge=False, header_style="bold")
    layout.add_column("stage", overflow="fold")
    for column in durations_by_column:
        layout.add_column(f"{column} {unit}", justify="right")
    layout.add_column("share", justify="right")
    for index, row in enumerate(rows):
        cells = [row.name]
        for durations in durations_by_column.values():
            duration_s = durations[index]
            if duration_s is None:
                cells.append(EMPTY)
            else:
                cells.append(f"{duration_s * units_per_second:.{decimals}f}")
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
    """Yield labels and texts: what was measured, whole processes, and memory."""
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
    """Yield labels and texts about the throughput: rate, number of images, work of each stage."""
    rate = f"{throughput.pictures_per_second:.1f} images/s"
    if throughput.interval is not None:
        low = throughput.interval.low
        high = throughput.interval.high
        rate += f", 95% interval {low:.1f} to {high:.1f}"
    yield "throughput", rate
    yield "measured", f"{throughput.pictures} images in {throughput.seconds:.1f} s"
    yield "warm-up", throughput.warm_up.text("images")
    stages = [f"{name} {format_seconds(spent_s)}" for name, spent_s in throughput.work_s.items()]
    yield "work per image", f"{', '.join(stages)}; the threads overlap"
    yield "overhead", str(throughput.overhead)


def _cold_start(cold_start: ColdStart) -> str:
    """Say how long whole processes took, and how much memory."""
    first_record = f"{format_seconds(cold_start.first_record_s)} to the first record"
    whole_process = f"{format_seconds(cold_start.whole_process_s)} in all"
    memory = _memory(", ", cold_start.peak_memory_bytes)
    medians = f"(medians of {cold_start.processes} processes)"
    return f"{first_record}, {whole_process}{memory} {medians}"


def _memory(title: str, size: int | None) -> str:
    """Write a number of bytes behind a title; an empty text if it is not known."""
    if size is None:
        return ""
    return title + decimal(size)


def _latency_facts(latency: Latency, batch: int) -> Iterator[tuple[str, str]]:
    """Yield labels and texts about the latency of a batch, and which figures are missing."""
    median = latency.undisturbed_median  # with its confidence interval
    if median is not None:
        bounds = f"{format_seconds(median.low)} to {format_seconds(median.high)}"
        rate = f"{batch / median.estimate:.1f} images/s"
        yield "median", f"{format_seconds(median.estimate)}, 95% interval {bounds}; {rate}"
    missing = _missing_figures(latency)
    if missing:
        yield "missing", ", ".join(missing)
    yield "runs", f"{latency.wall.samples} with timed stages, as many undisturbed, in turns"
    yield "warm-up", latency.warm_up.text("runs")
    synchronised = SYNCHRONOUS
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
