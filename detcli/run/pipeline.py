"""The pipeline: items are loaded, gathered into batches, detected on, and become records in order.

    reader thread     takes items from their source, as long as there is room
    loader threads    read and decode them; one that exceeds the time limit is replaced
    calling thread    gathers batches, and yields records in the order of the items
    worker threads    one per detector: run batches, as many in flight as suit the device

An input that fails becomes a record with an error, and the others go on. No thread waits forever:
each checks once a second whether the run is over.
"""

import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from detcli.backend.protocol import Pending
from detcli.config.device import available_cores
from detcli.core import frozen
from detcli.core.errors import (
    DependencyError,
    DetcliError,
    DeviceError,
    DeviceMemoryError,
    InferenceError,
    ModelError,
    as_error,
)
from detcli.core.threads import BackgroundThread, join_all
from detcli.core.timing import Stage, StageTimes
from detcli.data.record import Record
from detcli.run.batches import BatchDetector
from detcli.source.decode import TIMEOUT_S
from detcli.source.fetch import Prefetcher
from detcli.source.loading import Item, Loaders

if TYPE_CHECKING:
    from detcli.data.detections import Detections

log = logging.getLogger(__name__)

BATCH_TIMEOUT_S = 0.02
"""How long an incomplete batch waits for more; a camera's frame must not wait for the next one."""

POLL_S = 1.0  # how often a waiting thread checks whether the run is over
CLOSE_TIMEOUT_S = 2.0  # how long the end of a run waits for its threads
STALL_TIMEOUT_S = 600.0  # a device that finishes nothing for this long counts as hung

MAX_LOADERS = 16

FATAL_ERRORS = (DeviceMemoryError, DeviceError, DependencyError, ModelError)
"""Errors that every other batch would meet, too."""


@dataclass(eq=False, slots=True)
class Entry:
    """An item on its way: loaded to a picture or an error, then a record."""

    index: int  # among the items
    item: Item
    record: Record | None = None


@frozen
class End:
    """No more items; with the error of the source, if one ended it."""

    error: BaseException | None = None


Message = Entry | list[Entry] | DetcliError | End
"""An item that was read, a batch that has its records, an error that ends the run, or the end."""

StartedBatch = tuple[list[Entry], Pending | DetcliError]
"""A batch, and what waits for its detections, or why it could not be started."""


