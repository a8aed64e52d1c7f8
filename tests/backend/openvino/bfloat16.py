"""Whether `--half` is possible with OpenVINO here, which depends on the processor."""

from detcli.backend.openvino.library import open_core
from detcli.backend.openvino.precision import choose_precision
from detcli.config.device import Device
from detcli.core.errors import DeviceError

NO_BFLOAT16 = "this processor does not multiply in bfloat16"
"""Why a test is skipped, as detcli says it."""


def multiplies_in_bfloat16() -> bool:
    """Whether this processor multiplies in bfloat16; without it, `--half` is refused."""
    try:
        return choose_precision(open_core(Device.parse("openvino")), "CPU", half=True) == "bf16"
    except DeviceError:
        return False
