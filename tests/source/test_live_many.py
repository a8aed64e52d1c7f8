"""Many cameras and streams at once, from servers on this machine."""

import contextlib
from collections import Counter

import number_video
import pytest
import stream_server
from source_items import error_of

from detcli.opencv import open_streams_in_parallel
from detcli.source import capture, live
from detcli.source.item import SourceOptions
from detcli.source.sources import Sources

SERVERS = 50


@pytest.fixture(autouse=True)
def _set_up(monkeypatch):
    monkeypatch.setattr(live, "MIN_DELAY_S", 0.05)
    monkeypatch.delenv("OPENCV_FFMPEG_IS_THREAD_SAFE", raising=False)
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


def test_streams_that_hang_delay_no_other(servers, monkeypatch):
    """Of fifty, some never answer, some have gone, some stand still, some end again and again."""
    monkeypatch.setattr(capture, "OPEN_TIMEOUT_MS", 30_000)
    silent, gone, stalled, ending, sound = (servers[at::5] for at in range(5))
    for server in silent:
        server.silent = True
    for server in gone:
        server.server_close()
    for server in stalled:
        server.pause, server.frames = 0.01, None
    for server in ending:
        server.frames = 3
    with Sources(names_of(servers), SourceOptions(reconnect_s=60)) as sources:
        items = iter(sources)
        first = collect(items, names_of([*stalled, *ending, *sound]), 1)
        for server in stalled:
            server.stall.set()
        found = first + collect(items, names_of([*ending, *sound]), 8)
        for server in servers:
            server.over.set()  # so that nothing is waited for
    failed = {item.origin.source: error_of(item) for item in found if item.origin.frame is None}
    assert failed == dict.fromkeys(names_of(gone), "cannot be opened")
    seen = {item.origin.source for item in found if item.origin.frame is not None}
    assert seen == set(names_of([*stalled, *ending, *sound]))
    for server in sound:
        numbers = [item.origin.frame for item in found if item.origin.source == server.url()]
        assert numbers == sorted(set(numbers))


def test_fifty_streams_take_turns(servers):
    """However slow the one who takes frames is, no stream is behind another."""
    for server in servers[::2]:
        server.pause = 0.01  # these have twenty times as many frames
    names = names_of(servers)
    with Sources(names) as sources:
        items = iter(sources)
        collect(items, names, 1)
        while not all(server.requests for server in servers):
            next(items)
        found = []
        for _ in range(4):
            servers[0].over.wait(0.5)  # until all have another frame
            found.append(Counter(next(items).origin.source for _ in range(SERVERS)))
        for server in servers:
            server.over.set()
        dropped = sources.progress.dropped
    assert found == [Counter(names)] * 4
    assert set(dropped) == set(names)
    assert dropped[names[0]] > dropped[names[1]]


def test_files_come_before_live_sources(make_folder):
    """What has an end first, so that what may have none cannot keep it from being read."""
    with stream_server.serve() as server:
        names = [server.url("/stream1"), make_folder, server.url("/stream2")]
        with Sources(names) as sources:
            items = iter(sources)
            first = next(items)
            found = collect(items, [server.url("/stream1"), server.url("/stream2")], 2)
            assert sources.progress.total is None
    assert first.origin.source == make_folder
    assert {item.origin.source for item in found} == {names[0], names[2]}


@pytest.fixture
def make_folder(tmp_path):
    """A picture."""
    import cv2

    path = str(tmp_path / "a.png")
    cv2.imwrite(path, number_video.frame(0))
    return path


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
    from detcli.source import sources as module

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
