"""Fetching: the bytes of pictures from a file, a pipe, or over a network, and no more than needed.

What comes over a network is fetched on threads of its own, many at a time and ahead of its turn.
"""

import contextlib
import errno
import itertools
import os
import queue
import select
import stat
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import replace
from functools import partial
from io import BytesIO, UnsupportedOperation
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Self
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from detcli.core.errors import AlteredError, DecodeError, PlaceError, SourceError, system_reason
from detcli.core.text import public_name
from detcli.core.threads import BackgroundThread
from detcli.core.timing import POLL_S, RunningTime
from detcli.data.geometry import Picture
from detcli.data.record import Origin
from detcli.source.decode import (
    DEFAULTS,
    DecodeOptions,
    format_of,
    load_bytes,
    read_header,
    too_slow,
)
from detcli.source.limits import LARGER
from detcli.source.loading import Item
from detcli.source.segments import JPEG
from detcli.storage.folder import NO_WAIT
from detcli.storage.object_errors import ObjectChangedError, ObjectError
from detcli.storage.objects import Address, Bucket

if TYPE_CHECKING:
    from http.client import HTTPResponse

CHUNK = 65536
FILE_CHUNK = 1 << 20

IDLE_S = 1.0  # after a silence this long, the reader gets an empty chunk

AHEAD_ITEMS = 64  # pictures that are fetched at the same time, or wait as bytes for their turn

AHEAD_BYTES = 256 << 20  # bytes that pictures ahead of their turn may take together

HTTP_TIMEOUT_S = 10.0

_LEGAL = "%/:=&?~+!$,;'@()*[]"  # signs that an address may contain unescaped

# The beginning is looked at when this many bytes are there, and when twice as many are.
_FIRST_LOOK = 65536
_LOOK_AGAIN = 2

_BYTES_PER_PIXEL = 32  # more than a pixel of a JPEG takes
_METADATA = 64 << 20  # bytes, more than the rest of the file takes

# Asks for a picture: returns its size, 0 for unknown, and its bytes as they come.
Request = Callable[[], tuple[int, Generator[bytes]]]


class VersionedPath(str):  # noqa: SLOT000 - with an attribute
    """A name with its stamp, by which it is noticed that the file has changed since."""

    stamp: str  # size and time of a file, or the ETag of an object

    @classmethod
    def of(cls, name: str, stamp: str) -> Self:
        """A name with this stamp."""
        versioned = cls(name)
        versioned.stamp = stamp
        return versioned


def stamp_of(status: os.stat_result) -> str:
    """The stamp of a file."""
    return f"{status.st_size}-{status.st_mtime_ns // 1000}"


def file_stamp(path: str | Path) -> str | None:
    """The stamp of a file as it is now; None if it is missing, or a pipe or device."""
    try:
        status = os.stat(path)  # noqa: PTH116 - a million
    except (OSError, ValueError):  # it may be an address
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return stamp_of(status)


def present_stamp(origin: Origin) -> str | None:
    """The stamp that the file of an input has now; None if it has none that could be compared."""
    if origin.path is not None:
        return file_stamp(origin.path)
    return origin.file_stamp


def require_unchanged(name: str | Path, stamp: str | None) -> None:
    """Raise an AlteredError for what has another stamp than when it was listed."""
    if isinstance(name, VersionedPath) and name.stamp != stamp:
        hint = "work it as it is now with --retry-failed"
        raise AlteredError("it has changed since it was listed", hint)


def gather(chunks: Iterable[bytes], max_bytes: int, total: int = 0, limit_s: float = 0.0) -> bytes:
    """Join chunks, as long as they may be a picture of `max_bytes`.

    `total` is how many bytes will come, if that is known; `limit_s` is for all of them.
    """
    data = BytesIO()
    running = RunningTime()
    next_look = _FIRST_LOOK
    if 0 < total <= _METADATA:  # no need in a small file
        next_look = _METADATA
    for chunk in itertools.chain([b""], chunks):
        length = data.tell() + data.write(chunk)
        if length >= next_look:
            next_look = _LOOK_AGAIN * length
            _check_begin(data.getvalue(), max(length, total))
        if max(length, total) > max_bytes:
            raise DecodeError(f"too large: more than {max_bytes} bytes", LARGER)
        if limit_s and running.seconds() > limit_s:
            raise too_slow(limit_s)
    return data.getvalue()


