"""Throughput: how many images a second the whole pipeline processes."""

import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np

from detcli.commands.bench import sampling
from detcli.commands.bench.report import Overhead, Throughput
from detcli.commands.bench.sampling import WALL, Interval, Samples, WarmUp
from detcli.core.errors import InputError
from detcli.core.timing import Stage, StageTimes
from detcli.data.record import Record
from detcli.run.pipeline import Pipeline
from detcli.source.loading import Item

WINDOWS = 50
"""The measured time is cut into about this many windows; the pace of each is a sample."""

MIN_STEPS = 2


def measure_throughput(
    pipeline: Pipeline,
    at_once: int,
    inputs: Iterator[Item],
    seconds: float,
    *,
    max_warm_up_s: float = math.inf,
) -> tuple[Throughput, Samples]:
    """Measure how many images a second the pipeline of `detcli predict` processes, after a warm-up.

    Args:
        pipeline: The pipeline.
        at_once: How many records may arrive together, as batches of all workers end. They are
            counted in steps of as many.
        inputs: Images without an end.
        seconds: For how long to measure.
        max_warm_up_s: How long the warm-up may take, MAX_WARM_UP_S at most.

    Returns:
        The figures for the report; and the seconds for one image in each of about WINDOWS parts
        of the measured time.
    """
    running = _RunningPipeline(pipeline, inputs)
    warm_up = _warm_up(running, at_once, max_warm_up_s)
    arrival_times = [time.perf_counter()]
    while len(arrival_times) <= MIN_STEPS or arrival_times[-1] - arrival_times[0] <= seconds:
        running.take(at_once)
        arrival_times.append(time.perf_counter())
    in_flight_count = running.finish()

    step_count = len(arrival_times) - 1
    image_count = at_once * step_count
    duration_s = arrival_times[-1] - arrival_times[0]
    # The pipeline counts the time of all images, including those that were not measured.
    all_image_count = warm_up.runs + image_count + in_flight_count
    work_s = _seconds_per_image(pipeline.times, running.reading_times, all_image_count)

    steps_per_window = max(1, step_count // WINDOWS)
    window_durations_s = np.diff(arrival_times[::steps_per_window])
    images_per_window = at_once * steps_per_window
    samples: list[float] = (window_durations_s / images_per_window).tolist()
    clock_cost_s = sampling.clock_cost(1)
    throughput = Throughput(
        pictures_per_second=image_count / duration_s,
        interval=_rate(sampling.interval(np.mean, samples)),
        pictures=image_count,
        seconds=duration_s,
        warm_up=warm_up,
        work_s=work_s,
        overhead=Overhead(clock_cost_s, clock_cost_s * image_count / duration_s),
    )
    return throughput, {WALL: samples}


class _RunningPipeline:
    """Feeds images to a pipeline and takes its records, until the measurement is finished.

    Attributes:
        reading_times: How long the inputs took to give the next image, as frames of videos are
            decoded then.
    """

    def __init__(self, pipeline: Pipeline, inputs: Iterator[Item]) -> None:
        self.reading_times = StageTimes()
        self._pipeline = pipeline
        self._inputs = inputs
        self._is_finished = threading.Event()  # the pipeline asks for inputs on another thread
        self._records = self._checked_records()

    def take(self, count: int) -> float:
        """Take this many records from the pipeline, and return the seconds that it took."""
        start = time.perf_counter()
        deque(itertools.islice(self._records, count), maxlen=0)
        return time.perf_counter() - start

    def finish(self) -> int:
        """Give the pipeline no more images, and return how many were in it and came out."""
        self._is_finished.set()
        return sum(1 for _ in self._records)

    def _items(self) -> Iterator[Item]:
        """Yield images until the measurement is finished."""
        while not self._is_finished.is_set():
            with self.reading_times.stage(Stage.DECODE):
                item = next(self._inputs)
            yield item

    def _checked_records(self) -> Iterator[Record]:
        """Yield the records of the pipeline; an error in one ends the measurement."""
        for record in self._pipeline.run(self._items()):
            if self._is_finished.is_set() or record.error is None:
                yield record
            elif isinstance(record.error, InputError):
                raise record.error.about(record.origin.source) from record.error
            else:
                raise record.error


def _warm_up(running: _RunningPipeline, at_once: int, max_warm_up_s: float) -> WarmUp:
    """Let the pipeline work until its pace is steady.

    Args:
        running: The pipeline.
        at_once: How many records to take in each step.
        max_warm_up_s: How long it may take.

    Returns:
        How many images it took, how long, and whether the pace became steady.
    """
    first_s = running.take(1)
    steps = sampling.warm_up(partial(running.take, at_once), max_warm_up_s)
    return WarmUp(
        runs=1 + at_once * steps.runs,
        seconds=first_s + steps.seconds,
        first_s=first_s,
        stable=steps.stable,
    )


def _seconds_per_image(
    pipeline_times: Mapping[Stage, float], reading_times: Mapping[Stage, float], image_count: int
) -> dict[str, float]:
    """Compute how long each stage works on one image.

    Args:
        pipeline_times: Seconds that each stage of the pipeline has taken, over all threads.
        reading_times: Seconds that reading from the inputs has taken, which count as decoding.
        image_count: The number of images that this was for.
    """
    seconds_by_stage: dict[str, float] = {}
    for stage, spent_s in pipeline_times.items():
        stage_s = spent_s + reading_times.get(stage, 0.0)
        seconds_by_stage[stage] = stage_s / image_count
    return seconds_by_stage


def _rate(pace: Interval | None) -> Interval | None:
    """Convert an interval of seconds for one image to one of images a second.

    The reciprocal of the longest time is the lowest rate, so the bounds change places.
    """
    if pace is None:
        return None
    return Interval(1 / pace.estimate, 1 / pace.high, 1 / pace.low)
