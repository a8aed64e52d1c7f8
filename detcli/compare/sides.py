"""The sides of a comparison: pictures in, detections out."""

from collections.abc import Sequence

import numpy as np

from detcli.backend import open_tensors
from detcli.backend.postprocess import as_selection, confident_rows, to_detections
from detcli.backend.preprocess import fit_letterbox, to_batch
from detcli.backend.protocol import RUN_TIMEOUT_S, run_with_timeout
from detcli.config.config import Settings
from detcli.config.values import BoxFormat
from detcli.core.errors import ModelError
from detcli.data.detections import Detections
from detcli.data.geometry import Picture
from detcli.model.file import ModelFile
from detcli.model.graph import GraphIndex, known_size
from detcli.run.batches import BatchDetector

COLUMNS = 6  # x1, y1, x2, y2, score, class id


class DetectorSide:
    """A model with detcli's selection on any device, as `detcli predict` runs it."""

    def __init__(self, detector: BatchDetector) -> None:
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

        return run_with_timeout(RUN_TIMEOUT_S, self._detector.model_name, run)


class GraphSide:
    """A whole graph with its own selection, on the CPU."""

    chunk = 1

    def __init__(self, file: ModelFile, settings: Settings) -> None:
        """Load the graph; of the settings, the confidence and the input size are used."""
        title, selection = file.path.name, file.selection
        if selection is None:
            raise ModelError(
                f"{title} does not end in rows of boxes, scores and class ids of its own selection",
                "export it again",
            )
        self._contract = selection.contract
        self._input_shape = self._contract.input_shape(settings.imgsz)
        self._conf = settings.effective_conf(self._contract.conf)
        self._session = open_tensors("cpu", selection.body(file.model).SerializeToString(), title)

    def detect(self, pictures: Sequence[Picture]) -> list[Detections]:
        """Run the graph on each picture."""
        return [self._detect_one(picture) for picture in pictures]

    def _detect_one(self, picture: Picture) -> Detections:
        contract, ways = self._contract, self._contract.preprocessing
        letterbox = fit_letterbox(picture.size, self._input_shape, ways)
        model_input = to_batch(picture, letterbox, ways, contract.input_dtype, contract.batch or 1)
        outputs = self._session.run_watched(contract.input_name, model_input)
        rows = outputs[contract.head]  # (B, K, 6)
        kept = confident_rows(rows[0], self._conf, contract.class_count)
        if contract.box_format is BoxFormat.CXCYWH:
            centre, half = kept[:, :2], kept[:, 2:4] / np.float32(2)
            kept = np.concatenate([centre - half, centre + half, kept[:, 4:]], axis=1)
        return to_detections(as_selection(kept), letterbox, contract)


def rows_of(file: ModelFile) -> int | None:
    """How many detections a graph selects at most; None where that is computed."""
    if file.selection is None:
        return None
    boxes = file.selection.adaptation.head.boxes[0].tensor
    dims = GraphIndex(file.model.graph).shapes.get(boxes, [])
    return (known_size(dims[1]) if len(dims) > 1 else None) or file.detector().most
