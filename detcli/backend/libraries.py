"""The shared libraries of a GPU: whether they load, and what installs those that do not.

`survey` asks each provider what it makes of a graph. Only GPU backends and commands that look into
an installation or a graph import this.
"""

import contextlib
import ctypes
import ctypes.util
import importlib.metadata
import importlib.util
import io
import platform
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from detcli.backend.nvidia import (
    DRIVER,
    NO_GPU,
    GpuFacts,
    ask_driver,
    cuda_command,
    explain_lack_of_code,
    fitting_extra,
    has_gpu,
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

# NVIDIA's names of the libraries that ONNX Runtime's CUDA provider uses, in the order to load them.
PACKAGED_LIBRARIES = ("cudart", "cublasLt", "cublas", "nvrtc", "curand", "cufft", "cudnn")

LOADER_PATH = "PATH" if sys.platform == "win32" else "LD_LIBRARY_PATH"

# What a library belongs to and what installs it, by the start of its name; the first match is used.
OWNERS = {
    ("libcuda.", "nvcuda"): ("NVIDIA's driver", "install the NVIDIA driver"),
    ("libnvinfer", "libnvonnxparser", "nvinfer", "nvonnxparser"): ("TensorRT", TENSORRT_PACKAGE),
    ("libcudnn", "cudnn"): ("cuDNN", CUDA_EXTRA),
    ("libcu", "libnv"): ("the CUDA runtime", CUDA_EXTRA),
    ("libstdc++",): ("the C++ runtime", "upgrade libstdc++6, and let no older copy hide it"),
    ("libc.so", "libm.so"): ("this Linux", "use a newer release of the distribution"),
}
OTHER_OWNER = ("a shared library", f"let the loader find it ({LOADER_PATH})")

# Messages of the loader of Linux's C library: a library is missing; it is too old (as in "A:
# version `V' not found (required by B)"); or it has a different version, and lacks a function.
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
    """Make sure that ONNX Runtime can use an NVIDIA GPU through this execution provider.

    Args:
        provider: The provider's name in ONNX Runtime, `CUDA` or `TENSORRT`.

    Raises:
        DeviceError: There is no GPU, ONNX Runtime was built without the provider, or libraries
            that the provider needs do not load; the hint says what to install.
    """
    # `has_gpu` is None where the system does not say. Then the provider's libraries are tried.
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
    """Explain why the installed ONNX Runtime lacks an execution provider for GPUs.

    Args:
        provider: The provider's name in ONNX Runtime, such as "CUDAExecutionProvider".
        version: The version of ONNX Runtime that is installed.

    Returns:
        A sentence that says the reason, and a hint that says what to do: usually the command that
        replaces the package for the CPU by one for GPUs.
    """
    if not gpu_wheel_exists():
        machine = f"{platform.system()} on {platform.machine()}"
        return f"PyPI has no ONNX Runtime with CUDA for {machine}", CPU_INSTEAD
    # Packages for the CPU and for GPUs that are installed together overwrite each other's files.
    mixture = find_mixture()
    if mixture:
        return mixture
    packages = " ".join(owners("onnxruntime")) or "onnxruntime"
    return (
        f"the installed {packages} {version} was built without {provider}",
        f"pip uninstall -y {packages} && {cuda_command()}; or {CPU_INSTEAD}",
    )


def require_code(ordinal: int) -> None:
    """Make sure that ONNX Runtime's CUDA provider contains code for this GPU's generation.

    If it does not, ONNX Runtime loads a model nevertheless, and then fails on each image.

    Args:
        ordinal: The CUDA ordinal of the GPU, from 0.

    Raises:
        DeviceError: It contains none; the hint names the extra of detcli that does.
    """
    facts = ask_driver()
    gpus = facts.gpus[ordinal : ordinal + 1]  # empty if the driver does not list the GPU
    reason = explain_lack_of_code(gpus, onnxruntime.__version__, runtime_cuda())
    if reason:
        hint = CPU_INSTEAD
        # The extra has to suit this GPU; other GPUs of the machine do not matter.
        extra = fitting_extra(replace(facts, gpus=gpus))
        if extra is not None:
            hint = f"{extra.command}; or {CPU_INSTEAD}"
        raise DeviceError(reason, hint)


def require_one_cuda() -> None:
    """Make sure that ONNX Runtime and cuda-bindings are for the same major version of CUDA.

    They differ where detcli's extras `cuda` and `cuda12` were both installed. Nothing is checked
    if cuda-bindings, NVIDIA's package for Python, is not installed.
    """
    cuda = runtime_cuda()
    try:
        bindings_version = importlib.metadata.version("cuda-bindings")
    except importlib.metadata.PackageNotFoundError:
        return
    if cuda is None:
        return
    runtime_release, _, _ = cuda.partition(".")
    bindings_release, _, _ = bindings_version.partition(".")
    if runtime_release != bindings_release:
        raise DeviceError(
            f"the extras cuda and cuda12 are mixed: ONNX Runtime is for CUDA {cuda}, "
            f"cuda-bindings is {bindings_version}",
            f"{cuda_command()}; or {CPU_INSTEAD}",
        )


def runtime_cuda() -> str | None:
    """Return the version of CUDA that ONNX Runtime was built for, such as "13.0".

    None if ONNX Runtime does not say, as when it was built for the CPU only.
    """
    version = getattr(onnxruntime, "cuda_version", None) or ""
    release = re.match(r"\d+\.\d+", version)
    if release is None:
        return None
    return release[0]


def summary(failures: Sequence[Unloadable]) -> str:
    """Join the libraries that do not load into one string: missing ones first, then faulty ones.

    For example "missing: libcudnn.so.9 (cuDNN); faulty: libstdc++.so.6 (the C++ runtime: too old:
    ...)".
    """
    missing = [str(failure) for failure in failures if not failure.reason]
    faulty = [str(failure) for failure in failures if failure.reason]
    sentences = []
    if missing:
        sentences.append(f"missing: {', '.join(missing)}")
    if faulty:
        sentences.append(f"faulty: {', '.join(faulty)}")
    return "; ".join(sentences)


def unloadable_libraries(provider: str) -> tuple[Unloadable, ...]:
    """Load all libraries that an execution provider needs, and return those that fail.

    Libraries that load stay in the process. The failures are in the order of loading, the driver's
    library first, each only once.

    Args:
        provider: The provider's name in ONNX Runtime, `CUDA` or `TENSORRT`.
    """
    with stdout_to_stderr():
        _load_packaged_libraries()
        failures = []
        for library in _libraries_of_provider(provider):
            try:
                ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
            except OSError as error:
                failures.append(explain(Path(library).name, str(error)))
    return tuple(dict.fromkeys(failures))


def _load_packaged_libraries() -> None:
    """Load the copies of NVIDIA's libraries that pip or conda installed, if there are any.

    The system's loader would not find these. Two searches are needed:

    - NVIDIA's, in the site-packages of the environment, of the user and of the system, where
      PyTorch may have brought the libraries, and in conda's folders.
    - ONNX Runtime's, in the folder that it is installed in itself, which may be one of
      `pip install --target`.

    Failures are left to the caller, who loads what needs the libraries.
    """
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib
    except ImportError:  # it comes with cuda-core, which the CUDA backend asks for itself
        pass
    else:
        for name in PACKAGED_LIBRARIES:
            with contextlib.suppress(RuntimeError):  # its errors are all of this class
                load_nvidia_dynamic_lib(name)

    # It prints what it does not find.
    with contextlib.redirect_stdout(io.StringIO()):
        onnxruntime.preload_dlls()


def explain(name: str, message: str) -> Unloadable:
    """Find out which library is at fault when one could not be loaded, and what installs it.

    The fault often lies with another library, which the first depends on. The message names it.

    Args:
        name: The file name of the library that was to be loaded.
        message: The error message of the system's loader.
    """
    path, reason = _parse_loader_message(name, message)
    library = _file_name(path)
    owner, remedy = _owner_and_remedy(library)
    if remedy == CUDA_EXTRA:
        remedy = cuda_command(runtime_cuda())
    elif remedy == TENSORRT_PACKAGE:
        remedy = _tensorrt_remedy()
    return Unloadable(library, reason, owner, remedy)


def _parse_loader_message(name: str, message: str) -> tuple[str, str]:
    """Read from the loader's message which library is at fault, and what is wrong with it.

    Args:
        name: The library that was to be loaded, which is blamed if the message names none.
        message: The loader's message, which on Linux has one of four forms: a file is missing, a
            library is too old, a symbol is undefined, or "LIBRARY: REASON".

    Returns:
        The library, as a file name or a path; and what is wrong with it, empty if it is missing.
    """
    missing = MISSING.match(message)
    if missing is not None:
        return missing["library"], ""

    old = OLD.match(message)
    if old is not None:
        return old["library"], f"too old: it lacks {old['version']}, which {old['by']} needs"

    symbol = SYMBOL.match(message)
    if symbol is not None and symbol["library"]:
        needed_by = _file_name(symbol["by"])
        reason = f"another version: it lacks {symbol['symbol']}, which {needed_by} needs"
        return symbol["library"], reason

    if ".so" in message:
        library, _, reason = message.partition(":")
        return library.strip(), reason.strip()
    return name, ""


def _owner_and_remedy(library: str) -> tuple[str, str]:
    """Look up the product that a library belongs to, and what installs that, by its file name."""
    for beginnings, owner in OWNERS.items():
        if library.startswith(beginnings):
            return owner
    return OTHER_OWNER


def _tensorrt_remedy() -> str:
    """Describe what to do if TensorRT is missing: the command that installs it, if that helps.

    The command is for the CUDA that ONNX Runtime was built for. If TensorRT supports none of this
    machine's GPUs, it is a sentence that says so instead.
    """
    gpus = ask_driver().gpus
    if gpus and all(_is_too_old_for_tensorrt(gpu) for gpu in gpus):
        return f"TensorRT has no code for {gpus[0].name}: use --device cuda"
    cuda = runtime_cuda() or ""
    if cuda.startswith("12."):
        return TENSORRT_12
    return TENSORRT_13


def _is_too_old_for_tensorrt(gpu: GpuFacts) -> bool:
    """Return whether TensorRT lacks code for a GPU, by the GPU's compute capability."""
    major, minor = gpu.capability.split(".")
    return (int(major), int(minor)) < TENSORRT_FROM


def faster_with_tensorrt(ordinal: int) -> str:
    """Return advice that TensorRT could be faster than CUDA on a GPU; empty if it cannot run.

    For that, ONNX Runtime needs the provider, the GPU must not be too old, and TensorRT has to be
    installed. It is not loaded to find out, as that takes half a gigabyte.

    Args:
        ordinal: The CUDA ordinal of the GPU, from 0.
    """
    if TENSORRT not in onnxruntime.get_available_providers():
        return ""
    gpus = ask_driver().gpus[ordinal : ordinal + 1]  # empty if the driver does not list the GPU
    if not gpus or _is_too_old_for_tensorrt(gpus[0]):
        return ""
    is_installed = (
        _tensorrt_file_of_pip("libnvinfer.so.10") is not None
        or _tensorrt_file_of_pip("nvinfer_10.dll") is not None
        or ctypes.util.find_library("nvinfer") is not None
    )
    if not is_installed:
        return ""
    # How much faster it is was estimated, not measured.
    return (
        f"TensorRT is installed, and in float16 may be three to four times as fast on "
        f"{gpus[0].name}, with slightly different boxes: detcli tune MODEL measures it"
    )


def _file_name(path: str) -> str:
    """Leave out the folders of a path: messages should not show them, as they may name people."""
    _, _, name = path.rpartition("/")
    return name


def _libraries_of_provider(provider: str) -> Iterator[str | Path]:
    """List the libraries that an execution provider needs, in the order to load them.

    The order matters because a library finds those that the process has loaded before it. A name
    without a folder is left to the system's loader.

    Args:
        provider: The provider's name in ONNX Runtime. TensorRT needs everything that CUDA needs,
            and its own libraries.
    """
    is_windows = sys.platform == "win32"
    yield DRIVER
    # The CUDA provider opens cuDNN at first use, so the loader does not list it as a dependency.
    yield "cudnn64_9.dll" if is_windows else "libcudnn.so.9"
    yield _provider_file("shared")
    yield _provider_file("cuda")
    if provider != TENSORRT:
        return
    for library in ("nvinfer", "nvonnxparser"):
        name = f"{library}_10.dll" if is_windows else f"lib{library}.so.10"
        yield _tensorrt_file_of_pip(name) or name
    yield _provider_file("tensorrt")


def _tensorrt_file_of_pip(name: str) -> Path | None:
    """Find the copy of a TensorRT library that pip installed; None if there is none.

    Pip puts it into the package `tensorrt_libs`, where the system's loader does not look.
    """
    package = importlib.util.find_spec("tensorrt_libs")
    if package is None:
        return None
    for folder in package.submodule_search_locations or ():
        file = Path(folder) / name
        if file.exists():
            return file
    return None


def _provider_file(name: str) -> Path:
    """Build the path of an execution provider's library, which ONNX Runtime has beside itself.

    Args:
        name: "cuda", "tensorrt", or "shared" for what both need.
    """
    if sys.platform == "win32":
        file = f"onnxruntime_providers_{name}.dll"
    else:
        file = f"libonnxruntime_providers_{name}.so"
    return Path(onnxruntime.__file__).parent / "capi" / file


# TensorRT then builds a slower engine in seconds instead of minutes. It takes the same nodes.
QUICK_BUILD = {"trt_builder_optimization_level": "0"}


@frozen
class LeftNode:
    """A node of a graph that an execution provider does not run itself, but leaves to another."""

    name: str
    operator: str
    provider: str  # the provider that runs it


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
    """Load a graph with each execution provider of this ONNX Runtime, and see what each runs.

    Args:
        graph: A serialised ONNX model.
        title: How error messages refer to the graph.

    Returns:
        A placement for each provider that ONNX Runtime was built with, usable or not. Its
        preferred provider comes first, the CPU last.
    """
    return tuple(
        _placement_of(graph, provider, title) for provider in onnxruntime.get_available_providers()
    )


def _placement_of(graph: bytes, provider: str, title: str) -> Placement:
    """Load a graph with an execution provider, and see which nodes the provider runs.

    Args:
        graph: A serialised ONNX model.
        provider: The provider's name, such as "CUDAExecutionProvider".
        title: How error messages refer to the graph.

    Returns:
        How many nodes of each operator the provider runs, the most frequent first, and the nodes
        that other providers run. If it cannot be loaded or does not accept the graph, the reason.
    """
    providers: list[Provider] = [(provider, {})]
    if provider == TENSORRT:
        providers = [(TENSORRT, QUICK_BUILD), (CUDA, {})]  # CUDA runs what TensorRT leaves
    try:
        if provider in {CUDA, TENSORRT}:
            require_provider(provider)
        nodes = nodes_by_provider(open_session(graph, providers, title))
    except DetcliError as error:
        return Placement(provider, usable=False, reason=str(error), hint=error.hint)

    if nodes is None:  # this ONNX Runtime does not report them
        return Placement(provider, usable=True)
    return _counted_placement(provider, nodes)


def _counted_placement(provider: str, nodes: Mapping[str, Sequence[Any]]) -> Placement:
    """Count the nodes that a provider runs by operator, and list those that others run.

    Args:
        provider: The provider's name.
        nodes: The nodes that each provider runs, by its name.
    """
    operator_counts: Counter[str] = Counter()
    nodes_of_others = []
    for running_provider, nodes_of_provider in nodes.items():
        for node in nodes_of_provider:
            operator = operator_of(node)
            if running_provider == provider:
                operator_counts[operator] += 1
            else:
                nodes_of_others.append(LeftNode(node.name, operator, running_provider))
    most_frequent_first = dict(operator_counts.most_common())
    return Placement(provider, usable=True, taken=most_frequent_first, left=tuple(nodes_of_others))
