"""Time limits."""

import itertools
import threading
import time

import pytest

from detcli.core.timing import TimeLimitError, run_with_time_limit


def interrupt():
    raise KeyboardInterrupt


def test_a_task_ends_in_time_or_is_abandoned():
    assert run_with_time_limit(5, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        run_with_time_limit(5, lambda: 1 / 0)
    with pytest.raises(KeyboardInterrupt):
        run_with_time_limit(5, interrupt)
    release = threading.Event()
    with pytest.raises(TimeLimitError):
        run_with_time_limit(0.3, lambda: release.wait(60))
    release.set()


def test_without_a_limit_a_task_may_take_any_time():
    assert run_with_time_limit(0, lambda: time.sleep(0.5) or 7) == 7


@pytest.mark.slow
def test_a_suspended_process_is_not_late(monkeypatch):
    """The clock jumps by an hour while the task runs."""
    monotonic, jump = time.monotonic, itertools.chain([0.0] * 2, itertools.repeat(3600.0))
    monkeypatch.setattr("detcli.core.timing.time.monotonic", lambda: monotonic() + next(jump))
    assert run_with_time_limit(3, lambda: time.sleep(0.6) or 7) == 7
