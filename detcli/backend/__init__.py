"""Backends: each runs a prepared model on one kind of device.

protocol.py                   what every backend offers
preprocess.py                 the specification, in NumPy: from an image to the input,
postprocess.py                and from the head to rows
cpu.py, cuda/, openvino/       the backends; each is imported when one is opened
session.py                    ONNX Runtime, strictly, for all of them
libraries.py                  the shared libraries of GPUs; where a graph would run
nvidia.py                     which GPUs there are, and what runs on them
"""

import logging
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from detcli.config.device import Device, DeviceKind, DeviceOptions, has_openvino
from detcli.core.errors import DependencyError, DetcliError, DetcliWarning, DeviceError

if TYPE_CHECKING:
    from detcli.backend.libraries import Placement
    from detcli.backend.protocol import Backend, Engine, Tensors
    from detcli.model.file import PreparedModel

__all__ = ["Device", "DeviceOptions", "open_backend", "open_tensors", "survey"]

log = logging.getLogger(__name__)

FASTER = (Device.parse("cuda"), Device.parse("openvino"))  # what `auto` prefers to the CPU

Opened = TypeVar("Opened")


def open_backend(
    device: str | Device, model: "PreparedModel", options: DeviceOptions | None = None
) -> "Backend":
    """Load a model on a device.

    "auto" is the first of NVIDIA's GPUs if the model loads there, else OpenVINO if it is installed
    and takes the model, else the CPU. A device that is named is used or refused, never replaced.

    Raises:
        UsageError: No device has this name, or it cannot do what the options ask.
        DeviceError: The device cannot be used here; the message says why.
        DeviceMemoryError: The model does not fit into the device's memory.
        ModelError: The runtime cannot load the model.
    """
    requested = Device.parse(device)
    device_options = options or DeviceOptions()
    device_options.check(requested)
    return _open(
        requested, lambda engine, device: engine.open_backend(model, device, device_options)
    )


def open_tensors(
    device: str | Device, graph: bytes, title: str, options: DeviceOptions | None = None
) -> "Tensors":
    """Load any serialised ONNX graph on a device, to look at its tensors; see `open_backend`.

    `title` names it in errors. Of the options, the memory limit and the precision count.
    """
    device_options = options or DeviceOptions()
    return _open(
        Device.parse(device),
        lambda engine, device: engine.open_tensors(graph, title, device, device_options),
    )


def survey(graph: bytes, title: str) -> "tuple[Placement, ...]":
    """What each execution provider of ONNX Runtime makes of a graph, and OpenVINO if installed.

    ONNX Runtime's preferred provider comes first, its CPU last. `title` names the graph in errors.
    """
    from detcli.backend.libraries import survey

    placements = survey(graph, title)
    if not has_openvino():
        return placements
    from detcli.backend.openvino import placement_of

    before_cpu = placements[:-1]
    cpu = placements[-1:]
    return before_cpu + (placement_of(graph, title),) + cpu


def _open(device: Device, opening: Callable[["Engine", Device], Opened]) -> Opened:
    """Open something with a device's engine: the only place that chooses one."""
    engine: Engine
    match device.kind:
        case DeviceKind.AUTO:
            return _open_first_usable(opening)
        case DeviceKind.CPU:
            from detcli.backend import cpu

            return opening(cpu, device)
        case DeviceKind.OPENVINO:
            from detcli.backend import openvino

            engine = openvino
        case DeviceKind.CUDA | DeviceKind.TENSORRT:
            from detcli.backend import cuda

            engine = cuda
    try:
        return opening(engine, device)
    except DependencyError as error:  # what only this device needs
        raise DeviceError(str(error), error.hint) from error


def _open_first_usable(opening: Callable[["Engine", Device], Opened]) -> Opened:
    """Open something on the first of FASTER that works, else on the CPU, and say why."""
    absent = []
    broken = []
    for device in FASTER:
        try:
            absence = _absence(device)
            if absence:
                absent.append(absence)
                continue
            opened = _open(device, opening)
        except DetcliError as error:
            broken.append(f"{error} ({error.hint})")
        else:
            _explain(str(device), absent, broken)
            return opened
    _explain("the CPU", absent, broken)
    return _open(Device(DeviceKind.CPU), opening)


def _absence(device: Device) -> str:
    """Why the device is missing, found out without opening it; empty if it is there."""
    if not device.is_gpu:
        if has_openvino():
            return ""
        return "OpenVINO is not installed"
    from detcli.backend.nvidia import count_gpus

    if count_gpus():
        return ""
    return "NVIDIA's driver shows no GPU"


def _explain(name: str, absent: Sequence[str], broken: Sequence[str]) -> None:
    """Warn if what is here does not work, else tell the log."""
    if broken:
        warnings.warn(f"{name} is used: {'; '.join(broken)}", DetcliWarning, stacklevel=5)
    else:
        reasons = f": {', '.join(absent)}" if absent else ""
        log.info("%s is used%s", name, reasons)
