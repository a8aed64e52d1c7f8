"""Kernels that lack one barrier each, and the wrong answers they give.

    python -m backend.cuda.mutation FOLDER [NUMBER]

runs `barrier_cases` with the NUMBER-th mutant of the package's kernels, or with the kernels as they
are, and prints the name of the first case whose answer is wrong. It is a separate process because
a kernel without a barrier may write anywhere or never end.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from backend.cuda.barrier_cases import first_wrong
from backend.cuda.shim import Shim, kernel_sources

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


if __name__ == "__main__":
    import resource  # which Windows lacks

    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # crashes are expected
    chosen = kernel_sources()
    if len(sys.argv) > 2:
        chosen = list(mutants(chosen))[int(sys.argv[2])].sources
    sys.stdout.write(first_wrong(Shim(chosen, Path(sys.argv[1]))))
