"""Parts: the records of one shard in one file, whose last record has its run, count and digest.

So a part that was cut off or changed is noticed, whichever line is missing, and so is one that
belongs to another run. Merging goes through the parts in the manifest's order, and lists what is
missing or wrong.
"""

import contextlib
import hashlib
import itertools
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
from detcli.data.json_text import encode, loads
from detcli.data.record import PartJson, RecordJson, name_of
from detcli.data.saved_record import to_record
from detcli.run.shards.manifest import Manifest, Shard, shortened
from detcli.run.shards.store import Store
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
        """Add a record.

        Its index becomes its place in the whole run, provided that each name before it has one
        record; videos have more, so `Merge` numbers records anew.
        """
        self._write_last()
        self._last = {**record, "index": self._shard.first + self.count}
        self._digest.update(_digested(self._last))
        count_error(record, self._failed)
        self.count += 1

    def content(self) -> bytes:
        """Return the records so far, as JSON Lines."""
        self._write_last()
        with temporary_file_errors():
            self._file.seek(0)
            return self._file.read()

    def publish(self, store: Store, name: str) -> bool:
        """Publish the records as a part; returns False if there is one of that name already."""
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
    """Yield the records of a part, and check them against the digest at its end.

    A part is a file of JSON Lines. Its last line also has what tells the part is complete: the
    number of records, their SHA-256, and the shard and run that it belongs to.

    Raises:
        TornError: The part is not what was published for this shard; raised at the end at the
            latest.
        StoreError: The part cannot be read.
    """
    digest = hashlib.sha256()
    count = 0
    part: PartJson | None = None  # what the last record says of the part
    try:
        with store.open(name) as file:
            for line in bounded_lines(file):
                record = loads(line)
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
    _require_made_of(shard, part)
    if part.get("records") != count or part.get("sha256") != digest.hexdigest():
        raise TornError("it has changed")


def _require_made_of(shard: Shard, part: PartJson) -> None:
    """Require that a part was made of this shard, by what the manifest names."""
    if part.get("run") != shard.run or part.get("shard") != shard.number:
        raise TornError("it belongs to another run")
    if part.get("made_by", shard.fingerprint) != shard.fingerprint:
        raise TornError("it was made by another model, other settings or another version")


def survey(store: Store, manifest: Manifest, shards: Iterable[int]) -> dict[int, Counter[str]]:
    """Count the errors by kind in the parts of those of these shards that are done.

    The ends of the parts tell them. A damaged part counts none: `Merge` reports it.
    """
    attempts = manifest.parts()
    done_shards = [shard for shard in shards if shard in attempts]
    parts = [manifest.part(shard, attempts[shard]) for shard in done_shards]
    with ThreadPoolExecutor() as pool:
        failures = pool.map(_failures_in_end, itertools.repeat(store), parts)
        return dict(zip(done_shards, failures, strict=True))


def _failures_in_end(store: Store, part: str) -> Counter[str]:
    """Read how many records of a part are errors, by kind; none if the part is damaged.

    The last line of a part ends with `"part": {..., "failed": {...}, ...}}`: its end is enough.
    """
    with contextlib.suppress(OSError, *DAMAGE), store.open(part, END) as file:
        end = file.read()
        fields_start = end.rindex(b'"part": {') + len(b'"part": ')
        fields = end[fields_start:].rstrip()[:-1]  # without the brace that ends the record
        return Counter(json.loads(fields)["failed"])
    return Counter()


def describe_failures(failed: Counter[str]) -> str:
    """Say how many records are errors, and name the most frequent kinds."""
    return f"{pluralize(failed.total(), 'record')} with an error: {format_kinds(failed)}"


def count_error(record: RecordJson, failed: Counter[str]) -> None:
    """Count a record by the kind of its error, if it has one."""
    match record:
        case {"error": {"type": str(kind), "message": str(message)}}:
            failed[kind_of(message, kind)] += 1


def _digested(record: RecordJson) -> bytes:
    """Encode a record for the digest of its part.

    Records of version 1 may hold halves of characters.
    """
    encodable = {**record, "source": _as_utf8(record["source"])}
    return f"{encode(encodable)}\n".encode("utf-8", "backslashreplace")


