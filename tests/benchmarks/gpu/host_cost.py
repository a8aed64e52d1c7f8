"""What a batch costs the host, without a GPU: the driver of the tests, doing no work.

    PYTHONPATH=.:tests python -m benchmarks.gpu.host_cost

A batch that is ready: enqueue the selection of [1, 84, 8400], copy the rows, mark the end, wait for
it, read. Beside it, in turns, the same by cuda-core, with arguments handed over each time and an
event for each batch.
"""

import tempfile
import time
from pathlib import Path

import numpy as np
from backend.cuda.libcuda import FakeDriver
from backend.cuda.shim import Shim, kernel_sources
from cuda.bindings import driver as cuda
from cuda.core import LaunchConfig, launch

from detcli.backend.cuda.driver import Gpu
from detcli.backend.cuda.selection import HeadShape, SelectionKernels
from detcli.backend.postprocess import SelectionOptions

CALLS, ROUNDS = 1000, 31
HEAD = HeadShape(1, 84, 8400, anchors_first=False, cxcywh=False, dtype="float32")
OPTIONS = SelectionOptions(0.25, 300, None, None)


class Recorder:
    """A graph that only notes its launches."""

    def __init__(self) -> None:
        self.launches = []

    def launch(self, *arguments):
        """Note the arguments."""
        self.launches.append(arguments)


def through_cuda_core(gpu, selection, head, download):
    """One batch by cuda-core's launch, with new events and a result that is split."""
    recorder = Recorder()
    result, size = selection._address("result"), selection.result_size  # noqa: SLF001
    selection._launch(recorder, head, result)  # noqa: SLF001
    device, stream = gpu._device, gpu.queue  # noqa: SLF001
    calls = []
    for launched in recorder.launches:
        name, grid, block = launched[:3]
        calls.append((LaunchConfig(grid=grid, block=block), gpu.kernel(name), launched[3:]))

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


def ours(gpu, selection, head, download):
    """One batch as the backend does it."""
    event = gpu.record()

    def batch():
        selection.enqueue(head, download.address)
        event.record()
        event.wait()
        return selection.read(download.array)

    return batch


def microseconds(batch) -> float:
    """Processor time of a call."""
    start = time.process_time()
    for _ in range(CALLS):
        batch()
    return (time.process_time() - start) / CALLS * 1e6


def main() -> None:
    """Measure both, in turns."""
    with tempfile.TemporaryDirectory() as folder:
        fake = FakeDriver(Shim(kernel_sources(), Path(folder)), Path(folder))
        fake.start()
        gpu = Gpu(0)
        selection = SelectionKernels(gpu, HEAD, OPTIONS)
        head, download = gpu.allocate(84 * 8400 * 4), gpu.pin(selection.result_size)
        download.array[:] = 0
        fake.drop_work()
        their_batch = through_cuda_core(gpu, selection, head.address, download)
        our_batch = ours(gpu, selection, head.address, download)
        rounds = []
        for _ in range(ROUNDS):
            rounds.append((microseconds(their_batch), microseconds(our_batch)))
        theirs_us, ours_us = np.transpose(rounds[1:])  # the first warms up
        for name, times_us in (("cuda-core's calls", theirs_us), ("ours", ours_us)):
            best, median = times_us.min(), np.median(times_us)
            print(f"{name:18} {best:5.1f} us at best, {median:5.1f} us median")
        share = np.median(ours_us / theirs_us)
        print(f"ours takes {share:.2f} of the time, median of {ROUNDS - 1} rounds")
        gpu.close()


if __name__ == "__main__":
    main()
