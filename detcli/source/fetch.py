"""Fetching: the bytes of pictures come over a network on threads of their own, many at a time."""

import contextlib
import threading
from collections.abc import Callable, Generator, Iterable, Iterator

from detcli.errors import SourceError
from detcli.record import Origin
from detcli.source.decode import DecodeOptions, load_bytes, too_slow
from detcli.source.item import Item
from detcli.source.reading import POLL_S, InputTimeoutError, gather, in_time
from detcli.timing import RunningTime

AHEAD_BYTES = 256 << 20
"""Bytes that pictures ahead of their turn may take together."""


Request = Callable[[], tuple[int, Generator[bytes]]]
"""Asks for a picture: returns its size, 0 for unknown, and its bytes as they come."""


class Fetches:
    """What the fetches of a run share: the memory for pictures that are ahead of their turn."""

    def __init__(self, options: DecodeOptions, stop: threading.Event) -> None:
        self.options, self.stop = options, stop
        self._free = AHEAD_BYTES
        self._changed = threading.Condition()

    def item(self, source: str, request: "Request") -> Item:
        """The picture that a request brings.

        Args:
            source: Its name in records.
            request: See `Fetch`.
        """
        fetch = Fetch(self, request)
        return Item(Origin(source), lambda: load_bytes(fetch.take(), self.options), fetch.begin)

    @contextlib.contextmanager
    def reserved(self, size: int, wanted: threading.Event) -> Iterator[None]:
        """Hold memory, when there is some; a picture whose turn has come does not wait for it."""
        with self._changed:
            while self._free < size and not (wanted.is_set() or self.stop.is_set()):
                self._changed.wait(POLL_S)
            self._free -= size
        try:
            yield
        finally:
            with self._changed:
                self._free += size
                self._changed.notify_all()

    def notify(self) -> None:
        """Let a fetch see that its picture's turn has come."""
        with self._changed:
            self._changed.notify_all()


class Fetch:
    """The bytes of one picture, on their way."""

    def __init__(self, shared: Fetches, request: Request) -> None:
        """Prepare; nothing is sent before `begin`.

        Args:
            shared: Of the run.
            request: Raises InputError, as the bytes that it returns may.
        """
        self._shared, self._request = shared, request
        self._begun, self._size, self._data = False, 0, b""
        self._error: BaseException | None = None
        self._wanted, self._done = threading.Event(), threading.Event()

    def begin(self) -> None:
        """Start, unless it has been started."""
        if not self._begun:
            self._begun = True
            threading.Thread(target=self._run, daemon=True).start()

    def take(self) -> bytes:
        """The bytes, when all are there; to be called once.

        Raises:
            InputError: They cannot be fetched, or not in time.
        """
        self._wanted.set()
        self._shared.notify()
        self.begin()
        limit_s, running = self._shared.options.timeout_s, RunningTime()
        while not self._done.wait(POLL_S):
            if self._shared.stop.is_set():
                raise SourceError("interrupted")
            if limit_s and running.seconds() > limit_s:
                raise too_slow(limit_s)
        if self._error is not None:
            raise self._error
        data, self._data = self._data, b""
        return data

    def _run(self) -> None:
        options = self._shared.options
        try:
            size, chunks = self._request()
            with contextlib.closing(chunks), self._shared.reserved(size, self._wanted):
                in_limits = in_time(self._until_stopped(chunks), options.timeout_s)
                self._data = gather(in_limits, options.max_bytes, size)
                self._done.set()
                while not (self._wanted.wait(POLL_S) or self._shared.stop.is_set()):
                    pass  # until then, the bytes count
        except InputTimeoutError:
            self._error = too_slow(options.timeout_s)
        except BaseException as error:  # noqa: BLE001 - raised by `take`
            self._error = error
        self._done.set()

    def _until_stopped(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            yield chunk
            if self._shared.stop.is_set():
                raise SourceError("interrupted")
