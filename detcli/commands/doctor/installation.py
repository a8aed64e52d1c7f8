"""The driver, packages and libraries: what is wrong, and the command that fixes it."""

import contextlib
import functools
import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from email.parser import HeaderParser
from pathlib import Path
from typing import TYPE_CHECKING

from detcli.backend.nvidia import (
    CUDA_EXTRAS,
    DRIVER,
    NO_DEVICE,
    DriverFacts,
    driver_version,
    fitting_extra,
    lacking_code,
)
from detcli.core.device import Device

if TYPE_CHECKING:
    from detcli.backend.runtime.libraries import Unloadable

CPU_INSTEAD = "use --device cpu"

CUDA = Device.parse("cuda").provider
DRIVERS = ("libcuda.", "nvcuda")  # NVIDIA's driver, which `driver_problems` explains

# What detcli always needs, each with an attribute: when a package's files are removed, an empty
# folder may be left, and that can be imported.
REQUIRED = {
    "numpy": "ndarray",
    "onnx": "ModelProto",
    "onnxruntime": "InferenceSession",
    "cv2": "imdecode",
}

NO_LIBRARY = re.compile(r"lib\S+\.so\S*: cannot open shared object file")

NVIDIA_VENDOR = "0x10de"
DISPLAY_CLASSES = ("0x0300", "0x0302")  # PCI classes of a GPU with and without a display
DEVICE_FILES = ("nvidiactl", "nvidia-uvm", "nvidia0")
CONTAINER_FILES = (".dockerenv", "run/.containerenv", "run/systemd/container")

DOWNLOAD = "download it from https://www.nvidia.com/drivers"
DETAILS = "run nvidia-smi for details; a restart may help"

# How distributions install a recent driver, by an ID of their os-release; the first match counts.
# Debian is missing because its own packages are too old.
INSTALL = {
    "ubuntu": "sudo ubuntu-drivers install",
    "fedora": "sudo dnf install akmod-nvidia",
    "arch": "sudo pacman -S nvidia-open",
}


@dataclass(frozen=True, slots=True)
class DoctorProblem:
    """Something that does not work; the one command that fixes it, if there is one; advice."""

    reason: str
    command: str | None
    advice: str = ""


NO_GPU = DoctorProblem("this machine has no NVIDIA GPU", None, CPU_INSTEAD)
NO_GPU_IN_CONTAINER = DoctorProblem(
    "this container was started without a GPU",
    "docker run --gpus all IMAGE",
    "the host needs an NVIDIA GPU and the NVIDIA Container Toolkit",
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
    999: DoctorProblem(
        "the driver does not start: CUDA error 999 (unknown)",
        "sudo modprobe -r nvidia_uvm && sudo modprobe nvidia_uvm",
        "common after suspending; a restart helps as well",
    ),
}


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What the operating system shows of NVIDIA's hardware, without asking the driver."""

    hardware: bool | None = None  # whether there is a GPU; None where that cannot be told
    driver: str | None = None  # version of the kernel module; None where it is not loaded
    container: bool = False
    wsl: bool = False  # the Windows Subsystem for Linux, which shares Windows' driver
    distribution: tuple[str, ...] = ()  # IDs of the Linux, and of those it derives from
    inaccessible: tuple[str, ...] = ()  # files of the driver that this user may not open
    visible_devices: bool = False  # whether CUDA_VISIBLE_DEVICES is set, which may hide GPUs


@dataclass(frozen=True, slots=True)
class RuntimeFacts:
    """What ONNX Runtime reports."""

    version: str
    cuda: str | None  # that it was built for, such as "13.0"
    providers: Sequence[str]
    failures: Mapping[str, Sequence["Unloadable"]]  # by GPU provider: libraries that do not load
    cuda_command: str  # installs the CUDA that fits the driver


def read_host(root: Path = Path("/")) -> HostFacts:
    """Read what the operating system shows, in the file system below `root`."""
    visible_devices = "CUDA_VISIBLE_DEVICES" in os.environ
    if not sys.platform.startswith("linux"):
        hardware = False if sys.platform == "darwin" else None
        return HostFacts(hardware=hardware, visible_devices=visible_devices)
    release: Mapping[str, str] = {}
    with contextlib.suppress(OSError):
        release = platform.freedesktop_os_release()
    files = [root / "dev" / name for name in DEVICE_FILES]
    closed = [file for file in files if file.exists() and not os.access(file, os.R_OK | os.W_OK)]
    return HostFacts(
        hardware=_has_gpu(root),
        driver=driver_version(root),
        container="KUBERNETES_SERVICE_HOST" in os.environ
        or any((root / sign).exists() for sign in CONTAINER_FILES),
        wsl="microsoft" in platform.release().lower(),
        distribution=tuple(filter(None, (release.get("ID"), *release.get("ID_LIKE", "").split()))),
        inaccessible=tuple(f"/dev/{file.name}" for file in closed),
        visible_devices=visible_devices,
    )


