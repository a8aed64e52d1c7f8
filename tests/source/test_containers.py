"""Which track of a video is read, and whether its end is missing."""

import itertools
import shutil
import struct
from functools import partial

import av
import cv2
import number_video
import numpy as np
import pytest
import stream_server
from made_videos import add_cover, record_sizes, rotate
from source_items import error_of
from thinning import thin

from detcli.config.config import Inputs
from detcli.source import containers
from detcli.source.containers import choose_track, declared_length
from detcli.source.part_file import PartFile, file_length
from detcli.source.sources import Sources

SMALL, LARGE = (48, 64), (96, 128)
pytestmark = pytest.mark.slow

CODECS = {"avi": "mpeg4", "wmv": "wmv2", "webm": "libvpx"}
FRAGMENTS = {"movflags": "frag_keyframe+empty_moov"}


def read(source, **inputs):
    with Sources([str(source)], Inputs(**inputs)) as sources:
        return list(sources)


def sizes_of(items):
    return {item.load().pixels.shape[:2] for item in items}


def part_of(data, at, size):
    return data[at : at + size]


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
    assert [item.origin.frame for item in items] == list(range(150, 200))
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


ENDS = {
    "avi": ("mpeg4", {}),
    "mkv": ("libx264", {}),
    "webm": ("libvpx", {}),
    "wmv": ("wmv2", {}),
    "flv": ("flv", {}),
    "mxf": ("mpeg2video", {}),
    "mp4": ("libx264", {"movflags": "faststart"}),
    "mov": ("libx264", {"movflags": "faststart"}),
}


@pytest.mark.parametrize(
    ("suffix", "share"),
    thin("files without their end", itertools.product(ENDS, [0.66, 0.94]), 7),
)
def test_a_file_without_its_end_breaks_off_however_short_that_is(tmp_path, suffix, share):
    codec, options = ENDS[suffix]
    path = tmp_path / f"short.{suffix}"
    record_sizes(path, [LARGE], codec=codec, frames=(20,), options=options)
    whole = path.read_bytes()
    assert len(read(path)) == 20
    path.write_bytes(whole[: int(len(whole) * share)])
    assert "breaks off" in error_of(read(path)[-1])


def test_a_film_without_its_end_is_undecided(invoke, make_model, tmp_path):
    path = number_video.write(tmp_path / "short.avi", 20, code="MJPG")
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    finished = invoke("predict", path, "-m", make_model(), "--fail-if", "red>1000", "-q")
    assert finished.returncode == 3


def test_a_film_without_its_index_is_read_with_a_warning(tmp_path, caplog):
    path = number_video.write(tmp_path / "v.avi", 20, code="MJPG")
    data = path.read_bytes()
    path.write_bytes(data[: data.rindex(b"idx1") + 4])
    items = read(path)
    assert len(items) == 20
    assert all(item.origin.video is not None for item in items)
    assert "v.avi: its end is missing, but all of its frames seem to be there" in caplog.text


def test_a_film_that_counts_its_own_header_is_whole(tmp_path, caplog):
    """Some programs say 8 bytes too many."""
    path = number_video.write(tmp_path / "v.avi", 20, code="MJPG")
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, 4, len(data))
    path.write_bytes(data)
    assert len(read(path)) == 20
    assert not caplog.text


def test_lengths_that_are_unknown_or_impossible_say_nothing():
    unknown_segment = bytes.fromhex("1a45dfa380 18538067 01ffffffffffffff")
    for data in (
        b"",
        b"RIFF\0\0\0\0AVI ",
        b"RIFF\xff\xff\xff\xffAVI ",
        unknown_segment,
        b"\x1aE\xdf\xa3",
        containers.MXF_PARTITION,
    ):
        assert declared_length(partial(part_of, data)) is None


def test_a_place_that_cannot_be_read_is_not_taken_for_the_end():
    """Of a pipe nothing can be read again, and some servers send the beginning only."""

    def only_the_beginning(start, size):
        return b"\0\0\0\x08ftyp\0\0\x10\0mdat"[:size] if start == 0 else b""

    length = declared_length(only_the_beginning)
    assert length is None or not length.lacks_rest(only_the_beginning)


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "avi", "wmv"])
def test_damage_ends_in_an_answer(tmp_path, suffix, random):
    path = tmp_path / f"two.{suffix}"
    record_sizes(path, [SMALL, LARGE], codec=CODECS.get(suffix, "libx264"), frames=(2, 2))
    data = path.read_bytes()
    for _ in range(200):
        damaged = bytearray(data[: random.integers(1, len(data))])
        for position in random.integers(0, len(damaged), 20):
            damaged[position] = random.integers(0, 256)
        part = partial(part_of, bytes(damaged))
        choice = choose_track(part)
        assert choice is None or choice.video_tracks <= 1000
        length = declared_length(part)
        assert length is None or length.file >= 0


@pytest.mark.parametrize("length", [1, 2, 3, 1000, 1 << 20, (1 << 20) + 1])
def test_a_file_is_read_in_blocks_from_any_place(length, random):
    data = random.bytes(length)
    part = partial(part_of, data)
    assert file_length(part) == length
    file = PartFile(part, length)
    assert file.read(1) == data[:1]
    assert file.seek(0, 2) == length
    assert file.read(5) == b""
    middle = length // 2
    assert file.seek(middle) == middle
    assert file.read(10) == data[middle : middle + 10]


@pytest.mark.skipif(not shutil.which("ffmpeg"), reason="no ffmpeg program is installed")
def test_ffmpeg_chooses_the_same_track(tmp_path):
    import subprocess

    for name, default in (("first", 0), ("second", 1)):
        path = record_sizes(tmp_path / f"{name}.mkv", [SMALL, LARGE], default=default)
        command = ["ffmpeg", "-i", path, "-f", "null", "-"]
        log = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        chosen = log[log.index("Stream #0:", log.index("Stream mapping")) :][10]
        assert sizes_of(read(path)) == {[SMALL, LARGE][int(chosen)]}
