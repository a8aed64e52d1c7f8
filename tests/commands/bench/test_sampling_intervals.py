"""Intervals: they hold what they should, and are wider where neighbours resemble each other."""

import numpy as np
import pytest

from detcli.commands.bench import sampling
from detcli.commands.bench.sampling import MIN_SAMPLES, Summary, interval


@pytest.mark.parametrize("statistic", [np.median, np.mean])
def test_an_interval_holds_the_truth_mostly(statistic, random):
    """95% of the time; below 85 of 100 something is wrong."""
    held = 0
    for _ in range(100):
        found = interval(statistic, random.normal(10, 1, 60))
        assert found.low <= found.estimate <= found.high
        held += found.low <= 10 <= found.high
    assert held >= 85


def test_an_interval_of_runs_that_drift_is_wider_than_that_of_the_same_runs_shuffled(random):
    drifting = 10 + np.repeat(random.normal(0, 1, 30), 10)  # what the machine does lasts a while
    shuffled = random.permutation(drifting)
    wide, narrow = interval(np.mean, drifting), interval(np.mean, shuffled)
    assert wide.high - wide.low > 1.5 * (narrow.high - narrow.low)


def test_a_ratio(random):
    before, after = random.normal(10, 0.2, 80), random.normal(12, 0.2, 70)
    found = interval(np.median, after, before)
    assert found.estimate == np.median(after) / np.median(before)
    assert 1.15 < found.low < 1.2 < found.high < 1.25


def test_too_few_samples_give_no_interval():
    few, enough = [1.0] * (MIN_SAMPLES - 1), [1.0] * MIN_SAMPLES
    assert interval(np.median, few) is interval(np.mean, few) is None
    assert interval(np.median, few, enough) is interval(np.median, enough, few) is None
    assert interval(np.median, enough, enough) is not None


def test_many_samples_are_drawn_in_parts(random, monkeypatch):
    samples = random.normal(5, 1, 1000)
    found = interval(np.median, samples)
    monkeypatch.setattr(sampling, "DRAWN_AT_ONCE", 7000)
    assert interval(np.median, samples.tolist()) == found  # the same samples, the same interval


def test_a_summary():
    summary = Summary.of(np.arange(1, 102))  # 1 to 101
    assert (summary.p50_s, summary.p90_s, summary.p99_s, summary.mean_s) == (51, 91, 100, 51)
    assert summary.deviation_s == pytest.approx(np.sqrt((101**2 - 1) / 12))
    assert summary.samples == 101


@pytest.mark.parametrize(("least", "name"), [(10, "p90_s"), (100, "p99_s")])
def test_a_percentile_needs_its_samples(least, name):
    assert getattr(Summary.of(np.ones(least - 1)), name) is None
    assert getattr(Summary.of(np.ones(least)), name) == 1
    assert Summary.of([2.0]).p50_s == 2
