"""Installed packages: which of them a module is from, and the command that mends it.

Several packages install the files of OpenCV, and of ONNX Runtime. The last one wins, and removing
one of them leaves holes in the others. Imported only where something does not load.
"""

import importlib.metadata
import platform
import re
import sys

from detcli.core.errors import DependencyError

NO_LIBRARY = re.compile(r"lib\S+\.so\S*: cannot open shared object file")
AGAIN = "pip install --force-reinstall --no-deps"


def own_python(purpose: str, instead: str = "install detcli with pip, and run that") -> str:
    """The Python that runs detcli, to start it anew; a program of PyInstaller has none."""
    if getattr(sys, "frozen", False):
        raise DependencyError(f"{purpose} starts Python, and this program is frozen", instead)
    return sys.executable


def owners(module: str) -> dict[str, str]:
    """The packages that installed a module, with their versions, in the first folder on the path.

    If there are several, they have overwritten each other's files.
    """
    for folder in sys.path:
        versions: dict[str, str] = {}
        for package in importlib.metadata.distributions(path=[folder]):
            declared = (package.read_text("top_level.txt") or "").split()
            listed = re.search(rf"^{module}/", package.read_text("RECORD") or "", re.MULTILINE)
            description = package.read_text("METADATA") or package.read_text("PKG-INFO")
            # What an interrupted removal left has no description.
            if description and (module in declared or listed):
                name = re.sub(r"[-_.]+", "-", package.name).lower()
                versions.setdefault(name, package.version)
        if versions:
            return dict(sorted(versions.items()))
    return {}


def gpu_wheel_exists() -> bool:
    """Whether PyPI has a wheel of onnxruntime-gpu for this machine."""
    machines = {"linux": ("x86_64", "aarch64"), "win32": ("AMD64",)}
    return platform.machine() in machines.get(sys.platform, ())


def find_mixture() -> tuple[str, str] | None:
    """What is wrong if packages of ONNX Runtime are installed over each other, and the remedy."""
    names = owners("onnxruntime")
    if len(names) < 2:
        return None
    command = f"pip uninstall -y {' '.join(names)} && pip install {_package('onnxruntime')}"
    reason = f"{' and '.join(names)} are installed over each other"
    return reason, f"{command}; one of them is enough; both install the same files"


def explain(module: str, error: str) -> tuple[str, str]:
    """Why a module does not load, of which `error` tells a part, and the remedy.

    That is a command, perhaps with advice after a semicolon; or advice alone.
    """
    if module == "onnxruntime":
        mixture = find_mixture()
        if mixture is not None:
            return mixture
    package = _package(module)
    installed = owners(module)
    names = " ".join(installed)
    reason = f"{package} is not installed"
    if installed:
        reason = f"{names} does not load: {error}"
    if "SIGILL" in error or "not found (required by" in error:  # reinstalling does not fix it
        return reason, "this system is too old for it, or LD_LIBRARY_PATH leads to an older library"
    if module == "cv2":
        if NO_LIBRARY.search(error) is None:
            return reason, reinstall_opencv(installed)
        command = reinstall_opencv(installed, headless=True)
        advice = "install what it needs (Debian, Ubuntu: apt-get install libgl1 libglib2.0-0)"
        return reason, f"{command}; or {advice}"
    if len(installed) > 1:
        return reason, f"pip uninstall -y {names} && pip install {package}"
    if not installed:
        return reason, f"pip install {package}"
    # The same version and nothing else: other packages may not work with a newer one.
    version = installed[names]
    return reason, f"{AGAIN} {names}=={version}"


def reinstall_opencv(installed: dict[str, str], *, headless: bool = False) -> str:
    """The command that puts an OpenCV over those that are installed, which satisfy what needs them.

    The headless build runs wherever another package has brought it.
    """
    package = "opencv-python"
    if headless or any(name.endswith("-headless") for name in installed):
        package = "opencv-python-headless"
    return f'{AGAIN} "{package}>=5.0"'


def _package(module: str) -> str:
    """The package that detcli requires for a module."""
    if module == "cv2":
        return "opencv-python"
    if module == "onnxruntime" and gpu_wheel_exists():
        return "onnxruntime-gpu"
    return module
