"""Arrays to a GPU's memory and back, for the tests; real and double alike."""

import numpy as np


def to_device(gpu, array):
    """Upload an array; returns its memory."""
    array = np.ascontiguousarray(array)
    memory, staging = gpu.allocate(max(array.nbytes, 1)), gpu.pin(max(array.nbytes, 1))
    staging.array[: array.nbytes] = array.reshape(-1).view(np.uint8)
    gpu.copy(memory.address, staging.address, array.nbytes)
    gpu.record().wait()
    staging.close()
    return memory


def from_device(gpu, address, shape, dtype):
    """Download an array."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    staging = gpu.pin(max(size, 1))
    gpu.copy(staging.address, address, size)
    gpu.record().wait()
    array = staging.array[:size].view(dtype).reshape(shape).copy()
    staging.close()
    return array