def _has_gpu(root: Path) -> bool | None:
    """Whether the PCI bus has an NVIDIA GPU; None where the bus is not shown."""
    if (root / "proc/driver/nvidia/version").exists():
        return True
    devices = list((root / "sys/bus/pci/devices").glob("*"))
    if not devices:
        return None  # some virtual machines, sandboxes, WSL, and boards without the bus
    for device in devices:
        with contextlib.suppress(OSError):
            if (device / "vendor").read_text().strip() == NVIDIA_VENDOR and (
                device / "class"
            ).read_text().startswith(DISPLAY_CLASSES):
                return True
    return False


def driver_problems(
    facts: DriverFacts, host: HostFacts, runtime: RuntimeFacts
) -> tuple[DoctorProblem, ...]:
    """Why CUDA cannot start on this driver: one problem, as others would follow from it."""
    if facts.load_error is not None:
        problem: DoctorProblem | None = _not_loaded(facts.load_error, host)
    elif facts.status or not facts.gpus:
        problem = _no_gpu_listed(facts.status or NO_DEVICE, host)
    else:
        problem = _unfit(facts, runtime, host)
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
    problem = DoctorProblem("the NVIDIA driver lists no GPU", None, DETAILS)
    if host.inaccessible:  # CUDA reports this as one of several errors
        problem = DoctorProblem(
            f"no permission to open {', '.join(host.inaccessible)}",
            f"sudo chmod a+rw {' '.join(host.inaccessible)}",
            "which lasts until a restart; for good, join the group that owns them",
        )
    elif status in STATUSES:
        problem = STATUSES[status]
    elif status != NO_DEVICE:
        problem = DoctorProblem(f"CUDA error {status} from the driver", None, DETAILS)
    elif host.visible_devices:
        problem = DoctorProblem(
            "CUDA_VISIBLE_DEVICES hides every GPU", "unset CUDA_VISIBLE_DEVICES"
        )
    elif host.hardware is False and not host.wsl:
        problem = NO_GPU
    elif host.container:
        problem = NO_GPU_IN_CONTAINER
    elif host.hardware and host.driver is None:
        problem = DoctorProblem(
            "the NVIDIA kernel module is not loaded",
            "sudo modprobe nvidia",
            "if that fails, Secure Boot refuses it or it was built for another kernel",
        )
    return problem


def _unfit(facts: DriverFacts, runtime: RuntimeFacts, host: HostFacts) -> DoctorProblem | None:
    """The driver works, but perhaps not for this ONNX Runtime."""
    if runtime.cuda is None:
        return None
    major = int(runtime.cuda.partition(".")[0])
    instead = fitting_extra(facts)
    if facts.cuda is None or int(facts.cuda.partition(".")[0]) >= major:
        no_code = lacking_code(facts.gpus, runtime.version, runtime.cuda)
        if no_code is None:
            return None
        if instead is None:
            return DoctorProblem(no_code, None, CPU_INSTEAD)
        return DoctorProblem(no_code, instead.command)
    reason = (
        f"the driver supports CUDA up to {facts.cuda}, "
        f"but this ONNX Runtime was built for CUDA {runtime.cuda}"
    )
    where = " in Windows" if host.wsl else " on the host" if host.container else ""
    first = [f"driver {extra.driver} or later" for extra in CUDA_EXTRAS if extra.cuda == major]
    newer = first[0] if first else "a newer driver"
    if instead:
        return DoctorProblem(reason, instead.command, f"or install {newer}{where}; {DOWNLOAD}")
    oldest = CUDA_EXTRAS[-1]
    other = f", or {oldest.driver} for {oldest.command}" if major > oldest.cuda else ""
    advice = f"{newer} is needed{where}{other}; {DOWNLOAD}"
    return DoctorProblem(reason, _install(host), advice)


def _install(host: HostFacts) -> str | None:
    """The command that installs the driver; None in a container and in WSL, where it does harm."""
    if host.container or host.wsl:
        return None
    return next((INSTALL[name] for name in host.distribution if name in INSTALL), None)


def owners(module: str) -> dict[str, str]:
    """The packages that installed a module, with their versions, in the first folder on the path.

    If there are several, they have overwritten each other's files.
    """
    folders: dict[Path, dict[str, str]] = {}
    for name, version, package in _distributions(tuple(sys.path)):
        declared = (package.read_text("top_level.txt") or "").split()
        installed = re.search(rf"^{module}/", package.read_text("RECORD") or "", re.MULTILINE)
        if module in declared or installed:
            folder = Path(str(package.locate_file(""))).resolve()
            folders.setdefault(folder, {}).setdefault(name, version)
    return dict(sorted(next(iter(folders.values()), {}).items()))


