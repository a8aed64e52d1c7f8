"""Arrays to device memory and back, at once; for what is not worth a slot of the ring."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from detcli.backend.cuda.driver import DeviceMemory, Gpu


def upload(gpu: "Gpu", array: npt.NDArray[Any]) -> "DeviceMemory":
    """Copy an array to new device memory; an empty one gets a byte."""
    memory, staging = gpu.allocate(max(array.nbytes, 1)), gpu.pin(max(array.nbytes, 1))
    staging.array[: array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    gpu.copy(memory.address, staging.address, array.nbytes)
    gpu.record().wait()
    staging.close()
    return memory


def download(
    gpu: "Gpu", address: int, shape: tuple[int, ...], dtype: npt.DTypeLike
) -> npt.NDArray[Any]:
    """Copy an array from device memory."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    staging = gpu.pin(max(size, 1))
    gpu.copy(staging.address, address, size)
    gpu.record().wait()
    array = staging.array[:size].view(dtype).reshape(shape).copy()
    staging.close()
    return array
