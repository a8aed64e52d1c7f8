"""Names: what the inputs stand for when a run begins, each once, in little memory.

The names are on the disk, in an unnamed file; a hash of 16 bytes is all that memory holds of each.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from detcli.errors import InputError, SourceError
from detcli.shards.store import temporary, temporary_file_errors
from detcli.source.loading import Item, failed
from detcli.source.sources import SourceEntry
from detcli.text import public_name

LOT = 1000
"""Number of names in a line of the temporary file."""

HASH = np.dtype("S16")
Hashes = npt.NDArray[np.bytes_]
"""Hashes of names: `(N,)` S16, ascending, each once."""


@dataclass(frozen=True, slots=True)
class Unusable:
    """A name that stood for no picture or video when the names were written down."""

    source: str  # the name, as in records
    message: str
    hint: str


Name = str | Unusable
"""The name or address of a picture or a video, or the error in its place."""


def to_json(name: Name) -> str | list[str]:
    """A name as JSON holds it."""
    return name if isinstance(name, str) else [name.source, name.message, name.hint]


def from_json(value: str | list[str]) -> Name:
    """A name from what JSON holds.

    Raises:
        TypeError: It is something else.
    """
    if isinstance(value, str):
        return value
    source, message, hint = map(str, value)
    return Unusable(source, message, hint)


def to_entry(name: Name) -> SourceEntry:
    """A name as `Sources.open` takes it."""
    if isinstance(name, str):
        return name
    return failed(name.source, SourceError(name.message, name.hint))


def source_of(name: Name) -> str:
    """The name in records."""
    return public_name(name) if isinstance(name, str) else name.source


def hash_of(name: Name) -> bytes:
    """A hash, by which names are compared."""
    text = name if isinstance(name, str) else f"{name.source}\0{name.message}\0{name.hint}"
    data = text.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=HASH.itemsize).digest()


def sorted_hashes(hashes: bytearray) -> Hashes:
    """Hashes in order, from what `hash_of` returned of each name."""
    found = np.frombuffer(hashes, HASH) if hashes else np.empty(0, HASH)
    found.sort()  # in place: there may be many
    return found


class Names(contextlib.AbstractContextManager["Names"]):
    """The names of a source, in its order, each once.

    Attributes:
        hashes: Of the names.
        repeated: How many came again, and were left out.

    Raises:
        OutputError: The disk for temporary files is full.
    """

    def __init__(self, entries: Iterable[SourceEntry]) -> None:
        self._file = temporary()
        hashes, remaining = bytearray(), map(_as_name, entries)
        try:
            while lot := [*islice(remaining, LOT)]:
                for name in lot:
                    hashes += hash_of(name)
                with temporary_file_errors():
                    self._file.write(json.dumps([*map(to_json, lot)]).encode("ascii") + b"\n")
            with temporary_file_errors():
                self._file.flush()
        except BaseException:
            self.__exit__()
            raise
        every = sorted_hashes(hashes)
        again = np.append(np.zeros(min(1, len(every)), bool), every[1:] == every[:-1])
        self.hashes: Hashes = every[~again] if again.any() else every
        self.repeated = int(again.sum())
        self._again = {bytes(one) for one in every[again]}

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # what it could not write is not needed any more
            self._file.close()

    def __iter__(self) -> Iterator[Name]:
        """Yield the names; one iteration at a time."""
        self._file.seek(0)
        names = (from_json(value) for lot in self._file for value in json.loads(lot))
        if not self._again:
            yield from names
            return
        seen = set()
        for name in names:
            found = hash_of(name).rstrip(b"\0")  # as NumPy has it
            if found in seen:
                continue
            if found in self._again:
                seen.add(found)
            yield name

    def __len__(self) -> int:
        """Number of names."""
        return len(self.hashes)


def only(names: Iterable[Name], hashes: Hashes) -> Iterator[Name]:
    """Yield the names that have one of these hashes."""
    for name in names:
        found = hash_of(name).rstrip(b"\0")  # as NumPy has it
        at = int(np.searchsorted(hashes, np.bytes_(found)))
        if at < len(hashes) and hashes[at] == found:
            yield name


def _as_name(entry: SourceEntry) -> Name:
    """The name of an entry, or the error that is in its place."""
    if not isinstance(entry, Item):
        return entry
    try:
        entry.load()
    except InputError as error:
        return Unusable(entry.origin.source, str(error), error.hint)
    raise TypeError("an entry without a name is a failure")
