"""MP4 and MOV as players show them: edits, fragments, files that were cut short."""

import itertools

import av
import number_video
import pytest
from made_videos import edit_list, record_film, watch
from number_video import frame_times, since_first
from origins import frames_of, times_of
from source_items import error_of
from thinning import thin

from detcli.config.inputs import InputOptions
from detcli.source.mp4 import read_movie, top_boxes
from detcli.source.sources import Sources

FRAGMENTS = {"movflags": "frag_keyframe+empty_moov"}
INDEX_FIRST = {"movflags": "faststart"}


def read(path, **inputs):
    with Sources([str(path)], InputOptions(**inputs)) as sources:
        return list(sources)


def is_whole(items):
    """Whether all items are frames, and none is an error."""
    return all(item.origin.video is not None for item in items)


def remuxed(path, name, options):
    """The same packets in a file that is written with other options."""
    new = path.with_name(name)
    with av.open(str(path)) as source, av.open(str(new), "w", options=options) as target:
        film = source.streams.video[0]
        stream = target.add_stream_from_template(film)
        for packet in source.demux(film):
            if packet.dts is not None:
                packet.stream = stream
                target.mux(packet)
    return new


@pytest.fixture
def film(tmp_path):
    """100 frames at 25 a second, with frames that are stored in another order, and sound."""
    return record_film(tmp_path / "film.mp4", frame_times(100), group=25)


FROM_1_S = [(1.08, 2.92)]
LATE_START = [(3.88, 0.2)]
PART = [(1.28, 1.0)]
PAUSE_FIRST = [(None, 0.5), (0.08, 4.0)]
TWO_PARTS = [(0.08, 0.4), (2.08, 0.6)]


EDITED = list(
    itertools.product([FROM_1_S, LATE_START, PART, PAUSE_FIRST, TWO_PARTS], ["mp4", "mov"])
)


@pytest.mark.parametrize(("edits", "suffix"), thin("files with an edit list", EDITED, 6))
def test_the_frames_that_come_are_those_of_the_edit_list(film, suffix, edits):
    path = edit_list(remuxed(film, f"edited.{suffix}", {}), edits)
    items = read(path)
    watched = watch(path).times
    assert times_of(items) == pytest.approx(since_first(watched), abs=0.001)
    movie = read_movie(lambda start, size: path.read_bytes()[start : start + size])
    assert movie.tracks[0].shown_frames() == len(watched)
    assert len(watched) < 100 or edits == PAUSE_FIRST


def test_a_cut_without_encoding_is_whole_on_the_command_line(invoke, make_model, film):
    path = edit_list(film, [(2.5, 1.5)])
    finished = invoke("predict", path, "-m", make_model(), "--fail-if", "red>1000")
    assert "breaks off" not in finished.stderr
    assert finished.returncode == 0


def test_numbers_after_a_start_do_not_count_hidden_frames(tmp_path):
    times = frame_times(300)
    path = record_film(tmp_path / "long.mp4", times, sound=None, group=25)
    edit_list(path, [(2.08, 10.0)])
    items = read(path, start=6)
    assert frames_of(items) == list(range(150, 250))
    assert times_of(items) == pytest.approx(times[150:250])


@pytest.mark.parametrize("edits", [None, [(2.08, 1.92)]])
def test_a_file_that_lost_its_end_breaks_off(film, edits):
    if edits is not None:
        edit_list(film, edits)
    path = remuxed(film, "index_first.mp4", INDEX_FIRST)
    whole = path.read_bytes()
    assert is_whole(read(path))
    path.write_bytes(whole[: len(whole) * 97 // 100])
    assert "breaks off" in error_of(read(path)[-1])


def test_fragments_are_counted_and_not_estimated(film):
    path = remuxed(film, "fragments.mp4", FRAGMENTS)
    items = read(path)
    assert len(items) == 100
    assert is_whole(items)


@pytest.mark.parametrize("share", [0.5, 0.8, 0.97])
def test_fragments_that_are_cut_break_off(tmp_path, share):
    path = number_video.write(tmp_path / "v.mp4", 100)
    path = remuxed(path, "fragments.mp4", FRAGMENTS)
    last_fragment = [box for box in _boxes(path) if box.kind == b"mdat"][-1]
    end_of_frames = last_fragment.end
    path.write_bytes(path.read_bytes()[: int(end_of_frames * share)])
    assert "breaks off" in error_of(read(path)[-1])


def _boxes(path):
    data = path.read_bytes()
    return list(top_boxes(lambda start, size: data[start : start + size]))


def test_damage_ends_in_an_answer(film):
    data = film.read_bytes()
    moov = data[data.rindex(b"moov") - 4 :]
    for cut in range(0, len(moov), 3):
        damaged = moov[:cut] + b"\xff" * 8 + moov[cut + 8 :]
        movie = read_movie(lambda start, size, data=damaged: data[start : start + size])
        for track in movie.tracks if movie is not None else ():
            assert track.shown_frames() is None or track.shown_frames() >= 0


def test_the_file_that_ffmpeg_cut_has_the_frames_it_shows(shared, detcli):
    path = shared("cases/cut_by_ffmpeg.mp4")
    model = shared("cases/cells.onnx")
    finished = detcli("predict", path, "-m", model, "--device", "cpu", "-q")
    assert finished.returncode == 0
    assert len(finished.stdout.splitlines()) == 30


@pytest.mark.parametrize(("boxes", "expected"), [(999, 999), (1000, 1000), (1001, 1000)])
def test_a_thousand_boxes_of_a_file_are_looked_at(boxes, expected):
    data = b"\0\0\0\x08ftyp" + b"\0\0\0\x08free" * (boxes - 1)
    seen_boxes = list(top_boxes(lambda start, size: data[start : start + size]))
    assert len(seen_boxes) == expected
