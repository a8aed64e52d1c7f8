"""Annotated videos; without PyAV, of a constant rate and without sound."""

import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from made_videos import YARD, film, live_frames, play
from sample_records import Film, failed_frame, failure, feed, feed_all, frame, image, numbered
from thinning import thin

import detcli.sink
from detcli.data.geometry import Image
from detcli.sink.draw import annotate
from detcli.sink.folder import OutputFolder
from detcli.sink.frame_clock import LIVE_RATE
from detcli.sink.video import VideoSink
from detcli.storage.cache import warn_once

TOLERANCE = 6  # shades that the codec is wrong by


@pytest.fixture
def write_videos(tmp_path):
    """Write records and return the videos by name."""
    out = tmp_path / "out"

    def write(records, **options):
        feed_all(VideoSink(OutputFolder(out, **options)), records)
        return {path.name: play(path) for path in sorted(out.glob("[!.]*"), reverse=True)}

    return write


def shades(expected):
    """The shades of frames, as far as the codec keeps them."""
    return pytest.approx(list(expected), abs=TOLERANCE)


def test_images_are_ignored_and_failed_frames_alone_make_no_video(write_videos):
    assert write_videos([image(), failure(), numbered(0), failed_frame(0), failed_frame(1)]) == {}


def test_one_frame_per_record_in_order(write_videos):
    (video,) = write_videos(film(20)).values()
    assert video.shades == shades(range(0, 200, 10))
    assert video.size == (40, 60)


def test_detections_are_drawn(tmp_path):
    record = frame(0, count=1, shade=90, size=(200, 300))
    feed(VideoSink(OutputFolder(tmp_path)), record)
    _, pixels = cv2.VideoCapture(str(tmp_path / "film.mp4")).read()
    expected = annotate(record.picture.pixels, record.detections)
    assert np.abs(pixels.astype(int) - expected).mean() < TOLERANCE


def test_each_video_has_a_file(write_videos):
    faster = Film("b.mp4", 25.0)
    same_name = Film("elsewhere/film.mov", 5.0)
    videos = write_videos(film(3) + film(4, faster) + film(5, same_name) + film(2) + film(1))
    counts_and_rates = {}
    for name, video in videos.items():
        without_hash = re.sub("-[0-9a-f]{8}", "-#", name)
        counts_and_rates[without_hash] = (len(video.shades), video.rate)
    assert counts_and_rates == {
        "film.mp4": (3, 10),
        "b.mp4": (4, 25),
        "film-#.mp4": (5, 5),
        "film-2.mp4": (2, 10),
        "film-3.mp4": (1, 10),
    }


def test_a_stride_repeats_no_frame(write_videos):
    records = [frame(number, Film("a.avi", 2.0), number * 5) for number in (0, 5, 10, 15)]
    (video,) = write_videos(records).values()
    assert video.shades == shades([0, 25, 50, 75])


def test_a_change_of_size_begins_a_new_file(write_videos):
    small = film(3, step=30)
    large = [frame(4, shade=120, size=(80, 120)), frame(5, shade=150, size=(80, 120))]
    videos = write_videos(small + [failed_frame(3)] + large)
    assert videos["film.mp4"].shades == shades([0, 30, 60, 60])
    assert videos["film-2.mp4"].shades == shades([120, 150])
    assert videos["film-2.mp4"].size == (80, 120)


def test_interleaved_live_sources_have_one_file_each(write_videos):
    interleaved = []
    for of_door, of_yard in zip(
        live_frames([0, 1, 2]), live_frames([0, 1, 2], film=YARD, step=5), strict=True
    ):
        interleaved.append(of_door)
        interleaved.append(of_yard)
    videos = write_videos(interleaved)
    assert videos["camera-0.mp4"].shades == shades([0, 20, 40])
    assert videos["camera-1.mp4"].shades == shades([0, 5, 10])


