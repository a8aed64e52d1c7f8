"""Backends: each runs a prepared model on one kind of device.

protocol.py                   what every backend offers
preprocess.py                 the specification, in NumPy: from an image to the input,
postprocess.py                and from the head to rows
selected_boxes.py             what is selected, in pixels of the network's input
image_boxes.py                from the rows to detections in pixels of each image
logits.py                     scores before the sigmoid, and the sigmoid itself
network_output.py             the output for a batch, checked and split by image
cpu.py, cuda/, openvino/       the backends; each is imported when one is opened
session.py                    ONNX Runtime, strictly, for all of them
providers.py                  how it uses CUDA and TensorRT
optimised.py                  graphs that it has optimised, which open faster on the CPU
libraries.py                  the shared libraries of GPUs; where a graph would run
nvidia.py                     which GPUs there are, and what runs on them
"""

import logging
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from detcli.config.device import (
    Device,
    DeviceKind,
    DeviceOptions,
    check_device_options,
    has_openvino,
)
from detcli.core.errors import DependencyError, DetcliError, DetcliWarning, DeviceError

if TYPE_CHECKING:
    from detcli.backend.libraries import Placement
    from detcli.backend.protocol import Backend, Engine, Tensors
    from detcli.model.prepared import PreparedModel

__all__ = ["Device", "DeviceOptions", "open_backend", "open_tensors", "survey"]

log = logging.getLogger(__name__)

# The devices that "auto" prefers to the CPU; the first that works is used.
FASTER_THAN_CPU = (Device.parse("cuda"), Device.parse("openvino"))

Opened = TypeVar("Opened")  # a Backend or Tensors


def open_backend(
    device: str | Device, model: "PreparedModel", options: DeviceOptions | None = None
) -> "Backend":
    """Load a model on a device.

    Args:
        device: The device's name, such as "cpu", "cuda:1" or "openvino", which is used or refused,
            never replaced. Or "auto": the first of NVIDIA's GPUs if the model loads there, else
            OpenVINO if it is installed and takes the model, else the CPU.
        model: A model whose graph was prepared for detection.
        options: Settings of the device, such as its precision and memory limit.

    Raises:
        UsageError: No device has this name, or it cannot do what the options ask.
        DeviceError: The device cannot be used here; the message says why.
        DeviceMemoryError: The model does not fit into the device's memory.
        ModelError: The runtime cannot load the model.
    """
    requested = Device.parse(device)
    device_options = options or DeviceOptions()
    check_device_options(device_options, requested)

    def load_model(engine: "Engine", device: Device) -> "Backend":
        return engine.open_backend(model, device, device_options)

    backend = _open(requested, load_model)
    if requested.is_auto and not model.half:
        _mention_tensorrt(Device.parse(backend.device))
    return backend


def open_tensors(
    device: str | Device, graph: bytes, title: str, options: DeviceOptions | None = None
) -> "Tensors":
    """Load any ONNX graph on a device, to run it on tensors; it need not be a detector's.

    Args:
        device: The device's name, or "auto", as for `open_backend`.
        graph: A serialised ONNX model.
        title: How error messages refer to the graph.
        options: Settings of the device; only the memory limit and the precision are used.

    Raises:
        UsageError: No device has this name.
        DeviceError: The device cannot be used here; the message says why.
        DeviceMemoryError: The graph does not fit into the device's memory.
        ModelError: The runtime cannot load the graph.
    """
    device_options = options or DeviceOptions()

    def load_graph(engine: "Engine", device: Device) -> "Tensors":
        return engine.open_tensors(graph, title, device, device_options)

    return _open(Device.parse(device), load_graph)


def survey(graph: bytes, title: str) -> "tuple[Placement, ...]":
    """See whether each way to run a graph on this machine accepts it, and which nodes it runs.

    Args:
        graph: A serialised ONNX model.
        title: How error messages refer to the graph.

    Returns:
        A placement for each execution provider of the installed ONNX Runtime, the preferred first
        and the CPU last, and for OpenVINO before the CPU if it is installed.
    """
    from detcli.backend import libraries

    placements = libraries.survey(graph, title)
    if not has_openvino():
        return placements
    from detcli.backend.openvino import placement_of

    before_cpu = placements[:-1]
    cpu = placements[-1:]
    return before_cpu + (placement_of(graph, title),) + cpu


