"""Durations: the stages' clock, warm-up, summaries with confidence intervals."""

import itertools
import math
import time
import timeit
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from detcli.cli.report import format_seconds, report_field
from detcli.core import frozen
from detcli.core.timing import Stage

Samples = dict[str, list[float]]
"""Seconds of each run in chronological order, by what was timed."""

WALL = "wall clock"
"""Name of the samples of whole runs, which decide a comparison; the others explain it."""

MIN_FOR_P90, MIN_FOR_P99 = 10, 100
"""Samples; with fewer, the percentile would be the maximum under a different name."""


@frozen
class Summary:
    """Samples of one duration; p90_s is None below 10 samples, p99_s below 100."""

    p50_s: float = report_field("p50", "s")
    p90_s: float | None = report_field("p90", "s")
    p99_s: float | None = report_field("p99", "s")
    mean_s: float = report_field("mean", "s")
    deviation_s: float = report_field("deviation", "s")
    samples: int = report_field()

    @classmethod
    def of(cls, samples: npt.ArrayLike) -> "Summary":
        """Summarise durations in seconds; there must be at least one."""
        values = np.asarray(samples, np.float64)
        p50_s = float(np.percentile(values, 50))
        p90_s = None
        if len(values) >= MIN_FOR_P90:
            p90_s = float(np.percentile(values, 90))
        p99_s = None
        if len(values) >= MIN_FOR_P99:
            p99_s = float(np.percentile(values, 99))
        mean_s = float(values.mean())
        deviation_s = float(values.std())
        return cls(p50_s, p90_s, p99_s, mean_s, deviation_s, samples=len(values))


@frozen
class Interval:
    """An estimate with its 95% confidence interval."""

    estimate: float
    low: float
    high: float

    def change(self) -> str:
        """Format the interval of a ratio as a change, as in "-1.2% to +3.4%"."""
        return f"{self.low - 1:+.1%} to {self.high - 1:+.1%}"


@frozen
class WarmUp:
    """Runs before the measured ones; `stable` is False where the times never settled."""

    runs: int
    seconds: float
    first_s: float
    stable: bool

    def text(self, what: str) -> str:
        """Describe it in words; `what` are the runs, such as "images"."""
        outcome = "never stable"
        if self.stable:
            outcome = "until stable"
        first = format_seconds(self.first_s)
        return f"{self.runs} {what} in {self.seconds:.1f} s, {outcome}; the first took {first}"


class StageClock:
    """Attributes every nanosecond of a run to one stage, or to the remainder.

    Attributes:
        stages: Nanoseconds of each stage of the last run, with the remainder.
    """

    def __init__(self, now: Callable[[], int] = time.perf_counter_ns) -> None:
        """Make a clock; `now` returns the nanoseconds of a monotonic clock."""
        self._now = now
        self._ends: list[tuple[Stage, int]] = []  # of the stages of this run, in order
        self.stages: dict[Stage, int] = {}

    @property
    def calls(self) -> int:
        """How often a stage ended."""
        return len(self._ends) - 1

    def start(self) -> None:
        """Begin a run."""
        self._ends = [(Stage.REMAINDER, self._now())]

    def ended(self, stage: Stage) -> None:
        """Attribute the time since the last call to a stage, which may end several times."""
        self._ends.append((stage, self._now()))

    def stop(self) -> None:
        """End the run; the time since the last stage belongs to the remainder."""
        self.ended(Stage.REMAINDER)
        self.stages = Counter()
        for (_, start_ns), (stage, end_ns) in itertools.pairwise(self._ends):
            self.stages[stage] += end_ns - start_ns


def clock_cost(calls: int) -> float:
    """Measure how many seconds a run spends on this many calls of the clock."""
    clock = StageClock()
    number = 1000
    repetitions = timeit.repeat(lambda: clock.ended(Stage.REMAINDER), number=number)
    return calls * min(repetitions) / number


# Warm-up

BLOCK = 5
"""Runs whose median is compared with that of the previous block."""

STABLE = 0.05
"""Largest relative difference between two blocks that counts as stable."""

MIN_WARM_UP_S = 1.0
"""Clocks rise for a while even where a run takes a millisecond, and the other detectors open while
the first one already works."""

MAX_WARM_UP_S = 20.0


def warm_up(run: Callable[[], float], max_warm_up_s: float = math.inf) -> WarmUp:
    """Call a function until its times are stable, or until it takes too long.

    The first runs are slow: they allocate memory, fill caches, raise clocks, let a GPU's libraries
    plan, and capture a CUDA graph.

    Args:
        run: Runs what is measured once, and returns how many seconds that took.
        max_warm_up_s: After how many seconds this gives up, although the times are not stable;
            after MAX_WARM_UP_S at the latest.
    """
    limit_s = min(max_warm_up_s, MAX_WARM_UP_S)
    start = time.perf_counter()
    durations: list[float] = []
    while True:
        durations.append(run())
        elapsed_s = time.perf_counter() - start
        stable = elapsed_s > MIN_WARM_UP_S and is_stable(durations)
        too_long = elapsed_s > limit_s and len(durations) >= BLOCK
        if stable or too_long:
            return WarmUp(len(durations), elapsed_s, durations[0], stable=stable)


