"""Inputs of earlier runs that are detected again: videos that a kill cut off, and what failed."""

import json

import pytest
from json_lines import lines, text_of
from sample_records import image, numbered
from sink.journals import settings_of, sources, write

from detcli.data.record import Origin, notes_of
from detcli.sink.journal import Journal


@pytest.fixture
def resumed_path(tmp_path):
    return tmp_path / "run.jsonl"


@pytest.mark.parametrize("finished", [False, True])
def test_frames_of_a_video_that_a_kill_cut_off_are_detected_again(tmp_path, resumed_path, finished):
    film = tmp_path / "film.avi"
    video = tmp_path / "out" / "film.mp4"
    film.touch()
    frames = [numbered(number, str(film)) for number in range(3)]
    for frame in frames:
        notes_of(frame).saved.append(video)
    write(resumed_path, frames + [image("a")])
    if finished:
        video.parent.mkdir()
        video.touch()
    journal = Journal(resumed_path, videos=video.parent)
    assert journal.skip(frames[0].origin) == finished
    assert journal.skip(Origin("a"))
    journal.close()
    assert len(sources(resumed_path)) == (4 if finished else 1)


@pytest.mark.parametrize("source", ["https://host/film.avi", "s3://bucket/film.avi"])
def test_frames_at_an_address_whose_video_was_cut_off_are_detected_again(
    tmp_path, resumed_path, source
):
    frame = numbered(0, source)
    notes_of(frame).saved.append(tmp_path / "out" / "film.mp4")
    write(resumed_path, [frame, image("a")])
    Journal(resumed_path, videos=tmp_path / "out").close()
    assert sources(resumed_path) == ["a"]


def test_frames_of_a_stream_stay_whatever_is_missing(tmp_path, resumed_path):
    """No later run sees them again, although their video is missing and the stream has failed."""
    source = "rtsp://user:***@host"
    [frame] = frames_of(source, 0, time="2026-01-01T00:00:00.000Z")
    frame["saved"] = [str(tmp_path / "out" / "stream.mp4")]
    failed_stream = {"schema_version": 1, "source": source, "error": FAILURE}
    write_fields(resumed_path, [frame, failed_stream])
    Journal(resumed_path, videos=tmp_path / "out").close()
    assert lines(resumed_path.read_text()) == [frame | {"schema_version": 2}]


@pytest.mark.parametrize("source", ["camera:0", "gone.avi"])
def test_frames_that_cannot_be_detected_again_stay(tmp_path, resumed_path, source):
    """A video of theirs was cut off; but what is beside it, such as crops, does not count."""
    of_lost_video = numbered(0, source)
    notes_of(of_lost_video).saved.append(tmp_path / "out" / "film.mp4")
    without_video = numbered(1, __file__)
    notes_of(without_video).saved.append(tmp_path / "elsewhere" / "crop.jpg")
    write(resumed_path, [of_lost_video, without_video])
    Journal(resumed_path, videos=tmp_path / "out").close()
    assert sources(resumed_path) == [source, __file__]


TRACKED = {"track": "bytetrack,conf=0.25"}


def write_fields(path, records):
    """Write records in JSON to a journal."""
    path.write_text(text_of(records))


def frames_left(path, records):
    """The frames that stay in a journal of a run that tracks, by the video's name."""
    write_fields(path, records)
    Journal(path, TRACKED, force=True).close()  # type: ignore[arg-type]
    frames = []
    for line in path.read_text().splitlines():
        record = json.loads(line)
        frames.append((record["source"], record["frame"]))
    return frames


def frames_of(name, *numbers, **fields):
    """The frames of a video of such a run."""
    shared_fields = {"schema_version": 1, "source": str(name), "width": 9, "height": 9}
    frames = []
    for number in numbers:
        frames.append(shared_fields | {"frame": number, "detections": []} | fields)
    return frames


FAILURE = {"type": "DecodeError", "message": "torn", "hint": ""}


@pytest.fixture
def videos(tmp_path):
    """The paths of four videos that exist."""
    paths = [tmp_path / "a", tmp_path / "b", tmp_path / "c", tmp_path / "d"]
    for path in paths:
        path.touch()
    return paths


