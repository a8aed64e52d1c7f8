"""The shared libraries of a GPU: whether they load, and what installs those that do not.

`survey` asks each provider what it makes of a graph. Only GPU backends and commands that look into
an installation or a graph import this.
"""

import contextlib
import ctypes
import importlib.metadata
import importlib.util
import io
import platform
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from detcli.backend.nvidia import (
    DRIVER,
    NO_GPU,
    GpuFacts,
    ask_driver,
    cuda_command,
    fitting_extra,
    has_gpu,
    lacking_code,
)
from detcli.backend.session import (
    CUDA,
    TENSORRT,
    Provider,
    nodes_by_provider,
    onnxruntime,
    open_session,
    operator_of,
    stdout_to_stderr,
)
from detcli.core import frozen
from detcli.core.errors import DetcliError, DeviceError
from detcli.core.packages import find_mixture, gpu_wheel_exists, owners

CPU_INSTEAD = "use --device cpu"

CUDA_EXTRA = "the extra that fits the driver"
TENSORRT_PACKAGE = "the package that fits CUDA"
# Release 11 has libnvinfer.so.11.
TENSORRT_12 = 'pip install "tensorrt-cu12-libs>=10.13,<11"'
TENSORRT_13 = 'pip install "tensorrt-cu13-libs>=10.13,<11"'
TENSORRT_FROM = (7, 5)  # compute capability; the releases that are installed leave out Volta

LOADER_PATH = "PATH" if sys.platform == "win32" else "LD_LIBRARY_PATH"

# What a library belongs to and what installs it, by the start of its name; the first match counts.
OWNERS = {
    ("libcuda.", "nvcuda"): ("NVIDIA's driver", "install the NVIDIA driver"),
    ("libnvinfer", "libnvonnxparser", "nvinfer", "nvonnxparser"): ("TensorRT", TENSORRT_PACKAGE),
    ("libcudnn", "cudnn"): ("cuDNN", CUDA_EXTRA),
    ("libcu", "libnv"): ("the CUDA runtime", CUDA_EXTRA),
    ("libstdc++",): ("the C++ runtime", "upgrade libstdc++6, and let no older copy hide it"),
    ("libc.so", "libm.so"): ("this Linux", "use a newer release of the distribution"),
}
OTHER_OWNER = ("a shared library", f"let the loader find it ({LOADER_PATH})")

# Messages of the loader of Linux's C library.
MISSING = re.compile(r"(?P<library>[^:]+): cannot open shared object file: No such file")
OLD = re.compile(r"(?P<library>[^:]+): version [`'](?P<version>.+?)' not found.*?(?P<by>[^/ ]+)\)")
SYMBOL = re.compile(
    r"(?P<by>[^:]+): undefined symbol: (?P<symbol>[^\s,]+)(, version (?P<library>\S+\.so\S*))?"
)


@frozen
class Unloadable:
    """A shared library that does not load."""

    library: str
    reason: str  # what is wrong with it; empty if it is missing
    owner: str  # the product it belongs to
    remedy: str  # what installs it, a command or a sentence

    def __str__(self) -> str:
        if self.reason:
            return f"{self.library} ({self.owner}: {self.reason})"
        return f"{self.library} ({self.owner})"


def require_provider(provider: str) -> None:
    """Make sure that the execution provider CUDA or TENSORRT can be loaded."""
    if has_gpu() is False and not ask_driver().gpus:
        raise DeviceError(NO_GPU, CPU_INSTEAD)
    if provider not in onnxruntime.get_available_providers():
        problem, hint = not_built_in(provider, onnxruntime.__version__)
        raise DeviceError(problem, hint)
    failures = unloadable_libraries(provider)
    if failures:
        remedies = ", then ".join(dict.fromkeys(failure.remedy for failure in failures))
        raise DeviceError(
            f"{provider} cannot be loaded, {summary(failures)}", f"{remedies}; or {CPU_INSTEAD}"
        )


def not_built_in(provider: str, version: str) -> tuple[str, str]:
    """Why the installed ONNX Runtime of this version has no such provider, and the remedy."""
    if not gpu_wheel_exists():
        machine = f"{platform.system()} on {platform.machine()}"
        return f"PyPI has no ONNX Runtime with CUDA for {machine}", CPU_INSTEAD
    names = " ".join(owners("onnxruntime")) or "onnxruntime"
    mixture = find_mixture()
    if mixture:
        return mixture
    return (
        f"the installed {names} {version} was built without {provider}",
        f"pip uninstall -y {names} && {cuda_command()}; or {CPU_INSTEAD}",
    )


