"""The GPUs that compiled code runs on, read from a library's file.

nvcc embeds code as fat binaries: a header, then an entry for each architecture. Machine code runs
on GPUs of the same major version from its own minor version on, and on exactly one if it uses what
only that one has ("sm_90a"). PTX, which the driver compiles, runs on every later GPU.
"""

import mmap
import os
import re
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

HEADER = struct.Struct("<IHHQ")  # magic number, version, size of this header, size of the entries
BEGINNING = struct.pack("<IHH", 0xBA55ED50, 1, HEADER.size)
ENTRY = struct.Struct("<HHIQ12xIQQ")  # kind, version, sizes of this and of the code, SM, -, flags
PTX = 1
ONE_GPU_ONLY = 1 << 20
NAME = re.compile(r"(?P<form>sm|compute)_(?P<major>\d+)(?P<minor>\d)(?P<only>a?)")


def embedded_architectures(library: Path) -> tuple[str, ...]:
    """Architectures that a library has code for, the oldest first; empty if it shows none.

    Returns:
        NVIDIA's names: "sm_90" is machine code, "compute_90" is PTX; an "a" follows where the code
        runs on no other GPU.

    Raises:
        OSError: The file cannot be read.
    """
    with library.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return ()  # mmap refuses it
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            found = set(_entries(content))
    return tuple(f"{form}_{number}{suffix}" for number, form, suffix in sorted(found))


def supports(architectures: Iterable[str], capability: str) -> bool:
    """Whether code for these architectures runs on a GPU of a compute capability, such as "9.0"."""
    major, minor = map(int, capability.split("."))
    return any(
        _runs_on(code, (major, minor)) for code in map(NAME.fullmatch, architectures) if code
    )


def lacking(gpu: str, capability: str, architectures: Iterable[str]) -> str:
    """Say that ONNX Runtime has no code for a GPU, and for which it has some."""
    codes = filter(None, map(NAME.fullmatch, architectures))
    found = {f"{code['major']}.{code['minor']}" for code in codes}
    return (
        f"this ONNX Runtime has no code for {gpu}, of compute capability {capability}: it was "
        f"compiled for {', '.join(sorted(found, key=float))}"
    )


def _runs_on(code: re.Match[str], gpu: tuple[int, int]) -> bool:
    compiled_for = int(code["major"]), int(code["minor"])
    if code["only"]:
        return gpu == compiled_for
    return gpu >= compiled_for and (code["form"] == "compute" or gpu[0] == compiled_for[0])


def _entries(content: mmap.mmap) -> Iterator[tuple[int, str, str]]:
    """Number, form and suffix of each piece of code."""
    start = content.find(BEGINNING)
    while 0 <= start <= len(content) - HEADER.size:
        *_, size = HEADER.unpack_from(content, start)
        entry, end = start + HEADER.size, start + HEADER.size + size
        while entry + ENTRY.size <= min(end, len(content)):
            kind, _, header_size, code_size, number, _, flags = ENTRY.unpack_from(content, entry)
            yield number, "compute" if kind == PTX else "sm", "a" if flags & ONE_GPU_ONLY else ""
            entry += max(header_size, ENTRY.size) + code_size
        start = content.find(BEGINNING, min(end, len(content)))
