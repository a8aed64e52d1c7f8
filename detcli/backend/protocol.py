"""What every device offers: a backend, a ranker, and the engine that opens them."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from detcli.backend.device import Device, DeviceOptions
from detcli.backend.postprocess import Floats, Indices, SelectedRows, SelectionOptions
from detcli.detections import Detections
from detcli.geometry import Image, Letterbox
from detcli.model.prepared import PreparedModel
from detcli.timing import Stage

if TYPE_CHECKING:
    from detcli.backend.runtime.tensors import TensorSession

Buffer = Any
"""What flows between the stages of one backend: an array, or device memory. Opaque outside."""

Pending = Callable[[], list[Detections]]
"""Detections that the device may still be working on: calling it waits and hands out a copy."""

Observer = Callable[[Stage], None]
"""Called with PREPROCESS, UPLOAD, NETWORK, SELECTION or DOWNLOAD whenever such a stage ends."""


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

    def select(
        self, buffer: Buffer, letterboxes: Sequence[Letterbox], options: SelectionOptions
    ) -> Pending:
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


class Ranker(Protocol):
    """One device's top-k and selection; results come back to the host.

    Attributes:
        device: Where it computes.
    """

    device: str

    def upload(self, values: Floats) -> Any:  # noqa: ANN401 - opaque, as a backend's buffers
        """Take an array to the device."""

    def top_k(self, values: Any, k: int) -> tuple[Floats, Indices]:  # noqa: ANN401
        """Values and indices of `detcli.top_k` for what was uploaded."""

    def select(self, head: Any, options: SelectionOptions) -> SelectedRows:  # noqa: ANN401
        """Detections of an uploaded head `(4 + C, N)` whose boxes are x1, y1, x2, y2."""

    def close(self) -> None:
        """Free what was uploaded."""


class Engine(Protocol):
    """Opens things on one kind of device: the modules `backend.cpu` and `backend.cuda`."""

    def open_backend(self, model: PreparedModel, device: Device, options: DeviceOptions) -> Backend:
        """Load a model, see `backend.open_backend`."""

    def open_ranker(self, device: Device) -> Ranker:
        """Open top-k and selection, see `backend.open_ranker`."""

    def open_tensors(
        self, graph: bytes, title: str, device: Device, options: DeviceOptions
    ) -> "TensorSession":
        """Load any graph, see `backend.open_tensors`."""