@pytest.fixture
def records_of_two_runs(videos):
    """Records of four videos: the first is whole, one was cut off, one failed, one was the last."""
    first, cut, failed, last = videos
    torn_frame = {"schema_version": 1, "source": str(failed), "frame": 1, "error": FAILURE}
    return (
        frames_of(first, 0, settings=TRACKED)
        + frames_of(first, 1)
        + frames_of(cut, 0)
        + frames_of(failed, 0, settings=TRACKED)
        + [torn_frame]
        + frames_of(last, 0, 1)
    )


def test_with_tracks_a_video_is_whole_or_tracked_again(resumed_path, videos, records_of_two_runs):
    """Those that a run ended with, in this run or an earlier one, and those with a failure."""
    first = str(videos[0])
    assert frames_left(resumed_path, records_of_two_runs) == [(first, 0), (first, 1)]


def test_with_tracks_what_was_left_does_not_count_as_cut_off(
    resumed_path, videos, records_of_two_runs
):
    """It is whole, although the next run begins there."""
    first, cut, _, last = videos
    frames_left(resumed_path, records_of_two_runs)
    left = lines(resumed_path.read_text())
    frames = frames_left(resumed_path, left + frames_of(cut, 0, 1) + frames_of(last, 0))
    assert frames == [(str(first), 0), (str(first), 1), (str(cut), 0), (str(cut), 1)]
    live_frames = frames_of("rtsp://a", 0, time="2026-01-01T00:00:00.000Z")
    frames = frames_left(resumed_path, left + live_frames)
    assert frames == [(str(first), 0), (str(first), 1), ("rtsp://a", 0)]


def test_with_tracks_a_run_writes_its_settings_again_if_none_are_left(resumed_path):
    """The address in the error may be another one, as passwords in addresses are not written."""
    source = "https://host/film.avi?key=***"
    failed_video = {"schema_version": 1, "source": source, "error": FAILURE}
    write_fields(resumed_path, frames_of(source, 0, settings=TRACKED) + [failed_video])
    journal = Journal(resumed_path, TRACKED)  # type: ignore[arg-type]
    journal.write(image("a"))
    journal.close()
    assert settings_of(resumed_path) == [TRACKED]


def test_with_tracks_only_what_can_be_tracked_again_is(resumed_path):
    """An address can; a file that is gone cannot, nor what was cut off without tracks."""
    assert frames_left(resumed_path, frames_of("https://host/film.avi", 0)) == []
    assert frames_left(resumed_path, frames_of("gone.avi", 0)) == [("gone.avi", 0)]
    write_fields(resumed_path, frames_of(__file__, 0))
    Journal(resumed_path).close()
    assert sources(resumed_path) == [__file__]


def write_tracked(path, name, settings):
    journal = Journal(path, settings, force=True)
    journal.write(image(name))
    journal.close()


def test_with_tracks_a_run_that_goes_on_begins_no_other(resumed_path):
    """What is left then is whole; settings would say that a run ended before them."""
    write_tracked(resumed_path, "a", TRACKED)
    write_tracked(resumed_path, "b", TRACKED)
    assert settings_of(resumed_path) == [TRACKED, None]


def test_with_tracks_a_run_with_another_tracker_begins_anew(resumed_path):
    write_tracked(resumed_path, "a", TRACKED)
    write_tracked(resumed_path, "b", {"track": "botsort"})
    assert settings_of(resumed_path) == [TRACKED, {"track": "botsort"}]


def test_with_tracks_an_image_that_was_the_last_input_is_not_processed_again(resumed_path):
    """Only videos have tracks."""
    [record] = frames_of(__file__, 0)
    del record["frame"]
    write_fields(resumed_path, [record])
    Journal(resumed_path, TRACKED, force=True).close()  # type: ignore[arg-type]
    assert sources(resumed_path) == [__file__]


def test_with_tracks_a_torn_line_behind_a_video_is_of_that_video(resumed_path, videos):
    frames = frames_of(videos[0], 0, 1)
    resumed_path.write_text(text_of(frames) + '{"schema_version": 2, "sou')
    Journal(resumed_path, TRACKED, force=True).close()  # type: ignore[arg-type]
    assert sources(resumed_path) == []
