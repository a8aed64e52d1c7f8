"""Kernels that lack one barrier each, and the wrong answers they give."""

import re
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from backend.cuda.barrier_cases import first_wrong
from backend.cuda.shim import Shim
from forked import CONTEXT

BARRIER = re.compile(r"\b__sync(?:threads|warp)\(\);")
FUNCTION = re.compile(r"^(?!struct|#|//|\s)[^;{}]*?\b(?!__)(\w+)\([^;{}]*\{", re.MULTILINE)
SECONDS = 8  # of processor time, for kernels that never end; all cases take less than 3


class Mutant(NamedTuple):
    """Kernel sources without one barrier.

    Attributes:
        name: File, function, and the number of the barrier in that function, from 1.
        line: Of the barrier, from 1.
        text: That line.
        sources: All files, name -> text.
    """

    name: str
    line: int
    text: str
    sources: dict[str, str]


def mutants(sources: Mapping[str, str]) -> Iterator[Mutant]:
    """Yield one for each `__syncthreads();` and `__syncwarp();`."""
    for file, text in sources.items():
        numbers: dict[str, int] = {}
        for barrier in BARRIER.finditer(text):
            function = [found[1] for found in FUNCTION.finditer(text, 0, barrier.start())][-1]
            numbers[function] = numbers.get(function, 0) + 1
            line = text.count("\n", 0, barrier.start())
            without = f"{text[: barrier.start()]}(void)0;{text[barrier.end() :]}"
            yield Mutant(
                f"{file} {function} {numbers[function]}",
                line + 1,
                text.splitlines()[line].strip(),
                {**sources, file: without},
            )


def examine(sources: Mapping[str, str], folder: Path) -> str:
    """Run `barrier_cases` with some kernels; returns the first wrong one, or nothing.

    It is a separate process because a kernel without a barrier may write anywhere or never end; the
    answer is then the name of the signal that ended it.
    """
    receiver, sender = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=_examine, args=(sources, folder, sender))
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


def _examine(sources, folder, sender):
    import resource  # which Windows lacks

    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # crashes are expected
    sender.send(first_wrong(Shim(sources, folder)))
