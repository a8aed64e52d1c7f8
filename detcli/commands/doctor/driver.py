"""NVIDIA's hardware and driver: what is wrong, and the command that fixes it."""

import contextlib
import os
import stat
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from detcli.backend.nvidia import (
    CUDA_EXTRAS,
    DRIVER,
    NO_DEVICE,
    DriverFacts,
    driver_version,
    fitting_extra,
    lacking_code,
)
from detcli.commands.doctor.machine import distribution_ids, is_container, is_wsl, read_text
from detcli.commands.doctor.report import CPU_INSTEAD, DoctorProblem

NVIDIA_VENDOR = "0x10de"
DISPLAY_CLASSES = ("0x0300", "0x0302")  # PCI classes of a GPU with and without a display
DEVICE_FILES = ("nvidiactl", "nvidia-uvm", "nvidia0")
OPENED_BY_GROUP = stat.S_IRGRP | stat.S_IWGRP

DOWNLOAD = "download it from https://www.nvidia.com/drivers"
DETAILS = "run nvidia-smi for details; a restart may help"

# How distributions install a recent driver, by an ID of their os-release; the first match counts.
# Debian is missing because its own packages are too old.
INSTALL = {
    "ubuntu": "sudo ubuntu-drivers install",
    "fedora": "sudo dnf install akmod-nvidia",
    "arch": "sudo pacman -S nvidia-open",
}

NO_GPU = DoctorProblem("this machine has no NVIDIA GPU", None, CPU_INSTEAD)
NO_GPU_IN_CONTAINER = DoctorProblem(
    "this container was started without a GPU",
    "docker run --gpus all IMAGE",
    "the host needs an NVIDIA GPU and the NVIDIA Container Toolkit",
)
HIDDEN = DoctorProblem("CUDA_VISIBLE_DEVICES hides every GPU", "unset CUDA_VISIBLE_DEVICES")
UNKNOWN = DoctorProblem(
    "the driver does not start: CUDA error 999 (unknown)",
    "sudo modprobe -r nvidia_uvm && sudo modprobe nvidia_uvm",
    "common after suspending; a restart helps as well",
)

