"""What every device offers: a backend, the engine that opens it, and how a network fails on it."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from detcli.backend.postprocess import SelectionOptions
from detcli.backend.preprocess import Tensor, to_tensors
from detcli.config.device import Device, DeviceOptions
from detcli.core.errors import DeviceMemoryError, InferenceError, ModelError
from detcli.core.timing import Stage, TimeLimitError, run_with_time_limit
from detcli.data.detections import Detections
from detcli.data.geometry import Letterbox, Pixels, Size, new_image
from detcli.model.contract import Contract
from detcli.model.prepared import PreparedModel

Buffer = Any
"""Passed between the stages of one backend: an array or device memory, opaque to others."""

Pending = Callable[[], list[Detections]]
"""Detections that the device may still be computing: a call waits and returns a copy."""

BATCHES = (32, 16, 8)
"""Batch sizes that suit a GPU, for a graph that takes any batch size."""

Observer = Callable[[Stage], None]
"""Called with PREPROCESS, UPLOAD, NETWORK, SELECTION or DOWNLOAD whenever that stage ends."""


class Backend(Protocol):
    """From images to detections in three stages on one device, with the same rows on each."""

    device: str  # its name
    precision: str  # what the network computes in, where the device chooses that; else empty
    in_flight: int  # how many batches to start before waiting for the first
    workers: int  # how many backends to run side by side, one per thread

    def best_batch(self, canvas: Size) -> int:
        """Choose the best number of images in a batch, for an input of this height and width."""

    def allocate(self, size: Size) -> Pixels:
        """Create an array that an image is decoded into, in memory from which `prepare` is fast.

        This may be called on any thread, and the array may outlive the backend.

        Args:
            size: Height and width of the image.

        Returns:
            An array `(H, W, 3)` uint8, whose values are not set.
        """

    def prepare(self, images: Sequence[Pixels], letterboxes: Sequence[Letterbox]) -> Buffer:
        """Letterbox images into a batch of the network's input, the first stage.

        Args:
            images: Images `(H, W, 3)` uint8 BGR. The device may still read arrays of `allocate`
                later, so these must not change until the detections are read.
            letterboxes: How each image is scaled, and its place in the network's input.

        Returns:
            The batch `(B, 3, H, W)`, for `infer`.
        """

    def infer(self, buffer: Buffer) -> Buffer:
        """Run the network on a prepared batch, the second stage.

        Args:
            buffer: What `prepare` returned.

        Returns:
            The outputs of the network, for `select`.

        Raises:
            InferenceError: The runtime failed.
        """

    def select(
        self, buffer: Buffer, letterboxes: Sequence[Letterbox], options: SelectionOptions
    ) -> Pending:
        """Select the detections from the network's outputs, the third stage.

        Args:
            buffer: What `infer` returned.
            letterboxes: Those that `prepare` got, to convert boxes to pixels of each image.
            options: Which detections to keep: confidence, classes, overlap, and so on.

        Returns:
            A function that waits for the detections of each image and returns them. On an
            asynchronous device, the next batch may be started before it is called.
        """

    def observe(self, observer: Observer | None) -> None:
        """Call a function from now on whenever a stage ends, to measure it; None stops that.

        An asynchronous device is waited for at the end of each stage, so that stages of several
        batches no longer overlap.
        """

    def close(self) -> None:
        """Release the device's memory; `infer` raises InferenceError from then on."""


class HostBackend:
    """The base of backends that prepare images with NumPy, in ordinary memory.

    They take one image at a time, because larger batches are not faster on a CPU.
    """

    def __init__(self, contract: Contract) -> None:
        self._contract = contract
        self._observer: Observer | None = None

    def best_batch(self, canvas: Size) -> int:  # noqa: ARG002 - the same for each size
        """Return the number of images that the graph fixes, else 1."""
        return self._contract.batch or 1

    def allocate(self, size: Size) -> Pixels:
        """Create an array for an image to be decoded into, see `Backend.allocate`."""
        return new_image(size)

    def prepare(self, images: Sequence[Pixels], letterboxes: Sequence[Letterbox]) -> Tensor:
        """Letterbox images into a batch of the network's input, `(B, 3, H, W)`."""
        tensors = to_tensors(
            images, letterboxes, self._contract.preprocessing, self._contract.input_dtype
        )
        self._end_stage(Stage.PREPROCESS)
        return tensors

    def observe(self, observer: Observer | None) -> None:
        """Call a function from now on whenever a stage ends, see `Backend.observe`."""
        self._observer = observer

    def _end_stage(self, stage: Stage) -> None:
        """Tell the observer, if there is one, that a stage has ended."""
        if self._observer is not None:
            self._observer(stage)


class Tensors(Protocol):
    """A graph that was loaded on a device, and takes and returns NumPy arrays."""

    device: str  # its name

    def run_watched(self, name: str, tensor: Tensor) -> dict[str, Tensor]:
        """Run the graph on a tensor, and return its outputs by name.

        Args:
            name: The graph's input.
            tensor: The value of that input.

        Raises:
            InferenceError: The runtime failed.
            ModelError: The run did not finish within ten minutes.
        """


