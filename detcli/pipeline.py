"""The flow: items are decoded, gathered into batches, detected on, and become records in order.

    reader thread     takes items from their source, as long as there is room
    decode threads    load them
    this thread       gathers batches, hands out records in the order of the items
    worker threads    one a detector: run batches, and keep as many in flight as the device likes

What fails becomes a record with an error; the others go on. Nothing waits without end: threads
look up once a second whether the run is over.
"""

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from detcli.backend.device import available_cores
from detcli.backend.protocol import Pending
from detcli.detector import Detector
from detcli.errors import (
    DependencyError,
    DetcliError,
    DeviceError,
    DeviceMemoryError,
    InferenceError,
)
from detcli.geometry import Picture
from detcli.record import Record
from detcli.source.item import Item
from detcli.timing import Stage, StageTimes

if TYPE_CHECKING:
    from detcli.detections import Detections


log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Entry:
    """An item on its way.

    Attributes:
        index: Its place among the items.
        item: What is to be loaded.
        picture: What was loaded; None if that failed.
        error: Why it failed.
        loading_s: Seconds that it took.
        loaded: Set when one of the two is there.
        record: What it came to.
    """

    index: int
    item: Item
    picture: Picture | None = None
    error: DetcliError | None = None
    loading_s: float = 0.0
    loaded: threading.Event = field(default_factory=threading.Event)
    record: Record | None = None


Batch = list[Entry]


@dataclass(frozen=True, slots=True)
class Done:
    """Some entries have their records."""


@dataclass(frozen=True, slots=True)
class Fatal:
    """What ends the run at once."""

    error: DetcliError


@dataclass(frozen=True, slots=True)
class End:
    """Nothing more to read; with the error that ended it, if there was one."""

    error: BaseException | None = None


def as_error(error: BaseException) -> DetcliError:
    """What a thread caught, as an error that a record can carry."""
    if isinstance(error, DetcliError):
        return error
    log.debug("%s", error, exc_info=error)
    if isinstance(error, MemoryError):
        return InferenceError(f"out of memory: {error}", "use a smaller --imgsz or --batch")
    return InferenceError(
        f"this is a bug in detcli: {type(error).__name__}: {error}",
        "run it again with -vv and report what it prints",
    )


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
                origin=entry.item.origin,
                index=entry.index,
                model=detector.model_name,
                device=detector.device,
                picture=None if error else entry.picture,
                detections=None if error else next(following),
                error=error,
            )
        self._inbox.put(Done())


PATIENCE_S = 0.02
"""How long a batch that is not full waits for more: a camera is not to wait for its next frame."""

STALL_S = 600.0
"""A device that finishes nothing for so long is given up."""

MOST_LOADERS = 16


