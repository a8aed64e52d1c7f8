"""H.264: times, size and colours of the frames, read back by PyAV and OpenCV."""

from dataclasses import replace
from fractions import Fraction

import av
import cv2
import numpy as np
import psutil
import pytest
from annotated import annotate
from made_videos import DOOR, film, live_frames, play, record_film, rotate, watch
from sample_records import Film, failed_frame, feed, feed_all, frame

from detcli.config.inputs import InputOptions
from detcli.data.geometry import Image
from detcli.sink.folder import OutputFolder
from detcli.sink.frame_clock import LIVE_RATE
from detcli.sink.video import VideoSink

TICK_S = 1e-5
"""How far a time may be off: the clock has 120,000 ticks a second."""

UNEVEN = (0, 0.04, 0.1, 0.3, 0.31, 1.0, 1.02, 1.1, 2.5, 2.51, 2.6, 2.9, 3.0)


@pytest.fixture
def write_h264(tmp_path):
    """Write records of one source, and return its video."""

    def write(records, **options):
        feed_all(VideoSink(OutputFolder(tmp_path / "out"), **options), records)
        (path,) = (tmp_path / "out").glob("[!.]*")
        return watch(path)

    return write


def test_it_is_what_browsers_play(write_h264):
    video = write_h264(film(3))
    assert video.codec == "h264"
    assert video.pixels == "yuv420p"
    assert video.colours == 1
    assert video.sound is None


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "mov"])
def test_uneven_frames_keep_their_times_from_the_first_one_on(tmp_path, suffix):
    source = record_film(tmp_path / f"a.{suffix}", UNEVEN)
    written = watch(annotate(source, tmp_path / "out"))
    assert written.times == pytest.approx(UNEVEN, abs=TICK_S)
    assert UNEVEN[-1] < written.length_s < UNEVEN[-1] + 1
    assert written.seen_s == pytest.approx(1.0, abs=TICK_S)
    inputs = InputOptions(start=0.2, end=2.55, vid_stride=2)
    written = watch(annotate(source, tmp_path / "later", inputs=inputs))
    assert written.times == pytest.approx([0, 0.7, 0.8, 2.21], abs=TICK_S)


@pytest.mark.parametrize("rate", [24000 / 1001, 24, 25, 30000 / 1001, 30, 50, 60000 / 1001, 240])
def test_even_frames_are_whole_ticks_apart(write_h264, rate):
    video = write_h264(film(5, Film("a.mp4", rate)))
    assert video.times == pytest.approx(np.arange(5) / rate, abs=1e-9)
    assert video.length_s == pytest.approx(5 / rate, abs=1e-9)


def test_a_failed_frame_repeats_the_one_before_or_is_black(write_h264):
    records = [frame(number, shade=200 - number * 30) for number in range(6)]
    for number in (0, 2, 5):
        records[number] = failed_frame(number)
    video = write_h264(records)
    assert video.times == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.5], abs=TICK_S)
    assert video.shades[0] == pytest.approx(0, abs=20)  # of 16 to 235
    assert abs(video.shades[2] - video.shades[1]) < 4
    assert abs(video.shades[5] - video.shades[4]) < 4
    assert abs(video.shades[3] - video.shades[4]) > 20
    assert video.length_s == pytest.approx(0.6, abs=TICK_S)


DAY = 24 * 3600 * LIVE_RATE


@pytest.mark.parametrize(
    ("records", "times"),
    [
        (live_frames([0, 0.9, 2.2, 2.8, 7]), np.array([0, 0.9, 2.2, 2.8, 7]) / LIVE_RATE),
        (live_frames([0, 1e-5]), [0, 0]),  # less than a tick apart
        (
            live_frames([5, 5, 3, 6]),
            [0, 1 / LIVE_RATE],
        ),  # a clock that stands or goes back loses frames
        (
            [frame(0, DOOR), failed_frame(1, DOOR, time_s=0.5), frame(2, DOOR, time_s=1)],
            [0, 0.5, 1],
        ),
        (live_frames([0, 30, DAY, DAY + 30]), [0, 1, 11, 12]),
        # what only damage explains, in a file
        (
            [
                frame(0, time_s=0),
                frame(1, time_s=1e6),
                frame(2, time_s=1e6),
                frame(3, time_s=1e6 - 5),
            ],
            [0, 3600, 3600.1, 3600.2],
        ),
    ],
)
def test_live_frames_keep_their_times_within_limits(write_h264, records, times):
    video = write_h264(records)
    assert video.times == pytest.approx(times, abs=TICK_S)
    assert (np.diff(video.times) > 0).all()


