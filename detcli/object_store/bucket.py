"""Bucket: what is done with objects; buckets are reached through obstore only here."""

import contextlib
from collections.abc import Generator, Iterator
from typing import Any, BinaryIO

from detcli.object_store.credentials import open_store
from detcli.object_store.failures import (
    ObjectDeniedError,
    ObjectError,
    ObjectMissingError,
    ObjectTornError,
    explained,
)

CHUNK = 1 << 20
"""Bytes that a read yields at once."""

PAGE = 1000
"""Keys per page of a listing, the most that stores return."""

ATTEMPTS = 5
"""How often a page of a listing is requested if it breaks off."""

UPLOAD_CHUNK = 8 << 20
"""A larger object is sent in parts of this size, two at a time."""


class Bucket:
    """A bucket, or a container of Azure's.

    Requests that fail for a passing reason are repeated with back-off for half a minute. May be
    used from several threads.
    """

    def __init__(self, scheme: str, name: str, timeout_s: float = 0) -> None:
        """Open it, see `open_store`."""
        self._scheme = scheme
        self._store = open_store(scheme, name, timeout_s)

    def list(self, folder: str) -> Iterator[list[tuple[str, int]]]:
        """Yield keys and sizes in the order of the store, which is that of their bytes.

        Args:
            folder: What keys begin with, ending with `/`; or empty.

        Raises:
            ObjectError: They cannot be listed.
        """
        import obstore

        last, failures = None, 0
        while True:
            try:
                with self._told():
                    pages = obstore.list(self._store, folder or None, offset=last, chunk_size=PAGE)
                    for page in pages:
                        yield [(entry["path"], entry["size"]) for entry in page]
                        last, failures = page[-1]["path"], 0
            except ObjectTornError:  # which obstore does not repeat
                failures += 1
                if failures == ATTEMPTS:
                    raise
            else:
                return

    def require(self) -> None:
        """Require that the bucket can be reached, as far as these credentials may tell.

        Raises:
            ObjectError: It does not exist, or cannot be reached.
        """
        with contextlib.suppress(ObjectDeniedError):  # writing may be allowed without listing
            next(self.list("detcli-asks-for-nothing/"), None)

    def read(self, key: str) -> tuple[int, Generator[bytes]]:
        """The size of an object, and its bytes as they come.

        Raises:
            ObjectError: It cannot be read; or, while its bytes come, not to its end.
        """
        import obstore

        with self._told():
            result = obstore.get(self._store, checked(key))
            size = result.meta["size"]
        return size, self._chunks(result, size)

    def _chunks(self, result: Any, size: int) -> Generator[bytes]:  # noqa: ANN401 - of obstore
        received = 0
        with self._told():
            for chunk in result.stream(min_chunk_size=CHUNK):
                received += len(chunk)
                yield bytes(chunk)
        if received != size:
            raise ObjectError(f"{received} of {size} bytes came", "try it again")

    def exists(self, key: str) -> bool:
        """Whether there is such an object.

        Raises:
            ObjectError: The store gave no answer.
        """
        import obstore

        try:
            with self._told():
                obstore.head(self._store, checked(key))
        except ObjectMissingError:
            return False
        return True

    def write(self, key: str, content: bytes | BinaryIO, *, replace: bool = True) -> None:
        """Make an object, all of it or nothing.

        Args:
            key: Its name.
            content: The bytes, or a file with them, which is read from where it stands.
            replace: Whether an object of that name is replaced. If not, the object is at most
                5 GB large.

        Raises:
            ObjectExistsError: It is there, and is not to be replaced.
            ObjectError: It cannot be written.
        """
        import obstore

        with self._told():
            obstore.put(
                self._store,
                checked(key),
                content,
                mode="overwrite" if replace else "create",
                chunk_size=UPLOAD_CHUNK,
                max_concurrency=2,
            )

    def sign(self, key: str) -> str:
        """An HTTP address from which an object can be read for a day by whoever has it.

        Raises:
            ObjectError: These credentials cannot make one.
        """
        from datetime import timedelta

        import obstore

        with self._told():
            signed: str = obstore.sign(self._store, "GET", checked(key), timedelta(days=1))
        return signed

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Turn what obstore raises into an ObjectError."""
        from obstore.exceptions import BaseError

        try:
            yield
        except (BaseError, ValueError, OSError) as error:
            raise explained(error, self._scheme) from None  # the cause holds signed addresses


def checked(key: str) -> str:
    """A key that obstore takes as it is: it drops slashes at the ends.

    Raises:
        ObjectError: A part of the key is empty, `.` or `..`.
    """
    if not {"", ".", ".."}.isdisjoint(key.split("/")):
        raise ObjectError("its key has an empty part, . or ..", "copy it to another key")
    return key
