"""What is measured on, and with what."""

import hashlib
import importlib.metadata
import platform
import sys
from pathlib import Path

import numpy as np
import psutil

from detcli import __version__
from detcli.backend.device import available_cores
from detcli.commands.bench.gpu import GpuState
from detcli.commands.bench.report import Machine, Model, Software
from detcli.commands.shared.reports import processor_name
from detcli.errors import ModelError


def describe_machine(gpu: GpuState | None) -> Machine:
    """This machine; nothing in it names its user or itself.

    Args:
        gpu: The one that takes part.
    """
    return Machine(
        processor=processor_name(),
        architecture=platform.machine(),
        system=platform.system(),
        cores=available_cores(),
        memory_bytes=psutil.virtual_memory().total,
        gpu=gpu.name if gpu else None,
        driver=gpu.driver if gpu else None,
    )


def describe_software() -> Software:
    """The versions that a figure may depend on."""
    onnxruntime = _version("onnxruntime-gpu") or _version("onnxruntime")
    return Software(
        detcli=__version__,
        python=platform.python_version(),
        numpy=np.__version__,
        opencv=_version("opencv-python"),
        onnxruntime=onnxruntime,
    )


def describe_model(model: str, path: Path) -> Model:
    """The file of a model and its content.

    Args:
        model: Its path or name, as it was given.
        path: The file.

    Raises:
        ModelError: It cannot be read.
    """
    try:
        with path.open("rb") as file:
            return Model(model, hashlib.file_digest(file, "sha256").hexdigest())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ModelError(
            f"cannot read the model {model}: {reason}", "give the path of an ONNX file"
        ) from error


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


STATUS = Path("/proc/self/status")


def peak_memory() -> int | None:
    """Peak resident bytes of this process; None where nobody tells.

    Linux's `ru_maxrss` would do, but a process inherits it from the one that started it.
    """
    if sys.platform == "linux":
        try:
            lines = STATUS.read_text(encoding="ascii", errors="replace").splitlines()
        except OSError:
            return None
        peak = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
        return int(peak[0]) * 1024 if peak else None
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS
