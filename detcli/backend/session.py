"""ONNX Runtime, strictly: what was asked for runs, or an error says why not.

By itself `InferenceSession(providers=["CUDAExecutionProvider"])` raises nothing when CUDA does
not load: it logs, and runs on the CPU.
"""

import contextlib
import ctypes
import io
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from detcli.errors import DependencyError, DeviceError, InferenceError, ModelError

# ONNX Runtime 1.31 keeps a device id and a database of telemetry in the user's cache folder. Only
# this variable, set before the import, keeps it from doing so; a value that is set already stays.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

try:
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as runtime_errors
except ImportError as error:
    raise DependencyError(
        f"ONNX Runtime does not load: {error}",
        "onnxruntime and onnxruntime-gpu overwrite each other's files: pip uninstall both, then "
        "install one of them again",
    ) from error

FATAL = 4  # log severity: what goes wrong is reported as an error of ours, once

# What a missing library belongs to, by the start of its name; and what brings it.
CUDA_LIBRARIES = {
    "libcuda.": ("NVIDIA's driver", "install the NVIDIA driver"),
    "nvcuda": ("NVIDIA's driver", "install the NVIDIA driver"),
    "libcudnn": ("cuDNN", "pip install 'onnxruntime-gpu[cuda,cudnn]'"),
    "libcu": ("the CUDA runtime", "pip install 'onnxruntime-gpu[cuda,cudnn]'"),
    "libnv": ("the CUDA runtime", "pip install 'onnxruntime-gpu[cuda,cudnn]'"),
}


def open_session(graph: bytes, provider: str, title: str) -> Any:  # noqa: ANN401 - onnxruntime has no types
    """Create a session that runs on `provider`.

    Args:
        graph: A serialised ONNX graph.
        provider: ONNX Runtime's name of the execution provider.
        title: What to call the model in errors.

    Raises:
        DeviceError: The provider does not load.
        ModelError: The runtime refuses the graph.
    """
    require_provider(provider)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = FATAL
    try:
        with contextlib.redirect_stdout(sys.stderr):  # its fallback prints
            session = onnxruntime.InferenceSession(graph, options, providers=[provider])
    except RUNTIME_ERRORS as error:
        raise ModelError(
            f"ONNX Runtime {onnxruntime.__version__} cannot load {title}: {_reason(error)}",
            "export it again with a lower opset, or upgrade onnxruntime",
        ) from error
    session.disable_fallback()
    if session.get_providers()[0] != provider:
        raise DeviceError(
            f"ONNX Runtime chose {session.get_providers()[0]} instead of {provider}",
            "use --device cpu to run there on purpose",
        )
    return session


def run(session: Any, name: str, tensor: npt.NDArray[Any]) -> npt.NDArray[Any]:  # noqa: ANN401
    """Feed the input of that name and return the only output.

    Raises:
        InferenceError: The runtime failed, or the session has been closed.
    """
    if session is None:
        raise InferenceError("the detector has been closed", "use it inside its with block")
    try:
        (output,) = session.run(None, {name: tensor})
    except (*RUNTIME_ERRORS, RuntimeError) as error:  # RuntimeError: a dtype NumPy lacks
        raise InferenceError(
            f"the network failed on a batch of shape {list(tensor.shape)}: {_reason(error)}",
            "a graph with dynamic axes may need another --imgsz",
        ) from error
    return np.asarray(output)


def require_provider(provider: str) -> None:
    """Make sure that an execution provider can be loaded.

    Raises:
        DeviceError: It cannot; the message names the library that is missing and what brings it.
    """
    if provider == "CPUExecutionProvider":
        return
    if provider not in onnxruntime.get_available_providers():
        raise DeviceError(
            f"this ONNX Runtime ({onnxruntime.__version__}) was built without {provider}",
            "pip install onnxruntime-gpu, after pip uninstall onnxruntime",
        )
    missing = _missing_libraries(provider.removesuffix("ExecutionProvider").lower())
    if missing:
        owners = [_owner(library) for library in missing]
        found = ", ".join(
            f"{library} ({owner})" for library, (owner, _) in zip(missing, owners, strict=True)
        )
        remedies = ", then ".join(dict.fromkeys(remedy for _, remedy in owners))
        raise DeviceError(
            f"{provider} cannot be loaded, missing: {found}", f"{remedies}; or use --device cpu"
        )


def _owner(library: str) -> tuple[str, str]:
    """What a missing library belongs to, and what brings it."""
    for start, owner_and_remedy in CUDA_LIBRARIES.items():
        if library.startswith(start):
            return owner_and_remedy
    return "a shared library", "let the loader find it (LD_LIBRARY_PATH)"


def _missing_libraries(name: str) -> list[str]:
    """What the loader misses for a provider's library; the driver first."""
    windows = sys.platform == "win32"
    driver = "nvcuda.dll" if windows else "libcuda.so.1"
    prefix, suffix = ("", ".dll") if windows else ("lib", ".so")
    folder = Path(onnxruntime.__file__).parent / "capi"
    missing = []
    with contextlib.redirect_stdout(io.StringIO()):  # it prints what it cannot find
        onnxruntime.preload_dlls()  # those that pip installed, which the loader would not find
    for library in (
        driver,
        folder / f"{prefix}onnxruntime_providers_shared{suffix}",
        folder / f"{prefix}onnxruntime_providers_{name}{suffix}",
    ):
        try:
            ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            # The loader says: libcublasLt.so.13: cannot open shared object file: ...
            missing.append(str(error).partition(":")[0])
    return missing


RUNTIME_ERRORS = (
    runtime_errors.Fail,
    runtime_errors.InvalidArgument,
    runtime_errors.InvalidGraph,
    runtime_errors.InvalidProtobuf,
    runtime_errors.NotImplemented,
    runtime_errors.RuntimeException,
)


def _reason(error: Exception) -> str:
    """Drop ONNX Runtime's code prefix: "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : ..."."""
    return str(error).rpartition("[ONNXRuntimeError] : ")[2].strip()
