"""One measurement of the whole path, latency or throughput, and its report."""

import contextlib
import glob
import hashlib
import itertools
import math
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from detcli.backend.protocol import RUN_TIMEOUT_S, Observer, timeout_error
from detcli.cli.console import download_progress
from detcli.commands.bench import sampling
from detcli.commands.bench.baseline import Baseline, identity_of
from detcli.commands.bench.cold_start import measure_cold_start
from detcli.commands.bench.machine import (
    GpuState,
    GpuWatch,
    NoiseMeter,
    describe_machine,
    describe_software,
    peak_memory,
)
from detcli.commands.bench.report import (
    BenchModel,
    Conditions,
    Latency,
    Overhead,
    PeakMemory,
    RunReport,
    StageFigures,
)
from detcli.commands.bench.sampling import WALL, Samples, StageClock, Summary
from detcli.commands.bench.throughput import measure_throughput
from detcli.config.config import Config
from detcli.config.cores import use_fastest_cores
from detcli.config.device import available_cores
from detcli.config.values import BenchMode
from detcli.core import frozen
from detcli.core.errors import DetcliError, DetcliWarning, InputError, UsageError
from detcli.core.text import public_name
from detcli.core.timing import POLL_S, RunningTime, Stage
from detcli.data.geometry import Image
from detcli.model.external_data import ChangedError
from detcli.run import locate, open_run
from detcli.run.batches import BatchDetector
from detcli.run.model_settings import prepare_for
from detcli.sink.draw import annotate
from detcli.source.decode import BUILT_IN, TIMEOUT_S, DecodeOptions, too_slow
from detcli.source.loading import STDIN, Item
from detcli.source.names import is_live
from detcli.source.sources import Sources

STAGES = [stage for stage in Stage if stage not in {Stage.WAIT, Stage.WRITE}]
"""The stages of one batch, in order; nothing overlaps and nothing is written."""

NS = 1e-9


def measure(
    config: Config,
    mode: BenchMode = BenchMode.LATENCY,
    seconds: float = 10,
    cold_starts: int = 0,
    baseline: Baseline | None = None,
    *,
    max_warm_up_s: float = math.inf,
) -> tuple[RunReport, Baseline]:
    """Measure the latency of a model, or its throughput.

    Args:
        config: The model, the inputs and the device. Without --batch, latency is that of one
            image, and throughput that of the batches that suit the device.
        mode: Whether to measure latency or throughput.
        seconds: For how long to measure, after a warm-up.
        cold_starts: How many whole processes to time before.
        baseline: An earlier measurement; the conditions have to be the same now.
        max_warm_up_s: How long the warm-up may take, MAX_WARM_UP_S at most.

    Returns:
        The report; and the same measurement as a baseline for later ones, with all samples.

    Raises:
        DetcliError: An input or the model cannot be used, or something else than the baseline's
            would be measured.
    """
    require_measurable(config, mode)
    if config.runtime.fast_cores:
        use_fastest_cores()  # before the cores of this process are counted
    names = config.inputs.source
    time_limit = TimeLimit()
    # A mistyped name fails before the cold starts, which take a minute.
    time_limit.run(lambda: time_limit.load(next(repeat(names))))
    with download_progress() as show:
        located = locate(config, show)
    model = BenchModel(config.runtime.model, prepare_for(located, config.settings).sha256)
    if baseline is not None:
        baseline.require_same(identity_of(describe_machine(None), model))
    cold_start = measure_cold_start(config, cold_starts)
    config_to_run = _with_workers(config, mode)
    with ExitStack() as stack:
        gpu = GpuWatch(config.runtime.device[0])
        stack.callback(gpu.stop)
        one_by_one = mode is BenchMode.LATENCY
        opening = open_run(config_to_run, located, one_by_one=one_by_one)
        run = stack.enter_context(opening)
        if run.detector.model_sha256 != model.sha256:
            raise ChangedError(located.path)
        conditions = conditions_of(config_to_run, mode, run.detector)
        gpu_before = None
        if run.detector.parsed_device.is_gpu:
            gpu_before = gpu.before
        machine = describe_machine(gpu_before)
        identity = identity_of(machine, model, conditions)
        if baseline is not None:
            baseline.require_same(identity)
        noise_meter = NoiseMeter()
        latency = None
        throughput = None
        if mode is BenchMode.THROUGHPUT:
            at_once = conditions.batch * conditions.workers
            inputs = repeat(names, run.decode)
            throughput, samples = measure_throughput(
                run.pipeline(), at_once, inputs, seconds, max_warm_up_s=max_warm_up_s
            )
        else:
            runner = BatchRunner(run.detector, conditions.batch, names, time_limit, run.decode)
            measure_batches = partial(measure_latency, runner, seconds, max_warm_up_s)
            latency, samples = time_limit.run(measure_batches)
        host_peak = peak_memory()
        states = gpu.stop()
    noise = noise_meter.judge(Summary.of(samples[WALL]), states)
    report = RunReport(
        kind="run",
        machine=machine,
        software=describe_software(),
        model=model,
        conditions=conditions,
        latency=latency,
        throughput=throughput,
        cold_start=cold_start,
        memory=PeakMemory(host_peak, _device_memory(gpu_before, states)),
        noise=noise,
    )
    measured = Baseline("", identity, report.software, samples, noise.warnings, noise.taken)
    return report, measured


def _with_workers(config: Config, mode: BenchMode) -> Config:
    """Set the number of workers if the user has not: one for latency, else one for each core."""
    usual_count = 1
    if mode is BenchMode.THROUGHPUT:
        usual_count = available_cores()
    workers = config.runtime.workers or usual_count
    return replace(config, runtime=replace(config.runtime, workers=workers))


def _device_memory(before: GpuState | None, states: Sequence[GpuState]) -> int | None:
    """Return how much the memory in use on a GPU grew at most, in bytes; None if it is not known.

    Args:
        before: The state of the GPU before the model was opened; None if there is no GPU.
        states: Its states since then.
    """
    if before is None or before.memory_bytes is None:
        return None
    peak = max(state.memory_bytes or 0 for state in states)
    return peak - before.memory_bytes


def require_measurable(config: Config, mode: BenchMode) -> None:
    """Refuse what cannot be measured.

    Raises:
        UsageError: There are several devices, several detectors for a latency, or sources that can
            be read only once.
    """
    runtime = config.runtime
    if mode is BenchMode.LATENCY and (runtime.workers or 1) > 1:
        raise UsageError(
            f"--workers {runtime.workers}: latency is measured with one detector",
            "use --mode throughput to measure several in parallel",
        )
    if len(runtime.device) > 1:
        names = ",".join(str(device) for device in runtime.device)
        raise UsageError(f"'{names}' names several devices", "measure one after the other")
    for name in config.inputs.source:
        if name == STDIN or is_live(name):
            subject = f"{name} is live: it"
            if name == STDIN:
                subject = "standard input"
            raise UsageError(
                f"{subject} cannot be read again and again, which measuring needs",
                "give files or folders; a short recording will do",
            )


def conditions_of(config: Config, mode: BenchMode, detector: BatchDetector) -> Conditions:
    """Describe the conditions of a measurement: the device, the batch, the workers, the inputs.

    Passwords in the addresses of inputs are left out, since reports are shared.
    """
    # Without --batch, a latency is that of the smallest batch that the graph takes.
    default_batch = detector.contract.batch or 1
    if mode is BenchMode.THROUGHPUT:
        default_batch = detector.batch_size
    return Conditions(
        mode=mode,
        device=detector.placement,
        batch=config.runtime.batch or default_batch,
        workers=detector.workers,
        sources=tuple(public_name(source) for source in config.inputs.source),
        inputs_sha256=digest(config.inputs.source),
        canvas=detector.canvas,
    )


# The images

HASHED = 16 << 20
"""Bytes hashed at the start of each file, besides its size."""

STOP_S = 2.0
"""How long an interrupted measurement may take to reach its next step."""

T = TypeVar("T")


@frozen
class _LimitedStep:
    """A step of a measurement that runs now."""

    running_time: RunningTime  # since it began
    limit_s: float
    error: DetcliError  # if it takes longer

    def is_late(self) -> bool:
        """Whether it has taken too long already."""
        return self.running_time.seconds() > self.limit_s


