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

# NVIDIA's name for code that was compiled for a generation of GPUs, such as "sm_90", "sm_120a" or
# "compute_90". The last digit is the minor version of the compute capability.
ARCHITECTURE = re.compile(
    r"(?P<form>sm|compute)_(?P<major>\d+)(?P<minor>\d)(?P<only_this_version>a?)"
)


@frozen
class CudaExtra:
    """An optional set of detcli's dependencies, for a release of CUDA: `detcli[cuda]`."""

    name: str
    cuda: int  # the major version
    driver: int  # the first driver that runs this CUDA, from NVIDIA's release notes
    runtime: tuple[int, int, int]  # the newest onnxruntime-gpu that `architectures` was read from
    architectures: str  # what this onnxruntime-gpu contains code for, in NVIDIA's names

    @property
    def command(self) -> str:
        return f'pip install "detcli[{self.name}]"'

    def runs_on(self, capability: str) -> bool:
        """Return whether this extra's ONNX Runtime contains code that a GPU can run.

        Args:
            capability: The GPU's compute capability, the version of its instructions, such as
                "9.0".
        """
        major, minor = capability.split(".")
        gpu_version = (int(major), int(minor))
        return any(
            _can_run(gpu_version, code) for code in ARCHITECTURE.finditer(self.architectures)
        )

    def suits(self, gpus: Sequence["GpuFacts"]) -> bool:
        """Return whether this extra runs on at least one of these GPUs, or no GPU is listed."""
        if not gpus:
            return True
        return any(self.runs_on(gpu.capability) for gpu in gpus)


