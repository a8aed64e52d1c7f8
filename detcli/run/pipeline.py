"""The pipeline: items are loaded, run through the detector in batches, and become records in order.

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
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

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
"""Errors that every other batch would also meet."""


@dataclass(eq=False, slots=True)
class Entry:
    """An item in the pipeline: it is loaded, run through the detector, and made into a record."""

    index: int  # among the items
    item: Item
    record: Record | None = None


@frozen
class End:
    """Says that no more items come, with the error of their source if one ended it."""

    error: BaseException | None = None


Message = Entry | list[Entry] | DetcliError | End
"""An item that was read, a batch that has its records, an error that ends the run, or the end."""


class StartedBatch(NamedTuple):
    """A batch that runs on a device."""

    entries: list[Entry]
    pending: Pending | DetcliError  # waits for the detections; or why they could not be started


class Pipeline:
    """Runs items, each an image or frame to be loaded, through detectors; yields their records."""

    def __init__(
        self,
        detector: BatchDetector,
        batch: int,
        clones: Sequence[str] = (),
        input_timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Prepare a run; nothing starts before `run`.

        Args:
            detector: An open detector, which its caller closes.
            batch: The number of images in a batch.
            clones: Devices such as "cpu" or "cuda:1", on each of which a clone of the detector is
                opened. That happens on threads, while the detector is already running. All share
                the batches.
            input_timeout_s: How long an item may take to load; one that takes longer becomes a
                record with an error. 0 means no limit.
        """
        self.times = StageTimes()  # summed over the threads
        self._batch = batch
        self._detector = detector
        self._clones = clones
        self._input_timeout_s = input_timeout_s
        detector_count = 1 + len(clones)
        log.info("batches of %d, detectors: %d", batch, detector_count)

        # The number of items on their way is limited: the reader takes a permit for each item,
        # which is given back when the item's record is yielded. The permits are enough to fill, for
        # each detector, the batches that run and one that waits, and besides them the batch that is
        # being gathered.
        batches_per_detector = detector.in_flight + 1
        max_batches = detector_count * batches_per_detector + 1
        self._item_permits = threading.Semaphore(batch * max_batches)

        # Messages of all other threads to the calling thread.
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        # Batches that wait for a detector; None ends one worker.
        self._batches: queue.SimpleQueue[list[Entry] | None] = queue.SimpleQueue()
        # Set when the run is over; all threads check it, so that they end.
        self._over = threading.Event()

    def run(
        self, items: Iterable[Item], skip: Callable[[Item], bool] = lambda _: False
    ) -> Generator[Record]:
        """Yield a record for each item, in order, on the calling thread.

        The threads that read and load items, and that run batches of them on the detectors, are
        started here and end when the generator does. Items are taken from their source while there
        is room for them.

        Args:
            items: What to load and to run detection on.
            skip: Returns whether an item needs no record; it still counts in the index.

        Raises:
            DetcliError: A device cannot be used, or hangs.
            BaseException: Whatever the source of the items raised, after the records of all earlier
                items.
        """
        workers = self._make_workers()
        worker_threads = [BackgroundThread(worker.run, stop=self._stop) for worker in workers]
        loader_count = min(available_cores(), MAX_LOADERS)
        loaders = Loaders(loader_count, self._input_timeout_s)
        read_items = partial(self._read_items, items, skip, loaders)
        reader_thread = BackgroundThread(read_items, stop=self._stop)
        for thread in worker_threads:
            thread.start()
        reader_thread.start()
        process_id = os.getpid()
        try:
            yield from self._gather(workers)
            self._require_opened(workers)
        finally:
            # Python may also end this generator in a fork of the process. That has none of the
            # threads, and locks that they held would never be released there.
            is_fork = os.getpid() != process_id
            if not is_fork:
                self._stop()
                deadline = time.monotonic() + CLOSE_TIMEOUT_S
                loaders.close(deadline)
                join_all(worker_threads, deadline - time.monotonic())
                self._add_times(workers)

    def stop(self) -> None:
        """Tell all threads to end, without waiting for them; any thread may call this.

        A thread that is in `run` leaves it with an InferenceError.
        """
        self._stop()
        # The thread in `run` may wait for a message.
        self._messages.put(InferenceError("interrupted"))

    def _stop(self) -> None:
        """Tell the reader, loader and worker threads to end, without waiting for them."""
        self._over.set()
        self._item_permits.release()  # the reader may be waiting for room
        detector_count = 1 + len(self._clones)
        for _ in range(detector_count):
            self._batches.put(None)  # ends one worker

    def _make_workers(self) -> list["Worker"]:
        """Make a worker for the detector of the caller, and one for each clone of it."""
        devices: list[str | None] = [None]  # None is that of the caller's detector
        devices.extend(self._clones)
        workers = []
        for device in devices:
            open_detector = partial(self._open_detector, device)
            workers.append(Worker(open_detector, self._batches, self._messages, self._over))
        return workers

    def _add_times(self, workers: Sequence["Worker"]) -> None:
        """Add up the time that each stage took on all workers."""
        for worker in workers:
            for stage, seconds in worker.times.items():
                self.times[stage] += seconds

    def _open_detector(self, device: str | None) -> AbstractContextManager[BatchDetector]:
        """Open a clone of the detector for a worker, which closes it at the end of the context.

        Args:
            device: The device of the clone; None for the detector itself, which is already open and
                which the caller of the pipeline closes.
        """
        if device is None:
            return nullcontext(self._detector)
        return closing(self._detector.clone(device))

    def _gather(self, workers: Sequence["Worker"]) -> Iterator[Record]:
        """Put the items that were read into batches, and yield their records in order.

        The other threads send messages. The reader thread sends each item, and an `End` after the
        last. A worker sends a batch when all its items have records, or the error of its device.

        A batch is started when it is complete. An incomplete one is started, too, if no message
        comes for a moment, or if no more items come at all.

        Raises:
            DetcliError: A device cannot be used, or hangs.
            BaseException: The error that ended the source of the items.
        """
        next_batch: list[Entry] = []
        unfinished: deque[Entry] = deque()  # items whose records are still to be yielded, in order
        end: End | None = None  # the reader's last message, once it has come
        stall_watch = _StallWatch(workers)
        while end is None or unfinished:
            timeout_s = POLL_S
            if next_batch:  # a camera's frame must not wait long for others
                timeout_s = BATCH_TIMEOUT_S
            message = self._next_message(timeout_s)
            match message:
                case None:  # none came in time
                    stall_watch.add_wait(timeout_s, unfinished)
                case Entry():
                    next_batch.append(message)
                    unfinished.append(message)
                case End():
                    end = message
                case DetcliError():
                    raise message
            if message is not None:
                stall_watch.reset()

            is_complete = len(next_batch) == self._batch
            has_to_start = is_complete or message is None or end is not None
            if next_batch and has_to_start:
                self._batches.put(next_batch)
                next_batch = []
            yield from self._take_records(unfinished)
        if end.error is not None:
            raise end.error

    def _take_records(self, unfinished: deque[Entry]) -> Iterator[Record]:
        """Yield the available records, up to the first item that has none yet.

        When a record has been yielded, there is room for another item.

        Args:
            unfinished: Items whose records have not been yielded yet, in order. Those whose records
                are yielded are taken out.
        """
        while unfinished:
            entry = unfinished[0]
            if entry.record is None:
                return
            unfinished.popleft()
            self.times[Stage.DECODE] += entry.item.seconds
            yield entry.record
            self._item_permits.release()

    def _next_message(self, timeout_s: float) -> Message | None:
        """Wait for a message from another thread; None if none comes within `timeout_s` seconds."""
        try:
            return self._messages.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def _require_opened(self, workers: Sequence["Worker"]) -> None:
        """Wait until each worker has opened its detector, and raise the error of one that cannot.

        Workers open their detectors while the run goes on, so that a short run may be over before
        they have. A device that cannot be used has to be an error even then.

        Raises:
            DetcliError: A detector could not be opened.
        """
        for worker in workers:
            worker.opened.wait(STALL_TIMEOUT_S)

        # A worker that fails sends its error as a message. All records have been yielded, so any
        # other message that is left is irrelevant.
        while not self._messages.empty():
            message = self._messages.get()
            if isinstance(message, DetcliError):
                raise message

    def _read_items(
        self, items: Iterable[Item], skip: Callable[[Item], bool], loaders: Loaders
    ) -> None:
        """Take items from their source until there are no more, or the run is over.

        The reader thread runs this. Each item goes to the prefetcher, which fetches files at
        addresses ahead of time, and then calls `_admit` for the items in their order. At the end,
        the calling thread gets an `End`, with the error of the source if it has raised one.

        Args:
            items: What to load.
            skip: Returns whether an item needs no record.
            loaders: The threads that load items.
        """
        prefetcher = Prefetcher(partial(self._admit, loaders), self._over)
        error: BaseException | None = None
        try:
            for index, item in enumerate(items):
                if skip(item):
                    continue
                is_running = prefetcher.put(index, item)
                if not is_running:
                    break
        except BaseException as caught:  # noqa: BLE001 - raised again by _gather
            error = caught
        prefetcher.close()
        self._messages.put(End(error))

    def _admit(self, loaders: Loaders, index: int, item: Item) -> bool:
        """Wait until there is room for an item, and let it be loaded; False if the run is over."""
        has_room = False
        while not has_room and not self._over.is_set():
            has_room = self._item_permits.acquire(timeout=POLL_S)
        if self._over.is_set():
            return False
        item.check = self._detector.require_region
        loaders.put(item)
        self._messages.put(Entry(index, item))
        return True


