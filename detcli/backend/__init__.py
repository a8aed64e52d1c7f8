"""Backends: each runs a prepared model on one kind of device.

`_open`, behind `open_backend` and `open_ranker`, holds the only branch on the device in the
package.
"""

import logging
import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from detcli.backend.options import DeviceOptions
from detcli.backend.protocol import Backend, Buffer, Limits, Observer, Pending
from detcli.errors import (
    DependencyError,
    DetcliError,
    DetcliWarning,
    DeviceError,
    UsageError,
)
from detcli.model.prepared import PreparedModel

if TYPE_CHECKING:
    from detcli.backend.ranker import Ranker

__all__ = [
    "Backend",
    "Buffer",
    "DeviceOptions",
    "Limits",
    "Observer",
    "Pending",
    "open_backend",
    "open_ranker",
]

log = logging.getLogger(__name__)

Opened = TypeVar("Opened")


def open_backend(
    device: str, model: PreparedModel, options: DeviceOptions | None = None
) -> Backend:
    """Load a model on a device.

    Args:
        device: "cpu", "cuda", "cuda:N", "tensorrt", "tensorrt:N", or "auto": the first GPU where
            it is proven usable, else the CPU. A device that was asked for by name is used or
            refused, never replaced.
        model: What to load.
        options: How to use a GPU.

    Raises:
        UsageError: There is no device of that name, or it cannot do what the options ask.
        DeviceError: It cannot be used here; the message says why.
        DeviceMemoryError: The model does not fit into its memory.
        ModelError: The runtime cannot load the model.
    """
    options = options or DeviceOptions()
    on_cpu = partial(_backend_on_cpu, model, options)
    on_gpu = partial(_backend_on_gpu, model, options)
    return _open(device, options, on_cpu, on_gpu)


def open_ranker(device: str) -> "Ranker":
    """Open top-k and selection on a device, without a network.

    Args:
        device: As for `open_backend`, but TensorRT, which only runs networks.

    Raises:
        UsageError: There is no device of that name, or it has no top-k of ours.
        DeviceError: It cannot be used here; the message says why.
    """
    return _open(device, DeviceOptions(), _ranker_on_cpu, _ranker_on_gpu)


def _open(
    device: str,
    options: DeviceOptions,
    on_cpu: Callable[[], Opened],
    on_gpu: Callable[[int, bool], Opened],
) -> Opened:
    """Open something on the device of a name.

    Args:
        device: See `open_backend`.
        options: Refused first if the device cannot do what they ask.
        on_cpu: Opens it there.
        on_gpu: Opens it on the GPU of a number, with TensorRT or without.
    """
    kind, colon, number = device.partition(":")
    match kind:
        case "cpu" | "auto" if not colon:
            options.check(kind)
            return on_cpu() if kind == "cpu" else _open_best(on_cpu, on_gpu)
        case "cuda" | "tensorrt" if not colon or (number.isascii() and number.isdecimal()):
            options.check(kind)
            try:
                return on_gpu(int(number or 0), kind == "tensorrt")
            except DependencyError as error:  # cuda-core, which only this device needs
                raise DeviceError(str(error), error.hint) from error
    raise UsageError(
        f"no device is called '{device}'", "use auto, cpu, cuda, cuda:N, tensorrt or tensorrt:N"
    )


def _open_best(on_cpu: Callable[[], Opened], on_gpu: Callable[[int, bool], Opened]) -> Opened:
    """The first GPU, or the CPU with the reason why not the GPU."""
    from detcli.backend.nvidia import count_gpus

    try:
        if count_gpus():
            return on_gpu(0, False)  # noqa: FBT003 - without TensorRT
        log.info("the CPU is used: NVIDIA's driver shows no GPU")
    except DetcliError as error:
        warnings.warn(f"the CPU is used: {error} ({error.hint})", DetcliWarning, stacklevel=4)
    return on_cpu()


def _backend_on_cpu(model: PreparedModel, options: DeviceOptions) -> Backend:
    from detcli.backend.cpu import CpuBackend  # imports the runtime

    return CpuBackend(model, options.workers)


def _backend_on_gpu(
    model: PreparedModel,
    options: DeviceOptions,
    ordinal: int,
    tensorrt: bool,  # noqa: FBT001 - see _open
) -> Backend:
    from detcli.backend.runtime.libraries import CUDA, TENSORRT, require_provider

    require_provider(TENSORRT if tensorrt else CUDA)
    from detcli.backend.cuda import open_cuda

    return open_cuda(model, ordinal, options, tensorrt=tensorrt)


def _ranker_on_cpu() -> "Ranker":
    from detcli.backend.ranker import CpuRanker

    return CpuRanker()


def _ranker_on_gpu(ordinal: int, tensorrt: bool) -> "Ranker":  # noqa: FBT001 - see _open
    if tensorrt:
        raise UsageError("TensorRT runs networks, and has no top-k of ours", "use --device cuda")
    from detcli.backend.cuda import open_cuda_ranker

    return open_cuda_ranker(ordinal)
