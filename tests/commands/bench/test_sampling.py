"""The stages' clock, which accounts for every nanosecond; warm-up; and confidence intervals."""

import numpy as np
import pytest

from detcli.commands.bench import sampling
from detcli.commands.bench.sampling import (
    MIN_SAMPLES,
    StageClock,
    Summary,
    clock_cost,
    interval,
    warm_up,
)
from detcli.core.timing import Stage


def test_the_time_since_the_last_call_belongs_to_the_stage():
    clock = StageClock(iter([100, 130, 170, 175, 200, 300, 310]).__next__)
    clock.start()
    clock.ended(Stage.DECODE)
    clock.ended(Stage.NETWORK)
    clock.ended(Stage.DECODE)
    clock.stop()
    assert clock.stages == {Stage.DECODE: 35, Stage.NETWORK: 40, Stage.REMAINDER: 25}
    assert clock.calls == 4
    clock.start()
    clock.stop()
    assert clock.stages == {Stage.REMAINDER: 10}
    assert clock.calls == 1


def test_its_own_cost_grows_with_the_calls():
    assert 0 < clock_cost(1) < clock_cost(100)


@pytest.fixture
def warmed(monkeypatch):
    """The end of a warm-up of runs that take these seconds, on a clock of their own."""

    def run(waits, **limits):
        clock_s = 0.0

        def wait():
            nonlocal clock_s
            clock_s += (step := next(left))
            return step

        left = iter(waits)
        monkeypatch.setattr(sampling.time, "perf_counter", lambda: clock_s)
        monkeypatch.setattr(sampling, "MIN_WARM_UP_S", 1.0)
        monkeypatch.setattr(sampling, "MAX_WARM_UP_S", 20.0)
        return warm_up(wait, **limits)

    return run


def test_it_ends_when_two_blocks_take_equally_long(warmed):
    summary = warmed([2.0, 1.5, 1, 0.8, 0.6, 0.5] + [0.4] * 100)
    assert summary.stable is True
    assert summary.first_s == 2.0
    # The first block without anything above 0.4 begins with run 7; two of them are needed, of whose
    # first one the median is 0.4 already when two larger ones are still in it.
    assert summary.runs == 14
    assert summary.seconds == pytest.approx(6.4 + 8 * 0.4)


def test_it_gives_up_after_the_time_that_it_is_given(warmed):
    summary = warmed([1.0, 2.0] * 9, max_warm_up_s=8.0)
    assert summary.stable is False
    assert summary.seconds == pytest.approx(9.0)


@pytest.mark.parametrize(
    ("waits", "runs", "stable"),
    [
        ([1.0] * 99, 10, True),
        ([1.0] * 5 + [1.04] * 99, 10, True),
        ([1.0] * 5 + [0.96] * 99, 10, True),
        ([1.0] * 5 + [1.06] * 99, 13, True),
        ([1.0] * 5 + [0.94] * 99, 13, True),
        ([0.001] * 9999, 1001, True),  # the clocks have to rise
        ([2.0**n for n in range(99)], 5, False),
        ([9.0] * 99, 5, False),  # a block, although the time is over
    ],
)
def test_it_lasts_a_second_and_at_most_twenty(warmed, waits, runs, stable):
    summary = warmed(waits)
    assert summary.runs == pytest.approx(runs, abs=1 if runs > 1000 else 0)
    assert summary.stable is stable


@pytest.mark.parametrize("statistic", [np.median, np.mean])
def test_an_interval_holds_the_truth_mostly(statistic, random):
    """95% of the time; below 85 of 100 something is wrong."""
    times_held = 0
    for _ in range(100):
        estimated = interval(statistic, random.normal(10, 1, 60))
        assert estimated.low <= estimated.estimate <= estimated.high
        times_held += estimated.low <= 10 <= estimated.high
    assert times_held >= 85


def test_an_interval_of_runs_that_drift_is_wider_than_that_of_the_same_runs_shuffled(random):
    drifting = 10 + np.repeat(random.normal(0, 1, 30), 10)  # what the machine does lasts a while
    shuffled = random.permutation(drifting)
    wide = interval(np.mean, drifting)
    narrow = interval(np.mean, shuffled)
    assert wide.high - wide.low > 1.5 * (narrow.high - narrow.low)


def test_a_ratio(random):
    before = random.normal(10, 0.2, 80)
    after = random.normal(12, 0.2, 70)
    ratio = interval(np.median, after, before)
    assert ratio.estimate == np.median(after) / np.median(before)
    assert 1.15 < ratio.low < 1.2 < ratio.high < 1.25


def test_too_few_samples_give_no_interval():
    few_samples = [1.0] * (MIN_SAMPLES - 1)
    enough_samples = [1.0] * MIN_SAMPLES
    assert interval(np.median, few_samples) is None
    assert interval(np.mean, few_samples) is None
    assert interval(np.median, few_samples, enough_samples) is None
    assert interval(np.median, enough_samples, few_samples) is None
    assert interval(np.median, enough_samples, enough_samples) is not None


def test_many_samples_are_drawn_in_parts(random, monkeypatch):
    samples = random.normal(5, 1, 1000)
    first_interval = interval(np.median, samples)
    monkeypatch.setattr(sampling, "DRAWN_AT_ONCE", 7000)
    assert (
        interval(np.median, samples.tolist()) == first_interval
    )  # the same samples, the same interval


def test_a_summary():
    summary = Summary.of(np.arange(1, 102))  # 1 to 101
    assert summary.p50_s == 51
    assert summary.p90_s == 91
    assert summary.p99_s == 100
    assert summary.mean_s == 51
    assert summary.deviation_s == pytest.approx(np.sqrt((101**2 - 1) / 12))
    assert summary.samples == 101


@pytest.mark.parametrize(("sample_count", "name"), [(10, "p90_s"), (100, "p99_s")])
def test_a_percentile_needs_its_samples(sample_count, name):
    assert getattr(Summary.of(np.ones(sample_count - 1)), name) is None
    assert getattr(Summary.of(np.ones(sample_count)), name) == 1
    assert Summary.of([2.0]).p50_s == 2