class _StallWatch:
    """Notices if no device has finished anything for STALL_TIMEOUT_S, although one has work.

    The time is counted in waits, not measured, since the process may have been suspended for hours.
    """

    def __init__(self, workers: Sequence["Worker"]) -> None:
        self._workers = workers
        self._finished_batches = 0  # of all devices, when last checked
        self._silent_s = 0.0  # for how long none has finished anything

    def reset(self) -> None:
        """Reset the timer, as something has happened."""
        self._silent_s = 0.0

    def add_wait(self, waited_s: float, unfinished: Collection[Entry]) -> None:
        """Count a wait in which no message came, if a device may have caused it.

        If an item was still being loaded, the devices may have had nothing to do, and the wait is
        not counted. If a device has finished a batch meanwhile, the count starts again: a large
        image in tiles takes many batches, which send no messages.

        Args:
            waited_s: How many seconds the wait took.
            unfinished: The items whose records have not been yielded yet.

        Raises:
            InferenceError: The devices have finished nothing for too long.
        """
        batches_before = self._finished_batches
        self._finished_batches = sum(worker.finished_batches for worker in self._workers)
        has_finished_batch = self._finished_batches > batches_before

        loaded_entries = [entry for entry in unfinished if entry.item.finished.is_set()]
        waits_for_device = bool(unfinished) and len(loaded_entries) == len(unfinished)

        if has_finished_batch:
            self._silent_s = 0.0
        elif waits_for_device:
            self._silent_s += waited_s
        if self._silent_s > STALL_TIMEOUT_S:
            raise InferenceError(
                f"the device has finished nothing for {STALL_TIMEOUT_S / 60:.0f} minutes",
                "check whether it hangs (nvidia-smi, top), or use --device cpu",
            )


