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
from pathlib import Path

from cuda.core import ObjectCode, Program, ProgramOptions
from cuda.core.utils import make_program_cache_key

from detcli.backend.nvidia import cuda_command
from detcli.core.cache import cached
from detcli.core.errors import DependencyError, DeviceError

KERNELS = Path(__file__).parent.resolve() / "kernels"

BLANK = "\0 \n"  # NVRTC's reports end with a zero byte

ENTRY_POINT = re.compile(
    r'^extern "C" __global__ void\s+(?:__launch_bounds__\([^()]*\)\s+)?(\w+)\(', re.MULTILINE
)
SOURCE_ERROR = re.compile(
    r"^(?P<file>.+)\((?P<line>\d+)\): [\w\s]*error\b[^:]*: (?P<reason>.+)$", re.MULTILINE
)
DEPRECATED = re.compile(r"^.*Architectures prior to .* are deprecated.*$", re.MULTILINE)
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


def compile_file(path: Path, architecture: str) -> ObjectCode:
    """Compile a `.cu` file for an architecture such as "sm_90", or take it from the cache."""
    source = path.read_text(encoding="utf-8")
    options = ProgramOptions(
        name=str(path),  # errors show it
        arch=architecture,
        std="c++17",
        fma=False,  # NumPy rounds a * b + c twice
        include_path=str(path.parent),
    )
    # Any file may include any header.
    headers = [(header.name, header.read_bytes()) for header in sorted(path.parent.glob("*.cuh"))]
    key = make_program_cache_key(
        code=source,
        code_type="c++",
        options=options,
        target_type="cubin",
        extra_digest=hashlib.sha256(repr(headers).encode()).digest(),
    )
    # The driver may crash on a damaged cubin, which `cached` compiles again instead.
    cubin = cached(f"kernels/{key.hex()}.cubin", lambda: _compile(source, options))
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
                    f"{cuda_command()}; or use --device cpu",
                ) from error
        raise
    if report := DEPRECATED.sub("", warnings.getvalue()).strip(BLANK):
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
        f"another NVRTC may help ({cuda_command()} --upgrade); or use --device cpu",
    )
