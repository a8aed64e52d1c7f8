"""Network streams over HTTP, from a server on this machine."""

import itertools
import subprocess
import sys

import cv2
import number_video
import pytest
import stream_server
from source_items import error_of

from detcli.source import live
from detcli.source import video as capture
from detcli.source.loading import SourceOptions
from detcli.source.sources import Sources

WAIT_S = 60
"""Longer than any of these tests takes."""


@pytest.fixture(autouse=True)
def _no_delay(monkeypatch):
    monkeypatch.setattr(live, "MIN_DELAY_S", 0.01)


@pytest.fixture
def server():
    with stream_server.serve() as server:
        yield server


def test_a_stream_over_http_is_watched(server):
    with Sources([server.url()]) as sources:
        items = list(itertools.islice(sources, 5))
        assert sources.progress.total is None
    shown = [number_video.number(item.load().pixels) for item in items]
    assert shown == [item.origin.frame for item in items]
    assert {item.origin.source for item in items} == {server.url()}


def test_a_stream_uses_a_password_without_showing_it(server):
    server.password = "eve:hunter 2"  # noqa: S105
    with Sources([server.url(user="eve:hunter%202@")]) as sources:
        item = next(iter(sources))
    assert item.origin.source == server.url()
    assert number_video.number(item.load().pixels) == item.origin.frame
    with Sources([server.url(user="eve:wrong@")]) as sources:
        (item,) = sources
    assert (item.origin.source, error_of(item)) == (server.url(), "cannot be opened")


def test_a_stream_that_ends_is_opened_again(server):
    server.frames = 5
    with Sources([server.url()]) as sources:
        for item in sources:
            if item.origin.frame >= 12:
                break
    assert len(server.requests) >= 3


def test_a_stream_that_stalls_is_lost(server, monkeypatch):
    monkeypatch.setattr(capture, "READ_TIMEOUT_MS", 300)
    with Sources([server.url()], SourceOptions(reconnect_s=0)) as sources:
        items = iter(sources)
        next(items)
        server.stall.set()
        *_, last = items
    assert "lost, and not back after" in error_of(last)


def test_a_picture_without_a_suffix_is_a_picture(server):
    server.files["/snapshot"] = cv2.imencode(".jpg", number_video.frame(0))[1].tobytes()
    with Sources([server.url("/snapshot")]) as sources:
        (item,) = sources
    assert number_video.number(item.load().pixels) == 0


@pytest.mark.parametrize("path", ["/clip", "/clip.m3u8"])
def test_a_video_without_a_suffix_is_refused(server, tmp_path, path):
    """As a stream it would begin anew at each end, and leave out frames."""
    server.files["/clip"] = number_video.write(tmp_path / "clip.mp4").read_bytes()
    server.files["/clip.ts"] = number_video.write(tmp_path / "clip.ts").read_bytes()
    parts = "#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2.0,\nclip.ts\n#EXT-X-ENDLIST\n"
    server.files["/clip.m3u8"] = parts.encode()
    with Sources([server.url(path)]) as sources:
        (item,) = sources
    assert "a video file, not a stream" in error_of(item)


def test_a_video_over_http_is_read_frame_by_frame(server, tmp_path):
    path = number_video.write(tmp_path / "v.mp4", 20)
    server.files["/v.mp4?key=secret"] = path.read_bytes()
    with Sources([server.url("/v.mp4?key=secret")], SourceOptions(stride=3)) as sources:
        items = list(sources)
        assert sources.progress.total == len(items)
    assert [item.origin.frame for item in items] == list(range(0, 20, 3))
    assert {item.origin.source for item in items} == {server.url("/v.mp4?key=***")}


def test_a_watching_process_exits_cleanly(server):
    """However a run ends, its threads end before the interpreter does."""
    code = """
import sys
from detcli.core.opencv import silence_opencv
from detcli.source.sources import Sources
silence_opencv()
with Sources([sys.argv[1]]) as sources:
    print(next(iter(sources)).origin.frame)
"""
    server.pause = 0.2
    finished = subprocess.run(
        [sys.executable, "-c", code, server.url()],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert (finished.returncode, finished.stderr) == (0, "")
    assert finished.stdout.strip().isdecimal()  # the newest frame, not always the first