@functools.cache
def _distributions(path: tuple[str, ...]) -> list[tuple[str, str, importlib.metadata.Distribution]]:
    """Installed packages with names and versions, without the remains of interrupted removals."""
    found = []
    for package in importlib.metadata.distributions(path=[*path]):
        # `package.metadata` would parse the README that follows the headers, too.
        text = package.read_text("METADATA") or package.read_text("PKG-INFO") or ""
        headers = HeaderParser().parsestr(text.partition("\n\n")[0])
        if "Name" in headers:
            name = re.sub(r"[-_.]+", "-", headers["Name"]).lower()
            found.append((name, headers["Version"], package))
    return found


def find_mixture() -> DoctorProblem | None:
    """The problem if packages of ONNX Runtime are installed over each other."""
    names = owners("onnxruntime")
    if len(names) < 2:
        return None
    return DoctorProblem(
        f"{' and '.join(names)} are installed over each other",
        f"pip uninstall -y {' '.join(names)} && pip install {_package('onnxruntime')}",
        "one of them is enough; both install the same files",
    )


def explain(module: str, error: str) -> DoctorProblem:
    """What to do about a module of REQUIRED that does not load; `error` says why."""
    if module == "onnxruntime" and (mixture := find_mixture()):
        return mixture
    package, installed = _package(module), owners(module)
    if not installed:
        return DoctorProblem(f"{package} is not installed", f"pip install {package}")
    names = " ".join(installed)
    reason = f"{names} does not load: {error}"
    if "SIGILL" in error or "not found (required by" in error:  # reinstalling does not fix it
        advice = "this system is too old for it, or LD_LIBRARY_PATH leads to an older library"
        return DoctorProblem(reason, None, advice)
    if module == "cv2" and NO_LIBRARY.search(error):
        # Over it: what requires opencv-python stays satisfied. `make setup` does the same.
        headless = f"opencv-python-headless=={next(iter(installed.values()))}"
        command = f"pip install --force-reinstall --no-deps {headless}"
        advice = "or install what it needs (Debian, Ubuntu: apt-get install libgl1 libglib2.0-0)"
        return DoctorProblem(reason, command, advice)
    if len(installed) > 1:
        return DoctorProblem(reason, f"pip uninstall -y {names} && pip install {package}")
    # The same version and nothing else: other packages may not work with a newer one.
    exactly = "".join(f"{name}=={version}" for name, version in installed.items())
    return DoctorProblem(reason, f"pip install --force-reinstall --no-deps {exactly}")


def _package(module: str) -> str:
    """The package that detcli requires for a module of REQUIRED."""
    runtime = "onnxruntime-gpu" if gpu_wheel_exists() else "onnxruntime"
    return {"cv2": "opencv-python", "onnxruntime": runtime}.get(module, module)


def gpu_wheel_exists() -> bool:
    """Whether PyPI has a wheel of onnxruntime-gpu for this machine."""
    system = sys.platform.startswith("linux") or sys.platform == "win32"
    return system and platform.machine() in {"x86_64", "AMD64"}


def provider_problems(provider: str, runtime: RuntimeFacts) -> tuple[DoctorProblem, ...]:
    """What an execution provider lacks: one problem for each command that fixes something."""
    if provider not in runtime.providers:
        return (find_mixture() or _not_built_in(provider, runtime),)
    from detcli.backend.runtime.libraries import summary

    groups: dict[str, list[Unloadable]] = {}
    # TensorRT's provider needs everything that CUDA's needs, and more.
    for name in dict.fromkeys((CUDA, provider)):
        known = set(groups)
        for entry in runtime.failures[name]:
            if entry.remedy not in known and not entry.library.startswith(DRIVERS):
                groups.setdefault(entry.remedy, []).append(entry)
    return tuple(
        DoctorProblem(summary(entries), remedy)
        if remedy.startswith("pip ")
        else DoctorProblem(summary(entries), None, remedy)
        for remedy, entries in groups.items()
    )


def _not_built_in(provider: str, runtime: RuntimeFacts) -> DoctorProblem:
    if not gpu_wheel_exists():
        machine = f"{platform.system()} on {platform.machine()}"
        return DoctorProblem(f"PyPI has no ONNX Runtime with CUDA for {machine}", None, CPU_INSTEAD)
    names = " ".join(owners("onnxruntime")) or "onnxruntime"
    return DoctorProblem(
        f"the installed {names} {runtime.version} was built without {provider}",
        f"pip uninstall -y {names} && {runtime.cuda_command}",
    )
