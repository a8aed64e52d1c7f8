"""A disk that is full, as far as one process is concerned."""

import contextlib
import resource


@contextlib.contextmanager
def small_disk(max_bytes: int = 1000):
    """No file may grow beyond so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
