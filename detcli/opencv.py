"""OpenCV, or a clear error: `from detcli.opencv import cv2`.

Where opencv-python does not load, its ImportError names a system library that few people know.
"""

import os

from detcli.errors import DependencyError

try:
    import cv2
except ImportError as error:
    raise DependencyError(
        f"OpenCV does not load: {error}",
        "install what it misses (Debian, Ubuntu: apt-get install libgl1 libglib2.0-0), or use "
        "the build that needs no display: pip uninstall opencv-python, then "
        "pip install opencv-python-headless",
    ) from error

__all__ = ["cv2", "silence_opencv"]


def silence_opencv() -> None:
    """Keep OpenCV from writing on stderr what we say as errors of our own.

    For a whole program to decide, not for a library, and before the first video is opened: FFmpeg
    in it listens to the environment once. libpng cannot be silenced.
    """
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
