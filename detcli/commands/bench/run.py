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
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import numpy as np

from detcli.backend.failures import RUN_TIMEOUT_S, timeout_error
from detcli.commands.bench import sampling
from detcli.commands.bench.machine import (
    GpuWatch,
    NoiseMeter,
    describe_machine,
    describe_model,
    describe_software,
    peak_memory,
)
from detcli.commands.bench.report import (
    ColdStart,
    Conditions,
    Latency,
    Limit,
    Measured,
    Mode,
    Overhead,
    PeakMemory,
    RunReport,
    StageFigures,
    Throughput,
    compare,
    identity_of,
    require_same,
)
from detcli.commands.bench.sampling import WALL, Interval, Samples, StageClock, Summary, WarmUp
from detcli.commands.shared.defaults_file import FILE_VARIABLE
from detcli.commands.shared.setup import RunOptions
from detcli.detector import Detector
from detcli.errors import (
    CheckError,
    DetcliError,
    DetcliWarning,
    DeviceError,
    InputError,
    ModelError,
    UsageError,
)
from detcli.geometry import Picture
from detcli.pipeline import Pipeline
from detcli.sink.draw import annotate
from detcli.source.address import is_live
from detcli.source.decode import BUILT_IN, TIMEOUT_S, too_slow
from detcli.source.item import STDIN, Item
from detcli.source.reading import POLL_S
from detcli.source.sources import Sources
from detcli.text import public_name
from detcli.timing import RunningTime, Stage, StageTimes


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """A measurement of latency or throughput.

    Attributes:
        run: Model, device and settings; its batch is None for one picture in mode latency, else
            for what suits the device.
        mode: LATENCY or THROUGHPUT.
        sources: Pictures and videos; empty for the built-in picture.
        seconds: How long to measure, after the warm-up.
        cold_starts: Number of whole processes to time first.

    Raises:
        UsageError: The parts contradict each other.
    """

    run: RunOptions
    mode: Mode = "latency"
    sources: tuple[str, ...] = ()
    seconds: float = 10.0
    cold_starts: int = 5

    def __post_init__(self) -> None:
        workers = self.run.device_options.workers
        if self.mode == "latency" and workers > 1:
            raise UsageError(
                f"--workers {workers}: latency is measured with one detector",
                "use --mode throughput to measure several in parallel",
            )
        if len(self.run.devices) > 1:
            names = ",".join(map(str, self.run.devices))
            raise UsageError(f"'{names}' names several devices", "measure one after the other")


STOP_S = 2.0
"""How long an interrupted measurement may take to reach its next step."""

T = TypeVar("T")

TimedStep = tuple[RunningTime, float, Callable[[], DetcliError]]


class TimeLimit:
    """Runs a measurement on a thread of its own, and gives up if one of its steps never ends.

    A step may be in native code that nothing can interrupt. A thread for each step would be
    measured too; this way a step costs a note of when it began.
    """

    def __init__(self) -> None:
        self._step: TimedStep | None = None
        self._over = False

    def step(self, limit_s: float, error: Callable[[], DetcliError]) -> None:
        """Begin a step, which ends the one before.

        Args:
            limit_s: Seconds that it may take.
            error: Makes the error if it takes longer.

        Raises:
            KeyboardInterrupt: The measurement was interrupted.
        """
        if self._over:
            raise KeyboardInterrupt
        self._step = RunningTime(), limit_s, error

    def run(self, measure: Callable[[], T]) -> T:
        """Run a measurement, and pass on its result or error.

        Raises:
            DetcliError: A step took too long; its thread is abandoned.
        """
        done: list[T] = []
        failed: list[BaseException] = []

        def run() -> None:
            try:
                done.append(measure())
            except BaseException as error:  # noqa: BLE001 - raised again by the caller
                failed.append(error)

        self._step = None
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                thread.join(POLL_S)
                if self._step is not None:
                    running, limit_s, error = self._step
                    if running.seconds() > limit_s and thread.is_alive():
                        raise error()
        except KeyboardInterrupt:
            self._over = True
            thread.join(STOP_S)  # what it uses is closed next
            raise
        if failed:
            raise failed[0]
        return done[0]


HASHED = 16 << 20
"""Bytes hashed at the start of each file, besides its size."""


class RepeatedInputs(AbstractContextManager["RepeatedInputs"]):
    """The pictures and frames of repeatable sources, starting over at the end of each pass.

    Each picture has a time limit where `time_limit` runs what takes them.
    """

    def __init__(self, names: tuple[str, ...], time_limit: TimeLimit | None = None) -> None:
        self._names = names or (str(BUILT_IN),)
        self._time_limit = time_limit or TimeLimit()
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
        """Read and decode the next pictures.

        Raises:
            InputError: A picture cannot be read; the message begins with its name.
        """
        pictures = []
        for _ in range(count):
            item = self.next_item()
            source = item.origin.source
            self._time_limit.step(TIMEOUT_S, partial(_too_slow, source))
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


