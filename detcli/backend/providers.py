"""The providers of ONNX Runtime that run networks on NVIDIA's GPUs, with their options.

A provider is a name and options, such as `("CUDAExecutionProvider", {"device_id": "0"})`.
`session.py` opens sessions with them.
"""

import hashlib
import logging
import re
from collections.abc import Mapping, Sequence

from detcli.backend.nvidia import ask_driver
from detcli.backend.protocol import BATCHES
from detcli.backend.session import CUDA, TENSORRT, Provider
from detcli.config.device import Device, DeviceOptions
from detcli.core.errors import OutputError
from detcli.model.contract import FOLLOWING, Resize
from detcli.model.prepared import PreparedModel
from detcli.storage.cache import cache_folder, is_cache_trusted, make_cache_folders

# Ways to resize that never make an input larger than the canvas. With the others, the size of the
# input follows from each image.
RESIZES_TO_CANVAS = set(Resize) - FOLLOWING

log = logging.getLogger(__name__)


def cuda_provider(
    ordinal: int,
    stream: int | None,
    options: DeviceOptions,
    *,
    half: bool = False,
    graph: bool = False,
) -> Provider:
    """Name ONNX Runtime's CUDA provider, with options for boxes that equal the CPU's.

    Args:
        ordinal: The CUDA ordinal of the GPU, from 0.
        stream: The address of the CUDA stream that the network is to run on; None lets the
            provider create a stream.
        options: What the user chose for the device; only the memory limit is used here.
        half: Whether the network computes in float16 only.
        graph: Whether a run is captured as a CUDA graph, which later runs replay.
    """
    settings = {
        "device_id": str(ordinal),
        # The default asks cuDNN for its slower heuristic (before cuDNN 9 it timed every algorithm,
        # so two runs could choose differently). This one plans each new shape quickly, which short
        # runs feel, and always chooses the same.
        "cudnn_conv_algo_search": "HEURISTIC",
    }
    if not half:
        # The default rounds the factors of float32 convolutions to 10 bits of mantissa, but the
        # boxes must equal the CPU's. The speed comes from float16 models: with this option, ONNX
        # Runtime would leave out tensor cores for their convolutions, too.
        settings["use_tf32"] = "0"
    if stream is not None:
        settings["user_compute_stream"] = str(stream)
    if options.gpu_mem_limit is not None:
        settings["gpu_mem_limit"] = str(options.gpu_mem_limit)
        # The default grows in doubling steps, and so takes more of the limit than it needs.
        settings["arena_extend_strategy"] = "kSameAsRequested"
    if graph:
        settings["enable_cuda_graph"] = "1"
    return CUDA, settings


def profile_of(model: PreparedModel, images_per_run: int = BATCHES[-1]) -> dict[str, str]:
    """Tell TensorRT the range of input shapes of a graph with dynamic axes (its shape profile).

    Without a profile, TensorRT builds its engine for the first batch, and again, for minutes, for
    each smaller or larger batch. Height and width have a range only if images have inputs of
    different sizes: with a fixed size TensorRT chooses faster kernels.

    Args:
        model: The model.
        images_per_run: How many images the network usually runs on, if it takes any number.

    Returns:
        Options of the TensorRT provider, such as `{"trt_profile_min_shapes": "images:1x3x32x32"}`
        and the same for "opt" (the shape to be fastest at) and "max". Empty if the graph fixes the
        shape, if nothing limits it, or if the input's name cannot be written in an option.
    """
    contract = model.contract
    if contract.batch is not None and contract.input_size is not None:
        return {}  # the graph fixes the shape
    if not contract.input_size and contract.preprocessing.resize not in RESIZES_TO_CANVAS:
        return {}  # an input may be as large as any image
    if ":" in contract.input_name or "," in contract.input_name:
        return {}  # these characters separate names, shapes and inputs in the option

    largest_size = model.canvas or contract.default_size
    smallest_size = largest_size
    has_smaller_inputs = model.narrows or model.canvas is None
    if has_smaller_inputs:
        smallest_size = (contract.stride, contract.stride)
    largest_batch = max(BATCHES)

    def shape_text(batch: int, size: tuple[int, int]) -> str:
        """Format a shape such as "images:1x3x640x640", with the sizes that the graph fixes."""
        height, width = contract.input_size or size
        return f"{contract.input_name}:{contract.batch or batch}x3x{height}x{width}"

    return {
        "trt_profile_min_shapes": shape_text(1, smallest_size),
        "trt_profile_opt_shapes": shape_text(images_per_run, largest_size),
        "trt_profile_max_shapes": shape_text(largest_batch, largest_size),
    }


