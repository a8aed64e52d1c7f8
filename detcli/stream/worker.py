"""Worker: a detector on a thread of its own, which runs batches from a queue."""

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from detcli.backend import Pending
from detcli.detector import Detector
from detcli.errors import (
    DependencyError,
    DetcliError,
    DeviceError,
    DeviceMemoryError,
    InferenceError,
)
from detcli.record import Record
from detcli.stream.entry import Batch, Done, End, Entry, Fatal, as_error
from detcli.timing import StageTimes

if TYPE_CHECKING:
    from detcli.detections import Detections

LOOK_UP_S = 1.0
"""How often a waiting thread looks whether the run is over."""

ENDING = (DeviceMemoryError, DeviceError, DependencyError)
"""What would happen to every other batch too."""

Event = Entry | Done | End | Fatal


class Worker:
    """Takes batches until None comes; whatever fails becomes the records of a batch.

    CUDA graphs are captured for a thread, so a detector stays on the one that opened it.

    Attributes:
        times: Seconds that its detector spent in each stage; complete when the thread has ended.
        opened: Set when it has a detector, or knows that it cannot have one.
    """

    def __init__(
        self,
        batches: "queue.SimpleQueue[Batch | None]",
        inbox: "queue.SimpleQueue[Event]",
        over: threading.Event,
    ) -> None:
        """Connect it.

        Args:
            batches: Where it takes its work from.
            inbox: Where it says what happened.
            over: Set when nobody waits for records any more.
        """
        self.times = StageTimes()
        self.opened = threading.Event()
        self._batches, self._inbox, self._over = batches, inbox, over

    def use(self, detector: Detector) -> None:
        """Run batches on a detector that somebody else closes."""
        try:
            self._work(detector)
        except BaseException as error:  # noqa: BLE001 - nobody else would hear of it
            self._inbox.put(Fatal(as_error(error)))
        self.times = detector.times

    def open(self, opening: Callable[[], Detector]) -> None:
        """Run batches on a detector of its own."""
        try:
            detector = opening()
        except BaseException as error:  # noqa: BLE001 - the run must hear of it
            self._inbox.put(Fatal(as_error(error)))
            return
        finally:
            self.opened.set()
        try:
            self.use(detector)
        finally:
            detector.close()

    def _work(self, detector: Detector) -> None:
        """Run batches on one detector, until None comes."""
        running: deque[tuple[Batch, Pending | DetcliError]] = deque()
        while True:
            try:
                batch = self._batches.get(block=not running)
            except queue.Empty:
                pass  # nothing to start: wait for what runs
            else:
                if batch is None:
                    break
                running.append((batch, self._start(detector, batch)))
                if len(running) < detector.in_flight:
                    continue
            self._finish(detector, *running.popleft())
        while running:
            self._finish(detector, *running.popleft())

    def _start(self, detector: Detector, batch: Batch) -> Pending | DetcliError:
        """Enqueue those entries of a batch that could be loaded."""
        for entry in batch:
            while not entry.loaded.wait(LOOK_UP_S) and not self._over.is_set():
                pass
        if self._over.is_set():
            return InferenceError("interrupted")
        try:
            pictures = [entry.picture for entry in batch if entry.picture is not None]
            return detector.submit(pictures)
        except BaseException as error:  # noqa: BLE001 - becomes records, see _finish
            return as_error(error)

    def _finish(self, detector: Detector, batch: Batch, pending: Pending | DetcliError) -> None:
        """Wait for a batch, and give its entries their records."""
        failure = pending if isinstance(pending, DetcliError) else None
        following: Iterator[Detections] = iter(())
        if not isinstance(pending, DetcliError):
            try:
                found = pending()
                expected = sum(entry.picture is not None for entry in batch)
                if len(found) != expected:
                    failure = InferenceError(f"{len(found)} results came for {expected} pictures")
                following = iter(found)
            except BaseException as caught:  # noqa: BLE001
                failure = as_error(caught)
        if isinstance(failure, ENDING):
            self._inbox.put(Fatal(failure))
            return
        for entry in batch:
            error = entry.error or failure
            entry.record = Record(
                source=entry.item.source,
                index=entry.index,
                model=detector.model_name,
                device=detector.device,
                picture=None if error else entry.picture,
                detections=None if error else next(following),
                error=error,
                path=entry.item.path,
                frame=entry.item.frame,
                time_s=entry.item.time_s,
                clip=entry.item.clip,
            )
        self._inbox.put(Done())
