"""One GPU and two streams on it: memory, copies, events, launches.

Only this file talks to CUDA's driver, through cuda-core and cuda-bindings. All work is asynchronous
and runs in the order in which it was enqueued, except that uploads have a stream of their own and
overtake what they do not depend on. `Event.wait` is where the host waits.

NVRTC compiles each `.cu` file of `kernels/` for one architecture into a cubin: machine code, which
needs no compiler in the driver and so works with drivers older than NVRTC. Cubins are kept in the
cache folder; without one, the files are compiled at every start.
"""

import ctypes
import functools
import hashlib
import io
import logging
import re
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from detcli.backend.nvidia import count_gpus, cuda_command
from detcli.config.device import available_cores
from detcli.core.errors import DependencyError, DeviceError, InferenceError, loading
from detcli.storage.cache import cached

with loading("cuda-core", cuda_command()):
    from cuda.bindings import driver
    from cuda.core import (
        Device,
        EventOptions,
        Kernel,
        LaunchConfig,
        LegacyPinnedMemoryResource,
        ObjectCode,
        Program,
        ProgramOptions,
        launch,
    )
    from cuda.core.graph import GraphDefinition
    from cuda.core.utils import make_program_cache_key

SUCCESS = driver.CUresult.CUDA_SUCCESS

# Bytes of freed memory that stay ours; cuda-core's choice, all of it, leaves ONNX Runtime none.
POOL_KEEPS = 64 << 20
FEW_CORES = 4  # where so few are shared, a thread that waits for the GPU sleeps instead of spinning

KERNELS = Path(__file__).parent.resolve() / "kernels"

BLANK = "\0 \n"  # NVRTC's reports end with a zero byte

ENTRY_POINT = re.compile(
    r'^extern "C" __global__ void\s+(?:__launch_bounds__\([^()]*\)\s+)?(\w+)\(', re.MULTILINE
)
SOURCE_ERROR = re.compile(
    r"^(?P<file>.+)\((?P<line>\d+)\): [\w\s]*error\b[^:]*: (?P<reason>.+)$", re.MULTILINE
)
DEPRECATED = re.compile(r"^.*Architectures prior to .* are deprecated.*$", re.MULTILINE)
OTHER_ERROR = re.compile(r"\berror\s*: (?P<reason>.+)$", re.MULTILINE)

log = logging.getLogger(__name__)

this_thread = threading.local()

Argument = int | np.uint32 | np.float32
"""Argument of a kernel: a Python int is an address, anything else a NumPy scalar."""


class DeviceMemory:
    """A block of device memory, from `Gpu.allocate`."""

    def __init__(self, buffer: Any) -> None:  # noqa: ANN401 - cuda-core's Buffer
        self._buffer = buffer
        self.address = int(buffer.handle)
        self.size = int(buffer.size)

    def close(self) -> None:
        """Free the memory, after the work that was enqueued before."""
        self._buffer.close()  # in the order of its stream, which it keeps alive


class PinnedMemory(DeviceMemory):
    """A block of page-locked host memory, which the GPU reads and writes directly."""

    def __init__(self, buffer: Any) -> None:  # noqa: ANN401
        super().__init__(buffer)
        view = (ctypes.c_uint8 * self.size).from_address(self.address)
        self.array: npt.NDArray[np.uint8] = np.ctypeslib.as_array(view)

    def close(self) -> None:
        """Free the memory; `array` is empty from then on, as it must not be read any more."""
        self.array = self.array[:0].copy()
        super().close()


class Event:
    """A point in the stream of all but uploads, from `Gpu.record`; it can be moved."""

    def __init__(self, event: Any, gpu: "Gpu") -> None:  # noqa: ANN401 - cuda-core's Event
        self._event = event
        self._gpu = gpu

    def record(self) -> None:
        """Record the event again, after all work that has been enqueued so far."""
        self._gpu.call(self._gpu.queue.record, self._event)

    def wait(self) -> None:
        """Block until everything that was enqueued before it is done."""
        self._gpu.call(self._event.sync)