def tensorrt_provider(
    ordinal: int,
    stream: int,
    options: DeviceOptions,
    model: PreparedModel,
    profile: Mapping[str, str],
) -> Provider:
    """Name ONNX Runtime's TensorRT provider, with options for a model.

    Its CUDA graphs (recorded runs that are replayed) stay off: the provider keeps a single graph,
    and replays it with the memory addresses of the recorded run even if a later run uses others.

    Args:
        ordinal: The CUDA ordinal of the GPU, from 0.
        stream: The address of the CUDA stream that the network is to run on.
        options: What the user chose for the device: float16, and a memory limit.
        model: The model that the provider is to run.
        profile: The model's range of input shapes, from `profile_of`.
    """
    is_half = options.half or model.half or model.contract.input_dtype == "float16"
    settings = {
        "device_id": str(ordinal),
        "user_compute_stream": str(stream),
        "trt_fp16_enable": str(is_half),  # the provider reads "True" and "False", but not "1"
    }
    settings.update(profile)
    if options.gpu_mem_limit is not None:
        settings["trt_max_workspace_size"] = str(options.gpu_mem_limit)
    settings.update(_engine_cache_settings(model, profile, _folder_of_gpu(ordinal)))
    return TENSORRT, settings


def _folder_of_gpu(ordinal: int) -> str:
    """Name the folder of a GPU in TensorRT's cache, such as "NVIDIA-H200".

    TensorRT's provider names its files only after the compute capability, which several GPUs share:
    the engine of one is slow on another, or refused.
    """
    gpus = ask_driver().gpus[ordinal : ordinal + 1]
    if not gpus:
        return "unknown"
    return re.sub(r"[^\w.-]+", "-", gpus[0].name)


def _engine_cache_settings(
    model: PreparedModel, profile: Mapping[str, str], gpu: str
) -> dict[str, str]:
    """Create the folder where TensorRT keeps a model's engine, and return the options that name it.

    An engine is the network compiled for this GPU, which takes minutes. Beside the engines,
    TensorRT keeps the times that it measured while it built them.

    Args:
        model: The model.
        profile: Its range of input shapes, from `profile_of`.
        gpu: The name of the GPU's folder in the cache.

    Returns:
        Options of the TensorRT provider; empty if the cache cannot be written, or if another user
        could have changed it, because TensorRT runs the code in an engine without checking it.
    """
    try:
        folder = cache_folder()
        all_gpus = folder / "tensorrt"
        timings = all_gpus / gpu
        # The provider names an engine after the graph's tensors, not its weights, so two trainings
        # of the same architecture would share it. A folder for each file content prevents that.
        content = model.graph + repr(profile).encode()
        engines = timings / hashlib.sha256(content).hexdigest()
        make_cache_folders(folder, all_gpus, timings, engines)
        cached_files = list(timings.glob("*.timing")) + list(engines.glob("*"))
        is_trusted = is_cache_trusted(folder, all_gpus, timings, engines, *cached_files)
    except (OutputError, OSError) as error:
        log.info("TensorRT builds its engine at every start: %s", error)
        return {}
    if not is_trusted:
        return {}
    return {
        "trt_engine_cache_enable": "True",
        "trt_engine_cache_path": str(engines),
        "trt_timing_cache_enable": "True",
        "trt_timing_cache_path": str(timings),
    }


def tensor_providers(device: Device, options: DeviceOptions, *, half: bool) -> Sequence[Provider]:
    """List the providers for a `TensorSession` on a GPU, which takes and returns NumPy arrays.

    Args:
        device: The GPU, with or without TensorRT.
        options: What the user chose for the device. Of these, CUDA takes the memory limit, and
            TensorRT whether it computes in float16.
        half: Whether the graph computes in float16 itself.

    Returns:
        The CUDA provider; before it, the TensorRT provider if the device uses it.
    """
    ordinal = device.ordinal or 0
    # The provider creates a stream itself, as ONNX Runtime copies the arrays to and from the GPU.
    cuda = cuda_provider(ordinal, stream=None, options=options, half=half)
    if not device.uses_tensorrt:
        return (cuda,)
    # A cache of engines would be useless here: each call loads another graph, once.
    tensorrt_options = {"device_id": str(ordinal), "trt_fp16_enable": str(options.half or half)}
    tensorrt = (TENSORRT, tensorrt_options)
    return tensorrt, cuda