def _check_begin(begin: bytes, length: int) -> None:
    """Require that a picture begins like this and may have this many bytes."""
    if not format_of(begin):
        raise DecodeError(
            "not a picture (not in a known picture format)", "check what it is, as `file NAME` does"
        )
    if not begin.startswith(JPEG):
        return
    header = read_header(begin)
    if header and length > _BYTES_PER_PIXEL * header.height * header.width + _METADATA:
        height, width = header.size
        raise DecodeError(
            f"too large: {length} bytes or more for {width}x{height} pixels",
            "check what follows the picture in the file",
        )


def load_file(path: str | Path, options: DecodeOptions = DEFAULTS) -> Picture:
    """Read a picture file, or a pipe or device that has no end, and decode it, see `load_bytes`.

    Raises:
        SourceError: The file cannot be read, or not in time.
        DecodeError: The picture is incomplete or too large, or not in a known format.
    """
    try:
        with open(path, "rb", buffering=0, opener=_open_without_waiting) as file:
            descriptor = file.fileno()
            status = os.fstat(descriptor)
            stamp: str | None = stamp_of(status)
            require_unchanged(path, stamp)
            if stat.S_ISREG(status.st_mode):
                chunks = iter(lambda: os.read(descriptor, FILE_CHUNK), b"")
                data = gather(chunks, options.max_bytes, status.st_size)
            else:
                stamp = None  # it is something else each time
                chunks = descriptor_chunks(descriptor, Event())
                data = gather(chunks, options.max_bytes, limit_s=options.inputs.input_timeout)
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    picture = load_bytes(data, options)
    if options.keep:
        return replace(picture, file=data, file_stamp=stamp)
    return replace(picture, file_stamp=stamp)


def _open_without_waiting(path: str, flags: int) -> int:
    """Open a file for `open`, also a pipe that nobody writes to yet."""
    return os.open(path, flags | NO_WAIT)


OF_NAME = {None, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL}
"""Errors of the system that a name is to blame for; it has no number for others."""


def unreadable(path: str | Path, error: OSError | ValueError) -> SourceError:
    """The error of a file that cannot be read: a PlaceError, unless it alone is to blame.

    A mount that is gone leaves an empty folder, or none.
    """
    number = getattr(error, "errno", None)
    if number in {errno.ENOENT, errno.ENOTDIR}:
        if "://" in str(path):
            hint = "addresses begin with http, https, rtsp, rtsps, s3, gs or az; or name a path"
            return SourceError("not an address that can be read", hint)
        with contextlib.suppress(OSError), os.scandir(Path(path).parent) as others:
            if next(others, None) is not None and not os.path.lexists(path):
                return SourceError("no such file", "check the path")
        hint = "check the path, from which folder it counts, and that its drive is there"
        return PlaceError("no such file", hint)
    message = f"cannot be read: {system_reason(error)}"
    hint = "check the path and permissions"
    if number is None:
        hint = "with -0, names end with NUL"
    if number in OF_NAME:
        return SourceError(message, hint)
    return PlaceError(message, hint)


def stdin_problem() -> str:
    """Why there is nothing to read from standard input; empty if there may be."""
    if sys.stdin is None:
        return "standard input is closed"
    if sys.stdin.isatty():
        return "standard input is a terminal"
    return ""


def stdin_chunks(stop: Event) -> Iterator[bytes]:
    """Yield the bytes of standard input, see `descriptor_chunks`; a SourceError without one."""
    problem = stdin_problem()
    if problem:
        raise SourceError(problem, "pipe a picture in, as in: detcli predict - ... < bus.jpg")
    try:
        descriptor = sys.stdin.fileno()
    except UnsupportedOperation:  # replaced by an object without a file
        yield from iter(lambda: sys.stdin.buffer.read(CHUNK), b"")
    else:
        yield from descriptor_chunks(descriptor, stop)


