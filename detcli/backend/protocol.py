"""What a backend is: three stages between a decoded picture and its detections."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from detcli.detections import Detections
from detcli.geometry import Image, Letterbox
from detcli.timing import Stage

Buffer = Any
"""What flows between the stages of one backend: an array, or device memory. Opaque outside."""

Pending = Callable[[], list[Detections]]
"""Detections that the device may still be working on: calling it waits and hands out a copy."""

Observer = Callable[[Stage], None]
"""Called with PREPROCESS, UPLOAD, NETWORK, SELECTION or DOWNLOAD whenever such a stage ends."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Which detections are wanted.

    Attributes:
        confidence: Scores must be strictly above it.
        max_det: At most so many detections in a picture.
        class_ids: Only these classes; None means all.
        nms_iou: IoU above which non-maximum suppression drops a duplicate; None means no NMS.
        unique: At most one detection for each anchor, of its best class.
    """

    confidence: float
    max_det: int
    class_ids: frozenset[int] | None
    nms_iou: float | None
    unique: bool = False


class Backend(Protocol):
    """One device's way from pictures to detections; every backend gives the same rows.

    Attributes:
        device: What records call it.
        in_flight: How many batches are worth starting before the first is waited for.
        batch: How many pictures at a time suit it.
        workers: How many of its kind suit one another, each on a thread of its own.
    """

    device: str
    in_flight: int
    batch: int
    workers: int

    def prepare(self, images: Sequence[Image], letterboxes: Sequence[Letterbox]) -> Buffer:
        """Letterbox pictures into the network's input, batch first."""

    def infer(self, buffer: Buffer) -> Buffer:
        """Run the network body on a prepared batch.

        Raises:
            InferenceError: The runtime failed.
        """

    def select(self, buffer: Buffer, letterboxes: Sequence[Letterbox], limits: Limits) -> Pending:
        """Select detections from the network's head, in pixels of each picture.

        A device that works by itself may start on the next batch before this one's are read.
        """

    def observe(self, observer: Observer | None) -> None:
        """Tell an observer, from now on, what has just ended; None ends that.

        A device that works by itself is waited for each time, so nothing overlaps any more: this is
        for measurements.
        """

    def close(self) -> None:
        """Release the device's memory; `infer` raises InferenceError afterwards."""
