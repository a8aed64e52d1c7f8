"""What is measured on: the GPU, its driver, the versions of everything, the commit.

    PYTHONPATH=.:tests python -m benchmarks.gpu.machine

Prints it as JSON; exits with 5 and the reason where no GPU can be used.
"""

import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import time

PACKAGES = (
    "numpy cuda-core cuda-bindings nvidia-cuda-nvrtc onnxruntime-gpu onnxruntime torch torchvision "
    "cupy-cuda13x cupy-cuda12x opencv-python opencv-python-headless"
).split()
ASKED = "name,driver_version,memory.total,clocks.max.sm,clocks.max.mem,power.limit"


def describe() -> dict[str, object]:
    """Everything that is known; what cannot be found out is missing."""
    told = {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "commit": commit(),
        "gpu": _output("nvidia-smi", f"--query-gpu={ASKED}", "--format=csv,noheader", "-i", "0"),
        "cuda": cuda_version(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "processors": os.cpu_count(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
    }
    return {key: value for key, value in told.items() if value}


def commit() -> str:
    """The commit, marked where files differ from it; COMMIT where git cannot tell."""
    hash_ = _output("git", "rev-parse", "--short=12", "HEAD")
    if not hash_:
        return os.environ.get("COMMIT", "")
    return f"{hash_}, with changes" if _output("git", "status", "--porcelain") else hash_


def clocks() -> str:
    """How fast the GPU runs right now, and how hot it is."""
    asked = "clocks.sm,clocks.mem,temperature.gpu,power.draw"
    return _output("nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader", "-i", "0")


def cuda_version() -> str:
    """The newest CUDA that the driver knows."""
    try:
        from cuda.bindings import driver

        _, version = driver.cuDriverGetVersion()
    except Exception:  # noqa: BLE001 - no package, no driver: it is not known then
        return ""
    return f"{version // 1000}.{version % 1000 // 10}"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _output(program: str, *arguments: str) -> str:
    """What a program prints; nothing where it is not there, or fails."""
    path = shutil.which(program)
    if path is None:
        return ""
    try:
        done = subprocess.run(
            [path, *arguments], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def main() -> int:
    """Describe this machine, if our code can use its GPU."""
    from detcli.errors import DetcliError

    try:
        from detcli.backend.cuda.driver import Gpu

        gpu = Gpu(0)
    except DetcliError as error:
        print(f"{error} ({error.hint})", file=sys.stderr)
        return 5
    print(json.dumps({"name": gpu.name, "architecture": gpu.architecture, **describe()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
