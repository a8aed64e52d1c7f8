"""Top-k and selection on the GPU by themselves, from device memory to rows on the host."""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from detcli.backend.cuda.selection import HeadShape, Selection
from detcli.backend.cuda.topk import DeviceArray, top_k
from detcli.backend.cuda.transfer import download, upload
from detcli.backend.postprocess import Selection as Selected
from detcli.backend.postprocess import as_selection
from detcli.backend.protocol import Limits

if TYPE_CHECKING:
    from detcli.backend.cuda.driver import Gpu, Memory

Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]


def open_cuda_ranker(ordinal: int) -> "CudaRanker":
    """Open a GPU and compile its kernels.

    Raises:
        DeviceError: The GPU or its libraries cannot be used.
        DependencyError: cuda-core, or the compiler, is missing.
    """
    from detcli.backend.cuda.driver import Gpu  # needs cuda-core

    gpu = Gpu(ordinal)
    try:
        gpu.load_kernels()
    except BaseException:
        gpu.close()
        raise
    return CudaRanker(gpu)


class CudaRanker:
    """Our kernels.

    Attributes:
        device: As in "cuda:0".
    """

    def __init__(self, gpu: "Gpu") -> None:
        self.device = f"cuda:{gpu.ordinal}"
        self._gpu = gpu
        self._held: list[Memory] = []
        self._selections: dict[tuple[HeadShape, Limits], tuple[Selection, Memory]] = {}

    def upload(self, values: Floats) -> DeviceArray:
        """Copy an array to the GPU."""
        memory = upload(self._gpu, values)
        self._held.append(memory)
        return DeviceArray(memory.address, values.shape, values.dtype)

    def top_k(self, values: DeviceArray, k: int) -> tuple[Floats, Indices]:
        """See `backend.cuda.topk`."""
        parts = [part for part in top_k(values, k, gpu=self._gpu) if isinstance(part, DeviceArray)]
        best, indices = (download(self._gpu, one.address, one.shape, one.dtype) for one in parts)
        for part in parts:
            if part.owner is not None:
                part.owner.close()
        return best, indices

    def select(self, head: DeviceArray, limits: Limits) -> Selected:
        """See `backend.cuda.selection`."""
        rows, anchors = head.shape
        shape = HeadShape(1, rows, anchors, False, False, head.dtype.name)  # noqa: FBT003
        if (shape, limits) not in self._selections:
            selection = Selection(self._gpu, shape, limits)
            result = self._gpu.allocate(selection.result_size)
            self._selections[shape, limits] = selection, result
        selection, result = self._selections[shape, limits]
        selection.enqueue(head.address, result.address)
        (found,) = selection.read(
            download(self._gpu, result.address, (selection.result_size,), np.uint8)
        )
        return as_selection(found.values)

    def close(self) -> None:
        """Free everything, and close the GPU."""
        for selection, result in self._selections.values():
            selection.close()
            result.close()
        for memory in self._held:
            memory.close()
        self._gpu.close()
