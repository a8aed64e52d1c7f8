"""Devices as `detcli.core.device` has them, and the names of those that this machine has."""

import importlib.util

from detcli.core.device import DEVICE_NAMES as DEVICE_NAMES
from detcli.core.device import PROVIDERS as PROVIDERS
from detcli.core.device import Device as Device
from detcli.core.device import DeviceKind as DeviceKind
from detcli.core.device import DeviceOptions as DeviceOptions
from detcli.core.device import available_cores as available_cores
from detcli.core.device import cpu_quota as cpu_quota
from detcli.core.device import has_openvino as has_openvino
from detcli.core.device import visible_cores as visible_cores
from detcli.errors import DeviceError


def names_here() -> list[str]:
    """Names of the devices that this machine has, without asking whether they work."""
    from detcli.backend.nvidia import count_gpus

    try:
        gpus = range(count_gpus())
    except DeviceError:
        gpus = range(0)
    has_tensorrt = importlib.util.find_spec("tensorrt_libs") is not None
    kinds = [DeviceKind.CUDA, *[DeviceKind.TENSORRT] * has_tensorrt] if gpus else []
    named = [name for kind in kinds for name in (kind, *(Device(kind, gpu) for gpu in gpus))]
    named += [DeviceKind.OPENVINO] * has_openvino()
    return [*map(str, (DeviceKind.AUTO, DeviceKind.CPU, *named))]
