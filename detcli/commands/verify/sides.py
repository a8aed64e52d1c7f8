"""The two sides of a comparison of detections: pictures in, detections out."""

import warnings
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from detcli.backend.device import DeviceOptions
from detcli.backend.postprocess import SelectedRows, as_selection, to_detections
from detcli.commands.verify.graphs import Probe
from detcli.detections import Detections
from detcli.detector import Detector
from detcli.errors import DetcliWarning, ModelError, UsageError
from detcli.geometry import Letterbox, Picture
from detcli.model.contract import BoxFormat, Contract, Layout
from detcli.model.loading import ModelFile
from detcli.settings import Settings

Floats = npt.NDArray[np.float32]

COLUMNS = 6  # x1, y1, x2, y2, score, class id


class Side(Protocol):
    """One way of running a model.

    Attributes:
        chunk: How many pictures are best given at a time.
    """

    chunk: int

    def detect(self, pictures: Sequence[Picture]) -> list[Detections]:
        """Detections of each picture."""


class OwnSide:
    """A model with detcli's selection, on any device: as `detcli predict` runs it."""

    def __init__(self, detector: Detector) -> None:
        # As many at once as the device takes: what one batch may do to another is to be seen.
        self.chunk = detector.batch * detector.in_flight
        self._detector = detector

    def detect(self, pictures: Sequence[Picture]) -> list[Detections]:
        """Start on all batches, then wait for each."""
        size = self._detector.batch
        started = [
            self._detector.submit(pictures[start : start + size])
            for start in range(0, len(pictures), size)
        ]
        return [found for wait in started for found in wait()]


class TailSide:
    """An end-to-end graph with its own selection, as it is in the file, on the CPU."""

    chunk = 1

    def __init__(self, file: ModelFile, settings: Settings) -> None:
        """Load the whole graph.

        Args:
            file: The model.
            settings: Of these, the confidence and the input size.

        Raises:
            UsageError: The graph has no selection of its own.
            ModelError: The runtime refuses it.
        """
        self._contract = end_to_end(file)
        self._title = file.path.name
        self._canvas = self._contract.canvas(settings.imgsz)
        self._confidence = np.float32(settings.conf)
        self._probe = Probe(file, None, "cpu", self._canvas, DeviceOptions())
        self._output = file.model.graph.output[0].name

    def detect(self, pictures: Sequence[Picture]) -> list[Detections]:
        """Run the whole graph on each picture."""
        return [self._detect_one(picture) for picture in pictures]

    def _detect_one(self, picture: Picture) -> Detections:
        rows = self._probe.fetch(picture, [self._output])[self._output]  # (B, K, 6)
        if rows.ndim != 3 or rows.shape[2] != COLUMNS:
            raise ModelError(
                f"the graph of {self._title} ends in {list(rows.shape)}, not in [B, K, 6]",
                "export it again",
            )
        chosen = rows[0].astype(np.float32)  # (K, 6)
        chosen = self._known_classes(chosen[chosen[:, 4] > self._confidence])
        selection = as_selection(chosen)
        if self._contract.box_format is BoxFormat.CXCYWH:
            selection = _corners(selection)
        letterbox = Letterbox.fit(picture.size, self._canvas)
        return to_detections(selection, letterbox, self._contract.names)

    def _known_classes(self, rows: Floats) -> Floats:
        """Rows whose class exists; a broken tail makes others, which are then missing."""
        known = (rows[:, 5] >= 0) & (rows[:, 5] < len(self._contract.names))
        if not known.all():
            warnings.warn(
                f"{np.count_nonzero(~known)} rows of {self._title} have a class that it has not, "
                f"such as {rows[~known][0, 5]:g}",
                DetcliWarning,
                stacklevel=2,
            )
        return rows[known]


def _corners(selection: SelectedRows) -> SelectedRows:
    """Boxes (M, 4) of centre and size as corners."""
    centre, half = selection.boxes[:, :2], selection.boxes[:, 2:] / np.float32(2)
    return selection._replace(boxes=np.concatenate([centre - half, centre + half], axis=1))


def end_to_end(file: ModelFile) -> Contract:
    """The contract of an end-to-end graph.

    Raises:
        UsageError: It has no selection of its own.
        ModelError: It is no detector.
    """
    contract = file.detector()
    if contract.layout is not Layout.END_TO_END:
        raise UsageError(
            f"{file.path.name} has no selection of its own to compare with: its layout is "
            f"{contract.layout}",
            "name another MODEL, or another device with --against",
        )
    return contract


def rows_of(file: ModelFile) -> int | None:
    """K of an end-to-end graph `[B, K, 6]`; None where the graph does not say it."""
    dims = file.model.graph.output[0].type.tensor_type.shape.dim
    return dims[1].dim_value or None if len(dims) == 3 else None
