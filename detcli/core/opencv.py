"""OpenCV, loaded when it is first imported from here, or a clear error.

Other packages bring older versions, and builds over ours; what they leave says nothing of that.
"""

import os
import sys
from typing import TYPE_CHECKING, Any

from detcli.core.errors import DependencyError

if TYPE_CHECKING:
    import cv2

__all__ = ["cv2"]

OLDEST = 5  # the first major version that is used, see pyproject.toml
MAX_PIXELS = 200_000_000  # default of the largest picture that is decoded

PIXEL_LIMIT = "OPENCV_IO_MAX_IMAGE_PIXELS"
"""The variable from which OpenCV takes the largest picture, once, when it is loaded."""


def __getattr__(name: str) -> Any:  # noqa: ANN401 - the module
    if name != "cv2":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import cv2
        from cv2 import imdecode  # noqa: F401 - uninstalling one of two builds leaves an empty cv2
    except ImportError as error:
        from detcli.core import packages

        raise DependencyError(*packages.explain("cv2", str(error))) from error
    if int(cv2.__version__.partition(".")[0]) < OLDEST:
        from detcli.core import packages

        installed = packages.owners("cv2")
        version = cv2.__version__
        owner = "cv2"
        for package in installed:
            if installed[package].startswith(version):
                owner = package
                break
        raise DependencyError(
            f"{owner} brings OpenCV {version}, and detcli needs {OLDEST}.0 or later",
            packages.reinstall_opencv(installed),
        )
    return cv2


def limit_pixels(max_pixels: int) -> int:
    """Let OpenCV refuse larger pictures before it allocates memory, unless it is loaded already.

    Returns the limit.
    """
    if "cv2" not in sys.modules:
        os.environ[PIXEL_LIMIT] = str(max_pixels)
    return max_pixels


def pixel_limit() -> int:
    """The largest picture that OpenCV decodes in this process."""
    value = os.environ.get(PIXEL_LIMIT, "")
    if value.isdecimal():
        return int(value)
    return 1 << 30  # its default


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
