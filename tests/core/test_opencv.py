"""If OpenCV does not load, the error says what to install."""

import json
import os
import subprocess
import sys

import pytest
import thinning
from installed import install_metadata

from detcli.core.opencv import cv2, open_streams_in_parallel, silence_opencv

pytestmark = pytest.mark.slow

REASON = "libGL.so.1: cannot open shared object file: No such file or directory"


OLD = "__version__ = '4.10.0'\nimdecode = None\n"
OVER = "pip install --force-reinstall --no-deps "


def environment(
    folder, code=f"raise ImportError({REASON!r})\n", packages=("opencv-python 5.0.0.93",)
):
    """An environment in which `import cv2` runs this code, or fails as without libGL."""
    package = folder / "broken" / "cv2"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(code)
    for name_and_version in packages:
        name, version = name_and_version.split()
        install_metadata(package.parent, name, version, "cv2")
    return {**os.environ, "PYTHONPATH": str(package.parent)}


BROKEN = [
    (f"raise ImportError({REASON!r})\n", "", f"opencv-python does not load: {REASON}",
     f'{OVER}"opencv-python-headless>=5.0"; or install what it needs (Debian, Ubuntu: apt-get'),
    # Two builds over each other, and one was removed: a folder is left, which can be imported.
    ("", "", "", f'{OVER}"opencv-python>=5.0"\n'),
    (OLD, "opencv-contrib-python 4.10.0.84",
     "opencv-contrib-python brings OpenCV 4.10.0, and detcli needs 5.0 or later",
     f'{OVER}"opencv-python>=5.0"\n'),
    (OLD, "opencv-python-headless 4.10.0.84",
     "opencv-python-headless brings OpenCV 4.10.0, and detcli needs 5.0 or later",
     f'{OVER}"opencv-python-headless>=5.0"\n'),
]  # fmt: skip
"""The code of a package of OpenCV, one that is installed over it, the reason and the remedy."""


@pytest.mark.parametrize(
    ("code", "overwritten_by", "reason", "remedy"),
    thinning.thin("installations of OpenCV that are broken", BROKEN, count=1),
)
def test_the_error_names_the_package_and_the_command(
    detcli, make_image, tmp_path, code, overwritten_by, reason, remedy
):
    broken_environment = environment(
        tmp_path, code, filter(None, ("opencv-python 5.0.0.93", overwritten_by))
    )
    finished = detcli("predict", make_image("a.jpg"), env=broken_environment)
    assert finished.returncode == 1
    assert finished.stdout == ""
    assert "Traceback" not in finished.stderr
    assert "bug" not in finished.stderr
    assert reason in finished.stderr
    assert f"  hint: {remedy}" in finished.stderr
    (problem,) = json.loads(detcli("doctor", env=broken_environment, timeout=300).stdout)[
        "problems"
    ]
    assert problem["reason"].endswith(reason or "no attribute 'imdecode'")
    assert problem["command"] == remedy.partition(";")[0].strip()


NO_IMAGES = [["predict", "--help"], ["--version"], ["schema"]]
"""Commands that need no OpenCV, the help first, which lists most options."""


@pytest.mark.parametrize(
    "arguments", thinning.thin("commands that work without OpenCV", NO_IMAGES, count=1)
)
def test_commands_without_images_work_without_opencv(detcli, tmp_path, arguments):
    finished = detcli(arguments, env=environment(tmp_path))
    assert finished.returncode == 0
    assert finished.stderr == ""
    assert finished.stdout


@pytest.mark.parametrize(
    ("system", "before", "after"),
    [
        ("linux", [None, None], ["-8", "1"]),
        ("linux", ["32", "0"], ["32", "0"]),
        ("win32", ["32", None], ["32", None]),
        ("darwin", [None, None], ["-8", None]),
    ],
)
def test_ffmpeg_is_silent_and_streams_open_in_parallel_unless_the_user_says_otherwise(
    monkeypatch, system, before, after
):
    variables = ("OPENCV_FFMPEG_LOGLEVEL", "OPENCV_FFMPEG_IS_THREAD_SAFE")
    monkeypatch.setattr(sys, "platform", system)
    for variable, value in zip(variables, before, strict=True):
        monkeypatch.setenv(variable, value or "")
        if value is None:
            monkeypatch.delenv(variable)
    level = cv2.utils.logging.getLogLevel()
    silence_opencv()
    cv2.utils.logging.setLogLevel(level)
    open_streams_in_parallel()
    assert [os.environ.get(variable) for variable in variables] == after


def test_the_pixel_limit_is_set_before_opencv_is_loaded():
    code = (
        "import os, sys; from detcli.core import opencv; assert 'cv2' not in sys.modules\n"
        "assert opencv.limit_pixels(5) == 5; assert opencv.pixel_limit() == 5\n"
        "opencv.cv2; assert 'cv2' in sys.modules; opencv.limit_pixels(6)\n"
        "assert opencv.pixel_limit() == 5; del os.environ[opencv.PIXEL_LIMIT]\n"
        "assert opencv.pixel_limit() == 2**30\n"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert finished.returncode == 0
    assert finished.stderr == b""
