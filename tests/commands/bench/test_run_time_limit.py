"""Steps of a measurement that never end, in code that nothing can interrupt."""

import threading
from concurrent.futures import wait

import pytest

from detcli.commands.bench import run
from detcli.commands.bench.run import TimeLimit
from detcli.core.errors import SourceError

TOO_LONG = SourceError("too long")


def test_results_and_errors_are_passed_on():
    assert TimeLimit().run(lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        TimeLimit().run(lambda: 1 / 0)


def test_a_step_that_never_ends_is_an_error(hang):
    time_limit = TimeLimit()

    def measure():
        time_limit.begin_step(60, SourceError("other"))
        time_limit.begin_step(0.3, TOO_LONG)
        hang()

    with pytest.raises(SourceError, match="too long"):
        time_limit.run(measure)


@pytest.mark.slow
def test_many_steps_may_take_longer_than_one_and_end_with_their_measurement():
    time_limit = TimeLimit()
    pause = threading.Event().wait

    def measure():
        for _ in range(10):
            time_limit.begin_step(0.5, TOO_LONG)
            pause(0.1)
        return 5

    assert time_limit.run(measure) == 5
    assert time_limit.run(lambda: pause(0.8)) is False


def test_an_interrupted_measurement_ends_at_its_next_step(monkeypatch):
    time_limit = TimeLimit()
    ended = threading.Event()

    def measure():
        try:
            while True:
                time_limit.begin_step(60, TOO_LONG)
                threading.Event().wait(0.01)
        finally:
            ended.set()

    waited = []

    def interrupted(outcomes, timeout):
        waited.append(timeout)
        if len(waited) == 2:
            raise KeyboardInterrupt
        return wait(outcomes, timeout)

    monkeypatch.setattr(run, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        time_limit.run(measure)
    assert ended.is_set()
