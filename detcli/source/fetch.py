"""Fetching: the bytes of images over a network, from web servers and object stores.

They are fetched on threads of their own, many at a time and ahead of their turn.
"""

import contextlib
import itertools
import queue
import threading
from collections.abc import Callable, Generator, Iterator
from functools import partial
from threading import Event
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from detcli.core.errors import PlaceError, SourceError
from detcli.core.text import public_name
from detcli.core.threads import BackgroundThread
from detcli.core.timing import POLL_S, RunningTime
from detcli.data.record import Origin
from detcli.source.decode import DecodeOptions, load_bytes, too_slow
from detcli.source.loading import Item
from detcli.source.reading import CHUNK, VersionedPath, gather, require_unchanged
from detcli.storage.object_errors import ObjectChangedError, ObjectError
from detcli.storage.objects import Address, Bucket

if TYPE_CHECKING:
    from http.client import HTTPResponse

AHEAD_ITEMS = 64  # images that are fetched at the same time, or wait as bytes for their turn

AHEAD_BYTES = 256 << 20  # bytes that images ahead of their turn may take together

HTTP_TIMEOUT_S = 10.0

_LEGAL = "%/:=&?~+!$,;'@()*[]"  # signs that an address may contain unescaped

# Asks for an image: returns its size, 0 for unknown, and its bytes as they come.
Request = Callable[[], tuple[int, Generator[bytes]]]


class Fetches:
    """Shared by the fetches of a run: memory for images ahead of their turn, and buckets."""

    def __init__(self, options: DecodeOptions, stop: Event) -> None:
        self.options = options
        self.stop = stop
        self._free = AHEAD_BYTES
        self.changed = threading.Condition()  # of memory, and of whose turn has come
        self._buckets: dict[tuple[str, str], Bucket | ObjectError] = {}

    def item(self, source: str, request: Request) -> Item:
        """Return the item of an image whose bytes a request brings, once the item has its turn.

        `source` is the name of the image in records, without passwords.
        """
        fetch = Fetch(self, request)
        return Item(Origin(source), lambda: load_bytes(fetch.take(), self.options), fetch.begin)

    def object(self, url: str) -> Item:
        """Return the item of an image in an object store, which is fetched only later.

        Raises:
            SourceError: The address is malformed or names a folder, or the store's credentials
                are missing.
        """
        bucket, key = self._locate(url)
        if not key or key.endswith("/"):
            raise SourceError("a folder, where an image is expected", "name it as a source")
        tag = _tag_of(url)
        return self.item(public_name(url), partial(_object_request, bucket, key, tag))

    def chunks(self, url: str) -> Iterator[bytes]:
        """The bytes of an object as they come."""
        bucket, key = self._locate(url)
        _, chunks = _object_request(bucket, key, _tag_of(url))
        yield from chunks

    def search(self, url: str) -> Iterator[list[tuple[str, str]]]:
        """List the objects in a folder of an object store, a page of the listing at a time.

        Yields:
            Pairs for the objects of a page: the address, which carries the object's ETag, and
            the name relative to the folder.

        Raises:
            SourceError: The folder cannot be listed.
        """
        bucket, key = self._locate(url)
        folder = key
        if key and not key.endswith("/"):
            folder = f"{key}/"
        root = f"{url.rstrip('/')}/"
        if key:
            root = url.removesuffix(key)  # the address of the bucket
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
        """Return the bucket of an object's address, and the object's key in it.

        Buckets are opened once. An error is remembered as well, because it takes seconds to find
        out that there are no credentials, and a run may name a million objects.

        Raises:
            SourceError: The address is malformed, or the bucket cannot be opened.
        """
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
        """Reserve memory for an image that is fetched ahead, for as long as the block runs.

        It waits until the images ahead of their turn leave enough of the memory that they share.
        The image that the run needs next must not wait for those behind it, so it takes its
        memory at once, even if that is more than there is.

        Args:
            size: Bytes of the image file; 0 if that is not known.
            turn_has_come: Set when the run needs this image next.
        """
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
    """The bytes of one image, on their way; nothing is sent before `begin`."""

    def __init__(self, shared: Fetches, request: Request) -> None:
        self._shared = shared
        self._request = request
        self._has_begun = False
        self._data = b""
        self._error: BaseException | None = None
        self._turn_has_come = Event()
        self._done = Event()

    def begin(self) -> None:
        """Start the thread that fetches the bytes, unless it has been started."""
        if not self._has_begun:
            self._has_begun = True
            BackgroundThread(self._run, stop=self._shared.stop.set).start()

    def take(self) -> bytes:
        """Wait for the bytes of the image file and return them; to be called once.

        Raises:
            SourceError: The run was interrupted, or the bytes did not come in time.
            BaseException: Whatever the fetching thread met.
        """
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
        """Fetch the bytes of the image, or keep the error for `take`; runs on its own thread.

        The thread ends only when `take` was called, because until then the bytes count as memory
        that is used by images ahead of their turn.
        """
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
                # Until `take` is called, the bytes count as memory that is used.
                while not (self._turn_has_come.wait(POLL_S) or stop.is_set()):
                    pass
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
    """Turn errors of an object store inside the block into errors of an input.

    Args:
        failure: What failed, as the message begins: "cannot be listed".

    Raises:
        AlteredError: The object has changed since it was listed.
        PlaceError: Other objects would fail as well, as without a network.
        SourceError: Only this object is to blame.
    """
    try:
        yield
    except ObjectChangedError:
        # Two stamps that differ raise the same AlteredError as a changed file does.
        require_unchanged(VersionedPath.of("", "listed"), "now")
    except ObjectError as error:
        message = f"{failure}: {error}"
        if error.of_place:
            raise PlaceError(message, error.hint) from None
        raise SourceError(message, error.hint) from None


