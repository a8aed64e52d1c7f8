"""Builds the CUDA kernels with g++ and launches them on the CPU; shim/shim.h explains how.

    shim = Shim(sources, folder)     # {"select.cu": text, "order.cuh": text, ...}
    shim.launch("select_float32", (1, 1, 1), 1024, address, np.uint32(300))

Each .cu file becomes a library when one of its kernels is launched first. Libraries are named
after the content they are made from and are kept in `folder`.
"""

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import detcli

KERNELS = Path(detcli.__file__).parent / "backend/cuda/kernels"
RUNTIME = Path(__file__).parent / "shim"
COMPILE = (
    "g++ -std=c++17 -O2 -fPIC -fvisibility=hidden -U_FORTIFY_SOURCE "
    "-ffp-contract=off -fno-strict-aliasing "
    "-Wall -Wextra -Werror -Wno-unknown-pragmas"
).split()
WATCH = (
    "-O1 -g1 -fsanitize=thread,undefined -fsanitize-undefined-trap-on-error "
    "--param tsan-instrument-func-entry-exit=0"
).split()
"""checks.cpp is called before each access to memory; undefined behaviour ends the process."""
ENTRY = re.compile(
    r'extern "C" __global__\s+(?:__launch_bounds__\([^)]*\)\s*)?void\s+'
    r"(?:__launch_bounds__\([^)]*\)\s*)?(\w+)\s*\("
)
INCLUDE = re.compile(r'^#include "(.+)"', re.MULTILINE)

# What a kernel's parameter may be, with the letters of shim.h. A Python int is an address.
PARAMETERS = {
    int: ("P", ctypes.c_uint64),
    np.float32: ("f", ctypes.c_float),
    np.int32: ("i", ctypes.c_int32),
    np.uint32: ("I", ctypes.c_uint32),
    np.int64: ("q", ctypes.c_int64),
    np.uint64: ("Q", ctypes.c_uint64),
}


class ShimError(Exception):
    """A kernel does not compile, or a launch was wrong: barrier divergence, impossible grid."""


def kernel_sources() -> dict[str, str]:
    """All kernel files of the package, name -> text."""
    return {path.name: path.read_text() for path in sorted(KERNELS.glob("*.cu*"))}


def need_compiler() -> None:
    """Skip where there is none; in a child process, a skip would be a failure."""
    if sys.platform != "linux" or shutil.which("g++") is None:
        pytest.skip("running CUDA kernels on the CPU needs g++ on Linux")


