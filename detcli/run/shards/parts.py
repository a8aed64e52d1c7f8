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
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import cast

from detcli.core import Fields, frozen
from detcli.core.errors import CheckError, StoreError, system_reason
from detcli.core.lines import bounded_lines
from detcli.core.text import format_kinds, kind_of, pluralize
from detcli.data.json_text import encode, loads
from detcli.data.record import PartJson, RecordJson, name_of
from detcli.data.saved_record import to_record
from detcli.run.shards.manifest import Manifest, Shard, shortened
from detcli.run.shards.store import Store
from detcli.source.listing import Name, address_of, hash_of, meta_of, source_of, without_stamp
from detcli.source.names import is_address, is_archive, is_video, path_of
from detcli.storage.temporary import temporary, temporary_file_errors

DAMAGE = (ValueError, LookupError, TypeError, AttributeError, RuntimeError, MemoryError)
"""What reading a damaged file may raise, besides OSError."""

END = 1 << 16
"""How many bytes at the end of a part are enough to see what it is."""


class CorruptPartError(Exception):
    """A part is not what was published; the message says why."""


class PartWriter(AbstractContextManager["PartWriter"]):
    """Collects the records of a shard in a temporary file, and publishes them as its part."""

    def __init__(self, shard: Shard) -> None:
        self.count = 0
        self._shard = shard
        # The last record added. It is not written yet, as `publish` adds the footer of the part to
        # the last record.
        self._held_back_record: RecordJson | None = None
        self._digest = hashlib.sha256()
        self._failed: Counter[str] = Counter()
        self._file = temporary()

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._file.close()

    def add(self, record: RecordJson) -> None:
        """Add a record.

        Its index becomes its place in the whole run, provided that each name before it has one
        record; videos have more, so `Merge` numbers records again.
        """
        self._write_held_back_record()
        self._held_back_record = {**record, "index": self._shard.first + self.count}
        self._digest.update(_digested(self._held_back_record))
        count_error(record, self._failed)
        self.count += 1

    def content(self) -> bytes:
        """Return the records so far, as JSON Lines."""
        self._write_held_back_record()
        with temporary_file_errors():
            self._file.seek(0)
            return self._file.read()

    def publish(self, store: Store, name: str) -> bool:
        """Publish the records as a file, a line for each.

        The last line also has the field `part`, the footer. It shows a reader that the file is
        complete, and for which shard it was made.

        Args:
            store: The output folder of the run.
            name: The name of the file in it.

        Returns:
            Whether it was published; False if a file of that name already exists.
        """
        footer = {
            "shard": self._shard.number,
            "run": self._shard.run,
            "records": self.count,
            "sha256": self._digest.hexdigest(),
            "failed": dict(sorted(self._failed.items())),
            "made_by": self._shard.fingerprint,
        }
        # A shard may have no records, if all of its inputs are videos without frames. The footer is
        # then the only line.
        last_line: Fields = {}
        if self._held_back_record is not None:
            last_line.update(self._held_back_record)
            self._held_back_record = None
        last_line["part"] = footer
        self._write_line(last_line)
        with temporary_file_errors():
            return store.publish(name, self._file)

    def _write_held_back_record(self) -> None:
        """Write the record that was held back, if there is one; it is not the last."""
        if self._held_back_record is not None:
            self._write_line(cast("Fields", self._held_back_record))
            self._held_back_record = None

    def _write_line(self, fields: Fields) -> None:
        """Write a line to the temporary file."""
        with temporary_file_errors():
            self._file.write(f"{encode(fields)}\n".encode())


def read_part(store: Store, name: str, shard: Shard) -> Iterator[RecordJson]:
    """Yield the records in the file of a shard, and check them against the digest at its end.

    It is a file of JSON Lines. Its last line also has what shows that it is complete: the number of
    records, their SHA-256, and the shard and run that it belongs to.

    Args:
        store: The output folder of the run, perhaps in an object store.
        name: The name of the file in it.
        shard: The shard, some consecutive inputs of the run.

    Raises:
        CorruptPartError: The file is not what was published for this shard; raised at the end at
            the latest.
        StoreError: The file cannot be read.
    """
    reading = _PartReading()
    try:
        with store.open(name) as file:
            for line in bounded_lines(file):
                record = reading.parse(line)
                if record is not None:
                    yield record
    except OSError as error:
        raise StoreError(
            f"cannot read {name} in {store}: {system_reason(error)}", "check its disk"
        ) from error
    except DAMAGE as error:
        raise CorruptPartError(f"it is damaged, in record {reading.count + 1}: {error}") from error
    reading.require_whole(shard)