def http_request(url: str) -> tuple[int, Generator[bytes]]:
    """Request an image from a web server.

    Returns:
        Its size in bytes, 0 if the server does not say, and a generator of its bytes as they
        come. Closing the generator closes the connection.

    Raises:
        SourceError: The server does not answer, or answers with an error.
    """
    with _http_errors():
        response = _open_http(url)
    size = response.length or 0
    chunks = _http_chunks(response)
    # The generator takes over the connection when it starts: from here on, closing it is enough.
    next(chunks)
    return size, chunks


def _http_chunks(response: "HTTPResponse") -> Generator[bytes]:
    """Yield an empty chunk, then the bytes of a response as they come.

    Each chunk is what one read brings, so that the reader can check its time limit even if a
    server sends a byte at a time. The response is closed at the end.
    """
    with _http_errors(), response:
        yield b""
        while chunk := response.read1(CHUNK):
            yield chunk
        if response.length:
            raise EOFError


def http_part(url: str, start: int, size: int) -> bytes:
    """Fetch a range of bytes of a file on a web server.

    Args:
        url: The address of the file.
        start: The offset of the first byte.
        size: How many bytes; fewer are returned where the file ends.

    Returns:
        The bytes; empty if the server sends files only from their beginning.

    Raises:
        SourceError: The server does not answer, or has nothing there.
    """
    with _http_errors(), _open_http(url, f"bytes={start}-{start + size - 1}") as response:
        if response.headers["Content-Range"] or start == 0:
            return response.read(size)
        return b""


def _open_http(url: str, byte_range: str = "") -> "HTTPResponse":
    """Open an address and return the response, whose body is not read yet.

    A user name and password in the address are not sent with it: urllib sends them only to this
    server, and only when the server asks for them.

    Args:
        url: The address, with a user name and password or without.
        byte_range: The value of the Range header, as in "bytes=0-99"; empty for the whole file.
    """
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
    address_without_password = urlunsplit((parts.scheme, host, path, query, ""))
    passwords = requests.HTTPPasswordMgrWithDefaultRealm()
    if parts.username:
        user = unquote(parts.username)
        password = unquote(parts.password or "")
        passwords.add_password(None, address_without_password, user, password)
    opener = requests.build_opener(
        ClosingProcessor,
        requests.HTTPBasicAuthHandler(passwords),
        requests.HTTPDigestAuthHandler(passwords),
    )
    if byte_range:
        opener.addheaders.append(("Range", byte_range))
    response: HTTPResponse = opener.open(address_without_password, timeout=HTTP_TIMEOUT_S)
    return response


@contextlib.contextmanager
def _http_errors() -> Iterator[None]:
    """Turn errors of a connection to a web server inside the block into a SourceError.

    Its message says what the server answered or what the system reports, and never the address,
    which may contain a password.
    """
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
        """Pass an item to the run, after all that were put before it; waits until there is room.

        An item that is fetched over a network begins at once and waits as bytes for its turn. The
        first of these starts the thread that hands items on in order; before it, other items go
        straight to the run.

        Args:
            index: The position of the item in the run.
            item: The input; `item.begin` is None if nothing can be fetched ahead.

        Returns:
            False if the run is over, and the item was not taken.
        """
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
        """Wait until all items that were put are passed to the run, or the run is over."""
        self._waiting.put(None)
        while self._thread is not None and self._thread.is_alive() and not self._over.is_set():
            self._thread.join(POLL_S)

    def _stop(self) -> None:
        """End the run, and the thread that waits for items."""
        self._over.set()
        self._waiting.put(None)

    def _forward(self) -> None:
        """Hand the waiting items on to the run in order; runs on the prefetcher's thread.

        It ends when `close` puts None, or when the run is over. After each item it tells `put`
        that another one has room.
        """
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
        """Wait until a semaphore grants room, and take it; False if the run is over."""
        while not room.acquire(timeout=POLL_S):
            if self._over.is_set():
                return False
        return not self._over.is_set()