def file_chunks(name: str, stop: Event) -> Iterator[bytes]:
    """Yield the bytes of a file or a named pipe, see `descriptor_chunks`."""
    with Path(name).open("rb", buffering=0) as file:
        yield from descriptor_chunks(file.fileno(), stop)


def descriptor_chunks(descriptor: int, stop: Event) -> Iterator[bytes]:
    """Yield bytes as they come, until the end or until `stop` is set; none after each silence."""
    silent_s = 0.0
    while not stop.is_set():
        # Windows can only wait for sockets.
        if sys.platform == "win32" or select.select([descriptor], [], [], POLL_S)[0]:
            data = os.read(descriptor, CHUNK)
            if not data:
                return
            yield data
            silent_s = 0.0
            continue
        silent_s += POLL_S
        if silent_s >= IDLE_S:
            yield b""
            silent_s = 0.0


class Fetches:
    """Shared by the fetches of a run: memory for pictures ahead of their turn, and buckets."""

    def __init__(self, options: DecodeOptions, stop: Event) -> None:
        self.options = options
        self.stop = stop
        self._free = AHEAD_BYTES
        self.changed = threading.Condition()  # of memory, and of whose turn has come
        self._buckets: dict[tuple[str, str], Bucket | ObjectError] = {}

    def item(self, source: str, request: Request) -> Item:
        """The picture of this name in records that a request brings."""
        fetch = Fetch(self, request)
        return Item(Origin(source), lambda: load_bytes(fetch.take(), self.options), fetch.begin)

    def object(self, url: str) -> Item:
        """The picture in an object; as below, a SourceError if that cannot be."""
        bucket, key = self._locate(url)
        if not key or key.endswith("/"):
            raise SourceError("a folder, where a picture is expected", "name it as a source")
        tag = _tag_of(url)
        return self.item(public_name(url), partial(_object_request, bucket, key, tag))

    def chunks(self, url: str) -> Iterator[bytes]:
        """The bytes of an object as they come."""
        bucket, key = self._locate(url)
        _, chunks = _object_request(bucket, key, _tag_of(url))
        yield from chunks

    def search(self, url: str) -> Iterator[list[tuple[str, str]]]:
        """Yield the address and the name of each object in a folder, a page of them at a time."""
        bucket, key = self._locate(url)
        folder = key
        if key and not key.endswith("/"):
            folder = f"{key}/"
        root = f"{url.rstrip('/')}/"
        if key:
            root = url.removesuffix(key)
        with _store_errors("cannot be listed"):
            for page in bucket.list(folder):
                objects: list[tuple[str, str]] = []
                for object_key, tag, _ in page:
                    address = VersionedPath.of(root + object_key, tag)
                    objects.append((address, object_key.removeprefix(folder)))
                yield objects

    def video(self, url: str) -> str:
        """An address with which an object can be read for a day, without credentials."""
        bucket, key = self._locate(url)
        with _store_errors("cannot be opened"):
            return bucket.sign(key)

    def _locate(self, url: str) -> tuple[Bucket, str]:
        """The bucket and the key of an address; to find no credentials takes seconds, once."""
        with _store_errors("cannot be fetched"):
            address = Address.parse(url)
            key = (address.scheme, address.bucket)
            if key not in self._buckets:
                timeout_s = self.options.inputs.input_timeout
                try:
                    self._buckets[key] = Bucket(address.scheme, address.bucket, timeout_s)
                except ObjectError as error:
                    self._buckets[key] = error
            bucket = self._buckets[key]
            if isinstance(bucket, ObjectError):
                raise bucket
        return bucket, address.key

    @contextlib.contextmanager
    def reserved(self, size: int, turn_has_come: Event) -> Iterator[None]:
        """Hold memory, when there is some; a picture whose turn has come does not wait for it."""
        with self.changed:
            while self._free < size and not (turn_has_come.is_set() or self.stop.is_set()):
                self.changed.wait(POLL_S)
            self._free -= size
        try:
            yield
        finally:
            with self.changed:
                self._free += size
                self.changed.notify_all()


