import pytest

from detcli.commands.bench import sampling as module
from detcli.commands.bench.sampling import is_stable, warm_up


def test_it_ends_when_two_blocks_take_equally_long():
    taken = iter([9.0, 5, 3, 2, 1.5, 1.2, *[1.0] * 100])
    found = warm_up(taken.__next__)
    assert found.stable
    assert found.first_s == 9.0
    # The first block without anything above 1 begins with run 7; two of them are needed, of whose
    # first one the median is 1 already when two larger ones are still in it.
    assert found.runs == 14
    assert next(taken) == 1.0


def test_what_never_settles_is_given_up_by_the_clock(monkeypatch):
    monkeypatch.setattr(module, "MAX_WARM_UP_S", -1.0)
    growing = iter(2.0**number for number in range(100))
    found = warm_up(growing.__next__)
    assert not found.stable
    assert found.runs == module.BLOCK


@pytest.mark.parametrize(
    ("taken", "stable"),
    [
        ([1.0] * 9, None),
        ([1.0] * 10, True),
        ([1.0] * 5 + [1.04] * 5, True),
        ([1.0] * 5 + [0.96] * 5, True),
        ([1.0] * 5 + [1.06] * 5, None),
        ([1.0] * 5 + [0.94] * 5, None),
        ([9.0] * 20 + [1.0] * 10, True),
    ],
)
def test_stable(taken, stable, monkeypatch):
    monkeypatch.setattr(module, "MAX_WARM_UP_S", 20.0)
    assert is_stable(taken, 19.0) is stable
    assert is_stable(taken, 21.0) is bool(stable)


def test_runs_of_a_millisecond_are_not_stable_before_the_clocks_have_risen(monkeypatch):
    monkeypatch.setattr(module, "MIN_WARM_UP_S", 1.0)
    monkeypatch.setattr(module, "MAX_WARM_UP_S", 20.0)
    assert is_stable([0.001] * 500, 0.5) is None
    assert is_stable([0.001] * 1100, 1.1) is True
