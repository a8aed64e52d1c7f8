"""NVIDIA's driver, queried by ctypes: without a package, and cheap on machines without a GPU."""

import ctypes
import platform
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from detcli.core import frozen
from detcli.core.errors import DeviceError

DRIVER = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE; also if CUDA_VISIBLE_DEVICES hides all GPUs
CAPABILITY_MAJOR = 75  # a device attribute, numbered as in cuda.h
CAPABILITY_MINOR = 76
MAX_NAME = 256  # bytes, with the final NUL
NVIDIA_VENDOR = "0x10de"
DISPLAY_CLASSES = ("0x0300", "0x0302")  # PCI classes of a GPU with and without a display
NO_GPU = "this machine has no NVIDIA GPU"
ARCHITECTURE = re.compile(r"(?P<form>sm|compute)_(?P<major>\d+)(?P<minor>\d)(?P<only>a?)")


@frozen
class CudaExtra:
    """An extra of detcli: a release of CUDA and what is built for it."""

    name: str
    cuda: int  # the major version
    driver: int  # the first that runs it, from NVIDIA's release notes
    runtime: tuple[int, int, int]  # the newest onnxruntime-gpu that was looked into
    architectures: str  # what that has code for, in NVIDIA's names

    @property
    def command(self) -> str:
        return f'pip install "detcli[{self.name}]"'

    def runs_on(self, capability: str) -> bool:
        """Whether its ONNX Runtime has code for a GPU of a compute capability, such as "9.0".

        Machine code ("sm_90") runs on GPUs of the same major version from its minor version on, or
        on exactly one ("sm_90a"). The driver compiles "compute_90" for every later GPU.
        """
        gpu = tuple(int(number) for number in capability.split("."))
        for code in ARCHITECTURE.finditer(self.architectures):
            built_for = (int(code["major"]), int(code["minor"]))
            if code["only"]:
                runs = gpu == built_for
            else:
                may_differ = code["form"] == "compute"
                runs = gpu >= built_for and (may_differ or gpu[0] == built_for[0])
            if runs:
                return True
        return False

    def suits(self, gpus: Sequence["GpuFacts"]) -> bool:
        """Whether it runs on one of these GPUs, if there are any."""
        return not gpus or any(self.runs_on(gpu.capability) for gpu in gpus)


CUDA_EXTRAS: tuple[CudaExtra, ...] = (
    CudaExtra("cuda", 13, 580, (1, 31, 1), "sm_75 sm_80 sm_86 sm_89 sm_90a sm_120a"),
    CudaExtra("cuda12", 12, 525, (1, 26, 0), "sm_60 sm_70 sm_75 sm_80 sm_86 compute_90 sm_90a"),
)
"""The newest first."""
if platform.machine() == "aarch64":  # servers with a Grace, and no wheel with CUDA 12
    CUDA_EXTRAS = (CudaExtra("cuda", 13, 580, (1, 31, 1), "sm_89 sm_90a sm_120a sm_121a"),)


@frozen
class GpuFacts:
    """A GPU as the driver describes it."""

    name: str  # such as "NVIDIA H200"
    capability: str  # as in "9.0"
    memory_bytes: int


@frozen
class DriverFacts:
    """What the driver reports."""

    load_error: str | None = None  # the loader's message if the driver does not load
    # result of cuInit: 0, or CUDA's error number; None if the driver does not load
    status: int | None = None
    cuda: str | None = None  # the newest CUDA version it supports, such as "13.2"; None if unknown
    gpus: tuple[GpuFacts, ...] = ()  # the visible GPUs


def count_gpus() -> int:
    """Count the visible GPUs; 0 without a driver."""
    facts = ask_driver()
    if facts.status not in {None, 0, NO_DEVICE}:
        raise DeviceError(
            f"NVIDIA's driver does not work: CUDA error {facts.status}",
            "see whether nvidia-smi lists the GPU; after an update of the driver, restart",
        )
    return len(facts.gpus)


def ask_driver() -> DriverFacts:
    """Query the driver without a context, which would take GPU memory."""
    version = ctypes.c_int()
    count = ctypes.c_int()
    try:
        driver = ctypes.CDLL(DRIVER)
        # Answers even if nothing else works: 13020 is CUDA 13.2.
        failure = driver.cuDriverGetVersion(ctypes.byref(version))
        status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
        gpus = tuple(_describe(driver, ordinal) for ordinal in range(count.value))
    except (OSError, AttributeError) as error:  # missing, or another library of this name
        return DriverFacts(load_error=str(error))

    cuda = None
    if not failure and version.value:
        cuda = f"{version.value // 1000}.{version.value % 1000 // 10}"
    if status:
        gpus = ()
    return DriverFacts(status=status, cuda=cuda, gpus=gpus)


