"""Noise: what else the machine did while something was measured."""

import os
import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from detcli.commands.bench.gpu import GpuState
from detcli.commands.bench.report import Noise
from detcli.commands.bench.statistics import Summary

RESTLESS = 0.1  # deviation, as a part of the mean
CROWDED = 0.1  # of the cores
STOLEN = 0.01  # of the time
DRIFTED = 0.05  # of the highest frequency

EVERY_S = 1.0
"""How often the processor's clock is looked at, between two runs."""

THROTTLE_COUNTS = "sys/devices/system/cpu/cpu*/thermal_throttle/core_throttle_count"
QUOTA = "sys/fs/cgroup/cpu.stat"


@dataclass(frozen=True, slots=True)
class _Counters:
    """Seconds and counts since the machine was started; None where nobody counts."""

    clock_s: float
    busy_s: float
    stolen_s: float | None
    own_s: float
    throttled: int | None


class NoiseMeter:
    """Compares the machine's counters before and after; begins when it is made."""

    def __init__(self, root: Path = Path("/")) -> None:
        """Begin.

        Args:
            root: Where the file system begins that tells of throttling.
        """
        self._root = root
        self._frequencies: list[float] = []
        self._looked = 0.0
        self.look()
        self._before = self._count()

    def look(self) -> None:
        """Note the processor's clock, once a second; to be called between two runs."""
        if time.monotonic() - self._looked < EVERY_S:
            return
        self._looked = time.monotonic()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # psutil's, where nobody tells
            frequency = psutil.cpu_freq() if hasattr(psutil, "cpu_freq") else None
        if frequency is not None and frequency.current:
            self._frequencies.append(float(frequency.current))

    def finish(self, wall: Summary | None, gpu: Iterable[GpuState] = ()) -> Noise:
        """Say what happened since the beginning.

        Args:
            wall: What was measured; None if there is no one such thing.
            gpu: States of the GPU meanwhile.
        """
        self._looked = 0.0
        self.look()
        before, after = self._before, self._count()
        clock_s = after.clock_s - before.clock_s
        busy_s, own_s = after.busy_s - before.busy_s, after.own_s - before.own_s
        cores = len(_cores())
        throttled = None
        if before.throttled is not None and after.throttled is not None:
            throttled = after.throttled - before.throttled
        stolen = None
        if before.stolen_s is not None and after.stolen_s is not None:
            stolen = (after.stolen_s - before.stolen_s) / (clock_s * cores)
        other_load = max(0.0, busy_s - own_s) / clock_s
        noise = Noise(
            deviation=wall.deviation_s / wall.mean_s if wall else None,
            other_load=other_load,
            stolen=stolen,
            taken=min(1.0, other_load / cores + (stolen or 0.0)),
            frequency_low_mhz=min(self._frequencies, default=None),
            frequency_high_mhz=max(self._frequencies, default=None),
            throttled=throttled,
            gpu_slowed_by=tuple(dict.fromkeys(why for state in gpu for why in state.slowed_by)),
            warnings=(),
        )
        return replace(noise, warnings=tuple(_doubts(noise, cores)))

    def _count(self) -> _Counters:
        times = [psutil.cpu_times(percpu=True)[core] for core in _cores()]
        own = psutil.Process().cpu_times()
        busy = ("user", "nice", "system", "irq", "softirq")  # a guest's time is within user's
        return _Counters(
            clock_s=time.monotonic(),
            busy_s=sum(getattr(one, name, 0.0) for one in times for name in busy),
            stolen_s=sum(one.steal for one in times) if hasattr(times[0], "steal") else None,
            own_s=own.user + own.system,
            throttled=_throttled(self._root),
        )


def _doubts(noise: Noise, cores: int) -> Iterator[str]:
    """A sentence for each thing that casts doubt on the figures."""
    if noise.deviation is not None and noise.deviation > RESTLESS:
        yield f"the times deviate by {noise.deviation:.0%} of their mean"
    if noise.other_load is not None and noise.other_load > CROWDED * cores:
        yield f"other programs kept {noise.other_load:.1f} of {cores} cores busy"
    if noise.stolen is not None and noise.stolen > STOLEN:
        yield f"the host of this virtual machine took away {noise.stolen:.0%} of the time"
    low, high = noise.frequency_low_mhz, noise.frequency_high_mhz
    if low is not None and high is not None and low < (1 - DRIFTED) * high:
        yield f"the processor's clock moved between {low:.0f} and {high:.0f} MHz"
    if noise.throttled:
        yield f"the processor or a quota slowed this down {noise.throttled} times"
    if noise.gpu_slowed_by:
        yield f"the GPU was slowed down by {', '.join(noise.gpu_slowed_by)}"


def _cores() -> list[int]:
    """Numbers of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _throttled(root: Path) -> int | None:
    """How often the processor grew too hot, or the container's quota was used up; Linux only."""
    counts = [_number(path.read_text(encoding="ascii")) for path in root.glob(THROTTLE_COUNTS)]
    quota = root / QUOTA
    if quota.exists():
        lines = quota.read_text(encoding="ascii").splitlines()
        counts += [_number(line.split()[1]) for line in lines if line.startswith("nr_throttled ")]
    return sum(counts) if counts else None


def _number(text: str) -> int:
    return int(text.strip())
