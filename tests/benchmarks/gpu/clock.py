"""How long the GPU takes: CUDA events around work that is queued behind a delay.

Launching a kernel from Python takes longer than many kernels run. A small kernel that only waits
keeps the stream busy until everything is enqueued, so the events measure the GPU alone. The cache
is emptied, or filled, before the first event.

HostClock replaces it in tests without a GPU; its figures are meaningless.
"""

import itertools
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

Step = Callable[[], object]

FLUSHED = 256 << 20
"""Bytes that are read to empty the L2 cache, if it is not larger than a quarter of it."""

COPIED = 1 << 30
"""Bytes of the copy that measures the memory's bandwidth."""

MAX_DELAY = 2.0
"""Seconds; work that takes longer to enqueue cannot be timed."""

DELAYS = Path(__file__).with_name("delay.cu")


class TooSlowToQueueError(Exception):
    """Enqueuing takes the host too long, or the work waits for the GPU in between."""


class GpuClock:
    """Times work on the stream of a `driver.Gpu`.

    Attributes:
        bandwidth: Bytes a second that a large copy within the device's memory moves, read and
            written ones together.
        empty: Seconds between two events with nothing between them.
        empty_kernel: Seconds between two events with a kernel that does nothing between them.
    """

    def __init__(self, gpu):
        from cuda.bindings import driver

        from detcli.backend.cuda.driver import compile_file

        self._gpu, self._driver = gpu, driver
        self._events = []
        code = compile_file(DELAYS, gpu.architecture)
        self._delay_kernel, self._flush_kernel = map(code.get_kernel, ("delay", "flush"))
        attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE
        self.cache = self._ask(driver.cuDeviceGetAttribute(attribute, gpu.ordinal))
        self._flushed = max(FLUSHED, 4 * self.cache)
        self._scratch = gpu.allocate(self._flushed + 256)
        gpu.clear(self._scratch.address, self._flushed + 256)
        self._cycles_a_second = self._calibrate()
        self._delay = 0.0005
        self.empty = self._median(lambda: None)
        self.empty_kernel = self._median(lambda: self._enqueue_cycles(0))
        self.bandwidth = self._measure_bandwidth()

    def queued(self, *steps: Step, before: Step | None = None) -> list[float]:
        """Seconds that the GPU takes for each of some steps that follow each other.

        Args:
            steps: Each enqueues work and does not wait for it.
            before: Enqueues work that is not timed.

        Raises:
            TooSlowToQueueError: The host cannot enqueue them in time.
        """
        marks = self._marks(len(steps) + 1)
        while True:
            delay = self._delay
            start = time.perf_counter()
            self._enqueue_delay(delay)
            if before is not None:
                before()
            self._record(marks[0])
            for mark, step in zip(marks[1:], steps, strict=True):
                step()
                self._record(mark)
            in_time = time.perf_counter() - start < 0.9 * delay
            self._ask(self._driver.cuEventSynchronize(marks[-1]))
            if in_time:
                seconds = []
                for first, last in itertools.pairwise(marks):
                    seconds.append(self._between(first, last))
                return seconds
            if delay >= MAX_DELAY:
                raise TooSlowToQueueError(f"enqueuing takes longer than {delay:.1f} s")
            self._delay = 2 * delay

    def call(self, step: Step) -> float:
        """Seconds between events around a call on an idle GPU: the gaps of launching count."""
        marks = self._marks(2)
        self._gpu.synchronize()
        self._record(marks[0])
        step()
        self._record(marks[1])
        self._ask(self._driver.cuEventSynchronize(marks[1]))
        return self._between(marks[0], marks[1])

    def flush(self) -> None:
        """Enqueue what empties the L2 cache."""
        count = np.uint64(self._flushed // 4)
        address = self._scratch.address
        self._launch(self._flush_kernel, 1056, 256, address, count, address + self._flushed)

    def relax(self) -> None:
        """Reset the delay to that of quickly enqueued work."""
        self._delay = 0.0005

    def _calibrate(self) -> float:
        """Cycles of `delay` in a second, once the clocks have risen."""
        cycles = 2_000_000
        until = time.perf_counter() + 0.5
        seconds = []
        while time.perf_counter() < until or len(seconds) < 20:
            seconds.append(self.call(lambda: self._enqueue_cycles(cycles)))
        return cycles / statistics.median(seconds[-10:])

    def _median(self, step: Step, count: int = 50) -> float:
        """Seconds that the GPU takes for a step: the median of a number of samples."""
        seconds = []
        for _ in range(count):
            seconds += self.queued(step)
        return statistics.median(seconds)

    def _measure_bandwidth(self) -> float:
        source, target = self._gpu.allocate(COPIED), self._gpu.allocate(COPIED)
        self._gpu.clear(source.address, COPIED)
        copy = lambda: self._gpu.copy(target.address, source.address, COPIED)  # noqa: E731
        seconds = self._median(copy, 20)
        source.close()
        target.close()
        return 2 * COPIED / seconds

    def _enqueue_delay(self, seconds: float) -> None:
        self._enqueue_cycles(int(seconds * self._cycles_a_second))

    def _enqueue_cycles(self, cycles: int) -> None:
        self._launch(self._delay_kernel, 1, 1, np.uint64(cycles))

    def _launch(self, kernel, grid, block, *arguments):
        from cuda.core import LaunchConfig, launch

        launch(self._gpu.queue, LaunchConfig(grid=grid, block=block), kernel, *arguments)

    def _marks(self, count):
        while len(self._events) < count:
            self._events.append(self._ask(self._driver.cuEventCreate(0)))
        return self._events[:count]

    def _record(self, mark):
        self._ask(self._driver.cuEventRecord(mark, self._gpu.stream))

    def _between(self, first, last) -> float:
        return self._ask(self._driver.cuEventElapsedTime(first, last)) / 1000

    def _ask(self, result):
        """The value that a call of cuda-bindings returns."""
        if result[0] != self._driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"CUDA failed: {result[0].name}")
        return result[1] if len(result) > 1 else None


class HostClock:
    """Times work of the tests' driver with the host's clock."""

    bandwidth = empty = empty_kernel = None

    def __init__(self, gpu):
        self._gpu = gpu

    def queued(self, *steps: Step, before: Step | None = None) -> list[float]:
        """Seconds for each step."""
        if before is not None:
            before()
        return [self.call(step) for step in steps]

    def call(self, step: Step) -> float:
        """Seconds of a call and of the work that it enqueues."""
        start = time.perf_counter()
        step()
        self._gpu.synchronize()
        return time.perf_counter() - start

    def flush(self) -> None:
        """Do nothing: the host has no such cache."""

    def relax(self) -> None:
        """Do nothing, since nothing was delayed."""
