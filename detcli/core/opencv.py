"""OpenCV, loaded when it is first imported from here, or a clear error.

Other packages bring older versions, and builds over ours; what they leave behind does not show it.
"""

import os
import sys
from typing import TYPE_CHECKING, Any

from detcli.core.errors import DependencyError

if TYPE_CHECKING:
    import cv2

__all__ = ["cv2"]

OLDEST = 5  # the first major version that is used, see pyproject.toml
MAX_PIXELS = 200_000_000  # default of the largest image that is decoded

PIXEL_LIMIT = "OPENCV_IO_MAX_IMAGE_PIXELS"
"""The variable from which OpenCV takes the largest image, once, when it is loaded."""


def __getattr__(name: str) -> Any:  # noqa: ANN401 - the module
    """Import OpenCV when another module first asks for `cv2`: Python calls this then.

    Raises:
        DependencyError: It does not load, or is too old.
    """
    if name != "cv2":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import cv2

        # Uninstalling one of two packages of OpenCV leaves a `cv2` without functions.
        from cv2 import imdecode  # noqa: F401
    except ImportError as error:
        from detcli.core import packages

        raise DependencyError(*packages.explain("cv2", str(error))) from error
    major_version = int(cv2.__version__.partition(".")[0])
    if major_version < OLDEST:
        raise _too_old_error(cv2.__version__)
    return cv2


def _too_old_error(version: str) -> DependencyError:
    """Make the error for an OpenCV that is too old; it names the package that brings it."""
    from detcli.core import packages

    installed = packages.owners("cv2")
    package_of_version = "cv2"
    for package, package_version in installed.items():
        if package_version.startswith(version):
            package_of_version = package
            break
    return DependencyError(
        f"{package_of_version} brings OpenCV {version}, and detcli needs {OLDEST}.0 or later",
        packages.reinstall_opencv(installed),
    )


def limit_pixels(max_pixels: int) -> int:
    """Let OpenCV refuse larger images before it allocates memory, unless it is already loaded.

    Returns the limit.
    """
    if "cv2" not in sys.modules:
        os.environ[PIXEL_LIMIT] = str(max_pixels)
    return max_pixels


def pixel_limit() -> int:
    """The largest image that OpenCV decodes in this process."""
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
    """Let OpenCV open several videos and streams at once, so that one that hangs delays no other.

    By default it opens one at a time, in case FFmpeg was built without threads. This was tried on
    Linux alone, so nothing changes elsewhere. To be called before threads run.
    """
    if sys.platform == "linux":
        os.environ.setdefault("OPENCV_FFMPEG_IS_THREAD_SAFE", "1")
