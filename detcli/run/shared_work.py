"""Images that several threads run through the detector, in batches."""

import contextlib
import queue
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from detcli.backend.protocol import Pending
from detcli.core.errors import InferenceError
from detcli.data.detections import Detections
from detcli.data.geometry import Image


class _StartedBatch(NamedTuple):
    """A batch that runs on a device."""

    first_index: int  # of its first image, among all
    wait: Pending  # waits for the detections of its images


class SharedWork:
    """Images that several threads run detection on; each takes one batch after the other.

    Every thread calls `run`, with its own detector; then one of them calls `results`.
    """

    def __init__(self, images: Sequence[Image], batch_size: int) -> None:
        """Cut images into batches; the last may be smaller."""
        self._images = images
        self._batch_size = batch_size
        # A batch is named by the index of its first image.
        self._waiting_batches: queue.SimpleQueue[int] = queue.SimpleQueue()
        for first_index in range(0, len(images), batch_size):
            self._waiting_batches.put(first_index)
        self._results: dict[int, list[Detections]] = {}  # of each batch that has finished
        self._errors: list[BaseException] = []

    def run(self, submit: Callable[[Sequence[Image]], Pending], in_flight: int) -> None:
        """Run batches on the calling thread until none is left or one has failed.

        An error is not raised here, on a thread that nobody watches: it is stored, which stops the
        other threads, too, and `results` raises it.

        Args:
            submit: Starts a batch on a detector; returns a function that waits for its detections.
            in_flight: How many batches to start before waiting for the first of them.
        """
        try:
            for started in self._started_in_turn(submit, in_flight):
                self._results[started.first_index] = started.wait()
        except BaseException as error:  # noqa: BLE001 - `results` raises it
            self._errors.append(error)

    def _started_in_turn(
        self, submit: Callable[[Sequence[Image]], Pending], in_flight: int
    ) -> Iterator[_StartedBatch]:
        """Start batches, and yield each when its detections are to be waited for.

        That is when `in_flight` batches run, as then the oldest has to end before another one is
        started; and for those that run at the end, when there are no more batches.
        """
        running: deque[_StartedBatch] = deque()  # the oldest first
        while True:
            first_index = self._take_batch()
            if first_index is None:
                break
            batch = self._images[first_index : first_index + self._batch_size]
            running.append(_StartedBatch(first_index, submit(batch)))
            if len(running) == in_flight:
                yield running.popleft()
        yield from running

    def stop(self) -> None:
        """Let no thread take another batch."""
        self._errors.append(InferenceError("interrupted"))

    def _take_batch(self) -> int | None:
        """Take the next batch, which no other thread then gets.

        Returns:
            The index of its first image; None if no batch is left, or one has failed.
        """
        if not self._errors:
            with contextlib.suppress(queue.Empty):
                return self._waiting_batches.get_nowait()
        return None

    def results(self) -> list[Detections]:
        """Return the detections of each image, once no thread runs batches any more.

        Raises:
            BaseException: The first error, if any batch has failed.
        """
        if self._errors:
            raise self._errors[0]
        results: list[Detections] = []
        for first_index in sorted(self._results):
            results += self._results[first_index]
        return results
