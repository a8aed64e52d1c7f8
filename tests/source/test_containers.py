"""Whether the end of a video is missing."""

import itertools
import struct
from functools import partial

import number_video
import pytest
from made_videos import CODECS, LARGE, SMALL, record_sizes
from source_items import error_of, read
from thinning import thin

from detcli.source import containers
from detcli.source.containers import declared_length
from detcli.source.part_file import PartFile, file_length
from detcli.source.video_tracks import choose_track

pytestmark = pytest.mark.slow


def part_of(data, at, size):
    return data[at : at + size]


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
    for item in items:
        assert item.origin.video is not None
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
