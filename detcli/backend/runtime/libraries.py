"""The shared libraries of a GPU: whether they load, and what brings those that do not.

Only GPU backends and `detcli doctor` import this.
"""

import contextlib
import ctypes
import importlib.util
import io
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from detcli.backend.device import Device
from detcli.backend.nvidia import DRIVER
from detcli.backend.runtime import onnxruntime
from detcli.errors import DeviceError

CUDA, TENSORRT = (Device.parse(name).provider for name in ("cuda", "tensorrt"))

STDOUT, STDERR = 1, 2  # file descriptors

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
    "libstdc++": ("the C++ runtime", "upgrade libstdc++6, and let no older copy hide it"),
    "libc.so": ("this Linux", "use a newer release of the distribution"),
    "libm.so": ("this Linux", "use a newer release of the distribution"),
}

# What Linux's loader says, the C library's and no other's.
MISSING = re.compile(r"(?P<library>[^:]+): cannot open shared object file: No such file")
OLD = re.compile(r"(?P<library>[^:]+): version [`'](?P<version>.+?)' not found.*?(?P<by>[^/ ]+)\)")
SYMBOL = re.compile(
    r"(?P<by>[^:]+): undefined symbol: (?P<symbol>[^\s,]+)(, version (?P<library>\S+\.so\S*))?"
)


@dataclass(frozen=True, slots=True)
class Unloadable:
    """A shared library that does not load.

    Attributes:
        library: Its file name.
        reason: What is wrong with it; empty where it is missing.
        owner: What it belongs to.
        remedy: What brings it, a command or a sentence.
    """

    library: str
    reason: str
    owner: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.library} ({self.owner}{f': {self.reason}' if self.reason else ''})"


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
    if failures := unloadable_libraries(provider):
        remedies = ", then ".join(dict.fromkeys(failure.remedy for failure in failures))
        raise DeviceError(
            f"{provider} cannot be loaded, {summary(failures)}", f"{remedies}; or use --device cpu"
        )


def summary(failures: Sequence[Unloadable]) -> str:
    """What is missing, then what is there and does not load."""
    missing = [str(failure) for failure in failures if not failure.reason]
    faulty = [str(failure) for failure in failures if failure.reason]
    named = (("missing", missing), ("faulty", faulty))
    return "; ".join(f"{title}: {', '.join(entries)}" for title, entries in named if entries)


def unloadable_libraries(provider: str) -> tuple[Unloadable, ...]:
    """Load what a provider needs; what does not load, the driver first.

    Args:
        provider: ONNX Runtime's name of it, CUDA or TENSORRT.
    """
    with stdout_to_stderr():
        with contextlib.redirect_stdout(io.StringIO()):  # it prints what it cannot find
            onnxruntime.preload_dlls()  # those that pip installed, which the loader would not find
        failures = []
        for library in _needed(provider):
            try:
                ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
            except OSError as error:
                failures.append(explain(Path(library).name, str(error)))
    return tuple(dict.fromkeys(failures))


def explain(name: str, said: str) -> Unloadable:
    """Understand what the loader said.

    Args:
        name: File name of the library that was to be loaded; the fault may lie with another.
        said: Text of the loader's error.
    """
    library, reason = name, ""
    if found := MISSING.match(said):
        library = found["library"]
    elif found := OLD.match(said):
        library = found["library"]
        reason = f"too old: it lacks {found['version']}, which {found['by']} needs"
    elif (found := SYMBOL.match(said)) and found["library"]:
        library = found["library"]
        reason = f"another version: it lacks {found['symbol']}, which {_file(found['by'])} needs"
    elif ".so" in said:
        library, _, reason = (part.strip() for part in said.partition(":"))
    library = _file(library)
    for start, (owner, remedy) in OWNERS.items():
        if library.startswith(start):
            return Unloadable(library, reason, owner, remedy)
    remedy = "let the loader find it (LD_LIBRARY_PATH)"
    return Unloadable(library, reason, "a shared library", remedy)


def _file(path: str) -> str:
    """The last part of a path; the folders before it may name people."""
    return path.rpartition("/")[2]


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


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Send to standard error what anyone writes to standard output meanwhile, C or Python.

    The file descriptor belongs to the whole process: for the short while in which a library is
    loaded or set up, before any result is written.
    """
    _flush()
    # First this one: a descriptor that is closed is the next to be given out.
    try:
        elsewhere = os.dup(STDERR)
    except OSError:
        elsewhere = os.open(os.devnull, os.O_WRONLY)
    try:
        try:
            kept = os.dup(STDOUT)  # if that was closed, it is `elsewhere` by now
        except OSError:  # unless standard input was closed as well, which became `elsewhere`
            kept = None
        try:
            os.dup2(elsewhere, STDOUT)
            with contextlib.redirect_stdout(sys.stderr):
                yield
        finally:
            _flush()
            if kept is None:
                os.close(STDOUT)
            else:
                os.dup2(kept, STDOUT)
                os.close(kept)
    finally:
        os.close(elsewhere)


def _flush() -> None:
    """Empty Python's buffer and C's; what stays in one comes out after the descriptor is back."""
    if sys.stdout is not None:
        sys.stdout.flush()
    library = ctypes.CDLL("ucrtbase" if sys.platform == "win32" else None)
    library.fflush(None)
