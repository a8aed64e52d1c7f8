"""Keeps memory that was freed, for the next picture.

glibc maps a block of more than some megabytes anew for every picture, canvas and tensor, and the
kernel clears each page when it is first touched: on a picture of 810x1080 that took longer than
decoding it. Such blocks come from the heap instead, which keeps what is given back.
"""

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h

LARGEST_BLOCK = 64 << 20  # bytes that are taken from the heap at once
KEPT = 256 << 20  # bytes that may stay there unused


def keep_freed_memory() -> None:
    """Set this process's allocator, where it is glibc's. To be called before the first picture."""
    if not sys.platform.startswith("linux"):
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt") and hasattr(library, "gnu_get_libc_version"):
        library.mallopt(M_MMAP_THRESHOLD, LARGEST_BLOCK)
        library.mallopt(M_TRIM_THRESHOLD, KEPT)