class _PartReading:
    """Parses the lines of a part, and compares them with what its last line says about them."""

    def __init__(self) -> None:
        self.count = 0  # of records
        self._digest = hashlib.sha256()
        self._end: PartJson | None = None  # what the last line says about the part

    def parse(self, line: bytes) -> RecordJson | None:
        """Parse the next line of the file, and count its record.

        The last line is recognised by its field `part`, which is kept for `require_whole`.

        Returns:
            The record; None if the line has none, as the only line of a file without records.

        Raises:
            CorruptPartError: There was a last line before.
            Exception: One of DAMAGE, if the line is not a record.
        """
        fields = loads(line)
        if self._end is not None:
            raise CorruptPartError("it continues after its end")
        self._end = fields.pop("part", None)
        has_record = "source" in fields
        if not has_record:
            return None
        self._digest.update(_digested(fields))
        record = to_record(fields)
        self.count += 1
        return record

    def require_whole(self, shard: Shard) -> None:
        """Require, after the last line, that the file is complete, unchanged and from this shard.

        Raises:
            CorruptPartError: It is not; the message says why.
        """
        if self._end is None:
            raise CorruptPartError("its end is missing")
        _require_made_of(shard, self._end)
        has_same_count = self._end.get("records") == self.count
        has_same_digest = self._end.get("sha256") == self._digest.hexdigest()
        if not has_same_count or not has_same_digest:
            raise CorruptPartError("it has changed")


def _require_made_of(shard: Shard, part: PartJson) -> None:
    """Require that a part was made from this shard, with what the manifest names."""
    if part.get("run") != shard.run or part.get("shard") != shard.number:
        raise CorruptPartError("it belongs to another run")
    if part.get("made_by", shard.fingerprint) != shard.fingerprint:
        raise CorruptPartError("it was made by another model, other settings or another version")


def count_failures(
    store: Store, manifest: Manifest, shards: Iterable[int]
) -> dict[int, Counter[str]]:
    """Count the records of each shard that have an error, by the kind of error.

    Only the last line of a file of records is read, which holds these counts. A damaged file has
    none: `Merge` reports it.

    Args:
        store: The folder of the run, where each shard that is done has a file of its records.
        manifest: The list of the shards.
        shards: The indices of the shards to look at.

    Returns:
        The counts by the index of the shard; shards that are not done yet are left out.
    """
    # Each --retry-failed of a shard adds a file; the last one has the counts as they are now.
    last_attempts = manifest.last_attempts()
    done_shards = []
    files = []
    for shard in shards:
        if shard in last_attempts:
            done_shards.append(shard)
            files.append(manifest.part(shard, last_attempts[shard]))

    with ThreadPoolExecutor() as pool:  # as each file of a bucket takes a request
        counts = pool.map(_failures_in_end, itertools.repeat(store), files)
        return dict(zip(done_shards, counts, strict=True))


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
    """Describe how many records are errors, and name the most frequent kinds."""
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
    """Escape halves of characters in a name, so that UTF-8 can encode it."""
    return source.encode("utf-8", "backslashreplace").decode()


@frozen
class Fault:
    """A part that is missing or damaged."""

    part: str
    reason: str
    names: int  # how many it should have
    missing: bool


