"""Warm-up: run until the times are stable, and say how often that was."""

import statistics
import time
from collections.abc import Callable, Sequence

from detcli.commands.bench.report import WarmUp

BLOCK = 5
"""Runs whose median is compared with that of the runs before them."""

LOOKED_BACK = 2 * BLOCK
STABLE = 0.05  # of the time: two blocks that differ by less
SHORTEST_S = 1.0
"""Clocks rise for a while even where a run takes a millisecond, and further detectors are opened
while the first one works already."""

LONGEST_S = 20.0


def warm_up(run: Callable[[], float]) -> WarmUp:
    """Call `run`, which returns its seconds, until it is settled whether they are stable.

    What is slow at first is over after a few runs: memory, caches, clocks, the plans of a GPU's
    libraries, the capture of a CUDA graph.
    """
    start = time.perf_counter()
    taken: list[float] = []
    stable = None
    while stable is None:
        taken.append(run())
        seconds = time.perf_counter() - start
        stable = settled(taken, seconds)
    return WarmUp(len(taken), seconds, taken[0], stable=stable)


def settled(taken: Sequence[float], seconds: float) -> bool | None:
    """Whether the times are stable: two blocks in a row took equally long.

    Args:
        taken: Seconds of each run, the last one last.
        seconds: Since the first one began.

    Returns:
        None as long as that is to be seen; False where it took too long to wait for.
    """
    if seconds > SHORTEST_S and len(taken) >= LOOKED_BACK:
        before = statistics.median(taken[-LOOKED_BACK:-BLOCK])
        if abs(statistics.median(taken[-BLOCK:]) - before) < STABLE * before:
            return True
    return False if seconds > LONGEST_S and len(taken) >= BLOCK else None
