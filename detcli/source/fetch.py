"""Fetching: the bytes of images over a network, from web servers and object stores.

They are fetched on separate threads, many at a time and ahead of their turn.
"""

import contextlib
import queue
import threading
from collections.abc import Callable, Generator, Iterator
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, urlsplit, urlunsplit

from detcli.core.errors import PlaceError, SourceError
from detcli.core.text import public_name
from detcli.core.threads import BackgroundThread
from detcli.core.timing import POLL_S, RunningTime
from detcli.data.record import Origin
from detcli.source.decode import DecodeOptions, load_bytes, too_slow
from detcli.source.loading import Item
from detcli.source.reading import CHUNK, VersionedPath, changed_since_listed, gather
from detcli.storage.object_errors import ObjectChangedError, ObjectError
from detcli.storage.objects import Address, Bucket

if TYPE_CHECKING:
    from http.client import HTTPException, HTTPResponse
    from urllib.error import HTTPError

AHEAD_ITEMS = 64  # images that are fetched at the same time, or whose bytes wait for their turn

AHEAD_BYTES = 256 << 20  # bytes that images ahead of their turn may take up together

HTTP_TIMEOUT_S = 10.0

_LEGAL = "%/:=&?~+!$,;'@()*[]"  # signs that an address may contain unescaped


class Download(NamedTuple):
    """A download: iterating over `chunks` fetches its bytes, and closing them ends it."""

    size: int  # in bytes; 0 if it is not known
    chunks: Generator[bytes]


Request = Callable[[], Download]
"""Asks a server for an image, and returns when the server answers."""


class ListedObject(NamedTuple):
    """An object in a folder of an object store."""

    address: str  # carries the ETag that the object has in the list
    name: str  # its name, relative to the folder


