"""Installed packages: which of them a module comes from, and the command that repairs it.

Several packages install the files of OpenCV, and of ONNX Runtime. The last one wins, and removing
one of them leaves holes in the others. Imported only where something does not load.
"""

import importlib.metadata
import platform
import re
import sys
from typing import NamedTuple

from detcli.core.errors import DependencyError

NO_LIBRARY = re.compile(r"lib\S+\.so\S*: cannot open shared object file")
PIP_REINSTALL = "pip install --force-reinstall --no-deps"


class Explanation(NamedTuple):
    """Why a module does not load, and what to do about it."""

    reason: str
    remedy: str  # a command, perhaps with advice after a semicolon, or advice alone


def python_executable(purpose: str, instead: str = "install detcli with pip, and run that") -> str:
    """Return the path of the Python that runs detcli, to start another process with it.

    Args:
        purpose: What the process is for, for the error message.
        instead: What to do instead, for its hint.

    Raises:
        DependencyError: detcli runs as a program made by PyInstaller, which has no Python.
    """
    if getattr(sys, "frozen", False):
        raise DependencyError(f"{purpose} starts Python, and this program is frozen", instead)
    return sys.executable


def owners(module: str) -> dict[str, str]:
    """Find the packages that installed a module, such as opencv-python for cv2.

    If there are several, they have overwritten each other's files.

    Args:
        module: The name of the module.

    Returns:
        The versions of the packages by name, sorted by name; only those in the first folder of
        `sys.path` that has any, as that is where the module is imported from.
    """
    for folder in sys.path:
        versions: dict[str, str] = {}
        for package in importlib.metadata.distributions(path=[folder]):
            if _has_installed(package, module):
                name = re.sub(r"[-_.]+", "-", package.name).lower()
                versions.setdefault(name, package.version)
        if versions:
            return dict(sorted(versions.items()))
    return {}


def _has_installed(package: importlib.metadata.Distribution, module: str) -> bool:
    """Whether a package declares a module, or has files in its folder."""
    declared_modules = (package.read_text("top_level.txt") or "").split()
    file_list = package.read_text("RECORD") or ""
    has_files = re.search(rf"^{module}/", file_list, re.MULTILINE) is not None
    # What an interrupted removal of a package left behind has no description.
    has_description = bool(package.read_text("METADATA") or package.read_text("PKG-INFO"))
    return has_description and (module in declared_modules or has_files)


def gpu_wheel_exists() -> bool:
    """Whether PyPI has a wheel of onnxruntime-gpu for this machine."""
    machines = {"linux": ("x86_64", "aarch64"), "win32": ("AMD64",)}
    return platform.machine() in machines.get(sys.platform, ())


def find_mixture() -> Explanation | None:
    """Determine whether several packages of ONNX Runtime are installed over each other.

    Returns:
        None if there is one package or none.
    """
    names = owners("onnxruntime")
    if len(names) < 2:
        return None
    command = f"pip uninstall -y {' '.join(names)} && pip install {_package('onnxruntime')}"
    return Explanation(
        reason=f"{' and '.join(names)} are installed over each other",
        remedy=f"{command}; one of them is enough; both install the same files",
    )


def explain(module: str, error: str) -> Explanation:
    """Explain why a module does not load, and what to do.

    Args:
        module: The name of the module.
        error: The message of the ImportError.
    """
    if module == "onnxruntime":
        mixture = find_mixture()
        if mixture is not None:
            return mixture
    installed = owners(module)
    if installed:
        reason = f"{' '.join(installed)} does not load: {error}"
    else:
        reason = f"{_package(module)} is not installed"
    return Explanation(reason, _remedy(module, error, installed))


def _remedy(module: str, error: str, installed: dict[str, str]) -> str:
    """Explain what to do about a module that does not load.

    Args:
        module: The name of the module.
        error: The message of the ImportError.
        installed: The packages that installed it, with their versions.
    """
    if "SIGILL" in error or "not found (required by" in error:  # reinstalling does not fix it
        return "this system is too old for it, or LD_LIBRARY_PATH leads to an older library"
    if module == "cv2":
        return _remedy_for_opencv(error, installed)
    if not installed:
        return f"pip install {_package(module)}"
    names = " ".join(installed)
    if len(installed) > 1:
        return f"pip uninstall -y {names} && pip install {_package(module)}"
    # The same version and nothing else: other packages may not work with a newer one.
    return f"{PIP_REINSTALL} {names}=={installed[names]}"


def _remedy_for_opencv(error: str, installed: dict[str, str]) -> str:
    """Explain what to do about an OpenCV that does not load.

    Args:
        error: The message of the ImportError.
        installed: The packages of OpenCV that are installed, with their versions.
    """
    lacks_library = NO_LIBRARY.search(error) is not None
    if not lacks_library:
        return reinstall_opencv(installed)
    # The build without windows needs no libraries of a desktop.
    command = reinstall_opencv(installed, headless=True)
    advice = "install what it needs (Debian, Ubuntu: apt-get install libgl1 libglib2.0-0)"
    return f"{command}; or {advice}"


def reinstall_opencv(installed: dict[str, str], *, headless: bool = False) -> str:
    """Return the pip command that reinstalls OpenCV.

    It installs OpenCV over the packages of it that are already installed. These stay, since other
    packages require them.

    Args:
        installed: The packages of OpenCV that are installed, with their versions.
        headless: Whether to install the build without windows, which needs no desktop libraries.
            It is also chosen if a package of that build is installed, as that build works there.
    """
    has_headless_build = any(name.endswith("-headless") for name in installed)
    package = "opencv-python"
    if headless or has_headless_build:
        package = "opencv-python-headless"
    return f'{PIP_REINSTALL} "{package}>=5.0"'


def _package(module: str) -> str:
    """Return the package that detcli requires for a module, on this machine."""
    if module == "cv2":
        return "opencv-python"
    if module == "onnxruntime" and gpu_wheel_exists():
        return "onnxruntime-gpu"
    return module