def require_code(ordinal: int) -> None:
    """Make sure that ONNX Runtime's CUDA provider was compiled for a GPU.

    If it was not, ONNX Runtime loads a model nevertheless, and then fails on each image.
    """
    facts = ask_driver()
    gpus = facts.gpus[ordinal : ordinal + 1]
    reason = lacking_code(gpus, onnxruntime.__version__, runtime_cuda())
    if reason:
        extra = fitting_extra(replace(facts, gpus=gpus))
        hint = f"{extra.command}; or {CPU_INSTEAD}" if extra else CPU_INSTEAD
        raise DeviceError(reason, hint)


def require_one_cuda() -> None:
    """Make sure that ONNX Runtime and cuda-bindings, if installed, are for the same CUDA."""
    cuda = runtime_cuda()
    try:
        bindings = importlib.metadata.version("cuda-bindings")
    except importlib.metadata.PackageNotFoundError:
        return
    if cuda and cuda.partition(".")[0] != bindings.partition(".")[0]:
        raise DeviceError(
            f"the extras cuda and cuda12 are mixed: ONNX Runtime is for CUDA {cuda}, "
            f"cuda-bindings is {bindings}",
            f"{cuda_command()}; or {CPU_INSTEAD}",
        )


def runtime_cuda() -> str | None:
    """The CUDA that ONNX Runtime was built for, such as "13.0"; None where unknown."""
    release = re.match(r"\d+\.\d+", getattr(onnxruntime, "cuda_version", None) or "")
    return release and release[0]


def summary(failures: Sequence[Unloadable]) -> str:
    """List the missing libraries, then the faulty ones."""
    missing = [str(failure) for failure in failures if not failure.reason]
    faulty = [str(failure) for failure in failures if failure.reason]
    sentences = []
    if missing:
        sentences.append(f"missing: {', '.join(missing)}")
    if faulty:
        sentences.append(f"faulty: {', '.join(faulty)}")
    return "; ".join(sentences)


def unloadable_libraries(provider: str) -> tuple[Unloadable, ...]:
    """Load the libraries that a provider needs, and return those that fail, the driver's first."""
    with stdout_to_stderr():
        with contextlib.redirect_stdout(io.StringIO()):  # it prints failures
            onnxruntime.preload_dlls()  # pip's copies, which the loader would not find
        failures = []
        for library in _needed(provider):
            try:
                ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
            except OSError as error:
                failures.append(explain(Path(library).name, str(error)))
    return tuple(dict.fromkeys(failures))


def explain(name: str, message: str) -> Unloadable:
    """Interpret the loader's message about a file; the fault may lie with another library."""
    library, reason = _fault_of(name, message)
    library = _file(library)
    owner, remedy = _owner_of(library)
    if remedy == CUDA_EXTRA:
        remedy = cuda_command()
    elif remedy == TENSORRT_PACKAGE:
        remedy = _tensorrt_command()
    return Unloadable(library, reason, owner, remedy)


def _fault_of(name: str, message: str) -> tuple[str, str]:
    """The library that the loader complains about, and what is wrong with it."""
    missing = MISSING.match(message)
    if missing is not None:
        return missing["library"], ""
    old = OLD.match(message)
    if old is not None:
        return old["library"], f"too old: it lacks {old['version']}, which {old['by']} needs"
    symbol = SYMBOL.match(message)
    if symbol is not None and symbol["library"]:
        needed_by = _file(symbol["by"])
        reason = f"another version: it lacks {symbol['symbol']}, which {needed_by} needs"
        return symbol["library"], reason
    if ".so" in message:
        library, _, reason = message.partition(":")
        return library.strip(), reason.strip()
    return name, ""


def _owner_of(library: str) -> tuple[str, str]:
    """The product that a library belongs to, and what installs it."""
    for beginnings, owner in OWNERS.items():
        if library.startswith(beginnings):
            return owner
    return OTHER_OWNER


