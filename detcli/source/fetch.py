"""Fetching: the bytes of pictures from a file, a pipe, or over a network, and no more than needed.

What comes over a network is fetched on threads of its own, many at a time and ahead of its turn.
"""

import contextlib
import os
import queue
import select
import stat
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from io import BytesIO, UnsupportedOperation
from pathlib import Path
from threading import Event

from detcli.errors import DecodeError, SourceError, system_reason
from detcli.geometry import Picture
from detcli.object_store import Address, Bucket, ObjectError
from detcli.record import Origin
from detcli.source.decode import (
    DEFAULTS,
    JPEG,
    DecodeOptions,
    is_known,
    load_bytes,
    read_header,
    too_slow,
)
from detcli.source.loading import Item
from detcli.text import public_name
from detcli.timing import POLL_S, RunningTime

CHUNK = 65536
FILE_CHUNK = 1 << 20

IDLE_S = 1.0
"""After a silence this long, the reader gets an empty chunk."""

_FIRST_LOOK, _LOOK_AGAIN = 65536, 2
"""The beginning is looked at when this many bytes are there, and when twice as many are."""

_BYTES_PER_PIXEL, _METADATA = 32, 64 << 20
"""More than a pixel of a JPEG takes, and the rest of the file."""


class InputTimeoutError(Exception):
    """An input took too long; not the built-in TimeoutError, which is an OSError."""


def gather(chunks: Iterable[bytes], max_bytes: int, total: int = 0) -> bytes:
    """Join chunks, as long as they may be a picture.

    Args:
        chunks: The bytes as they come.
        max_bytes: More are refused.
        total: How many will come, if that is known.

    Raises:
        DecodeError: There are too many, or they are not in a known format.
    """
    data = BytesIO()
    look_at = _METADATA if 0 < total <= _METADATA else _FIRST_LOOK  # no need in a small file
    _check_length(total, max_bytes)
    for chunk in chunks:
        data.write(chunk)
        if data.tell() >= look_at:
            look_at = _LOOK_AGAIN * data.tell()
            _check_begin(data.getvalue(), max(data.tell(), total))
        _check_length(data.tell(), max_bytes)
    return data.getvalue()


def _check_length(length: int, max_bytes: int) -> None:
    if length > max_bytes:
        raise DecodeError(
            f"too large: more than {max_bytes} bytes",
            "raise --max-pixels if it is meant to be that large",
        )


def _check_begin(begin: bytes, length: int) -> None:
    """Require that a picture begins like this and may have this many bytes."""
    if not is_known(begin):
        raise DecodeError(
            "not a picture (not in a known picture format)", "check what it is, as `file NAME` does"
        )
    header = read_header(begin) if begin.startswith(JPEG) else None
    if header and length > _BYTES_PER_PIXEL * header.height * header.width + _METADATA:
        height, width = header.size
        raise DecodeError(
            f"too large: {length} bytes or more for {width}x{height} pixels",
            "check what follows the picture in the file",
        )


def read_file(path: Path, max_bytes: int, timeout_s: float) -> bytes:
    """Read a picture file; or a pipe or device, which may have no end and may never begin.

    Raises:
        OSError, ValueError: It cannot be read.
        InputTimeoutError: It did not end in time.
        DecodeError: It has too many bytes, or is not in a known format.
    """
    # Opening a pipe would wait for its writer.
    descriptor = os.open(
        path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    )
    try:
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            chunks = iter(lambda: os.read(descriptor, FILE_CHUNK), b"")
            return gather(chunks, max_bytes, status.st_size)
        if stat.S_ISDIR(status.st_mode):
            os.read(descriptor, 1)  # raises IsADirectoryError
        return gather(in_time(descriptor_chunks(descriptor, Event()), timeout_s), max_bytes)
    finally:
        os.close(descriptor)


def load_file(path: Path, options: DecodeOptions = DEFAULTS) -> Picture:
    """Read a file and decode it, see `load_bytes`.

    Raises:
        SourceError: The file cannot be read, or not in time.
        DecodeError: The picture is incomplete or too large, or not in a known format.
    """
    try:
        data = read_file(path, options.max_bytes, options.timeout_s)
    except InputTimeoutError:
        raise too_slow(options.timeout_s) from None
    except FileNotFoundError:
        raise SourceError("no such file", "check the path") from None
    except (OSError, ValueError) as error:
        raise SourceError(
            f"cannot be read: {system_reason(error)}", "check the path, and its permissions"
        ) from error
    return load_bytes(data, options)


def stdin_chunks(stop: Event) -> Iterator[bytes]:
    """Yield the bytes of standard input, see `descriptor_chunks`.

    Raises:
        SourceError: Standard input is closed, or a terminal.
        OSError: It cannot be read.
    """
    hint = "pipe a picture in, as in: detcli predict - ... < bus.jpg"
    if sys.stdin is None:
        raise SourceError("standard input is closed", hint)
    if sys.stdin.isatty():
        raise SourceError("standard input is a terminal", hint)
    try:
        descriptor = sys.stdin.fileno()
    except UnsupportedOperation:  # replaced by an object without a file
        yield from iter(lambda: sys.stdin.buffer.read(CHUNK), b"")
    else:
        yield from descriptor_chunks(descriptor, stop)


def in_time(chunks: Iterable[bytes], timeout_s: float) -> Iterator[bytes]:
    """Yield chunks for at most this long; 0 for no limit.

    Raises:
        InputTimeoutError: They do not end in time.
    """
    running = RunningTime()
    for chunk in chunks:
        yield chunk
        if timeout_s and running.seconds() > timeout_s:
            raise InputTimeoutError


