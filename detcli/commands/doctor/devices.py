"""Each device: usable, or the reasons why not."""

import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from detcli.backend.device import PROVIDERS, Device
from detcli.commands.doctor import process
from detcli.commands.doctor.packages import gpu_wheel_exists
from detcli.commands.doctor.process import Outcome
from detcli.commands.doctor.report import CPU_INSTEAD, DoctorDevice, Problem

if TYPE_CHECKING:
    from detcli.backend.runtime.libraries import Unloadable

CUDA_EXTRA = "pip install 'detcli[cuda]'"
DRIVERS = ("libcuda.", "nvcuda")  # NVIDIA's driver, which is another matter

# Where CUDA, cuDNN and TensorRT put their libraries on Linux, and where pip does on its path.
SYSTEM = ("usr/local/cuda*/lib*", "usr/local/cuda*/targets/*/lib", "opt/cuda/lib*",
          "usr/lib/x86_64-linux-gnu", "usr/lib64")  # fmt: skip
PACKAGED = ("nvidia/*/lib", "tensorrt_libs")


@dataclass(frozen=True, slots=True)
class Ground:
    """What the devices stand on.

    Attributes:
        broken: What no device can do without, and is broken.
        driver: What is wrong with NVIDIA's driver, or with what should ask the libraries.
        mixture: What is wrong if packages of ONNX Runtime are installed over each other.
        packages: The packages of ONNX Runtime that are installed.
        version: Of ONNX Runtime.
        providers: What it was built with.
        failures: Libraries that do not load, for each of its GPU providers.
    """

    broken: tuple[Problem, ...] = ()
    driver: tuple[Problem, ...] = ()
    mixture: Problem | None = None
    packages: tuple[str, ...] = ()
    version: str = ""
    providers: Sequence[str] = ()
    failures: Mapping[str, Sequence["Unloadable"]] | None = None


def examine_devices(ground: Ground, wanted: str | None = None) -> tuple[DoctorDevice, ...]:
    """Find out which devices can be used; a GPU by running a small detector there.

    Args:
        ground: What they stand on.
        wanted: A device whose number matters: "cuda:1" stands for "cuda" then.
    """
    devices = []
    for kind, provider in PROVIDERS.items():
        is_wanted = wanted is not None and Device.parse(wanted).kind is kind
        name = wanted if wanted is not None and is_wanted else kind.value
        problems = ground.broken
        if not problems and Device(kind).is_gpu:
            problems = (*ground.driver, *_provider_problems(provider, ground))
            problems = problems or trial_problems(try_device(name))
        devices.append(DoctorDevice(name, provider, not problems, problems))
    return tuple(devices)


def try_device(device: str) -> Outcome:
    """Run a small detector on a device, see `trial.trial`."""
    return process.call("detcli.commands.doctor.trial", "trial", device)


def trial_problems(outcome: Outcome) -> tuple[Problem, ...]:
    """What a trial found to be wrong."""
    if outcome.error is not None:
        return (Problem(f"a small detector could not be run: {outcome.error}", None),)
    if outcome.value is None:
        return ()
    reason, hint = outcome.value["reason"], outcome.value["hint"]
    first, _, rest = hint.partition("; ")
    if first.startswith("pip "):
        return (Problem(reason, first, rest),)
    return (Problem(reason, None, hint),)


def _provider_problems(provider: str, ground: Ground) -> tuple[Problem, ...]:
    """What ONNX Runtime's provider lacks; one problem for each command that brings something."""
    if ground.failures is None:  # nobody could tell, and the ground says why
        return ()
    if provider not in ground.providers:
        return (_not_built_in(provider, ground),)
    groups: dict[str, list[Unloadable]] = {}
    # TensorRT's provider needs all that CUDA's needs, and more.
    for name in dict.fromkeys((Device.parse("cuda").provider, provider)):
        known = set(groups)
        for entry in ground.failures[name]:
            if entry.remedy not in known and not entry.library.startswith(DRIVERS):
                groups.setdefault(entry.remedy, []).append(entry)
    return tuple(_library_problem(remedy, entries) for remedy, entries in groups.items())


def _not_built_in(provider: str, ground: Ground) -> Problem:
    if ground.mixture is not None:
        return ground.mixture
    if not gpu_wheel_exists():
        machine = f"{platform.system()} on {platform.machine()}"
        return Problem(f"PyPI has no ONNX Runtime with CUDA for {machine}", None, CPU_INSTEAD)
    names = " ".join(ground.packages) or "onnxruntime"
    return Problem(
        f"{names} {ground.version} is installed, which was built without {provider}",
        f"pip uninstall -y {names} && {CUDA_EXTRA}",
    )


def _library_problem(remedy: str, failures: Sequence["Unloadable"]) -> Problem:
    """One for all libraries that the same command brings."""
    from detcli.backend.runtime.libraries import summary

    is_command = remedy.startswith("pip ")
    advice = [] if is_command else [remedy]
    advice += dict.fromkeys(found for entry in failures for found in find_copies(entry.library))
    return Problem(summary(failures), remedy if is_command else None, "; ".join(advice))


def find_copies(library: str, root: Path = Path("/")) -> Iterator[str]:
    """Look for a library that the loader did not find: in another place, of another release.

    Args:
        library: File name with its release, such as "libcublasLt.so.13".
        root: Where the file system begins.

    Yields:
        A sentence for each.
    """
    stem, separator, release = library.partition(".so.")
    if not separator:
        return
    system = [path for pattern in SYSTEM for path in root.glob(pattern)]
    packaged = [path for entry in sys.path if entry for pattern in PACKAGED
                for path in Path(entry).glob(pattern)]  # fmt: skip
    told = [Path(entry) for entry in os.environ.get("LD_LIBRARY_PATH", "").split(":") if entry]
    for folder in system:
        if os.path.lexists(folder / library):
            yield f"{library} is in {folder}, where the loader does not look (LD_LIBRARY_PATH)"
            return
    found = {
        path.name.partition(".so.")[2].partition(".")[0]
        for folder in (*system, *packaged, *told)
        for path in folder.glob(f"{stem}.so.*")
    }
    for other in sorted(found - {release}):
        yield f"{stem}.so.{other} is there, another release"
