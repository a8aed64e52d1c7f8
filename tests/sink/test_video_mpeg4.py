"""Annotated videos where PyAV is not installed: a constant rate, and no sound."""

import contextlib
import logging
import sys

import pytest
from made_videos import DOOR, film, live, play
from sample_records import Film, failed_frame, frame

import detcli.sink
from detcli.cache import warn_once
from detcli.sink.folder import OutputFolder
from detcli.sink.video import LIVE_RATE, MAX_GAP_S, VideoSink

TOLERANCE = 6  # shades that the codec is wrong by


@pytest.fixture(autouse=True)
def _without_pyav(monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    monkeypatch.delitem(sys.modules, "detcli.sink.h264", raising=False)
    monkeypatch.delattr(detcli.sink, "h264", raising=False)
    warn_once.cache_clear()


@pytest.fixture
def save(tmp_path):
    """Write records of one source, and return its video."""

    def write(*records):
        sink = VideoSink(OutputFolder(tmp_path / "out"))
        for record in records:
            sink.write(record)
        sink.close()
        (path,) = (tmp_path / "out").glob("[!.]*")
        return play(path)

    return write


def alike(shades, *expected):
    assert shades == pytest.approx(list(expected), abs=TOLERANCE)
    return True


def test_what_is_missing_is_said_once(tmp_path, caplog):
    with (
        caplog.at_level(logging.WARNING),
        contextlib.closing(VideoSink(OutputFolder(tmp_path))) as sink,
    ):
        for record in (*film(2), *film(2, Film("in/film.avi", 10.0))):
            sink.write(record)
    (said,) = caplog.messages
    assert "no sound, and browsers do not play them: PyAV does not load" in said
    assert "pip install 'detcli[video]'" in said


def test_one_frame_per_record_in_order(save):
    assert alike(save(*film(20)).shades, *range(0, 200, 10))


@pytest.mark.parametrize("rate", [0.5, 1, 12.5, 12.5 / 3, 23.976, 30000 / 1001, 30, 59.94, 240])
def test_the_rate_is_that_of_the_clip(save, rate):
    video = save(*film(5, Film("a.mp4", rate)))
    assert video.rate == pytest.approx(rate, rel=2e-4)
    assert len(video.shades) == 5


@pytest.mark.parametrize("rate", [0.0, -1.0, float("inf"), 90_000.0, 1e-9])
def test_an_impossible_rate_becomes_the_default(save, rate):
    video = save(*film(5, Film("a.mp4", rate)))
    assert video.rate == LIVE_RATE
    assert len(video.shades) == 5


def test_failed_frames_at_the_start_are_black(save):
    video = save(failed_frame(0), failed_frame(1), frame(2, shade=200))
    assert alike(video.shades, 0, 0, 200)


def test_a_failed_frame_repeats_the_one_before(save):
    records = film(6, step=30)
    records[2:4] = [failed_frame(2), failed_frame(3)]
    records[5] = failed_frame(5)
    assert alike(save(*records).shades, 0, 30, 30, 30, 120, 120)


@pytest.mark.parametrize(
    ("times", "shown"),
    [
        ((0, 1, 2, 3), (0, 20, 40, 60)),
        ((0, 0.9, 2.2, 2.8), (0, 20, 40, 60)),
        ((0, 3, 4), (0, 0, 0, 20, 40)),
        ((0, 0.3, 1, 1.2, 2), (0, 40, 80)),
        ((100, 101, 102), (0, 20, 40)),
        ((5, 3, 6), (0, 40)),
    ],
)
def test_live_frames_are_placed_by_their_time(save, times, shown):
    video = save(*live(*times))
    assert alike(video.shades, *shown)
    assert video.rate == LIVE_RATE


def test_a_failed_live_frame_repeats_the_one_before(save):
    records = live(0, 1, 2, 3)
    records[1] = failed_frame(1, DOOR, time_s=1 / LIVE_RATE)
    assert alike(save(*records).shades, 0, 0, 40, 60)


def test_a_long_pause_of_a_live_source_is_shortened(save):
    day = 24 * 3600 * LIVE_RATE
    video = save(*live(0, 1, day, day + 1, day + 3))
    pause = round(MAX_GAP_S * LIVE_RATE)
    assert alike(video.shades, 0, *[20] * pause, 40, 60, 60, 80)