def test_frames_that_do_not_come_are_no_gaps_where_they_are_left_out(write_h264):
    video = write_h264([frame(3), frame(9), frame(10), frame(44)], condensed=True)
    assert video.times == pytest.approx([0, 0.1, 0.2, 0.3], abs=TICK_S)


@pytest.mark.parametrize("size", [(2, 2), (41, 61), (40, 61), (360, 640), (16, 9000)])
def test_sides_are_even(write_h264, size):
    video = write_h264([frame(0, size=size)])
    height, width = size
    assert video.size == (height - height % 2, width - width % 2)
    assert video.codec == "h264"


def test_sides_beyond_those_of_h264_have_another_codec(tmp_path):
    feed(VideoSink(OutputFolder(tmp_path)), frame(0, shade=90, size=(16, 17_000)))
    assert play(tmp_path / "film.mp4").size == (16, 17_000)


@pytest.mark.parametrize("colour", [(30, 60, 220), (200, 40, 30), (40, 180, 60), (128, 128, 128)])
def test_colours_are_those_of_the_images(tmp_path, colour):
    pixels = Image.whole(np.full((40, 60, 3), colour, np.uint8))
    feed(VideoSink(OutputFolder(tmp_path)), replace(frame(0), picture=pixels))
    _, written = cv2.VideoCapture(str(tmp_path / "film.mp4")).read()
    assert np.abs(written.astype(int) - colour).max() < 12


def test_rotation_is_in_the_pixels_alone(tmp_path):
    source = rotate(record_film(tmp_path / "a.mp4", UNEVEN, size=(48, 64)))
    assert watch(source).rotation != 0
    written = watch(annotate(source, tmp_path / "out"))
    assert written.size == (64, 48)
    assert written.rotation == 0


@pytest.mark.slow
def test_memory_is_flat(tmp_path, random):
    sink = VideoSink(OutputFolder(tmp_path))
    noise = random.integers(0, 255, (120, 160, 3), np.uint8)
    resident = []
    for number in range(1000):
        moved = Image.whole(np.roll(noise, number * 7, axis=1))
        sink.write(replace(frame(number), picture=moved))
        if number in {200, 999}:
            resident.append(psutil.Process().memory_info().rss)
    sink.close()
    assert resident[1] - resident[0] < 16 << 20


@pytest.mark.parametrize(("suffix", "is_turned"), [("mp4", False), ("mkv", False), ("mp4", True)])
def test_pixels_keep_their_shape(tmp_path, invoke, make_model, suffix, is_turned):
    source = tmp_path / f"anamorphic.{suffix}"
    with av.open(str(source), "w") as output:
        track = output.add_stream("libx264", rate=25)
        track.height = 48
        track.width = 64
        track.pix_fmt = "yuv420p"
        track.codec_context.sample_aspect_ratio = Fraction(4, 3)
        for _ in range(5):
            output.mux(track.encode(av.VideoFrame(64, 48, "yuv420p")))
        output.mux(track.encode(None))
    if is_turned:
        rotate(source)
    finished = invoke("predict", source, "-m", make_model(), "-q", "--save", tmp_path / "out")
    assert finished.returncode == 0
    with av.open(str(tmp_path / "out" / "anamorphic.mp4")) as saved:
        film = saved.streams.video[0]
        assert film.sample_aspect_ratio == (Fraction(3, 4) if is_turned else Fraction(4, 3))
        assert film.width == (48 if is_turned else 64)


def test_the_case_with_pixels_twice_as_wide_as_high(tmp_path, invoke, shared):
    source = shared("cases/sar.mp4")
    invoke("predict", source, "-m", shared("cases/cells.onnx"), "-q", "--save", tmp_path / "out")
    with av.open(str(tmp_path / "out" / "sar.mp4")) as saved:
        assert saved.streams.video[0].sample_aspect_ratio == 2