class Pipeline:
    """Runs items through detectors."""

    def __init__(
        self,
        detector: BatchDetector,
        batch: int,
        clones: Sequence[str] = (),
        input_timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Prepare a run; nothing starts before `run`.

        Clones of the detector, on devices such as "cpu" or "cuda:1", are opened on their own
        threads while it is already running; all share the batches. An item that takes longer than
        `input_timeout_s` to load becomes a record with an error; 0 means no limit.
        """
        self.times = StageTimes()  # summed over the threads
        self._batch = batch
        self._detector = detector
        self._clones = clones  # their devices
        self._input_timeout_s = input_timeout_s
        log.info("batches of %d, detectors: %d", batch, 1 + len(clones))
        # The batches in flight, one waiting for each detector, and the one being gathered.
        room = batch * ((1 + len(clones)) * (detector.in_flight + 1) + 1)
        self._room = threading.Semaphore(room)
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._batches: queue.SimpleQueue[list[Entry] | None] = queue.SimpleQueue()
        self._over = threading.Event()
        self._finished = 0  # batches, when it was last looked at

    def run(
        self, items: Iterable[Item], skip: Callable[[Item], bool] = lambda _: False
    ) -> Generator[Record]:
        """Yield a record for each item, in order; items are taken while there is room.

        Those that `skip` names need no record, but count in the index.
        """
        workers = []
        for device in (None, *self._clones):  # None is the caller's detector
            opening = partial(self._open, device)
            workers.append(Worker(opening, self._batches, self._inbox, self._over))
        loaders = Loaders(min(available_cores(), MAX_LOADERS), self._input_timeout_s)
        threads = [BackgroundThread(worker.run, stop=self._stop) for worker in workers]
        reader = BackgroundThread(partial(self._read, items, skip, loaders), stop=self._stop)
        for thread in (*threads, reader):
            thread.start()
        process = os.getpid()
        try:
            yield from self._gather(workers)
            self._require_opened(workers)
        finally:
            if os.getpid() == process:  # a fork has none of the threads, and perhaps their locks
                self._stop()
                deadline = time.monotonic() + CLOSE_TIMEOUT_S
                loaders.close(deadline)
                join_all(threads, deadline - time.monotonic())
                self._add_times(workers)

    def _stop(self) -> None:
        """Tell all threads to end, without waiting for them."""
        self._over.set()
        self._room.release()  # the reader may be waiting for some
        for _ in range(1 + len(self._clones)):
            self._batches.put(None)

    def _add_times(self, workers: Sequence["Worker"]) -> None:
        """Add up the time that each stage took on all workers."""
        for worker in workers:
            for stage, seconds in worker.times.items():
                self.times[stage] += seconds

    def _open(self, device: str | None) -> AbstractContextManager[BatchDetector]:
        """The caller's detector, which it closes itself, or a clone on a device."""
        if device is None:
            return nullcontext(self._detector)
        return closing(self._detector.clone(device))

    def _gather(self, workers: Sequence["Worker"]) -> Iterator[Record]:
        """Make batches of the entries that were read, and yield their records in order."""
        gathered: list[Entry] = []  # for the next batch
        expected: deque[Entry] = deque()  # those whose records were not yielded yet
        end = None
        silent_s = 0.0  # counted, not measured: the process may have been suspended for hours
        while end is None or expected:
            timeout_s = BATCH_TIMEOUT_S if gathered else POLL_S
            try:
                message = self._inbox.get(timeout=timeout_s)
                silent_s = 0.0
            except queue.Empty:
                message = None
                silent_s = self._silence(silent_s, timeout_s, expected, workers)
                if silent_s > STALL_TIMEOUT_S:
                    raise InferenceError(
                        f"the device has finished nothing for {STALL_TIMEOUT_S / 60:.0f} minutes",
                        "check whether it hangs (nvidia-smi, top), or use --device cpu",
                    ) from None

            match message:
                case Entry():
                    gathered.append(message)
                    expected.append(message)
                case End():
                    end = message
                case DetcliError():
                    raise message

            is_complete = len(gathered) == self._batch or message is None or end is not None
            if gathered and is_complete:
                self._batches.put(gathered)
                gathered = []
            while expected and (record := expected[0].record) is not None:
                self.times[Stage.DECODE] += expected.popleft().item.seconds
                yield record
                self._room.release()
        if end.error is not None:
            raise end.error

    def _silence(
        self,
        silent_s: float,
        elapsed_s: float,
        expected: Iterable[Entry],
        workers: Iterable["Worker"],
    ) -> float:
        """How long no device has finished anything, now that `elapsed_s` more have passed."""
        finished_before = self._finished
        self._finished = sum(worker.finished for worker in workers)
        if self._finished > finished_before:  # one of many batches of a picture in tiles, perhaps
            return 0.0
        # The time in which inputs are loaded is not the device's.
        are_loaded = [entry.item.finished.is_set() for entry in expected]
        if are_loaded and all(are_loaded):
            return silent_s + elapsed_s
        return silent_s

    def _require_opened(self, workers: Sequence["Worker"]) -> None:
        """Refuse a device that cannot be used, even if the run was over before it was needed."""
        for worker in workers:
            worker.opened.wait(STALL_TIMEOUT_S)
        while not self._inbox.empty():
            message = self._inbox.get()
            if isinstance(message, DetcliError):
                raise message

    def _read(self, items: Iterable[Item], skip: Callable[[Item], bool], loaders: Loaders) -> None:
        """Let the loaders load items, and announce each entry, until the items or the run end."""

        def admit(index: int, item: Item) -> bool:
            while not self._room.acquire(timeout=POLL_S) and not self._over.is_set():
                pass
            if self._over.is_set():
                return False
            item.check = self._detector.require_region
            entry = Entry(index, item)
            loaders.put(item)
            self._inbox.put(entry)
            return True

        prefetcher = Prefetcher(admit, self._over)
        error: BaseException | None = None
        try:
            for index, item in enumerate(items):
                if not skip(item) and not prefetcher.put(index, item):
                    break
        except BaseException as caught:  # noqa: BLE001 - raised again by _gather
            error = caught
        prefetcher.close()
        self._inbox.put(End(error))


class Worker:
    """Runs batches on one detector until None comes; a failure goes into the records of its batch.

    CUDA graphs are captured on a thread, so a detector stays on the one that opened it.
    """

    def __init__(
        self,
        opening: Callable[[], AbstractContextManager[BatchDetector]],
        batches: "queue.SimpleQueue[list[Entry] | None]",
        inbox: "queue.SimpleQueue[Message]",
        over: threading.Event,
    ) -> None:
        self.times = StageTimes()  # of the detector; complete when the thread has ended
        self.opened = threading.Event()  # set when it is open, or cannot be opened
        self._detector: BatchDetector | None = None
        self._opening = opening
        self._batches = batches
        self._inbox = inbox
        self._over = over

    @property
    def finished(self) -> int:
        """How many batches its device has finished."""
        if self._detector is None:
            return 0
        return self._detector.finished

    def run(self) -> None:
        """Open the detector, run batches on it, and close it."""
        try:
            with self._opening() as detector:
                self.opened.set()
                self.times = detector.times
                self._detector = detector
                self._work(detector)
        except BaseException as error:  # noqa: BLE001 - reported to the run
            self._inbox.put(as_error(error))
        finally:
            self.opened.set()

    def _work(self, detector: BatchDetector) -> None:
        """Run batches until None comes, as many at a time as suit the device."""
        running: deque[StartedBatch] = deque()
        while True:
            try:
                batch = self._batches.get(block=not running)
            except queue.Empty:
                pass  # nothing to start: wait for a running batch
            else:
                if batch is None:
                    break
                running.append((batch, self._start(detector, batch)))
                if len(running) < detector.in_flight:
                    continue
            self._finish(detector, running.popleft())
        while running:
            self._finish(detector, running.popleft())

    def _start(self, detector: BatchDetector, batch: list[Entry]) -> Pending | DetcliError:
        """Start on those entries of a batch whose items could be loaded."""
        for entry in batch:
            while not entry.item.finished.wait(POLL_S) and not self._over.is_set():
                pass
        if self._over.is_set():
            return InferenceError("interrupted")
        try:
            pictures = [entry.item.picture for entry in batch]
            return detector.submit([picture for picture in pictures if picture is not None])
        except BaseException as error:  # noqa: BLE001 - becomes records, see _finish
            return as_error(error)

    def _finish(self, detector: BatchDetector, started: StartedBatch) -> None:
        """Wait for a batch, and set the records of its entries."""
        batch, pending = started
        results: list[Detections] = []
        failure: DetcliError | None = None
        if isinstance(pending, DetcliError):
            failure = pending
        else:
            try:
                results = pending()
            except BaseException as caught:  # noqa: BLE001 - becomes records
                failure = as_error(caught)
        picture_count = sum(entry.item.picture is not None for entry in batch)
        if failure is None and len(results) != picture_count:
            failure = InferenceError(f"{len(results)} results for {picture_count} pictures")
        if isinstance(failure, FATAL_ERRORS):
            self._inbox.put(failure)
            return
        next_results = iter(results)
        for entry in batch:
            error = entry.item.error or failure
            entry.record = Record(
                origin=entry.item.origin,
                index=entry.index,
                model=detector.model_name,
                device=detector.device,
                precision=detector.precision,
                picture=None if error else entry.item.picture,
                detections=None if error else next(next_results),
                error=error,
            )
        self._inbox.put(batch)
