"""Time spent in the stages of a run."""

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
