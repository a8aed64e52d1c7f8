"""Arrays in device memory, and top_k of them for rows of any length.

`detcli.top_k` is the specification.
"""

import functools
import math
from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from detcli.core import frozen

if TYPE_CHECKING:
    from detcli.backend.cuda.driver import DeviceMemory, Gpu

    Result = tuple["DeviceArray | npt.NDArray[Any]", "DeviceArray | npt.NDArray[np.int64]"]

SHARED_LIST = 2048
"""Keys that a block sorts in shared memory, as in top.cuh."""

KEY = 8  # bytes of a key
MIN_CHUNK = 8192
MAX_GRID = 65535  # rows of a launch
MAX_ROW = 1 << 31  # the kernels' indices have 32 bits


@frozen
class DeviceArray:
    """A contiguous array in device memory, as torch and CuPy read and write it."""

    address: int  # of the first element
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    # the memory, which is freed with the last reference; None if the caller keeps it
    owner: "DeviceMemory | None" = field(default=None, repr=False, compare=False)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Numba's protocol, version 3; the content is complete."""
        return {
            "data": (self.address, False),
            "shape": self.shape,
            "typestr": np.dtype(self.dtype).str,
            "strides": None,
            "stream": None,
            "version": 3,
        }


def top_k(values: Any, k: int, sorted: bool = True, gpu: "Gpu | None" = None) -> "Result":  # noqa: A002, ANN401, FBT001, FBT002 - the signature of torch.topk
    """Return the k largest entries along the last axis and their indices, on a GPU.

    The result is that of `detcli.top_k`: of equals the lower index first, NaN below everything,
    -0 equal to +0; any row length. For arrays on the GPU the results are there too; a NumPy array
    is copied there and the results back.

    Args:
        values: `(..., N)` float32 or float16: a NumPy array, anything with
            `__cuda_array_interface__` (torch, CuPy) that is contiguous, or, for a bare pointer,
            `DeviceArray(pointer, shape, dtype)`.
        k: Number of entries; more than N means all N.
        sorted: Largest first; otherwise the same set, ordered by index.
        gpu: The GPU that holds the values; by default the one they are on, or the first.

    Returns:
        Values `(..., min(k, N))` with the dtype of `values`, and int64 indices of that shape.
        They are complete when the function returns.

    Raises:
        ValueError: `k` is negative, or `values` has no axis, is not contiguous or is not on `gpu`.
        TypeError: `values` has another dtype.
        MemoryError: The device has not enough memory left.
        InferenceError: The GPU failed.
    """
    is_on_host = not hasattr(values, "__cuda_array_interface__")
    if is_on_host:
        gpu = gpu or _gpu(0)
        host_values = np.asarray(values)
        memory = upload(gpu, host_values)
        array = DeviceArray(memory.address, host_values.shape, host_values.dtype, memory)
    else:
        gpu, array = _device_array(gpu, values)

    if not array.shape:
        raise ValueError("top_k needs at least one axis")
    if k < 0:
        raise ValueError(f"k must not be negative, got {k}")
    if array.dtype not in (np.float16, np.float32):
        raise TypeError(f"float16 or float32 is needed, this is {array.dtype}")
    if array.shape[-1] > MAX_ROW:
        raise ValueError(f"rows have up to {MAX_ROW} entries, these have {array.shape[-1]}")

    *leading, length = array.shape
    shape = (*leading, min(k, length))
    best_values = _empty(gpu, shape, array.dtype)
    best_indices = _empty(gpu, shape, np.dtype(np.int64))
    if math.prod(shape):
        _enqueue(gpu, array, best_values, best_indices, descending=sorted)
    gpu.record().wait()
    if not is_on_host:
        return best_values, best_indices
    host_best = (_downloaded(gpu, best_values), _downloaded(gpu, best_indices))
    for device_array in (array, best_values, best_indices):
        if device_array.owner is not None:
            device_array.owner.close()
    return host_best


def spill_capacity(k: int) -> int:
    """Keys of device memory that a list of the k largest needs: a power of two, or 0."""
    if k <= SHARED_LIST:
        return 0
    return 1 << (k - 1).bit_length()


