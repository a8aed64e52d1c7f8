"""Listing: the names of a source, each once, written down before any is opened.

They are on the disk, in an unnamed file; a hash of 16 bytes is all that memory holds of each.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from detcli.core.errors import InputError, SourceError, UsageError
from detcli.core.text import public_name
from detcli.source.loading import Item, failed_item
from detcli.source.names import ListedInput
from detcli.source.reading import VersionedPath, stamp_of
from detcli.source.sources import SourceEntry
from detcli.storage.temporary import temporary, temporary_file_errors

NAMES_IN_LINE = 1000  # names per line of the temporary file

HASH = np.dtype("S16")
Hashes = npt.NDArray[np.bytes_]  # hashes of names: `(N,)` S16, ascending, each once


class Unusable(NamedTuple):
    """A name that stood for no image or video when the names were written down."""

    source: str  # the name, as in records
    message: str
    hint: str


Name = str | ListedInput | Unusable
"""The name or address of an image or video, perhaps with metadata, or the error in its place."""


def to_json(name: Name) -> Any:  # noqa: ANN401 - JSON
    """Return a name as JSON, from which `from_json` restores it.

    There are five forms. A stamp is the size and time of a file, by which a change is noticed. The
    forms without a stamp need no conversion: JSON writes a named tuple as a list of its fields.

        a path or address             PATH
        the same with a stamp         [PATH, STAMP]
        a line of a list              [PATH, null, META]
        the same with a stamp         [PATH, null, META, STAMP]
        an error in place of a name   [NAME, MESSAGE, HINT]

    The null is the `image` of the line: a line that contains an image is refused before.
    """
    if isinstance(name, VersionedPath):
        return [name, name.stamp]
    if isinstance(name, ListedInput) and isinstance(name.name, VersionedPath):
        path = name.name
        return [path, name.image, name.meta, path.stamp]
    return name  # a string, or a named tuple without a stamp


def from_json(value: str | list[Any]) -> Name:
    """Return the name that `to_json` wrote, in one of the forms that are listed there.

    Lines of a list and errors are told apart by the second value: null for a line, and otherwise
    the message of an error. The metadata of a line have to be JSON. Any more values after those of
    the last two forms are ignored.

    Raises:
        ValueError, TypeError: The value is in none of the forms.
    """
    match value:
        case str():
            return value
        case [path, stamp]:
            return VersionedPath.of(str(path), str(stamp))
        case [path, None, meta]:
            return ListedInput(str(path), None, json.dumps(json.loads(meta)))
        case [path, None, meta, stamp, *_]:
            stamped_path = VersionedPath.of(str(path), str(stamp))
            return ListedInput(stamped_path, None, json.dumps(json.loads(meta)))
        case [source, message, hint, *_]:
            return Unusable(str(source), str(message), str(hint))
    raise ValueError("not a name as it is written down")


def stamp_in(name: Name) -> str | None:
    """The stamp that a name was written down with; None if it has none."""
    address = address_of(name)
    if isinstance(address, VersionedPath):
        return address.stamp
    return None


def with_stamp(name: Name, stamp: str) -> Name:
    """The name with a stamp in place of the one that it may have."""
    if isinstance(name, ListedInput):
        return name._replace(name=VersionedPath.of(name.name, stamp))
    if isinstance(name, Unusable):
        return name
    return VersionedPath.of(name, stamp)


def without_stamp(name: Name) -> Name:
    """Return a name without its stamp: it then means the file as it is now."""
    if isinstance(name, ListedInput):
        return name._replace(name=str(name.name))
    if isinstance(name, VersionedPath):
        return str(name)
    return name


def to_entry(name: Name) -> SourceEntry:
    """A name as `Sources.open` takes it."""
    if isinstance(name, Unusable):
        return failed_item(name.source, SourceError(name.message, name.hint))
    return name


def address_of(name: Name) -> str | None:
    """The path or address; None in case of an error."""
    if isinstance(name, ListedInput):
        return name.name
    if isinstance(name, str):
        return name
    return None


def source_of(name: Name) -> str:
    """The name in records."""
    if isinstance(name, Unusable):
        return name.source
    return public_name(address_of(name) or "")


def meta_of(name: Name) -> str | None:
    """What a list in JSON Lines says about it, as JSON."""
    if isinstance(name, ListedInput):
        return name.meta
    return None


def hash_of(name: Name, *, stamped: bool = False) -> bytes:
    """Return the hash that tells a name from others, in `HASH.itemsize` bytes.

    Args:
        name: The name. All fields of a line of a list or of an error are hashed.
        stamped: Whether the stamp (size and time of the file) is hashed, too, so that a file that
            has changed counts as a different input.
    """
    if isinstance(name, str):
        text = name
    else:
        text = "\0".join(str(field) for field in name)
    if stamped:
        stamp = stamp_in(name)
        if stamp is not None:
            text += f"\0{stamp}"
    data = text.encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(data, digest_size=HASH.itemsize - 1).digest()
    return digest + b"."  # NumPy drops zeros at the end of an element, which a digest may have


HashOf = Callable[[Name], bytes]


def contains(hashes: Hashes, name_hash: bytes) -> bool:
    """Return whether a hash is among sorted hashes, by a binary search."""
    index = int(np.searchsorted(hashes, np.bytes_(name_hash)))
    return index < len(hashes) and bytes(hashes[index]) == name_hash


class Names(contextlib.AbstractContextManager["Names"]):
    """The names of a source, in its order, each once; see `hash_of` for `stamped`."""

    def __init__(self, entries: Iterable[SourceEntry], *, stamped: bool = False) -> None:
        """Write the names of the entries to a temporary file, and find out which are repeated.

        Args:
            entries: The files and addresses of a source.
            stamped: Whether a file counts as a different name once its size or time has changed,
                see `hash_of`.
        """
        self.hash_of = partial(hash_of, stamped=stamped)
        self._file = temporary()
        try:
            hash_bytes = self._write_names(entries)
        except BaseException:
            self._close()
            raise

        # In sorted order, equal hashes are neighbours.
        all_hashes = np.frombuffer(hash_bytes, HASH)
        all_hashes.sort()  # in place: there may be many
        equals_previous = np.zeros(len(all_hashes), bool)
        equals_previous[1:] = all_hashes[1:] == all_hashes[:-1]
        self.hashes: Hashes = all_hashes[~equals_previous]
        self.repeated = int(equals_previous.sum())  # how many are repeated, and are left out
        self._repeated_hashes = set(all_hashes[equals_previous].tolist())

    def _write_names(self, entries: Iterable[SourceEntry]) -> bytearray:
        """Write the names of the entries to the temporary file, and return their hashes.

        Each line of the file is a JSON array of NAMES_IN_LINE names; the last one may be shorter.

        Returns:
            The hashes of all names in their order, `HASH.itemsize` bytes each.
        """
        hashes = bytearray()
        names = (_checked_name(entry) for entry in entries)
        while names_of_line := list(islice(names, NAMES_IN_LINE)):
            for name in names_of_line:
                hashes += self.hash_of(name)
            line = json.dumps([to_json(name) for name in names_of_line])
            with temporary_file_errors():
                self._file.write(line.encode("ascii") + b"\n")
        with temporary_file_errors():
            self._file.flush()
        return hashes

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        """Close the temporary file, which removes it."""
        with contextlib.suppress(OSError):  # what it could not write is no longer needed
            self._file.close()

    def __iter__(self) -> Iterator[Name]:
        """Yield the names in the order of the file, each once; only one iteration at a time.

        Which hashes occur more than once is already known, so only these are remembered here.
        """
        if not self._repeated_hashes:  # so that no hash is needed
            yield from self._stored_names()
            return
        yielded_hashes: set[bytes] = set()  # hashes of repeated names
        for name in self._stored_names():
            name_hash = self.hash_of(name)
            if name_hash in yielded_hashes:
                continue
            if name_hash in self._repeated_hashes:
                yielded_hashes.add(name_hash)
            yield name

    def _stored_names(self) -> Iterator[Name]:
        """Read the names from the file, with those that come again."""
        self._file.seek(0)
        for line in self._file:
            for value in json.loads(line):
                yield from_json(value)

    def __len__(self) -> int:
        return len(self.hashes)

    def only(self, hashes: Hashes, names: Iterable[Name]) -> Iterator[Name]:
        """Yield those of the names whose hash is among these."""
        for name in names:
            if contains(hashes, self.hash_of(name)):
                yield name


def _checked_name(entry: SourceEntry) -> Name:
    """Check an entry of a source, and return its name as a run in shards writes it down.

    The name of a file has a stamp. A line of a list without metadata becomes its path or address.
    If the entry cannot be read, the error is written down in place of its name.

    Args:
        entry: A path or address, a line of a list, or the `Item` of what cannot be read.

    Raises:
        UsageError: A line of a list contains an image, or the address contains a password.
        InputError: The entry cannot be read now, but perhaps later.
    """
    if isinstance(entry, Item):
        return _permanent_error(entry)
    name: Name = entry
    if isinstance(entry, str):
        address = entry
    elif entry.image is not None:
        raise UsageError(
            f"{entry.name}: a run in shards takes no images out of a list",
            "write the records to one file, or name images with path",
        )
    else:
        address = entry.name
        if entry.meta is None:
            name = address

    # Looking for signs of an address is fast, and there may be millions of names.
    may_have_password = "://" in address or "@" in address
    if may_have_password and public_name(address) != address:
        raise UsageError(
            f"{public_name(address)}: a manifest would show the password or token of its address",
            "name addresses without any; credentials belong into the environment",
        )
    return _with_present_stamp(name, address)


def _with_present_stamp(name: Name, address: str) -> Name:
    """Add the current size and time of a file to its name, so that a later change is noticed.

    Args:
        name: The name: a path, an address, or a line of a list.
        address: The path or address in it; a `VersionedPath` if it has a stamp already.

    Returns:
        The name with this stamp. It is returned unchanged if there is no such file, or if it
        already has a stamp: objects in a store get theirs when they are listed.
    """
    has_stamp = isinstance(address, VersionedPath)
    if has_stamp:
        return name
    try:
        stamp = stamp_of(os.stat(address))  # noqa: PTH116 - Path is slow for millions of names
    except (OSError, ValueError):  # it is an address, or will be an error
        return name
    return with_stamp(name, stamp)


def _permanent_error(failed: Item) -> Unusable:
    """Return the error of an entry that cannot be read, as a run in shards writes it down.

    Only an error that stays the same is written down. One that may be gone later, as when there is
    no network, is raised.

    Args:
        failed: An item as `failed_item` makes it: it has no image, and loading it raises the error.

    Raises:
        InputError: The error may be gone later.
    """
    source = failed.origin.source
    try:
        failed.load()
    except InputError as error:
        # `outage_at` is how many errors of a kind in a row are blamed on an outage. If one is
        # enough, it is the network or mount that fails, and not this entry.
        is_outage = error.outage_at == 1
        if is_outage:
            raise error.about(source) from error
        return Unusable(source, str(error), error.hint)
    raise TypeError("an item among the entries must be one of `failed_item`, whose loading fails")
