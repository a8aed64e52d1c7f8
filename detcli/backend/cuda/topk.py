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
    from detcli.backend.cuda.driver import Argument, DeviceMemory, Gpu

    Result = tuple["DeviceArray | npt.NDArray[Any]", "DeviceArray | npt.NDArray[np.int64]"]

SHARED_LIST = 2048
"""Keys that a block sorts in shared memory, as in top.cuh."""

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
    if on_host := not hasattr(values, "__cuda_array_interface__"):
        gpu, values = gpu or _gpu(0), np.asarray(values)
        memory = upload(gpu, values)
        array = DeviceArray(memory.address, values.shape, values.dtype, memory)
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
    best = _empty(gpu, shape, array.dtype), _empty(gpu, shape, np.dtype(np.int64))
    if math.prod(shape):
        _enqueue(gpu, array, best, descending=sorted)
    gpu.record().wait()
    if not on_host:
        return best
    found = [download(gpu, one.address, one.shape, one.dtype) for one in best]
    for one in (array, *best):
        if one.owner is not None:
            one.owner.close()
    return found[0], found[1]


def spill_capacity(k: int) -> int:
    """Keys of device memory that a list of the k largest needs: a power of two, or 0."""
    return 1 << (k - 1).bit_length() if k > SHARED_LIST else 0


def upload(gpu: "Gpu", array: npt.NDArray[Any]) -> "DeviceMemory":
    """Copy an array to new device memory of at least one byte, and wait for it."""
    memory, staging = gpu.allocate(array.nbytes), gpu.pin(array.nbytes)
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


def _enqueue(
    gpu: "Gpu", array: DeviceArray, best: tuple[DeviceArray, DeviceArray], *, descending: bool
) -> None:
    """Launch the kernels, each for as many rows as a grid holds."""
    length, k = array.shape[-1], best[0].shape[-1]
    rows = math.prod(array.shape[:-1])
    spill = spill_capacity(k)
    chunk = _chunk_length(length, k)
    chunks = -(-length // chunk)
    kept = chunks * k if chunks > 1 else 0  # keys that the chunks of a row leave
    step = min(rows, MAX_GRID)
    workspace = gpu.allocate(8 * step * (kept + spill))
    keys, spilled = workspace.address if kept else 0, workspace.address + 8 * step * kept
    for first in range(0, rows, step):
        count = min(step, rows - first)
        source, *target = (
            part.address + first * part.shape[-1] * part.dtype.itemsize for part in (array, *best)
        )
        row = (source, np.uint32(length))
        if kept:
            chunked: tuple[Argument, ...] = (*row, np.uint32(chunk), np.uint32(k), keys)
            gpu.launch(f"top_k_chunks_{array.dtype}", (chunks, count, 1), 1024, *chunked)
        chosen = (keys, np.uint32(kept), np.uint32(k), np.uint32(descending))
        spills = (spilled, np.uint32(spill))
        whole: tuple[Argument, ...] = (*row, *chosen, *target, *spills)
        gpu.launch(f"top_k_{array.dtype}", (count, 1, 1), 1024, *whole)
    workspace.close()


def _chunk_length(length: int, k: int) -> int:
    """Length of the chunks of a row; the whole row if it is short or k is large.

    A block reads its chunk, then one block reads k keys of each chunk; both take about equally long
    if the chunk is as long as the geometric mean of N and k.
    """
    chunk = max(MIN_CHUNK, math.isqrt(length * k))
    return chunk if k <= SHARED_LIST and length >= 2 * chunk else length


def _device_array(gpu: "Gpu | None", values: Any) -> "tuple[Gpu, DeviceArray]":  # noqa: ANN401
    """Read `__cuda_array_interface__`, find its GPU and wait for the work that fills the array."""
    told = values.__cuda_array_interface__
    shape, dtype = tuple(told["shape"]), np.dtype(told["typestr"])
    packed = tuple(dtype.itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    if told.get("strides") not in (None, packed):
        raise ValueError("the array is not contiguous")
    address, asked = told["data"][0], gpu or _gpu(0)
    ordinal = asked.ordinal_of(address) if math.prod(shape) else asked.ordinal
    if gpu is not None and gpu.ordinal != ordinal:
        raise ValueError(f"the array is on GPU number {ordinal}, not {gpu.ordinal}")
    gpu = gpu or _gpu(ordinal)
    if told.get("stream", 1) is not None:  # torch, with version 2, does not name its stream
        gpu.synchronize()
    return gpu, DeviceArray(address, shape, dtype)


def _empty(gpu: "Gpu", shape: tuple[int, ...], dtype: np.dtype[Any]) -> DeviceArray:
    memory = gpu.allocate(math.prod(shape) * dtype.itemsize)
    return DeviceArray(memory.address, shape, dtype, memory)


@functools.cache
def _gpu(ordinal: int) -> "Gpu":
    from detcli.backend.cuda.driver import Gpu

    return Gpu(ordinal)
