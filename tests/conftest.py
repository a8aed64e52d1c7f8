"""What all tests share: a cache of their own, small models, and the real ones where they are."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import colour_model
import cv2
import hypothesis
import numpy as np
import pytest

SHARED = Path(__file__).parents[2] / "shared"

# No test asserts a time, and a busy machine makes any example slow.
# CI tries the same examples each time; new ones are looked for wherever somebody can act on them.
hypothesis.settings.register_profile(
    "detcli", deadline=None, derandomize=bool(os.environ.get("CI"))
)
hypothesis.settings.load_profile("detcli")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Nothing is read from the user's cache, nor written to it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DETCLI_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder for this test alone."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("DETCLI_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def make_model(tmp_path: Path) -> Callable[..., Path]:
    """Write a colour model, see `colour_model.build`, and return its path."""

    def make(name: str = "colours.onnx", tail: str = "body", **options: object) -> Path:
        options.setdefault("metadata", {"names": str(dict(enumerate(colour_model.NAMES)))})
        path = tmp_path / name
        path.write_bytes(colour_model.build(tail, **options).SerializeToString())
        return path

    return make


@pytest.fixture
def make_picture(tmp_path: Path) -> Callable[..., Path]:
    """Write a picture, see `colour_model.picture`, and return its path."""

    def make(name: str, *squares: tuple[str, int, int], size: tuple[int, int] = (64, 64)) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        encoded, data = cv2.imencode(path.suffix, colour_model.picture(*squares, size=size))
        assert encoded
        path.write_bytes(data.tobytes())
        return path

    return make


@pytest.fixture
def detcli() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command line in a process of its own."""

    def run(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "detcli", *map(str, arguments)]
        options = {"capture_output": True, "text": True, "timeout": 60} | options
        if isinstance(options.get("input"), bytes):
            options["text"] = False
        return subprocess.run(command, check=False, **options)

    return run


@pytest.fixture
def shared() -> Callable[[str], Path]:
    """Path of a file in ../shared; the test is skipped where it is not there."""

    def path(name: str) -> Path:
        if not (SHARED / name).exists():
            pytest.skip(f"../shared/{name} is not there")
        return SHARED / name

    return path


@pytest.fixture
def random() -> np.random.Generator:
    """Random numbers, the same in every run."""
    return np.random.default_rng(0)
