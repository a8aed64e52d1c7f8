"""What a measurement comes to; its JSON form is described by schemas/bench.json.

Times are in seconds, memory in bytes. None is what was not measured, or does not exist there.
"""

from dataclasses import dataclass

from detcli.commands.bench.modes import Mode, Verdict
from detcli.commands.bench.statistics import Interval, Summary


@dataclass(frozen=True, slots=True)
class Machine:
    """What is measured on; `gpu` and `driver` are None where no GPU takes part."""

    processor: str | None
    architecture: str
    system: str
    cores: int
    memory_bytes: int
    gpu: str | None
    driver: str | None


@dataclass(frozen=True, slots=True)
class Software:
    """Versions; `onnxruntime` is None where it took no part."""

    detcli: str
    python: str
    numpy: str
    opencv: str | None
    onnxruntime: str | None


@dataclass(frozen=True, slots=True)
class Model:
    """The file that was named, and the SHA-256 of its content."""

    file: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Conditions:
    """How it was measured; no sources means the built-in picture, canvas is height and width."""

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

    name: str
    summary: Summary | None
    share: float | None


@dataclass(frozen=True, slots=True)
class Overhead:
    """What measuring costs.

    Attributes:
        clock_s: Seconds that the clock takes in a run.
        clock_share: The same, of the mean wall clock.
        observed: A run with all stages timed over the one beside it that nobody watched, the
            median of all pairs. On a GPU this is what waiting between the stages costs.
    """

    clock_s: float
    clock_share: float
    observed: Interval | None


@dataclass(frozen=True, slots=True)
class Latency:
    """One batch after the other.

    Attributes:
        undisturbed: Wall clock of a batch that nobody watched; what users feel.
        undisturbed_median: The median of that, and how certain it is.
        wall: Wall clock of a batch whose stages were timed.
        stages: Their means sum to the mean of `wall`; the last one is the remainder.
        synchronised: The device was waited for after each stage; the CPU works by itself never.
        warm_up: What came before.
        overhead: What the timing costs.
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
    """All at once, as `predict` does it.

    Attributes:
        pictures_per_second: And how certain that is.
        pictures: So many were measured, after the warm-up.
        seconds: In that time.
        warm_up: `runs` are pictures.
        work_s: Seconds of work on a picture in each stage, warm-up included; they overlap.
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
class Memory:
    """The most that this process took, and what the device held in the end for it."""

    host_peak_bytes: int | None
    device_bytes: int | None


@dataclass(frozen=True, slots=True)
class Noise:
    """What else the machine did meanwhile.

    Attributes:
        deviation: Standard deviation of the wall clock, as a part of its mean.
        other_load: Cores that other programs kept busy.
        stolen: Part of the time in which the host of a virtual machine ran something else.
        taken: Part of the cores that both together took, 0 to 1.
        frequency_low_mhz: The least that the processor's clock was seen at.
        frequency_high_mhz: And the most.
        throttled: How often the processor or a quota slowed this down.
        gpu_slowed_by: What slowed the GPU down, as its driver tells.
        warnings: What of all this casts doubt on the figures.
    """

    deviation: float | None
    other_load: float | None
    stolen: float | None
    taken: float
    frequency_low_mhz: float | None
    frequency_high_mhz: float | None
    throttled: int | None
    gpu_slowed_by: tuple[str, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """One duration, beside the baseline's; `ratio` above 1 is slower."""

    name: str
    before_s: float
    after_s: float
    ratio: Interval | None
    verdict: Verdict | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """All durations beside a baseline's; those without a verdict are there to explain.

    `software` and `warnings` are the baseline's. `taken_before` and `taken_after` are the parts of
    the cores that others had, see `Noise`.
    """

    file: str
    software: Software
    warnings: tuple[str, ...]
    taken_before: float
    taken_after: float
    max_regress: float
    changes: tuple[Change, ...]
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class RunReport:
    """One measurement of the whole path."""

    kind: str
    machine: Machine
    software: Software
    model: Model
    conditions: Conditions
    latency: Latency | None
    throughput: Throughput | None
    cold_start: ColdStart | None
    memory: Memory
    noise: Noise
    comparison: Comparison | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a combination has no figures, and the exit code that goes with it."""

    message: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class Point:
    """One combination of a sweep.

    Attributes:
        values: Of the axes, as they were asked for.
        device: Where it ran.
        batch: Pictures in a batch.
        workers: Detectors; a GPU has one, whatever was asked for.
        pictures_per_second: In mode latency, of one batch after the other, by the median.
        interval: How certain that is.
        latency: Wall clock of a batch; None in mode throughput.
        memory: Of its process.
        warnings: About noise.
        failure: Why there is nothing of this.
    """

    values: dict[str, str]
    device: str | None = None
    batch: int | None = None
    workers: int | None = None
    pictures_per_second: float | None = None
    interval: Interval | None = None
    latency: Summary | None = None
    memory: Memory | None = None
    warnings: tuple[str, ...] = ()
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class SweepReport:
    """Many combinations, a process each."""

    kind: str
    mode: Mode
    axes: dict[str, tuple[str, ...]]
    machine: Machine
    software: Software
    points: tuple[Point, ...]
