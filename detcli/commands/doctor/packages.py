"""What is installed, and the command that repairs it."""

import importlib.metadata
import platform
import re
import sys
from pathlib import Path

from detcli.commands.doctor.report import Problem

# Packages that detcli does not ask for by name, but that decide whether a GPU works.
FAMILIES = ("cuda-", "nvidia-", "onnx", "opencv-", "tensorrt")

# What detcli needs wherever it runs, with something that is in it: of a package whose files are
# gone an empty folder may be left, which can be imported.
REQUIRED = {
    "numpy": "ndarray",
    "onnx": "ModelProto",
    "onnxruntime": "InferenceSession",
    "cv2": "imdecode",
}

NAME = re.compile(r"[A-Za-z0-9._-]+")
NO_LIBRARY = re.compile(r"lib\S+\.so\S*: cannot open shared object file")


def package_versions() -> dict[str, str | None]:
    """Version of each package that matters, by name; None for what detcli asks for and lacks."""
    installed: dict[str, str | None] = {}
    for package in importlib.metadata.distributions():
        name = _canonical(package.metadata["Name"] or "")
        installed.setdefault(name, package.version)  # the first on the path is what counts
    wanted = _wanted()
    return {
        name: installed.get(name)
        for name in sorted({*installed, *wanted})
        if name in wanted or name.startswith(FAMILIES)
    }


def owners(module: str) -> dict[str, str]:
    """The packages that brought a module, with their versions; of the first folder on the path.

    Several of them wrote over each other's files.
    """
    names = {name for name in importlib.metadata.packages_distributions().get(module, ()) if name}
    folders: dict[Path, dict[str, str]] = {}
    for package in importlib.metadata.distributions():
        if package.metadata["Name"] in names:
            folder = Path(str(package.locate_file(""))).resolve()
            name = _canonical(package.metadata["Name"])
            folders.setdefault(folder, {}).setdefault(name, package.version)
    return dict(sorted(next(iter(folders.values()), {}).items()))


def find_mixture() -> Problem | None:
    """Packages of ONNX Runtime that are installed over each other."""
    names = owners("onnxruntime")
    if len(names) < 2:
        return None
    return Problem(
        f"{' and '.join(names)} are installed over each other",
        f"pip uninstall -y {' '.join(names)} && pip install {_package('onnxruntime')}",
        "one of them is enough; each brings the same files",
    )


def explain(module: str, said: str) -> Problem:
    """What to do about a module of REQUIRED that does not load.

    Args:
        module: Its name.
        said: What Python, or the system's loader, said.
    """
    package, installed = _package(module), owners(module)
    if not installed:
        return Problem(f"{package} is not installed", f"pip install {package}")
    names = " ".join(installed)
    reason = f"{names} does not load: {said}"
    if "SIGILL" in said or "not found (required by" in said:  # it would be the same once more
        advice = "this system is too old for it, or LD_LIBRARY_PATH shows it an older library"
        return Problem(reason, None, advice)
    if module == "cv2" and NO_LIBRARY.search(said):
        command = f"pip uninstall -y {names} && pip install opencv-python-headless"
        advice = "or bring what it misses (Debian, Ubuntu: apt-get install libgl1 libglib2.0-0)"
        return Problem(reason, command, advice)
    if len(installed) > 1:
        return Problem(reason, f"pip uninstall -y {names} && pip install {package}")
    # The same version, and nothing else: other packages may not get on with a newer one.
    exactly = "".join(f"{name}=={version}" for name, version in installed.items())
    return Problem(reason, f"pip install --force-reinstall --no-deps {exactly}")


def gpu_wheel_exists() -> bool:
    """Whether there is a wheel of onnxruntime-gpu for this machine."""
    system = sys.platform.startswith("linux") or sys.platform == "win32"
    return system and platform.machine() in {"x86_64", "AMD64"}


def _package(module: str) -> str:
    """The package that detcli asks for to have a module of REQUIRED."""
    runtime = "onnxruntime-gpu" if gpu_wheel_exists() else "onnxruntime"
    return {"cv2": "opencv-python", "onnxruntime": runtime}.get(module, module)


def _wanted() -> set[str]:
    """What detcli asks for, extras included."""
    try:
        lines = importlib.metadata.requires("detcli") or []
    except importlib.metadata.PackageNotFoundError:  # run from its source
        return set()
    # What only some machines need, or only developers, is listed where it is installed.
    everywhere = [line for line in lines if not re.search("platform_machine|extra == 'dev'", line)]
    return {_canonical(match[0]) for line in everywhere if (match := NAME.match(line))}


def _canonical(name: str) -> str:
    """The one spelling of a package's name."""
    return re.sub(r"[-_.]+", "-", name).lower()
