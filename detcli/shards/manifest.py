"""The manifest: the names of each shard and the settings of the run, written before it starts.

    manifest.jsonl         a header, a line for each shard, and a line that says how many there are
    manifest-00001.jsonl   the same for names that came later, whose shards are further ones

Each is published once, like the parts; part-00042.jsonl holds the records of shard 42. Shards have
the names in the order in which a run on one machine takes them, so that the parts one after the
other are what that run prints.
"""

import hashlib
import json
import re
import weakref
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, BinaryIO, TypedDict

from detcli.errors import StoreError, UsageError, system_reason
from detcli.record import SettingsJson
from detcli.shards.names import Hashes, Name, from_json, hash_of, sorted_hashes, to_json
from detcli.shards.store import Store, temporary, temporary_file_errors

FIRST = "manifest.jsonl"
NAME = re.compile(r"manifest(?:-([0-9]{5,18}))?\.jsonl")
PART = re.compile(r"part-([0-9]{5,18})\.(jsonl|parquet)")


class InputsJson(TypedDict):
    """The options of reading inputs that records depend on."""

    start_s: float
    end_s: float | None
    max_pixels: int
    strict: bool


class HeaderJson(TypedDict):
    """What the records of a run depend on besides the names.

    Attributes:
        detcli: The version.
        format: Of the parts.
        shard_size: Names in a shard; the last one may have fewer.
    """

    detcli: str
    format: str
    shard_size: int
    settings: SettingsJson
    inputs: InputsJson


@dataclass(frozen=True, slots=True)
class Shard:
    """The names that make one part."""

    number: int
    first: int  # how many names the shards before it have
    names: tuple[Name, ...]
    run: str  # the hash of its manifest, by which its part is known to belong to it


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
    names: int  # how many names it has


class Manifest:
    """A manifest that has been published, with its extensions.

    Attributes:
        header: Settings of the run, which all its sections have.
        names: How many there are.

    Raises:
        UsageError: There is none, or it is damaged.
        StoreError: It cannot be read.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        found = sorted(
            (int(match[1] or 0), name)
            for name in store.names()
            if (match := NAME.fullmatch(name)) is not None
        )
        if not found or found[0][1] != FIRST:
            raise UsageError(
                f"{store} has no {FIRST}, so it is not the output of a run in shards",
                "name the folder that was given to predict --output",
            )
        self._sections: list[Section] = []
        self.names = shards = 0
        for number, name in found:
            if number != len(self._sections):
                raise self._damaged(name, f"{file_name(number - 1)} is missing")
            section = self._read(name, shards)
            self._sections.append(section)
            self.names += section.names
            shards += len(section.offsets)
        self.header = self._sections[0].header

    def __len__(self) -> int:
        """Number of shards."""
        return self._sections[-1].shard + len(self._sections[-1].offsets)

    def __iter__(self) -> Iterator[Shard]:
        """Yield the shards in order."""
        return map(self.shard, range(len(self)))

    def all_names(self) -> Iterator[Name]:
        """Yield the names in order."""
        for shard in self:
            yield from shard.names

    def shard(self, number: int) -> Shard:
        """Read one shard.

        Raises:
            StoreError: The manifest cannot be read.
        """
        at = bisect_right(self._sections, number, key=lambda section: section.shard) - 1
        section = self._sections[at]
        within = number - section.shard
        with self._readable(section.name):
            section.file.seek(section.offsets[within])
            fields = json.loads(section.file.readline())
            names = tuple(map(from_json, fields["names"]))
            found = fields["shard"]
        if found != number:
            raise self._damaged(section.name, "it has changed")
        first = section.first + within * section.header["shard_size"]
        return Shard(number, first, names, section.run)

    @cached_property
    def hashes(self) -> Hashes:
        """Of the names."""
        hashes = bytearray()
        for name in self.all_names():
            hashes += hash_of(name)
        return sorted_hashes(hashes)

    @property
    def next_file(self) -> str:
        """Name of the next extension."""
        return file_name(len(self._sections))

    def part(self, number: int) -> str:
        """Name of a shard's part."""
        return f"part-{number:05}.{self.header['format']}"

    def parts(self) -> set[int]:
        """The shards whose part has been published."""
        return {
            int(match[1])
            for name in self._store.names()
            if (match := PART.fullmatch(name)) and self.part(int(match[1])) == name
        }

    def _read(self, name: str, shard: int) -> Section:
        """Look through one file, which stays open: stores may have to fetch it anew."""
        digest, offsets, names = hashlib.sha256(), array("Q"), 0
        file = self._store.open(name)
        weakref.finalize(self, file.close)
        with self._readable(name):
            line = file.readline()
            header = json.loads(line)
            if not _is_header(header):
                raise self._damaged(name, "it has no header")
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
            raise self._damaged(name, "its end is missing")
        run = digest.hexdigest()[:16]
        return Section(name, file, header, run, shard, self.names, offsets, names)

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
    )


def file_name(number: int) -> str:
    """Name of a manifest's first file, or of an extension, which are numbered from 1."""
    return f"manifest-{number:05}.jsonl" if number else FIRST


def publish(
    store: Store, name: str, header: HeaderJson, names: Iterable[Name], shard: int = 0
) -> bool:
    """Write one file of a manifest, unless it exists.

    Args:
        store: Where to.
        name: Of the file.
        header: What the records depend on.
        names: The names, in order.
        shard: The number of the first shard.

    Returns:
        Whether this call has written it; False if another process was first.

    Raises:
        OutputError: It cannot be written.
    """
    remaining, shards, count = iter(names), 0, 0
    with temporary_file_errors(), temporary() as file:
        _write(file, header)
        while lot := [*islice(remaining, header["shard_size"])]:
            _write(file, {"shard": shard + shards, "names": [*map(to_json, lot)]})
            shards, count = shards + 1, count + len(lot)
        _write(file, {"shards": shards, "names": count})
        return store.publish(name, file)


def _write(file: BinaryIO, fields: Any) -> None:  # noqa: ANN401 - JSON
    file.write(json.dumps(fields).encode("ascii") + b"\n")