def is_stable(durations: Sequence[float]) -> bool:
    """Whether the last BLOCK runs took as long as the BLOCK runs before, by their medians."""
    if len(durations) < 2 * BLOCK:
        return False
    median_before = np.median(durations[-2 * BLOCK : -BLOCK])
    median_after = np.median(durations[-BLOCK:])
    return bool(abs(median_after - median_before) < STABLE * median_before)


# Intervals

DRAWS = 2000
DRAWN_AT_ONCE = 1 << 18  # samples; this process must stay small, since its memory is measured
SEED = 0  # the same samples give the same interval
MIN_SAMPLES = 5
"""With fewer, an interval would be meaningless."""

MAX_BLOCKS = 20
"""Blocks of a series. The usual block length, its cube root, spans a few milliseconds where a run
takes one, but disturbances last longer."""

TAIL = 2.5  # per cent at either end

Doubles = npt.NDArray[np.float64]


def interval(
    statistic: Callable[..., Doubles],
    samples: npt.ArrayLike,
    divisor_samples: npt.ArrayLike | None = None,
) -> Interval | None:
    """Estimate a statistic of a series of samples with its 95% confidence interval, by a bootstrap.

    Args:
        statistic: A function such as NumPy's median, with a parameter `axis`.
        samples: The series in chronological order.
        divisor_samples: Another series, to estimate a ratio: the statistic of `samples` divided by
            the statistic of this series.

    Returns:
        The estimate and its interval; None if a series has fewer than MIN_SAMPLES.
    """
    values = np.asarray(samples, np.float64)
    if len(values) < MIN_SAMPLES:
        return None
    generator = np.random.default_rng(SEED)
    estimate = float(statistic(values))
    resampled_estimates = _statistics_of_resamples(values, generator, statistic)

    if divisor_samples is not None:
        divisor_values = np.asarray(divisor_samples, np.float64)
        if len(divisor_values) < MIN_SAMPLES:
            return None
        resampled_divisors = _statistics_of_resamples(divisor_values, generator, statistic)
        estimate = estimate / float(statistic(divisor_values))
        resampled_estimates = resampled_estimates / resampled_divisors

    low, high = np.percentile(resampled_estimates, [TAIL, 100 - TAIL])
    return Interval(estimate, float(low), float(high))


def _statistics_of_resamples(
    values: Doubles, generator: np.random.Generator, statistic: Callable[..., Doubles]
) -> Doubles:
    """Compute a statistic of many series that are drawn at random from one series (a bootstrap).

    Args:
        values: `(N,)`, the samples in chronological order.
        generator: The source of randomness.
        statistic: A function such as NumPy's median, with a parameter `axis`.

    Returns:
        `(DRAWS,)`, the statistic of each of the drawn series.
    """
    sample_count = len(values)
    statistics = np.empty(DRAWS)
    # The series are drawn in groups, since all samples of all series would take much memory. A
    # group is a view of `statistics`, so filling it in fills in a part of them.
    group_count = math.ceil(DRAWS * sample_count / DRAWN_AT_ONCE)
    for group in np.array_split(statistics, group_count):
        indices = _drawn_indices(len(group), sample_count, generator)
        group[:] = statistic(values[indices], axis=1)
    return statistics


def _drawn_indices(
    series_count: int, count: int, generator: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Draw series of indices of samples, for a bootstrap.

    Samples that follow each other are alike, since a disturbance of the machine lasts for several.
    So each series is put together from blocks of neighbouring samples. A block that begins near the
    end of the samples continues at their start, and the last block of a series is cut off.

    Args:
        series_count: How many series to draw.
        count: How many samples there are, which is also the length of a series.
        generator: The source of randomness.

    Returns:
        `(series_count, count)`.
    """
    # In the literature on the bootstrap, the cube root of the number of samples is the usual length
    # of a block. It is too short for long series of short runs, see MAX_BLOCKS.
    usual_length = count ** (1 / 3)
    block_length = math.ceil(max(usual_length, count / MAX_BLOCKS))
    block_count = math.ceil(count / block_length)

    block_starts = generator.integers(0, count, (series_count, block_count, 1))
    blocks = block_starts + np.arange(block_length)  # (series, blocks, samples of a block)
    series = blocks.reshape(series_count, block_count * block_length)
    return series[:, :count] % count
