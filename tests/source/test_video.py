"""Videos, frame by frame."""

import itertools
import math
import struct
from functools import partial

import av
import cv2
import number_video
import pytest
from made_videos import record_film
from number_video import CODES, frame_times, numbers_of, since_first
from origins import frames_of, sources_of, times_of
from source_items import error_of
from thinning import thin

from detcli.config.inputs import InputOptions
from detcli.core.errors import InputError
from detcli.data.record import Video
from detcli.source.capture import open_file, read_part
from detcli.source.loading import SourceProgress
from detcli.source.sources import Sources
from detcli.source.video import read_video
from detcli.source.video_frames import VideoSource

pytestmark = pytest.mark.slow


def read(path, **inputs):
    """The items of a video; the final total is checked."""
    progress = SourceProgress(1)
    name = str(path)
    source = VideoSource(name, partial(open_file, name), read_range=partial(read_part, name))
    items = list(read_video(source, InputOptions(**inputs), progress))
    assert set(sources_of(items)) <= {name}
    assert progress.total in {len(items), None}
    return items


def split(items):
    """The numbers that the frames show, and the final error, if any."""
    error = None
    if items and items[-1].origin.video is None:
        with pytest.raises(InputError) as caught:
            items.pop().load()
        error = str(caught.value)
        assert caught.value.hint
    frames = numbers_of(items)
    assert frames_of(items) == frames
    return frames, error


def numbers(path, **inputs):
    frames, error = split(read(path, **inputs))
    assert error is None
    return frames


@pytest.mark.parametrize("suffix", CODES)
def test_all_frames_come_or_those_that_are_requested(video, suffix):
    path = video(suffix, 300)
    items = read(path)
    assert times_of(items) == pytest.approx(frame_times(300))
    for item in items:
        assert item.origin.video == Video(25.0)
        assert not item.origin.path
    for inputs, expected in (
        ({}, range(300)),
        ({"vid_stride": 7}, range(0, 300, 7)),
        ({"every": 1}, range(0, 300, 25)),
        ({"every": 0.02}, range(300)),
        ({"start": 2.01, "end": 4, "every": 0.5}, [51, 63, 76, 88]),
        ({"end": 1}, range(25)),
        ({"end": 1.01}, range(26)),
        ({"start": 2}, range(50, 300)),
        ({"start": 2.01, "end": 2.2}, range(51, 55)),
        ({"start": 9.01, "end": 10.01, "vid_stride": 10}, range(226, 251, 10)),
        ({"start": 11.96}, [299]),
        ({"end": 1000}, range(300)),
    ):
        assert numbers(path, **inputs) == list(expected), inputs
    assert split(read(path, end=1e-9))[0] == []
    assert split(read(path, start=1e308))[0] == []


def test_a_start_after_the_end_is_an_error(video):
    path = video()
    for start_s in (3, 20):
        frames, error = split(read(path, start=start_s))
        assert frames == []
        assert "it ends at 1.96 s" in error
    assert split(read(path.with_name("gone.mp4")))[1] == "no such file"


def test_the_total_and_the_rate_are_known_at_the_first_frame(video):
    progress = SourceProgress(3)
    path = str(video(frames=50))
    inputs = InputOptions(vid_stride=2, start=0.4, end=1.2)
    items = read_video(VideoSource(path, partial(open_file, path)), inputs, progress)
    assert next(items).origin.video.frames_per_second == 25 / 2
    assert progress.total == 2 + len(range(10, 30, 2))
    list(items)
    assert progress.total == 2 + len(range(10, 30, 2))


def numbered(items):
    """The times of frames by their numbers."""
    return {item.origin.frame: round(item.origin.time_s, 3) for item in items}