class Fetch:
    """The bytes of one picture, on their way; nothing is sent before `begin`."""

    def __init__(self, shared: Fetches, request: Request) -> None:
        self._shared = shared
        self._request = request
        self._has_begun = False
        self._data = b""
        self._error: BaseException | None = None
        self._turn_has_come = Event()
        self._done = Event()

    def begin(self) -> None:
        """Start, unless it has been started."""
        if not self._has_begun:
            self._has_begun = True
            BackgroundThread(self._run, stop=self._shared.stop.set).start()

    def take(self) -> bytes:
        """The bytes, when all are there; to be called once. Raises what went wrong."""
        self._turn_has_come.set()
        with self._shared.changed:
            self._shared.changed.notify_all()
        self.begin()
        limit_s = self._shared.options.inputs.input_timeout
        running = RunningTime()
        while not self._done.wait(POLL_S):
            if self._shared.stop.is_set():
                raise SourceError("interrupted")
            if limit_s and running.seconds() > limit_s:
                raise too_slow(limit_s)
        if self._error is not None:
            raise self._error
        data = self._data
        self._data = b""
        return data

    def _run(self) -> None:
        """Fetch the bytes or note the error, on a thread; the memory is held until their turn."""
        options = self._shared.options
        stop = self._shared.stop
        try:
            size, chunks = self._request()
            with contextlib.closing(chunks), self._shared.reserved(size, self._turn_has_come):
                chunks_until_stop = itertools.takewhile(lambda _: not stop.is_set(), chunks)
                self._data = gather(
                    chunks_until_stop,
                    max_bytes=options.max_bytes,
                    total=size,
                    limit_s=options.inputs.input_timeout,
                )
                if stop.is_set():
                    raise SourceError("interrupted")  # noqa: TRY301 - as any other
                self._done.set()
                while not (self._turn_has_come.wait(POLL_S) or stop.is_set()):
                    pass  # until then, the bytes count
        except BaseException as error:  # noqa: BLE001 - raised by `take`
            self._error = error
        self._done.set()


def _tag_of(url: str) -> str | None:
    """The ETag that an object was listed with; None if it was not listed."""
    if isinstance(url, VersionedPath):
        return url.stamp
    return None


def _object_request(bucket: Bucket, key: str, tag: str | None) -> tuple[int, Generator[bytes]]:
    """Ask for an object, see `Request`; a SourceError if it cannot be fetched."""
    with _store_errors("cannot be fetched"):
        size, chunks = bucket.read(key, tag=tag)
    return size, _object_chunks(chunks)


def _object_chunks(chunks: Iterator[bytes]) -> Generator[bytes]:
    """Yield the bytes of an object as they come; a SourceError if the rest does not come."""
    with _store_errors("cannot be fetched"):
        yield from chunks


@contextlib.contextmanager
def _store_errors(failure: str) -> Iterator[None]:
    """Turn the errors of an object store into those of a source."""
    try:
        yield
    except ObjectChangedError:
        require_unchanged(VersionedPath.of("", "listed"), "now")
    except ObjectError as error:
        message = f"{failure}: {error}"
        if error.of_place:
            raise PlaceError(message, error.hint) from None
        raise SourceError(message, error.hint) from None


def http_request(url: str) -> tuple[int, Generator[bytes]]:
    """Ask for a picture at an address, see `Request`; a SourceError if it cannot be fetched."""
    with _http_errors():
        response = _open_http(url)
    size = response.length or 0
    chunks = _http_chunks(response)
    next(chunks)  # from here on, who drops them closes the connection
    return size, chunks


def _http_chunks(response: "HTTPResponse") -> Generator[bytes]:
    """Yield an empty chunk, then bytes as they come, so that a server that drips is noticed."""
    with _http_errors(), response:
        yield b""
        while chunk := response.read1(CHUNK):
            yield chunk
        if response.length:
            raise EOFError


def http_part(url: str, start: int, size: int) -> bytes:
    """Bytes from a place on at an address; none if the server sends only the whole.

    Raises:
        SourceError: The server does not answer, or has nothing there.
    """
    with _http_errors(), _open_http(url, f"bytes={start}-{start + size - 1}") as response:
        if response.headers["Content-Range"] or start == 0:
            return response.read(size)
        return b""


