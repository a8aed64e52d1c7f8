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
from detcli.core.timing import POLL_S, RunningTime, TimeLimitError, run_with_time_limit
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
    # starts the part that only waits, such as a download, if any
    begin: Callable[[], None] | None = None
    # called with what `load` returns: the same image, or an InputError
    check: Callable[[Image], Image] | None = field(default=None, init=False)
    picture: Image | None = field(default=None, init=False)
    error: DetcliError | None = field(default=None, init=False)
    seconds: float = field(default=0.0, init=False)
    # set when it is loaded or has failed
    finished: threading.Event = field(default_factory=threading.Event, init=False)
    _open: threading.Lock = field(default_factory=threading.Lock, init=False)

    def run(self) -> None:
        """Load the input, and set its image or its error, and the seconds that it took.

        A loader's thread calls it, once. Whatever goes wrong becomes the item's error, since one
        input must not end the run.
        """
        start = time.perf_counter()
        image: Image | None = None
        error: DetcliError | None = None
        try:
            image = self.load()
            if self.check is not None:
                image = self.check(image)
        except BaseException as caught:  # noqa: BLE001 - see above
            image = None
            error = as_error(caught)
        self.finish(image, error, seconds=time.perf_counter() - start)

    def finish(
        self, image: Image | None = None, error: DetcliError | None = None, seconds: float = 0.0
    ) -> None:
        """Set the result of the item, unless it already has one, and tell whoever waits for it.

        A load that hangs gets an error from the thread that watches it. If the load returns later
        after all, its image comes here second and is dropped.

        Args:
            image: The image of the input; None if there is an error.
            error: Why there is no image.
            seconds: How long loading took.
        """
        is_first_result = self._open.acquire(blocking=False)  # nobody releases it
        if is_first_result:
            self.picture = image
            self.error = error
            self.seconds = seconds
            self.finished.set()


def failed_item(
    source: str,
    error: InputError,
    frame: int | None = None,
    time: datetime | None = None,
    time_s: float | None = None,
) -> Item:
    """Make the item of an input that could not be opened; loading it raises the error.

    So the input has its place among the others, and a record that says what went wrong.

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


def _load_nothing() -> Image:
    """Refuse to load the placeholder of an input that has a record."""
    raise SourceError("it has a record already")


RECORDED = Item(Origin(""), _load_nothing)
"""Stands for each file that already has a record, so that no item is made for it.

