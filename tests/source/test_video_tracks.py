"""Which track of a video is read."""

import itertools
import shutil

import av
import cv2
import numpy as np
import pytest
import stream_server
from made_videos import CODECS, LARGE, SMALL, add_cover, record_sizes, rotate
from origins import frames_of
from source_items import read
from thinning import thin

pytestmark = pytest.mark.slow

FRAGMENTS = {"movflags": "frag_keyframe+empty_moov"}


def sizes_of(items):
    return {item.load().pixels.shape[:2] for item in items}


@pytest.fixture
def cover():
    return cv2.imencode(".jpg", np.full((32, 32, 3), 200, np.uint8))[1].tobytes()


TWO_TRACKS = list(itertools.product(["mp4", "mov", "mkv", "webm", "avi", "wmv"], [False, True]))


@pytest.mark.parametrize(("suffix", "large_first"), thin("files of two tracks", TWO_TRACKS, 5))
def test_of_several_tracks_the_largest_is_read_and_that_is_said(
    tmp_path, caplog, suffix, large_first
):
    sizes = [LARGE, SMALL] if large_first else [SMALL, LARGE]
    path = tmp_path / f"two.{suffix}"
    default = sizes.index(LARGE)
    record_sizes(path, sizes, codec=CODECS.get(suffix, "libx264"), default=default)
    items = read(path)
    assert sizes_of(items) == {LARGE}
    assert len(items) == (25 if large_first else 50)
    warning = "has 2 video tracks; the one of 128x96 pixels is read, as by FFmpeg"
    assert f"two.{suffix}: {warning}" in caplog.text


def test_the_largest_of_three_in_fragments_is_read(tmp_path):
    path = tmp_path / "three.mp4"
    sizes = [SMALL, (64, 64), LARGE]
    record_sizes(path, sizes, frames=(25, 30, 50), options=FRAGMENTS, default=2)
    items = read(path)
    assert sizes_of(items) == {LARGE}
    assert len(items) == 50


@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
def test_a_small_track_that_is_the_default_is_read_as_by_ffmpeg(tmp_path, suffix):
    path = record_sizes(tmp_path / f"two.{suffix}", [LARGE, SMALL], default=1)
    with av.open(str(path)) as file:
        flags = [track.disposition for track in file.streams.video]
    assert bool(flags[0] & av.stream.Disposition.default) is False
    assert sizes_of(read(path)) == {SMALL}


def test_a_cover_image_is_no_video(tmp_path, caplog, cover):
    path = add_cover(record_sizes(tmp_path / "film.mp4", [SMALL]), cover)
    with av.open(str(path)) as file:
        assert file.streams.video[0].width == 32
    items = read(path)
    assert sizes_of(items) == {SMALL}
    assert len(items) == 25
    assert "video tracks" not in caplog.text


def test_the_display_matrix_is_that_of_the_track_that_is_read(tmp_path):
    path = record_sizes(tmp_path / "two.mp4", [SMALL, LARGE], default=1)
    rotate(path, last=True)
    assert sizes_of(read(path)) == {LARGE[::-1]}


def test_a_start_is_found_in_the_track_that_is_read(tmp_path):
    path = tmp_path / "two.mp4"
    record_sizes(path, [SMALL, LARGE], frames=(25, 200), default=1)
    items = read(path, start=6)
    assert frames_of(items) == list(range(150, 200))
    assert sizes_of(items) == {LARGE}


def test_a_video_at_an_address_is_read_alike(tmp_path):
    path = record_sizes(tmp_path / "two.mp4", [SMALL, LARGE], default=1)
    with stream_server.serve() as server:
        server.ranges = True
        server.files["/two.mp4"] = path.read_bytes()
        assert sizes_of(read(server.url("/two.mp4"))) == {LARGE}


def test_the_command_line_reads_the_film_and_not_its_cover(invoke, make_model, tmp_path, cover):
    path = add_cover(record_sizes(tmp_path / "film.mp4", [SMALL]), cover)
    finished = invoke("predict", path, "-m", make_model(), "-q")
    assert finished.returncode == 0
    assert len(finished.stdout.splitlines()) == 25


def test_the_cover_that_was_taken_for_the_film_is_not_read(shared, detcli):
    path = shared("cases/cover_first.mp4")
    model = shared("cases/cells.onnx")
    finished = detcli("predict", path, "-m", model, "--device", "cpu", "-q")
    assert len(finished.stdout.splitlines()) == 60


@pytest.mark.skipif(not shutil.which("ffmpeg"), reason="no ffmpeg program is installed")
def test_ffmpeg_chooses_the_same_track(tmp_path):
    import subprocess

    for name, default in (("first", 0), ("second", 1)):
        path = record_sizes(tmp_path / f"{name}.mkv", [SMALL, LARGE], default=default)
        command = ["ffmpeg", "-i", path, "-f", "null", "-"]
        log = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        chosen = log[log.index("Stream #0:", log.index("Stream mapping")) :][10]
        assert sizes_of(read(path)) == {[SMALL, LARGE][int(chosen)]}
