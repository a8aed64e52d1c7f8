"""Options of ONNX Runtime's GPU providers."""

import hashlib
import logging
from collections.abc import Sequence

from detcli.backend.runtime.libraries import CUDA, TENSORRT
from detcli.backend.runtime.session import Provider
from detcli.core.cache import cache_folder, is_cache_trusted, make_cache_folders
from detcli.core.device import Device, DeviceOptions
from detcli.core.errors import OutputError

log = logging.getLogger(__name__)


def cuda_provider(
    ordinal: int, stream: int | None, options: DeviceOptions, *, graph: bool = False
) -> Provider:
    """The CUDA provider with its options."""
    chosen = {
        "device_id": str(ordinal),
        # The default asks cuDNN for its slower heuristic (before cuDNN 9 it timed every algorithm,
        # so two runs could choose differently). This one plans each new shape quickly, which short
        # runs feel, and always chooses the same.
        "cudnn_conv_algo_search": "HEURISTIC",
        # The default rounds the factors of float32 convolutions to 10 bits of mantissa, but the
        # boxes must equal the CPU's. A float16 model gives the speed.
        "use_tf32": "0",
    }
    if stream is not None:
        chosen["user_compute_stream"] = str(stream)
    if options.gpu_mem_limit is not None:
        chosen["gpu_mem_limit"] = str(options.gpu_mem_limit)
        # The default grows in doubling steps, and so takes more of the limit than it needs.
        chosen["arena_extend_strategy"] = "kSameAsRequested"
    if graph:
        chosen["enable_cuda_graph"] = "1"
    return CUDA, chosen


def tensorrt_provider(
    ordinal: int, stream: int, options: DeviceOptions, graph: bytes, input_dtype: str
) -> Provider:
    """The TensorRT provider with its options.

    Its CUDA graphs stay off: it keeps a single one, and replays it with the addresses of its
    capture even if a run is bound to others.
    """
    half = options.half or input_dtype == "float16"
    chosen = {
        "device_id": str(ordinal),
        "user_compute_stream": str(stream),
        "trt_fp16_enable": str(half),  # it only reads True and False
    }
    if options.gpu_mem_limit is not None:
        chosen["trt_max_workspace_size"] = str(options.gpu_mem_limit)
    try:
        # The provider names an engine after the graph's tensors, not its weights, so two trainings
        # of one architecture would share it: each file content gets a folder.
        folder = cache_folder()
        timings = folder / "tensorrt"
        engines = timings / hashlib.sha256(graph).hexdigest()
        make_cache_folders(folder, timings, engines)
        # An engine is code, which TensorRT runs unchecked.
        trusted = is_cache_trusted(
            folder, timings, engines, *timings.glob("*.timing"), *engines.glob("*")
        )
    except (OutputError, OSError) as error:
        log.info("TensorRT builds its engine at every start: %s", error)
        return TENSORRT, chosen
    if trusted:
        chosen |= {
            "trt_engine_cache_enable": "True",
            "trt_engine_cache_path": str(engines),
            "trt_timing_cache_enable": "True",
            "trt_timing_cache_path": str(timings),
        }
    return TENSORRT, chosen


def tensor_providers(device: Device, options: DeviceOptions) -> Sequence[Provider]:
    """Providers of a `TensorSession` on a GPU; of the options, memory limit and precision count."""
    ordinal = device.ordinal or 0
    cuda = cuda_provider(ordinal, None, options)  # the runtime copies the arrays itself
    if not device.uses_tensorrt:
        return (cuda,)
    # No cache of engines: each call loads another graph, once.
    engine = {"device_id": str(ordinal), "trt_fp16_enable": str(options.half)}
    return (TENSORRT, engine), cuda
