"""NVIDIA's driver, asked without any package: cheap where there is none."""

import ctypes
import sys

from detcli.errors import DeviceError

DRIVER = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"

NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE; also where CUDA_VISIBLE_DEVICES hides them all


def count_gpus() -> int:
    """Count the GPUs that the driver shows; 0 also where there is no driver.

    Raises:
        DeviceError: There is a driver, but it does not work.
    """
    try:
        driver = ctypes.CDLL(DRIVER)
    except OSError:
        return 0
    count = ctypes.c_int()
    status = driver.cuInit(0)
    if status == NO_DEVICE:
        return 0
    status = status or driver.cuDeviceGetCount(ctypes.byref(count))
    if status:
        raise DeviceError(
            f"NVIDIA's driver does not work: CUDA error {status}",
            "see whether nvidia-smi lists the GPU; after an update of the driver, restart",
        )
    return count.value
