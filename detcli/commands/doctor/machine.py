"""The machine: system, processor, memory, terminal, variables, and detcli's cache.

Nothing here names a person: folders are shown without personal names, variables without values.
"""

import contextlib
import getpass
import math
import os
import platform
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from detcli.backend.device import available_cores, cpu_quota
from detcli.cache import cache_folder
from detcli.commands.doctor.report import (
    Cache,
    CachePart,
    DoctorDefault,
    DoctorMemory,
    DoctorProblem,
    Processor,
    System,
    Terminal,
)
from detcli.commands.shared.defaults_file import DefaultsContext, defaults_file
from detcli.commands.shared.messages import is_terminal
from detcli.commands.shared.reports import processor_name
from detcli.errors import OutputError, UsageError
from detcli.model.hub_cache import hub_folder, why_folder_untrusted
from detcli.model.zoo import MODELS
from detcli.text import public_name, public_text
from detcli.trust import why_untrusted

# Instruction sets that decide how fast a network runs, on x86 and Arm, as Linux names them.
FEATURES = re.compile(
    r"sse4_2|avx|avx2|fma|f16c|avx_vnni|avx512(f|bw|dq|vl|_vnni|_bf16|_fp16)|amx_\w+"
    r"|asimd|asimdhp|asimddp|fphp|sve2?|i8mm|bf16|sme"
)

UNLIMITED = 1 << 60  # cgroup v1 writes a number slightly below 2^63 for no limit

# Variables that affect detcli or its libraries.
RELEVANT = re.compile(
    r"CUDA_.*|NVIDIA_.*|ORT_.*|OMP_.*|MKL_.*|OPENBLAS_.*|OPENCV_.*|QT_.*|PYTHON.*|DETCLI_.*"
    r"|LD_LIBRARY_PATH|LD_PRELOAD|MALLOC_.*|DISPLAY|WAYLAND_DISPLAY|XDG_(CACHE|CONFIG)_HOME|TERM|COLORTERM"
    r"|NO_COLOR|FORCE_COLOR|COLUMNS|LINES|LANG|LC_.*|VIRTUAL_ENV|CONDA_PREFIX"
)

CACHE_FOLDERS = {
    "prepared": "prepared models",
    "kernels": "compiled CUDA kernels",
    "tensorrt": "TensorRT engines",
}

# Only files that look like detcli's own are counted or removed, because DETCLI_CACHE_DIR may be set
# to a folder that holds other files. files.AtomicFile leaves a ".part" when its process is killed;
# those of 0.1.0 had shorter names.
CACHED_FILE = re.compile(
    r"openvino-was-suggested|prepared/([0-9a-f]{64}[\w-]*\.(contract|graph|openvino)|\.(detcli-)?[0-9a-f]{16}\.part)"
    r"|kernels/([0-9a-f]{64}\.cubin|\.(detcli-)?[0-9a-f]{16}\.part)"
    r"|tensorrt/([0-9a-f]{64}/[^/]+\.(engine|profile|timing|trt)|[^/]+\.timing)"
)


def describe_system(root: Path = Path("/")) -> System:
    """Describe the operating system."""
    linux = sys.platform.startswith("linux")
    return System(
        name=platform.system(),
        release=platform.release(),
        distribution=_os_release().get("PRETTY_NAME"),
        architecture=platform.machine(),
        libc=" ".join(platform.libc_ver()).strip() or None,
        container=is_container(root) if linux else None,
        wsl=linux and is_wsl(),
    )


def is_container(root: Path = Path("/")) -> bool:
    """Whether this Linux runs in a container."""
    signs = (".dockerenv", "run/.containerenv", "run/systemd/container")
    return "KUBERNETES_SERVICE_HOST" in os.environ or any((root / sign).exists() for sign in signs)


def is_wsl() -> bool:
    """Whether this is the Windows Subsystem for Linux, which shares Windows' driver."""
    return "microsoft" in platform.release().lower()


def distribution_ids() -> tuple[str, ...]:
    """IDs of the Linux distribution and of those it derives from, such as ("ubuntu", "debian")."""
    release = _os_release()
    return tuple(filter(None, (release.get("ID"), *release.get("ID_LIKE", "").split())))


