"""What containers say: frames as viewers show them, and how long a file is."""

import itertools
import math
import shutil
import struct
import subprocess

import numpy as np
import pytest
import stream_server
from made_videos import record_film, remux, rotate
from number_video import frame_times
from thinning import thin

from detcli.source.containers import is_mirrored, is_whole
from detcli.source.mp4 import MAX_BOXES
from detcli.source.sources import Sources

MATRICES = [
    (1, 0, 0, 1),
    (1, 0, 0, -1),
    (-1, 0, 0, 1),
    (-1, 0, 0, -1),
    (0, 1, 1, 0),
    (0, 1, -1, 0),
    (0, -1, 1, 0),
    (0, -1, -1, 0),
]
"""All that turn by quarters, and mirror or not: a, b, c and d."""

MIRRORED = (-1, 0, 0, 1)


def frame_of(source):
    with Sources([str(source)]) as sources:
        return [item.load().pixels for item in sources][2]


def by_the_standard(path, stored, matrix):  # noqa: ARG001 - as of the other
    """ISO/IEC 14496-12: a, b, c and d take x and y to ax + cy and bx + dy."""
    a, b, c, d = matrix
    y, x = np.indices(stored.shape[:2])
    column = a * x + c * y
    column -= column.min()
    row = b * x + d * y
    row -= row.min()
    frame = np.empty((row.max() + 1, column.max() + 1, 3), np.uint8)
    frame[row, column] = stored
    return frame


def by_ffmpeg(path, stored, matrix):
    command = ["ffmpeg", "-v", "error", "-i", path, "-f", "rawvideo", "-pix_fmt", "bgr24", "-"]
    pixels = subprocess.run(command, capture_output=True, check=True).stdout
    height, width = stored.shape[:2]
    is_turned_sideways = matrix[0] == 0
    if is_turned_sideways:
        height, width = width, height
    return np.frombuffer(pixels, np.uint8).reshape(-1, height, width, 3)[2]


NO_FFMPEG = pytest.mark.skipif(not shutil.which("ffmpeg"), reason="no ffmpeg program is installed")


@pytest.mark.parametrize("yardstick", [by_the_standard, pytest.param(by_ffmpeg, marks=NO_FFMPEG)])
@pytest.mark.parametrize(
    ("matrix", "suffix"),
    thin("turned videos", itertools.product(MATRICES, [".mp4", ".mkv"]), 9),
)
def test_frames_are_as_they_are_to_be_shown(video, yardstick, suffix, matrix):
    path = video(frames=9)
    stored = frame_of(path)
    path = rotate(path, matrix)
    if suffix != ".mp4":
        path = remux(path, suffix)
    frame = frame_of(path)
    expected = yardstick(path, stored, matrix)
    assert frame.shape == expected.shape
    assert np.abs(frame.astype(int) - expected).max() <= 3  # of rounding


def test_frames_that_are_to_lie_askew_stay_as_they_are_and_that_is_said(video, caplog):
    path = video(frames=3)
    stored = frame_of(path)
    assert (frame_of(rotate(path, (0.7, 0.7, 0.7, -0.7))) == stored).all()
    assert "should be turned by 45 degrees, but is read as stored" in caplog.text


def test_a_video_at_an_address_is_shown_alike(video):
    expected = frame_of(video(frames=9))[:, ::-1]
    with stream_server.serve() as server:
        server.ranges = True
        server.files["/v.mp4"] = rotate(video(frames=9), MIRRORED).read_bytes()
        assert (frame_of(server.url("/v.mp4")) == expected).all()


def part_of(data):
    """What reads a file of these bytes, see `Part`."""

    def read(start, size):
        return data[start : start + size]

    return read


def mirrored(path):
    return is_mirrored(part_of(path.read_bytes()))


def test_what_counts_is_the_first_image_track_in_its_movie(tmp_path):
    path = record_film(tmp_path / "a.mp4", frame_times(5))
    assert not mirrored(path)
    assert not mirrored(rotate(path, MIRRORED, last=True))  # of the sound
    assert mirrored(rotate(path, MIRRORED, b"mvhd"))
    assert not mirrored(rotate(path, MIRRORED))  # twice
    data = path.read_bytes()
    front = data.index(b"ftyp") - 4
    moov = data.index(b"moov") - 4
    far = data[front:moov] + (1).to_bytes(4) + b"free" + (100_016).to_bytes(8) + bytes(100_000)
    path.write_bytes(far + data[moov:])
    assert mirrored(rotate(path, (1, 0, 0, 1), b"mvhd"))


def test_damage_ends_in_an_answer(video):
    data = rotate(video(frames=3), MIRRORED).read_bytes()
    moov = data[data.index(b"moov") - 4 :]
    assert is_mirrored(part_of(moov))
    for cut in range(len(moov)):
        assert is_mirrored(part_of(moov[:cut])) in {True, False}
    for version in (2, 255):
        position = moov.index(b"tkhd") + 4
        damaged = moov[:position] + bytes([version]) + moov[position + 1 :]
        assert not is_mirrored(part_of(damaged))
    for size in (0, 1, 7, 8, 1 << 31):
        offsets = []

        def endless(start, length, size=size, offsets=offsets):
            offsets.append(start)
            if start == 0:
                return b"?"
            box = size.to_bytes(4) + b"free" + b"\x7f" * 8
            return box[:length]

        assert not is_mirrored(endless)
        assert len(offsets) <= MAX_BOXES + 1


def test_a_length_that_is_unknown_or_impossible_is_not_that_of_a_whole_file():
    asf = bytes.fromhex("a1dcab8c47a9cf118ee400c00c205365") + bytes(24)
    heads = [b"", b"\x18S\x80g\x01" + b"\xff" * 7]
    for size in (0, 1 << 63, (1 << 64) - 1):
        heads.append(asf + size.to_bytes(8, "little"))
    for number in (math.nan, math.inf, -math.inf, -1, 0, 1e300):
        heads.append(b"filesize\0" + struct.pack(">d", number))
    for head in heads:
        assert not is_whole(part_of(head + bytes(100) + b"end"))
    for data in (asf + (48).to_bytes(8, "little"), b"filesize\0" + struct.pack(">d", 17)):
        assert is_whole(part_of(data))
        assert not is_whole(part_of(data[:-1]))
