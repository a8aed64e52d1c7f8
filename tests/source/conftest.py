"""Fixtures for the tests of sources."""

import contextlib
import json
import os
import subprocess
import sys

import number_video
import pytest
from number_video import CODES


@pytest.fixture
def empty_folder(tmp_path, monkeypatch):
    """Change to an empty folder, so that names can be short."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def video(tmp_path):
    """Write a video of numbers and return its path."""

    def write(suffix="mp4", frames=50, rate=25.0):
        return number_video.write(tmp_path / f"v.{suffix}", frames, rate, CODES[suffix])

    return write


@pytest.fixture
def ends():
    """Both ends of a pipe, as descriptors; closed after the test."""
    inlet, outlet = os.pipe()
    yield inlet, outlet
    for end in (inlet, outlet):
        with contextlib.suppress(OSError):
            os.close(end)


@pytest.fixture(scope="session")
def report_of():
    """Run a module in a process of its own, and return the JSON that it prints."""

    def run(module, *arguments, **variables):
        finished = subprocess.run(
            [sys.executable, "-m", module] + list(arguments),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert finished.returncode == 0, finished.stderr[-2000:]
        return json.loads(finished.stdout)

    return run