class Worker:
    """Runs batches on one detector, on a separate thread.

    It takes batches from a queue until None comes. If a batch fails, the records of its items have
    the error. CUDA graphs are captured on a thread, so the detector is opened on the thread too.
    """

    def __init__(
        self,
        open_detector: Callable[[], AbstractContextManager[BatchDetector]],
        batches: "queue.SimpleQueue[list[Entry] | None]",
        inbox: "queue.SimpleQueue[Message]",
        over: threading.Event,
    ) -> None:
        """Prepare to run batches.

        Args:
            open_detector: Opens the detector, which is closed at the end of the context.
            batches: The batches to run, which all workers share; None ends one worker.
            inbox: Gets each batch when its items have records, and an error that ends the run.
            over: Set when the run is over.
        """
        self.times = StageTimes()  # of the detector; complete when the thread has ended
        self.opened = threading.Event()  # set when it is open, or cannot be opened
        self._detector: BatchDetector | None = None
        self._open_detector = open_detector
        self._batches = batches
        self._messages = inbox
        self._over = over

    @property
    def finished_batches(self) -> int:
        """How many batches its device has finished."""
        if self._detector is None:
            return 0
        return self._detector.finished_batches

    def run(self) -> None:
        """Open the detector, run batches on it, and close it.

        An error that ends this, such as a device that cannot be used, is reported to the run.
        """
        try:
            with self._open_detector() as detector:
                self.opened.set()
                self.times = detector.times
                self._detector = detector
                self._run_batches(detector)
        except BaseException as error:  # noqa: BLE001 - reported to the run
            self._messages.put(as_error(error))
        finally:
            self.opened.set()

    def _run_batches(self, detector: BatchDetector) -> None:
        """Run batches from the queue until None comes out of it.

        Up to `in_flight` batches run at a time. The oldest is waited for when this many run, or
        when no other one is ready to be started.
        """
        running: deque[StartedBatch] = deque()  # the oldest first
        while True:
            nothing_runs = not running
            try:
                batch = self._batches.get(block=nothing_runs)
            except queue.Empty:
                self._finish_batch(detector, running.popleft())
                continue
            if batch is None:
                break
            running.append(StartedBatch(batch, self._start_batch(detector, batch)))
            if len(running) >= detector.in_flight:
                self._finish_batch(detector, running.popleft())
        while running:
            self._finish_batch(detector, running.popleft())

    def _start_batch(self, detector: BatchDetector, batch: list[Entry]) -> Pending | DetcliError:
        """Start detection on the images of a batch, once all its items are loaded.

        Items that could not be loaded are left out.

        Returns:
            A function that waits for the detections, or the error if they could not be started.
        """
        for entry in batch:
            is_loaded = False
            while not is_loaded and not self._over.is_set():
                is_loaded = entry.item.finished.wait(POLL_S)
        if self._over.is_set():
            return InferenceError("interrupted")
        images = []
        for entry in batch:
            if entry.item.picture is not None:
                images.append(entry.item.picture)
        try:
            return detector.submit(images)
        except BaseException as error:  # noqa: BLE001 - becomes records, see _finish_batch
            return as_error(error)

    def _finish_batch(self, detector: BatchDetector, started: StartedBatch) -> None:
        """Wait for the detections of a batch, set the records of its items, and send the batch.

        The calling thread of the run then yields the records. If the batch failed, all of them have
        its error. But an error that every other batch would meet, too, such as that of a lost
        device, is sent in place of the batch, and ends the run.

        Args:
            detector: The detector that the batch runs on.
            started: The batch.
        """
        results = _wait_for_detections(started)
        if isinstance(results, FATAL_ERRORS):
            self._messages.put(results)
            return

        if isinstance(results, DetcliError):
            for entry in started.entries:
                error = entry.item.error or results
                entry.record = _record_of(entry, detector, None, error)
        else:
            loaded_results = iter(results)  # one for each item that could be loaded, in order
            for entry in started.entries:
                detections = None
                if entry.item.error is None:
                    detections = next(loaded_results)
                entry.record = _record_of(entry, detector, detections, entry.item.error)
        self._messages.put(started.entries)


def _record_of(
    entry: Entry,
    detector: BatchDetector,
    detections: "Detections | None",
    error: DetcliError | None,
) -> Record:
    """Make the record of an item, with its image unless it failed.

    Args:
        entry: The item and its index.
        detector: The detector that processes the item.
        detections: What was detected; None if it failed.
        error: Why it failed, if it did.
    """
    image = None
    if not error:
        image = entry.item.picture
    return Record(
        origin=entry.item.origin,
        index=entry.index,
        model=detector.model_name,
        device=detector.device,
        precision=detector.precision,
        picture=image,
        detections=detections,
        error=error,
    )


def _wait_for_detections(started: StartedBatch) -> "Sequence[Detections] | DetcliError":
    """Wait until a device has finished a batch.

    Returns:
        The detections in each item that could be loaded; or the error, if the batch failed.
    """
    if isinstance(started.pending, DetcliError):
        return started.pending
    try:
        results = started.pending()
    except BaseException as error:  # noqa: BLE001 - becomes records
        return as_error(error)
    image_count = sum(entry.item.picture is not None for entry in started.entries)
    if len(results) != image_count:
        return InferenceError(f"{len(results)} results for {image_count} images")
    return results