A resumed run may skip a million files, and making an item takes longer than looking at the file.
"""


def decoded(origin: Origin, image: Pixels) -> Item:
    """Make the item of an image that is already decoded, as a frame of a video is."""

    def load() -> Image:
        return Image.whole(image)

    return Item(origin, load)


def of_input(items: Iterable[Item], number: int, meta: str | None = None) -> Iterator[Item]:
    """Yield the items of one input, with its index and metadata set in their origins.

    Args:
        items: The image, or the frames or images that the input holds.
        number: The position of the input among those of the run.
        meta: JSON that a list of inputs has for this one; None to leave the items' metadata as it
            is.
    """
    for item in items:
        item.origin = replace(item.origin, input=number, meta=meta or item.origin.meta)
        yield item


def stamped(items: Iterable[Item], stamp: str | None) -> Iterator[Item]:
    """Yield the items of one file, with the size and time of the file set in their origins.

    Args:
        items: The image, or the frames or images that the file holds.
        stamp: Size and time of the file as a string; None if it has none, and nothing is set.
    """
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
        """Add `more` inputs, perhaps a negative number, to the total; None makes it unknown."""
        if more is None:
            self.total = None
        elif self.total is not None:
            self.total += more

    def correct(self, *, counted: int | None, count: int | None) -> None:
        """Replace what a source has contributed to the total; None for an unknown number.

        Args:
            counted: What it has contributed until now.
            count: What it contributes from now on.
        """
        if counted is None or count is None:
            self.expect(None)
        else:
            self.expect(count - counted)


class Loaders:
    """Threads that load items, and another thread that gives up on those that hang.

    A thread that hangs in native code cannot be ended. It is abandoned: its item gets an error, and
    a new thread takes its place. At most MAX_ABANDONED threads are replaced in this way.
    """

    def __init__(self, count: int, limit_s: float) -> None:
        """Start the threads that load items, and one that gives up on loads that take too long.

        Args:
            count: How many items are loaded at the same time.
            limit_s: Seconds that loading one item may take; 0 for any time.
        """
        self._count = count
        self._limit_s = limit_s
        self._waiting: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._lock = threading.Lock()  # guards the following
        # What each thread loads at the moment, and since when.
        self._running: dict[BackgroundThread, tuple[Item, RunningTime]] = {}
        self._active: set[BackgroundThread] = set()  # all threads but the abandoned ones
        self._abandoned = 0  # threads that hang
        with self._lock:
            self._fill_up()
        if limit_s:
            BackgroundThread(self._watch, stop=self._stopped.set).start()

    def put(self, item: Item) -> None:
        """Add an item to the queue, from which the next free thread loads it."""
        self._waiting.put(item)

    def close(self, deadline: float) -> None:
        """Tell the threads to end, and wait for them, except those that hang.

        Args:
            deadline: The time of the monotonic clock until which to wait.
        """
        self.stop()
        with self._lock:
            threads = list(self._active)
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def stop(self) -> None:
        """Tell the threads to end, without waiting for them."""
        self._stopped.set()
        # Each thread ends at the None that it takes from the queue.
        for _ in range(self._count):
            self._waiting.put(None)

    def _fill_up(self) -> None:
        """Start as many threads as are missing, unless too many hang.

        The caller holds the lock.
        """
        while len(self._active) < self._count and self._abandoned < MAX_ABANDONED:
            thread = BackgroundThread(self._load_items, stop=self.stop)
            self._active.add(thread)
            thread.start()

    def _load_items(self) -> None:
        """Load one waiting item after the other; this is what each loading thread runs.

        `_running` says what it loads at the moment. It ends at the None that `stop` puts into the
        queue. It also ends if its load returns after all, when `_abandon_late_threads` has already
        given up on it: then the item has an error, the thread is no longer in `_active`, and
        another one is in its place.
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
                was_abandoned = thread not in self._active
                if was_abandoned:
                    self._abandoned -= 1  # it no longer hangs
                    return

    def _watch(self) -> None:
        """Give up on loads that take too long, until the loaders are stopped; runs on a thread.

        Once as many threads hang as may be abandoned, none is left to load what still waits in the
        queue: those items fail as well, so that the run comes to an end.
        """
        while not self._stopped.wait(POLL_S):
            with self._lock:
                self._abandon_late_threads()
                self._fill_up()
                no_thread_is_left = not self._active
            if no_thread_is_left:
                self._fail_waiting_items()

    def _abandon_late_threads(self) -> None:
        """Give up on threads whose load takes too long, and give their items an error.

        A thread cannot be killed, so it goes on and ends by itself when its load returns. The
        caller holds the lock.
        """
        for thread, (item, running) in self._running.items():
            if thread in self._active and running.seconds() > self._limit_s:
                thread.is_abandoned = True
                log.info("%s hangs: its thread is abandoned", item.origin.source)
                item.finish(error=too_slow(self._limit_s), seconds=self._limit_s)
                self._active.remove(thread)
                self._abandoned += 1

    def _fail_waiting_items(self) -> None:
        """Give an error to all items in the queue, because no thread is left to load them."""
        with suppress(queue.Empty):
            while True:
                item = self._waiting.get_nowait()
                if item is None:
                    return
                item.finish(error=_too_many_hanging(self._abandoned))


def load_in_time(item: Item, limit_s: float = TIMEOUT_S) -> Image:
    """Load an item on a separate thread, and wait for it for at most `limit_s` seconds.

    Raises:
        DetcliError: It cannot be loaded, or not in time; mostly an InputError.
    """
    try:
        return run_with_time_limit(limit_s, item.load)
    except TimeLimitError:
        raise too_slow(limit_s) from None
    except Exception as error:  # noqa: BLE001 - as in a run
        raise as_error(error) from None


