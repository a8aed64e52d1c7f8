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

from detcli.backend.cuda.backend import CudaBackend, largest_batch, smallest_run
from detcli.backend.cuda.topk import DeviceArray, top_k
from detcli.config.device import Device, DeviceOptions
from detcli.model.contract import Contract, Layout
from detcli.model.prepared import PreparedModel

if TYPE_CHECKING:
    from detcli.backend.cuda.driver import Gpu
    from detcli.backend.session import TensorSession

__all__ = ["DeviceArray", "open_backend", "open_tensors", "top_k"]


def open_backend(model: PreparedModel, device: Device, options: DeviceOptions) -> CudaBackend:
    """Load a model on a GPU, and the kernels that prepare its input and select from its output.

    If any of this fails, the GPU is released again.

    Args:
        model: The model to load.
        device: The GPU, and whether TensorRT runs the network on it.
        options: The settings of the device.
    """
    _require_runtime(device)
    from detcli.backend.cuda.driver import Gpu  # needs cuda-core
    from detcli.backend.cuda.network import open_network

    with contextlib.ExitStack() as stack:
        gpu = Gpu(device.ordinal or 0)
        stack.callback(gpu.close)
        gpu.load_kernels(kernel_files(model.contract))  # now, instead of in the first image
        images_per_run = smallest_run(_usual_batch(gpu, model, options))
        network = open_network(model, device, gpu.stream, options, images_per_run)
        stack.pop_all()  # nothing has failed, so the GPU stays open; the backend closes it
    return CudaBackend(
        gpu=gpu,
        network=network,
        contract=model.contract,
        device=str(device),
        memory_limit=options.gpu_mem_limit,
    )


def kernel_files(contract: Contract) -> tuple[str, ...]:
    """List the files of kernels that a model launches, unless --nms changes that.

    Each takes NVRTC about 0.3 s where it is not cached, so others are not compiled at the start.
    """
    if contract.layout is Layout.ROWS:  # the graph selects for itself
        return ("letterbox",)
    if contract.nms is None:
        return ("letterbox", "class_max", "select")
    return ("letterbox", "class_max", "nms")


def _usual_batch(gpu: "Gpu", model: PreparedModel, options: DeviceOptions) -> int:
    """Return how many images most batches of a model will have on a GPU.

    It is the batch that was asked for, or the one that suits the GPU's whole memory. Free memory is
    not used: it varies from run to run, and TensorRT would build another engine for each number.
    """
    if model.usual_batch is not None:
        return model.usual_batch
    available_bytes = gpu.total_memory()
    if options.gpu_mem_limit is not None:
        available_bytes = min(available_bytes, options.gpu_mem_limit)
    canvas = model.canvas or model.contract.default_size
    return largest_batch(gpu.multiprocessors, available_bytes, canvas)


def open_tensors(
    graph: bytes, title: str, device: Device, options: DeviceOptions
) -> "TensorSession":
    """Load any ONNX graph on a GPU, with arrays on the host as its inputs and outputs.

    Args:
        graph: The content of an ONNX file.
        title: How error messages refer to it.
        device: The GPU, and whether TensorRT runs the graph on it.
        options: The settings of the device.
    """
    _require_runtime(device)
    import onnx

    from detcli.backend.providers import tensor_providers
    from detcli.backend.session import TensorSession
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
        # From Ampere onwards it would round factors to TF32. The provider has no option against
        # that, and NVIDIA's libraries read this when the first session is made.
        os.environ["NVIDIA_TF32_OVERRIDE"] = "0"
