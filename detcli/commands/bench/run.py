"""One measurement of the whole path, latency or throughput, and its report."""

import contextlib
import glob
import hashlib
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, TypeVar, cast

import numpy as np

from detcli.backend.protocol import RUN_TIMEOUT_S, timeout_error
from detcli.cli.messages import fetching
from detcli.cli.options import FILE_VARIABLE
from detcli.commands.bench import sampling
from detcli.commands.bench.machine import (
    GpuWatch,
    NoiseMeter,
    describe_machine,
    describe_software,
    peak_memory,
)
from detcli.commands.bench.report import (
    Baseline,
    BenchModel,
    ColdStart,
    Conditions,
    Latency,
    Overhead,
    PeakMemory,
    RunReport,
    StageFigures,
    Throughput,
    compare,
    identity_of,
)
from detcli.commands.bench.request import BenchRequest, Mode
from detcli.commands.bench.sampling import WALL, Interval, Samples, StageClock, Summary, WarmUp
from detcli.core.config import Config
from detcli.core.device import available_cores
from detcli.core.errors import (
    CheckError,
    DetcliError,
    DetcliWarning,
    DeviceError,
    InputError,
    ModelError,
    UsageError,
)
from detcli.core.geometry import Picture
from detcli.core.options import flat, rows
from detcli.core.text import public_name
from detcli.core.timing import POLL_S, RunningTime, Stage, StageTimes
from detcli.model.file import ModelFile
from detcli.run import locate, open_run
from detcli.run.detector import Detector
from detcli.run.pipeline import Pipeline
from detcli.sink.draw import annotate
from detcli.source.decode import BUILT_IN, TIMEOUT_S, too_slow
from detcli.source.loading import STDIN, Item
from detcli.source.names import is_live
from detcli.source.sources import Sources

STAGES = [stage for stage in Stage if stage not in {Stage.WAIT, Stage.WRITE}]
"""The stages of one batch, in order; nothing overlaps and nothing is written."""

NS = 1e-9


def measure(
    request: BenchRequest, baseline: Baseline | None = None, max_regress: float = 0.05
) -> tuple[RunReport, Baseline]:
    """Measure latency or throughput, and compare it with a baseline if there is one."""
    config, sources = request.config, request.config.inputs.source
    check_repeatable(sources)
    time_limit = TimeLimit()
    with RepeatedInputs(sources, time_limit) as inputs:
        # A mistyped name fails before the cold starts, which take a minute.
        time_limit.run(partial(inputs.take, 1))
    with fetching() as show:
        located = locate(config, show)
    model = BenchModel(config.running.model, ModelFile.read(located.path).sha256)
    identity = identity_of(describe_machine(None), model)
    if baseline is not None:
        baseline.require_same(identity)
    cold_start = measure_cold_start(request)
    with ExitStack() as stack:
        gpu = GpuWatch(config.running.device[0])
        stack.callback(gpu.stop)
        cores = 1 if request.mode is Mode.LATENCY else available_cores()
        running = replace(config.running, workers=config.running.workers or cores)
        run = stack.enter_context(open_run(replace(config, running=running), located))
        detector = run.detector
        conditions = conditions_of(request, detector)
        machine = describe_machine(gpu.before if detector.where.is_gpu else None)
        identity |= identity_of(conditions, gpu=machine.gpu)
        if baseline is not None:
            baseline.require_same(identity)
        noise = NoiseMeter()
        inputs = stack.enter_context(RepeatedInputs(sources, time_limit))
        latency = throughput = None
        if request.mode is Mode.THROUGHPUT:
            throughput, samples = measure_throughput(
                detector, conditions.batch, inputs, request.seconds
            )
        else:
            again = stack.enter_context(RepeatedInputs(sources, time_limit))
            runner = BatchRunner(detector, conditions.batch, inputs, again)
            latency, samples = time_limit.run(partial(measure_latency, runner, request.seconds))
        host_peak = peak_memory()
        states = gpu.stop()
    found = noise.finish(Summary.of(samples[WALL]), states)
    device_memory = None
    used = [state.memory_bytes for state in states if state.memory_bytes is not None]
    if machine.gpu and used and gpu.before and gpu.before.memory_bytes is not None:
        device_memory = max(used) - gpu.before.memory_bytes
    software = describe_software()
    own = Baseline("", identity, software, samples, found.warnings, found.taken)
    report = RunReport(
        kind="run",
        machine=machine,
        software=software,
        model=model,
        conditions=conditions,
        latency=latency,
        throughput=throughput,
        cold_start=cold_start,
        memory=PeakMemory(host_peak, device_memory),
        noise=found,
        comparison=compare(baseline, own, max_regress) if baseline else None,
    )
    return report, own


