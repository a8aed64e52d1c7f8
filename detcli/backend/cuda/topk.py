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
BLOCK_THREADS = 1024
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


def top_k(values: Any, k: int, *, sorted: bool = True, gpu: "Gpu | None" = None) -> "Result":  # noqa: A002, ANN401 - as in torch.topk
    """Return the k largest entries along the last axis and their indices, on a GPU.

    The result is that of `detcli.top_k`: among equal ones the lower index first, NaN below
    everything, -0 equal to +0; any row length. For arrays on the GPU the results are there too; a
    NumPy array is copied there and the results back.

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
        TypeError: `values` has any other dtype.
        MemoryError: The device does not have enough memory left.
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
    """Return how many keys of device memory a kernel needs for a list of the k largest.

    A block of threads keeps a short list in its shared memory, and needs none: 0. A longer list
    spills into device memory, where sorting needs room for a power of two.
    """
    if k <= SHARED_LIST:
        return 0
    return 1 << (k - 1).bit_length()


def upload(gpu: "Gpu", array: npt.NDArray[Any]) -> "DeviceMemory":
    """Copy an array to new device memory, and wait until it has arrived.

    The copy goes through page-locked host memory, which is freed again. The device memory has at
    least one byte, even for an array without elements.
    """
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
    """Copy an array from device memory to ordinary host memory, and wait until it has arrived.

    Args:
        gpu: The GPU that holds the array.
        address: The device address of its first element.
        shape: The shape of the array, which has to be contiguous.
        dtype: The type of its elements.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize  # in bytes
    staging = gpu.pin(size)
    gpu.copy(staging.address, address, size)
    gpu.record().wait()
    array = staging.array[:size].view(dtype).reshape(shape).copy()
    staging.close()
    return array


def _downloaded(gpu: "Gpu", array: DeviceArray) -> npt.NDArray[Any]:
    """Return a copy of an array of the GPU in ordinary memory."""
    return download(gpu, array.address, array.shape, array.dtype)


