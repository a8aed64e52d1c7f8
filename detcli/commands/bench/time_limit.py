"""A time limit for each step of a measurement, at no cost to what is measured."""

import threading
from collections.abc import Callable
from typing import TypeVar

from detcli.errors import DetcliError
from detcli.source.reading import POLL_S
from detcli.timing import RunningTime

STOP_S = 2.0
"""How long an interrupted measurement may take to reach its next step."""

T = TypeVar("T")

TimedStep = tuple[RunningTime, float, Callable[[], DetcliError]]


class TimeLimit:
    """Runs a measurement on a thread of its own, and gives up if one of its steps never ends.

    A step may be in native code that nothing can interrupt. A thread for each step would be
    measured too; this way a step costs a note of when it began.
    """

    def __init__(self) -> None:
        self._step: TimedStep | None = None
        self._over = False

    def step(self, limit_s: float, error: Callable[[], DetcliError]) -> None:
        """Begin a step, which ends the one before.

        Args:
            limit_s: Seconds that it may take.
            error: Makes the error if it takes longer.

        Raises:
            KeyboardInterrupt: The measurement was interrupted.
        """
        if self._over:
            raise KeyboardInterrupt
        self._step = RunningTime(), limit_s, error

    def run(self, measure: Callable[[], T]) -> T:
        """Run a measurement, and pass on its result or error.

        Raises:
            DetcliError: A step took too long; its thread is abandoned.
        """
        done: list[T] = []
        failed: list[BaseException] = []

        def run() -> None:
            try:
                done.append(measure())
            except BaseException as error:  # noqa: BLE001 - raised again by the caller
                failed.append(error)

        self._step = None
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                thread.join(POLL_S)
                if self._step is not None:
                    running, limit_s, error = self._step
                    if running.seconds() > limit_s and thread.is_alive():
                        raise error()
        except KeyboardInterrupt:
            self._over = True
            thread.join(STOP_S)  # what it uses is closed next
            raise
        if failed:
            raise failed[0]
        return done[0]