def conditions_of(request: BenchRequest, detector: Detector) -> Conditions:
    """How the opened detector is measured, without passwords in addresses."""
    alone, config = detector.contract.batch or 1, request.config
    usual = alone if request.mode is Mode.LATENCY else detector.batch
    return Conditions(
        mode=request.mode,
        device=detector.device,
        batch=config.running.batch or usual,
        workers=detector.workers,
        sources=tuple(map(public_name, config.inputs.source)),
        inputs_sha256=digest(config.inputs.source),
        canvas=detector.canvas,
    )


# The pictures

HASHED = 16 << 20
"""Bytes hashed at the start of each file, besides its size."""

STOP_S = 2.0
"""How long an interrupted measurement may take to reach its next step."""

T = TypeVar("T")


class TimeLimit:
    """Runs a measurement on a thread of its own, and gives up if one of its steps never ends.

    A step may be in native code that nothing can interrupt. A thread for each step would be
    measured too; this way a step costs a note of when it began.
    """

    def __init__(self) -> None:
        self._step: tuple[RunningTime, float, DetcliError] | None = None
        self._over = False

    def step(self, limit_s: float, error: DetcliError) -> None:
        """Begin a step, which ends the one before; `error` is raised if it takes longer."""
        if self._over:
            raise KeyboardInterrupt
        self._step = RunningTime(), limit_s, error

    def run(self, measure: Callable[[], T]) -> T:
        """Run a measurement; a thread whose step took too long is abandoned."""
        outcome: Future[T] = Future()

        def run() -> None:
            try:
                outcome.set_result(measure())
            except BaseException as error:  # noqa: BLE001 - raised again by the caller
                outcome.set_exception(error)

        self._step = None
        threading.Thread(target=run, daemon=True).start()
        try:
            while not wait([outcome], POLL_S).done:
                if self._step is not None:
                    running, limit_s, error = self._step
                    if running.seconds() > limit_s and not outcome.done():
                        raise error
        except KeyboardInterrupt:
            self._over = True
            wait([outcome], STOP_S)  # what it uses is closed next
            raise
        return outcome.result()


class RepeatedInputs(AbstractContextManager["RepeatedInputs"]):
    """The pictures and frames of repeatable sources, starting over at the end of each pass.

    Each picture has a limit where `time_limit` runs what takes them.
    """

    def __init__(self, names: tuple[str, ...], time_limit: TimeLimit) -> None:
        self._names = names or (str(BUILT_IN),)
        self.time_limit = time_limit
        self._sources = Sources(self._names)
        self._told: set[str] = set()  # warnings

    def __exit__(self, *_: object) -> None:
        self._sources.close()

    def next_item(self) -> Item:
        """The next item; never runs out."""
        item = next(iter(self._sources), None)
        if item is None:
            self._sources = Sources(self._names)
            item = next(iter(self._sources))  # an empty source yields an item with the error
        return item

    def take(self, count: int) -> list[Picture]:
        """Read and decode the next pictures; an error begins with the picture's name."""
        pictures = []
        for _ in range(count):
            item = self.next_item()
            source = item.origin.source
            self.time_limit.step(TIMEOUT_S, too_slow(TIMEOUT_S).about(source))
            try:
                picture = item.load()
            except InputError as error:
                raise error.about(source) from error
            for warning in {f"{source}: {one}" for one in picture.warnings}:
                if warning not in self._told:  # each pass would repeat it
                    self._told.add(warning)
                    warnings.warn(warning, DetcliWarning, stacklevel=2)
            pictures.append(picture)
        return pictures


def check_repeatable(names: tuple[str, ...]) -> None:
    """Refuse sources that can be read only once."""
    for name in names:
        if name == STDIN or is_live(name):
            what = "standard input" if name == STDIN else f"{name} is live: it"
            raise UsageError(
                f"{what} cannot be read again and again, which measuring needs",
                "give files or folders; a short recording will do",
            )