def _enqueue(
    gpu: "Gpu",
    array: DeviceArray,
    best_values: DeviceArray,
    best_indices: DeviceArray,
    *,
    descending: bool,
) -> None:
    """Enqueue the kernels that write the k largest entries of each row, and their indices.

    A short row is read by a single block of threads. A long row is split into chunks: one kernel
    reduces each chunk to keys of its k largest entries, and a second one selects among the keys of
    all chunks. As a grid has a limited number of blocks, the rows are processed in groups.

    Args:
        gpu: The GPU that holds the arrays.
        array: `(..., N)`, the rows to read.
        best_values: `(..., k)`, where the largest entries are written.
        best_indices: `(..., k)`, where their positions in the rows are written.
        descending: Whether the largest entry comes first; otherwise they are ordered by index.
    """
    length = array.shape[-1]
    k = best_values.shape[-1]
    row_count = math.prod(array.shape[:-1])
    spilled_keys_per_row = spill_capacity(k)
    chunk_length = _chunk_length(length, k)
    chunk_count = -(-length // chunk_length)  # rounded up
    chunk_keys_per_row = 0
    if chunk_count > 1:
        chunk_keys_per_row = chunk_count * k

    # The workspace holds the keys of the chunks of all rows, then the keys of lists that are too
    # long for a block's shared memory.
    rows_at_once = min(row_count, MAX_GRID)
    workspace = gpu.allocate(KEY * rows_at_once * (chunk_keys_per_row + spilled_keys_per_row))
    chunk_keys = 0  # a null pointer tells the kernel to read the row itself
    if chunk_keys_per_row:
        chunk_keys = workspace.address
    spilled_keys = workspace.address + KEY * rows_at_once * chunk_keys_per_row

    for first_row in range(0, row_count, rows_at_once):
        rows_in_launch = min(rows_at_once, row_count - first_row)
        first_row_address = _address_of_row(array, first_row)
        if chunk_keys_per_row:
            gpu.launch(
                f"top_k_chunks_{array.dtype}",
                (chunk_count, rows_in_launch, 1),
                BLOCK_THREADS,
                first_row_address,
                np.uint32(length),
                np.uint32(chunk_length),
                np.uint32(k),
                chunk_keys,
            )
        gpu.launch(
            f"top_k_{array.dtype}",
            (rows_in_launch, 1, 1),
            BLOCK_THREADS,
            first_row_address,
            np.uint32(length),
            chunk_keys,
            np.uint32(chunk_keys_per_row),
            np.uint32(k),
            np.uint32(descending),
            _address_of_row(best_values, first_row),
            _address_of_row(best_indices, first_row),
            spilled_keys,
            np.uint32(spilled_keys_per_row),
        )
    workspace.close()


def _address_of_row(array: DeviceArray, row: int) -> int:
    """Return the device address of a row along the last axis, counted over all leading axes."""
    return array.address + row * array.shape[-1] * array.dtype.itemsize


def _chunk_length(length: int, k: int) -> int:
    """Choose the length of the chunks that a row is split into, to find its k best entries.

    First a block of threads for each chunk of c entries finds the k best of the chunk; then one
    block reads the k entries of each of the N / c chunks. The two steps take equally long if they
    read equally many entries: c = k * N / c, so c is the square root of k * N.

    Args:
        length: N, the number of entries of the row.
        k: How many entries are to be found.

    Returns:
        The length of the chunks; that of the row if it is not split, as it is too short, or as k
        is larger than the list in a block's shared memory.
    """
    chunk_length = max(MIN_CHUNK, math.isqrt(k * length))
    can_be_split = length >= 2 * chunk_length and k <= SHARED_LIST
    if can_be_split:
        return chunk_length
    return length


def _device_array(gpu: "Gpu | None", values: Any) -> "tuple[Gpu, DeviceArray]":  # noqa: ANN401
    """Describe an array that another library, such as torch or CuPy, holds on a GPU.

    Args:
        gpu: The GPU that the array has to be on; None if it may be on any.
        values: An object with `__cuda_array_interface__`.

    Returns:
        The GPU that holds the array, and where it lies in its memory. The work that fills the array
        is done.

    Raises:
        ValueError: The array is not contiguous, or not on `gpu`.
    """
    interface = values.__cuda_array_interface__
    shape = tuple(interface["shape"])
    dtype = np.dtype(interface["typestr"])
    strides = interface.get("strides")  # None for a contiguous array, or its usual strides
    if strides not in (None, _contiguous_strides(shape, dtype)):
        raise ValueError("the array is not contiguous")

    address = interface["data"][0]  # the next value says whether the array is read-only
    is_empty = math.prod(shape) == 0
    array_gpu = _gpu_of_array(address, gpu, is_empty=is_empty)

    # A stream of None says that the array is complete. Torch, which implements version 2 of the
    # interface, does not name a stream although its work may still run.
    may_be_incomplete = interface.get("stream", 1) is not None
    if may_be_incomplete:
        array_gpu.synchronize()
    return array_gpu, DeviceArray(address, shape, dtype)


def _gpu_of_array(address: int, required_gpu: "Gpu | None", *, is_empty: bool) -> "Gpu":
    """Return the GPU that holds an array.

    Args:
        address: The device address of the array.
        required_gpu: The GPU that the array has to be on; None if it may be on any.
        is_empty: Whether the array has no elements, and so no address. It is on any GPU then.

    Raises:
        ValueError: It is on a GPU other than the required one.
    """
    asking_gpu = required_gpu or _gpu(0)  # any GPU can ask the driver where an address lies
    if is_empty:
        return asking_gpu
    ordinal = asking_gpu.ordinal_of(address)
    if required_gpu is None:
        return _gpu(ordinal)
    if required_gpu.ordinal != ordinal:
        raise ValueError(f"the array is on GPU number {ordinal}, not {required_gpu.ordinal}")
    return required_gpu


def _contiguous_strides(shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[int, ...]:
    """Return the bytes from one element to the next along each axis of a contiguous array.

    Examples:
        >>> _contiguous_strides((2, 3, 4), np.dtype(np.float32))
        (48, 16, 4)
    """
    strides = []
    for axis in range(len(shape)):
        elements_between = math.prod(shape[axis + 1 :])
        strides.append(dtype.itemsize * elements_between)
    return tuple(strides)


def _empty(gpu: "Gpu", shape: tuple[int, ...], dtype: np.dtype[Any]) -> DeviceArray:
    """Allocate an array on the GPU; its content is undefined."""
    memory = gpu.allocate(math.prod(shape) * dtype.itemsize)
    return DeviceArray(memory.address, shape, dtype, memory)


@functools.cache
def _gpu(ordinal: int) -> "Gpu":
    """Return the GPU with a CUDA ordinal, always the same object."""
    from detcli.backend.cuda.driver import Gpu

    return Gpu(ordinal)