class Fetches:
    """Shared by the fetches of a run: memory for images ahead of their turn, and buckets."""

    def __init__(self, options: DecodeOptions, stop: Event) -> None:
        self.options = options
        self.stop = stop
        self._free = AHEAD_BYTES
        self.changed = threading.Condition()  # notified when memory is released, or a turn comes
        self._buckets: dict[tuple[str, str], Bucket | ObjectError] = {}

    def item(self, source: str, request: Request) -> Item:
        """Return the item of an image whose bytes a request fetches.

        `source` is the name of the image in records, without passwords.
        """
        fetch = Fetch(self, request)
        return Item(Origin(source), lambda: load_bytes(fetch.take(), self.options), fetch.begin)

    def object(self, url: str) -> Item:
        """Return the item of an image in an object store, which is fetched only later.

        Args:
            url: Its address; one that a listing gave carries the ETag that the object must have.

        Raises:
            SourceError: The address is malformed or names a folder, or the store's credentials
                are missing.
        """
        bucket, key = self._locate(url)
        is_folder = not key or key.endswith("/")
        if is_folder:
            raise SourceError("a folder, where an image is expected", "name it as a source")
        request = partial(_object_request, bucket, key, _tag_of(url))
        return self.item(public_name(url), request)

    def chunks(self, url: str) -> Iterator[bytes]:
        """The bytes of an object as they come."""
        bucket, key = self._locate(url)
        _, chunks = _object_request(bucket, key, _tag_of(url))
        yield from chunks

    def search(self, url: str) -> Iterator[list[ListedObject]]:
        """List the objects in a folder of an object store, a page of the listing at a time.

        Raises:
            SourceError: The folder cannot be listed.
        """
        bucket, folder = self._locate(url)
        if folder:
            address_of_bucket = url.removesuffix(folder)
        else:
            address_of_bucket = f"{url.rstrip('/')}/"
        if folder and not folder.endswith("/"):
            folder = f"{folder}/"
        with _store_errors("cannot be listed"):
            for page in bucket.list(folder):
                objects: list[ListedObject] = []
                for key, tag, _ in page:
                    address = VersionedPath.of(address_of_bucket + key, tag)
                    objects.append(ListedObject(address, key.removeprefix(folder)))
                yield objects

    def video(self, url: str) -> str:
        """An address with which an object can be read for a day, without credentials."""
        bucket, key = self._locate(url)
        with _store_errors("cannot be opened"):
            return bucket.sign(key)

    def _locate(self, url: str) -> tuple[Bucket, str]:
        """Return the bucket of an object's address, and the object's key in it.

        So "s3://photos/2024/a.jpg" is the bucket `photos` and the key "2024/a.jpg". Buckets are
        opened once. An error is remembered as well, because it takes seconds to find out that there
        are no credentials, and a run may name a million objects.

        Raises:
            SourceError: The address is malformed, or the bucket cannot be opened.
        """
        with _store_errors("cannot be fetched"):
            address = Address.parse(url)
            bucket = self._open_once(address.scheme, address.bucket)
            if isinstance(bucket, ObjectError):
                raise bucket
        return bucket, address.key

    def _open_once(self, scheme: str, name: str) -> Bucket | ObjectError:
        """Return a bucket, or the error of opening it; both are remembered."""
        if (scheme, name) not in self._buckets:
            bucket: Bucket | ObjectError
            try:
                bucket = Bucket(scheme, name, self.options.inputs.input_timeout)
            except ObjectError as error:
                bucket = error
            self._buckets[scheme, name] = bucket
        return self._buckets[scheme, name]

    @contextlib.contextmanager
    def reserved(self, size: int, turn_has_come: Event) -> Iterator[None]:
        """Reserve memory for an image that is fetched ahead, for as long as the block runs.

        It waits until the images ahead of their turn leave enough of the memory that they share.
        The image that the run needs next must not wait for those after it, so it takes its
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
            self._shared.changed.notify_all()  # the thread may wait for memory
        self.begin()
        self._wait_until_done()
        if self._error is not None:
            raise self._error
        data = self._data
        self._data = b""
        return data

    def _wait_until_done(self) -> None:
        """Wait for the fetching thread.

        Raises:
            SourceError: The run was interrupted, or the bytes did not come in time.
        """
        limit_s = self._shared.options.inputs.input_timeout
        running = RunningTime()
        while not self._done.wait(POLL_S):
            if self._shared.stop.is_set():
                raise SourceError("interrupted")
            if limit_s and running.seconds() > limit_s:
                raise too_slow(limit_s)

    def _run(self) -> None:
        """Fetch the bytes of the image, or keep the error for `take`; runs on its own thread."""
        try:
            self._fetch_and_wait()
        except BaseException as error:  # noqa: BLE001 - raised by `take`
            self._error = error
        self._done.set()

    def _fetch_and_wait(self) -> None:
        """Fetch the bytes of the image, and reserve their memory until the image's turn has come.

        As soon as the bytes have arrived, `_done` is set and `take` may return them. The memory is
        reserved for longer: while the image waits for its turn, its bytes count as memory of the
        images that are ahead of their turn. It is released when `take` is called, or the run stops.

        Raises:
            SourceError: The run was interrupted, or the image cannot be fetched.
            DecodeError: It is too large, or not an image.
        """
        stop = self._shared.stop
        size, chunks = self._request()
        with contextlib.closing(chunks), self._shared.reserved(size, self._turn_has_come):
            self._data = gather(
                _until_stop(chunks, stop),
                max_bytes=self._shared.options.max_bytes,
                total=size,
                limit_s=self._shared.options.inputs.input_timeout,
            )
            if stop.is_set():
                raise SourceError("interrupted")
            self._done.set()
            while not self._turn_has_come.wait(POLL_S):
                if stop.is_set():
                    return


def _until_stop(chunks: Iterator[bytes], stop: Event) -> Iterator[bytes]:
    """Yield the chunks of a download until the run stops."""
    for chunk in chunks:
        if stop.is_set():
            return
        yield chunk


def _tag_of(url: str) -> str | None:
    """The ETag that an object was listed with; None if it was not listed."""
    if isinstance(url, VersionedPath):
        return url.stamp
    return None


def _object_request(bucket: Bucket, key: str, tag: str | None) -> Download:
    """Ask for an object, see `Request`; a SourceError if it cannot be fetched."""
    with _store_errors("cannot be fetched"):
        size, chunks = bucket.read(key, tag=tag)
    return Download(size, _object_chunks(chunks))


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
        PlaceError: Other objects would fail as well, as when there is no network.
        SourceError: Only this object is to blame.
    """
    try:
        yield
    except ObjectChangedError as error:
        raise changed_since_listed() from error
    except ObjectError as error:
        message = f"{failure}: {error}"
        if error.of_place:
            raise PlaceError(message, error.hint) from None
        raise SourceError(message, error.hint) from None


def http_request(url: str) -> Download:
    """Request an image from a web server, whose connection is open until the chunks are closed.

    Raises:
        SourceError: The server does not answer, or answers with an error.
    """
    with _http_errors():
        response = _open_http(url)
    size = response.length or 0
    chunks = _http_chunks(response)
    # Only a generator that has started closes the connection when it is closed itself. So it is
    # started, with the empty chunk that it yields first.
    next(chunks)
    return Download(size, chunks)


