"""Items that wait for a network begin early; others keep their turn."""

import threading

import pytest

from detcli.source import fetch as module
from detcli.source.fetch import Ahead
from detcli.source.loading import Item

LIMIT_S = 60


class Run:
    """A pipeline's side: admits items when a test lets it."""

    def __init__(self):
        self.over, self.room = threading.Event(), threading.Semaphore(0)
        self.begun, self.admitted = [], []
        self.ahead = Ahead(self.admit, self.over)

    def admit(self, index, _):
        while not self.room.acquire(timeout=0.05):
            if self.over.is_set():
                return False
        self.admitted.append(index)
        return not self.over.is_set()

    def put(self, index, *, remote):
        begin = (lambda: self.begun.append(index)) if remote else None
        return self.ahead.put(index, Item(None, None, begin))

    def give_room(self, count):
        for _ in range(count):
            self.room.release()


@pytest.fixture
def run():
    run = Run()
    yield run
    run.over.set()
    run.ahead.close()


def in_background(work):
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_remote_items_begin_before_there_is_room(run, monkeypatch):
    monkeypatch.setattr(module, "AHEAD_ITEMS", 3)
    run.ahead = Ahead(run.admit, run.over)
    assert [run.put(index, remote=True) for index in range(3)] == [True] * 3
    assert (run.begun, run.admitted) == ([0, 1, 2], [])
    fourth = in_background(lambda: run.put(3, remote=True))
    fourth.join(0.2)
    assert fourth.is_alive()  # as many as may be ahead
    run.give_room(4)
    fourth.join(LIMIT_S)
    run.ahead.close()
    assert run.begun == run.admitted == [0, 1, 2, 3]


def test_others_wait_for_their_turn(run):
    """A camera's frame is not taken before there is room for it."""
    run.give_room(1)
    assert run.put(0, remote=False)
    assert run.admitted == [0]
    assert run.ahead._thread is None  # noqa: SLF001 - no detour
    assert run.put(1, remote=True)
    second = in_background(lambda: run.put(2, remote=False))
    second.join(0.2)
    assert second.is_alive()
    run.give_room(2)
    second.join(LIMIT_S)
    assert not second.is_alive()
    assert run.admitted == [0, 1, 2]


def test_mixed_items_stay_in_order(run):
    run.give_room(200)
    for index in range(200):
        assert run.put(index, remote=index % 3 != 0)
    run.ahead.close()
    assert run.admitted == list(range(200))


@pytest.mark.parametrize("remote", [True, False])
def test_the_end_of_a_run_ends_the_waiting(run, monkeypatch, remote):
    monkeypatch.setattr(module, "AHEAD_ITEMS", 1)
    monkeypatch.setattr(module, "POLL_S", 0.05)
    run.ahead = Ahead(run.admit, run.over)
    run.put(0, remote=True)
    results = []
    waiting = in_background(lambda: results.append(run.put(1, remote=remote)))
    waiting.join(0.2)
    assert waiting.is_alive()
    run.over.set()
    waiting.join(LIMIT_S)
    assert results == [False]
    run.ahead.close()
