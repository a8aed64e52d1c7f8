"""The CPU backend: OpenCV, ONNX Runtime, NumPy."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from detcli.backend import postprocess
from detcli.backend.options import available_cores
from detcli.backend.preprocess import letterbox_image, to_tensor
from detcli.backend.protocol import Limits, Observer, Pending
from detcli.backend.runtime.session import CPU, open_session, run
from detcli.detections import Detections
from detcli.geometry import Image, Letterbox
from detcli.model.contract import BoxFormat
from detcli.model.prepared import PreparedModel
from detcli.timing import Stage

Floats = npt.NDArray[np.float16] | npt.NDArray[np.float32]


class CpuBackend:
    """Runs a model on the CPU; its buffers are NumPy arrays.

    The network takes its time from one call to the next, and a larger batch makes it no faster:
    one picture at a time. Several sessions of one core each do more than one session on all.
    """

    device = "cpu"
    in_flight = 1

    def __init__(self, model: PreparedModel, workers: int = 1) -> None:
        """Load a model.

        Args:
            model: What to load.
            workers: How many such backends share the cores.
        """
        self._contract = model.contract
        self.batch = model.contract.batch or 1
        self.workers = workers
        self._observer: Observer | None = None
        threads = max(1, available_cores() // workers) if workers > 1 else 0
        self._session = open_session(model.graph, CPU, model.name, threads)

    def prepare(self, images: Sequence[Image], letterboxes: Sequence[Letterbox]) -> Floats:
        """Letterbox pictures into a tensor `(B, 3, H, W)`, see `backend.preprocess`."""
        canvas = letterboxes[0].canvas
        tensor = np.empty((len(images), 3, *canvas), self._contract.input_dtype)
        for image, letterbox, out in zip(images, letterboxes, tensor, strict=True):
            to_tensor(letterbox_image(image, letterbox), out)
        self._ended(Stage.PREPROCESS)
        return tensor

    def infer(self, buffer: Floats) -> Floats:
        """Run the network body: `(B, 3, H, W)` -> head `(B, 4 + C, N)` or `(B, N, 4 + C)`."""
        heads = self._heads(buffer)
        self._ended(Stage.NETWORK)
        return heads

    def _heads(self, buffer: Floats) -> Floats:
        size, name = self._contract.batch, self._contract.input_name
        if size is None or size == len(buffer):
            return run(self._session, name, buffer)
        # A graph with a fixed batch: in slices, the last one filled up.
        heads = []
        for start in range(0, len(buffer), size):
            part = buffer[start : start + size]
            filler = np.zeros((size - len(part), *part.shape[1:]), part.dtype)
            heads.append(run(self._session, name, np.concatenate([part, filler]))[: len(part)])
        return np.concatenate(heads)

    def select(self, buffer: Floats, letterboxes: Sequence[Letterbox], limits: Limits) -> Pending:
        """Select detections of each picture, see `backend.postprocess`."""
        heads = buffer.swapaxes(1, 2) if self._contract.anchors_first else buffer
        found = [
            self._select_one(head, letterbox, limits)
            for head, letterbox in zip(heads, letterboxes, strict=True)
        ]
        self._ended(Stage.SELECTION)
        return lambda: found

    def _select_one(self, head: Floats, letterbox: Letterbox, limits: Limits) -> Detections:
        cxcywh = self._contract.box_format is BoxFormat.CXCYWH
        chosen = postprocess.select(head, limits, cxcywh=cxcywh)
        return postprocess.to_detections(chosen, letterbox, self._contract.names)

    def observe(self, observer: Observer | None) -> None:
        """Tell an observer when preprocessing, network and selection end."""
        self._observer = observer

    def _ended(self, stage: Stage) -> None:
        if self._observer is not None:
            self._observer(stage)

    def close(self) -> None:
        """Drop the session and its memory."""
        self._session = None
