"""Keeps standard output free of what native libraries print."""

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator

STDOUT, STDERR = 1, 2


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Send to standard error what anyone writes to standard output meanwhile, C or Python.

    The file descriptor belongs to the whole process: for the short while in which a library is
    loaded or set up, before any result is written.
    """
    _flush()
    # First this one: a descriptor that is closed is the next to be given out.
    try:
        elsewhere = os.dup(STDERR)
    except OSError:
        elsewhere = os.open(os.devnull, os.O_WRONLY)
    try:
        try:
            kept = os.dup(STDOUT)  # if that was closed, it is `elsewhere` by now
        except OSError:  # unless standard input was closed as well, which became `elsewhere`
            kept = None
        try:
            os.dup2(elsewhere, STDOUT)
            with contextlib.redirect_stdout(sys.stderr):
                yield
        finally:
            _flush()
            if kept is None:
                os.close(STDOUT)
            else:
                os.dup2(kept, STDOUT)
                os.close(kept)
    finally:
        os.close(elsewhere)


def _flush() -> None:
    """Empty Python's buffer and C's; what stays in one comes out after the descriptor is back."""
    if sys.stdout is not None:
        sys.stdout.flush()
    library = ctypes.CDLL("ucrtbase" if sys.platform == "win32" else None)
    library.fflush(None)
