import pytest

from detcli.commands.bench import sampling as module
from detcli.commands.bench.sampling import warm_up


@pytest.fixture
def warmed(monkeypatch):
    """The end of a warm-up of runs that take these seconds, on a clock of their own."""

    def run(*waits):
        now = 0.0

        def wait():
            nonlocal now
            now += (step := next(left))
            return step

        left = iter(waits)
        monkeypatch.setattr(module.time, "perf_counter", lambda: now)
        monkeypatch.setattr(module, "MIN_WARM_UP_S", 1.0)
        monkeypatch.setattr(module, "MAX_WARM_UP_S", 20.0)
        return warm_up(wait)

    return run


def test_it_ends_when_two_blocks_take_equally_long(warmed):
    found = warmed(2.0, 1.5, 1, 0.8, 0.6, 0.5, *[0.4] * 100)
    assert (found.stable, found.first_s) == (True, 2.0)
    # The first block without anything above 0.4 begins with run 7; two of them are needed, of whose
    # first one the median is 0.4 already when two larger ones are still in it.
    assert found.runs == 14
    assert found.seconds == pytest.approx(6.4 + 8 * 0.4)


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
    found = warmed(*waits)
    assert found.runs == pytest.approx(runs, abs=1 if runs > 1000 else 0)
    assert found.stable is stable
