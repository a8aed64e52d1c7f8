"""The stages' clock: every nanosecond of a run belongs to one stage, or to the remainder."""

import statistics
import time
from collections.abc import Callable

from detcli.timing import Stage

TRIALS = 2000


class StageClock:
    """Times the stages of one run after the other.

    Attributes:
        stages: Nanoseconds of each stage that was told of since `start`, the remainder included.
        wall: Nanoseconds from `start` to `stop`; the stages' sum, exactly.
        calls: How often it was told of a stage.
    """

    def __init__(self, now: Callable[[], int] = time.perf_counter_ns) -> None:
        """Stand still.

        Args:
            now: Nanoseconds of a clock that never goes back.
        """
        self._now = now
        self.stages: dict[Stage, int] = {}
        self.wall = self.calls = 0
        self._first = self._last = 0

    def start(self) -> None:
        """Begin a run."""
        self.stages, self.calls = {}, 0
        self._first = self._last = self._now()

    def ended(self, stage: Stage) -> None:
        """Count the time since the last call for a stage; one may be told of several times."""
        now = self._now()
        self.stages[stage] = self.stages.get(stage, 0) + now - self._last
        self._last = now
        self.calls += 1

    def stop(self) -> None:
        """End the run; what is left belongs to the remainder."""
        self.ended(Stage.REMAINDER)
        self.wall = self._last - self._first


def own_cost(calls: int) -> float:
    """Seconds that the clock itself takes in a run in which it is told of so many stages."""
    clock = StageClock()
    taken = []
    for _ in range(TRIALS):
        start = time.perf_counter_ns()
        clock.start()
        for _ in range(calls):
            clock.ended(Stage.REMAINDER)
        clock.stop()
        taken.append(time.perf_counter_ns() - start)
    return statistics.median(taken) / 1e9
