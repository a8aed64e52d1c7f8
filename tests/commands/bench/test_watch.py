"""Steps of a measurement that never end, in code that nothing can interrupt."""

import threading

import pytest

from detcli.commands.bench.watch import Watch
from detcli.errors import SourceError


@pytest.fixture
def hang():
    release = threading.Event()
    yield lambda: release.wait(60)
    release.set()


def too_long():
    return SourceError("too long")


def test_results_and_errors_are_passed_on():
    assert Watch().run(lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        Watch().run(lambda: 1 / 0)


def test_a_step_that_never_ends_is_an_error(hang):
    watch = Watch()

    def measure():
        watch.step(60, ZeroDivisionError)
        watch.step(0.3, too_long)
        hang()

    with pytest.raises(SourceError, match="too long"):
        watch.run(measure)


def test_many_steps_may_take_longer_than_one():
    watch = Watch()

    def measure():
        for _ in range(10):
            watch.step(0.5, too_long)
            threading.Event().wait(0.1)
        return 5

    assert watch.run(measure) == 5


def test_a_step_of_an_earlier_measurement_is_over():
    watch = Watch()
    watch.run(lambda: watch.step(0.1, too_long))
    assert watch.run(lambda: threading.Event().wait(0.5)) is False


def test_an_interrupted_measurement_ends_at_its_next_step(monkeypatch):
    watch, ended = Watch(), threading.Event()

    def measure():
        try:
            while True:
                watch.step(60, too_long)
                threading.Event().wait(0.01)
        finally:
            ended.set()

    real = threading.Thread.join
    joined = []

    def join(thread, timeout):
        joined.append(timeout)
        if len(joined) == 2:
            raise KeyboardInterrupt
        real(thread, timeout)

    monkeypatch.setattr(threading.Thread, "join", join)
    with pytest.raises(KeyboardInterrupt):
        watch.run(measure)
    assert ended.is_set()
