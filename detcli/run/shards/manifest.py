"""The manifest: the names of each shard and the settings of the run, written before it starts.

    manifest.jsonl         a header, a line for each shard, and a line that says how many there are
    manifest-00001.jsonl   the same for names that came later, whose shards are further ones

Each is published once, like the parts; part-00042.jsonl holds the records of shard 42. Shards have
the names in the order in which a run on one machine takes them, so that the parts one after the
other are what that run prints.

Names that are being written down are on the disk, in an unnamed file; a hash of 16 bytes is all
that memory holds of each.
"""

import contextlib
import hashlib
import json
import re
import weakref
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from typing import Any, BinaryIO, NamedTuple, Self, TypedDict

import numpy as np
import numpy.typing as npt

from detcli.core.config import differences
from detcli.core.errors import InputError, SourceError, StoreError, UsageError, system_reason
from detcli.core.record import SettingsJson
from detcli.core.text import public_name
from detcli.run.shards.store import Store, temporary, temporary_file_errors
from detcli.source.loading import Item, failed
from detcli.source.names import ListedInput
from detcli.source.sources import SourceEntry

LOT = 1000
"""Number of names in a line of the temporary file."""

HASH = np.dtype("S16")
Hashes = npt.NDArray[np.bytes_]
"""Hashes of names: `(N,)` S16, ascending, each once."""


class Unusable(NamedTuple):
    """A name that stood for no picture or video when the names were written down."""

    source: str  # the name, as in records
    message: str
    hint: str


Name = str | ListedInput | Unusable
"""The name or address of a picture or a video, perhaps with its meta, or the error in its place."""


def from_json(value: str | list[Any]) -> Name:
    if isinstance(value, str):
        return value
    source, message, rest = value
    if message is None:
        return ListedInput(str(source), None, json.dumps(json.loads(rest)))
    return Unusable(str(source), str(message), str(rest))


def to_entry(name: Name) -> SourceEntry:
    """A name as `Sources.open` takes it."""
    if isinstance(name, Unusable):
        return failed(name.source, SourceError(name.message, name.hint))
    return name


def address_of(name: Name) -> str | None:
    """The path or address; None in case of an error."""
    if isinstance(name, ListedInput):
        return name.name
    return name if isinstance(name, str) else None


def source_of(name: Name) -> str:
    """The name in records."""
    return name.source if isinstance(name, Unusable) else public_name(address_of(name) or "")


def meta_of(name: Name) -> str | None:
    """What a list in JSON Lines says of it, as JSON."""
    return name.meta if isinstance(name, ListedInput) else None


def hash_of(name: Name) -> bytes:
    text = name if isinstance(name, str) else "\0".join(map(str, name))
    data = text.encode("utf-8", "surrogatepass")
    # NumPy drops zeros at the end.
    return hashlib.blake2b(data, digest_size=HASH.itemsize - 1).digest() + b"."


class Names(contextlib.AbstractContextManager["Names"]):
    """The names of a source, in its order, each once."""

    def __init__(self, entries: Iterable[SourceEntry]) -> None:
        self._file = temporary()
        hashes, remaining = bytearray(), map(_as_name, entries)
        try:
            while lot := [*islice(remaining, LOT)]:
                for name in lot:
                    hashes += hash_of(name)
                with temporary_file_errors():
                    _write(self._file, lot)
            with temporary_file_errors():
                self._file.flush()
        except BaseException:
            self.__exit__()
            raise
        every = np.frombuffer(hashes, HASH)
        every.sort()  # in place: there may be many
        again = np.zeros(len(every), bool)
        again[1:] = every[1:] == every[:-1]
        self.hashes: Hashes = every[~again]
        self.repeated = int(again.sum())  # how many came again, and were left out
        self._again = {*every[again].tolist()}

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # what it could not write is not needed any more
            self._file.close()

    def __iter__(self) -> Iterator[Name]:
        """Yield the names; one iteration at a time."""
        self._file.seek(0)
        seen = set()
        for name in (from_json(value) for lot in self._file for value in json.loads(lot)):
            if self._again and (found := hash_of(name)) in self._again:
                if found in seen:
                    continue
                seen.add(found)
            yield name

    def __len__(self) -> int:
        return len(self.hashes)


