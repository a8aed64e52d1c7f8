"""Errors for a network that fails, and the time limits on it, on any runtime."""

from collections.abc import Callable
from typing import TypeVar

from detcli.errors import DeviceMemoryError, InferenceError, ModelError
from detcli.timing import LateError, within

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

LOAD_TIMEOUT_S, RUN_TIMEOUT_S = 120, 600
"""How long a network may take on the CPU to load, and to run a batch; detectors take seconds.

The pipeline limits its batches itself."""

MORE_MEMORY = "try a smaller --imgsz or --batch, end other programs, or check what the model is"

T = TypeVar("T")


def run_with_timeout(limit_s: int, title: str, task: Callable[[], T]) -> T:
    """Run a task on a network that may never finish, such as folding its constants.

    Args:
        limit_s: Seconds that it may take; those in which the process is suspended do not count.
        title: The model's name in errors.
        task: The task; its errors are raised as they are.

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
    """The error for a session that has been closed."""
    return InferenceError("the detector has been closed", "use it inside its with block")


def run_error(shape: tuple[int, ...], why: str) -> InferenceError:
    """The error for a run that failed on an input of this shape."""
    if is_out_of_memory(why):
        return DeviceMemoryError(
            f"a batch of shape {list(shape)} does not fit into memory: {why}", MORE_MEMORY
        )
    return InferenceError(
        f"the network failed on a batch of shape {list(shape)}: {why}",
        "a graph with dynamic axes may need another --imgsz, or --batch 1",
    )


def is_out_of_memory(reason: str) -> bool:
    """Whether a library's message means that memory ran out."""
    return any(sign in reason.lower() for sign in OUT_OF_MEMORY)


def out_of_memory(shape: tuple[int, ...], reason: str, *, fixed: bool = False) -> DeviceMemoryError:
    """The error for a batch `(B, 3, H, W)` that does not fit; `fixed` if the graph fixes B."""
    batch = shape[0]
    pictures, first = f"{batch} pictures", f"a batch of {batch // 2}"
    if batch == 1:
        pictures, first = "1 picture", "a smaller --imgsz"
    elif fixed:
        first = "a model that was exported with a smaller batch"
    return DeviceMemoryError(
        f"a batch of {pictures}, shape {list(shape)}, does not fit into the GPU's memory: {reason}",
        f"try {first}, a larger --gpu-mem-limit, or --device cpu",
    )