def digest(names: tuple[str, ...]) -> str:
    """SHA-256 that identifies a set of inputs, wherever the files are.

    Files count by size and content, folders by names and sizes, anything else by its name. What
    cannot be read has its own error when it is loaded.
    """
    whole = hashlib.sha256()
    for name in names or (str(BUILT_IN),):
        for found in sorted(glob.glob(name)) if glob.has_magic(name) else [name]:  # noqa: PTH207 - as named
            path, parts = Path(found), []
            with contextlib.suppress(OSError):
                if path.is_dir():
                    for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
                        parts.append(os.fsencode(entry.name))
                        with contextlib.suppress(OSError):  # a link to nothing
                            parts.append(str(entry.stat().st_size).encode())
                elif path.is_file():
                    with path.open("rb") as file:
                        parts.append(str(path.stat().st_size).encode())
                        parts.append(hashlib.sha256(file.read(HASHED)).digest())
                else:
                    parts.append(os.fsencode(path))
            for part in parts:
                whole.update(part + b"\0")
    return whole.hexdigest()


# Cold start: whole processes, from their start to the first record and to their end

ERROR_TYPES = {
    kind.exit_code: kind for kind in (UsageError, InputError, ModelError, DeviceError, CheckError)
}


PREDICTED = (
    *("model", "device", "imgsz", "nms", "box_format", "preprocess"),
    *("gpu_mem_limit", "boxes_only", "half", "cuda_graph"),
)
"""Options that a cold start has from the request."""


def predict_command(request: BenchRequest, picture: Path) -> list[str]:
    """Command line of `detcli predict` for one picture, with the options of the request."""
    command = [sys.executable, "-m", "detcli", "predict", "--quiet", "--format", "jsonl"]
    known, values = rows(Config), flat(request.config)
    for name in PREDICTED:
        row, value = known[name], values[name]
        if isinstance(value, bool):
            command.append(row.flag if value else f"--no-{row.flag[2:]}")
        elif value is not None:
            command += [row.flag, ",".join(map(str, value)) if row.many else str(value)]
    return [*command, "--", str(picture)]


def measure_cold_start(request: BenchRequest) -> ColdStart | None:
    """Run `detcli predict` on the built-in picture as often as the request asks for.

    A first run, which is not counted, fills the caches of detcli and of the file system, and
    compiles the GPU's kernels. To be called while this process is small: Linux counts the memory of
    a parent towards the peak of the processes that it starts.
    """
    if not request.cold_starts:
        return None
    command = predict_command(request, BUILT_IN)
    runs = [run_process(command) for _ in range(request.cold_starts + 1)][1:]
    peaks = [run.peak_memory for run in runs if run.peak_memory is not None]
    return ColdStart(
        processes=len(runs),
        first_record_s=statistics.median(run.first_line_s for run in runs),
        whole_process_s=statistics.median(run.whole_s for run in runs),
        peak_memory_bytes=int(statistics.median(peaks)) if peaks else None,
    )


@dataclass(frozen=True, slots=True)
class ProcessRun:
    """Seconds from a process's start to its first line of output and to its end."""

    first_line_s: float
    whole_s: float
    peak_memory: int | None  # resident bytes; None on Windows


def run_process(command: Sequence[str]) -> ProcessRun:
    """Run a command to its end; if it fails, its own error is raised."""
    environment = {**os.environ, FILE_VARIABLE: os.devnull}  # the user's defaults are not measured
    peak = None
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as stderr:
        start = time.perf_counter()
        with subprocess.Popen(  # noqa: S603 - detcli itself, or a benchmark's peer
            command, stdout=subprocess.PIPE, stderr=stderr, env=environment
        ) as process:
            output = cast("IO[bytes]", process.stdout)
            try:
                output.readline()
                first = time.perf_counter() - start
                output.read()
                if sys.platform != "win32":
                    _, status, usage = os.wait4(process.pid, 0)
                    process.returncode = os.waitstatus_to_exitcode(status)
                    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
            except BaseException:
                process.kill()
                raise
        whole = time.perf_counter() - start
        if process.returncode:
            stderr.seek(0)
            raise process_error(process.returncode, stderr.read())
    return ProcessRun(first, whole, peak)