class Shim:
    """Kernels that run on the CPU; their libraries are kept in a folder.

    No thread waits at a barrier that is skipped, in any library for as long as the process lives.
    Where accesses are watched, `checks` is the library of shim/checks.cpp; ten times slower.
    """

    def __init__(
        self,
        sources: Mapping[str, str],
        folder: Path,
        skipped: tuple[str, int] | None = None,
        *,
        watched: bool = False,
    ) -> None:
        need_compiler()
        self._sources = sources
        self._folder = folder
        self._skipped = skipped
        self.checks = self._load_checks() if watched else None
        self._file_of: dict[str, str] = {}
        for name, text in sources.items():
            if name.endswith(".cu"):
                for kernel in ENTRY.findall(text):
                    self._file_of[kernel] = name
        self._library = cache(self._open)  # of a .cu file

    @property
    def kernels(self) -> frozenset[str]:
        """Names of all entry points."""
        return frozenset(self._file_of)

    def launch(
        self,
        kernel: str,
        grid: tuple[int, int, int],
        block: int,
        *arguments: object,
        reverse: bool = False,
    ) -> None:
        """Run a kernel to its end, as `Gpu.launch`; `reverse` begins with the last thread."""
        library = self._library(self._file_of[kernel])
        letters = []
        values = []
        for argument in arguments:
            letter, kind = PARAMETERS[type(argument)]
            letters.append(letter)
            values.append(kind(argument if isinstance(argument, int) else argument.item()))  # type: ignore[attr-defined]
        signature, _ = self.entry(kernel)
        passed_signature = "".join(letters)
        if signature.decode() != passed_signature:
            raise ShimError(
                f"{kernel} takes {signature.decode()}, but was given {passed_signature}"
            )
        launch = library[f"{kernel}_launch"]
        launch.restype = ctypes.c_char_p
        pointers = (ctypes.c_void_p * len(values))()
        for number, value in enumerate(values):
            pointers[number] = ctypes.addressof(value)  # type: ignore[arg-type]
        x, y, z = grid
        sizes = (ctypes.c_uint * 3)(x, y, z)
        error = launch(sizes, ctypes.c_uint(block), reverse, pointers)
        if error:
            raise ShimError(f"{kernel}, {error.decode()}")

    def entry(self, kernel: str) -> tuple[bytes, ctypes.c_void_p]:
        """The types of a kernel's parameters, and the address of what runs it."""
        library = self._library(self._file_of[kernel])
        signature = library[f"{kernel}_signature"]
        signature.restype = ctypes.c_char_p
        return signature(), ctypes.cast(library[f"{kernel}_launch"], ctypes.c_void_p)

    def watch(self, array: np.ndarray, *, written: bool = True) -> int:
        """Let kernels access an array, and return its address."""
        start = array.ctypes.data
        self.checks.checks_memory(ctypes.c_size_t(start), ctypes.c_size_t(array.nbytes), written)
        return start

    def _load_checks(self) -> ctypes.CDLL:
        source = RUNTIME / "checks.cpp"
        content = repr(COMPILE).encode() + source.read_bytes()
        path = self._folder / f"checks-{hashlib.sha256(content).hexdigest()[:16]}.so"
        if not path.exists():
            built = path.with_suffix(f".{os.getpid()}")
            subprocess.run(COMPILE + ["-shared", source, "-o", built], check=True)
            built.replace(path)
        return ctypes.CDLL(str(path))

    def _open(self, name: str) -> ctypes.PyDLL:
        """The library of a .cu file, built unless it is there already."""
        files = self._closure(name)
        options = COMPILE + WATCH if self.checks else COMPILE
        runtime = [path.read_bytes() for path in sorted(RUNTIME.iterdir())]
        content = repr((options, files, runtime))
        path = self._folder / f"{name}-{hashlib.sha256(content.encode()).hexdigest()[:16]}.so"
        if not path.exists():
            self._build(name, files, path, options)
        # PyDLL keeps the interpreter locked: a library runs one kernel at a time.
        library = ctypes.PyDLL(str(path))
        if self._skipped is not None:
            file, line = self._skipped
            library.shim_skip(file.encode(), line)
        return library

    def _closure(self, name: str) -> dict[str, str]:
        """The file and all that it includes, name -> text."""
        files: dict[str, str] = {}
        waiting = [name]
        while waiting:
            name = waiting.pop()
            if name not in files:
                files[name] = self._sources[name]
                waiting += INCLUDE.findall(files[name])
        return files

    def _build(
        self, name: str, files: Mapping[str, str], path: Path, options: Sequence[str]
    ) -> None:
        entries = ""
        for kernel in ENTRY.findall(files[name]):
            entries += f"SHIM_ENTRY({kernel})\n"
        with tempfile.TemporaryDirectory(dir=self._folder) as temporary:
            for file, text in files.items():
                (Path(temporary) / file).write_text(text)
            unit = f'#include "{name}"\n{entries}#include "{RUNTIME}/shim.cpp"\n'
            (Path(temporary) / "unit.cpp").write_text(unit)
            linked = [] if self.checks is None else [self.checks._name]  # noqa: SLF001 - its path
            # In two steps: a linker that is told to sanitize adds ThreadSanitizer's own library.
            for step in (
                list(options) + ["-include", RUNTIME / "shim.h", "-c", "unit.cpp", "-o", "unit.o"],
                ["g++", "-shared", "unit.o", "-o", "unit.so"] + list(linked),
            ):
                command = [str(word) for word in step]
                finished = subprocess.run(
                    command, cwd=temporary, capture_output=True, text=True, check=False
                )
                if finished.returncode:
                    raise ShimError(f"{name} does not compile\n{finished.stderr}")
            (Path(temporary) / "unit.so").replace(path)  # whole, and whoever builds it last
