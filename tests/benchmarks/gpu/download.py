"""From the GPU's memory to the host's, through page-locked memory that is taken once."""

from collections.abc import Callable

import numpy as np


def downloader(gpu, parts, scope) -> Callable[[], tuple[np.ndarray, ...]]:
    """Prepare to download some arrays again and again.

    Args:
        gpu: Where they are.
        parts: Address, shape and dtype of each.
        scope: Closes what is taken.

    Returns:
        A function that waits for what is enqueued and returns the arrays. They are views of
        memory that the next call writes to.
    """
    staged = []
    for address, shape, dtype in parts:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        staging = gpu.pin(size)
        scope.callback(staging.close)
        staged.append((address, staging, size, staging.array.view(dtype).reshape(shape)))

    def download():
        for address, staging, size, _ in staged:
            gpu.copy(staging.address, address, size)
        gpu.record().wait()
        return tuple(array for *_, array in staged)

    return download
