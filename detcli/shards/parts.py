"""Parts: the records of one shard in one file, whose last record has its run, count and digest.

So a part that was cut off or changed is noticed, whichever line is missing, and so is one that
belongs to another run. Parquet has the same in the file's metadata.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import BinaryIO, cast

from detcli.errors import StoreError, system_reason
from detcli.record import OPTIONAL_FIELDS, PartJson, RecordJson
from detcli.shards.manifest import Shard
from detcli.shards.store import Store, temporary, temporary_file_errors
from detcli.sink.text import encode

PARQUET = ".parquet"

DAMAGE = (ValueError, LookupError, TypeError, AttributeError, RuntimeError, MemoryError)
"""What reading a damaged file may raise, besides OSError."""

METADATA = "detcli.part"


class TornError(Exception):
    """A part is not what was published; the message says why."""


class PartWriter(AbstractContextManager["PartWriter"]):
    """Collects the records of a shard in a temporary file, and publishes them as its part."""

    def __init__(self, shard: Shard) -> None:
        self.count = 0
        self._shard = shard
        self._last: RecordJson | None = None  # not written yet, as it gets a field
        self._digest = hashlib.sha256()
        self._file = temporary()

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._file.close()

    def add(self, record: RecordJson) -> None:
        """Add a record; its index becomes its place in the run, if that has no videos before it."""
        with temporary_file_errors():
            self._write(self._last)
        self._last = {**record, "index": self._shard.first + self.count}
        self._digest.update(_line(_plain(self._last)))
        self.count += 1

    def content(self) -> bytes:
        """All records, as JSON Lines."""
        with temporary_file_errors():
            self._write(self._last)
            self._last = None
            self._file.seek(0)
            return self._file.read()

    def publish(self, store: Store, name: str) -> bool:
        """Publish the records as a part, in the format of its suffix."""
        part = self._part()
        with temporary_file_errors():
            if name.endswith(PARQUET):
                with temporary() as content:
                    _to_parquet(self.content().splitlines(), part, content)
                    return store.publish(name, content)
            # Videos may have no frames, and a part no record.
            self._write(cast("RecordJson", {**(self._last or {}), "part": part}))
            return store.publish(name, self._file)

    def _part(self) -> PartJson:
        return {
            "shard": self._shard.number,
            "run": self._shard.run,
            "records": self.count,
            "sha256": self._digest.hexdigest(),
        }

    def _write(self, record: RecordJson | None) -> None:
        if record is not None:
            self._file.write(_line(record))


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
            for record in _from_parquet(file) if name.endswith(PARQUET) else _from_lines(file):
                if part is not None:
                    raise TornError("it goes on after its end")
                part = record.pop("part", None)
                if "source" in record:
                    digest.update(_line(_plain(record)))
                    count += 1
                    yield record
    except OSError as error:
        if error.errno is None:  # pyarrow's word for a damaged file
            raise TornError(f"it is damaged: {error}") from error
        raise StoreError(
            f"cannot read {name} in {store}: {system_reason(error)}", "check its disk"
        ) from error
    except DAMAGE as error:
        raise TornError(f"it is damaged: {error}") from error
    if part is None:
        raise TornError("its end is missing")
    if (part.get("run"), part.get("shard")) != (shard.run, shard.number):
        raise TornError("it belongs to another run")
    if (part.get("records"), part.get("sha256")) != (count, digest.hexdigest()):
        raise TornError("it has changed")


def _line(record: RecordJson) -> bytes:
    return (encode(record) + "\n").encode("utf-8", "backslashreplace")


def _plain(record: RecordJson) -> RecordJson:
    """A record as Parquet can hold it: names of files may have bytes that are not UTF-8."""
    source = record["source"]
    return {**record, "source": encodable(source)} if not source.isascii() else record


def encodable(source: str) -> str:
    """A name as Parquet can hold it."""
    return source.encode("utf-8", "backslashreplace").decode()


def _from_lines(file: BinaryIO) -> Iterator[RecordJson]:
    for line in file:
        yield json.loads(line)


@dataclass(frozen=True, slots=True)
class Stored:
    """A record that was read back, as sinks of records take it."""

    fields: RecordJson

    def to_json(self) -> RecordJson:
        """The record as JSON."""
        return self.fields


def _to_parquet(lines: Iterable[bytes], part: PartJson, file: BinaryIO) -> None:
    """Write records as Parquet."""
    from detcli.sink.parquet import ParquetSink

    sink = ParquetSink(_Target(file), [*OPTIONAL_FIELDS])
    for line in lines:
        sink.write(Stored(json.loads(line)))
    sink.describe({METADATA: json.dumps(part)})
    sink.close()


class _Target:
    """A temporary file, as the sink of Parquet takes one."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, data: bytes) -> None:
        with temporary_file_errors():
            self._file.write(data)

    def commit(self) -> None:
        """Do nothing: the file is published next."""

    discard = commit


def _from_parquet(file: BinaryIO) -> Iterator[RecordJson]:
    from detcli.sink.parquet import read_records

    records, metadata = read_records(file)
    yield from records
    if METADATA in metadata:
        yield cast("RecordJson", {"part": json.loads(metadata[METADATA])})
