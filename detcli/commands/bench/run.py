"""One measurement of the whole path, latency or throughput, and its report."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from detcli.backend.failures import RUN_TIMEOUT_S, timeout_error
from detcli.commands.bench import sampling
from detcli.commands.bench.baseline import Limit, Measured, compare, identity_of, require_same
from detcli.commands.bench.cold_start import measure_cold_start
from detcli.commands.bench.inputs import RepeatedInputs, check_repeatable, digest
from detcli.commands.bench.machine import (
    GpuWatch,
    NoiseMeter,
    describe_machine,
    describe_model,
    describe_software,
    peak_memory,
)
from detcli.commands.bench.report import (
    Conditions,
    Interval,
    Latency,
    Overhead,
    PeakMemory,
    RunReport,
    StageFigures,
    Summary,
    Throughput,
    WarmUp,
)
from detcli.commands.bench.request import BenchRequest, Mode
from detcli.commands.bench.sampling import WALL, Samples, StageClock
from detcli.commands.bench.time_limit import TimeLimit
from detcli.detector import Detector
from detcli.errors import InputError
from detcli.geometry import Picture
from detcli.pipeline import Pipeline
from detcli.sink.draw import annotate
from detcli.source.item import Item
from detcli.text import public_name
from detcli.timing import Stage, StageTimes

STAGES = [stage for stage in Stage if stage not in {Stage.WAIT, Stage.WRITE}]
"""The stages of one batch, in order; nothing overlaps and nothing is written."""

NS = 1e-9


def measure(request: BenchRequest, limit: Limit | None = None) -> Measured:
    """Measure latency or throughput, and compare it with a baseline if there is one.

    Raises:
        UsageError: A source can be read only once, or the baseline has other conditions.
        ModelError: The model cannot be used.
        DeviceError: The device cannot be used.
        InputError: A picture cannot be read.
        InferenceError: The runtime failed.
    """
    check_repeatable(request.sources)
    time_limit = TimeLimit()
    with RepeatedInputs(request.sources, time_limit) as inputs:
        # A mistyped name fails before the cold starts, which take a minute.
        time_limit.run(partial(inputs.take, 1))
    located = request.run.find_model()
    model = describe_model(request.run.model, located.path)
    identity = identity_of(describe_machine(None), model)
    if limit is not None:
        require_same(limit.baseline, identity)
    cold_start = measure_cold_start(request)
    with ExitStack() as stack:
        gpu = GpuWatch(request.run.devices[0])
        stack.callback(gpu.stop)
        detector = stack.enter_context(request.run.open_detector(located))
        conditions = _conditions(request, detector)
        machine = describe_machine(gpu.before if detector.where.is_gpu else None)
        identity |= identity_of(conditions, gpu=machine.gpu)
        if limit is not None:
            require_same(limit.baseline, identity)
        noise = NoiseMeter()
        inputs = stack.enter_context(RepeatedInputs(request.sources, time_limit))
        latency = throughput = None
        if request.mode is Mode.THROUGHPUT:
            throughput, samples = measure_throughput(
                detector, conditions.batch, inputs, request.seconds
            )
            wall = Summary.of(samples[WALL])
        else:
            again = stack.enter_context(RepeatedInputs(request.sources, time_limit))
            runner = BatchRunner(detector, conditions.batch, inputs, again, time_limit)
            latency, samples = time_limit.run(partial(measure_latency, runner, request.seconds))
            wall = latency.undisturbed
        host_peak = peak_memory()
        states = gpu.stop()
    device_memory = None
    used = [state.memory_bytes for state in states if state.memory_bytes is not None]
    if machine.gpu and used and gpu.before and gpu.before.memory_bytes is not None:
        device_memory = max(used) - gpu.before.memory_bytes
    found = noise.finish(wall, states)
    report = RunReport(
        kind="run",
        machine=machine,
        software=describe_software(),
        model=model,
        conditions=conditions,
        latency=latency,
        throughput=throughput,
        cold_start=cold_start,
        memory=PeakMemory(host_peak, device_memory),
        noise=found,
        comparison=compare(limit, samples, found.taken) if limit else None,
    )
    return Measured(report, samples, identity)


def _conditions(request: BenchRequest, detector: Detector) -> Conditions:
    alone = detector.contract.batch or 1
    return Conditions(
        mode=request.mode,
        device=detector.device,
        batch=request.run.batch or (alone if request.mode is Mode.LATENCY else detector.batch),
        workers=detector.workers,
        sources=tuple(map(public_name, request.sources)),
        inputs_sha256=digest(request.sources),
        canvas=detector.canvas,
    )


# Latency. Every batch runs twice, once with all its stages timed and once without: the first shows
# where the time goes, the second how long a batch takes, and their ratio what timing costs. The
# order alternates, so that neither always runs on the warmer or busier machine.

MIN_RUNS = 10
"""The minimum, even if it takes longer than requested."""


class BatchRunner:
    """Runs batches from reading the files to drawing the boxes.

    `timed` and `untimed` yield the same pictures, for runs with and without timed stages. Where
    `time_limit` runs the measurement, each batch has a time limit.
    """

    def __init__(
        self,
        detector: Detector,
        batch: int,
        timed: RepeatedInputs,
        untimed: RepeatedInputs,
        time_limit: TimeLimit | None = None,
    ) -> None:
        self._detector, self._batch = detector, batch
        self._timed, self._untimed = timed, untimed
        self._time_limit = time_limit or TimeLimit()
        self._timeout_error = partial(timeout_error, detector.model_name, RUN_TIMEOUT_S)
        self.clock = StageClock()
        self.synchronised = detector.in_flight > 1  # the device runs on by itself

    def run(self) -> float:
        """Run a batch; returns its seconds."""
        start = time.perf_counter()
        self._detect(self._untimed.take(self._batch))
        return time.perf_counter() - start

    def run_timed(self) -> None:
        """Run a batch with its stages on the clock."""
        clock = self.clock
        self._detector.observe(clock.ended)
        try:
            clock.start()
            pictures = self._timed.take(self._batch)
            clock.ended(Stage.DECODE)
            self._detect(pictures)
            clock.ended(Stage.DRAW)
            clock.stop()
        finally:
            self._detector.observe(None)

    def _detect(self, pictures: Sequence[Picture]) -> None:
        self._time_limit.step(RUN_TIMEOUT_S, self._timeout_error)
        for picture, found in zip(pictures, self._detector.submit(pictures)(), strict=True):
            annotate(picture.pixels, found)

    def run_both(self, *, timed_first: bool = False) -> float:
        """Run a batch in both ways; returns the seconds of the untimed run."""
        if timed_first:
            self.run_timed()
            return self.run()
        seconds = self.run()
        self.run_timed()
        return seconds


def measure_latency(runner: BatchRunner, seconds: float) -> tuple[Latency, Samples]:
    """Run one batch after the other, for some seconds after the warm-up.

    Raises:
        InputError: A picture cannot be read.
        InferenceError: The runtime failed.
    """
    before = sampling.warm_up(runner.run_both)
    undisturbed: list[float] = []
    walls: list[int] = []
    stages: list[dict[Stage, int]] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(walls) < MIN_RUNS:
        undisturbed.append(runner.run_both(timed_first=len(walls) % 2 == 1))
        walls.append(runner.clock.wall)
        stages.append(runner.clock.stages)
    wall = Summary.of([NS * ns for ns in walls])
    cost = sampling.clock_cost(runner.clock.calls)
    ratios = [NS * timed / untimed for timed, untimed in zip(walls, undisturbed, strict=True)]
    by_stage: Samples = {
        stage: [NS * run.get(stage, 0) for run in stages]  # 0 where a run skipped the stage
        for stage in STAGES
        if any(stage in run for run in stages)  # the device has it
    }
    summaries = {stage: Summary.of(samples) for stage, samples in by_stage.items()}
    latency = Latency(
        undisturbed=Summary.of(undisturbed),
        undisturbed_median=sampling.interval(np.median, undisturbed),
        wall=wall,
        stages=tuple(
            StageFigures(stage, one, one.mean_s / wall.mean_s if one else None)
            for stage, one in ((stage, summaries.get(stage)) for stage in STAGES)
        ),
        synchronised=runner.synchronised,
        warm_up=replace(before, runs=2 * before.runs),
        overhead=Overhead(cost, cost / wall.mean_s, sampling.interval(np.median, ratios)),
    )
    return latency, {WALL: undisturbed, **by_stage}


# Throughput

WINDOWS = 50
"""The measured time is cut into about this many windows; the pace of each is a sample."""


@dataclass(slots=True)
class _Arrivals:
    """When each record arrived.

    Attributes:
        step: Records that may arrive at once.
        warm: Number of the last record of the warm-up; 0 while it lasts.
        stable: Whether it ended because the pace was stable.
        times: The start, then the time of each record.
    """

    step: int
    warm: int = 0
    stable: bool = False
    times: list[float] = field(default_factory=lambda: [time.perf_counter()])

    def add(self) -> float:
        """Note a record; returns the seconds measured so far, without the warm-up."""
        self.times.append(time.perf_counter())
        if not self.warm and (len(self.times) - 1) % self.step == 0:
            taken = np.diff(self.times[-sampling.TWO_BLOCKS * self.step - 1 :: self.step]).tolist()
            stable = sampling.is_stable(taken, self.times[-1] - self.times[0])
            if stable is not None:
                self.warm, self.stable = len(self.times) - 1, stable
        return self.times[-1] - self.times[self.warm] if self.warm else 0.0

    def samples(self) -> list[float]:
        """Seconds per picture of each window after the warm-up."""
        steps = (len(self.times) - 1 - self.warm) // self.step
        window = self.step * max(1, steps // WINDOWS)
        taken: list[float] = (np.diff(self.times[self.warm :: window]) / window).tolist()
        return taken


def measure_throughput(
    detector: Detector, batch: int, inputs: RepeatedInputs, seconds: float
) -> tuple[Throughput, Samples]:
    """Run the pipeline of `detcli predict`, for some seconds after the warm-up.

    Returns:
        The figures and their samples: seconds per picture.

    Raises:
        InputError: A picture cannot be read.
        InferenceError: The runtime failed.
    """
    enough = threading.Event()
    pipeline = Pipeline(detector, batch, [detector.device] * (detector.workers - 1))
    arrivals = _Arrivals(batch * detector.workers)
    in_flight = 0
    reading = StageTimes()

    def items() -> Iterator[Item]:
        """Items until enough are measured; frames of videos are decoded here."""
        while not enough.is_set():
            with reading.stage(Stage.DECODE):
                item = inputs.next_item()
            yield item

    for record in pipeline.run(items()):
        if enough.is_set():
            in_flight += 1
            continue
        if isinstance(record.error, InputError):
            raise record.error.about(record.origin.source) from record.error
        if record.error is not None:
            raise record.error
        if arrivals.add() > seconds and len(arrivals.times) > arrivals.warm + 2 * arrivals.step:
            enough.set()
    samples, times, warm = arrivals.samples(), arrivals.times, arrivals.warm
    count = len(times) - 1
    measured, taken = count - warm, times[-1] - times[warm]
    cost = sampling.clock_cost(1)
    pace = sampling.interval(np.mean, samples)
    figures = Throughput(
        pictures_per_second=measured / taken,
        interval=Interval(1 / pace.estimate, 1 / pace.high, 1 / pace.low) if pace else None,
        pictures=measured,
        seconds=taken,
        warm_up=WarmUp(warm, times[warm] - times[0], times[1] - times[0], stable=arrivals.stable),
        work_s={
            stage: (spent + reading.get(stage, 0.0)) / (count + in_flight)
            for stage, spent in pipeline.times.items()
        },
        overhead=Overhead(cost, cost * measured / taken, None),
    )
    return figures, {WALL: samples}
