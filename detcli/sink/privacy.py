"""Privacy: what pictures must not show is hidden before any sink gets them; some are not kept."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from detcli.detections import Detections
from detcli.geometry import Boxes, Image, clipped, shown
from detcli.opencv import cv2
from detcli.record import Record
from detcli.sink import Sink

SAMPLES = 4
"""Colours along the longer side of a box that blurring and pixelating leave."""

MARGIN = 0.1
"""Part of a box's sides that is hidden beyond it, as boxes may be a little too small."""

GREY = 114


class PrivateSinks:
    """Hands records on to sinks, with pictures in which some classes are hidden.

    All sinks get the same picture, so none can show more than another. Boxes stay as they are; what
    a hidden symbol says is left out.
    """

    def __init__(self, sinks: Sequence[Sink], classes: frozenset[int], way: str) -> None:
        """Take sinks, which their owner closes.

        Args:
            sinks: What gets the records.
            classes: Ids of the classes to hide.
            way: One of WAYS.
        """
        self._sinks, self._classes, self._way = sinks, sorted(classes), way

    def write(self, record: Record) -> None:
        """Write one record to all sinks."""
        if record.picture is not None and record.detections is not None:
            hides = np.isin(record.detections.class_id, self._classes)
            found = record.detections[hides]
            if len(found):
                pixels = hidden(record.picture.pixels, found.xyxy, self._way)
                record = replace(
                    record,
                    picture=replace(record.picture, image=pixels, edited=True),
                    detections=_unread(record.detections, hides),
                )
        for sink in self._sinks:
            sink.write(record)

    def close(self) -> None:
        """Do nothing: the sinks belong to somebody else."""


def _unread(found: Detections, hides: npt.NDArray[np.bool_]) -> Detections:
    """Detections without what some of them say."""
    if found.symbols is None:
        return found
    symbols = found.symbols.copy()
    symbols[hides] = None
    return replace(found, symbols=symbols)


class OnlyDetections:
    """Hands records with detections on to a sink, which so keeps no picture without any."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, record: Record) -> None:
        """Write one record, or nothing."""
        if record.detections:
            self._sink.write(record)

    def close(self) -> None:
        """Close the sink."""
        self._sink.close()


def hidden(image: Image, boxes: Boxes, way: str) -> Image:
    """Return a copy of a picture in which nothing can be made out in some boxes and around them.

    Args:
        image: `(H, W, 3)` uint8 BGR.
        boxes: `(N, 4)` in pixels of the picture, beyond which they may reach.
        way: One of WAYS.
    """
    canvas, size = image.copy(), image.shape[:2]
    boxes = boxes[shown(boxes, size)]
    sides = np.tile(boxes[:, 2:] - boxes[:, :2], 2)  # (N, 4)
    wider = clipped(boxes + sides * np.array([-MARGIN, -MARGIN, MARGIN, MARGIN], np.float32), size)
    whole = np.hstack([np.floor(wider[:, :2]), np.ceil(wider[:, 2:])]).astype(int)
    for left, top, right, bottom in whole.tolist():
        area = canvas[top:bottom, left:right]
        if area.size:
            area[:] = WAYS[way](area)
    return canvas


def _few(area: Image) -> Image:
    """The mean colours of a few equal parts of an area; all that is left of it."""
    height, width = area.shape[:2]
    scale = min(1, SAMPLES / max(height, width))
    size = max(1, round(width * scale)), max(1, round(height * scale))
    return cv2.resize(area, size, interpolation=cv2.INTER_AREA)  # type: ignore[return-value]


def _blurred(area: Image) -> Image:
    return cv2.resize(_few(area), area.shape[1::-1], interpolation=cv2.INTER_LINEAR)  # type: ignore[return-value]


def _pixelated(area: Image) -> Image:
    return cv2.resize(_few(area), area.shape[1::-1], interpolation=cv2.INTER_NEAREST)  # type: ignore[return-value]


def _filled(area: Image) -> Image:
    return np.full_like(area, GREY)


WAYS: dict[str, Callable[[Image], Image]] = {
    "blur": _blurred,
    "pixelate": _pixelated,
    "fill": _filled,
}
"""How an area of a picture, `(H, W, 3)` uint8 BGR, is hidden."""
