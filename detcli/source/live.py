"""Live sources: cameras and network streams; only the newest frame of each is used.

Each is read continuously on its own thread, so that no frame ages in a buffer. A frame that has not
been taken when the next one comes is dropped. A source that is lost is opened again.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Self

from detcli.config.inputs import InputOptions
from detcli.core import frozen
from detcli.core.errors import InputError, SourceError
from detcli.core.opencv import cv2
from detcli.core.text import public_name
from detcli.core.threads import BackgroundThread
from detcli.core.timing import POLL_S
from detcli.data.record import Origin, Video
from detcli.source.capture import Reopen, frame_count, frame_size, open_address, retrieve
from detcli.source.limits import check_size
from detcli.source.loading import Item, SourceProgress, decoded, failed_item
from detcli.source.names import camera_number, check_address, is_camera

# Waiting time before a lost source is opened again; it doubles each time.
MIN_DELAY_S, MAX_DELAY_S = 0.5, 30.0
RECONNECT_S = 300.0  # how long to keep reconnecting to a lost source
# After this many damaged frames in a row, or this delay, a source counts as lost.
MAX_FAILED_GRABS, GRAB_TIMEOUT_S = 30, 1.0
JOIN_TIMEOUT_S = 6.0  # wait for a thread: a little longer than a capture waits for a frame

log = logging.getLogger(__name__)


def open_camera(number: int) -> cv2.VideoCapture:
    """Open a camera, or raise a SourceError."""
    capture = cv2.VideoCapture(number)
    if capture.isOpened():
        return capture
    raise SourceError(
        "no such camera, or another program is using it",
        "list the cameras (Linux: ls /dev/video*); the first is camera:0",
    )


@frozen
class LiveSource:
    """A camera or network stream."""

    name: str  # in records, without credentials
    open: Reopen
    may_be_file: bool = False  # an image, if it ends after one frame, or a video

    @classmethod
    def named(cls, name: str, threads: int = 0) -> Self:
        """Return the source for the name of a camera or the address of a stream.

        Args:
            name: A name as in `camera:0`, or an address, with a password or without.
            threads: How many threads decode a stream; 0 for OpenCV's default.

        Raises:
            SourceError: The name has no number, or the address is malformed.
        """
        if is_camera(name):
            return cls(name, open=partial(open_camera, camera_number(name)))
        check_address(name)
        is_http = name.lower().startswith("http")  # so it may be a file on a web server
        return cls(
            name=public_name(name),
            open=partial(open_address, name, threads),
            may_be_file=is_http,
        )


def _has_frames_to_count(capture: cv2.VideoCapture) -> bool:
    """Whether a capture says that it has several frames, as a video file does."""
    count = frame_count(capture)
    return count is not None and count > 1


def watch(
    sources: Sequence[LiveSource],
    inputs: InputOptions,
    progress: SourceProgress,
) -> Iterator[Item]:
    """Yield the newest frame of each camera or stream, in turns, and an error for each lost one.

    Each source is read on its own thread, and a frame that was not taken before the next one
    came is dropped. The threads end with this generator.

    Args:
        sources: The cameras and streams, whose names differ.
        inputs: Which frames are used; their times are counted from the first frame of a source.
        progress: Says when to stop, and counts the dropped frames of each source.
    """
    changed = threading.Condition()  # notified when an item waits, or a watcher has ended
    stop_watching = threading.Event()
    watchers = [_Watcher(source, inputs, progress, changed, stop_watching) for source in sources]
    # It has all its keys from the start, so that another thread can iterate over it while the
    # watchers count.
    progress.dropped = Counter({source.name: 0 for source in sources})
    try:
        for watcher in watchers:
            watcher.start()
        while not progress.stop.is_set():
            with changed:
                item = _take_in_turns(watchers)
                if item is None:
                    have_all_ended = all(watcher.ended for watcher in watchers)
                    if have_all_ended:
                        return
                    changed.wait(POLL_S)
            if item is not None:
                yield item
    finally:
        stop_watching.set()
        deadline = time.monotonic() + JOIN_TIMEOUT_S
        for watcher in watchers:
            if watcher.is_alive():
                watcher.join(max(0.0, deadline - time.monotonic()))


def _take_in_turns(watchers: "list[_Watcher]") -> Item | None:
    """Take an item of the first watcher that has any, and move that watcher to the end of the list.

    It is None if no item waits. The caller holds the lock of the watchers.
    """
    for index, watcher in enumerate(watchers):
        if watcher.waiting:
            watchers.append(watchers.pop(index))
            return watcher.waiting.pop(0)
    return None


class _Watcher(BackgroundThread):
    """Reads one source, and keeps its newest frame.

    What other threads read is guarded by the lock of the condition `changed`.
    """

    def __init__(
        self,
        source: LiveSource,
        inputs: InputOptions,
        progress: SourceProgress,
        changed: threading.Condition,
        stop_watching: threading.Event,
    ) -> None:
        """Prepare to watch a camera or stream; the thread is started later.

        Args:
            source: The camera or stream.
            inputs: Which of its frames are used.
            progress: Counts the frames that are dropped.
            changed: Wakes the thread that takes items when `waiting` or `ended` has changed. Its
                lock guards both.
            stop_watching: Set when all watchers have to end.
        """
        super().__init__(stop=stop_watching.set)
        self._source = source
        self._inputs = inputs
        self._progress = progress
        self._changed = changed
        self._stop_watching = stop_watching
        self._video = Video(0.0, live=True)
        self._frame_count = 0  # how many came; also the index of the next one
        self._first_s: float | None = None  # when the first frame came, on the monotonic clock
        self._last_s = 0.0  # when the last one came
        # The step of the last frame that was used. With every third frame, frames 0 to 2 are step
        # 0; see `InputOptions.step`.
        self._last_step = -1
        self.waiting: list[Item] = []  # not taken yet: a frame, an error, or both
        self.ended = False  # whether no more items will come

    def run(self) -> None:
        """Read a camera or stream until it ends or watching stops; this thread runs it.

        An error becomes the last item that waits to be taken.
        """
        error: InputError | None = None
        try:
            self._follow()
        except InputError as caught:
            error = caught
        except Exception as caught:  # it would be lost on this thread
            log.debug("%s", self._source.name, exc_info=True)
            error = SourceError(f"cannot be read: {type(caught).__name__}", "run it again with -vv")
        with self._changed:
            if error is not None:
                self.waiting.append(failed_item(self._source.name, error, time=datetime.now(UTC)))
            self.ended = True
            self._changed.notify()

    def _follow(self) -> None:
        """Read a camera or stream, and open it again whenever the connection is lost.

        The pause before it is opened again doubles each time no frame came. An address that
        may be that of a file, and ends after its only frame, is an image: it is not opened again.

        Raises:
            SourceError: It cannot be opened the first time, sends no image, or is not back
                after `RECONNECT_S`.
        """
        pause_s = MIN_DELAY_S
        while True:
            frames_before = self._frame_count
            try:
                self._read()
            except SourceError:
                has_worked_before = frames_before > 0  # so the source is only lost for now
                if not has_worked_before:
                    raise
            is_image = self._source.may_be_file and self._frame_count == 1
            if is_image or self._is_over():
                return

            new_frames = self._frame_count - frames_before
            if new_frames > 0:
                pause_s = MIN_DELAY_S
                log.warning("%s: lost, reconnecting", self._source.name)
            self._require_recent_frame()  # a SourceError if it was lost for too long
            self._stop_watching.wait(pause_s)
            pause_s = min(2 * pause_s, MAX_DELAY_S)

    def _require_recent_frame(self) -> None:
        """Refuse a source that never sent a frame, or none for `RECONNECT_S`."""
        if not self._frame_count:
            raise SourceError("sends no image", "check whether another program can show it")
        silence_s = time.monotonic() - self._last_s
        if silence_s > RECONNECT_S:
            problem = f"lost, and not back after {silence_s:.0f} s"
            raise SourceError(problem, "check the camera and the network")

    def _read(self) -> None:
        """Open the camera or stream once, and read it for as long as frames come.

        Raises:
            SourceError: It cannot be opened, its frames are too large, or it is a video file.
        """
        capture = self._source.open()
        try:
            check_size(frame_size(capture), self._inputs.max_pixels)
            if self._source.may_be_file and _has_frames_to_count(capture):
                raise SourceError(
                    "a video file, not a stream, although its address does not look like one",
                    "make it a file: ffmpeg -i ADDRESS -c copy clip.mp4",
                )
            while self._grab(capture):
                self._offer_frame(capture)
        finally:
            capture.release()

    def _grab(self, capture: cv2.VideoCapture) -> bool:
        """Grab the next frame; False if the source is lost.

        OpenCV fails on a damaged frame and continues with the next; when a stream has ended it
        fails at once, and when nothing comes after a while.
        """
        give_up = time.monotonic() + GRAB_TIMEOUT_S
        for _ in range(MAX_FAILED_GRABS):
            if self._is_over():
                break
            if capture.grab():
                return True
            if time.monotonic() > give_up:
                break
        return False

    def _offer_frame(self, capture: cv2.VideoCapture) -> None:
        """Decode the frame grabbed last and let it wait to be taken, if the options select it.

        It replaces an older frame that still waits. The options may select a span of time, and the
        first frame of each step. A step is N frames or N seconds: with every third frame, frames 0
        to 2 are step 0, frames 3 to 5 are step 1. Frames that are not selected are counted, too.
        """
        number = self._frame_count
        self._frame_count += 1
        time_s = self._seconds_since_first_frame()
        is_in_time = self._inputs.start <= time_s < self._inputs.end_s
        step = self._inputs.step(number, time_s)
        is_of_new_step = step > self._last_step
        if not is_in_time or not is_of_new_step:
            return

        image = retrieve(capture)
        if image is None:  # damaged: the next frame may stand for this step
            return
        self._last_step = step
        origin = Origin(
            self._source.name,
            frame=number,
            time_s=time_s,
            video=self._video,
            time=datetime.now(UTC),
        )
        self._replace_waiting(decoded(origin, image))

    def _seconds_since_first_frame(self) -> float:
        """Record that a frame has come now, and return how long after the first one."""
        self._last_s = time.monotonic()
        if self._first_s is None:
            self._first_s = self._last_s
        return self._last_s - self._first_s

    def _replace_waiting(self, item: Item) -> None:
        """Let an item wait to be taken; one that still waits is dropped, and counted."""
        with self._changed:
            self._progress.dropped[self._source.name] += len(self.waiting)
            self.waiting = [item]
            self._changed.notify()

    def _is_over(self) -> bool:
        """Whether reading is to end: the run stops, or the requested end time was reached."""
        watched_s = 0.0
        if self._first_s is not None:
            watched_s = time.monotonic() - self._first_s
        return self._stop_watching.is_set() or watched_s >= self._inputs.end_s
