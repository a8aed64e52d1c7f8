"""Merges the parts of a run, in the manifest's order, and lists what is missing or wrong."""

from collections.abc import Iterator
from dataclasses import dataclass

from detcli.record import RecordJson
from detcli.shards.manifest import Manifest, Shard
from detcli.shards.names import Name, source_of
from detcli.shards.parts import PARQUET, TornError, encodable, read
from detcli.shards.store import Store
from detcli.source.names import is_address, is_video, path_of

EXAMPLES = 3
"""Names of a part that an error shows."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A part that is missing or damaged."""

    part: str
    reason: str
    names: int  # number of names it should have
    missing: bool  # whether the part does not exist


class Merge:
    """The records of all parts, one after the other; memory does not grow with their number.

    Attributes:
        faults: The faults seen so far; complete after the last record.
        count: Number of records so far.
    """

    def __init__(self, store: Store, manifest: Manifest) -> None:
        """Note as faults which parts are missing."""
        self.count = 0
        self._store, self._manifest = store, manifest
        self.faults: list[Fault] = []
        there = manifest.parts()
        if len(there) < len(manifest):
            self.faults = [
                Fault(
                    manifest.part(shard.number),
                    f"missing: {_shown(shard)}",
                    len(shard.names),
                    missing=True,
                )
                for shard in manifest
                if shard.number not in there
            ]

    def __iter__(self) -> Iterator[RecordJson]:
        """Yield the records, as one run on one machine prints them."""
        for shard in self._manifest:
            part = self._manifest.part(shard.number)
            try:
                yield from self._records(shard, part)
            except TornError as error:
                self.faults.append(Fault(part, str(error), len(shard.names), missing=False))

    def _records(self, shard: Shard, part: str) -> Iterator[RecordJson]:
        """The records of one part, each checked against the manifest's name for it."""
        names = iter(shard.names)
        name: Name | None = None
        for record in read(self._store, part, shard):
            if name is None or not (_has_frames(name) and _is_of(record, name)):
                name = _next(names, record)
            if isinstance(name, str) and part.endswith(PARQUET):
                record["source"] = source_of(name)  # which Parquet may not be able to hold
            record["index"] = self.count
            self.count += 1
            yield record
        if (left := next((name for name in names if not _has_frames(name)), None)) is not None:
            raise TornError(f"{source_of(left)} has no record")


def _next(names: Iterator[Name], record: RecordJson) -> Name:
    """The name that a record belongs to: the next one, but for videos, which may have no frames."""
    for name in names:
        if _is_of(record, name):
            return name
        if not _has_frames(name):
            raise TornError(
                f"found a record for {record['source']} where {source_of(name)} was expected"
            )
    raise TornError(f"{record['source']} is not among its names")


def _is_of(record: RecordJson, name: Name) -> bool:
    """Whether a record belongs to a name."""
    if record["source"] == name:  # the cheap test first, as there may be millions
        return True
    source = source_of(name)
    # The name of an existing file may look like a password; it may have been removed since.
    return record["source"] in {source, encodable(source)}


def _has_frames(name: Name) -> bool:
    return isinstance(name, str) and is_video(path_of(name) if is_address(name) else name)


def _shown(shard: Shard) -> str:
    """The first names of a shard, and the last."""
    names = [*map(source_of, shard.names)]
    if len(names) > EXAMPLES:
        names[EXAMPLES - 1 : -1] = ["..."]
    return ", ".join(names)