class Merge:
    """The records of all parts, one after the other; memory does not grow with their number."""

    def __init__(self, store: Store, manifest: Manifest) -> None:
        """Prepare to read the parts, and list in `faults` which are missing."""
        self.count = 0  # records so far
        self.failed: Counter[str] = Counter()  # those with an error, by its kind
        self.faults: list[Fault] = []  # complete after the last record
        self._store = store
        self._manifest = manifest
        self._attempts = manifest.last_attempts()  # the last one of each shard that is done
        has_all_parts = len(self._attempts) >= len(manifest)
        if not has_all_parts:  # otherwise the names need not be read
            self._add_missing_parts()

    def _add_missing_parts(self) -> None:
        for shard in self._manifest:
            if shard.number not in self._attempts:
                names = shortened(shard.names, len(shard.names))
                self._add_fault(shard, f"missing: {names}", missing=True)

    def _add_fault(self, shard: Shard, reason: str, *, missing: bool = False) -> None:
        part = self._manifest.part(shard.number)
        self.faults.append(Fault(part, reason, len(shard.names), missing))

    def __iter__(self) -> Iterator[RecordJson]:
        """Yield the records of all shards, as a run that is not cut into shards prints them.

        A damaged file of records is listed in `faults`, and the next one is read.
        """
        # A file that had changed when the run was extended is in two shards; the last one is used.
        last_shards = self._manifest.last_shards_of_repeated_names()
        for shard in self._manifest:
            try:
                for record in self._current_records(shard, last_shards):
                    yield self._counted(record)
            except CorruptPartError as error:
                self._add_fault(shard, str(error))

    def _current_records(
        self, shard: Shard, last_shards: Mapping[bytes, int]
    ) -> Iterator[RecordJson]:
        """Yield the records of a shard, without those of inputs that a later shard has again.

        Args:
            shard: The shard.
            last_shards: For each name that several shards have, the index of the last of them, by
                the hash of the name. Other names are not in it.
        """
        if not last_shards:  # as in most runs: no name has to be hashed
            yield from self._checked_records(shard)
            return

        for record in self._checked_records(shard):
            name = shard.names[record["input"] - shard.first]
            last_shard = last_shards.get(hash_of(name))
            is_in_later_shard = last_shard is not None and last_shard > shard.number
            if not is_in_later_shard:
                yield record

    def _counted(self, record: RecordJson) -> RecordJson:
        """Number a record in the merged order, and count it and its error."""
        record["index"] = self.count
        record.pop("file_stamp", None)  # records of a run into one file lack it
        self.count += 1
        count_error(record, self.failed)
        return record

    def _checked_records(self, shard: Shard) -> Iterator[RecordJson]:
        """Yield the records of one shard, and check that they are those of its inputs.

        An image has one record; a video or an archive has any number. Where --retry-failed has
        processed an input again, its new records are yielded in place of those in the shard's file.
        The field `input` of each record is set to the index of its input in the run.

        Raises:
            CorruptPartError: The records are not those of the inputs, in the order of the manifest.
        """
        file_name = self._manifest.part(shard.number)
        new_records_by_input = self._retried_records(shard)
        inputs = _InputsInOrder(shard)
        for record in read_part(self._store, file_name, shard):
            is_first_of_input = inputs.advance_to(record)
            input_index = inputs.number  # set by `advance_to`
            new_records = new_records_by_input.get(input_index)
            if new_records is None:
                record["input"] = input_index
                yield record
            elif is_first_of_input:  # all new records stand in place of all old ones
                yield from new_records
        inputs.require_no_more()

    def _retried_records(self, shard: Shard) -> dict[int, list[RecordJson]]:
        """Read the records, by their inputs, that --retry-failed has made in place of errors."""
        records_by_input: dict[int, list[RecordJson]] = {}
        last_attempt = self._attempts.get(shard.number, 0)
        for attempt in range(1, last_attempt + 1):
            records_by_input |= self._records_of_attempt(shard, attempt)
        return records_by_input

    def _records_of_attempt(self, shard: Shard, attempt: int) -> dict[int, list[RecordJson]]:
        """Read the records of a shard that one attempt has written, by the index of their input.

        Each run with --retry-failed is another attempt, with a separate file.

        Raises:
            CorruptPartError: The file is damaged, or it has records of inputs with different names.
                The latter is reported only if the file is not damaged.
        """
        file_name = self._manifest.part(shard.number, attempt)
        records_by_input: dict[int, list[RecordJson]] = {}
        has_other_names = False
        try:
            for record in read_part(self._store, file_name, shard):
                input_index = record["input"]
                name = shard.names[input_index - shard.first]
                if _is_record_of(name, record):
                    records_by_input.setdefault(input_index, []).append(record)
                else:
                    has_other_names = True
        except (CorruptPartError, *DAMAGE) as error:
            raise CorruptPartError(f"{file_name}: {error}") from error

        if has_other_names:
            raise CorruptPartError(f"{file_name} has records of other names")
        return records_by_input

    def stamps_of_retried_inputs(self) -> dict[bytes, str | None]:
        """Return the stamp of each input that --retry-failed has retried, by the hash of its name.

        The stamp of a file is its size and time of change when it was retried; None for an input
        without a stamp, such as one behind an address. Shards with damaged files are left out:
        whoever reads their records finds the damage.
        """
        stamps: dict[bytes, str | None] = {}
        for shard_number, last_attempt in self._attempts.items():
            if last_attempt == 0:  # it was never retried
                continue
            shard = self._manifest.shard(shard_number)
            try:
                retried_records = self._retried_records(shard)
            except CorruptPartError:
                continue
            for input_index, records in retried_records.items():
                name = shard.names[input_index - shard.first]
                first_record = records[0]  # all records of an input have the same stamp
                stamps[hash_of(name)] = first_record.get("file_stamp")
        return stamps

    def retry_shard(self, number: int) -> Shard:
        """Make the next attempt at a shard, with only those inputs that failed, for --retry-failed.

        The names have no stamps, so a file that has changed since then is read as it is now.

        Args:
            number: The index of the shard.

        Raises:
            CheckError: The file of its records is damaged.
            StoreError: It cannot be read.
        """
        shard = self._manifest.shard(number)
        failed_inputs: set[int] = set()  # by their index in the run
        try:
            for record in self._checked_records(shard):
                if "error" in record:
                    failed_inputs.add(record["input"])
        except CorruptPartError as error:
            hint = "remove it; the command without --retry-failed makes it again"
            raise CheckError(f"{self._manifest.part(number)}: {error}", hint) from error

        inputs = tuple(sorted(failed_inputs))
        names = []
        for input_index in inputs:
            listed_name = shard.names[input_index - shard.first]
            names.append(without_stamp(listed_name))
        next_attempt = self._attempts[shard.number] + 1
        return replace(shard, names=tuple(names), inputs=inputs, attempt=next_attempt)


