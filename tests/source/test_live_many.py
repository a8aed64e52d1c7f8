"""Many cameras and streams at once, from servers on this machine."""

import contextlib
import sys
from collections import Counter

import cv2
import number_video
import pytest
import stream_server
from source_items import error_of

from detcli.core.opencv import open_streams_in_parallel
from detcli.source import capture, live
from detcli.source import sources as module
from detcli.source.sources import Sources

SERVERS = 50


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
        servers = [stack.enter_context(stream_server.serve()) for _ in range(SERVERS)]
        for server in servers:
            server.pause = 0.2
        yield servers


def names_of(servers):
    return [server.url() for server in servers]


def collect(items, wanted, count):
    """Take items until each wanted source gave so many frames; returns all of them."""
    found, frames = [], Counter()
    for item in items:
        found.append(item)
        frames[item.origin.source] += item.origin.frame is not None
        if item.origin.source in wanted and item.origin.frame is None:
            pytest.fail(f"{item.origin.source}: {error_of(item)}")
        if all(frames[name] >= count for name in wanted):
            break
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="OpenCV opens one stream at a time")
def test_streams_that_hang_delay_no_other(servers, monkeypatch):
    """Of fifty, some never answer, some have gone, some stand still, some end again and again."""
    monkeypatch.setattr(capture, "OPEN_TIMEOUT_MS", 60_000)
    monkeypatch.setattr(live, "RECONNECT_S", 60)
    silent, gone, stalled, ending, sound = (servers[at::5] for at in range(5))
    for server in silent:
        server.silent = True
    for server in ending:
        server.frames = 3
    names = [server.url("/gone" if server in gone else "/stream") for server in servers]
    with Sources(names) as sources:
        items = iter(sources)
        first = collect(items, names_of([*stalled, *ending, *sound]), 1)
        for server in stalled:
            server.stall.set()
        found = first + collect(items, names_of([*ending, *sound]), 8)
        for server in servers:
            server.over.set()  # so that nothing is waited for
    failed = {item.origin.source: error_of(item) for item in found if item.origin.frame is None}
    assert failed.keys() <= {server.url("/gone") for server in gone}
    seen = {item.origin.source for item in found if item.origin.frame is not None}
    assert seen == set(names_of([*stalled, *ending, *sound]))
    for server in sound:
        numbers = [item.origin.frame for item in found if item.origin.source == server.url()]
        assert numbers == sorted(set(numbers))


def test_files_come_before_live_sources(tmp_path):
    """What has an end first, so that what may have none cannot keep it from being read."""
    picture = str(tmp_path / "a.png")
    cv2.imwrite(picture, number_video.frame(0))
    with stream_server.serve() as server:
        names = [server.url("/stream1"), picture, server.url("/stream2")]
        with Sources(names) as sources:
            items = iter(sources)
            first = next(items)
            found = collect(items, [server.url("/stream1"), server.url("/stream2")], 2)
            assert sources.progress.total is None
    assert first.origin.source == picture
    assert {item.origin.source for item in found} == {names[0], names[2]}


def test_sources_that_look_the_same_have_names_of_their_own():
    """Records do not show what may be a password, so only a number tells these apart."""
    with stream_server.serve() as server:
        names = [server.url(f"/stream?key={key}") for key in ("one", "two", "three")]
        with Sources([*names, server.url("/stream")]) as sources:
            public = server.url("/stream?key=***")
            wanted = [public, f"{public} (2)", f"{public} (3)", server.url("/stream")]
            found = collect(sources, wanted, 2)
        assert {path for path, _ in server.requests} >= {
            f"/stream?key={key}" for key in ("one", "two", "three")
        }
    assert {item.origin.source for item in found} == set(wanted)


@pytest.mark.parametrize(("count", "threads"), [(1, 0), (2, 4), (3, 2), (8, 1), (50, 1)])
def test_streams_share_the_cores(count, threads, monkeypatch):
    """A thread more is a frame more in memory, and between the camera and its newest frame."""
    asked = []
    named = live.LiveSource.named
    monkeypatch.setattr(module, "available_cores", lambda: 8)
    monkeypatch.setattr(
        live.LiveSource,
        "named",
        lambda name, threads: asked.append(threads) or named(name, threads),
    )
    names = [f"http://127.0.0.1:9/{number}" for number in range(count)]
    with Sources(names) as sources:
        assert len(list(sources)) == count
    assert asked == [threads] * count
