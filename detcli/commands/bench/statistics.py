"""Samples of a duration, summarised; and how certain a figure is."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Samples = dict[str, list[float]]
"""Seconds of each run, in order of time, by what they are of."""

WALL = "wall clock"
"""Of whole runs: what counts. The other samples of a measurement explain it."""

LEAST_FOR_P90, LEAST_FOR_P99 = 10, 100
"""Samples; of fewer, the percentile would be the largest one under another name."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Samples of one duration; p90_s is None of fewer than 10, p99_s of fewer than 100."""

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
        p50, p90, p99 = (float(value) for value in np.percentile(values, [50, 90, 99]))
        count = len(values)
        return cls(
            p50_s=p50,
            p90_s=p90 if count >= LEAST_FOR_P90 else None,
            p99_s=p99 if count >= LEAST_FOR_P99 else None,
            mean_s=float(values.mean()),
            deviation_s=float(values.std()),
            samples=count,
        )


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate, and the interval that holds it with 95% confidence."""

    estimate: float
    low: float
    high: float


DRAWS = 2000
AT_ONCE = 1 << 18  # samples drawn; this process is to stay small, its memory is measured
SEED = 0  # the same samples give the same interval
LEAST = 5
"""Samples, below which an interval would say nothing."""

MOST_BLOCKS = 20
"""In a series. The usual length, its cube root, is that of a few milliseconds where a run takes
one; what disturbs a machine lasts longer."""

TAIL = 2.5  # per cent at either end

Floats = npt.NDArray[np.float64]


def median_interval(samples: npt.ArrayLike) -> Interval | None:
    """The median of some samples, in order of time; None if there are fewer than LEAST."""
    values = np.asarray(samples, np.float64)
    if len(values) < LEAST:
        return None
    drawn = _drawn(values, np.random.default_rng(SEED), np.median)
    return _interval(float(np.median(values)), drawn)


def mean_interval(samples: npt.ArrayLike) -> Interval | None:
    """The mean of some samples, in order of time; None if there are fewer than LEAST."""
    values = np.asarray(samples, np.float64)
    if len(values) < LEAST:
        return None
    drawn = _drawn(values, np.random.default_rng(SEED), np.mean)
    return _interval(float(values.mean()), drawn)


def ratio_interval(after: npt.ArrayLike, before: npt.ArrayLike) -> Interval | None:
    """The median of `after` over that of `before`; None if either has fewer than LEAST."""
    new, old = np.asarray(after, np.float64), np.asarray(before, np.float64)
    if min(len(new), len(old)) < LEAST:
        return None
    generator = np.random.default_rng(SEED)
    drawn = _drawn(new, generator, np.median) / _drawn(old, generator, np.median)
    return _interval(float(np.median(new) / np.median(old)), drawn)


def _interval(estimate: float, drawn: Floats) -> Interval:
    low, high = np.percentile(drawn, [TAIL, 100 - TAIL])
    return Interval(estimate, float(low), float(high))


def _drawn(
    values: Floats, generator: np.random.Generator, statistic: Callable[..., Floats]
) -> Floats:
    """A statistic of DRAWS series as long as this one, made of blocks of it: (N,) -> (DRAWS,)."""
    count = len(values)
    block = math.ceil(max(count ** (1 / 3), count / MOST_BLOCKS))
    drawn = np.empty(DRAWS)
    step = max(1, AT_ONCE // count)
    for first in range(0, DRAWS, step):
        part = drawn[first : first + step]
        starts = generator.integers(0, count, (len(part), math.ceil(count / block), 1))
        index = (starts + np.arange(block)).reshape(len(part), -1)[:, :count] % count
        part[:] = statistic(values[index], axis=1)
    return drawn
