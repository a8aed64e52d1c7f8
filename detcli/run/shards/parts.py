"""Parts: the records of one shard in one file, whose last record has its run, count and digest.

So a part that was cut off or changed is noticed, whichever line is missing, and so is one that
belongs to another run. Merging goes through the parts in the manifest's order, and lists what is
missing or wrong.
"""

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import cast

from detcli.core import frozen
from detcli.core.errors import CheckError, StoreError, system_reason
from detcli.core.lines import bounded_lines
from detcli.core.text import format_kinds, kind_of, pluralize
from detcli.data.record import PartJson, RecordJson, name_of, to_record
from detcli.run.shards.manifest import Manifest, Shard, shortened
from detcli.run.shards.store import Store
from detcli.sink.text import encode
from detcli.source.listing import Name, address_of, as_it_is, hash_of, meta_of, source_of
from detcli.source.names import is_address, is_archive, is_video, path_of
from detcli.storage.files import temporary, temporary_file_errors

DAMAGE = (ValueError, LookupError, TypeError, AttributeError, RuntimeError, MemoryError)
"""What reading a damaged file may raise, besides OSError."""

END = 1 << 16
"""Bytes at the end of a part that tell what it is."""


class TornError(Exception):
    """A part is not what was published; the message says why."""


class PartWriter(AbstractContextManager["PartWriter"]):
    """Collects the records of a shard in a temporary file, and publishes them as its part."""

    def __init__(self, shard: Shard) -> None:
        self.count = 0
        self._shard = shard
        self._last: RecordJson | None = None  # not written yet, as it gets a field
        self._digest = hashlib.sha256()
        self._failed: Counter[str] = Counter()
        self._file = temporary()

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._file.close()

    def add(self, record: RecordJson) -> None:
        """Add a record; its index becomes its place in the run, if that has no videos before it."""
        self._write_last()
        self._last = {**record, "index": self._shard.first + self.count}
        self._digest.update(_digested(self._last))
        self._failed.update(_kinds(record))
        self.count += 1

    def content(self) -> bytes:
        self._write_last()
        with temporary_file_errors():
            self._file.seek(0)
            return self._file.read()

    def publish(self, store: Store, name: str) -> bool:
        """Publish the records as a part."""
        part = {
            "shard": self._shard.number,
            "run": self._shard.run,
            "records": self.count,
            "sha256": self._digest.hexdigest(),
            "failed": dict(sorted(self._failed.items())),
            "made_by": self._shard.fingerprint,
        }
        with temporary_file_errors():
            # Videos may have no frames, and a part no record.
            self._last = cast("RecordJson", {**(self._last or {}), "part": part})
            self._write_last()
            return store.publish(name, self._file)

    def _write_last(self) -> None:
        if self._last is not None:
            with temporary_file_errors():
                self._file.write(f"{encode(self._last)}\n".encode())
            self._last = None


def read(store: Store, name: str, shard: Shard) -> Iterator[RecordJson]:
    """Yield the records of a part.

    Raises:
        TornError: The part is not what was published for this shard; raised at the end at the
            latest.
        StoreError: The part cannot be read.
    """
    digest, count = hashlib.sha256(), 0
    part: PartJson | None = None
    try:
        with store.open(name) as file:
            for line in bounded_lines(file):
                record = json.loads(line)
                if part is not None:
                    raise TornError("it goes on after its end")
                part = record.pop("part", None)
                if "source" in record:
                    digest.update(_digested(record))
                    yield to_record(record)
                    count += 1
    except OSError as error:
        raise StoreError(
            f"cannot read {name} in {store}: {system_reason(error)}", "check its disk"
        ) from error
    except DAMAGE as error:
        raise TornError(f"it is damaged, in record {count + 1}: {error}") from error
    if part is None:
        raise TornError("its end is missing")
    _require_made(part, shard)
    if (part.get("records"), part.get("sha256")) != (count, digest.hexdigest()):
        raise TornError("it has changed")


def _require_made(part: PartJson, shard: Shard) -> None:
    """Require that a part was made of a shard, by what its manifest names."""
    if (part.get("run"), part.get("shard")) != (shard.run, shard.number):
        raise TornError("it belongs to another run")
    if part.get("made_by", shard.fingerprint) != shard.fingerprint:
        raise TornError("it was made by another model, other settings or another version")


def survey(store: Store, manifest: Manifest, shards: Iterable[int]) -> dict[int, Counter[str]]:
    """How many records have an error, by its kind, in those of some shards that are done.

    As the ends of the parts say; none of a torn one, of which `Merge` tells.
    """

    def failures(shard: int) -> Counter[str]:
        name = manifest.part(shard, there[shard])
        with contextlib.suppress(OSError, *DAMAGE), store.open(name, END) as file:
            end = file.read()
            return Counter(json.loads(end[end.rindex(b'"part": {') + 8 :].rstrip()[:-1])["failed"])
        return Counter()

    there = manifest.parts()
    done = [shard for shard in shards if shard in there]
    with ThreadPoolExecutor() as pool:
        return dict(zip(done, pool.map(failures, done), strict=True))


def shown(failed: Counter[str]) -> str:
    """How many records are errors, and the most frequent kinds."""
    return f"{pluralize(failed.total(), 'record')} with an error: {format_kinds(failed)}"


def _kinds(record: RecordJson) -> Iterator[str]:
    """The kind of error that a record has, if it has one."""
    match record:
        case {"error": {"type": str(kind), "message": str(message)}}:
            yield kind_of(message, kind)


def _digested(record: RecordJson) -> bytes:
    """What the digest of a part is of; records of version 1 may hold halves of characters."""
    plain = {**record, "source": _as_utf8(record["source"])}
    return f"{encode(plain)}\n".encode("utf-8", "backslashreplace")


