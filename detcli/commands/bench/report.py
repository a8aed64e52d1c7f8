"""The results of a measurement; docs/benchmark.md shows their JSON form.

Times are in seconds, memory in bytes. None stands for a figure that was not measured, or that does
not exist on the device.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import numpy as np
import numpy.typing as npt

from detcli.commands.bench.request import Mode
from detcli.timing import Stage

MIN_FOR_P90, MIN_FOR_P99 = 10, 100
"""Samples; with fewer, the percentile would be the maximum under another name."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Samples of one duration; p90_s is None below 10 samples, p99_s below 100."""

    p50_s: float
    p90_s: float | None
    p99_s: float | None
    mean_s: float
    deviation_s: float
    samples: int

    @classmethod
    def of(cls, samples: npt.ArrayLike) -> "Summary":
        """Summarise seconds; at least one."""
        values = np.asarray(samples, np.float64)
        p50, p90, p99 = map(float, np.percentile(values, [50, 90, 99]))
        p90_s = p90 if len(values) >= MIN_FOR_P90 else None
        p99_s = p99 if len(values) >= MIN_FOR_P99 else None
        return cls(p50, p90_s, p99_s, float(values.mean()), float(values.std()), len(values))


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its 95% confidence interval."""

    estimate: float
    low: float
    high: float


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
class WarmUp:
    """Runs before the measured ones; `stable` is False where the times never settled."""

    runs: int
    seconds: float
    first_s: float
    stable: bool


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
