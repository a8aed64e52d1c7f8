"""The bytes of pictures on their way."""

import itertools
import threading

import pytest

from detcli.core.errors import DecodeError, SourceError
from detcli.source import fetch as module
from detcli.source.decode import DecodeOptions
from detcli.source.fetch import Fetch, Fetches

PNG = b"\x89PNG\r\n\x1a\n"
LIMIT_S = 60


def chunks(*parts):
    yield from parts


def shared(**options):
    return Fetches(DecodeOptions(**options), threading.Event())


def test_bytes_come_once_whether_begun_or_not():
    asked = []

    def request():
        asked.append(1)
        return 4, chunks(b"ab", b"cd")

    for begin in (True, False):
        fetch = Fetch(shared(), request)
        if begin:
            fetch.begin()
            fetch.begin()
        assert fetch.take() == b"abcd"
    assert len(asked) == 2


def test_what_goes_wrong_is_raised_where_the_bytes_are_taken():
    def torn():
        yield b"ab"
        raise SourceError("torn")

    fetch = Fetch(shared(), lambda: (4, torn()))
    fetch.begin()
    with pytest.raises(SourceError, match="torn"):
        fetch.take()
    with pytest.raises(ZeroDivisionError):
        Fetch(shared(), lambda: 1 / 0).take()


def test_too_much_is_refused():
    with pytest.raises(DecodeError, match="too large"):
        Fetch(shared(max_pixels=1), lambda: (2**40, chunks())).take()
    endless = itertools.repeat(PNG + bytes(2**20))
    with pytest.raises(DecodeError, match="too large"):
        Fetch(shared(max_pixels=1), lambda: (0, (part for part in endless))).take()


def test_what_never_comes_is_an_error_after_the_time_limit():
    release = threading.Event()
    with pytest.raises(SourceError, match=r"not read and decoded after 0.3 s"):
        Fetch(shared(timeout_s=0.3), lambda: release.wait(LIMIT_S)).take()
    release.set()


def test_an_interrupted_run_does_not_wait():
    release, run = threading.Event(), shared(timeout_s=0)
    run.stop.set()
    with pytest.raises(SourceError, match="interrupted"):
        Fetch(run, lambda: release.wait(LIMIT_S)).take()
    release.set()


def test_pictures_ahead_of_their_turn_take_limited_memory(monkeypatch):
    monkeypatch.setattr(module, "AHEAD_BYTES", 10)
    run, started = shared(), []

    def request(number):
        def chunks():
            started.append(number)
            yield bytes(6)

        return 6, chunks()

    fetches = [Fetch(run, lambda number=number: request(number)) for number in range(4)]
    for fetch in fetches:
        fetch.begin()
    fetches[-1]._done.wait(0.5)  # noqa: SLF001
    assert len(started) == 1  # a second would take more than there is
    for fetch in fetches:  # in their order, whichever came first
        assert fetch.take() == bytes(6)
    assert sorted(started) == [0, 1, 2, 3]
    with run.changed:  # all is given back
        assert run.changed.wait_for(lambda: run._free == 10, LIMIT_S)  # noqa: SLF001
