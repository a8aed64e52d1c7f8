"""Backends: each runs a prepared model on one kind of device.

Importing this is cheap; what a device needs is imported when one is opened.
"""

import logging
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from detcli.backend.device import Device, DeviceKind, DeviceOptions
from detcli.errors import DependencyError, DetcliError, DetcliWarning, DeviceError

if TYPE_CHECKING:
    from detcli.backend.protocol import Backend, Engine, Ranker, Tensors
    from detcli.model.prepared import PreparedModel

__all__ = ["Device", "DeviceOptions", "open_backend", "open_ranker", "open_tensors"]

log = logging.getLogger(__name__)

Opened = TypeVar("Opened")


def open_backend(
    device: str | Device, model: "PreparedModel", options: DeviceOptions | None = None
) -> "Backend":
    """Load a model on a device.

    Args:
        device: "cpu", "cuda", "cuda:N", "tensorrt", "tensorrt:N", or "auto": the first GPU if the
            model loads there, else the CPU. A device that is named is used or refused, never
            replaced.
        model: The model.
        options: How to use the device.

    Raises:
        UsageError: No device has this name, or it cannot do what the options ask.
        DeviceError: The device cannot be used here; the message says why.
        DeviceMemoryError: The model does not fit into the device's memory.
        ModelError: The runtime cannot load the model.
    """
    wanted, given = Device.parse(device), options or DeviceOptions()
    given.check(wanted)
    return _open(wanted, lambda engine, device: engine.open_backend(model, device, given))


def open_ranker(device: str | Device) -> "Ranker":
    """Open top-k and selection on a device, without a network.

    Args:
        device: As for `open_backend`, except TensorRT, which only runs networks.

    Raises:
        UsageError: No device has this name, or it has no top-k.
        DeviceError: The device cannot be used here; the message says why.
    """
    return _open(Device.parse(device), lambda engine, device: engine.open_ranker(device))


def open_tensors(
    device: str | Device, graph: bytes, title: str, options: DeviceOptions | None = None
) -> "Tensors":
    """Load any graph on a device, to look at its tensors.

    Args:
        device: As for `open_backend`.
        graph: A serialised ONNX graph.
        title: What to call it in errors.
        options: Of these, the memory limit and TensorRT's precision.

    Raises:
        UsageError: No device has this name.
        DeviceError: The device cannot be used here; the message says why.
        DeviceMemoryError: The graph does not fit into the device's memory.
        ModelError: The runtime refuses the graph.
    """
    wanted, given = Device.parse(device), options or DeviceOptions()
    return _open(wanted, lambda engine, device: engine.open_tensors(graph, title, device, given))


def _open(device: Device, opening: Callable[["Engine", Device], Opened]) -> Opened:
    """Open something with a device's engine: the only branch on the device in the package."""
    match device.kind:
        case DeviceKind.AUTO:
            return _open_first_usable(opening)
        case DeviceKind.CPU:
            from detcli.backend import cpu

            return opening(cpu, device)
        case DeviceKind.CUDA | DeviceKind.TENSORRT:
            from detcli.backend import cuda

            try:
                return opening(cuda, device)
            except DependencyError as error:  # cuda-core, which only this device needs
                raise DeviceError(str(error), error.hint) from error


def _open_first_usable(opening: Callable[["Engine", Device], Opened]) -> Opened:
    """Open something on the first GPU, or on the CPU with a warning why not on the GPU."""
    from detcli.backend.nvidia import count_gpus

    try:
        if count_gpus():
            return _open(Device(DeviceKind.CUDA, 0), opening)
        log.info("the CPU is used: NVIDIA's driver shows no GPU")
    except DetcliError as error:
        warnings.warn(f"the CPU is used: {error} ({error.hint})", DetcliWarning, stacklevel=4)
    return _open(Device(DeviceKind.CPU), opening)
