"""One GPU and one stream on it: memory, copies, events, launches.

Only this file talks to CUDA's driver, through cuda-core and cuda-bindings. All work is asynchronous
and runs in the order in which it was enqueued; `Event.wait` is where the host waits.
"""

import contextlib
import ctypes
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from detcli.backend.nvidia import count_gpus, cuda_command
from detcli.errors import DeviceError, InferenceError, loading

with loading("cuda-core", cuda_command()):
    from cuda.bindings import driver
    from cuda.core import Device, Kernel, LegacyPinnedMemoryResource

    from detcli.backend.cuda.program import compile_file, entry_points

SUCCESS = driver.CUresult.CUDA_SUCCESS

POOL_KEEPS = 64 << 20
"""Bytes of freed memory that stay ours; cuda-core's choice, all of it, leaves ONNX Runtime none."""

this_thread = threading.local()

Argument = int | np.uint32 | np.float32
"""Argument of a kernel: a Python int is an address, anything else a NumPy scalar."""


class DeviceMemory:
    """Some bytes of device memory, from `Gpu.allocate`."""

    def __init__(self, buffer: Any) -> None:  # noqa: ANN401 - cuda-core's Buffer
        self._buffer = buffer
        self.address, self.size = int(buffer.handle), int(buffer.size)

    def close(self) -> None:
        """Free it, once the work that was enqueued before is done."""
        self._buffer.close()  # in the order of its stream, which it keeps alive


class PinnedMemory(DeviceMemory):
    """Some bytes of page-locked host memory, which the GPU reads and writes directly.

    Attributes:
        array: The bytes, `(size,)` uint8.
    """

    def __init__(self, buffer: Any) -> None:  # noqa: ANN401
        super().__init__(buffer)
        view = (ctypes.c_uint8 * self.size).from_address(self.address)
        self.array: npt.NDArray[np.uint8] = np.ctypeslib.as_array(view)

    def close(self) -> None:
        """Free it; `array` is empty afterwards."""
        self.array = self.array[:0].copy()
        super().close()


class Event:
    """A point in the stream, from `Gpu.record`; it can be moved."""

    def __init__(self, event: Any, gpu: "Gpu") -> None:  # noqa: ANN401 - cuda-core's Event
        self._event, self._gpu = event, gpu
        self._handle = event.handle

    def record(self) -> None:
        """Move it behind what has been enqueued so far."""
        self._gpu.make_current()
        _check(driver.cuEventRecord(self._handle, self._gpu.stream))

    def wait(self) -> None:
        """Block until everything that was enqueued before it is done."""
        self._gpu.make_current()
        _check(driver.cuEventSynchronize(self._handle))


class Launch:
    """A kernel with its arguments, from `Gpu.prepare`: calling it enqueues the kernel."""

    def __init__(
        self,
        gpu: "Gpu",
        function: Any,  # noqa: ANN401 - cuda-bindings has no types
        shape: tuple[int, ...],
        arguments: tuple[Argument, ...],
    ) -> None:
        self._gpu = gpu
        # Eight bytes each, of which the driver reads the first four where a parameter has four.
        bits = [
            int(one.view(np.uint32) if isinstance(one, np.float32) else one) for one in arguments
        ]
        self._values = np.array(bits, np.uint64)
        start, step = np.uint64(self._values.ctypes.data), np.uint64(self._values.itemsize)
        self._addresses = start + step * np.arange(len(bits), dtype=np.uint64)
        none = 0  # further parameters, and shared memory beside what the kernel declares
        addresses = self._addresses.ctypes.data
        self._call = (function, *shape, 1, 1, none, gpu.stream, addresses, none)

    def __call__(self) -> None:
        """Enqueue it."""
        self._gpu.make_current()
        _check(driver.cuLaunchKernel(*self._call))


