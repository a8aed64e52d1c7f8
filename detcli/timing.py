"""Time: spent in the stages of a run, or by an input that has a time limit."""

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator
from enum import StrEnum


class Stage(StrEnum):
    """What a run spends its time on, in the order of the flow."""

    DECODE = "decode"
    PREPROCESS = "preprocess"
    UPLOAD = "upload"
    NETWORK = "network"
    SELECTION = "selection"
    DOWNLOAD = "download"
    DRAW = "draw"
    WAIT = "waiting"  # for a device that works asynchronously
    WRITE = "write"
    REMAINDER = "remainder"  # between the stages


class StageTimes(defaultdict[Stage, float]):
    """Seconds spent in each stage."""

    def __init__(self) -> None:
        super().__init__(float)

    @contextlib.contextmanager
    def stage(self, stage: Stage) -> Iterator[None]:
        """Add the time of a block to a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self[stage] += time.perf_counter() - start


class RunningTime:
    """Counts the seconds for which the process runs, not those for which it is suspended.

    Whoever waits has to ask at least once in `LONGEST_STEP_S`.
    """

    LONGEST_STEP_S = 2.0

    def __init__(self) -> None:
        self._seconds = 0.0
        self._last = time.monotonic()

    def seconds(self) -> float:
        """Seconds so far."""
        now = time.monotonic()
        self._seconds += min(now - self._last, self.LONGEST_STEP_S)
        self._last = now
        return self._seconds