class _InputsInOrder:
    """Finds the input of each record of a shard: both are in the order of the manifest."""

    def __init__(self, shard: Shard) -> None:
        self.number = -1  # index of the current input in the run; -1 before the first record
        self._name: Name | None = None  # name of the current input
        self._following_inputs = enumerate(shard.names, shard.first)

    def advance_to(self, record: RecordJson) -> bool:
        """Advance to the input of the next record, and set `number` to the index of that input.

        An image has exactly one record, so each record of an image advances to the next input. A
        video or an archive stays the current input as long as records belong to it. It may also
        have no record, and is then skipped. Inputs that were passed are not checked again.

        Args:
            record: The next record of the shard.

        Returns:
            Whether the record is the first of its input.

        Raises:
            CorruptPartError: The record is out of order: an image before it has no record, or there
                is no such input.
        """
        name = self._name
        if name is not None and not _has_one_record(name) and _is_record_of(name, record):
            return False

        for number, following_name in self._following_inputs:
            if _is_record_of(following_name, record):
                self.number = number
                self._name = following_name
                return True
            if _has_one_record(following_name):
                raise CorruptPartError(
                    f"found a record for {record['source']} where {source_of(following_name)} "
                    "was expected"
                )
        raise CorruptPartError(f"{record['source']} is not among its names")

    def require_no_more(self) -> None:
        """Require that all inputs have had their records, as no more records come.

        Raises:
            CorruptPartError: An image has none.
        """
        for _, name in self._following_inputs:
            if _has_one_record(name):
                raise CorruptPartError(f"{source_of(name)} has no record")


def _is_record_of(name: Name, record: RecordJson) -> bool:
    """Return whether a record was made from an input, by the names of both.

    The records of an archive have the names of its members, such as "images.zip/a.jpg".

    Args:
        name: The name of the input in the manifest, perhaps with what a list says about it
            (`meta`).
        record: The record.
    """
    if _meta_in(record) != meta_of(name):
        return False
    record_name = name_of(record)
    if record_name == name:  # tried first, as it is the usual case and takes no time
        return True

    # A record has the name without a password, and with escapes for what UTF-8 cannot hold.
    public_name = source_of(name)
    for possible_name in (public_name, _as_utf8(public_name)):
        is_member = is_archive(public_name) and record_name.startswith(f"{possible_name}/")
        if record_name == possible_name or is_member:
            return True
    return False


def _meta_in(record: RecordJson) -> str | None:
    """Return what a list of inputs said besides the name, as JSON; None if it said nothing."""
    if "meta" not in record:
        return None
    return json.dumps(record["meta"])


def _has_one_record(name: Name) -> bool:
    """Return whether an input has exactly one record, as an image has.

    A video or an archive may have several, or none.
    """
    path = address_of(name) or ""
    if is_address(path):
        path = path_of(path)
    return not is_video(path) and not is_archive(path)
