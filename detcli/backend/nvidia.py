"""NVIDIA's driver, asked without any package: cheap where there is none."""

import ctypes
import sys
from dataclasses import dataclass

from detcli.errors import DeviceError

DRIVER = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"

NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE; also where CUDA_VISIBLE_DEVICES hides them all

# Attributes of a device, as cuda.h numbers them.
CAPABILITY_MAJOR, CAPABILITY_MINOR = 75, 76

LONGEST_NAME = 256  # bytes, with the NUL at its end


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """A GPU as the driver describes it.

    Attributes:
        name: Such as "NVIDIA H200".
        capability: What it can compute, major and minor: (9, 0) is Hopper.
        memory_bytes: All of its memory.
    """

    name: str
    capability: tuple[int, int]
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class DriverFacts:
    """What the driver says of itself.

    Attributes:
        load_error: What the loader said, where the driver does not load.
        status: What cuInit returned: 0, or CUDA's number of the error; None if it was not asked.
        cuda: The newest CUDA that it runs, major and minor; None if it does not say.
        gpus: Those that it shows.
    """

    load_error: str | None = None
    status: int | None = None
    cuda: tuple[int, int] | None = None
    gpus: tuple[GpuFacts, ...] = ()


def count_gpus() -> int:
    """Count the GPUs that the driver shows; 0 also where there is no driver.

    Raises:
        DeviceError: There is a driver, but it does not work.
    """
    facts = ask_driver()
    if facts.status not in {None, 0, NO_DEVICE}:
        raise DeviceError(
            f"NVIDIA's driver does not work: CUDA error {facts.status}",
            "see whether nvidia-smi lists the GPU; after an update of the driver, restart",
        )
    return len(facts.gpus)


def ask_driver() -> DriverFacts:
    """Ask the driver for all that it says without a context, which would take memory of the GPU."""
    number, count = ctypes.c_int(), ctypes.c_int()
    try:
        driver = ctypes.CDLL(DRIVER)
        # Answered even where nothing else works: 13020 is CUDA 13.2.
        silent = driver.cuDriverGetVersion(ctypes.byref(number)) or not number.value
        status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
        gpus = tuple(_describe(driver, ordinal) for ordinal in range(count.value))
    except (OSError, AttributeError) as error:  # not there, or something else of that name
        return DriverFacts(load_error=str(error))
    cuda = None if silent else (number.value // 1000, number.value % 1000 // 10)
    return DriverFacts(None, status, cuda, () if status else gpus)


def _describe(driver: ctypes.CDLL, ordinal: int) -> GpuFacts:
    """A GPU's name, capability and memory; what the driver does not answer stays empty."""
    device, memory = ctypes.c_int(), ctypes.c_size_t()
    name = ctypes.create_string_buffer(LONGEST_NAME)
    parts = (ctypes.c_int(), ctypes.c_int())
    driver.cuDeviceGet(ctypes.byref(device), ordinal)
    driver.cuDeviceGetName(name, LONGEST_NAME, device)
    for part, attribute in zip(parts, (CAPABILITY_MAJOR, CAPABILITY_MINOR), strict=True):
        driver.cuDeviceGetAttribute(ctypes.byref(part), attribute, device)
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    capability = (parts[0].value, parts[1].value)
    return GpuFacts(name.value.decode(errors="replace"), capability, memory.value)


def gpu_uuid(ordinal: int) -> str:
    """The name under which the driver's tools know the GPU that CUDA gives that number.

    Returns:
        As in "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6".

    Raises:
        DeviceError: There is no such GPU, or the driver does not work.
    """
    import uuid  # 2 ms that nobody else needs

    if ordinal >= count_gpus():
        raise DeviceError(f"there is no GPU number {ordinal}", "see what nvidia-smi lists")
    driver = ctypes.CDLL(DRIVER)
    device, identity = ctypes.c_int(), (ctypes.c_ubyte * 16)()
    status = driver.cuDeviceGet(ctypes.byref(device), ordinal)
    status = status or driver.cuDeviceGetUuid(identity, device)
    if status:
        raise DeviceError(
            f"NVIDIA's driver does not name GPU number {ordinal}: CUDA error {status}",
            "see whether nvidia-smi lists it",
        )
    return f"GPU-{uuid.UUID(bytes=bytes(identity))}"