@pytest.mark.parametrize("name", ["%03d", "new\nline", "concat:x", "猫 é", "a|b", "[x]*"])
def test_any_folder_name_works(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    feed(VideoSink(OutputFolder(Path(name))), frame(0))
    shutil.copy(tmp_path / name / "film.mp4", tmp_path / "film.mp4")
    assert len(play(tmp_path / "film.mp4").shades) == 1


@pytest.mark.slow
def test_a_real_video_keeps_size_rate_and_frames(tmp_path, shared):
    name = "car-detection.mp4"
    source = shared(f"data/videos/{name}")
    capture = cv2.VideoCapture(str(source))
    source_film = Film(str(source), capture.get(cv2.CAP_PROP_FPS))
    numbers = range(int(capture.get(cv2.CAP_PROP_FRAME_COUNT)))
    frame_count = len(thin("frames of a real video", numbers, 90))
    sink = VideoSink(OutputFolder(tmp_path))
    for number in range(frame_count):
        is_read, pixels = capture.read()
        assert is_read
        record = frame(number, source_film, count=1)
        sink.write(replace(record, picture=Image.whole(pixels)))  # type: ignore[arg-type]
    sink.close()
    written = play(tmp_path / name)
    assert len(written.shades) == frame_count
    assert written.rate == pytest.approx(source_film.frames_per_second, rel=1e-3)
    height = capture.get(cv2.CAP_PROP_FRAME_HEIGHT)
    width = capture.get(cv2.CAP_PROP_FRAME_WIDTH)
    assert written.size == (height, width)


@pytest.fixture
def save_plain(write_videos, monkeypatch):
    """Write records of one source without PyAV, and return its video."""
    monkeypatch.setitem(sys.modules, "av", None)
    monkeypatch.delitem(sys.modules, "detcli.sink.h264", raising=False)
    monkeypatch.delattr(detcli.sink, "h264", raising=False)
    warn_once.cache_clear()

    def write(records):
        (video,) = write_videos(records).values()
        return video

    return write


def test_what_is_missing_is_said_once(save_plain, caplog):
    for _ in range(2):
        save_plain(film(2))
    (message,) = caplog.messages
    assert "no sound, and browsers do not play them: PyAV does not load" in message
    assert 'pip install "detcli[video]"' in message


@pytest.mark.parametrize("rate", [0.5, 12.5 / 3, 23.976, 30000 / 1001, 59.94, 240])
def test_the_rate_is_that_of_the_clip(save_plain, rate):
    video = save_plain(film(5, Film("a.mp4", rate)))
    assert video.rate == pytest.approx(rate, rel=2e-4)
    assert len(video.shades) == 5


@pytest.mark.parametrize("rate", [0.0, -1.0, np.inf, 90_000.0, 1e-9])
def test_an_impossible_rate_is_that_of_a_live_source(save_plain, rate):
    video = save_plain(film(5, Film("a.mp4", rate)))
    assert video.rate == pytest.approx(LIVE_RATE, rel=2e-4)
    assert len(video.shades) == 5


def test_a_failed_frame_repeats_the_one_before_or_is_black(save_plain):
    records = film(6, step=30)
    for number in (0, 2, 3, 5):
        records[number] = failed_frame(number)
    assert save_plain(records).shades == shades([0, 30, 30, 30, 120, 120])


DAY = 24 * 3600 * LIVE_RATE


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([0, 1, 2, 3], [0, 20, 40, 60]),
        ([0, 0.9, 2.2, 2.8], [0, 20, 40, 60]),
        ([0, 3, 4], [0, 0, 0, 20, 40]),
        ([0, 0.3, 1, 1.2, 2], [0, 40, 80]),
        ([100, 101, 102], [0, 20, 40]),
        ([5, 3, 6], [0, 40]),
        # a long pause is shortened
        ([0, 1, DAY, DAY + 1, DAY + 3], [0] + [20] * round(10 * LIVE_RATE) + [40, 60, 60, 80]),
    ],
)
def test_live_frames_are_placed_by_their_time(save_plain, times, expected):
    video = save_plain(live_frames(times))
    assert video.shades == shades(expected)
    assert video.rate == LIVE_RATE


def test_pixels_that_are_not_square_are_said_where_their_shape_is_lost(save_plain, caplog):
    record = frame(0)
    video = replace(record.origin.video, pixel_aspect=(2, 1))
    save_plain([replace(record, origin=replace(record.origin, video=video))])
    assert "annotated videos have square pixels, although a video has others" in caplog.text