class Engine(Protocol):
    """Loads models and graphs on one kind of device: the module `cpu`, `cuda` or `openvino`."""

    def open_backend(self, model: PreparedModel, device: Device, options: DeviceOptions) -> Backend:
        """Load a model on the device, see `backend.open_backend`."""

    def open_tensors(
        self, graph: bytes, title: str, device: Device, options: DeviceOptions
    ) -> Tensors:
        """Load a serialised ONNX graph on the device, see `backend.open_tensors`."""


# Words in the messages of libraries that mean that memory ran out, in lower case.
OUT_OF_MEMORY = (
    "out of memory",  # the CUDA runtime, and TensorRT in one of its spellings
    "outofmemory",
    "out_of_memory",  # the driver's name for the error
    "alloc_failed",  # cuBLAS and cuDNN
    "failed to allocate memory",  # ONNX Runtime, when the driver has none left
    "is smaller than requested bytes",  # its arena, at the limit it was given
    "bad_alloc",  # C++, on the CPU; on Windows in different words
    "bad allocation",
    "unable to allocate",  # NumPy
)

LOAD_TIMEOUT_S = 120
"""How long a network may take to load on the CPU; detectors take seconds."""

RUN_TIMEOUT_S = 600
"""How long a network may take to run a batch on the CPU, outside the pipeline.

The pipeline limits its batches itself."""

MORE_MEMORY = "try a smaller --imgsz or --batch, end other programs, or check what the model is"

T = TypeVar("T")


def run_with_timeout(limit_s: int, title: str, task: Callable[[], T]) -> T:
    """Run a task on a network, and give up if it does not finish in time.

    A graph that is damaged or malicious may never finish, even while it is loaded and its
    constants are folded. Time in which the process is suspended is not counted.

    Args:
        limit_s: How many seconds the task may take.
        title: How error messages refer to the model.
        task: A function without parameters.

    Returns:
        What the task returns.

    Raises:
        ModelError: The task did not finish within the limit.
    """
    try:
        return run_with_time_limit(limit_s, task)
    except TimeLimitError:
        raise timeout_error(title, limit_s) from None


def timeout_error(title: str, limit_s: int) -> ModelError:
    """Create the error for a model, called `title`, that takes longer than `limit_s` seconds."""
    return ModelError(
        f"{title} did not finish within {limit_s} seconds, far longer than any detector needs",
        "check where the file comes from, or try it on a faster machine",
    )


def closed_error() -> InferenceError:
    """Create the error for a detector that is used after it was closed."""
    return InferenceError("the detector has been closed", "use it inside its with block")


def run_error(shape: tuple[int, ...], reason: str) -> InferenceError:
    """Create the error for a batch on which the network failed.

    Args:
        shape: The shape of the batch, `(B, 3, H, W)`.
        reason: The message of the library that ran the network. It tells whether memory ran out.
    """
    if is_out_of_memory(reason):
        return DeviceMemoryError(
            f"a batch of shape {list(shape)} does not fit into memory: {reason}", MORE_MEMORY
        )
    # Exporters may leave a size open that the graph's nodes still fix.
    hint = (
        "a graph with dynamic axes may need another --imgsz; where its input follows each image, "
        "multiple=N in --preprocess"
    )
    if shape[0] > 1:
        hint = f"pass --batch 1: its nodes may be written for a batch of one image; or {hint}"
    return InferenceError(f"the network failed on a batch of shape {list(shape)}: {reason}", hint)


def is_out_of_memory(reason: str) -> bool:
    """Return whether memory ran out, by the message of the library that failed."""
    message = reason.lower()
    return any(words in message for words in OUT_OF_MEMORY)


def out_of_memory(shape: tuple[int, ...], reason: str, *, fixed: bool = False) -> DeviceMemoryError:
    """Create the error for a batch that does not fit into the GPU's memory.

    Args:
        shape: The shape of the batch, `(B, 3, H, W)`.
        reason: The message of the library that ran out of memory.
        fixed: Whether the graph takes batches of this size only, so that a smaller one does not
            help.
    """
    image_count = shape[0]
    images = f"{image_count} images"
    if image_count == 1:
        images = "1 image"
        first_remedy = "a smaller --imgsz"
    elif fixed:
        first_remedy = "a model that was exported with a smaller batch"
    else:
        first_remedy = f"a batch of {_smaller_batch(image_count)}"
    return DeviceMemoryError(
        f"a batch of {images}, shape {list(shape)}, does not fit into the GPU's memory: {reason}",
        f"try {first_remedy}, a larger --gpu-mem-limit, or --device cpu",
    )


def _smaller_batch(image_count: int) -> int:
    """Choose the largest batch that takes less memory than one of `image_count` images.

    It is one of `BATCHES`, or 1: a batch of a different size is filled up to the next of these, and
    so takes as much memory as that.
    """
    for batch_size in BATCHES:  # the largest first
        if batch_size < image_count:
            return batch_size
    return 1