def _open_http(url: str, part: str = "") -> "HTTPResponse":
    """Send the request; the password goes to that server only, and only on request."""
    import urllib.request as requests

    class ClosingProcessor(requests.HTTPErrorProcessor):
        """Closes error responses, which a second request with a password would leave open."""

        def http_response(
            self, request: requests.Request, response: "HTTPResponse"
        ) -> "HTTPResponse":
            if not 200 <= response.status < 300:
                response.close()
            handled: HTTPResponse = super().http_response(request, response)
            return handled

        https_response = http_response

    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    path = quote(parts.path, safe=_LEGAL)
    query = quote(parts.query, safe=_LEGAL)
    public = urlunsplit((parts.scheme, host, path, query, ""))
    passwords = requests.HTTPPasswordMgrWithDefaultRealm()
    if parts.username:
        user = unquote(parts.username)
        password = unquote(parts.password or "")
        passwords.add_password(None, public, user, password)
    opener = requests.build_opener(
        ClosingProcessor,
        requests.HTTPBasicAuthHandler(passwords),
        requests.HTTPDigestAuthHandler(passwords),
    )
    if part:
        opener.addheaders.append(("Range", part))
    response: HTTPResponse = opener.open(public, timeout=HTTP_TIMEOUT_S)
    return response


@contextlib.contextmanager
def _http_errors() -> Iterator[None]:
    """Turn the errors of a connection into a SourceError, without the address."""
    import http.client
    from urllib.error import HTTPError, URLError

    try:
        yield
    except (OSError, ValueError, EOFError, http.client.HTTPException) as error:
        cause: object = error
        if isinstance(error, URLError):
            cause = error.reason
        reason = getattr(cause, "strerror", None) or type(cause).__name__
        hint = "check the address, and that its server answers"
        if isinstance(error, HTTPError):
            hint = "check the address"
            if error.code in {401, 403}:
                hint = "check the address, user name and password"
            error.close()
            phrase = http.client.responses.get(error.code, "")
            reason = f"the server answers {error.code} {phrase}".strip()
        elif isinstance(error, EOFError | http.client.IncompleteRead):
            reason = "the connection broke off"
        # The cause names the address, which may contain a password.
        raise SourceError(f"cannot be fetched: {reason}", hint) from None


class Prefetcher:
    """Takes items in order: those with `begin` begin at once, up to 64 of them before their turn.

    Others wait for their turn one by one, without a detour as long as nothing is ahead of them: a
    camera's frame is worth most when it is new, and holds memory.
    """

    def __init__(self, admit: Callable[[int, Item], bool], over: Event) -> None:
        """`admit` waits until there is room for an item, and takes it; False if the run is over."""
        self._admit = admit
        self._over = over
        self._waiting: queue.SimpleQueue[tuple[int, Item] | None] = queue.SimpleQueue()
        self._room = threading.Semaphore(AHEAD_ITEMS)
        self._admitted = threading.Semaphore(0)  # of the items without `begin`
        self._thread: BackgroundThread | None = None

    def put(self, index: int, item: Item) -> bool:
        """Take an item, when there is room for it; False if the run is over."""
        if self._thread is None:
            if item.begin is None:
                return self._admit(index, item)
            self._thread = BackgroundThread(self._forward, stop=self._stop)
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
            self._thread.join(POLL_S)

    def _stop(self) -> None:
        """End the run, and the thread that waits for items."""
        self._over.set()
        self._waiting.put(None)

    def _forward(self) -> None:
        """Hand on the items in order, until `close` puts None or the run is over."""
        while True:
            waiting = self._waiting.get()
            if waiting is None:
                return
            index, item = waiting
            if not self._admit(index, item):
                return
            if item.begin is None:
                self._admitted.release()
            else:
                self._room.release()

    def _acquire(self, room: threading.Semaphore) -> bool:
        """Wait for a semaphore; False if the run is over."""
        while not room.acquire(timeout=POLL_S):
            if self._over.is_set():
                return False
        return not self._over.is_set()
