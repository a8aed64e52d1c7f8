"""Cameras and network streams, over HTTP from a server on this machine."""

import itertools
import subprocess
import sys
import threading
import time
from collections import Counter
from datetime import UTC, datetime
from functools import partial

import cv2
import number_video
import pytest
import stream_server
from number_video import numbers_of
from origins import frames_of, sources_of, times_of
from source_items import error_of

from detcli.config.inputs import InputOptions
from detcli.core.errors import SourceError
from detcli.data.record import Video
from detcli.source import capture, live
from detcli.source.live import LiveSource, watch
from detcli.source.loading import SourceProgress
from detcli.source.sources import Sources

WAIT_S = 60
"""Longer than any of these tests takes."""


class Camera:
    """A capture with a number of frames, each given when the test allows it."""

    def __init__(self, frames, *, free=True, size=(64, 160)):
        self._frames_left = frames
        self._free = free
        self._permits = threading.Semaphore(0)
        self._size = size
        self.number = -1
        self.grabs = 0
        self.over = threading.Event()
        self.released = threading.Event()

    def allow(self, frames=1):
        self._permits.release(frames)

    def get(self, prop):
        height, width = self._size
        return {3: float(width), 4: float(height)}.get(prop, 0.0)  # it has no number of frames

    def grab(self):
        self.grabs += 1
        if not self._free:
            while not self._permits.acquire(timeout=0.05):
                if self.over.is_set():
                    return False
        else:
            time.sleep(0.002)
        self._frames_left -= 1
        self.number += 1
        return self._frames_left >= 0

    def retrieve(self):
        return True, number_video.frame(self.number)

    def release(self):
        self.released.set()


class Shelf:
    """Opens captures one after the other; errors are raised, None stands for a missing source."""

    def __init__(self, *captures):
        self._captures = iter(captures)
        self.opened = 0

    def __call__(self):
        self.opened += 1
        capture = next(self._captures, None)
        if capture is None:
            raise SourceError("cannot be opened", "look")
        return capture


@pytest.fixture(autouse=True)
def _no_delay(monkeypatch):
    monkeypatch.setattr(live, "MIN_DELAY_S", 0.01)
    monkeypatch.setattr(live, "RECONNECT_S", 0.0)


@pytest.fixture
def reconnect(monkeypatch):
    """For so many seconds a lost source is opened again."""
    return partial(monkeypatch.setattr, live, "RECONNECT_S")


def source(*captures, name="camera:0", **options):
    return LiveSource(name, Shelf(*captures), **options)


def follow(*sources, progress=None, **inputs):
    return watch(sources, InputOptions(**inputs), progress or SourceProgress())


def eventually(condition):
    """Wait until a condition holds."""
    deadline = time.monotonic() + WAIT_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert condition()


def items_as_allowed(camera, items, *frames):
    """The items that come as so many frames are allowed."""
    collected = []
    for count in frames:
        expected_grabs = camera.grabs + count
        camera.allow(count)
        if collected:  # the first item starts the thread
            eventually(lambda grabs=expected_grabs: camera.grabs == grabs)
        collected.append(next(items))
    camera.over.set()
    items.close()
    return collected


def test_frames_have_numbers_and_times():
    camera = Camera(1000, free=False)
    items = items_as_allowed(camera, follow(source(camera)), 1, 1, 1)
    assert frames_of(items) == [0, 1, 2]
    first_s, second_s, third_s = times_of(items)
    assert first_s == 0
    assert first_s < second_s < third_s
    assert set(sources_of(items)) == {"camera:0"}
    for item in items:
        assert item.origin.video == Video(0.0, live=True)
    assert numbers_of(items) == [0, 1, 2]


def test_overtaken_frames_are_dropped_and_counted():
    camera = Camera(1000, free=False)
    progress = SourceProgress()
    _, newest = items_as_allowed(camera, follow(source(camera), progress=progress), 1, 7)
    assert newest.origin.frame == 7
    assert progress.dropped == {"camera:0": 6}


def test_the_stride_counts_all_frames():
    camera = Camera(1000, free=False)
    progress = SourceProgress()
    items = follow(source(camera), progress=progress, vid_stride=3)
    selected = items_as_allowed(camera, items, 3, 3, 3)
    assert frames_of(selected) == [0, 3, 6]
    assert progress.dropped == {"camera:0": 0}


def test_a_frame_each_tenth_of_a_second_is_used_at_any_rate():
    items = list(follow(source(Camera(10**6)), every=0.1, start=0.05, end=0.45))
    steps = []
    for time_s in times_of(items):
        steps.append(int((time_s - 0.05) / 0.1 + 1e-5))
    assert steps == [0, 1, 2, 3]


@pytest.mark.slow
def test_a_live_source_can_be_watched_for_a_while(reconnect):
    camera = Camera(10**6)
    items = list(follow(source(camera), start=0.1, end=0.6))
    for item in items:
        assert item.origin.video  # no error
        assert 0.1 <= item.origin.time_s < 0.6
    assert items[0].origin.frame > 0
    assert camera.released.is_set()
    # The time is up whether or not frames come.
    reconnect(1000)
    items = list(follow(source(Camera(1)), end=0.2))
    assert frames_of(items) == [0]


