"""Annotated videos where PyAV is not installed: a constant rate, and no sound."""

import logging
import sys

import pytest
from made_videos import film, live, play
from sample_records import Film, failed_frame, feed, frame

import detcli.sink
from detcli.core.cache import warn_once
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
        feed(VideoSink(OutputFolder(tmp_path / "out")), *records)
        (path,) = (tmp_path / "out").glob("[!.]*")
        return play(path)

    return write


def alike(shades, *expected):
    assert shades == pytest.approx(list(expected), abs=TOLERANCE)
    return True


def test_what_is_missing_is_said_once(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        feed(VideoSink(OutputFolder(tmp_path)), *film(2), *film(2, Film("in/film.avi", 10.0)))
    (said,) = caplog.messages
    assert "no sound, and browsers do not play them: PyAV does not load" in said
    assert "pip install 'detcli[video]'" in said


@pytest.mark.parametrize(
    ("rate", "written"),
    [
        *((rate, rate) for rate in (0.5, 12.5 / 3, 23.976, 30000 / 1001, 59.94, 240)),
        *((rate, LIVE_RATE) for rate in (0.0, -1.0, float("inf"), 90_000.0, 1e-9)),
    ],
)
def test_the_rate_is_that_of_the_clip_unless_it_is_impossible(save, rate, written):
    video = save(*film(5, Film("a.mp4", rate)))
    assert video.rate == pytest.approx(written, rel=2e-4)
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


def test_a_long_pause_of_a_live_source_is_shortened(save):
    day = 24 * 3600 * LIVE_RATE
    video = save(*live(0, 1, day, day + 1, day + 3))
    pause = round(MAX_GAP_S * LIVE_RATE)
    assert alike(video.shades, 0, *[20] * pause, 40, 60, 60, 80)
