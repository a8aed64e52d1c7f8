"""Interlaced videos, for which OpenCV returns memory that nothing was written to."""

import shutil
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="glibc alone fills memory with a byte"),
    pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="ffmpeg is not installed"),
]


def converted(source, target, options):
    command = ["ffmpeg", "-v", "error", "-i", source] + options + [target]
    subprocess.run(command, check=True)
    return target


def test_an_interlaced_video_is_an_error_with_a_hint(detcli, make_model, video, tmp_path):
    options = ["-c:v", "mpeg2video", "-flags", "+ilme+ildct"]
    interlaced = converted(video("mp4", 20), tmp_path / "interlaced.mpg", options)
    finished = detcli("predict", interlaced, "-m", make_model())
    assert finished.returncode == 3
    assert "interlaced, which OpenCV cannot convert" in finished.stderr
    assert "bwdif" in finished.stderr


def test_a_progressive_video_is_read(detcli, make_model, video, tmp_path):
    progressive = converted(video("mp4", 20), tmp_path / "plain.mpg", ["-c:v", "mpeg2video"])
    finished = detcli("predict", progressive, "-m", make_model())
    assert finished.returncode == 0