def process_error(exit_code: int, stderr: str) -> DetcliError:
    """The error of a detcli process, from its exit code and its stderr."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("detcli: ") for line in lines if line.startswith("detcli: ")]
    hints = [line.strip().removeprefix("hint: ") for line in lines if line.startswith("  hint: ")]
    message = [f"exited with status {exit_code}", *lines[-1:], *errors][-1]
    return ERROR_TYPES.get(exit_code, DetcliError)(message, "".join(hints[-1:]))


# Latency. Every batch runs twice, once with all its stages timed and once without: the first shows
# where the time goes, the second how long a batch takes, and their ratio what timing costs. The
# order alternates, so that neither always runs on the warmer or busier machine.

MIN_RUNS = 10
"""The minimum, even if it takes longer than requested."""


class BatchRunner:
    """Runs batches from reading the files to drawing the boxes.

    `timed` and `untimed` yield the same pictures, for runs with and without timed stages.
    """

    def __init__(
        self, detector: Detector, batch: int, timed: RepeatedInputs, untimed: RepeatedInputs
    ) -> None:
        self._detector, self._batch = detector, batch
        self._timed, self._untimed = timed, untimed
        self._timeout_error = timeout_error(detector.model_name, RUN_TIMEOUT_S)
        self.clock = StageClock()
        self.synchronised = detector.in_flight > 1  # the device runs on by itself

    def run_both(self, *, timed_first: bool = False) -> float:
        """Run a batch in both ways; returns the seconds of the untimed run."""
        if timed_first:
            self.run_timed()
        start = time.perf_counter()
        self._detect(self._untimed.take(self._batch))
        seconds = time.perf_counter() - start
        if not timed_first:
            self.run_timed()
        return seconds

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
        self._timed.time_limit.step(RUN_TIMEOUT_S, self._timeout_error)
        for picture, found in zip(pictures, self._detector.submit(pictures)(), strict=True):
            annotate(picture.pixels, found)


def measure_latency(runner: BatchRunner, seconds: float) -> tuple[Latency, Samples]:
    """Run one batch after the other, for some seconds after the warm-up."""
    before = sampling.warm_up(runner.run_both)
    undisturbed: list[float] = []
    walls: list[float] = []
    runs: list[dict[Stage, int]] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(walls) < MIN_RUNS:
        undisturbed.append(runner.run_both(timed_first=len(walls) % 2 == 1))
        walls.append(NS * runner.clock.wall)
        runs.append(runner.clock.stages)
    wall = Summary.of(walls)
    samples: Samples = {WALL: undisturbed}
    stages = []
    for stage in STAGES:
        if not any(stage in run for run in runs):  # the device lacks it
            stages.append(StageFigures(stage, None, None))
            continue
        samples[stage] = [NS * run.get(stage, 0) for run in runs]  # 0 where a run skipped it
        summary = Summary.of(samples[stage])
        stages.append(StageFigures(stage, summary, summary.mean_s / wall.mean_s))
    cost = sampling.clock_cost(runner.clock.calls)
    ratios = [timed / untimed for timed, untimed in zip(walls, undisturbed, strict=True)]
    latency = Latency(
        undisturbed=Summary.of(undisturbed),
        undisturbed_median=sampling.interval(np.median, undisturbed),
        wall=wall,
        stages=tuple(stages),
        synchronised=runner.synchronised,
        warm_up=replace(before, runs=2 * before.runs),
        overhead=Overhead(cost, cost / wall.mean_s, sampling.interval(np.median, ratios)),
    )
    return latency, samples


# Throughput

WINDOWS = 50
"""The measured time is cut into about this many windows; the pace of each is a sample."""


@dataclass(slots=True)
class _Arrivals:
    """When each record arrived."""

    step: int  # records that may arrive at once
    warm: int = 0  # number of the last record of the warm-up; 0 while it lasts
    stable: bool = False  # the warm-up ended because the pace was stable
    times: list[float] = field(default_factory=lambda: [time.perf_counter()])  # the start first

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
    """Run the pipeline of `detcli predict`, for some seconds after the warm-up."""
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