def _as_utf8(source: str) -> str:
    """Write a name as UTF-8 can hold it: escapes stand for halves of characters."""
    return source.encode("utf-8", "backslashreplace").decode()


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
        self.faults: list[Fault] = []  # complete after the last record
        self._store = store
        self._manifest = manifest
        self._attempts = manifest.parts()  # the last one of each shard that is done
        if len(self._attempts) >= len(manifest):
            return
        for shard in manifest:
            if shard.number not in self._attempts:
                names = shortened(shard.names, len(shard.names))
                self._add_fault(shard, f"missing: {names}", missing=True)

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
                    count_error(record, self.failed)
                    yield record
            except TornError as error:
                self._add_fault(shard, str(error))

    def _records(self, shard: Shard) -> Iterator[RecordJson]:
        """Yield the records of one shard, each checked against the manifest's name for it.

        The names have a record each, in order; videos and archives have any number of records.
        Records that --retry-failed has made stand in place of those of the part.

        Raises:
            TornError: A name has no record, or a record none of the names.
        """
        part = self._manifest.part(shard.number)
        numbered_names = enumerate(shard.names, shard.first)
        input_number = -1  # of the last record; none yet
        name = cast("Name", "")
        retried_records = self._retried_records(shard)
        for record in read(self._store, part, shard):
            if input_number >= 0 and _has_frames(name) and _is_of(record, name):
                if input_number in retried_records:
                    continue  # they have been yielded, in place of the first frame
                input_records = [record]
            else:
                input_number, name = _next(numbered_names, record)
                input_records = retried_records.get(input_number, [record])
            for input_record in input_records:
                input_record["input"] = input_number
                yield input_record

        for _, remaining_name in numbered_names:
            if not _has_frames(remaining_name):
                raise TornError(f"{source_of(remaining_name)} has no record")

    def _retried_records(self, shard: Shard) -> dict[int, list[RecordJson]]:
        """Read the records, by their inputs, that --retry-failed has made in place of errors."""
        records_by_input: dict[int, list[RecordJson]] = {}
        last_attempt = self._attempts.get(shard.number, 0)
        for attempt in range(1, last_attempt + 1):
            records_by_input |= self._records_of_attempt(shard, attempt)
        return records_by_input

    def _records_of_attempt(self, shard: Shard, attempt: int) -> dict[int, list[RecordJson]]:
        """Read the records, by their inputs, of one attempt of --retry-failed."""
        part = self._manifest.part(shard.number, attempt)
        records_by_input: dict[int, list[RecordJson]] = {}
        has_other_names = False
        try:
            for record in read(self._store, part, shard):
                input_number = record["input"]
                if _is_of(record, shard.names[input_number - shard.first]):
                    records_by_input.setdefault(input_number, []).append(record)
                else:
                    has_other_names = True
        except (TornError, *DAMAGE) as error:
            raise TornError(f"{part}: {error}") from error
        if has_other_names:
            raise TornError(f"{part} has records of other names")
        return records_by_input

    def retried(self) -> dict[bytes, str | None]:
        """Return the stamps of files that --retry-failed has worked, by the hashes of their names.

        A damaged part is left out, see `__iter__`.
        """
        stamps: dict[bytes, str | None] = {}
        for shard_number, attempt in self._attempts.items():
            if attempt == 0:
                continue
            shard = self._manifest.shard(shard_number)
            with contextlib.suppress(TornError):
                for input_number, records in self._retried_records(shard).items():
                    name = shard.names[input_number - shard.first]
                    stamps[hash_of(name)] = records[0].get("file_stamp")
        return stamps

    def failing(self, number: int) -> Shard:
        """Return a shard's names that have a record with an error, for --retry-failed to work.

        Raises:
            CheckError: Its part is damaged.
            StoreError: It cannot be read.
        """
        shard = self._manifest.shard(number)
        failing_inputs: set[int] = set()
        try:
            for record in self._records(shard):
                if "error" in record:
                    failing_inputs.add(record["input"])
        except TornError as error:
            hint = "remove it; the command without --retry-failed makes it again"
            raise CheckError(f"{self._manifest.part(number)}: {error}", hint) from error
        inputs = tuple(sorted(failing_inputs))
        names = tuple(as_it_is(shard.names[index - shard.first]) for index in inputs)
        return replace(shard, names=names, inputs=inputs, attempt=self._attempts[number] + 1)


def _next(names: Iterator[tuple[int, Name]], record: RecordJson) -> tuple[int, Name]:
    """Find the number and name of the input that a record was made of.

    It is the next of the names, which are consumed up to it. Only videos and archives may be
    passed over, as they may have no frames.

    Raises:
        TornError: Another name comes first, or none is left.
    """
    for number, name in names:
        if _is_of(record, name):
            return number, name
        if not _has_frames(name):
            raise TornError(
                f"found a record for {record['source']} where {source_of(name)} was expected"
            )
    raise TornError(f"{record['source']} is not among its names")


def _is_of(record: RecordJson, name: Name) -> bool:
    """Tell whether a record was made of the input that the manifest has this name for."""
    meta = None
    if "meta" in record:
        meta = json.dumps(record["meta"])
    if meta != meta_of(name):
        return False
    record_name = name_of(record)
    if record_name == name:  # the cheap test first, as there may be millions
        return True
    # The name of an existing file may look like a password; it may have been removed since.
    source = source_of(name)
    encodable_source = _as_utf8(source)
    if record_name in {source, encodable_source}:
        return True
    return is_archive(source) and record_name.startswith((f"{source}/", f"{encodable_source}/"))


def _has_frames(name: Name) -> bool:
    """Tell whether an input may have any number of records: a video, or an archive."""
    path = address_of(name) or ""
    if is_address(path):
        path = path_of(path)
    return is_video(path) or is_archive(path)
