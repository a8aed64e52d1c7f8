"""What every device offers: a backend, a ranker, and the engine that opens them."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy.typing as npt

from detcli.backend.device import Device, DeviceOptions
from detcli.backend.postprocess import SelectionOptions
from detcli.detections import Detections
from detcli.geometry import Image, Letterbox
from detcli.model.file import PreparedModel
from detcli.timing import Stage

Buffer = Any
"""Passed between the stages of one backend: an array or device memory, opaque to others."""

Pending = Callable[[], list[Detections]]
"""Detections that the device may still be computing: a call waits and returns a copy."""

Observer = Callable[[Stage], None]
"""Called with PREPROCESS, UPLOAD, NETWORK, SELECTION or DOWNLOAD whenever such a stage ends."""


class Backend(Protocol):
    """From pictures to detections in three stages on one device, with the same rows on each.

    Attributes:
        device: The device's name.
        precision: What the network computes in, where that is for the device to choose; else empty.
        in_flight: How many batches to start before waiting for the first.
        workers: How many backends to run side by side, one per thread.
    """

    device: str
    precision: str
    in_flight: int
    workers: int

    def best_batch(self, canvas: tuple[int, int]) -> int:
        """Best number of pictures in a batch, for an input of this height and width."""

    def allocate(self, size: tuple[int, int]) -> Image:
        """An array for a picture of (height, width) to be decoded into, where it suits `prepare`.

        Called on any thread; the array may outlive the backend.
        """

    def prepare(self, images: Sequence[Image], letterboxes: Sequence[Letterbox]) -> Buffer:
        """Letterbox pictures into the network's input `(B, 3, H, W)`.

        Those whose arrays `allocate` made must stay as they are until the detections are read.
        """

    def infer(self, buffer: Buffer) -> Buffer:
        """Run the network body on a prepared batch.

        Raises:
            InferenceError: The runtime failed.
        """

    def select(
        self, buffer: Buffer, letterboxes: Sequence[Letterbox], options: SelectionOptions
    ) -> Pending:
        """Select detections from the network's head, in pixels of each picture.

        An asynchronous device may start on the next batch before these are read.
        """

    def observe(self, observer: Observer | None) -> None:
        """Tell an observer, from now on, which stage has ended; None stops that.

        This is for measurements: an asynchronous device is waited for each time, so nothing
        overlaps any more.
        """

    def close(self) -> None:
        """Release the device's memory; `infer` raises InferenceError from then on."""


class Tensors(Protocol):
    """Any graph on one device, with arrays as its inputs and outputs.

    Attributes:
        device: The device's name.
    """

    device: str

    def run_watched(self, name: str, tensor: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        """Feed the named input and return all outputs by name.

        Raises:
            InferenceError: The runtime failed.
            ModelError: The run did not finish within ten minutes.
        """


class Engine(Protocol):
    """Opens things on one kind of device: the modules `cpu`, `cuda`, `openvino`."""

    def open_backend(self, model: PreparedModel, device: Device, options: DeviceOptions) -> Backend:
        """Load a model, see `backend.open_backend`."""

    def open_tensors(
        self, graph: bytes, title: str, device: Device, options: DeviceOptions
    ) -> Tensors:
        """Load any graph, see `backend.open_tensors`."""