def upload(gpu: "Gpu", array: npt.NDArray[Any]) -> "DeviceMemory":
    """Copy an array to new device memory of at least one byte, and wait for it."""
    memory = gpu.allocate(array.nbytes)
    staging = gpu.pin(array.nbytes)
    staging.array[: array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    gpu.copy(memory.address, staging.address, array.nbytes)
    gpu.record().wait()
    staging.close()
    return memory


def download(
    gpu: "Gpu", address: int, shape: tuple[int, ...], dtype: npt.DTypeLike
) -> npt.NDArray[Any]:
    """Copy an array from device memory, and wait for it."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    staging = gpu.pin(size)
    gpu.copy(staging.address, address, size)
    gpu.record().wait()
    array = staging.array[:size].view(dtype).reshape(shape).copy()
    staging.close()
    return array


def _downloaded(gpu: "Gpu", array: DeviceArray) -> npt.NDArray[Any]:
    return download(gpu, array.address, array.shape, array.dtype)


def _enqueue(
    gpu: "Gpu",
    array: DeviceArray,
    best_values: DeviceArray,
    best_indices: DeviceArray,
    *,
    descending: bool,
) -> None:
    """Launch the kernels, each for as many rows as a grid holds."""
    length = array.shape[-1]
    k = best_values.shape[-1]
    row_count = math.prod(array.shape[:-1])
    spill = spill_capacity(k)
    chunk = _chunk_length(length, k)
    chunks = -(-length // chunk)
    keys_of_row = chunks * k if chunks > 1 else 0  # that its chunks leave
    rows_at_once = min(row_count, MAX_GRID)
    workspace = gpu.allocate(KEY * rows_at_once * (keys_of_row + spill))
    keys = workspace.address if keys_of_row else 0
    spilled = workspace.address + KEY * rows_at_once * keys_of_row

    for first in range(0, row_count, rows_at_once):
        count = min(rows_at_once, row_count - first)
        source = _address_of_row(array, first)
        if keys_of_row:
            gpu.launch(
                f"top_k_chunks_{array.dtype}",
                (chunks, count, 1),
                1024,
                source,
                np.uint32(length),
                np.uint32(chunk),
                np.uint32(k),
                keys,
            )
        gpu.launch(
            f"top_k_{array.dtype}",
            (count, 1, 1),
            1024,
            source,
            np.uint32(length),
            keys,
            np.uint32(keys_of_row),
            np.uint32(k),
            np.uint32(descending),
            _address_of_row(best_values, first),
            _address_of_row(best_indices, first),
            spilled,
            np.uint32(spill),
        )
    workspace.close()


def _address_of_row(array: DeviceArray, row: int) -> int:
    return array.address + row * array.shape[-1] * array.dtype.itemsize


def _chunk_length(length: int, k: int) -> int:
    """Length of the chunks of a row; the whole row if it is short or k is large.

    A block reads its chunk, then one block reads k keys of each chunk; both take about equally long
    if the chunk is as long as the geometric mean of N and k.
    """
    chunk = max(MIN_CHUNK, math.isqrt(length * k))
    if k > SHARED_LIST or length < 2 * chunk:
        return length
    return chunk


def _device_array(gpu: "Gpu | None", values: Any) -> "tuple[Gpu, DeviceArray]":  # noqa: ANN401
    """Read `__cuda_array_interface__`, find its GPU and wait for the work that fills the array."""
    interface = values.__cuda_array_interface__
    shape = tuple(interface["shape"])
    dtype = np.dtype(interface["typestr"])
    packed = tuple(dtype.itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    if interface.get("strides") not in (None, packed):
        raise ValueError("the array is not contiguous")

    address = interface["data"][0]
    any_gpu = gpu or _gpu(0)
    ordinal = any_gpu.ordinal
    if math.prod(shape):
        ordinal = any_gpu.ordinal_of(address)
    if gpu is not None and gpu.ordinal != ordinal:
        raise ValueError(f"the array is on GPU number {ordinal}, not {gpu.ordinal}")
    gpu = gpu or _gpu(ordinal)
    if interface.get("stream", 1) is not None:  # torch, with version 2, does not name its stream
        gpu.synchronize()
    return gpu, DeviceArray(address, shape, dtype)


def _empty(gpu: "Gpu", shape: tuple[int, ...], dtype: np.dtype[Any]) -> DeviceArray:
    memory = gpu.allocate(math.prod(shape) * dtype.itemsize)
    return DeviceArray(memory.address, shape, dtype, memory)


@functools.cache
def _gpu(ordinal: int) -> "Gpu":
    from detcli.backend.cuda.driver import Gpu

    return Gpu(ordinal)