def test_what_is_not_there_or_sends_nothing_is_an_error_at_once(reconnect):
    reconnect(1000)
    shelf = source()
    camera = Camera(0)
    (item,) = follow(shelf)
    assert item.origin.source == "camera:0"
    assert error_of(item) == "cannot be opened"
    assert shelf.open.opened == 1
    (item,) = follow(source(camera))
    assert error_of(item) == "sends no image"
    assert camera.released.is_set()


def test_a_lost_source_is_opened_again(caplog, reconnect):
    reconnect(WAIT_S)
    first_camera = Camera(40)
    last_camera = Camera(10**6)
    shelf = source(first_camera, None, None, last_camera)
    items = follow(shelf)
    numbers = []
    for item in items:
        if item.origin.frame >= 45:
            break
        numbers.append(item.origin.frame)
    items.close()
    assert numbers == sorted(set(numbers))  # numbering continues
    assert shelf.open.opened == 4
    assert first_camera.released.is_set()
    assert last_camera.released.is_set()
    assert caplog.messages.count("camera:0: lost, reconnecting") == 1


def test_the_delay_between_attempts_doubles(monkeypatch, reconnect):
    monkeypatch.setattr(live, "MAX_DELAY_S", 0.08)
    waits = []

    class Stop(threading.Event):
        def wait(self, timeout=None):
            waits.append(timeout)
            if len(waits) == 9:
                self.set()
            return self.is_set()

    captures = [Camera(1)] + [None] * 5 + [Camera(2)] + [None] * 5
    shelf = source(*captures)
    reconnect(WAIT_S)
    news = threading.Condition()
    watcher = live._Watcher(shelf, InputOptions(), SourceProgress(), news, Stop())  # noqa: SLF001
    watcher.start()
    watcher.join(WAIT_S)
    assert waits == [0.01, 0.02, 0.04, 0.08, 0.08, 0.08, 0.01, 0.02, 0.04]


@pytest.mark.slow
def test_an_error_does_not_hide_the_last_frame():
    short = Camera(1)
    other = Camera(10, free=False)
    items = follow(source(short), source(other, name="camera:1"))
    other.allow()
    collected = [next(items)]
    eventually(short.released.is_set)  # long before the next item is requested
    other.over.set()
    collected += items
    frames = []
    for item in collected:
        if item.origin.source == "camera:0":
            frames.append(item.origin.frame)
    assert frames == [0, None]


def test_a_source_that_stays_lost_is_an_error_and_every_item_says_when_it_came(reconnect):
    reconnect(0.05)
    start = datetime.now(UTC)
    items = list(follow(source(Camera(3))))
    assert items[-2].origin.frame == 2
    assert "lost, and not back after" in error_of(items[-1])
    times = [start]
    for item in items:
        times.append(item.origin.time)
    times.append(datetime.now(UTC))
    assert times == sorted(times)


@pytest.mark.parametrize("method", ["grab", "retrieve"])
def test_damaged_frames_are_skipped(method):
    class Damaged(Camera):
        def grab(self):
            return super().grab() and (method == "retrieve" or self.number % 4 == 0)

        def retrieve(self):
            return self.number % 4 == 0, super().retrieve()[1]

    shelf = source(Damaged(10**6))
    items = follow(shelf)
    first_items = list(itertools.islice(items, 3))
    items.close()
    assert len(first_items) == 3
    for number in numbers_of(first_items):
        assert number % 4 == 0
    assert shelf.open.opened == 1


def test_many_sources_take_turns_whatever_their_rates():
    """One with twenty times as many frames takes nothing from the others."""
    progress = SourceProgress()
    cameras = []
    names = []
    sources = []
    for index in range(50):
        camera = Camera(1000, free=False)
        name = f"camera:{index}"
        cameras.append(camera)
        names.append(name)
        sources.append(source(camera, name=name))
    items = follow(*sources, progress=progress)
    sources_of_turns = []
    for turn in range(4):
        for index, camera in enumerate(cameras):
            is_fast = index % 2 == 0
            camera.allow(20 if turn and is_fast else 1)
        if turn:  # the first item starts the threads
            expected_grabs = [20 * turn + 2, turn + 2] * 25
            eventually(lambda grabs=expected_grabs: [camera.grabs for camera in cameras] == grabs)
        sources_of_turns.append(Counter(sources_of(itertools.islice(items, 50))))
    for camera in cameras:
        camera.over.set()
    items.close()
    assert sources_of_turns == [Counter(names)] * 4
    assert progress.dropped == dict(zip(names, [57, 0] * 25, strict=True))


def test_a_lost_source_does_not_stop_the_others():
    items = follow(source(), source(Camera(5), name="camera:1"))
    sources_of_frames = set()
    sources_of_errors = []
    for item in items:
        if item.origin.video:
            sources_of_frames.add(item.origin.source)
        else:
            sources_of_errors.append(item.origin.source)
    assert sources_of_frames == {"camera:1"}
    assert sorted(sources_of_errors) == ["camera:0", "camera:1"]


def test_an_unexpected_exception_is_an_error():
    class Surprise(Camera):
        def grab(self):
            raise RuntimeError("rtsp://user:password@host")

    (item,) = follow(source(Surprise(1)))
    assert error_of(item) == "cannot be read: RuntimeError"


def test_waiting_for_frames_can_be_stopped():
    progress = SourceProgress()
    camera = Camera(5, free=False)
    threading.Timer(0.1, progress.stop.set).start()
    threading.Timer(0.2, camera.over.set).start()
    assert list(follow(source(camera), progress=progress)) == []
    assert progress.stop.is_set()


def test_waiting_for_a_lost_source_can_be_stopped(monkeypatch, reconnect):
    monkeypatch.setattr(live, "MIN_DELAY_S", 1000.0)
    monkeypatch.setattr(live, "MAX_DELAY_S", 1000.0)
    reconnect(1000)
    items = follow(source(Camera(1)))
    assert next(items).origin.frame == 0
    threads_before = threading.active_count()
    items.close()
    assert threading.active_count() < threads_before


@pytest.fixture
def live_server(reconnect):
    reconnect(WAIT_S)
    with stream_server.serve() as server:
        yield server


def test_a_stream_over_http_is_watched(live_server):
    with Sources([live_server.url()]) as sources:
        items = list(itertools.islice(sources, 5))
        assert sources.progress.total is None
    assert numbers_of(items) == frames_of(items)
    assert set(sources_of(items)) == {live_server.url()}


def test_a_stream_uses_a_password_without_showing_it(live_server):
    live_server.password = "eve:hunter 2"  # noqa: S105
    with Sources([live_server.url(user="eve:hunter%202@")]) as sources:
        item = next(iter(sources))
    assert item.origin.source == live_server.url()
    assert number_video.number(item.load().pixels) == item.origin.frame
    with Sources([live_server.url(user="eve:wrong@")]) as sources:
        (item,) = sources
    assert item.origin.source == live_server.url()
    assert error_of(item) == "cannot be opened"


def test_a_stream_that_ends_is_opened_again_and_one_that_stalls_is_lost(
    live_server, monkeypatch, reconnect
):
    live_server.frames = 5
    with Sources([live_server.url()]) as sources:
        assert any(item.origin.frame >= 12 for item in sources)
    assert len(live_server.requests) >= 3
    live_server.frames = None
    monkeypatch.setattr(capture, "READ_TIMEOUT_MS", 300)
    reconnect(0)
    with Sources([live_server.url()]) as sources:
        items = iter(sources)
        next(items)
        live_server.stall.set()
        last_item = list(items)[-1]
    assert "lost, and not back after" in error_of(last_item)


def test_an_image_without_a_suffix_is_an_image(live_server):
    live_server.files["/snapshot"] = cv2.imencode(".jpg", number_video.frame(0))[1].tobytes()
    with Sources([live_server.url("/snapshot")]) as sources:
        (item,) = sources
    assert number_video.number(item.load().pixels) == 0


@pytest.mark.parametrize("path", ["/clip", "/clip.m3u8"])
def test_a_video_without_a_suffix_is_refused(live_server, tmp_path, path):
    """As a stream it would begin anew at each end, and leave out frames."""
    live_server.files["/clip"] = number_video.write(tmp_path / "clip.mp4").read_bytes()
    live_server.files["/clip.ts"] = number_video.write(tmp_path / "clip.ts").read_bytes()
    parts = "#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2.0,\nclip.ts\n#EXT-X-ENDLIST\n"
    live_server.files["/clip.m3u8"] = parts.encode()
    with Sources([live_server.url(path)]) as sources:
        (item,) = sources
    assert "a video file, not a stream" in error_of(item)


def test_a_video_over_http_is_read_frame_by_frame(live_server, tmp_path):
    path = number_video.write(tmp_path / "v.mp4", 20)
    live_server.files["/v.mp4?key=secret"] = path.read_bytes()
    with Sources([live_server.url("/v.mp4?key=secret")], InputOptions(vid_stride=3)) as sources:
        items = list(sources)
        assert sources.progress.total == len(items)
    assert frames_of(items) == list(range(0, 20, 3))
    assert set(sources_of(items)) == {live_server.url("/v.mp4?key=***")}


@pytest.mark.slow
def test_a_watching_process_exits_cleanly(live_server):
    """However a run ends, its threads end before the interpreter does."""
    code = """
import sys
from detcli.core.opencv import silence_opencv
from detcli.source.sources import Sources
silence_opencv()
with Sources([sys.argv[1]]) as sources:
    print(next(iter(sources)).origin.frame)
"""
    live_server.pause = 0.2
    command = [sys.executable, "-c", code, live_server.url()]
    finished = subprocess.run(command, capture_output=True, timeout=WAIT_S, check=False)
    assert finished.returncode == 0
    assert finished.stderr == b""
    assert finished.stdout.strip().isdigit()  # the newest frame, not always the first
