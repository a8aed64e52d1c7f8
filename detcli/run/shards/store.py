"""Stores: where the manifest and the parts of a run are, each written once and never changed.

A published file is complete and never changes: of two processes that publish the same name, one
wins, and the other learns that it lost. So no locks are needed, and a shard that is processed twice
does no harm.
"""

import contextlib
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, cast

from detcli.core.errors import OutputError, StoreError, UsageError, system_reason
from detcli.core.lines import read_bounded
from detcli.core.text import is_object, public_name
from detcli.storage.files import AtomicFile, make_folder, write_file
from detcli.storage.folder import LEFTOVER, NO_WAIT
from detcli.storage.object_errors import ObjectError, ObjectExistsError
from detcli.storage.objects import Address, Bucket, checked

CHUNK = 1 << 20

NOTE = "_working-"
"""The prefix of the names of temporary files that say which shards are being processed."""

MAX_NOTE_BYTES = 1 << 24
"""The maximum size of the note in which a run lists the shards that it is processing."""

RENEW_S = 20.0
"""How often a process rewrites its note, to show that it is still alive."""

MAX_NOTE_AGE_S = 3 * RENEW_S
"""An older note was left behind by a process that has ended."""


class LocalFolder:
    """A folder on a disk, which other machines may share; `str` names it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __str__(self) -> str:
        return str(self._path)

    def names(self) -> Iterator[str]:
        """Yield the names of the files directly in the folder, in any order.

        There are none if the folder does not exist yet. Temporary files are left out.

        Raises:
            StoreError: It cannot be read. `times`, `exists` and `open` raise it as well.
        """
        try:
            with os.scandir(self._path) as entries:
                for entry in entries:
                    if not re.fullmatch(LEFTOVER, entry.name):
                        yield entry.name
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._unreadable("", error) from error

    def times(self, begins: str = "") -> dict[str, float]:
        """When the files whose names begin like this were published, in seconds since 1970."""
        times = {}
        for name in self.names():
            with contextlib.suppress(FileNotFoundError):  # a note that has been removed meanwhile
                if name.startswith(begins):
                    times[name] = (self._path / name).lstat().st_mtime
        return times

    def exists(self, name: str) -> bool:
        """Whether a file has been published."""
        try:
            os.lstat(self._path / name)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise self._unreadable(name, error) from error
        return True

    def open(self, name: str, tail_bytes: int = 0) -> BinaryIO:
        """Open a file for reading, perhaps only its end.

        Args:
            name: The name of the file. It must be a regular one: a pipe might never end.
            tail_bytes: How many bytes at the end of the file to read; 0 to read all.

        Returns:
            The open file, in which the caller may seek. It is at the first byte to read.

        Raises:
            StoreError: It cannot be read.
        """
        try:
            flags = os.O_RDONLY | NO_WAIT  # opening a pipe would wait for its writer
            file = os.fdopen(os.open(self._path / name, flags), "rb", CHUNK)
        except OSError as error:
            raise self._unreadable(name, error) from error
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            file.close()
            raise StoreError(f"{self._path / name} is not a regular file", "move it away")
        if tail_bytes:
            file.seek(max(0, status.st_size - tail_bytes))
        return file

    def publish(self, name: str, content: BinaryIO) -> bool:
        """Write a file, unless one of that name exists; others see it only when it is complete.

        The folder is created if necessary.

        Args:
            name: The name of the file.
            content: What to write, from its beginning.

        Returns:
            True if this call has written the file, which then survives a power cut; False if it
            existed, and was left as it was.

        Raises:
            OutputError: It cannot be written.
        """
        file = AtomicFile(make_folder(self._path) / name, display_name=self._path / name)
        try:
            content.seek(0)
            shutil.copyfileobj(content, file, CHUNK)
        except BaseException:
            file.discard()
            raise
        return file.commit_new()

    def write_note(self, name: str, content: bytes) -> None:
        """Try to write a file that is not a part of the run; the run goes on if that fails."""
        with contextlib.suppress(OSError, OutputError):
            write_file(self._path / name, content)

    def remove_note(self, name: str) -> None:
        """Try to remove a file that `write_note` has written; the run goes on if that fails."""
        with contextlib.suppress(OSError):
            (self._path / name).unlink()

    def _unreadable(self, name: str, error: OSError) -> StoreError:
        reason = f"cannot read {self._path / name}: {system_reason(error)}"
        return StoreError(reason, "check the path, its permissions and its disk")


OBJECT_IN_MEMORY = 64 << 20
"""Bytes of an object that is read that stay in memory; a larger one is kept on the disk."""


class ObjectFolder:
    """The objects in a bucket whose keys begin with one prefix, as `LocalFolder` has files.

    The bucket is opened when it is used.
    """

    def __init__(self, address: str) -> None:
        try:
            self._address = Address.parse(address if address.endswith("/") else f"{address}/")
            folder = self._address.key.removesuffix("/")
            if folder:
                checked(folder)
        except ObjectError as error:
            raise UsageError(f"--output {address}: {error}", error.hint) from None

    def __str__(self) -> str:
        return str(self._address)

    def names(self) -> Iterator[str]:
        yield from self.times()

    def times(self, begins: str = "") -> dict[str, float]:
        prefix = self._address.key
        times = {}
        with self._readable(""):
            for page in self._bucket.list(prefix):
                for key, _, time_s in page:
                    name = key.removeprefix(prefix)
                    if name.startswith(begins) and "/" not in name:
                        times[name] = time_s
        return times

    def exists(self, name: str) -> bool:
        with self._readable(name):
            return self._bucket.exists(self._address.key + name)

    def open(self, name: str, tail_bytes: int = 0) -> BinaryIO:
        file = tempfile.SpooledTemporaryFile(OBJECT_IN_MEMORY)  # noqa: SIM115 - the caller closes it
        try:
            with self._readable(name):
                for chunk in self._bucket.read(self._address.key + name, tail_bytes)[1]:
                    file.write(chunk)
        except BaseException:
            file.close()
            raise
        file.seek(0)
        return cast("BinaryIO", file)

    def publish(self, name: str, content: BinaryIO) -> bool:
        content.seek(0)
        try:
            self._bucket.write(self._address.key + name, content, replace=False)
        except ObjectExistsError:
            return False
        except ObjectError as error:
            raise OutputError(f"cannot write {self}{name}: {error}", error.hint) from None
        return True

    def write_note(self, name: str, content: bytes) -> None:
        with contextlib.suppress(ObjectError):
            self._bucket.write(self._address.key + name, content)

    def remove_note(self, name: str) -> None:
        with contextlib.suppress(ObjectError):
            self._bucket.delete(self._address.key + name)

    @cached_property
    def _bucket(self) -> Bucket:
        return Bucket(self._address.scheme, self._address.bucket)

    @contextlib.contextmanager
    def _readable(self, name: str) -> Iterator[None]:
        try:
            yield
        except ObjectError as error:
            raise StoreError(f"cannot read {self}{name}: {error}", error.hint) from None


Store = LocalFolder | ObjectFolder


def open_store(path_or_address: str) -> Store:
    """The store at a path, or at an address."""
    if is_object(path_or_address):
        return ObjectFolder(path_or_address)
    if "://" in path_or_address:
        raise UsageError(
            f"{public_name(path_or_address)} is not a folder for the parts of a run",
            "name one on a disk, or in a store as in s3://bucket/boxes/",
        )
    return LocalFolder(Path(path_or_address))


def noted_shards(store: Store, note: str) -> set[int]:
    """The shards that a run is processing, as its note says; none if that is gone or damaged."""
    with contextlib.suppress(StoreError, ValueError, TypeError), store.open(note) as file:
        numbers = json.loads(read_bounded(file, MAX_NOTE_BYTES))
        return {int(number) for number in numbers}
    return set()
