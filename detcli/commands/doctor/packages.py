"""Installed packages and GPU libraries: what is wrong, and the command that fixes it."""

import functools
import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path
from typing import TYPE_CHECKING

from detcli.backend.device import Device
from detcli.commands.doctor.report import CPU_INSTEAD, DoctorProblem

if TYPE_CHECKING:
    from detcli.backend.runtime.libraries import Unloadable

# Packages that detcli does not require by name, but that decide whether a GPU works.
FAMILIES = ("cuda-", "nvidia-", "onnx", "opencv-", "openvino", "tensorrt")

# What detcli always needs, each with an attribute: when a package's files are removed, an empty
# folder may be left, and that can be imported.
REQUIRED = {
    "numpy": "ndarray",
    "onnx": "ModelProto",
    "onnxruntime": "InferenceSession",
    "cv2": "imdecode",
}

NAME = re.compile(r"[A-Za-z0-9._-]+")
NO_LIBRARY = re.compile(r"lib\S+\.so\S*: cannot open shared object file")

CUDA = Device.parse("cuda").provider
DRIVERS = ("libcuda.", "nvcuda")  # NVIDIA's driver, which driver.py explains

# Where CUDA, cuDNN and TensorRT install their libraries on Linux, and where pip does in a folder
# of sys.path.
SYSTEM = ("usr/local/cuda*/lib*", "usr/local/cuda*/targets/*/lib", "opt/cuda/lib*",
          "usr/lib/x86_64-linux-gnu", "usr/lib64")  # fmt: skip
PACKAGED = ("nvidia/*/lib", "tensorrt_libs")


@dataclass(frozen=True, slots=True)
class RuntimeFacts:
    """What ONNX Runtime reports.

    Attributes:
        version: Its version.
        cuda: The CUDA that it was built for, such as "13.0"; None where unknown.
        providers: The execution providers that it was built with.
        failures: For each of its GPU providers, the libraries that do not load.
        cuda_command: What installs the CUDA that fits the driver.
    """

    version: str
    cuda: str | None
    providers: Sequence[str]
    failures: Mapping[str, Sequence["Unloadable"]]
    cuda_command: str


def package_versions() -> dict[str, str | None]:
    """Version of each relevant package by name; None for what detcli requires and is missing."""
    installed: dict[str, str | None] = {}
    for name, version, _ in _distributions(tuple(sys.path)):
        installed.setdefault(name, version)  # the first on the path counts
    required = _requirements()
    return {
        name: installed.get(name)
        for name in sorted({*installed, *required})
        if name in required or name.startswith(FAMILIES)
    }


def _requirements() -> set[str]:
    """Names of the packages that detcli requires, extras included."""
    try:
        lines = importlib.metadata.requires("detcli") or []
    except importlib.metadata.PackageNotFoundError:  # run from its source
        return set()
    # What only some machines or only developers need is listed where it is installed.
    elsewhere = re.compile("platform_machine|extra == '(dev|train)'")
    everywhere = [line for line in lines if not elsewhere.search(line)]
    return {_canonical(match[0]) for line in everywhere if (match := NAME.match(line))}


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
            found.append((_canonical(headers["Name"]), headers["Version"], package))
    return found


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


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
    groups: dict[str, list[Unloadable]] = {}
    # TensorRT's provider needs everything that CUDA's needs, and more.
    for name in dict.fromkeys((CUDA, provider)):
        known = set(groups)
        for entry in runtime.failures[name]:
            if entry.remedy not in known and not entry.library.startswith(DRIVERS):
                groups.setdefault(entry.remedy, []).append(entry)
    return tuple(_library_problem(remedy, entries) for remedy, entries in groups.items())


def _not_built_in(provider: str, runtime: RuntimeFacts) -> DoctorProblem:
    if not gpu_wheel_exists():
        machine = f"{platform.system()} on {platform.machine()}"
        return DoctorProblem(f"PyPI has no ONNX Runtime with CUDA for {machine}", None, CPU_INSTEAD)
    names = " ".join(owners("onnxruntime")) or "onnxruntime"
    return DoctorProblem(
        f"the installed {names} {runtime.version} was built without {provider}",
        f"pip uninstall -y {names} && {runtime.cuda_command}",
    )


def _library_problem(remedy: str, failures: Sequence["Unloadable"]) -> DoctorProblem:
    from detcli.backend.runtime.libraries import summary

    is_command = remedy.startswith("pip ")
    advice = [] if is_command else [remedy]
    advice += dict.fromkeys(found for entry in failures for found in find_copies(entry.library))
    return DoctorProblem(summary(failures), remedy if is_command else None, "; ".join(advice))


def find_copies(library: str, root: Path = Path("/")) -> Iterator[str]:
    """Look for copies of a library that the loader did not find, such as "libcublasLt.so.13".

    Yields:
        A sentence about each copy: in a folder that is not searched, or of another release.
    """
    stem, _, release = library.partition(".so.")
    if not release:
        return
    system = [path for pattern in SYSTEM for path in root.glob(pattern)]
    packaged = [path for entry in filter(None, sys.path) for pattern in PACKAGED
                for path in Path(entry).glob(pattern)]  # fmt: skip
    listed = [Path(entry) for entry in os.environ.get("LD_LIBRARY_PATH", "").split(":") if entry]
    for folder in system:
        if os.path.lexists(folder / library):
            yield f"{library} is in {folder}, which the loader does not search (LD_LIBRARY_PATH)"
            return
    found = {
        path.name.partition(".so.")[2].partition(".")[0]
        for folder in (*system, *packaged, *listed)
        for path in folder.glob(f"{stem}.so.*")
    }
    for other in sorted(found - {release}):
        yield f"{stem}.so.{other} is installed, but of another release"
