"""Opening videos, streams and cameras."""

import math
import os
from pathlib import Path

import cv2
import number_video
import numpy as np
import pytest

from detcli.core.errors import DecodeError, SourceError
from detcli.source import video as capture
from detcli.source.decode import check_size
from detcli.source.live import open_camera
from detcli.source.video import frame_size, open_address, open_file

NAN = math.nan


class Declares:
    """A capture with declared properties."""

    def __init__(self, value):
        self._value = value

    def get(self, _):
        return self._value


DECLARED = {  # what a capture says, and what is made of it
    capture.frames_per_second: [(25.0, 25.0), (1000, 1000), (1001, 0), (0, 0), (-1, 0), (NAN, 0)],
    capture.frame_count: [(50.0, 50), (0, None), (-9.2e18, None), (1e9, None), (NAN, None)],
    capture.position_s: [(1500.0, 1.5), (0.0, 0.0), (-1.0, NAN), (NAN, NAN), (math.inf, NAN)],
}


@pytest.mark.parametrize("read", DECLARED)
def test_implausible_properties_are_ignored(read):
    for declared, expected in DECLARED[read]:
        assert str(read(Declares(declared))) in {str(expected), str(float(expected or 0))}


def test_frames_that_are_too_large_are_refused(tmp_path):
    video = open_file(str(number_video.write(tmp_path / "a.avi", 1, code="MJPG")))
    width, height = number_video.SIZE
    check_size(frame_size(video), width * height)
    with pytest.raises(DecodeError, match=f"too large: {width}x{height} is {width * height} "):
        check_size(frame_size(video), width * height - 1)
    video.release()


@pytest.mark.parametrize(
    "name", ["a.mp4", "b\udcff.mp4", "new\nline.mp4", "concat:a.mp4", "rtsp:x.mp4", "猫%02d.mp4"]
)
def test_a_file_is_opened_whatever_its_name(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    number_video.write(tmp_path / "video.mp4", 3)
    Path("video.mp4").rename(name)
    video = open_file(name)
    assert video.grab()
    video.release()


def test_streams_are_opened_by_ffmpeg_with_timeouts(monkeypatch):
    """Other backends read a name with digits as a sequence of pictures."""
    calls = []

    class Opened:
        def __init__(self, *arguments):
            calls.append(arguments)

        def isOpened(self):  # noqa: N802 - OpenCV's name
            return True

    monkeypatch.setattr(cv2, "VideoCapture", Opened)
    open_file(__file__)
    open_address("rtsp://host/")
    (_, file_reader, _), (url, reader, parameters) = calls
    assert (url, file_reader, reader) == (b"rtsp://host/", cv2.CAP_FFMPEG, cv2.CAP_FFMPEG)
    limits = dict(zip(parameters[::2], parameters[1::2], strict=True))
    assert 0 < limits[cv2.CAP_PROP_OPEN_TIMEOUT_MSEC] <= 10_000
    assert 0 < limits[cv2.CAP_PROP_READ_TIMEOUT_MSEC] <= 10_000


@pytest.mark.parametrize("name", ["gone.mp4", "a\0b.mp4", "folder/x.mp4"])
def test_a_missing_file_is_an_error(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").touch()
    with pytest.raises(SourceError, match="cannot be read") as caught:
        open_file(name)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("data", "reason"), [(b"", "empty"), (b"hello", "not a video"), (bytes(5000), "not a video")]
)
def test_a_file_that_is_not_a_video_is_an_error(tmp_path, data, reason):
    (tmp_path / "a.mp4").write_bytes(data)
    with pytest.raises(DecodeError, match=reason) as caught:
        open_file(str(tmp_path / "a.mp4"))
    assert caught.value.hint


def test_a_playlist_opens_nothing_else(tmp_path):
    """A file must not be able to make FFmpeg read other files or call servers."""
    number_video.write(tmp_path / "secret.mp4", 3)
    lists = [
        f"#EXTM3U\n#EXTINF:1,\n{tmp_path}/secret.mp4\n#EXT-X-ENDLIST\n",
        f"ffconcat version 1.0\nfile {tmp_path}/secret.mp4\n",
        "ffconcat version 1.0\nfile http://127.0.0.1:1/a.mp4\n",
        "v=0\nc=IN IP4 127.0.0.1\nm=video 5004 RTP/AVP 26\n",
    ]
    for text in lists:
        (tmp_path / "a.mp4").write_text(text)
        with pytest.raises(DecodeError):
            open_file(str(tmp_path / "a.mp4"))


def test_a_file_without_permission_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "a.mp4").write_bytes(b"x")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(SourceError, match="Permission denied"):
        open_file(str(tmp_path / "a.mp4"))


def test_a_missing_camera_is_an_error():
    with pytest.raises(SourceError, match="no such camera"):
        open_camera(987)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/", "rtsp://127.0.0.1:1/", "rtsp://\udcff/"])
def test_an_address_without_a_server_is_an_error(url):
    with pytest.raises(SourceError, match="cannot be opened"):
        open_address(url)


def test_a_frame_that_cannot_be_decoded_is_none():
    class Fails:
        def __init__(self, answer):
            self._answer = answer

        def retrieve(self):
            if isinstance(self._answer, Exception):
                raise self._answer
            return self._answer

    frame = np.zeros((4, 5, 3), np.uint8)
    assert capture.retrieve(Fails((True, frame))) is frame
    for answer in ((False, None), (True, None), (True, frame[..., 0]), cv2.error("no")):
        assert capture.retrieve(Fails(answer)) is None
