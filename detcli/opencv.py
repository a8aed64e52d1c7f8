"""OpenCV, or a clear error: `from detcli.opencv import cv2`; and what its libraries print.

The ImportError of opencv-python names a missing system library without saying how to get it.
"""

import contextlib
import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from functools import cache

from detcli.errors import loading

__all__ = ["cv2", "library_messages", "open_streams_in_parallel", "silence_opencv"]

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
    because FFmpeg reads the environment only once. For libpng and libjpeg see `library_messages`.
    """
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)


def open_streams_in_parallel() -> None:
    """Let one video or stream be opened while another one hangs.

    OpenCV opens one at a time by default, in case FFmpeg was built without threads. Tried on Linux
    alone, so nothing changes elsewhere. To be called before other threads run, because they read
    the environment.
    """
    if sys.platform == "linux":
        os.environ.setdefault("OPENCV_FFMPEG_IS_THREAD_SAFE", "1")


@contextlib.contextmanager
def library_messages() -> Iterator[list[str]]:
    """Collect what C libraries print to stderr on this thread while the block runs.

    libpng and libjpeg inside OpenCV print what is wrong with a file, and have no setting for it.
    Python's own `sys.stderr`, and what other threads print, are not affected. Works with glibc,
    whose `stderr` may be assigned to; elsewhere the lines appear on stderr as before.

    Yields:
        A list that holds the lines when the block has ended.
    """
    lines: list[str] = []
    stderr = _c_stderr()
    if stderr is None:
        yield lines
        return
    with stderr.collecting() as printed:
        yield lines
    text = bytes(printed).decode("utf-8", "replace")
    lines += (line.strip() for line in text.splitlines() if line.strip())


class _Functions(ctypes.Structure):
    """`cookie_io_functions_t` of glibc: the functions behind a stream."""

    Write = ctypes.CFUNCTYPE(ctypes.c_ssize_t, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    _fields_ = (
        ("read", ctypes.c_void_p),
        ("write", Write),
        ("seek", ctypes.c_void_p),
        ("close", ctypes.c_void_p),
    )


class _StandardError:
    """C's variable `stderr`, which leads to a stream of ours while anybody collects.

    It is not replaced for longer, since the stream's function needs the interpreter: a thread that
    printed while it holds the interpreter could wait for one that prints without it.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._variable = ctypes.c_void_p.in_dll(library, "stderr")
        self._original = self._variable.value
        functions = _Functions(write=_Functions.Write(self._write))
        self._keep_alive = functions
        library.fopencookie.restype = ctypes.c_void_p
        library.fopencookie.argtypes = [ctypes.c_void_p, ctypes.c_char_p, _Functions]
        self._stream = library.fopencookie(None, b"w", functions)
        # Unbuffered, so that each line comes on the thread that prints it.
        library.setbuf(ctypes.c_void_p(self._stream), None)
        self._lock = threading.Lock()
        self._collecting = 0  # threads
        self._of_thread = threading.local()

    @contextlib.contextmanager
    def collecting(self) -> Iterator[bytearray]:
        """Yield the bytes that this thread prints."""
        self._of_thread.printed = printed = bytearray()
        with self._lock:
            self._collecting += 1
            self._variable.value = self._stream
        try:
            yield printed
        finally:
            self._of_thread.printed = None
            with self._lock:
                self._collecting -= 1
                if not self._collecting:
                    self._variable.value = self._original

    def _write(self, _: int | None, data: int, size: int) -> int:
        content = ctypes.string_at(data, size)
        printed = getattr(self._of_thread, "printed", None)
        if printed is not None:
            printed += content
        else:  # another library, on another thread
            with contextlib.suppress(OSError):
                os.write(2, content)
        return size


@cache
def _c_stderr() -> _StandardError | None:
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    return _StandardError(library) if hasattr(library, "gnu_get_libc_version") else None