class TimeLimit:
    """Runs a measurement on a thread of its own, and gives up if one of its steps never ends.

    A step may be in native code that nothing can interrupt. A thread for each step would be
    measured too; this way a step only costs a record of when it began.
    """

    def __init__(self) -> None:
        self._step: _LimitedStep | None = None  # None before the first step
        self._is_interrupted = False
        self._shown_warnings: set[str] = set()

    def begin_step(self, limit_s: float, error: DetcliError) -> None:
        """Begin a step of the measurement with a time limit.

        The step takes the place of the previous step, whose limit no longer applies.

        The thread of the measurement calls this. An interrupt by the user ends that thread only
        here, between two steps.

        Args:
            limit_s: How many seconds the step may take.
            error: What `run` raises if it takes longer.

        Raises:
            KeyboardInterrupt: The user has interrupted the measurement.
        """
        if self._is_interrupted:
            raise KeyboardInterrupt
        self._step = _LimitedStep(RunningTime(), limit_s, error)

    def load(self, item: Item) -> Image:
        """Begin a step of the measurement, and read and decode an image in it.

        Warnings about the image are issued. A warning or an error begins with the image's name.

        Raises:
            InputError: The image cannot be read.
        """
        source = item.origin.source
        timeout_error = too_slow(TIMEOUT_S).about(source)
        self.begin_step(TIMEOUT_S, timeout_error)
        try:
            image = item.load()
        except InputError as error:
            raise error.about(source) from error

        for warning in image.warnings:
            message = f"{source}: {warning}"
            # Each pass over the images would repeat the warning.
            if message not in self._shown_warnings:
                self._shown_warnings.add(message)
                warnings.warn(message, DetcliWarning, stacklevel=2)
        return image

    def run(self, measure: Callable[[], T]) -> T:
        """Run a measurement on a thread of its own, and return its result.

        If one of its steps takes too long, the error of that step is raised and the thread is
        abandoned, since nothing can end it. What the measurement raises is raised here.
        """
        outcome: Future[T] = Future()

        def set_outcome() -> None:
            try:
                outcome.set_result(measure())
            except BaseException as error:  # noqa: BLE001 - raised again by the caller
                outcome.set_exception(error)

        self._step = None
        threading.Thread(target=set_outcome, daemon=True).start()
        try:
            self._wait_for(outcome)
        except KeyboardInterrupt:
            # The thread stops at its next step. The caller closes what the thread uses, so it gets
            # some time for that.
            self._is_interrupted = True
            wait([outcome], STOP_S)
            raise
        return outcome.result()

    def _wait_for(self, outcome: "Future[T]") -> None:
        """Wait until a measurement is done, or raise the error of a step that takes too long."""
        while not wait([outcome], POLL_S).done:
            step = self._step  # The thread of the measurement may begin the next at any time.
            if step is not None and step.is_late() and not outcome.done():
                raise step.error


def repeat(names: tuple[str, ...], decode: DecodeOptions | None = None) -> Iterator[Item]:
    """Yield the images and frames of the given inputs, over and over without end.

    Args:
        names: Files, folders, glob patterns or addresses; the built-in image if there are none.
        decode: How images are decoded; None for the default options.
    """
    while True:
        with Sources(names or (str(BUILT_IN),), decode=decode) as sources:
            yield from sources  # of an empty source, an item with the error


def digest(names: tuple[str, ...]) -> str:
    """Compute a SHA-256 that identifies a set of inputs, whatever folder they are in.

    Two measurements can be compared only if it is the same for both. Files count by size and
    content, folders by the names and sizes of their entries, anything else by its name. What cannot
    be read is passed over here, and is an error when it is loaded.

    Args:
        names: Files, folders, glob patterns or addresses; the built-in image if there are none.
    """
    paths: list[str] = []
    for name in names or (str(BUILT_IN),):
        matches = sorted(glob.glob(name))  # noqa: PTH207 - as named
        paths += matches or [name]
    checksum = hashlib.sha256()
    for path in paths:
        with contextlib.suppress(OSError):
            for content in _identifying_content(Path(path)):
                checksum.update(content + b"\0")
    return checksum.hexdigest()


