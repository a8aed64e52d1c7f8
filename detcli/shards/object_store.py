"""A folder in an object store: manifest and parts are objects that are made only once."""

import contextlib
import tempfile
from collections.abc import Iterator
from typing import BinaryIO, cast

from detcli.errors import OutputError, StoreError, UsageError
from detcli.object_store import Address, Bucket, ObjectError, ObjectExistsError, checked

IN_MEMORY = 64 << 20
"""Bytes of an object that is read which are kept in memory; more go to a temporary file."""


class ObjectFolder:
    """What begins with one prefix in a bucket, which is opened when it is used; see `Store`."""

    def __init__(self, place: str) -> None:
        try:
            self._address = Address.parse(place)
            if folder := self._address.key.removesuffix("/"):
                checked(folder)
        except ObjectError as error:
            raise UsageError(f"--output {place}: {error}", error.hint) from None
        self._opened: Bucket | None = None

    def __str__(self) -> str:
        return str(self._address)

    def __reduce__(self) -> tuple[type["ObjectFolder"], tuple[str]]:
        """Connections stay where they are."""
        return ObjectFolder, (str(self),)

    def names(self) -> Iterator[str]:
        """Names of the objects directly in it, see `Store.names`."""
        prefix = self._address.key
        with self._readable(""):
            for page in self._bucket.list(prefix):
                names = (key.removeprefix(prefix) for key, _ in page)
                yield from (name for name in names if "/" not in name)

    def exists(self, name: str) -> bool:
        """Whether an object has been made."""
        with self._readable(name):
            return self._bucket.exists(self._address.key + name)

    def open(self, name: str) -> BinaryIO:
        """Read an object whole."""
        file = tempfile.SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115 - the caller closes it
        try:
            with self._readable(name):
                for chunk in self._bucket.read(self._address.key + name)[1]:
                    file.write(chunk)
        except BaseException:
            file.close()
            raise
        file.seek(0)
        return cast("BinaryIO", file)

    def publish(self, name: str, content: BinaryIO) -> bool:
        """Make an object, see `Store.publish`."""
        content.seek(0)
        try:
            self._bucket.write(self._address.key + name, content, replace=False)
        except ObjectExistsError:
            return False
        except ObjectError as error:
            raise OutputError(f"cannot write {self}{name}: {error}", error.hint) from None
        return True

    @property
    def _bucket(self) -> Bucket:
        if self._opened is None:
            self._opened = Bucket(self._address.scheme, self._address.bucket)
        return self._opened

    @contextlib.contextmanager
    def _readable(self, name: str) -> Iterator[None]:
        try:
            yield
        except ObjectError as error:
            raise StoreError(f"cannot read {self}{name}: {error}", error.hint) from None
