"""Whether OpenCV converted the first frame of a video to colours.

It does not look at what FFmpeg returns. FFmpeg refuses interlaced frames, and then OpenCV returns
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

_PERTURB = -6  # M_PERTURB of glibc, which takes the inverted value
_HINT = "make it progressive first: ffmpeg -i FILE -vf bwdif NEW.mp4"


@contextmanager
def filled_memory() -> Iterator[None]:
    """Let the C library fill memory that is allocated within this context with the byte FILL.

    A frame in which all bytes are still FILL is one that OpenCV never wrote to. Where the C library
    cannot fill memory, nothing is filled, and `require_converted` accepts everything.
    """
    fill = _memory_filler()
    if fill is None:
        yield
        return
    inverted_byte = FILL ^ 0xFF  # as glibc takes it
    fill(inverted_byte)
    try:
        yield
    finally:
        fill(0)  # new memory is as it was before


def require_converted(image: Pixels) -> None:
    """Require that OpenCV wrote a frame into memory that was filled before.

    Args:
        image: The first frame of a video, made within `filled_memory`.

    Raises:
        DecodeError: All bytes are still FILL, as OpenCV leaves them for an interlaced video.
    """
    if _memory_filler() is not None and (image == FILL).all():
        raise DecodeError("interlaced, which OpenCV cannot convert to colours", _HINT)


@cache
def _memory_filler() -> Callable[[int], object] | None:
    """Return a function that sets the byte with which the C library fills new memory.

    The function takes that byte with its bits inverted, or 0 to fill no more. It is None if the C
    library has nothing like it: only glibc on Linux does.
    """
    if sys.platform != "linux":
        return None
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library
        return None

    def fill_memory(inverted_byte: int) -> object:
        return set_option(_PERTURB, inverted_byte)

    return fill_memory
