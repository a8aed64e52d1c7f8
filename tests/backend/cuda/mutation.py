"""Kernels that lack one of their barriers, and what is seen of it.

The shim leaves a barrier out while the kernel runs, so that none has to be compiled anew.
"""

import os
import re
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from backend.cuda.barrier_cases import first_wrong
from backend.cuda.libcuda import FakeDriver
from backend.cuda.shim import Shim, kernel_sources
from forked import CONTEXT

BARRIER = re.compile(r"\b__sync(?:threads|warp)\(\);")
FUNCTION = re.compile(r"^(?!struct|#|//|\s)[^;{}]*?\b(?!__)(\w+)\([^;{}]*\{", re.MULTILINE)
KINDS = {"letterbox.cu": "letterbox", "top.cuh": ""}
"""What the cases that launch a file's kernels begin with; those of other files select."""
SECONDS = 60  # of processor time, for kernels that never end; all cases take about 8


class Barrier(NamedTuple):
    name: str  # file, function, and the number of the barrier in that function, from 1
    file: str
    line: int  # from 1


def barriers(sources: Mapping[str, str]) -> Iterator[Barrier]:
    """Yield each `__syncthreads();` and `__syncwarp();`."""
    for file, text in sources.items():
        numbers: dict[str, int] = {}
        for barrier in BARRIER.finditer(text):
            function = FUNCTION.findall(text, 0, barrier.start())[-1]
            numbers[function] = numbers.get(function, 0) + 1
            line = text.count("\n", 0, barrier.start()) + 1
            yield Barrier(f"{file} {function} {numbers[function]}", file, line)


def examine(folder: Path, without: Barrier | None = None) -> str:
    """Run `barrier_cases` without a barrier, each access watched; returns the first wrong, or "".

    It is a separate process because a kernel without a barrier may write anywhere or never end; the
    answer is then the name of the signal that ended it.
    """
    receiver, sender = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=_examine, args=(folder, without, sender))
    process.start()
    sender.close()
    try:
        answer = receiver.recv()
    except EOFError:
        answer = ""
    process.join()
    if process.exitcode < 0:
        return signal.Signals(-process.exitcode).name
    assert process.exitcode == 0
    return answer


def _examine(folder, without, sender):
    import resource  # which Windows lacks

    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # crashes are expected
    skipped = without and (without.file, without.line)
    kind = KINDS.get(without.file, "selection") if without else ""
    os.environ["DETCLI_CACHE_DIR"] = str(folder.with_name("cubins"))  # those that NVRTC compiled
    driver = FakeDriver(Shim(kernel_sources(), folder, skipped, watched=True), folder)
    sender.send(first_wrong(driver, kind))