def _can_run(gpu_version: tuple[int, int], code: re.Match[str]) -> bool:
    """Return whether a GPU can run code that was compiled for an architecture, by NVIDIA's rules.

    "sm_86" is machine code, for GPUs with the same major version and at least that minor version:
    8.6 and 8.9. "sm_90a" is machine code for 9.0 alone. "compute_90" is an intermediate language
    that the driver compiles for 9.0 and every later GPU.

    Args:
        gpu_version: Major and minor version of the GPU's compute capability.
        code: A match of `ARCHITECTURE`.
    """
    code_version = (int(code["major"]), int(code["minor"]))
    if code["only_this_version"]:
        return gpu_version == code_version
    is_late_enough = gpu_version >= code_version
    if code["form"] == "compute":
        return is_late_enough
    has_same_major = gpu_version[0] == code_version[0]
    return is_late_enough and has_same_major


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
    """Count the GPUs that NVIDIA's driver shows to this process; 0 if there is no driver.

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
    """Ask NVIDIA's driver which CUDA it supports and which GPUs it shows to this process.

    The driver is a shared library with functions in C, which return 0 or an error number. No
    context is created on a GPU, because that would take some of its memory.

    Returns:
        What the driver reports; only an error if there is no driver.
    """
    gpu_count = ctypes.c_int()
    gpus: list[GpuFacts] = []
    try:
        driver = ctypes.CDLL(DRIVER)
        cuda = _supported_cuda(driver)
        status = driver.cuInit(0)
        if status == 0:
            status = driver.cuDeviceGetCount(ctypes.byref(gpu_count))
        if status == 0:
            for ordinal in range(gpu_count.value):
                gpus.append(_describe_gpu(driver, ordinal))
    # The library is missing, or another one has its name, but not its functions.
    except (OSError, AttributeError) as error:
        return DriverFacts(load_error=str(error))
    return DriverFacts(status=status, cuda=cuda, gpus=tuple(gpus))


def _supported_cuda(driver: ctypes.CDLL) -> str | None:
    """Ask the driver for the newest CUDA that it supports, such as "13.2"; None if it fails.

    The driver answers this even if nothing else works, and before `cuInit`.
    """
    version = ctypes.c_int()
    error_number = driver.cuDriverGetVersion(ctypes.byref(version))
    if error_number or not version.value:
        return None
    # The driver counts 1000 for a major version and 10 for a minor version: 13020 is CUDA 13.2.
    major, remainder = divmod(version.value, 1000)
    return f"{major}.{remainder // 10}"


def has_gpu(root: Path = Path("/")) -> bool | None:
    """Look for one of NVIDIA's GPUs on the PCI bus, without asking its driver.

    Args:
        root: The folder that holds Linux's file system `sys`.

    Returns:
        Whether there is a GPU. None if that is unknown: on Windows and in its subsystem for Linux
        (WSL), and where Linux lists no PCI devices, as on some virtual machines and boards.
    """
    if sys.platform == "darwin":
        return False
    if not sys.platform.startswith("linux"):
        return None
    pci_devices = list(root.glob("sys/bus/pci/devices/*"))
    is_wsl = "microsoft" in platform.release().lower()
    if not pci_devices or is_wsl:
        return None
    return any(_is_gpu(device) for device in pci_devices)


def _is_gpu(device: Path) -> bool:
    """Return whether a PCI device is one of NVIDIA's GPUs, by its folder in Linux's file system."""
    try:
        vendor = (device / "vendor").read_text().strip()
        pci_class = (device / "class").read_text().strip()
    except OSError:
        return False
    return vendor == NVIDIA_VENDOR and pci_class.startswith(DISPLAY_CLASSES)


def fitting_extra(facts: DriverFacts) -> CudaExtra | None:
    """Choose detcli's extra for the newest CUDA that this driver and one of its GPUs can run.

    A driver that does not report its CUDA counts as new enough, and a machine without GPUs as one
    that runs everything. None if no extra is suitable.
    """
    for extra in CUDA_EXTRAS:  # the newest first
        if _supports_cuda(facts, extra.cuda) and extra.suits(facts.gpus):
            return extra
    return None


def _supports_cuda(facts: DriverFacts, major: int) -> bool:
    """Return whether a driver runs a major version of CUDA; True if it does not report its own."""
    if facts.cuda is None:
        return True
    newest_major, _, _ = facts.cuda.partition(".")
    return int(newest_major) >= major


def explain_lack_of_code(gpus: Sequence[GpuFacts], runtime: str, cuda: str | None) -> str | None:
    """Explain in a sentence that an installed ONNX Runtime has code for none of these GPUs.

    Args:
        gpus: The GPUs that it is to run on.
        runtime: The version of ONNX Runtime, such as "1.26.0".
        cuda: The CUDA that it was built for, such as "13.0"; None if unknown.

    Returns:
        A sentence for the user. None if there is code for one of the GPUs, or if detcli does not
        know what code this version of ONNX Runtime contains.
    """
    installed_extra = _extra_of_installed(runtime, cuda)
    if installed_extra is None or installed_extra.suits(gpus):
        return None

    # `architectures` lists the compute capabilities that it was compiled for.
    capabilities = set()
    for architecture in ARCHITECTURE.finditer(installed_extra.architectures):
        capabilities.add(f"{architecture['major']}.{architecture['minor']}")
    return (
        f"this ONNX Runtime has no code for {gpus[0].name}, of compute capability "
        f"{gpus[0].capability}: it was compiled for "
        f"{', '.join(sorted(capabilities, key=float))}"
    )


def _extra_of_installed(runtime: str, cuda: str | None) -> CudaExtra | None:
    """Find the extra of detcli whose `architectures` also hold for the installed ONNX Runtime.

    They were read from one version of ONNX Runtime. A newer one may contain code for others.

    Args:
        runtime: The installed version of ONNX Runtime, such as "1.26.0".
        cuda: The CUDA that it was built for, such as "13.0"; None if unknown.

    Returns:
        The extra for this CUDA; None if there is none, or if the installed version is newer than
        that of the extra.
    """
    if not cuda:
        return None
    cuda_major, _, _ = cuda.partition(".")
    installed_version = tuple(int(digits) for digits in re.findall(r"\d+", runtime)[:3])
    for extra in CUDA_EXTRAS:
        is_of_cuda = int(cuda_major) == extra.cuda
        is_newer_than_extra = installed_version > extra.runtime
        if is_of_cuda and not is_newer_than_extra:
            return extra
    return None


def cuda_command(installed_cuda: str | None = None) -> str:
    """Choose the command that installs CUDA for this machine's driver and GPUs.

    The command installs one of detcli's extras, each of which has the libraries of one CUDA.

    Args:
        installed_cuda: The CUDA that the installed ONNX Runtime was built for, such as "12.8". The
            extra for it is chosen if this machine can run it, as another one would mix two releases
            of CUDA.

    Returns:
        The command; that of the newest extra if this machine can run none.
    """
    facts = ask_driver()
    installed_major, _, _ = (installed_cuda or "").partition(".")
    for extra in CUDA_EXTRAS:
        is_installed = str(extra.cuda) == installed_major
        if is_installed and _supports_cuda(facts, extra.cuda) and extra.suits(facts.gpus):
            return extra.command

    newest_fitting_extra = fitting_extra(facts)
    if newest_fitting_extra is not None:
        return newest_fitting_extra.command
    return CUDA_EXTRAS[0].command  # the newest


def _describe_gpu(driver: ctypes.CDLL, ordinal: int) -> GpuFacts:
    """Ask the driver for a GPU's name, compute capability and memory.

    The driver's functions write their answers into the variables that they are passed. These stay
    empty or zero where the driver does not answer.

    Args:
        driver: The driver's shared library, after `cuInit`.
        ordinal: The CUDA ordinal of the GPU, from 0.
    """
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
    """Read the version of NVIDIA's driver, such as "580.95.05", from Linux's file system `proc`.

    Args:
        root: The folder that holds `proc`.

    Returns:
        The version; None if the driver's kernel module is not loaded, and outside Linux.
    """
    version_file = root / "proc/driver/nvidia/version"
    try:
        text = version_file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    version = re.search(r"Kernel Module(?: for \S+)?\s+(\d[\d.]+)", text)
    if version:
        return version[1]
    return None


def gpu_uuid(ordinal: int) -> str:
    """Ask the driver for the UUID of a GPU, which names it whatever order GPUs are listed in.

    Args:
        ordinal: The CUDA ordinal, from 0, of a GPU or of a part of one (MIG).

    Raises:
        DeviceError: The GPU does not exist, or the driver does not answer.
    """
    import uuid  # here, as it takes 2 ms and few commands need it

    if ordinal >= count_gpus():
        raise DeviceError(f"there is no GPU number {ordinal}", "see what nvidia-smi lists")
    driver = ctypes.CDLL(DRIVER)
    device = ctypes.c_int()
    uuid_bytes = (ctypes.c_ubyte * 16)()
    status = driver.cuDeviceGet(ctypes.byref(device), ordinal)
    if status == 0:
        status = driver.cuDeviceGetUuid_v2(uuid_bytes, device)
    if status:
        raise DeviceError(
            f"NVIDIA's driver does not name GPU number {ordinal}: CUDA error {status}",
            "see whether nvidia-smi lists it",
        )
    return str(uuid.UUID(bytes=bytes(uuid_bytes)))