def read_in_time(
    source: str,
    read: Callable[[SourceProgress], Generator[Item]],
    progress: SourceProgress,
    limit_s: float,
) -> Iterator[Item]:
    """Yield the items of a video, which a separate thread reads a little ahead.

    A step is a call of OpenCV, such as opening the file or grabbing a frame. If a step takes too
    long, the thread is abandoned, and the last item has an error. An abandoned thread may go on
    later, and must not change the counts of the run then. So each video has its own progress, and
    `_take_items` carries its total over to the progress of the run.

    Args:
        source: The name of the video in its records.
        read: Reads the video, and counts the `steps` in the progress that it is called with.
        progress: The progress of the run. Its `hanging` threads are those that were abandoned.
        limit_s: Seconds that a step may take; 0 for any time.

    Raises:
        BaseException: What `read` raised, unless its thread was abandoned.
    """
    # The abandoned threads of earlier videos are counted only while they hang.
    progress.hanging = [thread for thread in progress.hanging if thread.is_alive()]
    if len(progress.hanging) >= MAX_ABANDONED:
        yield failed_item(source, _too_many_hanging(len(progress.hanging)))
        return

    reader = _Reader(read, progress.stop)
    reader.start()
    try:
        yield from _take_items(reader, source, progress, limit_s)
    finally:
        reader.progress.stop.set()
        if not reader.is_abandoned:
            reader.join(JOIN_TIMEOUT_S)
    if reader.error is not None and not reader.is_abandoned:
        raise reader.error


def _take_items(
    reader: "_Reader", source: str, progress: SourceProgress, limit_s: float
) -> Iterator[Item]:
    """Yield the items that the thread of a video puts into its queue, as `read_in_time` does.

    It ends with the video, when the run stops, or when the thread hangs. A thread that hangs is
    marked as abandoned and added to `progress.hanging`, and the last item is one with an error.

    Args:
        reader: The thread.
        source: The name of the video in its records.
        progress: The progress of the run. How many inputs the video has becomes clearer as it is
            read, and the total of the run changes with it.
        limit_s: Seconds that a step of the thread may take; 0 for any time.
    """
    earlier_total: int | None = 0  # of the video, as it is part of the run's total; None: unknown
    while not progress.stop.is_set():
        try:
            item, total_of_video = reader.items.get(timeout=POLL_S)
        except queue.Empty:
            hangs = limit_s > 0 and reader.seconds_in_step() > limit_s
            if not hangs:
                continue
            log.info("%s hangs: its thread is abandoned", source)
            reader.is_abandoned = True
            progress.hanging.append(reader)
            yield failed_item(source, too_slow(limit_s, "no frame can be read"))
            return
        progress.correct(counted=earlier_total, count=total_of_video)
        earlier_total = total_of_video
        if item is None:  # the end of the video
            return
        yield item


class _Reader(BackgroundThread):
    """The thread that reads a video into a short queue, from which the run takes the items.

    When the process ends, the source that this video is part of is stopped as well.

    Attributes:
        progress: The progress that the reading function counts in.
        items: The items, each with the total of `progress` at that time; None after the last.
        error: What the reading function raised.
    """

    def __init__(
        self, read: Callable[[SourceProgress], Generator[Item]], source_stop: threading.Event
    ) -> None:
        """Prepare the thread, which does not read before it is started.

        Args:
            read: Reads the video; it is called on the thread.
            source_stop: Ends all that the source of the video reads, when it is set.
        """
        super().__init__(stop=self._stop_reading)
        self.progress = SourceProgress()
        self._source_stop = source_stop
        self.items: queue.Queue[tuple[Item | None, int | None]] = queue.Queue(READ_AHEAD)
        self.error: BaseException | None = None
        self._read = read
        self._last_step = 0  # the number of steps when `seconds_in_step` was last called
        self._last_step_time = RunningTime()  # the time since this number changed

    def run(self) -> None:
        """Read the video: put its items into the queue, and None after the last.

        The thread runs it. An error is kept in `error`, for the thread of the run to raise.
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

    def seconds_in_step(self) -> float:
        """Measure for how many seconds the thread has been in its present step.

        The time is counted from the first call of this method that saw the step. A step is a call
        of the video's library, or a wait for room in the queue. This is only called while the queue
        is empty, so a thread hangs if its step takes long.
        """
        step = self.progress.steps
        if step != self._last_step:
            self._last_step = step
            self._last_step_time = RunningTime()
        return self._last_step_time.seconds()

    def _put(self, item: Item | None) -> bool:
        """Wait for room in the queue and put an item there, or None for the end of the video.

        The result is False, and nothing was put, if the run needs no more items. It counts as a
        step of the reader, so the time limit of the next one begins here.
        """
        self.progress.steps += 1
        while not self.progress.stop.is_set():
            with suppress(queue.Full):
                self.items.put((item, self.progress.total), timeout=POLL_S)
                return True
        return False


def _too_many_hanging(count: int) -> SourceError:
    """Make the error for an input that is not read, because too many others hang."""
    return PlaceError(
        f"not read: {count} inputs before it hang",
        "leave those out; their records have an error, too",
    )
