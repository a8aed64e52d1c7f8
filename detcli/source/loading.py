"""Item: one input, an image or a frame of a video; and how inputs are loaded.

Inputs are loaded on threads that may hang: reading one has a time limit, whatever code it is in.
A hung thread cannot be killed, so it is abandoned: its input gets an error, another thread takes
its place, and whatever it returns later is ignored.
"""

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime

from detcli.core.errors import DetcliError, InputError, PlaceError, SourceError, as_error
from detcli.core.threads import BackgroundThread
from detcli.core.timing import POLL_S, LateError, RunningTime, within
from detcli.data.geometry import Image, Pixels
from detcli.data.record import Origin
from detcli.source.decode import TIMEOUT_S, too_slow

log = logging.getLogger(__name__)

STDIN = "-"  # the name that stands for standard input

MAX_ABANDONED = 16  # threads that may hang at the same time; each may hold the memory of an image

READ_AHEAD = 2  # frames of a video that wait for their turn

JOIN_TIMEOUT_S = 5.0  # wait for the reader of a video that is closed


@dataclass(eq=False, slots=True)
class Item:
    """One input, which gets its result once: an image or an error."""

    origin: Origin
    load: Callable[[], Image]  # reads and decodes; called once, on another thread: InputError
    begin: Callable[[], None] | None = None  # starts what takes waiting instead of work, if any
    # called with what `load` returns: the same image, or an InputError
    check: Callable[[Image], Image] | None = field(default=None, init=False)
    picture: Image | None = field(default=None, init=False)
    error: DetcliError | None = field(default=None, init=False)
    seconds: float = field(default=0.0, init=False)
    # set when it is loaded or has failed
    finished: threading.Event = field(default_factory=threading.Event, init=False)
    _open: threading.Lock = field(default_factory=threading.Lock, init=False)

    def run(self) -> None:
        """Load the input, and set its image or its error; no error leaves this function.

        The seconds that it took are set as well. A loader's thread calls it, once.
        """
        start = time.perf_counter()
        image: Image | None = None
        error: DetcliError | None = None
        try:
            loaded = self.load()
            image = loaded if self.check is None else self.check(loaded)
        except BaseException as caught:  # noqa: BLE001 - one input must not end the run
            error = as_error(caught)
        self.finish(image, error, time.perf_counter() - start)

    def finish(
        self, image: Image | None = None, error: DetcliError | None = None, seconds: float = 0.0
    ) -> None:
        """Set the result, unless there is one already.

        A load that hangs gets an error from another thread. What it returns later is ignored, and
        so the first result counts.
        """
        if self._open.acquire(blocking=False):
            self.picture = image
            self.error = error
            self.seconds = seconds
            self.finished.set()


def failed(
    source: str,
    error: InputError,
    frame: int | None = None,
    time: datetime | None = None,
    time_s: float | None = None,
) -> Item:
    """Return the item of an input that could not be opened; loading it raises the error.

    Args:
        source: The name of the input in its record.
        error: What went wrong.
        frame: The number of the frame, if it is one of a video.
        time: When a frame of a camera or stream was received.
        time_s: The time of a frame in its video, in seconds.
    """

    def load() -> Image:
        raise error

    return Item(Origin(source, frame=frame, time=time, time_s=time_s), load)


def decoded(origin: Origin, image: Pixels) -> Item:
    """An input that is decoded already, as a frame of a video is."""

    def load() -> Image:
        return Image.whole(image)

    return Item(origin, load)


def of_input(items: Iterable[Item], number: int, meta: str | None = None) -> Iterator[Item]:
    """Yield the items of one input, with its number and metadata set in their origins.

    Args:
        items: The image, or the frames or images that the input holds.
        number: The position of the input among those of the run.
        meta: JSON that a list has for this input; None leaves what the items have.
    """
    for item in items:
        item.origin = replace(item.origin, input=number, meta=meta or item.origin.meta)
        yield item


def stamped(items: Iterable[Item], stamp: str | None) -> Iterator[Item]:
    """The items of one file, which has this stamp."""
    for item in items:
        if stamp is not None:
            item.origin = replace(item.origin, file_stamp=stamp)
        yield item


