"""What every device offers: a backend, the engine that opens it, and how a network fails on it."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from detcli.backend.postprocess import SelectionOptions
from detcli.backend.preprocess import Tensor, to_tensors
from detcli.config.device import Device, DeviceOptions
from detcli.core.errors import DeviceMemoryError, InferenceError, ModelError
from detcli.core.timing import LateError, Stage, within
from detcli.data.detections import Detections
from detcli.data.geometry import Letterbox, Pixels, Size, new_image
from detcli.model.contract import Contract
from detcli.model.file import PreparedModel

Buffer = Any
"""Passed between the stages of one backend: an array or device memory, opaque to others."""

Pending = Callable[[], list[Detections]]
"""Detections that the device may still be computing: a call waits and returns a copy."""

BATCHES = (32, 16, 8)
"""Images in one batch that suit a GPU, for a graph that takes any number."""

Observer = Callable[[Stage], None]
"""Called with PREPROCESS, UPLOAD, NETWORK, SELECTION or DOWNLOAD whenever such a stage ends."""


class Backend(Protocol):
    """From images to detections in three stages on one device, with the same rows on each."""

    device: str  # its name
    precision: str  # what the network computes in, where the device chooses that; else empty
    in_flight: int  # how many batches to start before waiting for the first
    workers: int  # how many backends to run side by side, one per thread

    def best_batch(self, canvas: Size) -> int:
        """Best number of images in a batch, for an input of this height and width."""

    def allocate(self, size: Size) -> Pixels:
        """An array for an image of (height, width) to be decoded into, where it suits `prepare`.

        Called on any thread; the array may outlive the backend.
        """

    def prepare(self, images: Sequence[Pixels], letterboxes: Sequence[Letterbox]) -> Buffer:
        """Letterbox images into the network's input `(B, 3, H, W)`.

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
        """Select detections from the network's head, in pixels of each image.

        An asynchronous device may start on the next batch before these are read.
        """

    def observe(self, observer: Observer | None) -> None:
        """Tell an observer, from now on, which stage has ended; None stops that.

        This is for measurements: an asynchronous device is waited for each time, so nothing
        overlaps any more.
        """

    def close(self) -> None:
        """Release the device's memory; `infer` raises InferenceError from then on."""


class HostBackend:
    """What backends share that prepare images in ordinary memory, one for each batch.

    Larger batches are not faster there.
    """

    def __init__(self, contract: Contract) -> None:
        self._contract = contract
        self._observer: Observer | None = None

    def best_batch(self, canvas: Size) -> int:  # noqa: ARG002 - of any size
        return self._contract.batch or 1

    def allocate(self, size: Size) -> Pixels:
        return new_image(size)

    def prepare(self, images: Sequence[Pixels], letterboxes: Sequence[Letterbox]) -> Tensor:
        tensors = to_tensors(
            images, letterboxes, self._contract.preprocessing, self._contract.input_dtype
        )
        self._ended(Stage.PREPROCESS)
        return tensors

    def observe(self, observer: Observer | None) -> None:
        self._observer = observer

    def _ended(self, stage: Stage) -> None:
        if self._observer is not None:
            self._observer(stage)


class Tensors(Protocol):
    """Any graph on one device, with arrays as its inputs and outputs."""

    device: str  # its name

    def run_watched(self, name: str, tensor: Tensor) -> dict[str, Tensor]:
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


OUT_OF_MEMORY = (
    "out of memory",  # the CUDA runtime, and TensorRT in one of its spellings
    "outofmemory",
    "out_of_memory",  # the driver's name for the error
    "alloc_failed",  # cuBLAS and cuDNN
    "failed to allocate memory",  # ONNX Runtime, when the driver has none left
    "is smaller than requested bytes",  # its arena, at the limit it was given
    "bad_alloc",  # C++, on the CPU; on Windows in other words
    "bad allocation",
    "unable to allocate",  # NumPy
)

LOAD_TIMEOUT_S = 120
"""How long a network may take on the CPU to load; detectors take seconds."""

RUN_TIMEOUT_S = 600
"""How long it may take there to run a batch. The pipeline limits its batches itself."""

MORE_MEMORY = "try a smaller --imgsz or --batch, end other programs, or check what the model is"

T = TypeVar("T")


def run_with_timeout(limit_s: int, title: str, task: Callable[[], T]) -> T:
    """Run a task on a network that may never finish, such as folding its constants.

    `title` is the model's name in errors. Seconds in which the process is suspended do not count.

    Raises:
        ModelError: The task did not finish within the limit.
    """
    try:
        return within(limit_s, task)
    except LateError:
        raise timeout_error(title, limit_s) from None


def timeout_error(title: str, limit_s: int) -> ModelError:
    """The error for a network that did not finish within its limit."""
    return ModelError(
        f"{title} did not finish within {limit_s} seconds, far longer than any detector needs",
        "check where the file comes from, or try it on a faster machine",
    )


def closed_error() -> InferenceError:
    return InferenceError("the detector has been closed", "use it inside its with block")


def run_error(shape: tuple[int, ...], reason: str) -> InferenceError:
    """The error for a batch `(B, 3, H, W)` on which a network failed."""
    if is_out_of_memory(reason):
        return DeviceMemoryError(
            f"a batch of shape {list(shape)} does not fit into memory: {reason}", MORE_MEMORY
        )
    return InferenceError(
        f"the network failed on a batch of shape {list(shape)}: {reason}",
        "a graph with dynamic axes may need another --imgsz, or --batch 1; where its input follows "
        "each image, multiple=N in --preprocess",
    )


def is_out_of_memory(reason: str) -> bool:
    """Whether a library's message means that memory ran out."""
    return any(sign in reason.lower() for sign in OUT_OF_MEMORY)


def out_of_memory(shape: tuple[int, ...], reason: str, *, fixed: bool = False) -> DeviceMemoryError:
    """The error for a batch `(B, 3, H, W)` that does not fit; `fixed` if the graph fixes B."""
    batch = shape[0]
    images = "1 image" if batch == 1 else f"{batch} images"
    if batch == 1:
        first_remedy = "a smaller --imgsz"
    elif fixed:
        first_remedy = "a model that was exported with a smaller batch"
    else:
        first_remedy = f"a batch of {_smaller_batch(batch)}"
    return DeviceMemoryError(
        f"a batch of {images}, shape {list(shape)}, does not fit into the GPU's memory: {reason}",
        f"try {first_remedy}, a larger --gpu-mem-limit, or --device cpu",
    )


def _smaller_batch(batch: int) -> int:
    """The next smaller of `BATCHES`: a batch of a size between these runs as a larger one."""
    for size in BATCHES:
        if size < batch:
            return size
    return 1