class Graph:
    """Kernels and copies with their arguments, from `Gpu.graph`, which one call enqueues."""

    def __init__(self, gpu: "Gpu") -> None:
        self._gpu = gpu
        self._definition = GraphDefinition()
        self._last = self._definition  # what the next is appended to
        self._executable: Any = None

    def launch(
        self, kernel: str, grid: tuple[int, int, int], block: int, *arguments: Argument
    ) -> None:
        """Append a kernel, which runs after what was appended before; see `Gpu.launch`."""
        config = LaunchConfig(grid=grid, block=block)
        code = self._gpu.kernel(kernel)
        self._last = self._gpu.call(self._last.launch, config, code, *arguments)

    def copy(self, target: int, source: int, size: int) -> None:
        """Append a copy of bytes between two addresses, of the device or page-locked."""
        self._last = self._gpu.call(self._last.memcpy, target, source, size)

    def clear(self, target: int, size: int) -> None:
        """Append an operation that sets bytes of device memory to 0."""
        self._last = self._gpu.call(self._last.memset, target, 0, size)

    def enqueue(self) -> None:
        """Enqueue all of it; nothing can be appended any more."""
        if self._executable is None:
            self._executable = self._gpu.call(self._definition.instantiate)
        self._gpu.call(self._executable.launch, self._gpu.queue)


