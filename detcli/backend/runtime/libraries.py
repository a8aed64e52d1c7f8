"""The shared libraries of a GPU: whether they load, and what brings those that do not.

Only GPU backends import this.
"""

import contextlib
import ctypes
import importlib.util
import io
import sys
from collections.abc import Iterator
from pathlib import Path

from detcli.backend.nvidia import DRIVER
from detcli.backend.runtime.load import onnxruntime
from detcli.backend.runtime.native_output import stdout_to_stderr
from detcli.errors import DeviceError

CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"

CUDA_EXTRA = "pip install 'detcli[cuda]'"
TENSORRT_PACKAGE = (
    "pip install 'tensorrt-cu13-libs>=10.13,<11'"  # from 11 on it is libnvinfer.so.11
)

# What a missing library belongs to, by the start of its name; and what brings it. The first that
# fits counts.
OWNERS = {
    "libcuda.": ("NVIDIA's driver", "install the NVIDIA driver"),
    "nvcuda": ("NVIDIA's driver", "install the NVIDIA driver"),
    "libnvinfer": ("TensorRT", TENSORRT_PACKAGE),
    "libnvonnxparser": ("TensorRT", TENSORRT_PACKAGE),
    "nvinfer": ("TensorRT", TENSORRT_PACKAGE),
    "nvonnxparser": ("TensorRT", TENSORRT_PACKAGE),
    "libcudnn": ("cuDNN", CUDA_EXTRA),
    "cudnn": ("cuDNN", CUDA_EXTRA),
    "libcu": ("the CUDA runtime", CUDA_EXTRA),
    "libnv": ("the CUDA runtime", CUDA_EXTRA),
}


def require_provider(provider: str) -> None:
    """Make sure that an execution provider can be loaded.

    Args:
        provider: ONNX Runtime's name of it, CUDA or TENSORRT.

    Raises:
        DeviceError: It cannot; the message names the library that is missing and what brings it.
    """
    if provider not in onnxruntime.get_available_providers():
        raise DeviceError(
            f"this ONNX Runtime ({onnxruntime.__version__}) was built without {provider}",
            "pip install onnxruntime-gpu, after pip uninstall onnxruntime; or use --device cpu",
        )
    with stdout_to_stderr():
        missing = _missing_libraries(provider)
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
    for start, owner_and_remedy in OWNERS.items():
        if library.startswith(start):
            return owner_and_remedy
    return "a shared library", "let the loader find it (LD_LIBRARY_PATH)"


def _missing_libraries(provider: str) -> list[str]:
    """Load what a provider needs; names of what the loader misses, the driver first."""
    with contextlib.redirect_stdout(io.StringIO()):  # it prints what it cannot find
        onnxruntime.preload_dlls()  # those that pip installed, which the loader would not find
    missing = []
    for library in _needed(provider):
        try:
            ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            # Linux says: libcublasLt.so.13: cannot open shared object file: ...
            said = str(error).partition(":")[0]
            missing.append(said if ".so" in said else Path(library).name)
    return list(dict.fromkeys(missing))


def _needed(provider: str) -> Iterator[str | Path]:
    """What to load, in order; a library finds what was loaded before it."""
    windows = sys.platform == "win32"
    prefix, suffix = ("", ".dll") if windows else ("lib", ".so")
    folder = Path(onnxruntime.__file__).parent / "capi"
    yield DRIVER
    # The CUDA provider opens cuDNN when it first needs it, so it is not among its dependencies.
    yield "cudnn64_9.dll" if windows else "libcudnn.so.9"
    yield folder / f"{prefix}onnxruntime_providers_shared{suffix}"
    yield folder / f"{prefix}onnxruntime_providers_cuda{suffix}"
    if provider == TENSORRT:
        yield from _tensorrt_libraries(windows=windows)
        yield folder / f"{prefix}onnxruntime_providers_tensorrt{suffix}"


def _tensorrt_libraries(*, windows: bool) -> Iterator[str | Path]:
    """TensorRT's libraries: pip's copy, which the loader does not find, or the system's."""
    names = (
        ("nvinfer_10.dll", "nvonnxparser_10.dll")
        if windows
        else ("libnvinfer.so.10", "libnvonnxparser.so.10")
    )
    package = importlib.util.find_spec("tensorrt_libs")
    folders = package.submodule_search_locations if package else None
    for name in names:
        copies = (Path(folder) / name for folder in folders or ())
        yield next((copy for copy in copies if copy.exists()), name)