PAUSES = [number / 25 + (number // 20) * 3 for number in range(100)]  # of 3 s, in 4 places
LATE = frame_times(250, begin_s=30)  # as ffmpeg's segments of a stream do


@pytest.mark.parametrize(
    ("suffix", "times"), [("mp4", PAUSES), ("mkv", PAUSES), ("mkv", LATE), ("webm", LATE)]
)
def test_a_video_of_odd_times_is_whole_unless_it_is_cut(tmp_path, suffix, times):
    """Some containers estimate the number of frames from their rate, or the duration from 0."""
    codec = "libvpx" if suffix == "webm" else "libx264"
    path = record_film(tmp_path / f"a.{suffix}", times, sound=None, codec=codec)
    assert times_of(read(path)) == pytest.approx(since_first(times), abs=0.001)
    if suffix != "mp4":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        assert "breaks off" in error_of(read(path)[-1])


SOUNDS = {"webm": ("libvpx", "libopus"), "avi": ("mpeg4", "mp3"), "asf": ("mpeg4", "mp3")}


ENDS = list(
    itertools.product([(0, 9), (5, 9), (5, None)], ["mkv", "webm", "avi", "asf", "flv", "ts"])
)


@pytest.mark.parametrize(
    ("ends", "suffix"), thin("containers of tracks with different ends", ENDS, count=10)
)
def test_a_video_with_other_ends_than_its_sound_is_whole_unless_it_is_cut(tmp_path, ends, suffix):
    """Some containers say how long the longest of their tracks is, some count from time 0."""
    begin_s, sound_s = ends
    codec, sound = SOUNDS.get(suffix, ("libx264", "aac"))
    if sound_s is None:
        sound = None
    options = {"codec": codec, "sound": sound, "sound_s": sound_s}
    times = frame_times(100, begin_s)
    path = record_film(tmp_path / f"a.{suffix}", times, ticks=25, reordered=0, **options)
    assert frames_of(read(path)) == list(range(100))
    if sound_s is None or suffix == "ts" or (suffix, begin_s) == ("avi", 0):
        return  # too small, without a number of frames, or with all of them in its first half
    complete = path.read_bytes()
    cut = complete[: len(complete) * 6 // 10]
    for damaged in (cut, cut + bytes(len(complete) - len(cut))):
        path.write_bytes(damaged)
        error = error_of(read(path)[-1])
        assert "of its frames can" in error or "breaks off" in error


@pytest.mark.parametrize("suffix", ["avi", "mkv", "webm", "ts", "mp4"])
def test_a_truncated_video_gives_its_frames_and_an_error(video, suffix):
    path = video(suffix, 200)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    frames, error = split(read(path))
    if suffix == "mp4":  # without its index
        assert frames == []
        assert error == "not a video that FFmpeg can read, or a damaged one"
        return
    assert 50 < len(frames) < 150
    assert frames == list(range(len(frames)))
    if suffix != "ts":  # which declares no number of frames
        assert f"breaks off: {len(frames)} of 200 frames are there" in error
        assert split(read(path, end=1)) == (list(range(25)), None)
        assert "breaks off" in split(read(path, start=100))[1]


def test_damaged_frames_are_left_out_and_counted(video):
    path = video("avi")
    data = bytearray(path.read_bytes())
    start = 0
    for _ in range(20):
        start = data.index(b"\xff\xd8\xff", start + 1)
    data[start : start + 200] = bytes(200)
    path.write_bytes(data)
    frames, error = split(read(path))
    assert frames == list(range(19)) + list(range(20, 50))
    assert error == "50 frames, 1 of them damaged and left out"


def test_hidden_frames_are_not_reported_missing(video):
    """A cut without re-encoding leaves frames before it in the file."""
    path = video("mp4", 50)
    data = bytearray(path.read_bytes())
    edit = data.index(b"elst") + 12
    scale = struct.unpack_from(">I", data, data.index(b"mdhd") + 16)[0]
    struct.pack_into(">II", data, edit, 1200, scale * 4 // 5)
    path.write_bytes(data)
    items = read(path)
    frames = numbers_of(items)
    assert frames == list(range(20, 50))
    assert frames_of(items) == list(range(30))


class Double:
    """A capture that fails on frames that are not listed, with made-up times."""

    def __init__(self, positions, *, rate=10.0, declared=0.0):
        self._positions = positions
        self._rate = rate
        self._declared = declared
        self._index = -1
        self.released = 0
        self.grabbed = 0

    def get(self, prop):
        index = min(max(self._index, 0), len(self._positions) - 1)
        values = {
            cv2.CAP_PROP_FPS: self._rate,
            cv2.CAP_PROP_FRAME_COUNT: self._declared,
            cv2.CAP_PROP_POS_MSEC: self._positions[index],
        }
        return values.get(prop, 0.0)

    def set(self, *_):
        return False

    def grab(self):
        self.grabbed += 1
        self._index += 1
        return self._index < len(self._positions) and self._positions[self._index] is not None

    def retrieve(self):
        return True, number_video.frame(self._index)

    def release(self):
        self.released += 1


ODD_TIMES = {  # what a capture says, the frames, and their times
    (0.0, 100.0, 0.0, math.nan, -5.0, 500.0, math.inf, 700.0): [
        (0, 0.0),
        (1, 0.1),
        (2, 0.2),
        (3, 0.3),
        (4, 0.4),
        (5, 0.5),
        (6, 0.6),
        (7, 0.7),
    ],
    (0.0, 5000.0, 200.0, 5100.0): [(0, 0.0), (1, 5.0), (2, 5.1), (3, 5.2)],  # never earlier
    (0.0, None, None, 300.0): [(0, 0.0), (3, 0.3)],  # damaged ones count
}


def read_double(double, progress=None, **inputs):
    return read_video(
        VideoSource("v", lambda: double), InputOptions(**inputs), progress or SourceProgress(1)
    )


def test_times_are_plausible():
    for positions, expected in ODD_TIMES.items():
        frames_and_times = []
        for item in read_double(Double(positions)):
            if item.origin.video:
                frames_and_times.append((item.origin.frame, pytest.approx(item.origin.time_s)))
        assert frames_and_times == expected


def test_the_end_is_found_whatever_is_declared():
    for declared in (0.0, -9e18, 50.0, 9e8):
        double = Double([0.0, 100.0], declared=declared)
        assert frames_of(read_double(double))[:2] == [0, 1]
        assert double.grabbed < 3000


def test_the_capture_is_released_when_closed():
    double = Double([0.0, 100.0])
    items = read_double(double)
    next(items)
    assert double.released == 0
    items.close()
    assert double.released == 1


def test_seeking_to_the_start_can_be_stopped():
    progress = SourceProgress(1)
    double = Double([0.0] * 10**6, rate=0.0)
    double.grab = lambda: progress.stop.set() or True
    assert list(read_double(double, progress, start=10)) == []
    assert double.released == 2  # opened again from the beginning after seeking failed


STARTS = list(itertools.product([2, 3.5], ["mp4", "mkv", "ts", "flv", "webm"]))
"""For how many seconds no frame comes, and the container."""


@pytest.mark.parametrize(
    ("step", "suffix"), thin("starts in videos of a variable rate", STARTS, count=3)
)
def test_numbers_after_a_start_count_the_frames_at_a_variable_rate(tmp_path, suffix, step):
    """Phones leave out frames in the dark, screen recorders those that are like the one before."""
    times = frame_times(50)
    for number in range(50, 250):
        times.append(number / 25 + step)
    codec = "libvpx" if suffix == "webm" else "libx264"
    path = record_film(tmp_path / f"v.{suffix}", times, sound=None, codec=codec, group=10)
    time_of_frame = numbered(read(path))
    assert len(time_of_frame) == 250
    for start_s in (5.01, 7, 8.4, 10.01):
        expected = {number: time_s for number, time_s in time_of_frame.items() if time_s >= start_s}
        assert numbered(read(path, start=start_s)) == expected
    opened = []

    def reopen():
        capture = open_file(str(path))
        opened.append(capture)
        return capture

    items = read_video(VideoSource("v", reopen), InputOptions(start=10.01), SourceProgress(1))
    next(items)
    seeking_capture, counting_capture = opened
    assert seeking_capture.isOpened()
    assert not counting_capture.isOpened()
    items.close()


def positions_with_gaps(numbers, gap_ms):
    """Positions in ms of 120 frames, 10 a second; the frames with these numbers report `gap_ms`."""
    positions = []
    for number in range(120):
        if number in numbers:
            positions.append(gap_ms)
        else:
            positions.append(100.0 * number)
    return positions


EVERY_THIRD_IS_0 = positions_with_gaps(range(0, 120, 3), 0.0)  # as in MPEG-PS
ONE_IS_NEGATIVE = positions_with_gaps([3], -1.0)


@pytest.mark.parametrize("positions", [EVERY_THIRD_IS_0, ONE_IS_NEGATIVE])
def test_where_packets_have_no_times_frames_are_counted_up_to_the_start(positions):
    class Seekable(Double):
        def set(self, prop, _):
            if prop == cv2.CAP_PROP_POS_MSEC:
                self._index = 90
            return True

        def get(self, prop):
            if prop == cv2.CAP_PROP_LRF_HAS_KEY_FRAME:
                return 1.0
            return super().get(prop)

    opened = []

    def reopen():
        double = Seekable(positions)
        opened.append(double)
        return double

    items = list(read_video(VideoSource("v", reopen), InputOptions(start=11), SourceProgress(1)))
    assert frames_of(items) == list(range(110, 120))
    assert [double.released for double in opened] == [1, 1, 1]


@pytest.mark.parametrize(
    ("codec", "begin_s"),
    [
        ("libx264", 9),
        ("libx264", 9.04),
        ("libx264", 9.08),
        ("libx264", 9.12),
        ("libx265", 9),
        ("libx265", 9.08),
    ],
)
def test_a_cut_begins_with_its_first_whole_image(tmp_path, codec, begin_s):
    """What refers to frames before the cut is not shown, and does not count."""
    uncut = tmp_path / "whole.ts"
    cut = tmp_path / "cut.ts"
    times = frame_times(500)
    record_film(uncut, times, sound=None, codec=codec, ticks=25, group=50, reordered=2)
    with av.open(str(uncut)) as source, av.open(str(cut), "w") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(source.streams.video[0]):
            if packet.dts is not None and packet.dts * packet.time_base > begin_s:
                packet.stream = stream
                target.mux(packet)
    items = read(cut)
    assert items[0].origin.time_s > 0
    assert numbered(read(cut, start=9)).items() <= numbered(items).items()


@pytest.mark.parametrize("suffix", ["h264", "mjpeg", "mjpg", "vob", "y4m"])
def test_streams_in_files_are_videos(tmp_path, suffix):
    containers = {"h264": "h264", "vob": "vob", "y4m": "yuv4mpegpipe"}
    codecs = {"h264": "libx264", "vob": "mpeg2video", "y4m": "wrapped_avframe"}
    path = tmp_path / f"v.{suffix}"
    with av.open(str(path), "w", format=containers.get(suffix, "mjpeg")) as output:
        video = output.add_stream(codecs.get(suffix, "mjpeg"), rate=25)
        video.width, video.height = number_video.SIZE  # type: ignore[union-attr]
        video.pix_fmt = "yuv420p" if suffix in codecs else "yuvj420p"  # type: ignore[union-attr]
        for number in range(200):
            frame = av.VideoFrame.from_ndarray(number_video.frame(number), "bgr24")
            output.mux(video.encode(frame))  # type: ignore[arg-type, union-attr]
        output.mux(video.encode(None))  # type: ignore[union-attr]
    with Sources([str(path)]) as sources:
        assert split(list(sources)) == (list(range(200)), None)
    with Sources([str(path)], InputOptions(start=6, end=6.4)) as sources:
        assert split(list(sources)) == (list(range(150, 160)), None)


LATE_TIMES = {  # what a program stream seems to say, and the numbers of tenths of a second
    (0, 1, 2, 4, 4, None, 6, 7): range(8),  # the time of the frame after it
    (0, 1, 3, 6, None, None, 6, 7): range(8),  # two wrong ones
    (0, 1, 2, 5, 6, 7, 8): (0, 1, 2, 5, 6, 7, 8),  # a pause
    (0, 1, 2, 50, 51, 52): (0, 1, 2, 50, 51, 52),  # a long one
    (0, 1, 2, 1, 2, 3, 6, 7): range(8),  # earlier than they are
}


@pytest.mark.parametrize("positions", LATE_TIMES)
def test_a_wrong_time_in_a_program_stream_does_not_delay_the_frames_after_it(positions):
    positions_ms = []
    for tenths in positions:
        if tenths is None:
            positions_ms.append(0.0)
        else:
            positions_ms.append(100.0 * tenths)
    double = Double(positions_ms)
    double.grab = lambda: advance(double, len(positions))
    source = VideoSource("v.vob", lambda: double, read_range=lambda *_: b"\0\0\1\xba")  # type: ignore[arg-type, return-value]
    items = list(read_video(source, InputOptions(), SourceProgress(1)))
    times = times_of_frames(items)
    assert times == pytest.approx([tenths / 10 for tenths in LATE_TIMES[positions]])


def times_of_frames(items):
    """Times of the items that are frames, not errors."""
    times = []
    for item in items:
        if item.origin.video is not None:
            times.append(item.origin.time_s)
    return times


def advance(double, count):
    double._index += 1  # noqa: SLF001 - of the double of this file
    return double._index < count  # noqa: SLF001


def test_frames_that_agreed_too_early_are_caught_up_with():
    """At 3 and 4, the times of frames after them agree with each other."""
    double = Double([0.0, 100.0, 200.0, 400.0, 500.0, 500.0, 600.0, 700.0])
    source = VideoSource("v.vob", lambda: double, read_range=lambda *_: b"\0\0\1\xba")  # type: ignore[arg-type, return-value]
    items = list(read_video(source, InputOptions(), SourceProgress(1)))
    times = times_of_frames(items)
    assert times[6:8] == pytest.approx([0.6, 0.7])
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("codec", "reordered"), [("libx264", 2), ("libx265", 2), ("mpeg2video", 2)]
)
def test_frames_of_a_program_stream_come_at_their_rate(tmp_path, codec, reordered):
    path = tmp_path / "v.vob"
    times = frame_times(200)
    options = {"ticks": 25, "reordered": reordered, "group": 12, "codec": codec}
    record_film(path, times, sound=None, **options)
    read_times = times_of_frames(read(path))
    assert len(read_times) == 200
    assert [round(time * 25) for time in read_times[-20:]] == list(range(180, 200))
    for time_s, read_time_s in zip(times, read_times, strict=True):
        assert abs(read_time_s - time_s) <= 0.041