def _identifying_content(path: Path) -> Iterator[bytes]:
    """Yield what identifies an input, as bytes to be hashed.

    For a file, that is its size and a hash of its first HASHED bytes. For a folder, it is the names
    and sizes of its entries. For anything else, such as a URL, it is the name.
    """
    if path.is_dir():
        for entry in sorted(path.iterdir()):
            yield os.fsencode(entry.name)
            with contextlib.suppress(OSError):  # a link to nothing
                yield str(entry.stat().st_size).encode()
    elif path.is_file():
        with path.open("rb") as file:
            yield str(path.stat().st_size).encode()
            yield hashlib.sha256(file.read(HASHED)).digest()
    else:
        yield os.fsencode(path)


# Latency. Every batch runs twice, once with all its stages timed and once without: the first shows
# where the time goes, the second how long a batch takes, and their ratio what timing costs. The
# order alternates, so that neither always runs on the warmer or busier machine.

MIN_RUNS = 10
"""The minimum, even if it takes longer than requested."""


class BatchRunner:
    """Runs batches from reading the files to drawing the boxes, with and without timed stages.

    Both kinds of runs process the same images in the same order.

    Attributes:
        clock: The times of the stages of the last timed run.
        synchronised: Whether a timed run waits for the device at the end of each stage. A GPU would
            otherwise run on by itself, so that a timed run is slower than an untimed one.
    """

    def __init__(
        self,
        detector: BatchDetector,
        batch_size: int,
        names: tuple[str, ...],
        time_limit: TimeLimit,
        decode: DecodeOptions | None = None,
    ) -> None:
        """Prepare to run batches.

        Args:
            detector: The detector, which is open.
            batch_size: How many images a batch has.
            names: The inputs, which are read over and over.
            time_limit: Ends a step that takes too long.
            decode: How images are decoded; None for the default options.
        """
        self._detector = detector
        self._batch_size = batch_size
        self._time_limit = time_limit
        self._timeout_error = timeout_error(detector.model_name, RUN_TIMEOUT_S)
        # Each kind of run has an iterator over the inputs, so that both get the same images.
        self._images_for_timed_runs = repeat(names, decode)
        self._images_for_untimed_runs = repeat(names, decode)
        self.clock = StageClock()
        # A device that can start a batch before the last one is done runs on by itself.
        self.synchronised = detector.in_flight > 1

    def run_both(self, *, timed_first: bool = False) -> float:
        """Run a batch twice: once with timed stages, and once as a whole.

        Calls should alternate the order. Otherwise one kind of run would always meet the warmer or
        busier machine.

        Args:
            timed_first: Whether the run with timed stages comes first.

        Returns:
            The seconds that the untimed run took. The times of the stages are on `clock`.
        """
        if timed_first:
            self.run_timed()
            return self._run_untimed()
        untimed_s = self._run_untimed()
        self.run_timed()
        return untimed_s

    def _run_untimed(self) -> float:
        """Run a batch without timing its stages, and return how many seconds it took."""
        start = time.perf_counter()
        self._run(self._images_for_untimed_runs, lambda _stage: None)
        return time.perf_counter() - start

    def run_timed(self) -> None:
        """Run a batch, and note on the clock when each of its stages ends."""
        self._detector.observe(self.clock.ended)
        try:
            self.clock.start()
            self._run(self._images_for_timed_runs, self.clock.ended)
            self.clock.stop()
        finally:
            self._detector.observe(None)

    def _run(self, items: Iterator[Item], report_end: Observer) -> None:
        """Read the next images, detect objects in them and draw their boxes.

        Args:
            items: The images, not read yet.
            report_end: Called at the end of reading and of drawing. The detector itself reports the
                ends of its stages.
        """
        batch = itertools.islice(items, self._batch_size)
        images = [self._time_limit.load(item) for item in batch]
        report_end(Stage.DECODE)
        self._time_limit.begin_step(RUN_TIMEOUT_S, self._timeout_error)
        wait_for_detections = self._detector.submit(images)
        for image, detections in zip(images, wait_for_detections(), strict=True):
            annotate(image.pixels, detections)
        report_end(Stage.DRAW)


