"""What is wrong with NVIDIA's driver, and the command that would fix it."""

from dataclasses import replace

from detcli.backend.nvidia import DRIVER, NO_DEVICE, DriverFacts
from detcli.commands.doctor.report import CPU_INSTEAD, Problem
from detcli.commands.doctor.surroundings import Surroundings

DOWNLOAD = "https://www.nvidia.com/drivers has it"
ASK = "nvidia-smi may say more; restarting the machine may help"

# How distributions install a driver that is new enough, by the ID of their os-release; the first
# that fits counts. Debian's own is not.
INSTALL = {
    "ubuntu": "sudo ubuntu-drivers install",
    "fedora": "sudo dnf install akmod-nvidia",
    "arch": "sudo pacman -S nvidia-open",
}

# The first driver that runs a release of CUDA, and the oldest GPUs that the release still knows.
# NVIDIA's release notes; CUDA 13 dropped what is older than Turing.
FIRST_DRIVER = {12: 525, 13: 580}
OLDEST_CAPABILITY = {12: (5, 0), 13: (7, 5)}

NO_GPU = Problem("this machine has no NVIDIA GPU", None, CPU_INSTEAD)
UNLENT = Problem(
    "this container was started without a GPU",
    "docker run --gpus all IMAGE",
    "the host needs an NVIDIA GPU and NVIDIA's container toolkit",
)
HIDDEN = Problem("CUDA_VISIBLE_DEVICES hides every GPU", "unset CUDA_VISIBLE_DEVICES")
UNKNOWN = Problem(
    "the driver does not start: CUDA error 999 (unknown)",
    "sudo modprobe -r nvidia_uvm && sudo modprobe nvidia_uvm",
    "so it is after suspending; restarting the machine helps as well",
)

# What cuInit returns, as cuda.h numbers it, where that has one meaning only.
STATUSES = {
    34: Problem(
        "the libcuda.so.1 that the loader finds is the stub of the CUDA toolkit, made for linking",
        "unset LD_LIBRARY_PATH",
        "or take the folder called stubs out of it",
    ),
    802: Problem(
        "the GPUs of this machine wait for the fabric manager",
        "sudo systemctl start nvidia-fabricmanager",
    ),
    803: Problem(
        "the driver's library and its kernel module are of different releases",
        "sudo reboot",
        "so it is after an update of the driver, until the machine starts again",
    ),
    804: Problem(
        "the libcuda.so.1 that the loader finds is cuda-compat's, which is not for this GPU",
        "sudo apt-get remove 'cuda-compat-*'",
        "or upgrade the driver itself",
    ),
}


def driver_problems(
    facts: DriverFacts, around: Surroundings, runtime_cuda: tuple[int, int] | None
) -> tuple[Problem, ...]:
    """Find why CUDA cannot start on this driver.

    Args:
        facts: What the driver says.
        around: What the system says.
        runtime_cuda: The CUDA that ONNX Runtime was built for, if it says.

    Returns:
        At most one: the others would be its consequences.
    """
    if facts.load_error is not None:
        problem: Problem | None = _unloaded(facts.load_error, around)
    elif facts.status or not facts.gpus:
        problem = _failed(facts.status or NO_DEVICE, around)
    else:
        problem = _too_old(facts, runtime_cuda, around)
    if problem is None:
        return ()
    if around.container and (problem.command or "").startswith("sudo "):
        where = "on the host, not in this container"
        problem = replace(problem, advice="; ".join(filter(None, (where, problem.advice))))
    return (problem,)


def _unloaded(said: str, around: Surroundings) -> Problem:
    """The driver's library does not load."""
    if around.hardware is False and not around.wsl:
        return NO_GPU
    if ".so" in said and "No such file" not in said:
        return Problem(f"NVIDIA's driver does not load: {said}", _install(around), DOWNLOAD)
    if around.wsl:
        advice = "install NVIDIA's driver in Windows, not in here; then start this Linux again"
        return Problem(f"Windows lends no GPU: {DRIVER} is missing", "wsl.exe --shutdown", advice)
    if around.container:
        return UNLENT
    why = "NVIDIA's driver is not installed"
    if around.hardware is None:
        why = "no NVIDIA GPU, or its driver is not installed"
    return Problem(f"{why}: {DRIVER} is missing", _install(around), DOWNLOAD)


def _failed(status: int, around: Surroundings) -> Problem:
    """The library loads, but shows no GPU."""
    if status in STATUSES:
        return STATUSES[status]
    if around.closed:  # which CUDA reports as any of several errors
        return _no_permission(around)
    if status == NO_DEVICE:
        return HIDDEN if around.hidden else _absent(around)
    if status == 999:
        return UNKNOWN
    return Problem(f"CUDA error {status} from the driver", None, ASK)


def _absent(around: Surroundings) -> Problem:
    """The driver finds nothing to drive."""
    if around.hardware is False and not around.wsl:
        return NO_GPU
    if around.container:
        return UNLENT
    if around.hardware and around.driver is None:
        return Problem(
            "the kernel's part of NVIDIA's driver is not loaded",
            "sudo modprobe nvidia",
            "if that fails: Secure Boot refuses it, or it was built for another kernel",
        )
    return Problem("NVIDIA's driver shows no GPU", None, ASK)


def _no_permission(around: Surroundings) -> Problem:
    paths = [file.path for file in around.closed]
    reason = f"no permission to open {', '.join(paths)}"
    group = around.closed[0].group
    if group is not None:
        return Problem(reason, f'sudo usermod -aG {group} "$USER"', "then log in again")
    return Problem(reason, f"sudo chmod a+rw {' '.join(paths)}", "until the next start")


def _too_old(
    facts: DriverFacts, runtime_cuda: tuple[int, int] | None, around: Surroundings
) -> Problem | None:
    """The driver works, but maybe not for this ONNX Runtime."""
    if runtime_cuda is None:
        return None
    major = runtime_cuda[0]
    built = f"CUDA {_dotted(runtime_cuda)}, which this ONNX Runtime was built for"
    if facts.cuda is not None and facts.cuda[0] < major:
        where = " in Windows" if around.wsl else " on the host" if around.container else ""
        needed = f"driver {FIRST_DRIVER[major]}" if major in FIRST_DRIVER else "a driver for that"
        reason = f"the driver runs CUDA up to {_dotted(facts.cuda)}, not {built}"
        advice = f"{needed} or later is needed{where}; {DOWNLOAD}"
        return Problem(reason, _install(around), advice)
    oldest = OLDEST_CAPABILITY.get(major, (0, 0))
    if all(gpu.capability < oldest for gpu in facts.gpus):
        gpu = facts.gpus[0]
        reason = (
            f"{gpu.name} is too old for {built}: its compute capability is "
            f"{_dotted(gpu.capability)}, and {_dotted(oldest)} is the least"
        )
        return Problem(reason, None, CPU_INSTEAD)
    return None


def _install(around: Surroundings) -> str | None:
    """The command that installs the driver; one in a container or in Windows' Linux does harm."""
    if around.container or around.wsl:
        return None
    return next((INSTALL[name] for name in around.distribution if name in INSTALL), None)


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