# Return values of cuInit, as numbered in cuda.h, that have a single cause.
STATUSES = {
    34: DoctorProblem(
        "the loader finds the CUDA toolkit's stub of libcuda.so.1, which is only for linking",
        "unset LD_LIBRARY_PATH",
        "or remove the folder named stubs from it",
    ),
    802: DoctorProblem(
        "the GPUs are waiting for the fabric manager", "sudo systemctl start nvidia-fabricmanager"
    ),
    803: DoctorProblem(
        "the driver's library and its kernel module are of different releases",
        "sudo reboot",
        "common after a driver update, until the machine restarts",
    ),
    804: DoctorProblem(
        "the loader finds cuda-compat's libcuda.so.1, which does not support this GPU",
        "sudo apt-get remove 'cuda-compat-*'",
        "or upgrade the driver itself",
    ),
}


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What the operating system shows of NVIDIA's hardware and driver, without asking the driver.

    Attributes:
        hardware: Whether the machine has an NVIDIA GPU; None where that cannot be told.
        driver: Version of the kernel module; None where it is not loaded.
        container: Whether this is a container; None where that cannot be told.
        wsl: Whether this is the Windows Subsystem for Linux.
        distribution: IDs of the Linux distribution and of those it derives from.
        inaccessible: The driver's files that this user may not open, such as "/dev/nvidia0", each
            with the group whose members may, if it is one made for devices.
        visible_devices: Whether CUDA_VISIBLE_DEVICES is set, which may hide GPUs.
    """

    hardware: bool | None = None
    driver: str | None = None
    container: bool | None = None
    wsl: bool = False
    distribution: tuple[str, ...] = ()
    inaccessible: tuple[tuple[str, str | None], ...] = ()
    visible_devices: bool = False


def read_host(root: Path = Path("/")) -> HostFacts:
    """Read what the operating system shows, in the file system below `root`."""
    visible_devices = "CUDA_VISIBLE_DEVICES" in os.environ
    if not sys.platform.startswith("linux"):
        hardware = False if sys.platform == "darwin" else None
        return HostFacts(hardware=hardware, visible_devices=visible_devices)
    files = [root / "dev" / name for name in DEVICE_FILES]
    closed = [file for file in files if file.exists() and not os.access(file, os.R_OK | os.W_OK)]
    return HostFacts(
        hardware=_has_gpu(root),
        driver=driver_version(root),
        container=is_container(root),
        wsl=is_wsl(),
        distribution=distribution_ids(),
        inaccessible=tuple((f"/dev/{file.name}", _device_group(file)) for file in closed),
        visible_devices=visible_devices,
    )


def _has_gpu(root: Path) -> bool | None:
    """Whether the PCI bus has an NVIDIA GPU; None where the bus is not shown."""
    if (root / "proc/driver/nvidia/version").exists():
        return True
    devices = list((root / "sys/bus/pci/devices").glob("*"))
    if not devices:
        return None  # some virtual machines, sandboxes, WSL, and boards without the bus
    return any(
        read_text(device / "vendor") == NVIDIA_VENDOR
        and read_text(device / "class").startswith(DISPLAY_CLASSES)
        for device in devices
    )


def _device_group(path: Path) -> str | None:
    """The group whose members may open a file; None for others, which may be named after people."""
    with contextlib.suppress(KeyError):  # the group has no name
        if path.stat().st_mode & OPENED_BY_GROUP == OPENED_BY_GROUP:
            return path.group() if path.group() in {"video", "render"} else None
    return None


def driver_problems(
    facts: DriverFacts,
    host: HostFacts,
    runtime_cuda: str | None,
    runtime: str,
) -> tuple[DoctorProblem, ...]:
    """Find out why CUDA cannot start on this driver: one problem, as others would follow from it.

    Args:
        facts: What the driver reports.
        host: What the operating system shows.
        runtime_cuda: The CUDA that ONNX Runtime was built for, such as "13.0"; None if unknown.
        runtime: ONNX Runtime's version.
    """
    if facts.load_error is not None:
        problem: DoctorProblem | None = _not_loaded(facts.load_error, host)
    elif facts.status or not facts.gpus:
        problem = _no_gpu_listed(facts.status or NO_DEVICE, host)
    else:
        problem = _unfit(facts, runtime_cuda, runtime, host)
    if problem is None:
        return ()
    if host.container and (problem.command or "").startswith("sudo "):
        where = "on the host, not in this container"
        problem = replace(problem, advice="; ".join(filter(None, (where, problem.advice))))
    return (problem,)


def _not_loaded(load_error: str, host: HostFacts) -> DoctorProblem:
    if host.hardware is False and not host.wsl:
        return NO_GPU
    if ".so" in load_error and "No such file" not in load_error:
        reason = f"the NVIDIA driver does not load: {load_error}"
        return DoctorProblem(reason, _install(host), DOWNLOAD)
    if host.wsl:
        advice = "install the NVIDIA driver in Windows, not here, then restart WSL"
        reason = f"Windows provides no GPU: {DRIVER} is missing"
        return DoctorProblem(reason, "wsl.exe --shutdown", advice)
    if host.container:
        return NO_GPU_IN_CONTAINER
    why = "the NVIDIA driver is not installed"
    if host.hardware is None:
        why = "no NVIDIA GPU, or its driver is not installed"
    return DoctorProblem(f"{why}: {DRIVER} is missing", _install(host), DOWNLOAD)


def _no_gpu_listed(status: int, host: HostFacts) -> DoctorProblem:
    if status in STATUSES:
        return STATUSES[status]
    if host.inaccessible:  # CUDA reports this as one of several errors
        return _no_permission(host)
    if status == 999:
        return UNKNOWN
    if status != NO_DEVICE:
        return DoctorProblem(f"CUDA error {status} from the driver", None, DETAILS)
    return HIDDEN if host.visible_devices else _no_device(host)


def _no_permission(host: HostFacts) -> DoctorProblem:
    paths, groups = zip(*host.inaccessible, strict=True)
    reason = f"no permission to open {', '.join(paths)}"
    if groups[0] is None:
        return DoctorProblem(reason, f"sudo chmod a+rw {' '.join(paths)}", "lasts until a restart")
    return DoctorProblem(reason, f'sudo usermod -aG {groups[0]} "$USER"', "then log in again")


def _no_device(host: HostFacts) -> DoctorProblem:
    if host.hardware is False and not host.wsl:
        return NO_GPU
    if host.container:
        return NO_GPU_IN_CONTAINER
    if host.hardware and host.driver is None:
        return DoctorProblem(
            "the NVIDIA kernel module is not loaded",
            "sudo modprobe nvidia",
            "if that fails, Secure Boot refuses it or it was built for another kernel",
        )
    return DoctorProblem("the NVIDIA driver lists no GPU", None, DETAILS)


def _unfit(
    facts: DriverFacts, runtime_cuda: str | None, runtime: str, host: HostFacts
) -> DoctorProblem | None:
    """The driver works, but perhaps not for this ONNX Runtime."""
    if runtime_cuda is None:
        return None
    major, _ = _numbers(runtime_cuda)
    instead = fitting_extra(facts)
    if facts.cuda is not None and _numbers(facts.cuda) < (major, 0):
        reason = (
            f"the driver supports CUDA up to {facts.cuda}, "
            f"but this ONNX Runtime was built for CUDA {runtime_cuda}"
        )
        where = " in Windows" if host.wsl else " on the host" if host.container else ""
        if instead:
            advice = f"or install {_first_driver(major)}{where}; {DOWNLOAD}"
            return DoctorProblem(reason, instead.command, advice)
        needed = f"{_first_driver(major)} is needed{where}"
        oldest = CUDA_EXTRAS[-1]
        if major > oldest.cuda:
            needed += f", or {oldest.driver} for {oldest.command}"
        return DoctorProblem(reason, _install(host), f"{needed}; {DOWNLOAD}")
    no_code = lacking_code(facts.gpus, runtime, runtime_cuda)
    if no_code is None:
        return None
    if instead is None:
        return DoctorProblem(no_code, None, CPU_INSTEAD)
    return DoctorProblem(no_code, instead.command)


def _first_driver(cuda: int) -> str:
    first = [extra.driver for extra in CUDA_EXTRAS if extra.cuda == cuda]
    return f"driver {first[0]} or later" if first else "a newer driver"


def _numbers(version: str) -> tuple[int, int]:
    major, minor = map(int, version.split("."))
    return major, minor


def _install(host: HostFacts) -> str | None:
    """The command that installs the driver; None in a container and in WSL, where it does harm."""
    if host.container or host.wsl:
        return None
    return next((INSTALL[name] for name in host.distribution if name in INSTALL), None)