class Gpu:
    """A GPU by its CUDA ordinal, with the two streams of a detector."""

    def __init__(self, ordinal: int) -> None:
        """Begin to use a GPU: create a stream for uploads and one for all other work.

        Raises:
            DeviceError: The GPU does not exist, or does not work.
        """
        # Device.get_all_devices() asks NVML, which also counts GPUs that CUDA_VISIBLE_DEVICES
        # hides, and is missing in some containers.
        count = count_gpus()
        if count == 0:
            raise DeviceError(
                f"there is no GPU number {ordinal}, NVIDIA's driver shows none",
                "use --device cpu",
            )
        if ordinal >= count:
            raise DeviceError(
                f"there is no GPU number {ordinal}, only {count}",
                f"use cuda:0 to cuda:{count - 1}",
            )
        try:
            self._device = Device(ordinal)
            self._device.set_current()
            self.queue = self._device.create_stream()
            self._upload_stream = self._device.create_stream()
            self._upload_event = self._device.create_event()
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
        self._has_allocated = False  # since the last upload
        self._kernels: dict[str, Kernel] = {}
        self._page_locked = LegacyPinnedMemoryResource()
        self.name = str(self._device.name)
        self.ordinal = ordinal
        self.architecture = f"sm_{self._device.arch}"
        self.multiprocessors = int(self._device.properties.multiprocessor_count)
        self._handle = self.queue.handle
        self.stream = int(self._handle)
        self._waiting = EventOptions(blocking_sync=available_cores() <= FEW_CORES)

    def allocate(self, size: int) -> DeviceMemory:
        """Allocate device memory; its content is undefined."""
        size = max(size, 1)  # CUDA has no empty memory
        buffer = self.call(lambda: self._device.allocate(size, stream=self.queue))
        self._has_allocated = True
        return DeviceMemory(buffer)

    def pin(self, size: int) -> PinnedMemory:
        """Allocate page-locked host memory; its content is undefined."""
        return PinnedMemory(self.call(self._page_locked.allocate, max(size, 1)))

    def copy(self, target: int, source: int, size: int) -> None:
        """Copy bytes between two addresses, of the device or page-locked."""
        _check(self.call(driver.cuMemcpyAsync, target, source, size, self._handle))

    def upload(self, copies: Iterable[tuple[int, int, int]]) -> None:
        """Enqueue copies from page-locked host memory to the device, beside work that still runs.

        The GPU has two streams here: the main stream `queue`, and one for uploads, on which the
        copies run. They do not wait for work that is already on the main stream, so that work must
        not use the targets of the copies. Work that is enqueued on the main stream later waits for
        the copies.

        Args:
            copies: The target address, the source address and the size in bytes of each copy.
        """
        # New memory exists only when the main stream has come as far as its allocation. If a target
        # may be new, the copies wait for that; the next ones need not, unless memory is allocated.
        if self._has_allocated:
            self._has_allocated = False
            self.call(self._upload_stream.wait, self.queue)

        upload_handle = self._upload_stream.handle
        for target, source, size in copies:
            _check(self.call(driver.cuMemcpyAsync, target, source, size, upload_handle))

        # The main stream waits for an event that follows the copies on the upload stream.
        self.call(self._upload_stream.record, self._upload_event)
        self.call(self.queue.wait, self._upload_event)

    def clear(self, target: int, size: int) -> None:
        """Set bytes of device memory to 0."""
        _check(self.call(driver.cuMemsetD8Async, target, 0, size, self._handle))

    def launch(
        self, kernel: str, grid: tuple[int, int, int], block: int, *arguments: Argument
    ) -> None:
        """Enqueue a kernel of `kernels/`.

        Args:
            kernel: The name of the kernel.
            grid: The number of blocks along x, y and z.
            block: The number of threads in each block.
            *arguments: The kernel's arguments in their order.
        """
        config = LaunchConfig(grid=grid, block=block)
        self.call(launch, self.queue, config, self.kernel(kernel), *arguments)

    def graph(self) -> Graph:
        """Return an empty graph, to which kernels and copies can be appended."""
        return Graph(self)

    def load_kernels(self, files: Iterable[str]) -> None:
        """Load the kernels of the given files, so that the first image need not wait for them.

        Others are loaded when they are first used.

        Args:
            files: Names in `kernels/`, without suffix, such as "letterbox".
        """
        for name, path in entry_points().items():
            if path.stem in files:
                self.kernel(name)

    def kernel(self, name: str) -> Kernel:
        """Return a kernel by its name; the first time, all kernels of its file are loaded."""
        if name not in self._kernels:
            path = entry_points()[name]
            code = compile_file(path, self.architecture)
            for kernel_name, kernel_path in entry_points().items():
                if kernel_path == path:
                    self._kernels[kernel_name] = self.call(code.get_kernel, kernel_name)
        return self._kernels[name]

    def record(self) -> Event:
        """Mark what has been enqueued so far."""
        event = Event(self.call(self._device.create_event, self._waiting), self)
        event.record()
        return event

    def ordinal_of(self, address: int) -> int:
        """Return the ordinal of the GPU whose memory an address is in."""
        attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        status, ordinal = self.call(driver.cuPointerGetAttribute, attribute, address)
        if status != SUCCESS:
            raise ValueError("the array is not in the memory of a GPU")
        return int(ordinal)

    def free_memory(self) -> int:
        """Bytes of device memory that nobody has taken."""
        status, free, _total = self.call(driver.cuMemGetInfo)
        _check((status,))
        return int(free)

    def total_memory(self) -> int:
        """Bytes of device memory, whether somebody has taken them or not."""
        status, _free, total = self.call(driver.cuMemGetInfo)
        _check((status,))
        return int(total)

    def synchronize(self) -> None:
        """Wait for all work on this device, including that of other streams."""
        _check(self.call(driver.cuCtxSynchronize))

    def close(self) -> None:
        """Wait for all work and destroy the streams; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self.synchronize()
            self._upload_stream.close()
            self.queue.close()

    def make_current(self) -> None:
        """Make this GPU the current one of the calling thread, which CUDA's functions work on.

        This is done before each call, since ONNX Runtime, PyTorch or a second `Gpu` may have
        switched the thread to another GPU.
        """
        _allow_work_during_capture()
        try:
            # It takes half as long as cuCtxSetCurrent of cuda-bindings.
            self._device.set_current()
        except Exception as error:
            raise _failure(str(error)) from error

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401
        """Call a function of cuda-core or cuda-bindings on this GPU, and return its result.

        Raises:
            MemoryError: The GPU does not have enough memory left.
            InferenceError: CUDA failed otherwise.
        """
        self.make_current()
        try:
            return function(*arguments)
        except Exception as error:
            # cuda-core does not export the class of its errors.
            if type(error).__name__ == "CUDAError":
                raise _failure(str(error)) from error
            raise


def _allow_work_during_capture() -> None:
    """Let the calling thread allocate memory while another one captures a CUDA graph.

    Otherwise, while ONNX Runtime captures a graph on one thread, that is an error on all others.
    The mode is set at the first call of each thread, and stays.
    """
    if hasattr(this_thread, "is_relaxed"):
        return
    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    _check(driver.cuThreadExchangeStreamCaptureMode(relaxed))
    this_thread.is_relaxed = True


def _check(result: tuple[Any, ...]) -> None:
    """Raise an error if a function of cuda-bindings failed, whose result begins with a status."""
    if result[0] != SUCCESS:
        raise _failure(result[0].name)


def _failure(reason: str) -> Exception:
    """Make the error for a call of CUDA that failed: a MemoryError, or an InferenceError.

    Args:
        reason: CUDA's name of the failure, or its message, whose first line holds the name.
    """
    first_line = reason.strip().partition("\n")[0]
    if "OUT_OF_MEMORY" in first_line:
        return MemoryError(first_line)
    return InferenceError(
        f"CUDA failed: {first_line}",
        "run it again with --device cpu to see whether the GPU is to blame",
    )


@functools.cache
def entry_points() -> dict[str, Path]:
    """Find all kernels in the CUDA sources of this package: the path of each by its name."""
    paths = {}
    for path in sorted(KERNELS.glob("*.cu")):
        for name in ENTRY_POINT.findall(path.read_text(encoding="utf-8")):
            paths[name] = path
    return paths


def compile_file(path: Path, architecture: str) -> ObjectCode:
    """Compile the kernels of a CUDA source, or read their machine code from the cache.

    Args:
        path: The `.cu` file.
        architecture: The GPU's architecture, such as "sm_90".

    Raises:
        DeviceError: The file does not compile for this architecture.
        DependencyError: The compiler, NVRTC, cannot be loaded.
    """
    source = path.read_text(encoding="utf-8")
    options = ProgramOptions(
        name=str(path),  # It is part of the compiler's messages.
        arch=architecture,
        std="c++17",
        # NumPy rounds a * b + c twice. A fused multiply-add would round it once, and differ.
        fma=False,
        include_path=str(path.parent),
    )

    # Any file may include any header, so a changed header changes the key of all of them.
    headers = [(header.name, header.read_bytes()) for header in sorted(path.parent.glob("*.cuh"))]
    key = make_program_cache_key(
        code=source,
        code_type="c++",
        options=options,
        target_type="cubin",
        extra_digest=hashlib.sha256(repr(headers).encode()).digest(),
    )

    # The driver may crash on a damaged cubin, which `cached` compiles again instead.
    cubin = cached(f"kernels/{key.hex()}.cubin", lambda: _compile(source, options))
    return ObjectCode.from_cubin(cubin, name=path.stem)


def _compile(source: str, options: ProgramOptions) -> bytes:
    """Compile the text of a `.cu` file to machine code for the architecture in the options."""
    log.info("compiling %s for %s", options.name, options.arch)
    warnings = io.StringIO()
    try:
        compiled = Program(source, "c++", options).compile("cubin", logs=warnings)
    except Exception as error:
        # cuda-core does not export the classes of its errors, so they are told apart by name.
        match type(error).__name__:
            case "NVRTCError":
                raise _compile_error(str(error), options) from error
            case "DynamicLibNotFoundError":
                raise DependencyError(
                    "NVRTC, the compiler of CUDA kernels, cannot be loaded",
                    f"{cuda_command()}; or use --device cpu",
                ) from error
        raise

    report = DEPRECATED.sub("", warnings.getvalue()).strip(BLANK)
    if report:
        log.warning("%s", report)
    if not compiled.code:  # as "compute_90" gives, without an error
        raise DeviceError(f"{options.name}: no machine code for {options.arch}", "use --device cpu")
    return bytes(compiled.code)


def _compile_error(report: str, options: ProgramOptions) -> DeviceError:
    """Make the error for a file that NVRTC, CUDA's compiler, does not compile.

    Args:
        report: What the compiler says, in several lines.
        options: What it was compiled with.

    Returns:
        An error with the first reason in the report; where the report names a place in the source,
        with that file and line.
    """
    location = str(options.name)
    reason = report
    source_error = SOURCE_ERROR.search(report)
    other_error = OTHER_ERROR.search(report)  # an error of the assembler, or about an option
    if source_error is not None:
        location = f"{source_error['file']}:{source_error['line']}"
        reason = source_error["reason"]
    elif other_error is not None:
        reason = other_error["reason"]
    return DeviceError(
        f"{location}: does not compile for {options.arch}: {reason.strip(BLANK)}",
        f"another NVRTC may help ({cuda_command()} --upgrade); or use --device cpu",
    )
