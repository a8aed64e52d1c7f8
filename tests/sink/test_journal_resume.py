"""What a run that resumes takes from a journal: its settings, videos, tracks and changed files."""

import json
from dataclasses import replace

import pytest
from json_lines import lines, text_of
from sample_records import failure, image, numbered
from sink.journals import sources, write

from detcli.core.errors import DetcliWarning, UsageError
from detcli.data.record import Origin, notes_of
from detcli.sink.journal import Journal
from detcli.source.reading import file_stamp


@pytest.fixture
def resumed_path(tmp_path):
    return tmp_path / "run.jsonl"


SETTINGS = {"model": "m", "model_sha256": "0" * 64, "conf": 0.25, "classes": [], "names": None}


def written_with(path, *records, **changed):
    force = changed.pop("force", False)
    journal = Journal(path, SETTINGS | changed, force=force)  # type: ignore[arg-type]
    for record in records:
        journal.write(record)
    journal.close()


def settings_of(path):
    return [json.loads(line).get("settings") for line in path.read_text().splitlines()]


def test_the_first_record_of_a_run_has_its_settings(resumed_path):
    written_with(resumed_path, image("a"), image("b"))
    written_with(resumed_path)
    written_with(resumed_path, image("c"))
    assert settings_of(resumed_path) == [SETTINGS, None, SETTINGS]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"conf": 0.5}, "conf 0.25 instead of 0.5"),
        ({"model": "n"}, 'model "m" instead of "n"'),
        ({"model_sha256": "1" * 64}, "another file of the model"),
        ({"names": ["x" * 99]}, "another names"),
        (
            {"classes": [1], "conf": 0.1},
            r"conf 0\.25 instead of 0\.1, classes \[\] instead of \[1\]",
        ),
    ],
)
def test_other_settings_are_refused_unless_forced(resumed_path, changed, message):
    written_with(resumed_path, image("a"))
    before = resumed_path.read_bytes()
    with pytest.raises(UsageError, match=message) as caught:
        written_with(resumed_path, **changed)
    assert "--force" in caught.value.hint
    assert resumed_path.read_bytes() == before
    written_with(resumed_path, image("b"), force=True, **changed)
    written_with(resumed_path, **changed)
    with pytest.raises(UsageError):
        written_with(resumed_path)


def test_settings_survive_the_record_that_had_them(resumed_path):
    written_with(resumed_path, failure("a"), image("b"), image("c"))
    written_with(resumed_path, image("a"))
    assert sources(resumed_path) == ["b", "c", "a"]
    assert settings_of(resumed_path) == [SETTINGS, None, SETTINGS]
    with pytest.raises(UsageError):
        written_with(resumed_path, conf=0.5)


def test_failures_leave_no_settings_behind(resumed_path):
    written_with(resumed_path, image("a"))
    written_with(resumed_path, failure("b"), conf=0.5, force=True)
    written_with(resumed_path, image("b"))
    assert settings_of(resumed_path) == [SETTINGS, SETTINGS]


def test_a_journal_of_0_1_0_is_continued_by_the_same_model(resumed_path):
    write(resumed_path, image("a"))
    with pytest.raises(UsageError, match='model "m" instead of "n"'):
        written_with(resumed_path, model="n")
    written_with(resumed_path, image("b"))
    assert settings_of(resumed_path) == [None, SETTINGS]


@pytest.mark.parametrize("finished", [False, True])
def test_frames_of_a_video_that_a_kill_cut_off_are_detected_again(tmp_path, resumed_path, finished):
    film = tmp_path / "film.avi"
    video = tmp_path / "out" / "film.mp4"
    film.touch()
    frames = [numbered(number, str(film)) for number in range(3)]
    for frame in frames:
        notes_of(frame).saved.append(video)
    write(resumed_path, *frames, image("a"))
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
    write(resumed_path, frame, image("a"))
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
    write(resumed_path, of_lost_video, without_video)
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
    return [{**shared_fields, "frame": number, "detections": [], **fields} for number in numbers]


FAILURE = {"type": "DecodeError", "message": "torn", "hint": ""}


@pytest.fixture
def videos(tmp_path):
    """The names of four videos that exist."""
    names = [tmp_path / name for name in ("a", "b", "c", "d")]
    for name in names:
        name.touch()
    return names


@pytest.fixture
def records_of_two_runs(videos):
    """Records of four videos: the first is whole, one was cut off, one failed, one was the last."""
    first, cut, failed, last = videos
    torn_frame = {"schema_version": 1, "source": str(failed), "frame": 1, "error": FAILURE}
    return [
        *frames_of(first, 0, settings=TRACKED),
        *frames_of(first, 1),
        *frames_of(cut, 0),
        *frames_of(failed, 0, settings=TRACKED),
        torn_frame,
        *frames_of(last, 0, 1),
    ]


def test_with_tracks_a_video_is_whole_or_worked_again(resumed_path, videos, records_of_two_runs):
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
    write_fields(resumed_path, [*frames_of(source, 0, settings=TRACKED), failed_video])
    journal = Journal(resumed_path, TRACKED)  # type: ignore[arg-type]
    journal.write(image("a"))
    journal.close()
    assert settings_of(resumed_path) == [TRACKED]


def test_with_tracks_only_what_can_be_worked_again_is(resumed_path):
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


def stamped(stamp, name="a"):
    """An image of a file that had this stamp."""
    return replace(image(name), origin=Origin(name, file_stamp=stamp))


def test_an_unchanged_file_is_skipped(resumed_path):
    write(resumed_path, stamped("old"))
    journal = Journal(resumed_path)
    assert journal.skip(Origin("a", file_stamp="old"))
    journal.close()


