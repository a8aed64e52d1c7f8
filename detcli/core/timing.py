"""Time: spent in the stages of a run, or by an input that has a time limit."""

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import TypeVar

from detcli.core.threads import BackgroundThread

T = TypeVar("T")

POLL_S = 0.2  # how often a waiting thread checks whether it is to stop


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
        self._last_s = time.monotonic()

    def seconds(self) -> float:
        """Seconds so far."""
        time_s = time.monotonic()
        self._seconds += min(time_s - self._last_s, self.LONGEST_STEP_S)
        self._last_s = time_s
        return self._seconds


class TimeLimitError(Exception):
    """A task took too long; not the built-in TimeoutError, which is an OSError."""


def run_with_time_limit(limit_s: float, task: Callable[[], T]) -> T:
    """Run a task on a separate thread, and give up if it takes too long.

    Nothing can interrupt a library or a system call, so the thread is abandoned then. Ctrl-C works
    meanwhile.

    Args:
        limit_s: The seconds that it may take, without those for which the process is suspended; 0
            for no limit.
        task: What to run.

    Returns:
        What the task returns; what it raises is raised here.

    Raises:
        TimeLimitError: It took too long.
    """
    # The thread puts what the task returns or raises into one of these lists.
    results: list[T] = []
    errors: list[BaseException] = []

    def run_task() -> None:
        try:
            results.append(task())
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            errors.append(error)

    thread = BackgroundThread(run_task)
    thread.start()
    time_running = RunningTime()
    while thread.is_alive():
        thread.join(POLL_S)
        is_late = bool(limit_s) and time_running.seconds() > limit_s
        if is_late and thread.is_alive():
            thread.is_abandoned = True
            raise TimeLimitError
    if errors:
        raise errors[0]
    return results[0]
