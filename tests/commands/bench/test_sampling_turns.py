"""Implementations in turns, and samples of short calls."""

import pytest

from detcli.commands.bench import sampling
from detcli.commands.bench.sampling import MIN_ROUNDS, repeats_of, sample, take_turns


@pytest.mark.parametrize(
    ("taken", "repeats"), [(1e-9, 1000), (3e-6, 34), (9.9e-5, 2), (1e-4, 1), (3.0, 1)]
)
def test_a_sample_repeats_a_short_call(taken, repeats, monkeypatch):
    monkeypatch.setattr(sampling, "sample", lambda *_: taken)
    assert repeats_of(tuple) == repeats


def test_a_sample_is_the_mean_of_its_calls(monkeypatch):
    monkeypatch.setattr(sampling.time, "perf_counter", iter([10.0, 16.0]).__next__)
    called = []
    assert sample(lambda: called.append(1), 4) == 1.5
    assert len(called) == 4


@pytest.mark.parametrize("rounds", [1, MIN_ROUNDS])
def test_implementations_take_turns_in_changing_order(rounds, monkeypatch):
    order, after = [], []
    monkeypatch.setattr(sampling, "sample", lambda call, repeats: call() or 1.0 / repeats)
    monkeypatch.setattr(sampling, "repeats_of", lambda _: 1)
    monkeypatch.setattr(sampling, "TURN_S", -1.0)  # one sample per turn
    implementations = {name: (lambda name=name: order.append(name)) for name in "abc"}
    taken = take_turns(implementations, rounds=rounds, between=lambda: after.append(len(order)))
    assert after == [6 * (number + 1) for number in range(rounds)]
    turns = ["".join(order[start : start + 6]) for start in range(0, len(order), 6)]
    assert len(set(turns)) > 1 or rounds == 1
    for turn in turns:
        assert turn[::2] == turn[1::2]  # an untimed call before the timed one
        assert sorted(turn[::2]) == ["a", "b", "c"]
    assert [len(samples) for samples in taken.values()] == [rounds] * 3