def _http_chunks(response: "HTTPResponse") -> Generator[bytes]:
    """Yield an empty chunk at the start, see `http_request`, then the bytes of a response.

    Each chunk is what one read returns, so that the reader can check its time limit even if a
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
    from detcli.source.http_opener import opener_with_password

    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    path = quote(parts.path, safe=_LEGAL)
    query = quote(parts.query, safe=_LEGAL)
    address_without_password = urlunsplit((parts.scheme, host, path, query, ""))
    opener = opener_with_password(address_without_password, parts)
    if byte_range:
        opener.addheaders.append(("Range", byte_range))
    response: HTTPResponse = opener.open(address_without_password, timeout=HTTP_TIMEOUT_S)
    return response


@contextlib.contextmanager
def _http_errors() -> Iterator[None]:
    """Turn errors of a connection to a web server inside the block into a SourceError."""
    import http.client

    try:
        yield
    except (OSError, ValueError, EOFError, http.client.HTTPException) as error:
        # Without the cause, which names the address: that may contain a password.
        raise _failed_fetch(error) from None


def _failed_fetch(error: "OSError | ValueError | EOFError | HTTPException") -> SourceError:
    """Make the error for a file on a web server that cannot be fetched.

    Its message says what the server answered or what the system reports, and never the address,
    which may contain a password.
    """
    import http.client
    from urllib.error import HTTPError, URLError

    if isinstance(error, HTTPError):
        return _refused_request(error)
    if isinstance(error, EOFError | http.client.IncompleteRead):
        reason = "the connection broke off"
    else:
        cause: object = error
        if isinstance(error, URLError):  # it only wraps the error of the system
            cause = error.reason
        # A system error has a message without the address; for others, only the name is safe.
        reason = getattr(cause, "strerror", None) or type(cause).__name__
    return SourceError(
        f"cannot be fetched: {reason}", "check the address, and that its server answers"
    )


def _refused_request(error: "HTTPError") -> SourceError:
    """Make the error for a file for which a web server answers with an error such as 404.

    The response is closed, and with it its connection.
    """
    import http.client

    error.close()
    hint = "check the address"
    if error.code in {401, 403}:  # Unauthorized and Forbidden
        hint = "check the address, user name and password"
    answer = f"{error.code} {http.client.responses.get(error.code, '')}".strip()
    return SourceError(f"cannot be fetched: the server answers {answer}", hint)


class Prefetcher:
    """Takes items in order: those with `begin` start at once, up to 64 of them before their turn.

    Others wait for their turn one by one, and are passed on directly as long as nothing is ahead of
    them: a camera's frame is worth most when it is new, and holds memory.
    """

    def __init__(self, admit: Callable[[int, Item], bool], over: Event) -> None:
        """`admit` waits until there is room for an item, and takes it; False if the run is over."""
        self._admit = admit
        self._over = over
        self._waiting: queue.SimpleQueue[tuple[int, Item] | None] = queue.SimpleQueue()
        # How many more items may be fetched ahead of their turn.
        self._fetch_slots = threading.Semaphore(AHEAD_ITEMS)
        # Released when an item that is not fetched ahead has been passed on; `put` waits for it.
        self._passed_on = threading.Semaphore(0)
        # Passes waiting items on; started for the first item that is fetched ahead.
        self._thread: BackgroundThread | None = None

    def put(self, index: int, item: Item) -> bool:
        """Pass an item to the run, after all items that were put before it.

        An item from a network is fetched ahead: this returns as soon as its fetching has begun. For
        any other item, such as a frame of a camera, it returns when the run has the item.

        Args:
            index: The position of the item in the run.
            item: The input; `item.begin` starts fetching it, and is None if nothing is fetched
                ahead.

        Returns:
            False if the run is over, and the item was not taken.
        """
        if item.begin is None:
            return self._put_in_turn(index, item)
        return self._put_ahead(index, item, item.begin)

    def _put_in_turn(self, index: int, item: Item) -> bool:
        """Wait for the turn of an item that is not fetched ahead, and pass it to the run.

        If there is no thread, no item is waiting, so it is passed on here. Otherwise the thread
        does so.
        """
        if self._thread is None:
            return self._admit(index, item)
        self._waiting.put((index, item))
        return self._acquire(self._passed_on)

    def _put_ahead(self, index: int, item: Item, begin: Callable[[], None]) -> bool:
        """Begin to fetch an item, and let it wait for its turn.

        If AHEAD_ITEMS are already waiting, this first waits until one of them is passed on.
        """
        if self._thread is None:
            self._thread = BackgroundThread(self._pass_on, stop=self._stop)
            self._thread.start()
        if not self._acquire(self._fetch_slots):
            return False
        begin()
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

    def _pass_on(self) -> None:
        """Pass the waiting items to the run in order; the prefetcher's thread runs this.

        It ends when the run is over, or at the None with which `close` ends the queue.
        """
        while True:
            indexed_item = self._waiting.get()
            if indexed_item is None:
                return
            index, item = indexed_item
            is_over = not self._admit(index, item)
            if is_over:
                return
            is_fetched_ahead = item.begin is not None
            if is_fetched_ahead:
                self._fetch_slots.release()  # `_put_ahead` may wait for a free slot
            else:
                self._passed_on.release()  # `_put_in_turn` waits until this item is passed on

    def _acquire(self, semaphore: threading.Semaphore) -> bool:
        """Wait until a semaphore is free, and take it; False if the run is over."""
        while not semaphore.acquire(timeout=POLL_S):
            if self._over.is_set():
                return False
        return not self._over.is_set()
