"""Fixtures for the tests of sources."""

import number_video
import pytest
from number_video import CODES


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Change to an empty folder, so that names can be short."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def video(tmp_path):
    """Write a video of numbers and return its path."""

    def write(suffix="mp4", frames=50, rate=25.0):
        return number_video.write(tmp_path / f"v.{suffix}", frames, rate, CODES[suffix])

    return write
