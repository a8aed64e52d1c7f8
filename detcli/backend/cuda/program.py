"""Compiles the `.cu` files of `kernels/` and caches the result.

NVRTC compiles each file for one architecture into a cubin: machine code, which needs no compiler
in the driver and so works with drivers older than NVRTC. Cubins are kept in the cache folder;
without one, the files are compiled at every start.
"""

import functools
import hashlib
import io
import logging
import re
from collections.abc import MutableMapping
from pathlib import Path

from cuda.core import Kernel, ObjectCode, Program, ProgramOptions
from cuda.core.utils import FileStreamProgramCache, make_program_cache_key

from detcli.errors import DependencyError, DeviceError, OutputError
from detcli.files import cache_folder

KERNELS = Path(__file__).parent.resolve() / "kernels"

CACHE_SIZE = 64 << 20
"""Bytes; the cubins of one version for one architecture take a few hundred KB."""

BLANK = "\0 \n"  # NVRTC's reports end with a zero byte

DIGEST_SIZE = hashlib.sha256().digest_size

ENTRY_POINT = re.compile(
    r'^extern "C" __global__ void\s+(?:__launch_bounds__\([^()]*\)\s+)?(\w+)\(', re.MULTILINE
)
SOURCE_ERROR = re.compile(
    r"^(?P<file>.+)\((?P<line>\d+)\): [\w\s]*error\b[^:]*: (?P<reason>.+)$", re.MULTILINE
)
OTHER_ERROR = re.compile(r"\berror\s*: (?P<reason>.+)$", re.MULTILINE)

log = logging.getLogger(__name__)


@functools.cache
def entry_points() -> dict[str, Path]:
    """File of each kernel by the kernel's name."""
    return {
        name: path
        for path in sorted(KERNELS.glob("*.cu"))
        for name in ENTRY_POINT.findall(path.read_text(encoding="utf-8"))
    }


class Programs:
    """The kernels on the current device; each file is loaded when first needed.

    Attributes:
        architecture: The architecture that they are compiled for, "sm_90".
    """

    def __init__(self, architecture: str) -> None:
        self.architecture = architecture
        self._files: dict[Path, ObjectCode] = {}
        self._kernels: dict[str, Kernel] = {}

    def kernel(self, name: str) -> Kernel:
        """Find a kernel by name.

        Raises:
            DeviceError: The kernel cannot be compiled for this architecture.
            DependencyError: NVRTC is not installed.
        """
        if name not in self._kernels:
            path = entry_points()[name]
            if path not in self._files:
                self._files[path] = compile_file(path, self.architecture)
            self._kernels[name] = self._files[path].get_kernel(name)
        return self._kernels[name]


def compile_file(path: Path, architecture: str) -> ObjectCode:
    """Compile a `.cu` file for an architecture such as "sm_90", or take it from the cache.

    Raises:
        DeviceError: The file does not compile; the message begins with file and line.
        DependencyError: NVRTC is not installed.
    """
    source = path.read_text(encoding="utf-8")
    options = ProgramOptions(
        name=str(path),  # errors show it
        arch=architecture,
        std="c++17",
        fma=False,  # NumPy rounds a * b + c twice
        include_path=str(path.parent),
    )
    key = make_program_cache_key(
        code=source,
        code_type="c++",
        options=options,
        target_type="cubin",
        extra_digest=_digest_of_headers(path.parent),
    )
    cache = _open_cache()
    cubin = _read(cache, key)
    if cubin is None:
        cubin = _compile(source, options)
        _write(cache, key, cubin)
    return ObjectCode.from_cubin(cubin, name=path.stem)


def _compile(source: str, options: ProgramOptions) -> bytes:
    log.info("compiling %s for %s", options.name, options.arch)
    warnings = io.StringIO()
    try:
        compiled = Program(source, "c++", options).compile("cubin", logs=warnings)
    except Exception as error:
        # cuda-core does not export these classes.
        match type(error).__name__:
            case "NVRTCError":
                raise _compile_error(str(error), options) from error
            case "DynamicLibNotFoundError":
                raise DependencyError(
                    "NVRTC, the compiler of CUDA kernels, cannot be loaded",
                    "pip install 'detcli[cuda]'; or use --device cpu",
                ) from error
        raise
    if report := warnings.getvalue().strip(BLANK):
        log.warning("%s", report)
    if not compiled.code:  # as "compute_90" gives, without an error
        raise DeviceError(
            f"{options.name}: there is no machine code for {options.arch}", "use --device cpu"
        )
    return bytes(compiled.code)


def _compile_error(report: str, options: ProgramOptions) -> DeviceError:
    """The error for the first of the compiler's errors, as file:line: reason."""
    where, reason = str(options.name), report
    if found := SOURCE_ERROR.search(report):
        where, reason = f"{found['file']}:{found['line']}", found["reason"]
    elif found := OTHER_ERROR.search(report):  # from the assembler, or about an option
        reason = found["reason"]
    return DeviceError(
        f"{where}: does not compile for {options.arch}: {reason.strip(BLANK)}",
        "another NVRTC may help (pip install --upgrade 'detcli[cuda]'); or use --device cpu",
    )


def _digest_of_headers(folder: Path) -> bytes:
    """SHA-256 of the names and contents of all headers, which any file may include."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.cuh")):
        for part in (path.name.encode(), path.read_bytes()):
            digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()


def _open_cache() -> MutableMapping[bytes, bytes]:
    """The cache on the disk, or one in memory, which forgets."""
    try:
        return FileStreamProgramCache(cache_folder() / "kernels", max_size_bytes=CACHE_SIZE)  # type: ignore[no-any-return]
    except (OSError, OutputError) as error:
        log.info("no kernel is cached: %s", error)
        return {}


def _read(cache: MutableMapping[bytes, bytes], key: bytes) -> bytes | None:
    """A cubin from the cache, if it is intact: the driver may crash on a damaged one."""
    try:
        entry = cache.get(key)
    except OSError as error:
        log.info("a cached kernel cannot be read: %s", error)
        return None
    if entry is None:
        return None
    cubin, digest = entry[:-DIGEST_SIZE], entry[-DIGEST_SIZE:]
    if hashlib.sha256(cubin).digest() != digest:
        log.info("a cached kernel is damaged and will be compiled again")
        return None
    return cubin


def _write(cache: MutableMapping[bytes, bytes], key: bytes, cubin: bytes) -> None:
    """Store a cubin followed by its digest, which NVIDIA's tools ignore."""
    try:
        cache[key] = cubin + hashlib.sha256(cubin).digest()
    except OSError as error:
        log.info("a kernel is not cached: %s", error)
