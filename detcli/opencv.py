"""OpenCV, or a clear error: `from detcli.opencv import cv2`.

The ImportError of opencv-python names a missing system library without saying how to get it.
"""

import os

from detcli.errors import loading

__all__ = ["cv2", "silence_opencv"]

HINT = (
    "install the missing library (Debian, Ubuntu: apt-get install libgl1 libglib2.0-0), or the "
    "build that needs no display over it: "
    "pip install --force-reinstall --no-deps opencv-python-headless"
)

with loading("OpenCV", HINT):
    import cv2
    from cv2 import imdecode  # noqa: F401 - uninstalling one of two builds leaves an empty cv2


def silence_opencv() -> None:
    """Keep OpenCV from writing to stderr what detcli reports as its own errors.

    A decision for programs, not for libraries. To be called before the first video is opened,
    because FFmpeg reads the environment only once. libpng cannot be silenced.
    """
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
