"""The driver, packages and libraries: what is wrong, and the command that fixes it."""

import contextlib
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from detcli.backend.nvidia import (
    CUDA_EXTRAS,
    DRIVER,
    NO_DEVICE,
    NO_GPU,
    DriverFacts,
    driver_version,
    explain_lack_of_code,
    fitting_extra,
    has_gpu,
)
from detcli.config.device import Device
from detcli.core import frozen

if TYPE_CHECKING:
    from detcli.backend.libraries import Unloadable

CPU_INSTEAD = "use --device cpu"

CUDA = Device.parse("cuda").provider
DRIVERS = ("libcuda.", "nvcuda")  # libraries of NVIDIA's driver, see `driver_problem`

# What detcli always needs, each with an attribute: when a package's files are removed, an empty
# folder may be left, and that can be imported.
REQUIRED = {
    "numpy": "ndarray",
    "onnx": "ModelProto",
    "onnxruntime": "InferenceSession",
    "cv2": "imdecode",
}

DEVICE_FILES = ("nvidiactl", "nvidia-uvm", "nvidia0")
CONTAINER_FILES = (".dockerenv", "run/.containerenv", "run/systemd/container")

DOWNLOAD = "download it from https://www.nvidia.com/drivers"
DETAILS = "run nvidia-smi for details; a restart may help"

# How distributions install a recent driver, by an ID of their os-release; the first match is used.
# Debian is missing because its own packages are too old.
INSTALL = {
    "ubuntu": "sudo ubuntu-drivers install",
    "fedora": "sudo dnf install akmod-nvidia",
    "arch": "sudo pacman -S nvidia-open",
}


@frozen
class DoctorProblem:
    """Something that does not work; the one command that fixes it, if there is one; advice."""

    reason: str
    command: str | None = None
    advice: str = ""


NO_GPU_HERE = DoctorProblem(NO_GPU, advice=CPU_INSTEAD)
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


@frozen
class HostFacts:
    """What the operating system shows of NVIDIA's hardware, without asking the driver."""

    hardware: bool | None = None  # whether there is a GPU; None where that cannot be told
    driver: str | None = None  # version of the kernel module; None where it is not loaded
    container: bool = False
    wsl: bool = False  # the Windows Subsystem for Linux, which shares Windows' driver
    distribution: tuple[str, ...] = ()  # IDs of the Linux, and of those it derives from
    inaccessible: tuple[str, ...] = ()  # files of the driver that this user may not open
    sets_visible_devices: bool = False  # whether CUDA_VISIBLE_DEVICES is set, which may hide GPUs


def read_host(root: Path = Path("/")) -> HostFacts:
    """Read what the operating system shows of NVIDIA's hardware and driver.

    Args:
        root: The root of the file system; another folder in tests.
    """
    sets_visible_devices = "CUDA_VISIBLE_DEVICES" in os.environ
    if not sys.platform.startswith("linux"):
        return HostFacts(hardware=has_gpu(root), sets_visible_devices=sets_visible_devices)

    driver = driver_version(root)
    has_hardware: bool | None = True  # where the driver is loaded, there is a GPU
    if driver is None:
        has_hardware = has_gpu(root)

    os_release: Mapping[str, str] = {}  # the entries of /etc/os-release
    with contextlib.suppress(OSError):
        os_release = platform.freedesktop_os_release()
    related_distributions = os_release.get("ID_LIKE", "").split()
    return HostFacts(
        hardware=has_hardware,
        driver=driver,
        container=_is_container(root),
        wsl="microsoft" in platform.release().lower(),
        distribution=(os_release.get("ID", ""), *related_distributions),
        inaccessible=_inaccessible_files(root),
        sets_visible_devices=sets_visible_devices,
    )


def _inaccessible_files(root: Path) -> tuple[str, ...]:
    """List the device files of the driver that exist, but that this user may not open."""
    inaccessible = []
    for name in DEVICE_FILES:
        file = root / "dev" / name
        if file.exists() and not os.access(file, os.R_OK | os.W_OK):
            inaccessible.append(f"/dev/{name}")
    return tuple(inaccessible)


def _is_container(root: Path) -> bool:
    """Whether this is a container, by the files that container engines put into it."""
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return True
    return any((root / name).exists() for name in CONTAINER_FILES)


