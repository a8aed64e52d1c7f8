"""How much device memory the lists of `kernels/top.cuh` need beside shared memory."""

SHARED_LIST = 2048
"""Keys that a block sorts in shared memory, as in top.cuh."""


def spill_capacity(k: int) -> int:
    """Keys that the k largest of something need in device memory: a power of two, or nothing."""
    return 1 << (k - 1).bit_length() if k > SHARED_LIST else 0