def test_a_changed_file_has_a_record_that_replaces_the_earlier_one(resumed_path):
    write(resumed_path, stamped("old"))
    journal = Journal(resumed_path)
    assert not journal.skip(Origin("a", file_stamp="new"))
    journal.write(stamped("new"))
    last = json.loads(resumed_path.read_text().splitlines()[-1])
    assert last["file_stamp"] == "new"
    assert last["replaces"] == "old"
    journal._file.close()  # noqa: SLF001 - as a kill would
    Journal(resumed_path).close()
    assert sources(resumed_path) == ["a"]


def test_a_run_says_which_files_had_changed(resumed_path):
    write(resumed_path, stamped("old"))
    journal = Journal(resumed_path)
    journal.skip(Origin("a", file_stamp="new"))
    journal.write(stamped("new"))
    with pytest.warns(DetcliWarning, match="1 input processed again, as their files"):
        journal.close()


@pytest.mark.parametrize(("count", "ending"), [(3, "a0, a1, a2$"), (4, r"a0, a1, a2, \.\.\.$")])
def test_a_warning_about_changed_files_names_three(resumed_path, count, ending):
    names = [f"a{number}" for number in range(count)]
    write(resumed_path, *[stamped("old", name) for name in names])
    journal = Journal(resumed_path)
    for name in names:
        journal.skip(Origin(name, file_stamp="new"))
        journal.write(stamped("new", name))
    with pytest.warns(DetcliWarning, match=ending):
        journal.close()


def test_a_file_without_a_stamp_is_skipped_with_a_warning(resumed_path):
    write(resumed_path, image("a"))
    journal = Journal(resumed_path)
    assert journal.skip(Origin("a", file_stamp="new"))
    with pytest.warns(DetcliWarning, match="1 input skipped without a check"):
        journal.close()


def journal_of_file(path, recorded_stamp, repeats=1):
    """Open a journal with records of an image file, whose file had this stamp."""
    origin = Origin(str(path), path, file_stamp=recorded_stamp)
    record = replace(image("a"), origin=origin)
    journal_path = path.with_suffix(".jsonl")
    write(journal_path, *[record] * repeats)
    return Journal(journal_path)


def skips(journal, path):
    """Whether the file is skipped by its path, which has to be what its origin says."""
    answer = journal.skip_file(str(path))
    if not answer:
        assert not journal.skip(Origin(str(path), path))
    return answer


def test_a_file_is_skipped_by_its_path_as_often_as_it_has_records(tmp_path):
    path = tmp_path / "a.jpg"
    path.touch()
    journal = journal_of_file(path, file_stamp(path), repeats=2)
    assert skips(journal, path)
    assert skips(journal, path)
    assert not skips(journal, path)
    assert not skips(journal, tmp_path / "b.jpg")
    journal.close()


def test_a_file_that_has_changed_is_not_skipped_by_its_path(tmp_path):
    path = tmp_path / "a.jpg"
    path.touch()
    journal = journal_of_file(path, "1-2")
    assert not skips(journal, path)
    journal.close()


def test_a_file_that_is_gone_is_skipped_by_its_path(tmp_path):
    path = tmp_path / "a.jpg"
    journal = journal_of_file(path, "1-2")
    assert skips(journal, path)
    journal.close()


def test_a_file_without_a_stamp_is_skipped_by_its_path_with_a_warning(tmp_path):
    path = tmp_path / "a.jpg"
    path.touch()
    journal = journal_of_file(path, None)
    assert skips(journal, path)
    with pytest.warns(DetcliWarning, match="1 input skipped without a check"):
        journal.close()


def test_the_progress_of_reading_is_shown(resumed_path, monkeypatch):
    monkeypatch.setattr("detcli.sink.journal.RECORDS_A_STEP", 2)
    write(resumed_path, *[image(name) for name in "abcde"])
    shown = []
    Journal(resumed_path, show=lambda count, part: shown.append((count, part))).close()
    counts, parts = zip(*shown, strict=True)
    assert counts == (2, 4)
    assert 0 < parts[0] <= parts[1] <= 1


@pytest.mark.parametrize(
    "change",
    [
        {"detections": None},
        {"detections": {}},
        {"source": 3},
        {"width": 0},
        {"width": -1},
        {"width": True},
        {"index": 1.5},
        {"frame": -1},
        {"frame": 1 << 60},
        {"schema_version": 3},
        {"error": "no"},
        {"file_stamp": 5},
        {"model": None},
        {"settings": 3},
    ],
)
def test_a_line_that_is_no_record_is_refused(resumed_path, change):
    write(resumed_path, image("a"))
    fields = json.loads(resumed_path.read_text())
    with resumed_path.open("a") as file:
        file.write(json.dumps(fields | change) + "\n")
    with pytest.raises(UsageError, match="line 2 is not a record of detcli"):
        Journal(resumed_path)


@pytest.mark.parametrize("missing", ["schema_version", "source", "width", "height", "detections"])
def test_a_line_without_a_field_that_every_record_has_is_refused(resumed_path, missing):
    write(resumed_path, image("a"))
    fields = json.loads(resumed_path.read_text())
    del fields[missing]
    with resumed_path.open("a") as file:
        file.write(json.dumps(fields) + "\n")
    with pytest.raises(UsageError, match="line 2 is not a record of detcli"):
        Journal(resumed_path)


def test_other_settings_are_refused_unless_the_caller_says_otherwise(resumed_path):
    written_with(resumed_path, image("a"))
    with pytest.raises(UsageError, match=r"conf 0\.25 instead of 0\.5"):
        Journal(resumed_path, SETTINGS | {"conf": 0.5})  # type: ignore[arg-type]
