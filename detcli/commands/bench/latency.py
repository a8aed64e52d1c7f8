"""Latency: one batch after the other, from reading the files to the drawn pictures.

Every batch is run twice, once with all its stages timed and once with nobody watching: the first
says where the time goes, the second how long it takes, and the two together what watching costs.
They take turns, and which of them comes first changes every time, so that neither has the machine
when it is warmer, or busier.
"""

import time
from collections.abc import Sequence
from dataclasses import replace

from detcli.backend.device import Device
from detcli.commands.bench.clock import StageClock, own_cost
from detcli.commands.bench.inputs import Feed
from detcli.commands.bench.noise import NoiseMeter
from detcli.commands.bench.report import Latency, Overhead, StageFigures
from detcli.commands.bench.statistics import WALL, Samples, Summary, median_interval
from detcli.commands.bench.warm_up import warm_up
from detcli.detector import Detector
from detcli.sink.draw import annotate
from detcli.timing import Stage

LEAST_RUNS = 10
"""Even if they take longer than the time that was asked for."""

NS = 1e-9

STAGES = [stage for stage in Stage if stage not in {Stage.WAIT, Stage.WRITE}]
"""Those of one batch, in the order of the flow; nothing overlaps, and nothing is written."""


class Path:
    """The whole way of a batch: decode, detect, draw."""

    def __init__(self, detector: Detector, batch: int, watched: Feed, unwatched: Feed) -> None:
        """Connect it.

        Args:
            detector: What detects.
            batch: Pictures in a batch.
            watched: Where the pictures come from of the runs whose stages are timed.
            unwatched: The same ones once more, for the others.
        """
        self._detector, self._batch = detector, batch
        self._watched, self._unwatched = watched, unwatched
        self.clock = StageClock()

    def time(self) -> float:
        """Seconds of one run that nobody watches."""
        start = time.perf_counter()
        pictures = self._unwatched.take(self._batch)
        for picture, found in zip(pictures, self._detector.submit(pictures)(), strict=True):
            annotate(picture.pixels, found)
        return time.perf_counter() - start

    def watch(self) -> None:
        """Run once with the stages on the clock."""
        clock = self.clock
        self._detector.observe(clock.ended)
        try:
            clock.start()
            pictures = self._watched.take(self._batch)
            clock.ended(Stage.DECODE)
            detections = self._detector.submit(pictures)()
            for picture, found in zip(pictures, detections, strict=True):
                annotate(picture.pixels, found)
            clock.ended(Stage.DRAW)
            clock.stop()
        finally:
            self._detector.observe(None)

    def both(self, *, watched_first: bool = False) -> float:
        """Run a batch in both ways; returns the seconds of the one that nobody watched."""
        if watched_first:
            self.watch()
            return self.time()
        seconds = self.time()
        self.watch()
        return seconds


def measure_latency(
    path: Path, device: str, seconds: float, noise: NoiseMeter
) -> tuple[Latency, Samples]:
    """Run batches for a while.

    Args:
        path: What to run.
        device: Where it runs.
        seconds: How long, after the warm-up.
        noise: Looks at the machine between the runs.

    Returns:
        The figures, and the samples that they are made of.

    Raises:
        InputError: A picture cannot be read.
        InferenceError: The runtime failed.
    """
    before = warm_up(path.both)
    undisturbed: list[float] = []
    walls: list[int] = []
    stages: list[dict[Stage, int]] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(walls) < LEAST_RUNS:
        undisturbed.append(path.both(watched_first=len(walls) % 2 == 1))
        walls.append(path.clock.wall)
        stages.append(path.clock.stages)
        noise.look()
    wall = Summary.of([NS * ns for ns in walls])
    cost = own_cost(path.clock.calls)
    observed = median_interval([NS * a / b for a, b in zip(walls, undisturbed, strict=True)])
    parts = _columns(stages)
    latency = Latency(
        undisturbed=Summary.of(undisturbed),
        undisturbed_median=median_interval(undisturbed),
        wall=wall,
        stages=tuple(_stages(parts, wall.mean_s)),
        synchronised=Device.parse(device).is_gpu,
        warm_up=replace(before, runs=2 * before.runs),
        overhead=Overhead(cost, cost / wall.mean_s, observed),
    )
    return latency, {WALL: undisturbed, **parts}


def _columns(stages: Sequence[dict[Stage, int]]) -> Samples:
    """Seconds of each stage that the device has, run by run; what a run left out took no time."""
    told = {stage for one in stages for stage in one}
    return {stage: [NS * one.get(stage, 0) for one in stages] for stage in STAGES if stage in told}


def _stages(parts: Samples, mean_s: float) -> list[StageFigures]:
    found = []
    for stage in STAGES:
        summary = Summary.of(parts[stage]) if stage in parts else None
        found.append(StageFigures(stage, summary, summary.mean_s / mean_s if summary else None))
    return found