def _os_release() -> dict[str, str]:
    try:
        return platform.freedesktop_os_release()
    except OSError:
        return {}


def describe_processor(root: Path = Path("/")) -> Processor:
    """Describe the CPU."""
    import psutil

    physical = None
    with contextlib.suppress(OSError):  # neither /sys nor /proc
        physical = psutil.cpu_count(logical=False)
    return Processor(
        name=processor_name(root),
        features=_features(read_text(root / "proc/cpuinfo")),
        physical_cores=physical,
        logical_cores=psutil.cpu_count(),
        usable_cores=available_cores(),
        quota_cores=None if math.isinf(quota := cpu_quota(root)) else quota,
    )


def _features(cpuinfo: str) -> tuple[str, ...]:
    """Instruction sets, from NumPy where Linux does not list them."""
    if flags := re.search(r"^(?:flags|Features)\s*:\s*(.+)$", cpuinfo, re.MULTILINE):
        return tuple(flag for flag in flags[1].split() if FEATURES.fullmatch(flag))
    try:
        import numpy as np

        found = np.show_config(mode="dicts")["SIMD Extensions"]
    except (ImportError, KeyError, TypeError):
        return ()
    return (*found.get("baseline", ()), *found.get("found", ()))


def describe_memory(root: Path = Path("/")) -> DoctorMemory:
    """Describe main memory."""
    import psutil

    total, available = None, None
    with contextlib.suppress(OSError):  # no /proc
        memory = psutil.virtual_memory()
        total, available = memory.total, memory.available
    groups = root / "sys/fs/cgroup"
    limit = read_text(groups / "memory.max") or read_text(groups / "memory/memory.limit_in_bytes")
    limited = limit.isdecimal() and int(limit) < UNLIMITED
    return DoctorMemory(total, available, int(limit) if limited else None)


def describe_terminal() -> Terminal:
    """Describe the standard streams."""
    columns, rows, colours = None, None, None
    if is_terminal(sys.stdout):
        from rich.console import Console

        with contextlib.suppress(OSError):
            columns, rows = os.get_terminal_size(sys.stdout.fileno())
        colours = Console(file=sys.stdout).color_system
    return Terminal(
        stdin=is_terminal(sys.stdin),
        stdout=is_terminal(sys.stdout),
        stderr=is_terminal(sys.stderr),
        columns=columns,
        rows=rows,
        colours=colours,
        encoding=getattr(sys.stdout, "encoding", None),
    )


def relevant_variables() -> tuple[str, ...]:
    """Names of the variables that affect detcli or its libraries; others may be personal."""
    return tuple(sorted(name for name in os.environ if RELEVANT.fullmatch(name)))


def describe_cache(cleared_bytes: int | None = None) -> Cache:
    """Measure the cache; `cleared_bytes` is what was just removed from it, for the report."""
    try:
        folder = cache_folder()
    except OutputError:
        return Cache(None, writable=False, parts=(), cleared_bytes=cleared_bytes)
    parts = []
    for name, content in CACHE_FOLDERS.items():
        sizes = [size for _, size in _cached_files(folder, name)]
        parts.append(CachePart(name, content, len(sizes), sum(sizes)))
    place = next(filter(os.path.lexists, (folder, *folder.parents)), folder)
    writable = os.access(f"{place}/.", os.W_OK | os.X_OK)  # a file has no "."
    if os.environ.get("DETCLI_CACHE_DIR"):
        shown = "$DETCLI_CACHE_DIR"
    elif (base := os.environ.get("XDG_CACHE_HOME")) and folder.is_relative_to(base):
        shown = f"$XDG_CACHE_HOME/{folder.relative_to(base).as_posix()}"
    else:
        shown = shorten(folder)
    return Cache(shown, writable, tuple(parts), cleared_bytes, tuple(_distrusted(folder, shown)))