def has_gpu(root: Path = Path("/")) -> bool | None:
    """Whether the system shows one of NVIDIA's GPUs, whatever its driver says; None if unknown.

    Some virtual machines, sandboxes, WSL, and boards without a PCI bus do not show it.
    """
    if not sys.platform.startswith("linux"):
        if sys.platform == "darwin":
            return False
        return None
    devices = list(root.glob("sys/bus/pci/devices/*"))
    if not devices or "microsoft" in platform.release().lower():
        return None
    return any(_is_gpu(device) for device in devices)


def _is_gpu(device: Path) -> bool:
    """True if the folder of a PCI device says that it is one of NVIDIA's GPUs."""
    try:
        vendor = (device / "vendor").read_text().strip()
        pci_class = (device / "class").read_text().strip()
    except OSError:
        return False
    return vendor == NVIDIA_VENDOR and pci_class.startswith(DISPLAY_CLASSES)


def fitting_extra(facts: DriverFacts) -> CudaExtra | None:
    """The extra for the newest CUDA that this driver and one of its GPUs run; None for no such."""
    newest = None if facts.cuda is None else int(facts.cuda.partition(".")[0])
    for extra in CUDA_EXTRAS:
        is_too_new = newest is not None and newest < extra.cuda
        if not is_too_new and extra.suits(facts.gpus):
            return extra
    return None


def lacking_code(gpus: Sequence[GpuFacts], runtime: str, cuda: str | None) -> str | None:
    """Say that this ONNX Runtime, built for a CUDA, has no code for any of these GPUs.

    None if it has code, or if nothing is known about it.
    """
    if not cuda:
        return None
    cuda_release = int(cuda.partition(".")[0])
    version = tuple(int(number) for number in re.findall(r"\d+", runtime)[:3])
    for extra in CUDA_EXTRAS:
        if cuda_release != extra.cuda or version > extra.runtime:
            continue
        if extra.suits(gpus):
            return None
        capabilities = set()
        for code in ARCHITECTURE.finditer(extra.architectures):
            capabilities.add(f"{code['major']}.{code['minor']}")
        return (
            f"this ONNX Runtime has no code for {gpus[0].name}, of compute capability "
            f"{gpus[0].capability}: it was compiled for "
            f"{', '.join(sorted(capabilities, key=float))}"
        )
    return None


def cuda_command() -> str:
    """The command that installs CUDA for this machine's driver and GPUs."""
    return (fitting_extra(ask_driver()) or CUDA_EXTRAS[0]).command


def _describe(driver: ctypes.CDLL, ordinal: int) -> GpuFacts:
    """A GPU's name, capability and memory; empty where the driver does not answer."""
    device = ctypes.c_int()
    name = ctypes.create_string_buffer(MAX_NAME)
    major = ctypes.c_int()
    minor = ctypes.c_int()
    memory = ctypes.c_size_t()
    driver.cuDeviceGet(ctypes.byref(device), ordinal)
    driver.cuDeviceGetName(name, MAX_NAME, device)
    driver.cuDeviceGetAttribute(ctypes.byref(major), CAPABILITY_MAJOR, device)
    driver.cuDeviceGetAttribute(ctypes.byref(minor), CAPABILITY_MINOR, device)
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    return GpuFacts(
        name=name.value.decode(errors="replace"),
        capability=f"{major.value}.{minor.value}",
        memory_bytes=memory.value,
    )


def driver_version(root: Path = Path("/")) -> str | None:
    """Version of the driver's kernel module; None where it is not loaded, and outside Linux."""
    try:
        text = (root / "proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    version = re.search(r"Kernel Module(?: for \S+)?\s+(\d[\d.]+)", text)
    if version:
        return version[1]
    return None


def gpu_uuid(ordinal: int) -> str:
    """UUID of a GPU, or of a part of one (MIG), by its CUDA ordinal."""
    import uuid  # takes 2 ms

    if ordinal >= count_gpus():
        raise DeviceError(f"there is no GPU number {ordinal}", "see what nvidia-smi lists")
    driver = ctypes.CDLL(DRIVER)
    device = ctypes.c_int()
    identity = (ctypes.c_ubyte * 16)()
    status = driver.cuDeviceGet(ctypes.byref(device), ordinal)
    status = status or driver.cuDeviceGetUuid_v2(identity, device)
    if status:
        raise DeviceError(
            f"NVIDIA's driver does not name GPU number {ordinal}: CUDA error {status}",
            "see whether nvidia-smi lists it",
        )
    return str(uuid.UUID(bytes=bytes(identity)))
