"""OpenVINO itself, strictly: it loads and has the device, or an error says why not."""

import functools
import importlib
import os
import re
import sys
from typing import Any

from detcli.core.device import Device
from detcli.core.errors import DeviceError, loading

LEAST = (2026, 4)
EXTRA = "pip install 'detcli[openvino]'; or use --device cpu"
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

FAILURES = (RuntimeError, MemoryError)
"""Exceptions that OpenVINO raises."""

SETTING = "configuration key"  # of the NPU's plug-in, which does not say that there is no NPU


@functools.cache
def library() -> Any:  # noqa: ANN401 - its types are incomplete
    """Import OpenVINO, without its converter of models.

    That is two thirds of the import's time, brings telemetry, and is a part that OpenVINO does
    without itself. It is imported after all as soon as it is called.

    Raises:
        DependencyError: It is not installed, or does not load.
        DeviceError: It is older than what this package is tested with.
    """
    # Where there is no /sys, as in a chroot, its threads' library would say so on stderr.
    os.environ.setdefault("HWLOC_HIDE_ERRORS", "2")
    wanted = {"openvino", CONVERTER} & sys.modules.keys()  # by somebody else
    with loading("OpenVINO", EXTRA):
        if not wanted:  # its import then fails, which OpenVINO allows for
            sys.modules[CONVERTER] = None  # type: ignore[assignment]
        try:
            openvino = importlib.import_module("openvino")
        finally:
            if not wanted:
                del sys.modules[CONVERTER]
        if not wanted:
            openvino.convert_model = _convert_model  # type: ignore[attr-defined]
    version = getattr(openvino, "__version__", "")  # an empty folder is left by pip at times
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or (int(found[1]), int(found[2])) < LEAST:
        raise DeviceError(
            f"OpenVINO {version or 'without a version'} is older than {LEAST[0]}.{LEAST[1]}",
            "pip install --upgrade openvino; or use --device cpu",
        )
    return openvino


def _convert_model(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401
    return importlib.import_module(CONVERTER).convert_model(*arguments, **options)


@functools.cache
def core() -> Any:  # noqa: ANN401
    """OpenVINO's Core, which loads a device's plug-in when it is asked for it."""
    return library().Core()


def open_core(device: Device) -> Any:  # noqa: ANN401
    """The Core, once it has this device."""
    found, unit = core(), str(device.unit)
    try:
        found.get_property(unit, "FULL_DEVICE_NAME")
    except RuntimeError as error:
        why = reason(error)
        raise DeviceError(
            f"OpenVINO cannot use {unit}: {'none was found' if SETTING in why else why}",
            DRIVERS[unit.partition(".")[0]],
        ) from error
    return found


def reason(error: Exception) -> str:
    """OpenVINO's message as one line, without its source files and the folder it is in."""
    if isinstance(error, MemoryError):
        return "out of memory"
    lines = (line.strip() for line in str(error).splitlines())
    said = " ".join(line for line in lines if line and not SOURCE.match(line))
    return LIBRARY.sub("", said)
