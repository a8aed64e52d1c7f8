"""The results of a measurement, as JSON and as tables, and an earlier one beside them.

Times are in seconds, memory in bytes. None stands for a figure that was not measured, or that does
not exist on the device.

A regression is certain when the whole 95% interval of the ratio of the medians lies above the
limit. That interval does not cover what other programs took from one run and not from the other:
on a busy machine, equal runs differ by half. So each bound is moved by the fraction of the cores
that others took, the most they can have cost; on a busy machine the verdict stays undecided.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from detcli.commands.bench.sampling import (
    MIN_FOR_P90,
    MIN_FOR_P99,
    WALL,
    Interval,
    Samples,
    Summary,
    WarmUp,
    interval,
)
from detcli.commands.shared.reports import facts
from detcli.errors import UsageError
from detcli.files import write_output
from detcli.text import printable
from detcli.timing import Stage

if TYPE_CHECKING:
    from rich.console import RenderableType


Mode = Literal["latency", "throughput"]


@dataclass(frozen=True, slots=True)
class BenchMachine:
    """The hardware; `gpu` and `driver` are None on the CPU."""

    processor: str | None
    architecture: str
    system: str
    cores: int
    memory_bytes: int
    gpu: str | None
    driver: str | None


@dataclass(frozen=True, slots=True)
class Software:
    """Versions; None for a package that is not installed, or was unknown to an older baseline."""

    detcli: str
    python: str
    numpy: str
    opencv: str | None
    onnxruntime: str | None
    openvino: str | None = None


@dataclass(frozen=True, slots=True)
class BenchModel:
    """The model as it was named, and the SHA-256 of its file."""

    file: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Conditions:
    """How it was measured; empty `sources` mean the built-in picture, canvas is height, width."""

    mode: Mode
    device: str
    batch: int
    workers: int
    sources: tuple[str, ...]
    inputs_sha256: str
    canvas: tuple[int, int]


@dataclass(frozen=True, slots=True)
class StageFigures:
    """A stage, in order of the flow; `summary` is None where the device has no such stage."""

    name: Stage
    summary: Summary | None
    share: float | None


@dataclass(frozen=True, slots=True)
class Overhead:
    """The cost of measuring.

    Attributes:
        clock_s: Seconds that the clock takes in a run.
        clock_share: The same as a fraction of the mean wall clock.
        observed: Median ratio of a run with timed stages to the untimed run beside it. On a GPU
            this is the cost of synchronising after each stage.
    """

    clock_s: float
    clock_share: float
    observed: Interval | None


@dataclass(frozen=True, slots=True)
class Latency:
    """One batch after the other.

    Attributes:
        undisturbed: Wall clock of a batch without timed stages, as users experience it.
        undisturbed_median: Its median with a confidence interval.
        wall: Wall clock of a batch with timed stages.
        stages: Their means sum to the mean of `wall`; the last one is the remainder.
        synchronised: Whether each stage waited for the device; False on the CPU, which runs
            synchronously anyway.
        warm_up: The runs before.
        overhead: The cost of timing the stages.
    """

    undisturbed: Summary
    undisturbed_median: Interval | None
    wall: Summary
    stages: tuple[StageFigures, ...]
    synchronised: bool
    warm_up: WarmUp
    overhead: Overhead


@dataclass(frozen=True, slots=True)
class Throughput:
    """All stages in parallel, as in `predict`.

    Attributes:
        pictures_per_second: The rate after the warm-up.
        interval: The rate with a confidence interval.
        pictures: Number of pictures measured.
        seconds: How long they took.
        warm_up: `runs` counts pictures.
        work_s: Seconds of work per picture in each stage, warm-up included; threads overlap.
        overhead: Of the measuring thread.
    """

    pictures_per_second: float
    interval: Interval | None
    pictures: int
    seconds: float
    warm_up: WarmUp
    work_s: dict[str, float]
    overhead: Overhead


@dataclass(frozen=True, slots=True)
class ColdStart:
    """Whole processes of `detcli predict` on the built-in picture, medians."""

    processes: int
    first_record_s: float
    whole_process_s: float
    peak_memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class PeakMemory:
    """Peak memory of this process, and what the device held for it at most."""

    host_peak_bytes: int | None
    device_bytes: int | None


@dataclass(frozen=True, slots=True)
class Noise:
    """What else the machine did during the measurement.

    Attributes:
        deviation: Standard deviation of the wall clock as a fraction of its mean.
        other_load: Cores kept busy by other programs.
        stolen: Fraction of the time that the host of a virtual machine took away.
        taken: Fraction of the cores that both took together.
        gpu_slowed_by: What slowed the GPU down, according to its driver.
        warnings: Findings that cast doubt on the figures.
    """

    deviation: float | None
    other_load: float | None
    stolen: float | None
    taken: float
    gpu_slowed_by: tuple[str, ...]
    warnings: tuple[str, ...]


class RegressionVerdict(StrEnum):
    """The outcome of a comparison with a baseline."""

    WITHIN = "within the limit"
    UNDECIDED = "undecided"
    REGRESSION = "regression"


@dataclass(frozen=True, slots=True)
class Change:
    """One duration beside the baseline's; `ratio` above 1 is slower."""

    name: str
    before_s: float
    after_s: float
    ratio: Interval | None
    verdict: RegressionVerdict | None


@dataclass(frozen=True, slots=True)
class BaselineComparison:
    """All durations beside a baseline's; those without a verdict explain the others.

    `software` and `warnings` are the baseline's. `taken_before` and `taken_after` are the fractions
    of the cores that other programs took, see `Noise`.
    """

    file: str
    software: Software
    warnings: tuple[str, ...]
    taken_before: float
    taken_after: float
    max_regress: float
    changes: tuple[Change, ...]
    verdict: RegressionVerdict