def _as_utf8(source: str) -> str:
    """A name as UTF-8 can hold it: escapes stand for halves of characters."""
    return source.encode("utf-8", "backslashreplace").decode()


@frozen
class Stored:
    """A record that was read back, as sinks of records take it."""

    fields: RecordJson

    def to_json(self) -> RecordJson:
        return self.fields


@frozen
class Fault:
    """A part that is missing or damaged."""

    part: str
    reason: str
    names: int  # that it should have
    missing: bool


class Merge:
    """The records of all parts, one after the other; memory does not grow with their number."""

    def __init__(self, store: Store, manifest: Manifest) -> None:
        self.count = 0  # records so far
        self.failed: Counter[str] = Counter()  # those with an error, by its kind
        self._store, self._manifest = store, manifest
        self.faults: list[Fault] = []  # complete after the last record
        self._there = manifest.parts()
        if len(self._there) < len(manifest):
            for shard in manifest:
                if shard.number not in self._there:
                    self._add_fault(
                        shard, f"missing: {shortened(shard.names, len(shard.names))}", missing=True
                    )

    def _add_fault(self, shard: Shard, reason: str, *, missing: bool = False) -> None:
        part = self._manifest.part(shard.number)
        self.faults.append(Fault(part, reason, len(shard.names), missing))

    def __iter__(self) -> Iterator[RecordJson]:
        """Yield the records, as one run on one machine prints them."""
        renewed = self._manifest.renewed()
        for shard in self._manifest:
            try:
                for record in self._records(shard):
                    name = shard.names[record["input"] - shard.first]
                    if renewed and renewed.get(hash_of(name), 0) > shard.number:
                        continue
                    record["index"] = self.count
                    record.pop("file_stamp", None)  # which a run into one file has not
                    self.count += 1
                    self.failed.update(_kinds(record))
                    yield record
            except TornError as error:
                self._add_fault(shard, str(error))

    def _records(self, shard: Shard) -> Iterator[RecordJson]:
        """The records of one part, each checked against the manifest's name for it."""
        part, names = self._manifest.part(shard.number), enumerate(shard.names, shard.first)
        number, name = -1, cast("Name", "")
        again = self._again(shard)
        for record in read(self._store, part, shard):
            now = [record]
            if number < 0 or not (_has_frames(name) and _is_of(record, name)):
                number, name = _next(names, record)
                now = again.get(number, now)
            elif number in again:
                continue
            for one in now:
                one["input"] = number
                yield one
        if (left := next((name for _, name in names if not _has_frames(name)), None)) is not None:
            raise TornError(f"{source_of(left)} has no record")

    def _again(self, shard: Shard) -> dict[int, list[RecordJson]]:
        """The records, by their inputs, that --retry-failed has made in place of errors."""
        found: dict[int, list[RecordJson]] = {}
        for attempt in range(1, self._there.get(shard.number, 0) + 1):
            part = self._manifest.part(shard.number, attempt)
            made: dict[int, list[RecordJson]] = {}
            try:
                for record in read(self._store, part, shard):
                    its = _is_of(record, shard.names[record["input"] - shard.first])
                    made.setdefault(record["input"] if its else -1, []).append(record)
            except (TornError, *DAMAGE) as error:
                raise TornError(f"{part}: {error}") from error
            if -1 in made:
                raise TornError(f"{part} has records of other names")
            found |= made
        return found

    def retried(self) -> dict[bytes, str | None]:
        """Stamps of the files that --retry-failed has worked, by the hashes of their names.

        Nothing is said of a damaged part, see `__iter__`.
        """
        stamps: dict[bytes, str | None] = {}
        for number, attempt in self._there.items():
            if not attempt:
                continue
            shard = self._manifest.shard(number)
            with contextlib.suppress(TornError):
                for place, records in self._again(shard).items():
                    name = shard.names[place - shard.first]
                    stamps[hash_of(name)] = records[0].get("file_stamp")
        return stamps

    def failing(self, number: int) -> Shard:
        """What --retry-failed has to work of a shard: the names that have a record with an error.

        Raises:
            CheckError: Its part is damaged.
            StoreError: It cannot be read.
        """
        shard = self._manifest.shard(number)
        try:
            failed = (record["input"] for record in self._records(shard) if "error" in record)
            inputs = tuple(dict.fromkeys(failed))
        except TornError as error:
            hint = "remove it; the command without --retry-failed makes it again"
            raise CheckError(f"{self._manifest.part(number)}: {error}", hint) from error
        names = tuple(as_it_is(shard.names[one - shard.first]) for one in inputs)
        return replace(shard, names=names, inputs=inputs, attempt=self._there[number] + 1)


def _next(names: Iterator[tuple[int, Name]], record: RecordJson) -> tuple[int, Name]:
    """Name and number of a record's input: the next one, but for videos, which may be empty."""
    for number, name in names:
        if _is_of(record, name):
            return number, name
        if not _has_frames(name):
            raise TornError(
                f"found a record for {record['source']} where {source_of(name)} was expected"
            )
    raise TornError(f"{record['source']} is not among its names")


def _is_of(record: RecordJson, name: Name) -> bool:
    meta = json.dumps(record["meta"]) if "meta" in record else None
    if meta != meta_of(name):
        return False
    if (found := name_of(record)) == name:  # the cheap test first, as there may be millions
        return True
    # The name of an existing file may look like a password; it may have been removed since.
    sources = source_of(name), _as_utf8(source_of(name))
    inside = is_archive(sources[0]) and found.startswith(tuple(f"{one}/" for one in sources))
    return inside or found in sources


def _has_frames(name: Name) -> bool:
    address = address_of(name) or ""
    path = path_of(address) if is_address(address) else address
    return is_video(path) or is_archive(path)
