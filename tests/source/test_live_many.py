"""Many cameras and streams at once, from servers on this machine."""

import contextlib
import sys
from collections import Counter, defaultdict

import cv2
import number_video
import pytest
import stream_server
import thinning
from origins import sources_of
from source_items import error_of

from detcli.core.opencv import open_streams_in_parallel
from detcli.source import capture, live
from detcli.source import sources as module
from detcli.source.sources import Sources

SERVERS = 50

FRAMES_OF_EACH = 8 if thinning.RUNS_WHOLE else 4
"""How many frames each stream that goes on gives; those that end have three a connection."""


@pytest.fixture(autouse=True)
def _set_up(monkeypatch):
    monkeypatch.setattr(live, "MIN_DELAY_S", 0.05)
    monkeypatch.setenv("OPENCV_FFMPEG_IS_THREAD_SAFE", "")  # what is there now comes back
    monkeypatch.delenv("OPENCV_FFMPEG_IS_THREAD_SAFE")
    open_streams_in_parallel()


@pytest.fixture
def servers():
    """Fifty cameras of five frames a second."""
    with contextlib.ExitStack() as stack:
        servers = []
        for _ in range(SERVERS):
            server = stack.enter_context(stream_server.serve())
            server.pause = 0.2
            servers.append(server)
        yield servers


def urls_of(servers, path="/stream"):
    return [server.url(path) for server in servers]


def collect(items, sources, count):
    """Take items until each of some sources gave so many frames; returns all of them."""
    collected = []
    frames = Counter()
    for item in items:
        source = item.origin.source
        collected.append(item)
        if item.origin.frame is not None:
            frames[source] += 1
        elif source in sources:
            pytest.fail(f"{source}: {error_of(item)}")
        if all(frames[name] >= count for name in sources):
            break
    return collected


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="OpenCV opens one stream at a time")
def test_streams_that_hang_delay_no_other(servers, monkeypatch):
    """Of fifty, some never answer, some have gone, some stand still, some end again and again."""
    monkeypatch.setattr(capture, "OPEN_TIMEOUT_MS", 60_000)
    monkeypatch.setattr(live, "RECONNECT_S", 60)
    silent = servers[0::5]
    gone = servers[1::5]
    stalled = servers[2::5]
    ending = servers[3::5]
    sound = servers[4::5]
    for server in silent:
        server.silent = True
    for server in ending:
        server.frames = 3
    names = []
    for server in servers:
        path = "/gone" if server in gone else "/stream"
        names.append(server.url(path))
    with Sources(names) as sources:
        items = iter(sources)
        collected = collect(items, urls_of(stalled + ending + sound), 1)
        for server in stalled:
            server.stall.set()
        collected += collect(items, urls_of(ending + sound), FRAMES_OF_EACH)
        for server in servers:
            server.over.set()  # so that nothing is waited for
    failed = set()
    frames_of = defaultdict(list)
    for item in collected:
        if item.origin.frame is None:
            error_of(item)  # which loads it: it has to be an error
            failed.add(item.origin.source)
        else:
            frames_of[item.origin.source].append(item.origin.frame)
    assert failed <= set(urls_of(gone, "/gone"))
    assert frames_of.keys() == set(urls_of(stalled + ending + sound))
    for server in sound:
        numbers = frames_of[server.url()]
        assert numbers == sorted(set(numbers))


def test_files_come_before_live_sources(tmp_path):
    """What has an end first, so that what may have none cannot keep it from being read."""
    image = str(tmp_path / "a.png")
    cv2.imwrite(image, number_video.frame(0))
    with stream_server.serve() as server:
        names = [server.url("/stream1"), image, server.url("/stream2")]
        with Sources(names) as sources:
            items = iter(sources)
            first = next(items)
            streamed = collect(items, [server.url("/stream1"), server.url("/stream2")], 2)
            assert sources.progress.total is None
    assert first.origin.source == image
    assert set(sources_of(streamed)) == {names[0], names[2]}


def test_sources_that_look_the_same_have_names_of_their_own():
    """Records do not show what may be a password, so only a number tells these apart."""
    with stream_server.serve() as server:
        paths = ["/stream?key=one", "/stream?key=two", "/stream?key=three", "/stream"]
        with Sources([server.url(path) for path in paths]) as sources:
            public = server.url("/stream?key=***")
            public_names = [public, f"{public} (2)", f"{public} (3)", server.url("/stream")]
            items = collect(sources, public_names, 2)
        requested_paths = {path for path, _ in server.requests}
        assert requested_paths >= set(paths[:3])
    assert set(sources_of(items)) == set(public_names)


@pytest.mark.parametrize(("count", "threads"), [(1, 0), (2, 4), (3, 2), (8, 1), (50, 1)])
def test_streams_share_the_cores(count, threads, monkeypatch):
    """A thread more is a frame more in memory, and between the camera and its newest frame."""
    threads_of_sources = []
    named = live.LiveSource.named

    def named_and_noted(name, threads):
        threads_of_sources.append(threads)
        return named(name, threads)

    monkeypatch.setattr(module, "available_cores", lambda: 8)
    monkeypatch.setattr(live.LiveSource, "named", named_and_noted)
    names = [f"http://127.0.0.1:9/{number}" for number in range(count)]
    with Sources(names) as sources:
        assert len(list(sources)) == count
    assert threads_of_sources == [threads] * count