class Gpu:
    """A GPU as the backend uses it.

    Attributes:
        name: The driver's name for it, "NVIDIA H200".
        ordinal: CUDA's number of the device.
        architecture: The architecture that kernels are compiled for, "sm_90".
        stream: Address of the stream.
    """

    def __init__(self, ordinal: int) -> None:
        """Open a device.

        Raises:
            DeviceError: There is no such device, or the driver does not work.
        """
        # Device.get_all_devices() asks NVML, which also counts GPUs that CUDA_VISIBLE_DEVICES
        # hides, and is missing in some containers.
        count = count_gpus()
        if ordinal >= count:
            there = f"only {count}" if count else "NVIDIA's driver shows none"
            raise DeviceError(
                f"there is no GPU number {ordinal}, {there}",
                f"use cuda:0 to cuda:{count - 1}" if count else "use --device cpu",
            )
        try:
            self._device = Device(ordinal)
            self._device.set_current()
            self._stream = self._device.create_stream()
            pool = getattr(self._device.memory_resource, "handle", None)  # old GPUs have none
            if pool is not None:
                attribute = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
                _check(driver.cuMemPoolSetAttribute(pool, attribute, driver.cuuint64_t(POOL_KEEPS)))
        except Exception as error:  # what cuda-core raises has no common type
            raise DeviceError(
                f"GPU number {ordinal} does not work: {error}",
                "see whether nvidia-smi lists the GPU; or use --device cpu",
            ) from error
        self._closed = False
        self._kernels: dict[str, Kernel] = {}
        self._page_locked = LegacyPinnedMemoryResource()
        self.name = str(self._device.name)
        self.ordinal = ordinal
        self.architecture = f"sm_{self._device.arch}"
        self.stream = int(self._stream.handle)

    def allocate(self, size: int) -> DeviceMemory:
        """Allocate device memory; its content is undefined.

        Raises:
            MemoryError: The device has not enough memory left.
        """
        with self._current():
            return DeviceMemory(self._device.allocate(size, stream=self._stream))

    def pin(self, size: int) -> PinnedMemory:
        """Allocate page-locked host memory; its content is undefined.

        Raises:
            MemoryError: The host has not enough memory left.
        """
        with self._current():
            return PinnedMemory(self._page_locked.allocate(size))

    def copy(self, target: int, source: int, size: int) -> None:
        """Copy bytes between two addresses, of the device or page-locked."""
        self.make_current()
        _check(driver.cuMemcpyAsync(target, source, size, self.stream))

    def clear(self, target: int, size: int) -> None:
        """Set bytes of device memory to 0."""
        self.make_current()
        _check(driver.cuMemsetD8Async(target, 0, size, self.stream))

    def launch(
        self, kernel: str, grid: tuple[int, int, int], block: int, *arguments: Argument
    ) -> None:
        """Enqueue a kernel of `kernels/` by its name."""
        self.prepare(kernel, grid, block, *arguments)()

    def prepare(
        self, kernel: str, grid: tuple[int, int, int], block: int, *arguments: Argument
    ) -> Launch:
        """Prepare a launch that is made often, so that its arguments are packed once."""
        with self._current():
            function = driver.CUfunction(int(self._kernel(kernel).handle))
        return Launch(self, function, (*grid, block), arguments)

    def load_kernels(self) -> None:
        """Compile the kernels, or take them from the cache.

        Raises:
            DeviceError: The compiler does not support this GPU.
            DependencyError: The compiler is not installed.
        """
        with self._current():
            for name in entry_points():
                self._kernel(name)

    def _kernel(self, name: str) -> Kernel:
        """Find a kernel; its file is loaded when first needed."""
        if name not in self._kernels:
            path = entry_points()[name]
            code = compile_file(path, self.architecture)
            for entry, file in entry_points().items():
                if file == path:
                    self._kernels[entry] = code.get_kernel(entry)
        return self._kernels[name]

    def record(self) -> Event:
        """Mark what has been enqueued so far."""
        with self._current():
            return Event(self._stream.record(), self)

    def ordinal_of(self, address: int) -> int:
        """Number of the GPU that memory lies on.

        Raises:
            ValueError: It is no GPU's.
        """
        self.make_current()
        attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        status, ordinal = driver.cuPointerGetAttribute(attribute, address)
        if status != SUCCESS:
            raise ValueError("the array is not in the memory of a GPU")
        return int(ordinal)

    def synchronize(self) -> None:
        """Wait for all work on this device, including that of other streams."""
        self.make_current()
        _check(driver.cuCtxSynchronize())

    def close(self) -> None:
        """Wait for the work, then close the stream."""
        if not self._closed:
            self._closed = True
            self.synchronize()
            self._stream.close()

    def make_current(self) -> None:
        """Make the device the thread's current one.

        Before each call: ONNX Runtime, PyTorch or a second Gpu may have switched to another.
        """
        if not hasattr(this_thread, "relaxed"):
            # While ONNX Runtime captures a graph, other threads could allocate nothing.
            relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
            _check(driver.cuThreadExchangeStreamCaptureMode(relaxed))
            this_thread.relaxed = True
        try:
            self._device.set_current()  # half of what cuCtxSetCurrent takes through cuda-bindings
        except Exception as error:
            raise _failure(str(error)) from error

    @contextlib.contextmanager
    def _current(self) -> Iterator[None]:
        """Make the device the thread's current one, and translate cuda-core's failures."""
        self.make_current()
        try:
            yield
        except Exception as error:
            if type(error).__name__ == "CUDAError":  # not among its public names
                raise _failure(str(error)) from error
            raise


def _check(result: tuple[Any, ...]) -> None:
    """Raise the failure that a call of cuda-bindings returned."""
    if result[0] != SUCCESS:
        raise _failure(result[0].name)


def _failure(reason: str) -> Exception:
    reason = reason.strip().partition("\n")[0]
    if "OUT_OF_MEMORY" in reason:
        return MemoryError(reason)
    return InferenceError(
        f"CUDA failed: {reason}",
        "run it again with --device cpu to see whether the GPU is to blame",
    )