def only(names: Iterable[Name], hashes: Hashes) -> Iterator[Name]:
    for name in names:
        found = np.bytes_(hash_of(name))
        at = int(np.searchsorted(hashes, found))
        if found in hashes[at : at + 1]:
            yield name


def _as_name(entry: SourceEntry) -> Name:
    """The name of an entry, or the error that is in its place."""
    if isinstance(entry, ListedInput):
        if entry.image is not None:
            raise UsageError(
                f"{entry.name}: a run in shards takes no pictures out of a list",
                "write the records to one file, or name pictures with path",
            )
        return entry.name if entry.meta is None else entry
    if not isinstance(entry, Item):
        return entry
    try:
        entry.load()
    except InputError as error:
        if error.outage_at == 1:  # it may be sound later
            raise error.about(entry.origin.source) from error
        return Unusable(entry.origin.source, str(error), error.hint)
    raise TypeError("an entry without a name is a failure")


FIRST = "manifest.jsonl"
NAME = re.compile(r"manifest(?:-([0-9]{5,18}))?\.jsonl")
PART = re.compile(r"part-([0-9]{5,18})(?:-([1-9][0-9]{0,8}))?\.(jsonl|parquet)")


class InputsJson(TypedDict):
    """The options of reading inputs that records depend on."""

    start_s: float
    end_s: float | None
    max_pixels: int
    strict: bool


class HeaderJson(TypedDict):
    """All that the records of a run depend on besides the names."""

    detcli: str  # the version
    format: str  # of the parts
    shard_size: int  # the last one may have fewer names
    settings: SettingsJson
    inputs: InputsJson


class Maker(NamedTuple):
    """What makes a part, as its end names it."""

    detcli: str
    model_sha256: str
    settings_sha256: str

    @classmethod
    def of(cls, version: str, settings: SettingsJson) -> Self:
        """That of a version with these settings."""
        written = json.dumps(settings, sort_keys=True).encode()
        return cls(version, settings["model_sha256"], hashlib.sha256(written).hexdigest())


@dataclass(frozen=True, slots=True)
class Shard:
    """The names that make one part."""

    number: int
    first: int  # how many names the shards before it have
    names: tuple[Name, ...]
    run: str  # the hash of its manifest, by which its part is known to belong to it
    maker: Maker | None = None  # what makes its part
    inputs: tuple[int, ...] = ()  # the numbers of the names in the run, if they are not all
    turn: int = 0  # of --retry-failed, whose part then has only these names

    @property
    def numbers(self) -> Sequence[int]:
        """The numbers of its names in the run."""
        return self.inputs or range(self.first, self.first + len(self.names))


@dataclass(frozen=True, slots=True)
class Section:
    """One file of the manifest."""

    name: str
    file: BinaryIO
    header: HeaderJson  # its first line
    run: str  # SHA-256 of the file, 16 digits
    shard: int  # the number of its first shard
    first: int  # how many names the sections before it have
    offsets: "array[int]"  # where the line of each shard begins


