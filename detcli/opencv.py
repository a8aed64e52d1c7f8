"""OpenCV, or a clear error: `from detcli.opencv import cv2`.

Where opencv-python does not load, its ImportError names a system library that few people know.
"""

import contextlib
from collections.abc import Iterator

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

__all__ = ["cv2", "quiet"]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep OpenCV from writing on stderr what the caller will say as an error of its own.

    What libpng writes there by itself cannot be kept back.
    """
    level = cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    try:
        yield
    finally:
        cv2.utils.logging.setLogLevel(level)