def driver_problem(
    facts: DriverFacts, host: HostFacts, version: str, cuda: str | None
) -> DoctorProblem | None:
    """Find out why CUDA cannot start on this machine, from what NVIDIA's driver says.

    The driver is what everything on a GPU depends on, so this is asked before anything else.

    Args:
        facts: What the driver says, or why it does not load.
        host: What the operating system shows.
        version: The version of ONNX Runtime.
        cuda: The version of CUDA that ONNX Runtime was built for, such as "13.0"; None if unknown.

    Returns:
        What is wrong and how to fix it; None if nothing is. In a container, advice is added to a
        command that has to run on the host.
    """
    problem: DoctorProblem | None
    if facts.load_error is not None:
        problem = _explain_load_error(facts.load_error, host)
    elif facts.status or not facts.gpus:
        problem = _explain_missing_gpu(facts.status or NO_DEVICE, host)
    else:
        problem = _explain_unfit_driver(facts, host, version, cuda)
    if problem is not None and host.container:
        return _for_container(problem)
    return problem


def _for_container(problem: DoctorProblem) -> DoctorProblem:
    """Add to a problem in a container that its command runs on the host, if it needs root."""
    if problem.command is None or not problem.command.startswith("sudo "):
        return problem
    advice = "on the host, not in this container"
    if problem.advice:
        advice += f"; {problem.advice}"
    return replace(problem, advice=advice)


def _explain_load_error(load_error: str, host: HostFacts) -> DoctorProblem:
    """Explain why the library of NVIDIA's driver does not load, and what to do.

    Args:
        load_error: The loader's message, which usually says that the library is missing.
        host: What the operating system shows of the hardware.
    """
    if host.hardware is False:
        return NO_GPU_HERE
    if ".so" in load_error and "No such file" not in load_error:
        reason = f"the NVIDIA driver does not load: {load_error}"
        return DoctorProblem(reason, _install(host), DOWNLOAD)
    if host.wsl:
        return DoctorProblem(
            f"Windows provides no GPU: {DRIVER} is missing",
            "wsl.exe --shutdown",
            "install the NVIDIA driver in Windows, not here, then restart WSL",
        )
    if host.container:
        return NO_GPU_IN_CONTAINER
    reason = "the NVIDIA driver is not installed"
    if host.hardware is None:
        reason = "no NVIDIA GPU, or its driver is not installed"
    return DoctorProblem(f"{reason}: {DRIVER} is missing", _install(host), DOWNLOAD)


def _explain_missing_gpu(status: int, host: HostFacts) -> DoctorProblem:
    """Explain why the driver loads, but lists no GPU, and what to do.

    Args:
        status: What the driver's function cuInit has returned, as numbered in cuda.h; NO_DEVICE
            where it lists no GPU.
        host: What the operating system shows of the hardware.
    """
    # CUDA reports files that may not be opened as one of several errors, so they come first.
    if host.inaccessible:
        return DoctorProblem(
            f"no permission to open {', '.join(host.inaccessible)}",
            f"sudo chmod a+rw {' '.join(host.inaccessible)}",
            "which lasts until a restart; for good, join the group that owns them",
        )
    if status != NO_DEVICE:
        unknown = DoctorProblem(f"CUDA error {status} from the driver", advice=DETAILS)
        return STATUSES.get(status, unknown)
    if host.sets_visible_devices:
        command = "unset CUDA_VISIBLE_DEVICES"
        if sys.platform == "win32":
            command = "set CUDA_VISIBLE_DEVICES="
        return DoctorProblem("CUDA_VISIBLE_DEVICES hides every GPU", command)
    if host.hardware is False:
        return NO_GPU_HERE
    if host.container:
        return NO_GPU_IN_CONTAINER
    if host.hardware and host.driver is None:
        return DoctorProblem(
            "the NVIDIA kernel module is not loaded",
            "sudo modprobe nvidia",
            "if that fails, Secure Boot refuses it or it was built for another kernel",
        )
    return DoctorProblem("the NVIDIA driver lists no GPU", advice=DETAILS)


def _explain_unfit_driver(
    facts: DriverFacts, host: HostFacts, version: str, cuda: str | None
) -> DoctorProblem | None:
    """Explain why a working driver, or a GPU, is incompatible with the installed ONNX Runtime.

    The driver may be too old for the release of CUDA that ONNX Runtime was built for; or that build
    of ONNX Runtime has no machine code for the GPUs.

    Args:
        facts: What the driver says.
        host: What the operating system shows.
        version: The version of ONNX Runtime.
        cuda: The version of CUDA that it was built for; None if unknown.

    Returns:
        The problem; None if everything fits, or nothing is known.
    """
    if cuda is None:
        return None
    driver_is_too_old = facts.cuda is not None and _major(facts.cuda) < _major(cuda)
    if driver_is_too_old:
        return _explain_old_driver(facts, host, cuda)
    lack_of_code = explain_lack_of_code(facts.gpus, version, cuda)
    if not lack_of_code:
        return None
    extra = fitting_extra(facts)
    if extra:
        return DoctorProblem(lack_of_code, extra.command)
    return DoctorProblem(lack_of_code, advice=CPU_INSTEAD)