class Manifest:
    """A manifest that has been published, with its extensions.

    Raises:
        UsageError: There is none, or it is damaged.
        StoreError: It cannot be read.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        found = sorted(
            (int(match[1] or 0), name) for name in store.names() if (match := NAME.fullmatch(name))
        )
        if not found or found[0][1] != FIRST:
            raise UsageError(
                f"{store} has no {FIRST}, so it is not the output of a run in shards",
                "name the folder that was given to predict --output",
            )
        self._sections: list[Section] = []
        self.names = self._shards = 0
        for number, name in found:
            if number != len(self._sections):
                raise self._damaged(name, f"{file_name(number - 1)} is missing")
            self._read(name)
        self.header = self._sections[0].header
        self._maker = Maker.of(self.header["detcli"], self.header["settings"])

    def __len__(self) -> int:
        return self._shards

    def __iter__(self) -> Iterator[Shard]:
        return map(self.shard, range(len(self)))

    def all_names(self) -> Iterator[Name]:
        return chain.from_iterable(shard.names for shard in self)

    def shard(self, number: int) -> Shard:
        at = bisect_right(self._sections, number, key=lambda section: section.shard) - 1
        section = self._sections[at]
        within = number - section.shard
        with self._readable(section.name):
            section.file.seek(section.offsets[within])
            fields = json.loads(section.file.readline())
            names = tuple(map(from_json, fields["names"]))
            if fields["shard"] != number:
                raise ValueError("it has changed")
        first = section.first + within * section.header["shard_size"]
        return Shard(number, first, names, section.run, self._maker)

    @cached_property
    def hashes(self) -> Hashes:
        hashes = np.fromiter(map(hash_of, self.all_names()), HASH)
        hashes.sort()
        return hashes

    @property
    def next_file(self) -> str:
        return file_name(len(self._sections))

    def part(self, number: int, turn: int = 0) -> str:
        """Name of a shard's part, or of what a turn of --retry-failed adds to it."""
        return f"part-{number:05}{f'-{turn}' * (turn > 0)}.{self.header['format']}"

    def parts(self) -> dict[int, int]:
        """The shards whose part has been published, and the last turn of --retry-failed."""
        found: dict[int, set[int]] = {}
        for match in filter(None, map(PART.fullmatch, self._store.names())):
            number, turn = int(match[1]), int(match[2] or 0)
            if self.part(number, turn) == match[0]:
                found.setdefault(number, set()).add(turn)
        return {number: max(turns) for number, turns in found.items() if 0 in turns}

    def _read(self, name: str) -> None:
        """Look through one file, which stays open: stores may have to fetch it anew."""
        digest, offsets, names = hashlib.sha256(), array("Q"), 0
        file = self._store.open(name)
        weakref.finalize(self, file.close)
        with self._readable(name):
            line = file.readline()
            header = json.loads(line)
            if not _is_header(header):
                raise ValueError("it has no header")
            end: Any = None
            while line:
                digest.update(line)
                at = file.tell()
                if line := file.readline():
                    end = json.loads(line)
                    if "shard" in end:
                        offsets.append(at)
                        names += len(end["names"])
            if end != {"shards": len(offsets), "names": names}:
                raise ValueError("its end is missing")
        run = digest.hexdigest()[:16]
        section = Section(name, file, header, run, self._shards, self.names, offsets)
        self._sections.append(section)
        self._shards += len(offsets)
        self.names += names

    @contextmanager
    def _readable(self, name: str) -> Iterator[None]:
        """Say what is wrong with a file that cannot be read."""
        try:
            yield
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise self._damaged(name, str(error)) from error
        except OSError as error:
            reason = f"cannot read {name} in {self._store}: {system_reason(error)}"
            raise StoreError(reason, "check its disk") from error

    def _damaged(self, name: str, reason: str) -> UsageError:
        return UsageError(
            f"{name} in {self._store} is damaged: {reason}",
            "restore it, or write to another folder",
        )


def _is_header(fields: Any) -> bool:  # noqa: ANN401 - JSON
    """Whether these are the fields of a header, as far as they are used without comparing them."""
    return (
        HeaderJson.__annotations__.keys() <= {*fields}
        and type(fields["shard_size"]) is int
        and fields["shard_size"] > 0
        and fields["format"] in {"jsonl", "parquet"}
        and isinstance(fields["settings"], dict)
        and isinstance(fields["inputs"], dict)
    )


def file_name(number: int) -> str:
    """Name of a manifest's first file, or of an extension, which are numbered from 1."""
    return f"manifest-{number:05}.jsonl" if number else FIRST


def publish(
    store: Store, name: str, header: HeaderJson, names: Iterable[Name], shard: int = 0
) -> bool:
    """Write one file of a manifest, from shard number `shard` on; False if it exists already."""
    remaining, shards, count = iter(names), 0, 0
    with temporary_file_errors(), temporary() as file:
        _write(file, header)
        while lot := [*islice(remaining, header["shard_size"])]:
            _write(file, {"shard": shard + shards, "names": lot})
            shards, count = shards + 1, count + len(lot)
        _write(file, {"shards": shards, "names": count})
        return store.publish(name, file)


def _write(file: BinaryIO, fields: Any) -> None:  # noqa: ANN401 - JSON
    file.write(json.dumps(fields).encode("ascii") + b"\n")


MAX_SHARD, MIN_SHARD, SHARDS = 1000, 16, 64
"""Most and fewest names in a shard, and the number of shards that a short run is cut into."""

EXAMPLES = 3
"""Names that an error shows."""


