"""Top-k and selection on the GPU by themselves, from device memory to rows on the host."""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from detcli.backend.cuda.selection import HeadShape, SelectionKernels
from detcli.backend.cuda.topk import DeviceArray, top_k
from detcli.backend.cuda.transfer import download, upload
from detcli.backend.postprocess import SelectedRows, SelectionOptions, as_selection

if TYPE_CHECKING:
    from detcli.backend.cuda.driver import DeviceMemory, Gpu

Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]


class CudaRanker:
    """Our kernels.

    Attributes:
        device: As in "cuda:0".
    """

    def __init__(self, gpu: "Gpu", device: str) -> None:
        self.device = device
        self._gpu = gpu
        self._held: list[DeviceMemory] = []
        self._selections: dict[
            tuple[HeadShape, SelectionOptions], tuple[SelectionKernels, DeviceMemory]
        ] = {}

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

    def select(self, head: DeviceArray, options: SelectionOptions) -> SelectedRows:
        """See `backend.cuda.selection`."""
        rows, anchors = head.shape
        shape = HeadShape(1, rows, anchors, False, False, head.dtype.name)  # noqa: FBT003
        if (shape, options) not in self._selections:
            selection = SelectionKernels(self._gpu, shape, options)
            result = self._gpu.allocate(selection.result_size)
            self._selections[shape, options] = selection, result
        selection, result = self._selections[shape, options]
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
