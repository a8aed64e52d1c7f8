"""Background threads end before the interpreter does."""

import threading

import pytest

from detcli.core import threads
from detcli.core.threads import BackgroundThread, stop_all


@pytest.fixture
def stop():
    event = threading.Event()
    yield event
    event.set()


def test_all_threads_are_stopped_and_joined(stop):
    waiting = [BackgroundThread(stop.wait, stop.set) for _ in range(3)]
    for thread in waiting:
        thread.start()
    stop_all(60)
    for thread in waiting:
        assert not thread.is_alive()


def test_a_thread_that_another_one_starts_meanwhile_is_stopped_too(stop):
    followers = []
    second_stop = threading.Event()

    def start_another():
        stop.wait()
        follower = BackgroundThread(second_stop.wait, second_stop.set)
        followers.append(follower)
        follower.start()

    BackgroundThread(start_another, stop.set).start()
    stop_all(60)
    assert not followers[0].is_alive()


def test_a_thread_that_is_being_started_is_waited_for(stop, monkeypatch):
    """Python lists a thread a moment before it has started, and cannot join it until then."""
    thread = BackgroundThread(stop.wait, stop.set)
    looks = []

    def running():
        looks.append(thread)
        if len(looks) == 2:
            thread.start()
        if len(looks) < 4:
            return [thread]
        return []

    monkeypatch.setattr(threads, "_running", running)
    stop_all(60)
    assert len(looks) == 4
    assert thread.ident is not None
    assert not thread.is_alive()


def test_one_that_hangs_is_not_waited_for(stop):
    thread = BackgroundThread(stop.wait)
    thread.is_abandoned = True
    thread.start()
    stop_all(60)
    assert thread.is_alive()


def test_the_wait_has_an_end(stop):
    thread = BackgroundThread(stop.wait)
    thread.start()
    stop_all(0.01)
    assert thread.is_alive()


def test_a_second_interrupt_ends_the_wait(monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr(threads, "stop_all", interrupt)
    threads._stop_at_exit()  # noqa: SLF001 - what is registered