@dataclass(frozen=True, slots=True)
class OpenedRun:
    """A run in shards that workers can now work."""

    manifest: Manifest
    added: int = 0  # names that this call added to the manifest
    repeated: int = 0  # names that the inputs repeat; each counts once
    gone: int = 0  # names in the manifest that the inputs no longer have


def begin(
    store: Store,
    header: HeaderJson,
    entries: Iterable[SourceEntry] | None,
    shard_size: int | None = None,
    *,
    extend: bool = False,
) -> OpenedRun:
    """Write the manifest, or compare the existing one with what would be written now.

    Args:
        store: Where manifest and parts are.
        header: The settings; its shard size is set here.
        entries: What the sources stand for; None to take the manifest's names.
        shard_size: Names in a shard; None for the manifest's, or what suits the number of names.
        extend: Whether names that the manifest lacks become further shards.

    Raises:
        UsageError: The manifest was made with other settings or names; or there are parts without
            a manifest; or there are neither inputs nor a manifest.
        StoreError: The store cannot be read.
        OutputError: The manifest cannot be written.
    """
    with Names(_checked(entries or ())) as names:
        begun = False
        if not store.exists(FIRST):
            if entries is None:
                raise UsageError(
                    f"no inputs given, and {store} has no {FIRST} to go on with",
                    "name pictures or videos, or use --files-from",
                )
            if (part := next(filter(PART.fullmatch, store.names()), None)) is not None:
                raise UsageError(
                    f"{store} has parts, such as {part}, but no {FIRST}",
                    "restore it, or write to another folder",
                )
            size = shard_size or max(MIN_SHARD, min(MAX_SHARD, -(-len(names) // SHARDS)))
            begun = publish(store, FIRST, {**header, "shard_size": size}, names)
        manifest = Manifest(store)
        require_same(store, manifest.header, header, shard_size)
        if entries is None or begun:
            return OpenedRun(manifest, len(names), names.repeated)
        return _go_on(store, manifest, names, extend=extend)


def _go_on(store: Store, manifest: Manifest, names: Names, *, extend: bool) -> OpenedRun:
    """Compare the names with the manifest's, and add the new ones if `extend` says so."""
    added = 0
    while True:
        new = np.setdiff1d(names.hashes, manifest.hashes, assume_unique=True)
        gone = np.setdiff1d(manifest.hashes, names.hashes, assume_unique=True)
        sides = (("new", new, names), ("gone", gone, manifest.all_names()))
        different = [
            f"{len(hashes)} {what}: {shortened(map(source_of, only(every, hashes)), len(hashes))}"
            for what, hashes, every in sides
            if len(hashes) and not extend
        ]
        if different:
            raise UsageError(
                f"{store} was begun with other names: {'; '.join(different)}",
                "name the same inputs, or make new ones further shards with --extend",
            )
        if not len(new):
            return OpenedRun(manifest, added, names.repeated, len(gone))
        added = len(new)
        if not publish(store, manifest.next_file, manifest.header, only(names, new), len(manifest)):
            added = 0  # another process has extended it meanwhile
        manifest = Manifest(store)


def _checked(entries: Iterable[SourceEntry]) -> Iterator[SourceEntry]:
    """Refuse addresses that hold a password or token, which the manifest would show."""
    for entry in entries:
        name = entry.name if isinstance(entry, ListedInput) else entry
        if (
            isinstance(name, str)
            and ("://" in name or "@" in name)  # a glance, as there may be millions
            and public_name(name) != name
        ):
            raise UsageError(
                f"{public_name(name)}: a manifest would show the password or token of its address",
                "name addresses without any; credentials belong into the environment",
            )
        yield entry


def require_same(
    store: Store, earlier: HeaderJson, now: HeaderJson, shard_size: int | None = None
) -> None:
    """Refuse to go on with other settings."""
    now = {**now, "shard_size": shard_size or earlier["shard_size"]}
    if different := differences(_flat(earlier), _flat(now)):
        raise UsageError(
            f"{store} was begun with {', '.join(different)}",
            "use the same settings, or write to another folder",
        )


def _flat(header: HeaderJson) -> dict[str, Any]:
    return {**header, **header["settings"], **header["inputs"], "settings": None, "inputs": None}


def shortened(sources: Iterator[str], count: int) -> str:
    """The first of some names."""
    return ", ".join(islice(sources, EXAMPLES)) + ", ..." * (count > EXAMPLES)
