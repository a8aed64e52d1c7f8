"""The GPU: our own kernels from image to boxes, ONNX Runtime for the network between them.

    letterbox.py   images -> the network's input      kernels/letterbox.cu
    network.py     ONNX Runtime on device memory
    selection.py   the network's head -> rows            kernels/class_max.cu, select.cu, nms.cu
    topk.py        detcli.top_k for arrays on the GPU    kernels/top_k.cu
    memory.py      page-locked memory of images, and what a batch in flight owns
    driver.py      the GPU itself: memory, copies, launches; .cu files -> machine code, cached
    backend.py     all of it as a Backend

Each kernel equals its NumPy specification bit for bit; docs/kernels.md says why it is exact.
"""

import contextlib
import os
from typing import TYPE_CHECKING

from detcli.backend.cuda.backend import CudaBackend
from detcli.backend.cuda.topk import DeviceArray, top_k
from detcli.config.device import Device, DeviceOptions
from detcli.model.file import PreparedModel

if TYPE_CHECKING:
    from detcli.backend.session import TensorSession

__all__ = ["DeviceArray", "open_backend", "open_tensors", "top_k"]


def open_backend(model: PreparedModel, device: Device, options: DeviceOptions) -> CudaBackend:
    """Load a model on a GPU, with its kernels."""
    _require_runtime(device)
    from detcli.backend.cuda.driver import Gpu  # needs cuda-core
    from detcli.backend.cuda.network import open_network

    with contextlib.ExitStack() as stack:
        gpu = Gpu(device.ordinal or 0)
        stack.callback(gpu.close)
        gpu.load_kernels()  # now, instead of in the first image
        network = open_network(model, device, gpu.stream, options)
        stack.pop_all()
    return CudaBackend(
        gpu=gpu,
        network=network,
        contract=model.contract,
        device=str(device),
        memory_limit=options.gpu_mem_limit,
    )


def open_tensors(
    graph: bytes, title: str, device: Device, options: DeviceOptions
) -> "TensorSession":
    """Load any graph on a GPU."""
    _require_runtime(device)
    import onnx

    from detcli.backend.session import TensorSession, tensor_providers
    from detcli.model.graph import is_all_half

    half = is_all_half(onnx.load_model_from_string(graph).graph)
    providers = tensor_providers(device, options, half=half)
    return TensorSession(str(device), providers, graph, title)


def _require_runtime(device: Device) -> None:
    """Make sure that ONNX Runtime can run networks on a GPU, those in float32 in float32."""
    from detcli.backend import libraries

    libraries.require_code(device.ordinal or 0)
    libraries.require_provider(device.provider)
    libraries.require_one_cuda()
    if device.uses_tensorrt:
        # From Ampere on it would round factors to TF32. The provider has no option against that,
        # and NVIDIA's libraries read this when the first session is made.
        os.environ["NVIDIA_TF32_OVERRIDE"] = "0"