def file_chunks(name: str, stop: Event) -> Iterator[bytes]:
    """Yield the bytes of a file or a named pipe, see `descriptor_chunks`.

    Raises:
        OSError: The file cannot be read.
    """
    with Path(name).open("rb", buffering=0) as file:
        yield from descriptor_chunks(file.fileno(), stop)


def descriptor_chunks(descriptor: int, stop: Event) -> Iterator[bytes]:
    """Yield bytes as they come, until the end or until `stop` is set.

    Yields:
        Some bytes; empty when nothing has come for a second.

    Raises:
        OSError: The descriptor cannot be read.
    """
    waited = 0.0
    while not stop.is_set():
        # Windows can only wait for sockets.
        if os.name == "posix" and not select.select([descriptor], [], [], POLL_S)[0]:
            waited += POLL_S
            if waited < IDLE_S:
                continue
            yield b""
        elif data := os.read(descriptor, CHUNK):
            yield data
        else:
            return
        waited = 0.0


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


class ObjectReader:
    """Reads what is in object stores for one run; each bucket is opened once."""

    def __init__(self, fetches: Fetches) -> None:
        self._fetches = fetches
        self._buckets: dict[tuple[str, str], Bucket | ObjectError] = {}

    def picture(self, url: str) -> Item:
        """The picture in an object.

        Raises:
            SourceError: The address is malformed, or there are no credentials.
            DeviceError: A library is missing.
        """
        bucket, key = self._locate(url)
        if not key or key.endswith("/"):
            raise SourceError("a folder, where a picture is expected", "name it as a source")
        return self._fetches.item(public_name(url), partial(_request, bucket, key))

    def search(self, url: str) -> Iterator[list[tuple[str, str]]]:
        """Yield what begins with an address, in the order of the store.

        Yields:
            The address and the name in the folder, for each object in one page of the listing.

        Raises:
            SourceError: It cannot be listed.
            DeviceError: A library is missing.
        """
        bucket, key = self._locate(url)
        folder = key if key.endswith("/") or not key else f"{key}/"
        root = url.removesuffix(key) if key else f"{url.rstrip('/')}/"
        with _as_source_error("cannot be listed"):
            for page in bucket.list(folder):
                yield [(root + key, key.removeprefix(folder)) for key, _ in page]

    def video(self, url: str) -> str:
        """An address with which a video can be read for a day, without credentials.

        Raises:
            SourceError: These credentials cannot make one.
            DeviceError: A library is missing.
        """
        bucket, key = self._locate(url)
        with _as_source_error("cannot be opened"):
            return bucket.sign(key)

    def _locate(self, url: str) -> tuple[Bucket, str]:
        """The bucket and the key of an address."""
        with _as_source_error("cannot be fetched"):
            address = Address.parse(url)
            place = address.scheme, address.bucket
            if place not in self._buckets:
                self._buckets[place] = _open_bucket(*place, self._fetches.options.timeout_s)
            bucket = self._buckets[place]
            if isinstance(bucket, ObjectError):
                raise bucket
        return bucket, address.key


def _open_bucket(scheme: str, name: str, timeout_s: float) -> Bucket | ObjectError:
    """A bucket; or why it cannot be opened, which takes seconds to find out."""
    try:
        return Bucket(scheme, name, timeout_s)
    except ObjectError as error:
        return error


def _request(bucket: Bucket, key: str) -> tuple[int, Generator[bytes]]:
    with _as_source_error("cannot be fetched"):
        size, chunks = bucket.read(key)
    return size, _passed_on(chunks)


def _passed_on(chunks: Generator[bytes]) -> Generator[bytes]:
    with _as_source_error("cannot be fetched"):
        yield from chunks


@contextlib.contextmanager
def _as_source_error(what: str) -> Iterator[None]:
    try:
        yield
    except ObjectError as error:
        raise SourceError(f"{what}: {error}", error.hint) from None


ITEMS = 64
"""How many are fetched at the same time, or wait as bytes for their turn."""

RUN_POLL_S = 1.0
"""How often a waiting thread checks whether the run is over."""


class Ahead:
    """Takes items in order: those with `begin` begin at once, up to 64 of them before their turn.

    Others wait for their turn one by one, without a detour as long as nothing is ahead of them: a
    camera's frame is worth most when it is new, and holds memory.
    """

    def __init__(self, admit: Callable[[int, Item], bool], over: threading.Event) -> None:
        """Prepare.

        Args:
            admit: Waits until there is room for an item, and takes it; False if the run is over.
            over: Set when the run is over.
        """
        self._admit, self._over = admit, over
        self._waiting: queue.SimpleQueue[tuple[int, Item] | None] = queue.SimpleQueue()
        self._room = threading.Semaphore(ITEMS)
        self._admitted = threading.Semaphore(0)  # of the items without `begin`
        self._thread: threading.Thread | None = None

    def put(self, index: int, item: Item) -> bool:
        """Take an item, when there is room for it; False if the run is over."""
        if self._thread is None:
            if item.begin is None:
                return self._admit(index, item)
            self._thread = threading.Thread(target=self._forward, daemon=True)
            self._thread.start()
        if item.begin is None:
            self._waiting.put((index, item))
            return self._acquire(self._admitted)
        if not self._acquire(self._room):
            return False
        item.begin()
        self._waiting.put((index, item))
        return True

    def close(self) -> None:
        """Wait until all items are admitted, or the run is over."""
        self._waiting.put(None)
        while self._thread is not None and self._thread.is_alive() and not self._over.is_set():
            self._thread.join(RUN_POLL_S)

    def _forward(self) -> None:
        while (entry := self._waiting.get()) is not None and self._admit(*entry):
            (self._admitted if entry[1].begin is None else self._room).release()

    def _acquire(self, room: threading.Semaphore) -> bool:
        while not room.acquire(timeout=RUN_POLL_S):
            if self._over.is_set():
                return False
        return not self._over.is_set()
