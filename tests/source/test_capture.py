"""Opening videos, streams and cameras."""

import math
import os
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import cv2
import number_video
import numpy as np
import pytest

from detcli.core.errors import DecodeError, SourceError
from detcli.source import capture
from detcli.source.capture import frame_size, open_address, open_file
from detcli.source.limits import check_size
from detcli.source.live import open_camera

NAN = math.nan


DECLARED = {  # what a capture says, and what is made of it
    capture.frames_per_second: [(25.0, 25.0), (1000, 1000), (1001, 0), (0, 0), (-1, 0), (NAN, 0)],
    capture.frame_count: [(50.0, 50), (0, None), (-9.2e18, None), (1e9, None), (NAN, None)],
    capture.position_s: [(1500.0, 1.5), (0.0, 0.0), (-1.0, NAN), (NAN, NAN), (math.inf, NAN)],
}


def test_implausible_properties_are_ignored():
    for read, cases in DECLARED.items():
        for declared, expected in cases:  # type: ignore[attr-defined]
            value = read(SimpleNamespace(get=lambda _, declared=declared: declared))  # type: ignore[arg-type]
            assert str(value) in {str(expected), str(float(expected or 0))}


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
    """Other backends read a name with digits as a sequence of images."""
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
    assert url == b"rtsp://host/"
    assert file_reader == cv2.CAP_FFMPEG
    assert reader == cv2.CAP_FFMPEG
    limits = dict(zip(parameters[::2], parameters[1::2], strict=True))
    assert 0 < limits[cv2.CAP_PROP_OPEN_TIMEOUT_MSEC] <= 10_000
    assert 0 < limits[cv2.CAP_PROP_READ_TIMEOUT_MSEC] <= 10_000


def test_what_is_missing_or_not_a_video_is_an_error(empty_folder, monkeypatch):
    for name in ("gone.mp4", "a\0b.mp4", "folder/x.mp4"):
        with pytest.raises(SourceError, match=r"no such file|cannot be read") as caught:
            open_file(name)
        assert caught.value.hint
    for data, reason in ((b"", "empty"), (b"hello", "not a video"), (bytes(5000), "not a video")):
        (empty_folder / "a.mp4").write_bytes(data)
        with pytest.raises(DecodeError, match=reason) as caught:
            open_file("a.mp4")
        assert caught.value.hint
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(SourceError, match="Permission denied"):
        open_file("a.mp4")
    with pytest.raises(SourceError, match="no such camera"):
        open_camera(987)
    for url in ("http://127.0.0.1:1/", "rtsp://127.0.0.1:1/", "rtsp://\udcff/"):
        with pytest.raises(SourceError, match="cannot be opened"):
            open_address(url)


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


def test_a_frame_that_cannot_be_decoded_is_none():
    frame = np.zeros((4, 5, 3), np.uint8)
    double = Mock()
    double.retrieve.return_value = (True, frame)
    assert capture.retrieve(double) is frame
    for answer in ((False, None), (True, None), (True, frame[..., 0]), cv2.error("")):
        double.retrieve.side_effect = [answer]
        assert capture.retrieve(double) is None


@pytest.mark.parametrize(("count", "is_told"), [(999_999_999, True), (1_000_000_000, False)])
def test_a_number_of_frames_below_a_billion_is_plausible(count, is_told):
    frame_count = capture.frame_count(SimpleNamespace(get=lambda _: float(count)))  # type: ignore[arg-type]
    if is_told:
        assert frame_count == count
    else:
        assert frame_count is None


@pytest.mark.parametrize(
    ("declared", "aspect"),
    [
        ((100, 1), (100, 1)),
        ((101, 1), (1, 1)),
        ((1, 100), (1, 100)),
        ((1, 101), (1, 1)),
        ((0, 0), (1, 1)),
    ],
)
def test_a_pixel_may_be_a_hundred_times_as_wide_as_high(declared, aspect):
    properties = {
        cv2.CAP_PROP_SAR_NUM: declared[0],
        cv2.CAP_PROP_SAR_DEN: declared[1],
        cv2.CAP_PROP_ORIENTATION_META: 0,
    }
    assert capture.pixel_aspect(SimpleNamespace(get=properties.get)) == aspect  # type: ignore[arg-type]