@dataclass(frozen=True, slots=True)
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


HEADER = {"schema_version": 1, "kind": "detcli bench baseline"}

UNUSABLE = ArithmeticError, AttributeError, KeyError, RecursionError, TypeError, ValueError
"""What arbitrary JSON in place of a baseline may raise."""

Identity = dict[str, Any]
"""What must be equal for two measurements to be comparable: name -> JSON value."""

NAMES = "processor architecture system cores mode device batch workers canvas".split()
COMPARED = {name: name for name in NAMES} | {"sha256": "model", "inputs_sha256": "inputs"}
"""Fields of reports that must be equal, and their names in a baseline."""

HINT = "make one with --save-baseline"


@dataclass(frozen=True, slots=True)
class Baseline:
    """An earlier measurement.

    Attributes:
        file: Where it was loaded from, or is to be saved.
        identity: What it was measured on, and how.
        software: Its versions, which may differ.
        samples: All its durations, in seconds.
        warnings: Its warnings about noise.
        taken: Fraction of the cores that other programs took.
    """

    file: str
    identity: Identity
    software: Software
    samples: Samples
    warnings: tuple[str, ...] = ()
    taken: float = 0.0


@dataclass(frozen=True, slots=True)
class Measured:
    """A report, its samples, and what it is comparable with."""

    report: RunReport
    samples: Samples
    identity: Identity


@dataclass(frozen=True, slots=True)
class Limit:
    """A baseline, and how much slower than it the medians may be: 0.05 for 5%."""

    baseline: Baseline
    share: float


def identity_of(
    *parts: BenchMachine | BenchModel | Conditions,
    **more: Any,  # noqa: ANN401 - anything that JSON can hold
) -> Identity:
    """What must be equal, as far as it is known; versions and memory may differ."""
    found = {
        name: getattr(part, field)
        for part in parts
        for field, name in COMPARED.items()
        if hasattr(part, field)
    }
    plain: Identity = json.loads(json.dumps(found | more))
    return plain


def save_baseline(baseline: Baseline) -> None:
    """Write a baseline to its file.

    Raises:
        OutputError: The file cannot be written.
    """
    document = HEADER | asdict(baseline)
    del document["file"]
    write_output(Path(baseline.file), (json.dumps(document, indent=1) + "\n").encode())


def load_baseline(path: Path) -> Baseline:
    """Read a baseline.

    Raises:
        UsageError: The file cannot be read, or is not a baseline.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if any(document[name] != value for name, value in HEADER.items()):
            raise ValueError("unknown kind or version")
        taken = float(document["taken"])
        if not 0 <= taken <= 1:
            raise ValueError(f"{taken} is not a fraction of the cores")
        return Baseline(
            str(path),
            dict(document["identity"]),
            Software(**document["software"]),
            {str(name): _seconds(values) for name, values in document["samples"].items()},
            tuple(map(str, document["warnings"])),
            taken,
        )
    except OSError as error:
        raise UsageError(f"cannot read the baseline {path}: {error.strerror}", HINT) from error
    except UNUSABLE as error:
        raise UsageError(f"{path} is not a baseline of detcli bench: {error}", HINT) from error


def _seconds(values: Any) -> list[float]:  # noqa: ANN401 - from a file
    seconds = np.array(values, np.float64)
    if seconds.ndim != 1 or not seconds.size or not np.isfinite(seconds).all() or seconds.min() < 0:
        raise ValueError("its samples are not lists of seconds")
    return list(map(float, seconds))


def require_same(baseline: Baseline, identity: Identity) -> None:
    """Refuse to compare under different conditions.

    Raises:
        UsageError: Something differs; the message says what.
    """
    different = [
        f"{name} was {baseline.identity.get(name)}, is {value}"
        for name, value in identity.items()
        if baseline.identity.get(name) != value
    ]
    if different:
        raise UsageError(
            f"cannot compare with {baseline.file}: {'; '.join(different)}",
            "compare under the same conditions, or save a new baseline with --save-baseline",
        )


def compare(
    limit: Limit, samples: Mapping[str, list[float]], taken: float = 0.0
) -> BaselineComparison:
    """Compare samples with those of a baseline under the same conditions, see `require_same`.

    The wall clock decides, and the stages explain it. `taken` is the fraction of the cores that
    other programs took.

    Raises:
        UsageError: The baseline has no wall clock.
    """
    baseline, changes = limit.baseline, []
    for name, after in samples.items():
        if not (before := baseline.samples.get(name)):
            continue
        ratio = interval(np.median, after, before)
        verdict = judge(ratio, limit.share, (baseline.taken, taken)) if name == WALL else None
        changes.append(
            Change(name, float(np.median(before)), float(np.median(after)), ratio, verdict)
        )
    if not any(change.verdict for change in changes):
        raise UsageError(f"{baseline.file} has nothing in common with this measurement", HINT)
    worst = next(change.verdict for change in changes if change.verdict)
    told = baseline.software, baseline.warnings, baseline.taken, taken
    return BaselineComparison(baseline.file, *told, limit.share, tuple(changes), worst)


def judge(
    ratio: Interval | None, limit: float, taken: tuple[float, float] = (0.0, 0.0)
) -> RegressionVerdict:
    """Decide whether a ratio is certainly above 1 + `limit`, certainly not, or neither.

    `taken` are the fractions of the cores that other programs took, before and after; without those
    programs, each time may have been shorter by that fraction.
    """
    before, after = taken
    if ratio is not None and ratio.low * (1 - after) > 1 + limit:
        return RegressionVerdict.REGRESSION
    if ratio is not None and ratio.high <= (1 + limit) * (1 - before):
        return RegressionVerdict.WITHIN
    return RegressionVerdict.UNDECIDED


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
