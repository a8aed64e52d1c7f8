"""OpenVINO itself: its import, its devices, and what its errors say."""

import contextlib
import functools
import importlib
import os
import re
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from detcli.backend.preprocess import Tensor
from detcli.backend.protocol import run_error
from detcli.config.device import Device
from detcli.core.errors import DeviceError, loading

Core = Any
"""OpenVINO's `Core`, which reads and compiles networks. The types of its package are incomplete."""

Model = Any
"""OpenVINO's `Model`, a network as it was read, before it is compiled."""

CompiledModel = Any
"""OpenVINO's `CompiledModel`, a network that is ready to run on a device."""

InferRequest = Any
"""OpenVINO's `InferRequest`, which runs a compiled network on the input that it holds."""

MIN_VERSION = (2026, 4)
INSTALL_HINT = 'pip install "detcli[openvino]"; or use --device cpu'
PACKAGE = "openvino"
CONVERTER = "openvino.tools.ovc"
"""The module that converts models from other formats, which OpenVINO's package imports."""

DEVICE_HINTS = {
    "CPU": "use --device cpu",
    "GPU": "install the driver of Intel's graphics (Debian, Ubuntu: apt-get install "
    "intel-opencl-icd), or use --device openvino:CPU",
    "NPU": "install the driver of Intel's NPU, or use --device openvino:CPU",
}
"""What to do where OpenVINO lacks a device."""

SOURCE_LINE = re.compile(r"^(Exception from \S+:\d+:|Check '.*' failed at \S+:\d+:)$")
"""A line of an error message that only names one of OpenVINO's source files."""

PLUGIN_PATH = re.compile(r'Cannot load library "[^"]*": ')
"""The part of an error message that has the path of a device's plug-in."""

FAILURES = (RuntimeError, MemoryError)  # what OpenVINO raises

UNKNOWN_PROPERTY = "configuration key"
"""Part of the error of the NPU's plug-in on a machine without an NPU, as it names a property."""


@functools.cache
def import_openvino() -> Any:  # noqa: ANN401 - its types are incomplete
    """Import OpenVINO, and require a version that detcli works with.

    Returns:
        The package `openvino`, whose `convert_model` is imported only when it is called.

    Raises:
        DependencyError: OpenVINO is not installed, or does not load.
        DeviceError: Its version is too old.
    """
    # OpenVINO's library for threads looks at the cores of the machine. Where there is no /sys, as
    # in a chroot, it would print an error.
    os.environ.setdefault("HWLOC_HIDE_ERRORS", "2")
    with loading("OpenVINO", INSTALL_HINT):
        openvino = _import_without_converter()
    _require_version(openvino)
    return openvino


def _import_without_converter() -> ModuleType:
    """Import OpenVINO, but not yet its converter of models from other formats.

    The converter takes two thirds of the import's time and brings telemetry. It stays available as
    `openvino.convert_model`, which imports it when it is called. Where OpenVINO or the converter
    has been imported before detcli asks for it, nothing is left out, since a program may use it.
    """
    if PACKAGE in sys.modules or CONVERTER in sys.modules:
        return importlib.import_module(PACKAGE)

    # An import of a module that is None here fails, and OpenVINO allows for that of its converter.
    sys.modules[CONVERTER] = None  # type: ignore[assignment]
    try:
        openvino = importlib.import_module(PACKAGE)
    finally:
        del sys.modules[CONVERTER]
    openvino.convert_model = _convert_model  # type: ignore[attr-defined]
    return openvino


def _convert_model(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401
    """Call OpenVINO's function of this name; its module is imported at the first call."""
    return importlib.import_module(CONVERTER).convert_model(*arguments, **options)


def _require_version(openvino: ModuleType) -> None:
    """Raise a DeviceError if this package of OpenVINO is older than MIN_VERSION.

    A package without a version counts as older: pip may leave an empty folder behind, which can be
    imported.
    """
    version = getattr(openvino, "__version__", "")
    release = re.match(r"(\d+)\.(\d+)", version)
    if release is None or (int(release[1]), int(release[2])) < MIN_VERSION:
        oldest = f"{MIN_VERSION[0]}.{MIN_VERSION[1]}"
        raise DeviceError(
            f"OpenVINO {version or 'without a version'} is older than {oldest}",
            "pip install --upgrade openvino; or use --device cpu",
        )


@functools.cache
def openvino_core() -> Core:
    """Return OpenVINO's Core, one for the process; it loads a device's plug-in on demand."""
    return import_openvino().Core()


def open_core(device: Device) -> Core:
    """Return OpenVINO's Core after making sure that OpenVINO has a device.

    Args:
        device: One of OpenVINO's devices, such as that of `--device openvino:GPU`.

    Raises:
        DeviceError: The device, its driver or OpenVINO's plug-in for it is missing; the hint says
            what to install.
    """
    unit = str(device.unit)
    core = openvino_core()
    try:
        # Asking for a property of a device loads its plug-in.
        core.get_property(unit, "FULL_DEVICE_NAME")
    except RuntimeError as error:
        problem = reason(error)
        if UNKNOWN_PROPERTY in problem:
            problem = "none was found"
        device_type = unit.partition(".")[0]  # "GPU" of "GPU.1", the second graphics card
        hint = DEVICE_HINTS[device_type]
        raise DeviceError(f"OpenVINO cannot use {unit}: {problem}", hint) from error
    return core


def reason(error: Exception) -> str:
    """Return OpenVINO's error message as one line, without its source files and paths."""
    if isinstance(error, MemoryError):
        return "out of memory"
    lines = []
    for line in str(error).splitlines():
        stripped = line.strip()
        if stripped and not SOURCE_LINE.match(stripped):
            lines.append(stripped)
    return PLUGIN_PATH.sub("", " ".join(lines))


@contextlib.contextmanager
def converted_errors(batch: Tensor) -> Iterator[None]:
    """Convert what OpenVINO raises while it runs a network on a batch to detcli's own error.

    Args:
        batch: `(B, C, H, W)`, the input of the network; the error names its shape.

    Raises:
        InferenceError: OpenVINO failed in the `with` block.
    """
    try:
        yield
    except FAILURES as error:
        raise run_error(batch.shape, reason(error)) from error
