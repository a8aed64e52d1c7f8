"""Pictures that several threads detect on, in batches."""

import contextlib
import queue
from collections import deque
from collections.abc import Callable, Sequence

from detcli.backend.protocol import Pending
from detcli.core.errors import InferenceError
from detcli.data.detections import Detections
from detcli.data.geometry import Picture


class SharedWork:
    """Pictures in batches, which several threads take one after the other."""

    def __init__(self, pictures: Sequence[Picture], size: int) -> None:
        self._pictures = pictures
        self._size = size
        self._waiting: queue.SimpleQueue[int] = queue.SimpleQueue()  # where each batch starts
        for start in range(0, len(pictures), size):
            self._waiting.put(start)
        self._results: dict[int, list[Detections]] = {}  # of each batch, by its start
        self._errors: list[BaseException] = []

    def run(self, submit: Callable[[Sequence[Picture]], Pending], in_flight: int) -> None:
        """Run batches, up to `in_flight` at a time, until none is left or one has failed."""
        running: deque[tuple[int, Pending]] = deque()
        try:
            while (start := self._next_start()) is not None:
                running.append((start, submit(self._pictures[start : start + self._size])))
                if len(running) == in_flight:
                    oldest, pending = running.popleft()
                    self._results[oldest] = pending()
            for start, pending in running:
                self._results[start] = pending()
        except BaseException as error:  # noqa: BLE001 - raised by results
            self._errors.append(error)

    def stop(self) -> None:
        """Let no thread take another batch."""
        self._errors.append(InferenceError("interrupted"))

    def _next_start(self) -> int | None:
        """Where the next batch starts; None if no batch is left, or one has failed."""
        if not self._errors:
            with contextlib.suppress(queue.Empty):
                return self._waiting.get_nowait()
        return None

    def results(self) -> list[Detections]:
        """The detections of each picture, or the first error."""
        if self._errors:
            raise self._errors[0]
        results: list[Detections] = []
        for start in sorted(self._results):
            results += self._results[start]
        return results
