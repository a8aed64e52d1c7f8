"""The bytes of images on their way: ahead of their turn, over HTTP, within limits."""

import threading

import cv2
import numpy as np
import pytest
import stream_server

from detcli.config.inputs import InputOptions
from detcli.core.errors import DecodeError, SourceError
from detcli.data.record import Origin
from detcli.source import fetch as module
from detcli.source.decode import DecodeOptions
from detcli.source.fetch import Download, Fetch, Fetches, Prefetcher, http_request
from detcli.source.loading import Item
from detcli.source.sources import Sources

PNG = cv2.imencode(".png", np.full((24, 32, 3), 50, np.uint8))[1].tobytes()
LIMIT_S = 60


def chunks(*parts):
    yield from parts


def shared(stop=None, **inputs):
    return Fetches(DecodeOptions(InputOptions(**inputs)), stop or threading.Event())


def in_background(work):
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_bytes_come_once_whether_begun_or_not():
    asked = []

    def request():
        asked.append(1)
        return 4, chunks(b"ab", b"cd")

    for begun in (2, 0):
        fetch = Fetch(shared(), request)
        for _ in range(begun):
            fetch.begin()
        assert fetch.take() == b"abcd"
    assert len(asked) == 2


def test_what_goes_wrong_is_raised_where_the_bytes_are_taken():
    def torn():
        yield b"ab"
        raise SourceError("torn")

    fetch = Fetch(shared(), lambda: Download(4, torn()))
    fetch.begin()
    with pytest.raises(SourceError, match="torn"):
        fetch.take()
    with pytest.raises(ZeroDivisionError):
        Fetch(shared(), lambda: 1 / 0).take()  # type: ignore[arg-type, return-value]

    def endless():
        while True:
            yield PNG + bytes(2**20)

    for too_much in ((2**40, chunks()), (0, endless())):
        with pytest.raises(DecodeError, match="too large"):
            Fetch(shared(max_pixels=1), lambda too_much=too_much: too_much).take()


@pytest.mark.slow
def test_what_never_comes_is_given_up_after_the_time_limit_or_with_the_run():
    release, run = threading.Event(), shared(input_timeout=0)
    with pytest.raises(SourceError, match=r"not read and decoded after 0.3 s"):
        Fetch(shared(input_timeout=0.3), lambda: release.wait(LIMIT_S)).take()  # type: ignore[arg-type, return-value]
    run.stop.set()
    with pytest.raises(SourceError, match="interrupted"):
        Fetch(run, lambda: release.wait(LIMIT_S)).take()  # type: ignore[arg-type, return-value]
    release.set()


def test_images_ahead_of_their_turn_take_limited_memory(monkeypatch):
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


class Run:
    """A pipeline's side: admits items when a test lets it."""

    def __init__(self):
        self.over, self.room = threading.Event(), threading.Semaphore(0)
        self.begun, self.admitted = [], []
        self.prefetcher = Prefetcher(self.admit, self.over)

    def admit(self, index, _):
        while not self.room.acquire(timeout=0.05):
            if self.over.is_set():
                return False
        self.admitted.append(index)
        return not self.over.is_set()

    def put(self, index, *, remote):
        begin = (lambda: self.begun.append(index)) if remote else None
        return self.prefetcher.put(index, Item(None, None, begin))


@pytest.fixture
def pipeline_run(monkeypatch):
    monkeypatch.setattr(module, "AHEAD_ITEMS", 3)
    run = Run()
    yield run
    run.over.set()
    run.prefetcher.close()


def test_remote_items_begin_before_there_is_room(pipeline_run):
    for index in range(3):
        assert pipeline_run.put(index, remote=True) is True
    assert pipeline_run.begun == [0, 1, 2]
    assert pipeline_run.admitted == []
    fourth = in_background(lambda: pipeline_run.put(3, remote=True))
    fourth.join(0.2)
    assert fourth.is_alive()  # as many as may be ahead
    pipeline_run.room.release(4)
    fourth.join(LIMIT_S)
    pipeline_run.prefetcher.close()
    assert pipeline_run.begun == pipeline_run.admitted == [0, 1, 2, 3]