def measure_latency(
    runner: BatchRunner, seconds: float, max_warm_up_s: float = math.inf
) -> tuple[Latency, Samples]:
    """Measure how long a batch takes, after a warm-up; the batches run one after the other.

    Each batch runs twice: timed, which shows how long each stage takes, and untimed, which shows
    how long a batch takes when nothing is timed within it.

    Args:
        runner: Runs the batches.
        seconds: For how long to measure, and at least MIN_RUNS batches.
        max_warm_up_s: How long the warm-up may take, MAX_WARM_UP_S at most.

    Returns:
        The figures for the report; and all durations in seconds, those of the untimed runs (named
        WALL) and those of each stage. In the report, the untimed runs are called undisturbed, and
        `wall` is the duration of the timed runs.
    """
    warm_up = sampling.warm_up(runner.run_both, max_warm_up_s)
    untimed_durations_s, stages_of_runs = _measure_runs(runner, seconds)

    timed_durations_s = [NS * sum(stages.values()) for stages in stages_of_runs]
    timed_summary = Summary.of(timed_durations_s)
    stage_figures, stage_samples = _summarize_stages(stages_of_runs, timed_summary)

    # This also measures what a call of the clock costs. It comes right after the runs, so that the
    # machine is in the same state: no bootstrap, as for `undisturbed_median`, lies between them.
    overhead = _timing_overhead(runner.clock.calls, timed_durations_s, untimed_durations_s)

    latency = Latency(
        undisturbed=Summary.of(untimed_durations_s),
        undisturbed_median=sampling.interval(np.median, untimed_durations_s),
        wall=timed_summary,
        stages=tuple(stage_figures),
        synchronised=runner.synchronised,
        warm_up=replace(warm_up, runs=2 * warm_up.runs),  # each batch ran twice
        overhead=overhead,
    )
    return latency, {WALL: untimed_durations_s, **stage_samples}


def _measure_runs(
    runner: BatchRunner, seconds: float
) -> tuple[list[float], list[dict[Stage, int]]]:
    """Run each batch untimed and timed, in alternating order.

    Args:
        runner: Runs the batches.
        seconds: For how long to measure, and at least MIN_RUNS batches.

    Returns:
        The seconds of each untimed run; and for each timed run, the nanoseconds of each stage.
    """
    untimed_durations_s: list[float] = []
    stages_of_runs: list[dict[Stage, int]] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(stages_of_runs) < MIN_RUNS:
        is_odd_round = len(stages_of_runs) % 2 == 1
        untimed_s = runner.run_both(timed_first=is_odd_round)
        untimed_durations_s.append(untimed_s)
        stages_of_runs.append(runner.clock.stages)
    return untimed_durations_s, stages_of_runs


def _timing_overhead(
    clock_calls: int, timed_durations_s: Sequence[float], untimed_durations_s: Sequence[float]
) -> Overhead:
    """Measure what the clock costs in a run, and how much slower runs with timed stages are.

    Args:
        clock_calls: How often a timed run calls the clock.
        timed_durations_s: The durations of the timed runs.
        untimed_durations_s: The duration of the untimed run beside each of them.
    """
    clock_s = sampling.clock_cost(clock_calls)
    slowdowns = []
    for timed_s, untimed_s in zip(timed_durations_s, untimed_durations_s, strict=True):
        slowdowns.append(timed_s / untimed_s)
    return Overhead(
        clock_s=clock_s,
        clock_share=clock_s / float(np.mean(timed_durations_s)),
        observed=sampling.interval(np.median, slowdowns),
    )


def _summarize_stages(
    stages_of_runs: Sequence[Mapping[Stage, int]], whole_runs: Summary
) -> tuple[list[StageFigures], Samples]:
    """Summarize how long each stage of a batch takes.

    Args:
        stages_of_runs: For each timed run, the nanoseconds of each stage.
        whole_runs: The summary of how long these runs took as a whole.

    Returns:
        Figures for the report, without numbers for a stage that the device lacks; and the durations
        in seconds of each of the other stages.
    """
    figures = []
    samples: Samples = {}
    for stage in STAGES:
        durations_s = [NS * stages.get(stage, 0) for stages in stages_of_runs]
        if any(durations_s):
            samples[stage] = durations_s
            summary = Summary.of(durations_s)
            share = summary.mean_s / whole_runs.mean_s
            figures.append(StageFigures(stage, summary, share))
        else:
            figures.append(StageFigures(stage))
    return figures, samples
