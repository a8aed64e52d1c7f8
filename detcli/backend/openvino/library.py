"""OpenVINO itself: its import, its devices, and what its errors say."""

import contextlib
import functools
import importlib
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

from detcli.backend.preprocess import Tensor
from detcli.backend.protocol import run_error
from detcli.config.device import Device
from detcli.core.errors import DeviceError, loading

MIN_VERSION = (2026, 4)
EXTRA = 'pip install "detcli[openvino]"; or use --device cpu'
CONVERTER = "openvino.tools.ovc"

DRIVERS = {
    "CPU": "use --device cpu",
    "GPU": "install the driver of Intel's graphics (Debian, Ubuntu: apt-get install "
    "intel-opencl-icd), or use --device openvino:CPU",
    "NPU": "install the driver of Intel's NPU, or use --device openvino:CPU",
}
"""What to do where OpenVINO lacks a device."""

SOURCE = re.compile(r"^(Exception from \S+:\d+:|Check '.*' failed at \S+:\d+:)$")
LIBRARY = re.compile(r'Cannot load library "[^"]*": ')

FAILURES = (RuntimeError, MemoryError)  # what OpenVINO raises
SETTING = "configuration key"  # of the NPU's plug-in, which does not say that there is no NPU


@functools.cache
def library() -> Any:  # noqa: ANN401 - its types are incomplete
    """Import OpenVINO, without its converter of models, which is imported when it is called.

    That takes two thirds of the import's time and brings telemetry.
    """
    # Where there is no /sys, as in a chroot, its threads' library would say so on stderr.
    os.environ.setdefault("HWLOC_HIDE_ERRORS", "2")
    # Whoever has imported either before may use the converter.
    leaves_out_converter = sys.modules.keys().isdisjoint({"openvino", CONVERTER})
    with loading("OpenVINO", EXTRA):
        if leaves_out_converter:  # its import then fails, which OpenVINO allows for
            sys.modules[CONVERTER] = None  # type: ignore[assignment]
        try:
            openvino = importlib.import_module("openvino")
        finally:
            if leaves_out_converter:
                del sys.modules[CONVERTER]
        if leaves_out_converter:
            openvino.convert_model = _convert_model  # type: ignore[attr-defined]

    version = getattr(openvino, "__version__", "")  # an empty folder is left by pip at times
    release = re.match(r"(\d+)\.(\d+)", version)
    if release is None or (int(release[1]), int(release[2])) < MIN_VERSION:
        oldest = f"{MIN_VERSION[0]}.{MIN_VERSION[1]}"
        raise DeviceError(
            f"OpenVINO {version or 'without a version'} is older than {oldest}",
            "pip install --upgrade openvino; or use --device cpu",
        )
    return openvino


def _convert_model(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401
    """OpenVINO's function of that name, whose module is imported at the first call."""
    return importlib.import_module(CONVERTER).convert_model(*arguments, **options)


@functools.cache
def core() -> Any:  # noqa: ANN401
    """OpenVINO's Core, which loads a device's plug-in when it is asked for it."""
    return library().Core()


def open_core(device: Device) -> Any:  # noqa: ANN401
    """The Core, once it has this device."""
    unit = str(device.unit)
    opened = core()
    try:
        opened.get_property(unit, "FULL_DEVICE_NAME")
    except RuntimeError as error:
        problem = reason(error)
        if SETTING in problem:
            problem = "none was found"
        hint = DRIVERS[unit.partition(".")[0]]
        raise DeviceError(f"OpenVINO cannot use {unit}: {problem}", hint) from error
    return opened


def reason(error: Exception) -> str:
    """OpenVINO's message as one line, without its source files and the folder it is in."""
    if isinstance(error, MemoryError):
        return "out of memory"
    lines = []
    for line in str(error).splitlines():
        stripped = line.strip()
        if stripped and not SOURCE.match(stripped):
            lines.append(stripped)
    return LIBRARY.sub("", " ".join(lines))


@contextlib.contextmanager
def translated(tensor: Tensor) -> Iterator[None]:
    """Raise detcli's errors where OpenVINO fails on a batch."""
    try:
        yield
    except FAILURES as error:
        raise run_error(tensor.shape, reason(error)) from error
