"""What a batch costs the host, without a GPU: the driver of the tests, doing no work.

    PYTHONPATH=.:tests python -m benchmarks.gpu.host_cost

A batch that is ready: enqueue the selection of [1, 84, 8400], copy the rows, mark the end, wait for
it, read. Beside it the same by cuda-core, with arguments handed over each time and an event for
each batch.
"""

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from backend.cuda.libcuda import FakeDriver
from backend.cuda.shim import Shim, kernel_sources
from cuda.bindings import driver as cuda
from cuda.core import LaunchConfig, ObjectCode, launch

from detcli.backend.cuda.driver import Gpu
from detcli.backend.cuda.program import compile_file, entry_points
from detcli.backend.cuda.selection import HeadShape, SelectionKernels
from detcli.backend.postprocess import SelectionOptions

CALLS, ROUNDS = 2000, 9
HEAD = HeadShape(1, 84, 8400, anchors_first=False, cxcywh=False, dtype="float32")
OPTIONS = SelectionOptions(0.25, 300, None, None)


class Recorder:
    """A GPU whose prepared launches only tell their arguments."""

    def __init__(self) -> None:
        self.prepared = []

    def prepare(self, *arguments):
        """Keep the arguments."""
        self.prepared.append(arguments)
        return lambda: None


def through_cuda_core(gpu, selection, head, result, download):
    """One batch by cuda-core's launch, with new events and a result that is split."""
    recorder = selection._gpu = Recorder()  # noqa: SLF001
    selection._prepare(head, result)  # noqa: SLF001
    selection._gpu = gpu  # noqa: SLF001
    device, stream = gpu._device, gpu._stream  # noqa: SLF001
    calls = []
    for name, grid, block, *arguments in recorder.prepared:
        code: ObjectCode = compile_file(entry_points()[name], gpu.architecture)
        calls.append((LaunchConfig(grid=grid, block=block), code.get_kernel(name), arguments))
    size = selection.result_size

    def batch():
        for config, kernel, arguments in calls:
            device.set_current()
            launch(stream, config, kernel, *arguments)
        device.set_current()
        cuda.cuMemcpyAsync(download.address, result, size, gpu.stream)
        device.set_current()
        event = stream.record()
        device.set_current()
        event.sync()
        counts, rows = np.split(download.array[:size], [8])
        values = rows.view(np.float32).reshape(1, -1, 6)
        [(count, _)] = counts.view(np.uint32).reshape(1, 2).tolist()
        return values[0][:count].copy()

    return batch


def ours(gpu, selection, head, result, download):
    """One batch as the backend does it."""
    event = gpu.record()

    def batch():
        selection.enqueue(head, result)
        gpu.copy(download.address, result, selection.result_size)
        event.record()
        event.wait()
        return selection.read(download.array)

    return batch


def microseconds(batch) -> list[float]:
    """Of a call, in each round."""
    batch()
    times = []
    for _ in range(ROUNDS):
        start = time.process_time()
        for _ in range(CALLS):
            batch()
        times.append((time.process_time() - start) / CALLS * 1e6)
    return times


def main() -> None:
    """Measure both in turn."""
    with tempfile.TemporaryDirectory() as folder:
        fake = FakeDriver(Shim(kernel_sources(), Path(folder)), Path(folder))
        fake.start()
        gpu = Gpu(0)
        selection = SelectionKernels(gpu, HEAD, OPTIONS)
        head, result = gpu.allocate(84 * 8400 * 4), gpu.allocate(selection.result_size)
        download = gpu.pin(selection.result_size)
        download.array[:] = 0
        fake.drop_work()
        for name, way in [("cuda-core's calls", through_cuda_core), ("ours", ours)]:
            batch = way(gpu, selection, head.address, result.address, download)
            found = microseconds(batch)
            print(
                f"{name:18} {min(found):6.1f} us at best, {statistics.median(found):6.1f} us median"
            )
        gpu.close()


if __name__ == "__main__":
    main()
