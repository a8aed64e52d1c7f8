"""Background threads that end before the interpreter does.

A daemon thread is stopped wherever it next asks for the interpreter's lock while that shuts down.
If it comes out of a library in C++ then, as from decoding a frame, the whole process is aborted
with "terminate called without an active exception". So all threads are joined before that.
"""

import atexit
import logging
import threading
import time
from collections.abc import Callable

EXIT_TIMEOUT_S = 30.0
"""How long the end of the process waits for threads, as for a large batch on a slow device."""

STARTING_S = 0.001
"""How long to wait for a thread that is being started, before it is looked at again."""

log = logging.getLogger(__name__)


def keep_running() -> None:
    """Stop nothing: for a thread that will soon end by itself."""


class BackgroundThread(threading.Thread):
    """A daemon thread that is told to stop, and joined, when the process ends.

    `stop` is called on another thread, perhaps several times, and must not wait.
    """

    def __init__(
        self, target: Callable[[], object] | None = None, stop: Callable[[], None] = keep_running
    ) -> None:
        super().__init__(target=target, daemon=True)
        self.stop = stop
        self.is_abandoned = False  # whether it hangs in a call, so that nothing waits for it


def join_all(threads: "list[BackgroundThread]", timeout_s: float) -> None:
    """Wait for threads, for at most `timeout_s` seconds in total."""
    deadline = time.monotonic() + timeout_s
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def stop_all(timeout_s: float = EXIT_TIMEOUT_S) -> None:
    """Tell all background threads to stop, and wait for those that do not hang."""
    deadline = time.monotonic() + timeout_s
    while threads := _running():  # stopping one may let another one start the next
        for thread in threads:
            thread.stop()
        remaining_s = deadline - time.monotonic()
        if remaining_s <= 0:
            log.info("%d threads still run when the process ends", len(threads))
            return
        # Another thread may be about to start one of them, which cannot be joined before that.
        started_threads = [thread for thread in threads if thread.is_alive()]
        join_all(started_threads, remaining_s)
        if len(started_threads) < len(threads):
            time.sleep(STARTING_S)


def _running() -> list[BackgroundThread]:
    """Return the background threads that run or are being started."""
    return [
        thread
        for thread in threading.enumerate()
        if isinstance(thread, BackgroundThread) and not thread.is_abandoned
    ]


def _stop_at_exit() -> None:
    """Stop all threads when the process ends; a second Ctrl-C ends the waiting."""
    try:
        stop_all()
    except KeyboardInterrupt:
        log.info("interrupted while waiting for threads")


atexit.register(_stop_at_exit)
