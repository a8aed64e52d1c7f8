"""What does not fit into a GPU's memory, and what to try instead."""

from detcli.errors import DeviceMemoryError

SIGNS = (
    "out of memory",  # the CUDA runtime, and TensorRT in one of its spellings
    "outofmemory",
    "out_of_memory",  # the driver's name of the error
    "alloc_failed",  # cuBLAS and cuDNN
    "failed to allocate memory",  # ONNX Runtime, when the driver has no more
    "is smaller than requested bytes",  # its arena, at the limit that it was given
)


def is_out_of_memory(reason: str) -> bool:
    """Tell whether a library's message means that memory ran out."""
    lowered = reason.lower()
    return any(sign in lowered for sign in SIGNS)


def out_of_memory(shape: tuple[int, ...], reason: str, *, fixed: bool = False) -> DeviceMemoryError:
    """Build the error for a batch that does not fit.

    Args:
        shape: `(B, 3, H, W)` of the network's input.
        reason: What the library said.
        fixed: The graph takes B pictures and no other number.
    """
    batch = shape[0]
    if batch == 1:
        first = "a smaller --imgsz"
    elif fixed:
        first = "a model that was exported with a smaller batch"
    else:
        first = f"a batch of {batch // 2}"
    pictures = "1 picture" if batch == 1 else f"{batch} pictures"
    return DeviceMemoryError(
        f"a batch of {pictures}, shape {list(shape)}, does not fit into the GPU's memory: {reason}",
        f"try {first}, a larger --gpu-mem-limit, or --device cpu",
    )


def model_out_of_memory(title: str, reason: str) -> DeviceMemoryError:
    """Build the error for a model that does not even load."""
    return DeviceMemoryError(
        f"{title} does not fit into the GPU's memory: {reason}",
        "free some (nvidia-smi shows who holds it), allow more with --gpu-mem-limit, or use "
        "--device cpu",
    )