@dataclass(slots=True)
class SourceProgress:
    """Progress of a run, shared by its sources."""

    total: int | None = 0  # inputs known so far; None if a source has no known end
    dropped: Counter[str] = field(default_factory=Counter)  # replaced frames, of each live source
    steps: int = 0  # calls of a video's reader that have returned
    hanging: list[threading.Thread] = field(default_factory=list)  # readers that were abandoned
    stop: threading.Event = field(default_factory=threading.Event)  # no more items are wanted

    def expect(self, more: int | None) -> None:
        """Add to the total, or subtract from it; None if the number is unknown."""
        if more is None:
            self.total = None
        elif self.total is not None:
            self.total += more

    def correct(self, *, counted: int | None, count: int | None) -> None:
        """Replace the number of inputs that a source counted as; None if a number is unknown."""
        if counted is None or count is None:
            self.expect(None)
        else:
            self.expect(count - counted)


class Loaders:
    """Threads that load items, and another thread that gives up on those that hang."""

    def __init__(self, count: int, limit_s: float) -> None:
        """Start a number of threads; a load may take a number of seconds, 0 for any time."""
        self._count = count
        self._limit_s = limit_s
        self._waiting: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards the following
        self._running: dict[BackgroundThread, tuple[Item, RunningTime]] = {}
        self._active: set[BackgroundThread] = set()
        self._abandoned = 0  # threads that hang
        self._stopped = threading.Event()
        with self._lock:
            self._fill_up()
        if limit_s:
            BackgroundThread(self._watch, stop=self._stopped.set).start()

    def put(self, item: Item) -> None:
        """Load as soon as a thread is free."""
        self._waiting.put(item)

    def close(self, deadline: float) -> None:
        """End the threads, and wait for them until `deadline` of the monotonic clock."""
        self.stop()
        with self._lock:
            threads = list(self._active)
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def stop(self) -> None:
        """Tell the threads to end, without waiting for them."""
        self._stopped.set()
        for _ in range(self._count):
            self._waiting.put(None)

    def _fill_up(self) -> None:
        """Start as many threads as are missing, as long as not too many hang."""
        while len(self._active) < self._count and self._abandoned < MAX_ABANDONED:
            thread = BackgroundThread(self._work, stop=self.stop)
            self._active.add(thread)
            thread.start()

    def _work(self) -> None:
        """Load one waiting item after the other; this is what each loading thread runs.

        It ends when None comes from the queue, or when the item that it loaded took so long that
        the thread was given up and replaced.
        """
        thread = threading.current_thread()
        assert isinstance(thread, BackgroundThread)  # noqa: S101 - for the type checker
        while True:
            item = self._waiting.get()
            if item is None:
                return
            with self._lock:
                self._running[thread] = item, RunningTime()
            if self._stopped.is_set():
                item.finish(error=SourceError("interrupted"))
            else:
                item.run()
            with self._lock:
                del self._running[thread]
                if thread not in self._active:  # another thread has taken its place
                    self._abandoned -= 1
                    return

    def _watch(self) -> None:
        """Give up on loads that take too long, and on what waits when no thread is left."""
        while not self._stopped.wait(POLL_S):
            with self._lock:
                self._abandon_late_threads()
                self._fill_up()
                is_stuck = not self._active
            if is_stuck:
                self._fail_waiting_items()

    def _abandon_late_threads(self) -> None:
        """Give up on threads whose load takes too long, and fail their items; holds the lock.

        A thread cannot be killed, so it goes on and ends by itself when its load returns.
        """
        for thread, (item, running) in self._running.items():
            if thread in self._active and running.seconds() > self._limit_s:
                thread.is_abandoned = True
                log.info("%s hangs: its thread is abandoned", item.origin.source)
                item.finish(error=too_slow(self._limit_s), seconds=self._limit_s)
                self._active.remove(thread)
                self._abandoned += 1

    def _fail_waiting_items(self) -> None:
        """Fail all items that wait for a thread, because all threads that may be started hang."""
        with suppress(queue.Empty):
            while True:
                item = self._waiting.get_nowait()
                if item is None:
                    return
                item.finish(error=_too_many_hanging(self._abandoned))