def test_others_wait_for_their_turn(pipeline_run):
    """A camera's frame is not taken before there is room for it."""
    pipeline_run.room.release(1)
    assert pipeline_run.put(0, remote=False)
    assert pipeline_run.admitted == [0]
    assert pipeline_run.prefetcher._thread is None  # noqa: SLF001 - no detour
    assert pipeline_run.put(1, remote=True)
    second = in_background(lambda: pipeline_run.put(2, remote=False))
    second.join(0.2)
    assert second.is_alive()
    pipeline_run.room.release(2)
    second.join(LIMIT_S)
    assert not second.is_alive()
    assert pipeline_run.admitted == [0, 1, 2]


def test_mixed_items_stay_in_order(pipeline_run):
    pipeline_run.room.release(200)
    for index in range(200):
        assert pipeline_run.put(index, remote=index % 3 != 0)
    pipeline_run.prefetcher.close()
    assert pipeline_run.admitted == list(range(200))


@pytest.mark.parametrize("remote", [True, False])
def test_the_end_of_a_run_ends_the_waiting(pipeline_run, monkeypatch, remote):
    monkeypatch.setattr(module, "POLL_S", 0.05)
    for index in range(3):
        pipeline_run.put(index, remote=True)
    results = []
    waiting = in_background(lambda: results.append(pipeline_run.put(3, remote=remote)))
    waiting.join(0.2)
    assert waiting.is_alive()
    pipeline_run.over.set()
    waiting.join(LIMIT_S)
    assert results == [False]


@pytest.fixture
def object_server():
    with stream_server.serve() as server:
        server.files |= dict.fromkeys(("/a%20b.png?size=1", "/%C3%A4.png", "/a.png"), PNG)
        yield server


def load(url, stop=None, **inputs):
    return shared(stop, **inputs).item(url, lambda: http_request(url)).load()


@pytest.mark.parametrize("path", ["/a%20b.png?size=1", "/a b.png?size=1#there", "/ä.png"])
def test_an_image_is_fetched(object_server, path):
    image = load(object_server.url(path))
    assert image.size == (24, 32)
    assert (image.pixels == 50).all()


def test_it_is_an_image_among_others(object_server):
    with Sources([object_server.url("/a.png", user="eve:pw@")]) as sources:
        (item,) = sources
        assert sources.progress.total == 1
        assert item.origin == Origin(object_server.url("/a.png"))
        assert item.load().size == (24, 32)


def test_a_password_is_told_to_who_asks(object_server):
    load(object_server.url("/a.png", user="eve:p%40w@"))
    assert object_server.requests == [("/a.png", "")]
    object_server.password = "eve:p@w"  # noqa: S105
    load(object_server.url("/a.png", user="eve:p%40w@"))
    assert object_server.requests[1:] == [("/a.png", ""), ("/a.png", "eve:p@w")]


@pytest.mark.parametrize(
    ("path", "user", "reason"),
    [
        ("/gone.png", "", "404 Not Found"),
        ("/a.png", "", "401 Unauthorized"),
        ("/a.png", "eve:wrong@", "401 Unauthorized"),
    ],
)
def test_what_cannot_be_fetched_is_an_error(object_server, path, user, reason):
    object_server.password = "eve:pw" if path == "/a.png" else None
    with pytest.raises(SourceError) as caught:
        load(object_server.url(path, user=user))
    assert str(caught.value) == f"cannot be fetched: the server answers {reason}"
    assert ("password" in caught.value.hint) == ("401" in reason)


def test_what_is_too_large_or_comes_too_late_is_refused(object_server):
    with pytest.raises(DecodeError, match="too large"):
        load(object_server.url("/a.png"), max_pixels=100)
    object_server.files["/large.png"] = b"GIF89a" + bytes(2**24 + 1000)
    with pytest.raises(DecodeError, match="more than 16778016 bytes"):
        load(object_server.url("/large.png"), max_pixels=100)
    stop = threading.Event()
    stop.set()
    with pytest.raises(SourceError, match="interrupted"):
        load(object_server.url("/a.png"), stop)
    object_server.drip_s = 0.05
    with pytest.raises(SourceError, match=r"not read and decoded after 0\.5 s"):
        load(object_server.url("/a.png"), input_timeout=0.5)
