"""Fetching: the bytes of pictures come over a network on threads of their own, many at a time."""

import threading
from collections.abc import Callable, Iterable

from detcli.errors import SourceError
from detcli.source.decode import DecodeOptions, too_slow
from detcli.source.reading import POLL_S, InputTimeoutError, gather, in_time
from detcli.timing import RunningTime

AHEAD_BYTES = 256 << 20
"""Bytes that pictures ahead of their turn may take together."""


class Fetches:
    """What the fetches of a run share: the memory for pictures that are ahead of their turn."""

    def __init__(self, options: DecodeOptions, stop: threading.Event) -> None:
        self.options, self.stop = options, stop
        self._free = AHEAD_BYTES
        self._changed = threading.Condition()

    def reserve(self, size: int, wanted: threading.Event) -> None:
        """Wait until there is memory; not for a picture whose turn has come."""
        with self._changed:
            while self._free < size and not (wanted.is_set() or self.stop.is_set()):
                self._changed.wait(POLL_S)
            self._free -= size

    def release(self, size: int) -> None:
        """Give memory back."""
        with self._changed:
            self._free += size
            self._changed.notify_all()


class Fetch:
    """The bytes of one picture, on their way."""

    def __init__(self, shared: Fetches, request: Callable[[], tuple[int, Iterable[bytes]]]) -> None:
        """Prepare; nothing is sent before `begin`.

        Args:
            shared: Of the run.
            request: Asks for the picture; returns its size, 0 for unknown, and its bytes as they
                come. Raises InputError, as its bytes may.
        """
        self._shared, self._request = shared, request
        self._begun = self._size = 0
        self._data = b""
        self._error: BaseException | None = None
        self._wanted, self._done = threading.Event(), threading.Event()

    def begin(self) -> None:
        """Start, unless it has been started."""
        if not self._begun:
            self._begun = 1
            threading.Thread(target=self._run, daemon=True).start()

    def take(self) -> bytes:
        """The bytes, when all are there.

        Raises:
            InputError: They cannot be fetched, or not in time.
        """
        self._wanted.set()
        self._shared.release(0)
        self.begin()
        limit_s, running = self._shared.options.timeout_s, RunningTime()
        while not self._done.wait(POLL_S):
            if self._shared.stop.is_set():
                raise SourceError("interrupted")
            if limit_s and running.seconds() > limit_s:
                raise too_slow(limit_s)
        self._shared.release(self._size)
        if self._error is not None:
            raise self._error
        data, self._data = self._data, b""
        return data

    def _run(self) -> None:
        options = self._shared.options
        try:
            size, chunks = self._request()
            self._shared.reserve(size, self._wanted)
            self._size = size
            self._data = gather(in_time(chunks, options.timeout_s), options.max_bytes, size)
        except InputTimeoutError:
            self._error = too_slow(options.timeout_s)
        except BaseException as error:  # noqa: BLE001 - raised by `take`
            self._error = error
        self._done.set()