def load_in_time(item: Item, limit_s: float = TIMEOUT_S) -> Image:
    """Load an item on a thread of its own, and wait for it for a number of seconds.

    Raises:
        DetcliError: It cannot be loaded, or not in time; mostly an InputError.
    """
    try:
        return within(limit_s, item.load)
    except LateError:
        raise too_slow(limit_s) from None
    except Exception as error:  # noqa: BLE001 - as in a run
        raise as_error(error) from None


def read_in_time(
    source: str,
    read: Callable[[SourceProgress], Generator[Item]],
    progress: SourceProgress,
    limit_s: float,
) -> Iterator[Item]:
    """Yield the items of a video, which is read on a thread of its own, a little ahead.

    A reader that hangs is abandoned, and the last item has the error. It may go on later, so it
    counts in a progress of its own, from which the total is copied while it is not abandoned.

    Args:
        source: The name of the video in its records.
        read: Reads the video, and adds to the `steps` of the progress that it is called with.
        progress: The progress of the run.
        limit_s: Seconds that a step may take; 0 for any time.
    """
    progress.hanging = [thread for thread in progress.hanging if thread.is_alive()]
    if len(progress.hanging) >= MAX_ABANDONED:
        yield failed(source, _too_many_hanging(len(progress.hanging)))
        return
    reader = _Reader(read, progress.stop)
    reader.start()
    counted: int | None = 0  # what the reader has added to the total
    try:
        while not progress.stop.is_set():
            try:
                item, total = reader.items.get(timeout=POLL_S)
            except queue.Empty:
                if not limit_s or reader.step_s() <= limit_s:
                    continue
                log.info("%s hangs: its thread is abandoned", source)
                reader.is_abandoned = True
                progress.hanging.append(reader)
                yield failed(source, too_slow(limit_s, "no frame can be read"))
                return
            progress.correct(counted=counted, count=total)
            counted = total
            if item is None:
                break
            yield item
    finally:
        reader.progress.stop.set()
        if reader not in progress.hanging:
            reader.join(JOIN_TIMEOUT_S)
    if reader.error is not None:
        raise reader.error


class _Reader(BackgroundThread):
    """Reads a video into a short queue.

    When the process ends, the source that this video is part of is stopped as well.
    """

    def __init__(
        self, read: Callable[[SourceProgress], Generator[Item]], source_stop: threading.Event
    ) -> None:
        super().__init__(stop=self._stop_reading)
        self.progress = SourceProgress()
        self._source_stop = source_stop
        # Items with the total at that time; None at the end.
        self.items: queue.Queue[tuple[Item | None, int | None]] = queue.Queue(READ_AHEAD)
        self.error: BaseException | None = None
        self._read = read
        self._last_step = 0  # that was seen
        self._last_step_time = RunningTime()  # since then

    def run(self) -> None:
        """Put the items of the video into the queue, and None at the end; runs on this thread.

        An error is kept for `read_in_time`, which raises it on the thread of the run.
        """
        try:
            with closing(self._read(self.progress)) as items:
                for item in items:
                    if not self._put(item):
                        return
        except BaseException as error:  # noqa: BLE001 - raised again by read_in_time
            self.error = error
        self._put(None)

    def _stop_reading(self) -> None:
        self.progress.stop.set()
        self._source_stop.set()

    def step_s(self) -> float:
        """Seconds that the current step has taken."""
        step = self.progress.steps
        if step != self._last_step:
            self._last_step = step
            self._last_step_time = RunningTime()
        return self._last_step_time.seconds()

    def _put(self, item: Item | None) -> bool:
        """Wait for room in the queue and put an item there, or None for the end of the video.

        The answer is False, and nothing was put, if the run needs no more items. It counts as a
        step of the reader, so that the time limit of the next one begins here.
        """
        self.progress.steps += 1
        while not self.progress.stop.is_set():
            with suppress(queue.Full):
                self.items.put((item, self.progress.total), timeout=POLL_S)
                return True
        return False


def _too_many_hanging(count: int) -> SourceError:
    return PlaceError(
        f"not read: {count} inputs before it hang",
        "leave those out; their records have an error, too",
    )
