"""Whether OpenCV converted the first frame of a video to colours.

It does not look at what FFmpeg answers. FFmpeg refuses interlaced frames, and then OpenCV returns
whatever was in memory before. So the memory for the first frame is filled with a byte; if the frame
holds this byte everywhere, nothing was written. That takes glibc, which fills memory on request.
"""

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

from detcli.core.errors import DecodeError
from detcli.data.geometry import Pixels

FILL = 0xA5
"""The byte of memory that nothing was written to."""

_PERTURB = -6  # M_PERTURB of glibc, whose value is inverted
_HINT = "make it progressive first: ffmpeg -i FILE -vf bwdif NEW.mp4"


@contextmanager
def filled_memory() -> Iterator[None]:
    """Fill what is allocated meanwhile, where the C library can."""
    fill = _memory_filler()
    if fill is None:
        yield
        return
    fill(FILL ^ 0xFF)
    try:
        yield
    finally:
        fill(0)


def require_converted(image: Pixels) -> None:
    """Require that a frame was written to its filled memory.

    Raises:
        DecodeError: It was not.
    """
    if _memory_filler() is not None and (image == FILL).all():
        raise DecodeError("interlaced, which OpenCV cannot convert to colours", _HINT)


@cache
def _memory_filler() -> Callable[[int], object] | None:
    """What makes the C library fill memory with a byte, inverted, or with 0 no longer."""
    if sys.platform != "linux":
        return None
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library
        return None

    def fill_memory(inverted_byte: int) -> object:
        return set_option(_PERTURB, inverted_byte)

    return fill_memory
