"""Backends: each runs a prepared model on one kind of device.

`open_backend` holds the only branch on the device in the package.
"""

import logging
import warnings

from detcli.backend.options import DeviceOptions
from detcli.backend.protocol import Backend, Buffer, Limits, Pending
from detcli.errors import (
    DependencyError,
    DetcliError,
    DetcliWarning,
    DeviceError,
    UsageError,
)
from detcli.model.prepared import PreparedModel

__all__ = ["Backend", "Buffer", "DeviceOptions", "Limits", "Pending", "open_backend"]

log = logging.getLogger(__name__)


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
    kind, colon, number = device.partition(":")
    match kind:
        case "cpu" | "auto" if not colon:
            options.check(kind)
            return _open_cpu(model, options) if kind == "cpu" else _open_best(model, options)
        case "cuda" | "tensorrt" if not colon or (number.isascii() and number.isdecimal()):
            options.check(kind)
            return _open_gpu(model, int(number or 0), options, tensorrt=kind == "tensorrt")
    raise UsageError(
        f"no device is called '{device}'", "use auto, cpu, cuda, cuda:N, tensorrt or tensorrt:N"
    )


def _open_cpu(model: PreparedModel, options: DeviceOptions) -> Backend:
    from detcli.backend.cpu import CpuBackend  # imports the runtime

    return CpuBackend(model, options.workers)


def _open_gpu(
    model: PreparedModel, ordinal: int, options: DeviceOptions, *, tensorrt: bool
) -> Backend:
    from detcli.backend.runtime.libraries import CUDA, TENSORRT, require_provider

    require_provider(TENSORRT if tensorrt else CUDA)
    try:
        from detcli.backend.cuda import open_cuda

        return open_cuda(model, ordinal, options, tensorrt=tensorrt)
    except DependencyError as error:  # cuda-core, which only this device needs
        raise DeviceError(str(error), error.hint) from error


def _open_best(model: PreparedModel, options: DeviceOptions) -> Backend:
    """The first GPU, or the CPU with the reason why not the GPU."""
    from detcli.backend.nvidia import count_gpus

    try:
        if count_gpus():
            return _open_gpu(model, 0, options, tensorrt=False)
        log.info("the CPU is used: NVIDIA's driver shows no GPU")
    except DetcliError as error:
        warnings.warn(f"the CPU is used: {error} ({error.hint})", DetcliWarning, stacklevel=3)
    return _open_cpu(model, options)