def _tensorrt_command() -> str:
    """What installs TensorRT for the CUDA that ONNX Runtime is for, where it has code for a GPU."""
    gpus = ask_driver().gpus
    if gpus and all(_is_too_old_for_tensorrt(gpu) for gpu in gpus):
        return f"TensorRT has no code for {gpus[0].name}: use --device cuda"
    cuda = runtime_cuda() or ""
    if cuda.startswith("12."):
        return TENSORRT_12
    return TENSORRT_13


def _is_too_old_for_tensorrt(gpu: GpuFacts) -> bool:
    major, minor = gpu.capability.split(".")
    return (int(major), int(minor)) < TENSORRT_FROM


def _file(path: str) -> str:
    """The last part of a path; its folders may name people."""
    return path.rpartition("/")[2]


def _needed(provider: str) -> Iterator[str | Path]:
    """Libraries to load, in order; a library finds those loaded before it."""
    is_windows = sys.platform == "win32"
    yield DRIVER
    # The CUDA provider opens cuDNN at first use, so the loader does not list it as a dependency.
    yield "cudnn64_9.dll" if is_windows else "libcudnn.so.9"
    yield _provider_file("shared")
    yield _provider_file("cuda")
    if provider != TENSORRT:
        return
    package = importlib.util.find_spec("tensorrt_libs")
    folders = (package and package.submodule_search_locations) or ()
    for library in ("nvinfer", "nvonnxparser"):
        name = f"{library}_10.dll" if is_windows else f"lib{library}.so.10"
        yield _pip_copy(name, folders) or name
    yield _provider_file("tensorrt")


def _pip_copy(name: str, folders: Iterable[str]) -> Path | None:
    """The copy of a library that pip installed, which the loader cannot find; None without one."""
    for folder in folders:
        copy = Path(folder) / name
        if copy.exists():
            return copy
    return None


def _provider_file(name: str) -> Path:
    """The library of an execution provider, which ONNX Runtime has beside itself."""
    if sys.platform == "win32":
        file = f"onnxruntime_providers_{name}.dll"
    else:
        file = f"libonnxruntime_providers_{name}.so"
    return Path(onnxruntime.__file__).parent / "capi" / file


# Builds TensorRT's engine in seconds instead of minutes; nodes are placed the same way.
QUICK_BUILD = {"trt_builder_optimization_level": "0"}


@frozen
class LeftNode:
    """A node that the provider in question leaves to another."""

    name: str
    operator: str
    provider: str


@frozen
class Placement:
    """Where the nodes of a graph would run if a provider was asked for."""

    provider: str  # its name in ONNX Runtime
    usable: bool  # whether it accepts the graph here
    reason: str = ""  # why it does not; empty if it does
    hint: str = ""  # what to do about that
    # number of nodes it runs by operator, after ONNX Runtime's own simplifications; None if it does
    # not accept the graph, or ONNX Runtime does not report it
    taken: dict[str, int] | None = None
    # nodes that it leaves to other providers; None where `taken` is
    left: tuple[LeftNode, ...] | None = None


def survey(graph: bytes, title: str) -> tuple[Placement, ...]:
    """Load a serialised ONNX graph with each provider that this ONNX Runtime was built with.

    `title` names the graph in errors. ONNX Runtime's preferred provider comes first, the CPU last.
    """
    return tuple(
        _placement_of(graph, name, title) for name in onnxruntime.get_available_providers()
    )


def _placement_of(graph: bytes, name: str, title: str) -> Placement:
    """Load a graph with a provider, and see what of it the provider runs."""
    providers: list[Provider] = [(name, {})]
    if name == TENSORRT:
        providers = [(TENSORRT, QUICK_BUILD), (CUDA, {})]
    try:
        if name in {CUDA, TENSORRT}:
            require_provider(name)
        nodes = nodes_by_provider(open_session(graph, providers, title))
    except DetcliError as error:
        return Placement(name, usable=False, reason=str(error), hint=error.hint)
    if nodes is None:
        return Placement(name, usable=True)
    taken = Counter(operator_of(node) for node in nodes.pop(name, ()))
    left = []
    for provider, nodes_of_provider in nodes.items():
        for node in nodes_of_provider:
            left.append(LeftNode(node.name, operator_of(node), provider))
    return Placement(name, usable=True, taken=dict(taken.most_common()), left=tuple(left))
