"""Live sources: cameras and network streams, of which the newest frame counts.

Each is read on a thread of its own, always, so that no frame gets old in a buffer on the way. What
nobody has taken when the next one comes is dropped. A source that is lost is opened again.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self

from detcli.errors import InputError, SourceError
from detcli.geometry import Picture
from detcli.record import Clip, Origin
from detcli.source.address import camera_number, check_address, is_camera, public_name
from detcli.source.capture import Capture, check_size, open_address, open_camera, retrieve
from detcli.source.item import Intake, Item, failed
from detcli.source.video import FrameOptions

FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 30.0
LOOK_UP_S = 0.2
"""How often a waiting thread looks whether it is to stop."""

MOST_REFUSALS, REFUSALS_S = 30, 1.0
"""So many frames may be damaged in a row, or come so late, before a source counts as lost."""

JOIN_S = 6.0
"""A thread is waited for this long: a little more than a capture waits for a frame."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LiveSource:
    """A camera or network stream.

    Attributes:
        name: As records name it, without credentials.
        open: Opens it; raises SourceError.
        may_be_picture: Whether a stream that ends after one frame was a picture.
    """

    name: str
    open: Callable[[], Capture]
    may_be_picture: bool = False

    @classmethod
    def named(cls, name: str) -> Self:
        """The source that a user names.

        Raises:
            SourceError: No source has such a name.
        """
        if is_camera(name):
            return cls(name, partial(open_camera, camera_number(name)))
        check_address(name)
        is_http = name.lower().startswith("http")
        return cls(public_name(name), partial(open_address, name), is_http)


def watch(
    sources: Sequence[LiveSource], options: FrameOptions, patience_s: float, intake: Intake
) -> Iterator[Item]:
    """Yield the newest frame of each source, in turns, and an error for each that is lost.

    Args:
        sources: Watched at the same time.
        options: Which frames; times are counted from the first one.
        patience_s: How long a source that is lost is tried again.
        intake: Counts the frames that are dropped.
    """
    news = threading.Condition()
    stop = threading.Event()
    watchers = [_Watcher(source, options, patience_s, news, stop) for source in sources]
    try:
        for watcher in watchers:
            watcher.start()
        while not intake.stop.is_set():
            with news:
                item = _take(watchers)
                intake.dropped += sum(watcher.take_dropped() for watcher in watchers)
                if item is None and all(watcher.ended for watcher in watchers):
                    return
                if item is None:
                    news.wait(LOOK_UP_S)
            if item is not None:
                yield item
    finally:
        stop.set()
        deadline = time.monotonic() + JOIN_S
        for watcher in watchers:
            watcher.join(max(0.0, deadline - time.monotonic()))


def _take(watchers: list["_Watcher"]) -> Item | None:
    """What the first has for us; it becomes the last."""
    for place, watcher in enumerate(watchers):
        if watcher.waiting:
            watchers.append(watchers.pop(place))
            return watcher.waiting.pop(0)
    return None


class _Watcher:
    """Reads one source on a thread of its own, and keeps its newest frame.

    What others look at is guarded by the lock of `news`.

    Attributes:
        waiting: What nobody has taken: a frame, an error, or both.
        ended: Whether nothing more will come.
    """

    def __init__(
        self,
        source: LiveSource,
        options: FrameOptions,
        patience_s: float,
        news: threading.Condition,
        stop: threading.Event,
    ) -> None:
        self._source = source
        self._options = options
        self._patience_s = patience_s
        self._news = news
        self._stop = stop
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._clip = Clip(source.name, 0.0, live=True)
        self._number = 0  # of the next frame
        self._first_s: float | None = None  # when the first frame came
        self._last_s = 0.0  # when the last one came
        self._dropped = 0
        self.waiting: list[Item] = []
        self.ended = False

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def join(self, timeout: float) -> None:
        """Wait for the thread, which ends by itself when `stop` is set."""
        if self._thread.ident is not None:
            self._thread.join(timeout)

    def take_dropped(self) -> int:
        """How many frames were overtaken since the last call."""
        dropped, self._dropped = self._dropped, 0
        return dropped

    def _run(self) -> None:
        error: InputError | None = None
        try:
            self._follow()
        except InputError as caught:
            error = caught
        except Exception as caught:  # on this thread nobody would see it
            log.debug("%s", self._source.name, exc_info=True)
            error = SourceError(f"cannot be read: {type(caught).__name__}", "look at it with -vv")
        with self._news:
            self.waiting += [] if error is None else [failed(self._source.name, error)]
            self.ended = True
            self._news.notify()

    def _follow(self) -> None:
        """Open the source and read it, again and again.

        Raises:
            InputError: It could not be opened, or was lost for too long.
        """
        delay_s = FIRST_DELAY_S
        while True:
            before = self._number
            try:
                self._read()
            except SourceError:
                if not before:
                    raise
            if self._is_over() or (self._source.may_be_picture and self._number == 1):
                return
            if not self._number:
                raise SourceError("sends no picture", "see whether another program can show it")
            if self._number > before:
                delay_s = FIRST_DELAY_S
                log.warning("%s: lost, trying to open it again", self._source.name)
            if (silence := time.monotonic() - self._last_s) > self._patience_s:
                raise SourceError(
                    f"lost, and not found again in {silence:.0f} s",
                    "see whether the camera and the network work",
                )
            self._stop.wait(delay_s)
            delay_s = min(2 * delay_s, LONGEST_DELAY_S)

    def _read(self) -> None:
        """Open the source once, and read as long as frames come.

        Raises:
            SourceError: It cannot be opened.
            DecodeError: Its frames are too large.
        """
        capture = self._source.open()
        try:
            check_size(capture, self._options.max_pixels)
            while self._grab(capture):
                self._keep(capture)
        finally:
            capture.release()

    def _grab(self, capture: Capture) -> bool:
        """Go to the next frame; False if there is none.

        OpenCV refuses a damaged frame and goes on with the next; but it refuses at once when a
        stream has ended, and after a while when nothing comes.
        """
        give_up = time.monotonic() + REFUSALS_S
        for _ in range(MOST_REFUSALS):
            if self._is_over():
                break
            if capture.grab():
                return True
            if time.monotonic() > give_up:
                break
        return False

    def _keep(self, capture: Capture) -> None:
        """Make the frame that was grabbed the newest, if it is wanted."""
        number, self._number = self._number, self._number + 1
        self._last_s = time.monotonic()
        if self._first_s is None:
            self._first_s = self._last_s
        time_s = self._last_s - self._first_s
        end_s = self._options.end_s
        is_late = end_s is not None and time_s >= end_s
        if is_late or time_s < self._options.start_s or number % self._options.stride:
            return
        image = retrieve(capture)
        if image is None:
            return
        origin = Origin(self._source.name, frame=number, time_s=time_s, clip=self._clip)
        item = Item(origin, partial(Picture.whole, image))
        with self._news:
            self._dropped += len(self.waiting)
            self.waiting = [item]
            self._news.notify()

    def _is_over(self) -> bool:
        if self._stop.is_set():
            return True
        end_s = self._options.end_s
        if end_s is None or self._first_s is None:
            return False
        return time.monotonic() - self._first_s >= end_s