class Pipeline:
    """Runs items through detectors.

    Attributes:
        times: Seconds spent in each stage, summed over the threads.
    """

    def __init__(self, detector: Detector, batch: int, clones: Sequence[str] = ()) -> None:
        """Prepare a run; nothing starts before `run`.

        Args:
            detector: Gets a thread of its own.
            batch: Pictures in a batch.
            clones: Devices of further detectors, as in "cpu" or "cuda:1". Each is opened on a
                thread of its own, while the first one works already, and they share the batches.
        """
        self.times = StageTimes()
        self._batch = batch
        self._detector, self._clones = detector, clones
        log.info("batches of %d, detectors: %d", batch, 1 + len(clones))
        # What is in flight, a batch to come for each detector, and one that is being gathered.
        room = batch * ((1 + len(clones)) * (detector.in_flight + 1) + 1)
        self._room = threading.Semaphore(room)
        self._inbox: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._to_load: queue.SimpleQueue[Entry | None] = queue.SimpleQueue()
        self._batches: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self._over = threading.Event()

    def run(
        self, items: Iterable[Item], skip: Callable[[Item], bool] = lambda _: False
    ) -> Iterator[Record]:
        """Yield a record for each item, in order.

        Args:
            items: Taken one by one, while there is room.
            skip: Items that need no record; they are counted all the same.

        Raises:
            DeviceMemoryError: A batch does not fit into the device's memory.
            InferenceError: A device has finished nothing for ten minutes.
            DeviceError: A clone's device cannot be used.
            DetcliError: What iterating over the items raised, after the records before it.
        """
        worker = Worker(self._batches, self._inbox, self._over)
        clones = [Worker(self._batches, self._inbox, self._over) for _ in self._clones]
        tasks: list[Callable[[], None]] = [partial(worker.use, self._detector)]
        for clone, device in zip(clones, self._clones, strict=True):
            tasks.append(partial(clone.open, partial(self._detector.clone, device)))
        loaders = min(available_cores(), MOST_LOADERS)
        tasks += [self._load] * loaders
        threads = [threading.Thread(target=task, daemon=True) for task in tasks]
        reader = threading.Thread(target=self._read, args=[items, skip], daemon=True)
        for thread in (*threads, reader):
            thread.start()
        try:
            yield from self._gather()
            self._require_opened(clones)
        finally:
            self._over.set()
            for _ in range(loaders):
                self._to_load.put(None)
            for _ in (worker, *clones):
                self._batches.put(None)
            deadline = time.monotonic() + 2 * LOOK_UP_S
            for thread in threads:
                thread.join(max(0, deadline - time.monotonic()))
            for one in (worker, *clones):
                for stage, seconds in one.times.items():
                    self.times[stage] += seconds

    def _gather(self) -> Iterator[Record]:
        """Make batches of entries, and put finished records in order."""
        gathered: Batch = []
        expected: deque[Entry] = deque()
        end = None
        silent_s = 0.0  # counted, not read from a clock: the process may be stopped for hours
        while end is None or expected:
            patience = PATIENCE_S if gathered else LOOK_UP_S
            try:
                event = self._inbox.get(timeout=patience)
                silent_s = 0.0
            except queue.Empty:
                event = None
                silent_s += patience if expected else 0
                self._check_progress(silent_s)
            match event:
                case Entry():
                    gathered.append(event)
                    expected.append(event)
                case End():
                    end = event
                case Fatal():
                    raise event.error
            if gathered and (len(gathered) == self._batch or event is None or end is not None):
                self._batches.put(gathered)
                gathered = []
            while expected and (record := expected[0].record) is not None:
                self.times[Stage.DECODE] += expected.popleft().loading_s
                yield record
                self._room.release()
        if end.error is not None:
            raise end.error

    def _require_opened(self, clones: Sequence[Worker]) -> None:
        """A device that was asked for is used or refused, also by a run that needed no second."""
        for clone in clones:
            clone.opened.wait(STALL_S)
        while not self._inbox.empty():
            if isinstance(event := self._inbox.get(), Fatal):
                raise event.error

    @staticmethod
    def _check_progress(silent_s: float) -> None:
        if silent_s > STALL_S:
            raise InferenceError(
                f"the device has finished nothing for {STALL_S / 60:.0f} minutes",
                "see whether it hangs (nvidia-smi, top); use --device cpu",
            )

    def _read(self, items: Iterable[Item], skip: Callable[[Item], bool]) -> None:
        """Take items while there is room."""
        error: BaseException | None = None
        try:
            for index, item in enumerate(items):
                if skip(item):
                    continue
                while not self._room.acquire(timeout=LOOK_UP_S):
                    if self._over.is_set():
                        return
                if self._over.is_set():
                    return
                entry = Entry(index, item)
                self._to_load.put(entry)
                self._inbox.put(entry)
        except BaseException as caught:  # noqa: BLE001 - raised again where the records are read
            error = caught
        self._inbox.put(End(error))

    def _load(self) -> None:
        """Load entries, until None comes."""
        while (entry := self._to_load.get()) is not None:
            start = time.perf_counter()
            try:
                if not self._over.is_set():
                    entry.picture = entry.item.load()
            except BaseException as error:  # noqa: BLE001 - an input must not end the run
                entry.error = as_error(error)
            entry.loading_s = time.perf_counter() - start
            entry.loaded.set()
