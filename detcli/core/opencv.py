"""OpenCV, loaded when it is first imported from here, or a clear error.

The ImportError of opencv-python names a missing system library without saying how to get it.
"""

import os
import sys
from typing import TYPE_CHECKING, Any

from detcli.core.errors import loading

if TYPE_CHECKING:
    import cv2

__all__ = ["cv2"]

HINT = (
    "install the missing library (Debian, Ubuntu: apt-get install libgl1 libglib2.0-0), or the "
    "build that needs no display over it: "
    "pip install --force-reinstall --no-deps opencv-python-headless"
)

MAX_PIXELS = 200_000_000
"""Default of the largest picture that is decoded."""

PIXEL_LIMIT = "OPENCV_IO_MAX_IMAGE_PIXELS"
"""The variable from which OpenCV takes the largest picture, once, when it is loaded."""


def __getattr__(name: str) -> Any:  # noqa: ANN401 - the module
    if name != "cv2":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with loading("OpenCV", HINT):
        import cv2
        from cv2 import imdecode  # noqa: F401 - uninstalling one of two builds leaves an empty cv2
    return cv2


def limit_pixels(most: int) -> int:
    """Let OpenCV refuse larger pictures before it allocates memory, unless it is loaded already."""
    if "cv2" not in sys.modules:
        os.environ[PIXEL_LIMIT] = str(most)
    return most


def pixel_limit() -> int:
    """The largest picture that OpenCV decodes in this process."""
    value = os.environ.get(PIXEL_LIMIT, "")
    return int(value) if value.isdecimal() else 1 << 30  # its default


def silence_opencv() -> None:
    """Keep OpenCV from writing to stderr what detcli reports as its own errors.

    A decision for programs, not for libraries. To be called before the first video is opened,
    because FFmpeg reads the environment only once.
    """
    from detcli.core.opencv import cv2

    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)


def open_streams_in_parallel() -> None:
    """Let one video or stream be opened while another one hangs; to be called before threads run.

    OpenCV opens one at a time by default, in case FFmpeg was built without threads. Tried on Linux
    alone, so nothing changes elsewhere.
    """
    if sys.platform == "linux":
        os.environ.setdefault("OPENCV_FFMPEG_IS_THREAD_SAFE", "1")