def _explain_old_driver(facts: DriverFacts, host: HostFacts, cuda: str) -> DoctorProblem:
    """Explain what to do about a driver that is too old for ONNX Runtime's release of CUDA.

    The user can install an extra of detcli, such as detcli[cuda12], whose ONNX Runtime the driver
    supports. Without such an extra, the user needs a newer driver.

    Args:
        facts: What the driver says.
        host: What the operating system shows, to name the command that installs a driver here.
        cuda: The version of CUDA that ONNX Runtime was built for.
    """
    reason = (
        f"the driver supports CUDA up to {facts.cuda}, "
        f"but this ONNX Runtime was built for CUDA {cuda}"
    )
    required_major = _major(cuda)
    newer_driver = _newer_driver(required_major)
    location = ""  # words that say where the driver has to be installed, if not here
    if host.wsl:
        location = " in Windows"
    elif host.container:
        location = " on the host"

    extra = fitting_extra(facts)
    if extra:
        advice = f"or install {newer_driver}{location}; {DOWNLOAD}"
        return DoctorProblem(reason, extra.command, advice)

    advice = f"{newer_driver} is needed{location}"
    # The extra for the oldest CUDA works with older drivers. It does not help if the installed
    # ONNX Runtime was already built for that CUDA.
    oldest_extra = CUDA_EXTRAS[-1]
    if required_major > oldest_extra.cuda:
        advice += f", or {oldest_extra.driver} for {oldest_extra.command}"
    return DoctorProblem(reason, _install(host), f"{advice}; {DOWNLOAD}")


def _major(version: str) -> int:
    """Return the first number of a version: 12 of "12.8"."""
    return int(version.partition(".")[0])


def _newer_driver(cuda_major: int) -> str:
    """Name the driver that a release of CUDA needs."""
    for extra in CUDA_EXTRAS:
        if extra.cuda == cuda_major:
            return f"driver {extra.driver} or later"
    return "a newer driver"


def _install(host: HostFacts) -> str | None:
    """Return the command that installs the driver, if it is known for this distribution.

    None in a container and in WSL, where installing it does harm.
    """
    if host.container or host.wsl:
        return None
    for name in host.distribution:
        if name in INSTALL:
            return INSTALL[name]
    return None


def provider_problems(
    provider: str, version: str, failures: Mapping[str, Sequence["Unloadable"]]
) -> tuple[DoctorProblem, ...]:
    """Explain what ONNX Runtime lacks to run on a GPU through CUDA or TensorRT.

    ONNX Runtime has an execution provider for each of the two: a part of it that may be missing
    from a build, and that loads libraries of NVIDIA. A library that does not load comes with a
    remedy, the text that says how to install it; libraries with the same remedy are one problem.

    Args:
        provider: The name of the execution provider: CUDA's or TensorRT's.
        version: The version of ONNX Runtime.
        failures: For each GPU provider that this ONNX Runtime has, the libraries that do not load.
            If it has TensorRT's, it has CUDA's too.

    Returns:
        A problem for each remedy; none if nothing is lacking.
    """
    from detcli.backend.libraries import not_built_in, summary

    if provider not in failures:
        reason, remedy = not_built_in(provider, version)
        return (problem_of(reason, remedy),)

    problems = []
    cuda_failures = _failures_by_remedy(failures[CUDA])
    for remedy, libraries in cuda_failures.items():
        problems.append(problem_of(summary(libraries), remedy))
    if provider == CUDA:
        return tuple(problems)

    # TensorRT's provider needs all of CUDA's libraries, and more. What a remedy above fixes is not
    # reported again.
    for remedy, libraries in _failures_by_remedy(failures[provider]).items():
        if remedy not in cuda_failures:
            problems.append(problem_of(summary(libraries), remedy))
    return tuple(problems)


def _failures_by_remedy(failures: Sequence["Unloadable"]) -> dict[str, list["Unloadable"]]:
    """Group the libraries that do not load by the text that says how to install them.

    The libraries of NVIDIA's driver are left out, since `driver_problem` explains these.
    """
    failures_by_remedy: dict[str, list[Unloadable]] = {}
    for failure in failures:
        if not failure.library.startswith(DRIVERS):
            failures_by_remedy.setdefault(failure.remedy, []).append(failure)
    return failures_by_remedy


def problem_of(reason: str, remedy: str) -> DoctorProblem:
    """Build a problem for the report from a reason and a remedy, which are both text.

    A remedy that begins with a command of pip, as in "pip install x; then restart", is split into
    the command and the advice after its semicolon. Any other remedy is advice.
    """
    if not remedy.startswith("pip "):
        return DoctorProblem(reason, advice=remedy)
    command, _, advice = remedy.partition("; ")
    return DoctorProblem(reason, command, advice)