def _open(device: Device, load: Callable[["Engine", Device], Opened]) -> Opened:
    """Load a model or a graph on a device, or on the best that works if the device is "auto".

    Args:
        device: The device that the user named.
        load: Loads the model or the graph with an engine (the module for a kind of device).
    """
    if device.kind is DeviceKind.AUTO:
        return _open_on_best_device(load)
    return _open_on_device(device, load)


def _open_on_device(device: Device, load: Callable[["Engine", Device], Opened]) -> Opened:
    """Load a model or a graph with the engine of a device.

    Args:
        device: Any device but "auto".
        load: Loads the model or the graph with the engine.

    Raises:
        DeviceError: A package is missing that this device needs and the CPU does not.
    """
    engine = _engine_of(device)
    try:
        return load(engine, device)
    except DependencyError as error:
        if device.kind is DeviceKind.CPU:
            raise
        raise DeviceError(str(error), error.hint) from error


def _engine_of(device: Device) -> "Engine":
    """Import the module that loads models on a kind of device, and return it.

    Each is only imported when it is needed, because its libraries are slow to import and may be
    missing.
    """
    match device.kind:
        case DeviceKind.OPENVINO:
            from detcli.backend import openvino

            return openvino
        case DeviceKind.CUDA | DeviceKind.TENSORRT:
            from detcli.backend import cuda

            return cuda
        case DeviceKind.CPU | DeviceKind.AUTO:  # "auto" was replaced by a device before
            from detcli.backend import cpu

            return cpu


def _open_on_best_device(load: Callable[["Engine", Device], Opened]) -> Opened:
    """Load a model or a graph on the first of `FASTER_THAN_CPU` that works, else on the CPU.

    An absent device is skipped silently, as that is the usual case; for a device that is present
    but fails, the user is warned.
    """
    absences = []
    failures = []
    for device in FASTER_THAN_CPU:
        try:
            absence = _reason_for_absence(device)
            if absence:
                absences.append(absence)
                continue
            opened = _open_on_device(device, load)
        except DetcliError as error:
            failures.append(f"{error} ({error.hint})")
        else:
            _report_choice(str(device), absences, failures)
            return opened
    _report_choice("the CPU", absences, failures)
    return _open_on_device(Device(DeviceKind.CPU), load)


def _reason_for_absence(device: Device) -> str:
    """Return why this machine lacks a device, without loading anything on it; empty if it does not.

    Raises:
        DeviceError: NVIDIA's driver is installed, but does not work.
    """
    if not device.is_gpu:
        if has_openvino():
            return ""
        return "OpenVINO is not installed"
    from detcli.backend.nvidia import count_gpus

    if count_gpus():
        return ""
    return "NVIDIA's driver shows no GPU"


def _mention_tensorrt(device: Device) -> None:
    """Log that TensorRT could be faster, if "auto" has chosen a GPU that it could run on."""
    # Looking for TensorRT may start programs that list the system's libraries.
    if not device.is_gpu or not log.isEnabledFor(logging.INFO):
        return
    from detcli.backend.libraries import faster_with_tensorrt

    advice = faster_with_tensorrt(device.ordinal or 0)
    if advice:
        log.info("%s", advice)


def _report_choice(name: str, absences: Sequence[str], failures: Sequence[str]) -> None:
    """Report which device "auto" chose: as a warning if a better device failed, else in the log.

    Args:
        name: The device that was chosen.
        absences: Why better devices are missing.
        failures: Why better devices that are present could not be used.
    """
    if failures:
        message = f"{name} is used: {'; '.join(failures)}"
        # With this level, the warning points at the caller of `open_backend` or `open_tensors`.
        warnings.warn(message, DetcliWarning, stacklevel=5)
        return
    reasons = ""
    if absences:
        reasons = f": {', '.join(absences)}"
    log.info("%s is used%s", name, reasons)
