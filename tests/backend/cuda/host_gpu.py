"""HostGpu: a double of `driver.Gpu` that needs no GPU.

Addresses are those of NumPy arrays, kernels run through the shim, and there is one stream, as on
the real one. What a GPU does at a moment of its choice, this does at the worst one: with `late`,
nothing runs before somebody waits for it. A result that is read without waiting, or a buffer that
is filled again too early, then gives a wrong answer every time instead of once in a while.

Memory that holds nothing yet, or has been freed, is filled with 0xCD.
"""

import ctypes
import threading
from collections import deque
from collections.abc import Callable
from functools import partial

import numpy as np
from backend.cuda.shim import Shim

RUBBISH = 0xCD
ALIGNMENT = 256  # bytes, as CUDA aligns; also the least width of the guards around memory


class HostMemory:
    """Some bytes between two guards; stands for device memory.

    Attributes:
        address: Where it starts, a multiple of 256.
        size: In bytes.
    """

    def __init__(self, gpu: "HostGpu", size: int) -> None:
        self._gpu = gpu
        self._whole = np.full(size + 3 * ALIGNMENT, RUBBISH, np.uint8)
        whole = self._whole.ctypes.data
        self._start = ALIGNMENT + -whole % ALIGNMENT
        self.address = whole + self._start
        self.size = size

    def close(self) -> None:
        """Free it, once the work that was enqueued before is done."""
        self._gpu.enqueue(self.release)

    def release(self) -> None:
        """Free it now.

        Raises:
            AssertionError: Something was written outside of it.
        """
        self._whole[self._start : self._start + self.size] = RUBBISH
        outside = np.flatnonzero(self._whole != RUBBISH) - self._start
        assert outside.size == 0, f"bytes {outside} of memory of {self.size} bytes were written"
        self._gpu.held.discard(self)


class HostPinned(HostMemory):
    """Stands for page-locked host memory; it is freed at once.

    Attributes:
        array: uint8, all of it; empty when it is closed.
    """

    def __init__(self, gpu: "HostGpu", size: int) -> None:
        super().__init__(gpu, size)
        self.array = self._whole[self._start : self._start + size]

    def close(self) -> None:
        self.release()
        self.array = self.array[:0]


class HostEvent:
    """A point in the stream."""

    def __init__(self, gpu: "HostGpu") -> None:
        self._gpu = gpu
        self.record()

    def record(self) -> None:
        self._here = self._gpu._issued  # noqa: SLF001 - the two are one unit

    def wait(self) -> None:
        self._gpu._run(self._here)  # noqa: SLF001


class HostGpu:
    """A GPU that is simulated on the host.

    Args:
        shim: The kernels.
        late: Run work only when it is waited for, instead of at once.
        reverse: Says for each launch whether blocks and threads run from the last to the first.
        capacity: Bytes of device memory; None for no limit.

    Attributes:
        launched: Names of the kernels that were launched.
        held: Memory that is not closed yet, of the device or page-locked.
    """

    name = "host"
    ordinal = 0
    architecture = "host"
    stream = 0

    def __init__(
        self,
        shim: Shim,
        *,
        late: bool = True,
        reverse: Callable[[], bool] = lambda: False,
        capacity: int | None = None,
    ) -> None:
        self.launched: set[str] = set()
        self.held: set[HostMemory] = set()
        self._shim = shim
        self._late = late
        self._reverse = reverse
        self._capacity = capacity
        self._turn = threading.RLock()  # the real one may be used by several threads
        self._queue: deque[Callable[[], object]] = deque()
        self._issued = 0
        self._done = 0
        self._ever: list[HostMemory] = []  # closed ones too: the stream may still point there

    def make_current(self) -> None:
        """There is no other."""

    def ordinal_of(self, address: int) -> int:  # noqa: ARG002 - as `Gpu` has it
        return self.ordinal

    def allocate(self, size: int) -> HostMemory:
        assert size > 0, "the driver refuses to allocate nothing"
        used = sum(memory.size for memory in self.held if not isinstance(memory, HostPinned))
        if self._capacity is not None and used + size > self._capacity:
            raise MemoryError(f"{size} bytes, {used} of {self._capacity} in use")
        return self._keep(HostMemory(self, size))

    def pin(self, size: int) -> HostPinned:
        return self._keep(HostPinned(self, size))

    def copy(self, target: int, source: int, size: int) -> None:
        self.enqueue(lambda: ctypes.memmove(target, source, size))

    def clear(self, target: int, size: int) -> None:
        self.enqueue(lambda: ctypes.memset(target, 0, size))

    def launch(
        self, kernel: str, grid: tuple[int, int, int], block: int, *arguments: object
    ) -> None:
        assert all(grid), "the driver refuses a grid without blocks"
        self.launched.add(kernel)
        self.enqueue(
            lambda: self._shim.launch(kernel, grid, block, *arguments, reverse=self._reverse())
        )

    def prepare(self, *launch: object) -> Callable[[], None]:
        return partial(self.launch, *launch)

    def enqueue(self, operation: Callable[[], object]) -> None:
        """Put anything on the stream, for doubles of other things that run there."""
        with self._turn:
            self._queue.append(operation)
            self._issued += 1
        if not self._late:
            self.synchronize()

    def record(self) -> HostEvent:
        return HostEvent(self)

    def synchronize(self) -> None:
        self._run(self._issued)

    def close(self) -> None:
        self.synchronize()
        for memory in list(self.held):
            memory.release()
        self._ever.clear()

    def _keep(self, memory):
        self.held.add(memory)
        self._ever.append(memory)
        return memory

    def _run(self, until: int) -> None:
        """Run the stream up to a point."""
        with self._turn:
            while self._done < until:
                self._done += 1
                self._queue.popleft()()
