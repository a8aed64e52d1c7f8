"""Throughput: pictures a second when all work at once, as `detcli predict` has them work."""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from detcli.commands.bench.clock import own_cost
from detcli.commands.bench.inputs import Feed, named
from detcli.commands.bench.noise import NoiseMeter
from detcli.commands.bench.report import Overhead, Throughput, WarmUp
from detcli.commands.bench.statistics import WALL, Interval, Samples, Summary, mean_interval
from detcli.commands.bench.warm_up import LOOKED_BACK, settled
from detcli.detector import Detector
from detcli.errors import InputError
from detcli.pipeline import Pipeline
from detcli.record import Record
from detcli.source.item import Item
from detcli.timing import Stage, StageTimes

WINDOWS = 50
"""The measured time is cut into about so many; the pace of each is a sample."""


@dataclass(slots=True)
class _Times:
    """When each record came, by the clock.

    Attributes:
        step: Records that may come at once.
        warm: The number of the last record of the warm-up; 0 as long as that goes on.
        stable: Whether it ended since the pace was stable.
        came: The beginning, then the time of each record.
    """

    step: int
    warm: int = 0
    stable: bool = False
    came: list[float] = field(default_factory=lambda: [time.perf_counter()])

    def add(self) -> float:
        """Note that a record has come; returns seconds from the beginning of what is measured."""
        self.came.append(time.perf_counter())
        if not self.warm and (len(self.came) - 1) % self.step == 0:
            taken = np.diff(self.came[-LOOKED_BACK * self.step - 1 :: self.step]).tolist()
            stable = settled(taken, self.came[-1] - self.came[0])
            if stable is not None:
                self.warm, self.stable = len(self.came) - 1, stable
        return self.came[-1] - self.came[self.warm] if self.warm else 0.0

    def samples(self) -> list[float]:
        """Seconds a picture of each window of what is measured."""
        steps = (len(self.came) - 1 - self.warm) // self.step
        window = self.step * max(1, steps // WINDOWS)
        taken: list[float] = (np.diff(self.came[self.warm :: window]) / window).tolist()
        return taken


def measure_throughput(
    detector: Detector, batch: int, feed: Feed, seconds: float, noise: NoiseMeter
) -> tuple[Throughput, Samples]:
    """Run a pipeline for a while.

    Args:
        detector: It and as many more as it says it wants of its kind.
        batch: Pictures in a batch.
        feed: Where they come from.
        seconds: How long, after the warm-up.
        noise: Looks at the machine meanwhile.

    Returns:
        The figures, and the samples that they are made of: seconds a picture.

    Raises:
        InputError: A picture cannot be read.
        InferenceError: The runtime failed.
    """
    enough = threading.Event()
    pipeline = Pipeline(detector, batch, [detector.device] * (detector.workers - 1))
    times = _Times(batch * detector.workers)
    rest = 0
    reading = StageTimes()
    for record in pipeline.run(_items(feed, enough, reading)):
        if enough.is_set():
            rest += 1
            continue
        _require_success(record)
        noise.look()
        if times.add() > seconds and len(times.came) > times.warm + 2 * times.step:
            enough.set()
    samples = times.samples()
    count = len(times.came) - 1
    measured, taken = count - times.warm, times.came[-1] - times.came[times.warm]
    cost = own_cost(1)
    figures = Throughput(
        pictures_per_second=measured / taken,
        interval=_rate(mean_interval(samples)),
        pictures=measured,
        seconds=taken,
        warm_up=WarmUp(
            runs=times.warm,
            seconds=times.came[times.warm] - times.came[0],
            first_s=times.came[1] - times.came[0],
            stable=times.stable,
        ),
        work_s={
            stage: (spent + reading.get(stage, 0.0)) / (count + rest)
            for stage, spent in pipeline.times.items()
        },
        overhead=Overhead(cost, cost * measured / taken, None),
    )
    return figures, {WALL: samples}


def summary(samples: Samples) -> Summary:
    """Of the seconds a picture."""
    return Summary.of(samples[WALL])


def _items(feed: Feed, enough: threading.Event, reading: StageTimes) -> Iterator[Item]:
    """What comes next, until there is enough; frames of videos are decoded here."""
    while not enough.is_set():
        with reading.stage(Stage.DECODE):
            item = feed.next_item()
        yield item


def _require_success(record: Record) -> None:
    """End the run at the first picture that fails.

    Raises:
        DetcliError: Why it failed.
    """
    if isinstance(record.error, InputError):
        raise named(record.error, record.origin.source) from record.error
    if record.error is not None:
        raise record.error


def _rate(pace: Interval | None) -> Interval | None:
    """Pictures a second of an interval of seconds a picture."""
    return Interval(1 / pace.estimate, 1 / pace.high, 1 / pace.low) if pace else None
