"""The sides of a comparison: images in, detections out."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from detcli.backend import open_tensors
from detcli.backend.image_boxes import to_detections
from detcli.backend.postprocess import as_selection, confident_rows
from detcli.backend.preprocess import fit_letterbox, to_batch
from detcli.backend.protocol import RUN_TIMEOUT_S, run_with_timeout
from detcli.config.config import Settings, effective_conf
from detcli.config.values import BoxFormat
from detcli.core.errors import ModelError
from detcli.data.detections import Detections
from detcli.data.geometry import Image
from detcli.model.file import ModelFile
from detcli.model.graph import GraphIndex, known_size
from detcli.run.batches import BatchDetector

COLUMNS = 6  # x1, y1, x2, y2, score, class id


class DetectorSide:
    """A model with detcli's selection on any device, as `detcli predict` runs it."""

    def __init__(self, detector: BatchDetector) -> None:
        # Images at a time: all that may be in flight, so that they can disturb one another.
        self.chunk = detector.batch_size * detector.in_flight
        self._detector = detector

    def detect(self, images: Sequence[Image]) -> list[Detections]:
        """Detect objects in images, in batches that are all in flight at once.

        Returns:
            The detections of each image, in order.

        Raises:
            ModelError: The model does not answer in time.
        """
        batch_size = self._detector.batch_size
        batches = []
        for start in range(0, len(images), batch_size):
            batches.append(images[start : start + batch_size])
        detect = partial(self._detect_in_batches, batches)
        return run_with_timeout(RUN_TIMEOUT_S, self._detector.model_name, detect)

    def _detect_in_batches(self, batches: Sequence[Sequence[Image]]) -> list[Detections]:
        """Detect objects in all batches, and return the detections of each image."""
        # Submitting a batch returns a function that waits for its result.
        wait_functions = [self._detector.submit(batch) for batch in batches]
        detections: list[Detections] = []
        for wait_for_batch in wait_functions:
            detections += wait_for_batch()
        return detections


class GraphSide:
    """A whole graph with its own selection, on the CPU."""

    chunk = 1

    def __init__(self, file: ModelFile, settings: Settings) -> None:
        """Load the graph of a model that selects its detections itself.

        Args:
            file: The model's file.
            settings: The confidence and the input size; other settings are not used.

        Raises:
            ModelError: The graph has no selection of its own.
        """
        selection = file.selection  # how detcli reads the detections that the graph selects
        if selection is None:
            raise ModelError(
                f"{file.path.name} does not end in rows of boxes, scores and class ids of its own "
                "selection",
                "export it again",
            )
        contract = selection.contract
        self._contract = contract
        self._input_shape = contract.input_shape(settings.imgsz)
        self._conf = effective_conf(settings, contract.conf)
        graph = selection.body(file.model)
        self._session = open_tensors("cpu", graph.SerializeToString(), file.path.name)

    def detect(self, images: Sequence[Image]) -> list[Detections]:
        """Run the graph on each image."""
        return [self._detect_in(image) for image in images]

    def _detect_in(self, image: Image) -> Detections:
        """Run the graph on an image, and return the detections above the confidence.

        The graph selects the boxes itself. Its output has a row for each detection: two corners,
        or centre and size, and then score and class id.
        """
        contract = self._contract
        letterbox = fit_letterbox(image.size, self._input_shape, contract.preprocessing)
        # A graph with a fixed batch size gets the image that many times.
        model_input = to_batch(
            image,
            letterbox,
            contract.preprocessing,
            dtype=contract.input_dtype,
            count=contract.batch or 1,
        )
        outputs = self._session.run_watched(contract.input_name, model_input)
        rows = outputs[contract.head][0]  # (K, 6), of the first image in the batch
        confident = confident_rows(rows, self._conf, contract.class_count)
        if contract.box_format is BoxFormat.CXCYWH:
            confident = _with_corners(confident)
        return to_detections(as_selection(confident), letterbox, contract)


def _with_corners(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Convert rows `(K, 6)` that begin with centre, width and height to rows with two corners."""
    centre = rows[:, :2]
    half_size = rows[:, 2:4] / np.float32(2)
    return np.concatenate([centre - half_size, centre + half_size, rows[:, 4:]], axis=1)


def max_detections_of_graph(file: ModelFile) -> int | None:
    """Return the maximum number of detections per image of a graph that selects boxes.

    The graph's tensor of boxes is `(B, K, 4)`, where K is that number and B the batch size. If the
    graph computes K only when it runs, the number is that of the model's contract.

    Returns:
        None if the graph does not select boxes, or if neither says how many.
    """
    if file.selection is None:
        return None
    head = file.selection.adaptation.head  # says in which tensors the boxes and scores are
    boxes_name = head.boxes[0].tensor
    boxes_shape = GraphIndex(file.model.graph).shapes.get(boxes_name, [])
    max_boxes = None
    if len(boxes_shape) > 1:
        _, box_dim, *_ = boxes_shape
        max_boxes = known_size(box_dim)  # None if it is not a fixed number
    return max_boxes or file.detector().max_detections
