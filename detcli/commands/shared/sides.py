"""The sides of a comparison: pictures in, detections out."""

from collections.abc import Sequence

import numpy as np
from onnx import ModelProto, TensorProto

from detcli.backend import open_tensors
from detcli.backend.postprocess import as_selection, confident_rows, to_detections
from detcli.backend.preprocess import place, to_batch
from detcli.backend.runtime.session import RUN_TIMEOUT_S, within
from detcli.commands.shared.comparison import Precision
from detcli.detections import Detections
from detcli.detector import Detector
from detcli.errors import ModelError
from detcli.geometry import Picture
from detcli.model.contract import BoxFormat
from detcli.model.graph import is_quantised, known_size
from detcli.model.loading import ModelFile
from detcli.settings import Settings

COLUMNS = 6  # x1, y1, x2, y2, score, class id


class DetectorSide:
    """A model with detcli's selection on any device, as `detcli predict` runs it."""

    def __init__(self, detector: Detector) -> None:
        # Pictures at a time: all that may be in flight, so that they can disturb one another.
        self.chunk = detector.batch * detector.in_flight
        self._detector = detector

    def detect(self, pictures: Sequence[Picture]) -> list[Detections]:
        """Start all batches, then wait for the detections of each picture."""
        size = self._detector.batch
        parts = [pictures[start : start + size] for start in range(0, len(pictures), size)]

        def run() -> list[Detections]:
            started = [self._detector.submit(part) for part in parts]
            return [found for wait in started for found in wait()]

        return within(RUN_TIMEOUT_S, self._detector.model_name, run)


class GraphSide:
    """A whole end-to-end graph with its own selection, on the CPU."""

    chunk = 1

    def __init__(self, file: ModelFile, settings: Settings) -> None:
        """Load the graph.

        Args:
            file: The model; its layout is end-to-end.
            settings: The confidence and the input size are used.

        Raises:
            ModelError: The runtime refuses the graph.
            UsageError: The input size does not fit the graph.
        """
        self._title, self._contract = file.path.name, file.detector()
        self._canvas = self._contract.canvas(settings.imgsz)
        self._confidence = settings.conf
        self._session = open_tensors("cpu", file.model.SerializeToString(), self._title)
        self._output = file.model.graph.output[0].name

    def detect(self, pictures: Sequence[Picture]) -> list[Detections]:
        """Run the graph on each picture.

        Raises:
            InferenceError: The runtime failed.
            ModelError: The output is not `[B, K, 6]`.
        """
        return [self._detect_one(picture) for picture in pictures]

    def _detect_one(self, picture: Picture) -> Detections:
        contract = self._contract
        letterbox = place(picture.size, self._canvas, contract.preprocessing)
        fed = to_batch(
            picture,
            letterbox,
            contract.preprocessing,
            contract.input_dtype,
            contract.batch or 1,
        )
        rows = self._session.run_watched(contract.input_name, fed)[self._output]  # (B, K, 6)
        if rows.ndim != 3 or rows.shape[2] != COLUMNS:
            raise ModelError(
                f"the graph of {self._title} ends in {list(rows.shape)}, not in [B, K, 6]",
                "export it again",
            )
        kept = confident_rows(rows[0], self._confidence, contract.class_count)
        if contract.box_format is BoxFormat.CXCYWH:
            centre, half = kept[:, :2], kept[:, 2:4] / np.float32(2)
            kept = np.concatenate([centre - half, centre + half, kept[:, 4:]], axis=1)
        return to_detections(as_selection(kept), letterbox, contract)


def rows_of(file: ModelFile) -> int | None:
    """K of an end-to-end graph `[B, K, 6]`; None where it is dynamic."""
    dims = file.model.graph.output[0].type.tensor_type.shape.dim
    return known_size(dims[1].dim_value) if len(dims) == 3 else None


def precision_of(model: ModelProto) -> Precision:
    """The lowest precision that a graph computes in; shapes must be inferred."""
    if is_quantised(model.graph):
        return Precision.INT8
    types = {tensor.data_type for tensor in model.graph.initializer}
    values = (*model.graph.input, *model.graph.value_info)  # weights may be in Constant nodes
    types |= {value.type.tensor_type.elem_type for value in values}
    return Precision.FLOAT16 if TensorProto.FLOAT16 in types else Precision.FLOAT32