def _distrusted(folder: Path, shown: str) -> Iterator[DoctorProblem]:
    """Why detcli's own cache, and that of fetched models, is not used."""
    paths = [folder, *(folder / name for name in CACHE_FOLDERS)]
    paths.extend(path for name in CACHE_FOLDERS for path, _ in _cached_files(folder, name))
    if reason := next(filter(None, map(why_untrusted, paths)), ""):
        yield DoctorProblem(
            f"the cache, since {reason.replace(str(folder), shown)}",
            f"chmod -R go-w {_typed(shown)}",
            "then detcli doctor --clear-cache, since others may have written to it; or set "
            "DETCLI_CACHE_DIR to another folder",
        )
    hub = hub_folder()
    fetched = filter(None, (model.file() for model in MODELS.values()))
    reasons = (why_folder_untrusted(hub, file.folder) for file in fetched)
    if reason := next(filter(None, reasons), ""):
        yield DoctorProblem(
            f"the Hugging Face cache, since {reason.replace(str(hub), shorten(hub))}",
            f"chmod -R go-w {_typed(shorten(hub))}",
            "then detcli models pull NAME, which checks a model, since others may have written to "
            "it; or set HF_HOME to another folder",
        )


def _typed(shown: str) -> str:
    """A folder as a shell takes it, its "~" or variable unquoted."""
    if shown.startswith("$"):
        return f'"{shown}"'
    home = "~/" if shown.startswith("~/") else ""
    return home + shlex.quote(shown.removeprefix(home))


def clear_cache() -> int:
    """Remove everything detcli has cached, and return the number of bytes.

    Raises:
        OutputError: A file could not be removed.
    """
    try:
        folder = cache_folder()
    except OutputError:
        return 0
    freed = 0
    for name in CACHE_FOLDERS:
        for path, size in list(_cached_files(folder, name)):
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise OutputError(
                    f"cannot remove {path}: {error.strerror}", "check the folder's permissions"
                ) from error
            freed += size
        for place, _, _ in os.walk(folder / name, topdown=False):
            with contextlib.suppress(OSError):  # not empty, or a link
                Path(place).rmdir()
    return freed


def _cached_files(cache: Path, folder: str) -> Iterator[tuple[Path, int]]:
    """Files of a cache folder with their sizes; links are included but never followed."""
    for place, _, names in os.walk(cache / folder):
        for path in (Path(place) / name for name in names):
            if CACHED_FILE.fullmatch(path.relative_to(cache).as_posix()):
                with contextlib.suppress(OSError):  # gone by now, or not accessible
                    yield path, path.lstat().st_size


def describe_defaults(
    ctx: DefaultsContext,
) -> tuple[tuple[DoctorDefault, ...], tuple[DoctorProblem, ...]]:
    """The model, the device, and other chosen defaults; and what is wrong with them."""
    try:
        chosen = ctx.defaults
    except UsageError as error:
        return (), (DoctorProblem(public_text(str(error)), None, error.hint),)
    file = shorten(Path(str(defaults_file())))
    found = []
    for name, param in ctx.known.items():
        variable = str(param.envvar)
        value: object
        if os.environ.get(variable):
            value, origin = os.environ[variable], variable
        elif param.name in chosen:
            value, origin = chosen[param.name], file
        elif param.envvar:
            value, origin = param.default, "built in"
        else:
            continue
        text = public_name(str(value))
        is_path = "/" in text and "://" not in text
        found.append(DoctorDefault(name, shorten(Path(text)) if is_path else text, origin))
    return tuple(found), ()


def shorten(path: Path) -> str:
    """A path with "~" for the home folder and no user names in the rest."""
    with contextlib.suppress(ValueError, RuntimeError):
        return str(Path("~") / path.relative_to(Path.home()))
    users = user_names()
    return str(Path(*("USER" if part in users else part for part in path.parts)))


def user_names() -> set[str]:
    """Every name that this machine has for the user."""
    names = {os.environ.get(name, "") for name in ("USER", "LOGNAME", "USERNAME")}
    with contextlib.suppress(OSError, KeyError, ImportError):  # the user ID has no name
        names.add(getpass.getuser())
    with contextlib.suppress(RuntimeError):
        names.add(Path.home().name)
    return {name for name in names if len(name) > 1}  # a letter occurs in any text


def read_text(path: Path) -> str:
    """The text of a small file; empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