def _too_slow(source: str) -> InputError:
    return too_slow(TIMEOUT_S).about(source)


def check_repeatable(names: tuple[str, ...]) -> None:
    """Refuse sources that can be read only once.

    Raises:
        UsageError: A source is live, or standard input.
    """
    for name in names:
        if name == STDIN or is_live(name):
            what = "standard input" if name == STDIN else f"{name} is live: it"
            raise UsageError(
                f"{what} cannot be read again and again, which measuring needs",
                "give files or folders; a short recording will do",
            )


def digest(names: tuple[str, ...]) -> str:
    """SHA-256 that identifies a set of inputs, wherever the files are.

    Files count by size and content, folders by names and sizes, anything else by its name.
    """
    whole = hashlib.sha256()
    for name in names or (str(BUILT_IN),):
        for path in sorted(glob.glob(name)) if glob.has_magic(name) else [name]:  # noqa: PTH207 - as named
            for part in _identity(Path(path)):
                whole.update(part + b"\0")
    return whole.hexdigest()


def _identity(path: Path) -> Iterator[bytes]:
    """What cannot be read has its own error when it is loaded."""
    if path.is_dir():
        for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
            yield os.fsencode(entry.name)
            with contextlib.suppress(OSError):  # a link to nothing
                yield str(entry.stat().st_size).encode()
    elif path.is_file():
        with contextlib.suppress(OSError), path.open("rb") as file:
            yield str(path.stat().st_size).encode()
            yield hashlib.sha256(file.read(HASHED)).digest()
    else:
        yield os.fsencode(path)


DETCLI = (sys.executable, "-m", "detcli")


def predict_command(request: BenchRequest, picture: Path) -> list[str]:
    """Command line of `detcli predict` for one picture, with the options of the request."""
    return _command("predict", request, [str(picture)], quiet=True, format="jsonl")


def _command(name: str, request: BenchRequest, sources: Sequence[str], **own: Any) -> list[str]:  # noqa: ANN401 - values of options
    run, command = request.run, [*DETCLI, name]
    shared = {
        "model": run.model,
        "device": run.devices[0],
        "imgsz": run.settings.imgsz,
        "nms": run.settings.nms,
        "box_format": run.settings.box_format,
        "preprocess": run.settings.preprocess,
        "gpu_mem_limit": run.device_options.gpu_mem_limit,
        "boxes_only": run.settings.boxes_only or None,
        "half": run.device_options.half or None,
        "cuda_graph": run.device_options.cuda_graph,
    }
    for option, value in (shared | own).items():
        title = option.replace("_", "-")
        if isinstance(value, bool):
            command.append(f"--{title}" if value else f"--no-{title}")
        elif value is not None:
            command += [f"--{title}", str(value)]
    return [*command, "--", *sources]


ERROR_TYPES = {
    kind.exit_code: kind for kind in (UsageError, InputError, ModelError, DeviceError, CheckError)
}


def measure_cold_start(request: BenchRequest) -> ColdStart | None:
    """Run `detcli predict` on the built-in picture as often as the request asks for.

    A first run, which is not counted, fills the caches of detcli and of the file system, and
    compiles the GPU's kernels. To be called while this process is small: Linux counts the memory of
    a parent towards the peak of the processes that it starts.

    Raises:
        DetcliError: The command failed; the message is its own.
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
    """Seconds from a process's start to its first line of output and to its end.

    `peak_memory` is its peak resident bytes; None on Windows.
    """

    first_line_s: float
    whole_s: float
    peak_memory: int | None


def run_process(command: Sequence[str]) -> ProcessRun:
    """Run a command to its end.

    Raises:
        DetcliError: The command failed; the message is the end of its stderr.
    """
    environment = {**os.environ, FILE_VARIABLE: os.devnull}  # the user's defaults are not measured
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
                peak = _wait(process)
            except BaseException:
                process.kill()
                raise
        whole = time.perf_counter() - start
        if process.returncode:
            stderr.seek(0)
            raise process_error(process.returncode, stderr.read())
    return ProcessRun(first, whole, peak)


def _wait(process: "subprocess.Popen[bytes]") -> int | None:
    """Wait for a process to end; returns its peak memory where the system reports it."""
    if sys.platform == "win32":
        process.wait()
        return None
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_maxrss if sys.platform == "darwin" else usage.ru_maxrss * 1024


def process_error(exit_code: int, stderr: str) -> DetcliError:
    """The error of a detcli process, from its exit code and its stderr."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("detcli: ") for line in lines if line.startswith("detcli: ")]
    hints = [line.strip().removeprefix("hint: ") for line in lines if line.startswith("  hint: ")]
    message = errors[-1] if errors else (lines[-1] if lines else f"exited with status {exit_code}")
    kind = ERROR_TYPES.get(exit_code, DetcliError)
    return kind(message, hints[-1] if hints else "")


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
        if request.mode == "throughput":
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
        batch=request.run.batch or (alone if request.mode == "latency" else detector.batch),
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
