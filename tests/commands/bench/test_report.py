import numpy as np
import pytest

from detcli.commands.bench.sampling import Summary


def test_a_summary():
    values = np.arange(1, 102)  # 1 to 101
    summary = Summary.of(values)
    assert (summary.p50_s, summary.p90_s, summary.p99_s) == (51, 91, 100)
    assert summary.mean_s == 51
    assert summary.deviation_s == pytest.approx(np.sqrt((101**2 - 1) / 12))
    assert summary.samples == 101


@pytest.mark.parametrize(("count", "known"), [(1, False), (99, False), (100, True)])
def test_the_99th_percentile_needs_a_hundred_samples(count, known):
    assert (Summary.of(np.ones(count)).p99_s is not None) == known


@pytest.mark.parametrize(("count", "known"), [(1, False), (9, False), (10, True)])
def test_the_90th_percentile_needs_ten(count, known):
    assert (Summary.of(np.ones(count)).p90_s is not None) == known
