"""The manifest: the names of each shard and the settings of the run, written before it starts.

    _manifest.jsonl         a header, a line for each shard, and a line that says how many
    _manifest-00001.jsonl   the same for names that came later, in shards of their own

Earlier versions began these names without `_`.

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
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, BinaryIO, NamedTuple, NotRequired, TypedDict, cast

import numpy as np

from detcli.config.differences import differences
from detcli.core import frozen
from detcli.core.errors import StoreError, UsageError, system_reason
from detcli.core.lines import LineTooLongError, bounded_line, require_within_limit
from detcli.data.record import SettingsJson
from detcli.run.shards.store import Store
from detcli.source.listing import HASH, Hashes, HashOf, Name, from_json, hash_of, source_of, to_json
from detcli.storage.temporary import temporary, temporary_file_errors

FIRST_MANIFEST = "_manifest.jsonl"
MANIFEST_NAME = re.compile(r"_?manifest(?:-([0-9]{5,18}))?\.jsonl")
RUN_DIGITS = 16  # of the hash of a manifest, by which the files of shards name their run
PART_NAME = re.compile(r"part-([0-9]{5,18})(?:-([1-9][0-9]{0,8}))?\.jsonl")


class InputsJson(TypedDict):
    """The options of reading inputs that records depend on."""

    start_s: float
    end_s: float | None
    max_pixels: int
    strict: bool
    lenient: bool


class HeaderJson(TypedDict):
    """All that the records of a run depend on besides the names."""

    detcli: str  # the version
    format: str  # of the parts: "jsonl", but "parquet" in some folders of earlier versions
    shard_size: int  # the last one may have fewer names
    settings: SettingsJson
    inputs: InputsJson
    class_names: NotRequired[list[str]]  # of the model; absent from folders of earlier versions


EXAMPLES = 3
"""Names that an error shows."""


def fingerprint_of(version: str, settings: SettingsJson) -> str:
    """The version, model and settings that make a part, as its last record names them."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    return f"detcli {version}, model {settings['model_sha256']}, settings {digest}"


@frozen
class Shard:
    """The names that make one part."""

    number: int
    first: int  # how many names the shards before it have
    names: tuple[Name, ...]
    run: str  # the hash of its manifest, which shows that a part belongs to it
    fingerprint: str = ""  # of what makes its part, see `fingerprint_of`
    inputs: tuple[int, ...] = ()  # the indices of the names in the run, if they are not all
    attempt: int = 0  # of --retry-failed, whose part then has only these names

    @property
    def numbers(self) -> Sequence[int]:
        """The indices of its names in the run."""
        return self.inputs or range(self.first, self.first + len(self.names))


@frozen
class Section:
    """One file of the manifest."""

    name: str
    file: BinaryIO
    header: HeaderJson  # its first line
    run: str  # SHA-256 of the file, RUN_DIGITS of it
    first_shard: int  # the index of its first shard
    names_before: int  # how many names the sections before it have
    offsets: "array[int]"  # where the line of each shard begins in the file, in bytes


class Manifest:
    """A manifest that has been published, with its extensions.

    Raises:
        UsageError: There is none, or it is damaged.
        StoreError: It cannot be read.
    """

    def __init__(self, store: Store) -> None:
        """Read and check all files of the manifest.

        The names in them are not kept in memory; they are read again when they are needed.

        Args:
            store: The output folder of the run, which has the files.

        Raises:
            UsageError: There is no manifest, or one of its files is missing or damaged.
            StoreError: A file cannot be read.
        """
        self._store = store
        numbered_files = _numbered_files(store)
        has_first_manifest = bool(numbered_files) and numbered_files[0].number == 0
        if not has_first_manifest:
            raise UsageError(
                f"{store} has no {FIRST_MANIFEST}, so it is not the output of a run in shards",
                "name the folder that was given to predict --output",
            )

        # The files that were read so far, in order, and how many names and shards they have
        # together. `_add_section` updates all three.
        self._sections: list[Section] = []
        self.name_count = 0
        self._shard_count = 0
        for number, name in numbered_files:
            self._require_next_number(number, name)
            self._add_section(name)

        self.header = self._sections[0].header
        self._fingerprint = fingerprint_of(self.header["detcli"], self.header["settings"])

    def __len__(self) -> int:
        return self._shard_count

    def __iter__(self) -> Iterator[Shard]:
        for number in range(len(self)):
            yield self.shard(number)

    def require_same(
        self,
        implied: Container[str] = (),
        **fields: Any,  # noqa: ANN401 - of a header
    ) -> None:
        """Require that the run was begun with the same fields of the header, such as its settings.

        Args:
            implied: Names of settings that may differ, since they make no difference with this
                model; see `Run.implied_settings`.
            **fields: The fields to compare, by name. Other fields are not compared.

        Raises:
            UsageError: The manifest has different values; the message names them.
        """
        # Fields that are not compared are the same in both headers.
        new_header = cast("HeaderJson", {**self.header, **fields})
        different = differences(_flat(self.header), _flat(new_header), implied)
        if different:
            earlier_version = self.header["detcli"]
            if new_header["detcli"] == earlier_version:
                hint = "use the same settings, or write to another folder"
            else:
                hint = f"finish it with detcli {earlier_version}, or write to another folder"
            raise UsageError(f"{self._store} was begun with {', '.join(different)}", hint)

    def all_names(self) -> Iterator[Name]:
        """Yield the names of all shards, in order."""
        for shard in self:
            yield from shard.names

    def shard(self, number: int) -> Shard:
        """Read a shard, with the names of its inputs, from its line of the manifest.

        A manifest has several files, its sections, if names were added to the run later. Shards
        are numbered through all of them.

        Args:
            number: The index of the shard, from 0.

        Raises:
            UsageError: Its line is damaged.
            StoreError: It cannot be read.
        """
        section = self._section_of(number)
        position = number - section.first_shard  # among the shards of the section
        with self._readable(section.name):
            section.file.seek(section.offsets[position])
            fields = json.loads(bounded_line(section.file))
            names = tuple(from_json(name) for name in fields["names"])
            if fields["shard"] != number:
                raise ValueError("it has changed")

        # All shards of a section but the last have the same number of names.
        names_before = section.names_before + position * section.header["shard_size"]
        return Shard(number, names_before, names, section.run, self._fingerprint)

    def _section_of(self, shard_number: int) -> Section:
        """Find the section with this shard: the last one that does not begin with a later shard."""
        first_shards = [section.first_shard for section in self._sections]
        sections_up_to_it = bisect_right(first_shards, shard_number)
        return self._sections[sections_up_to_it - 1]

    def hashes(self, hash_name: HashOf) -> Hashes:
        """Hash all names, each as it was last written; ascending, without duplicates."""
        return np.unique(np.fromiter(map(hash_name, self.last_names()), HASH))

    def last_names(self) -> Iterator[Name]:
        """Yield the names, without those that a later shard has again."""
        last_shards = self.last_shards_of_repeated_names()
        for shard in self:
            for name in shard.names:
                if last_shards and last_shards.get(hash_of(name), shard.number) > shard.number:
                    continue
                yield name

    def last_shards_of_repeated_names(self) -> dict[bytes, int]:
        """Find the names that several shards have, and for each the last of these shards.

        A file that had changed when the run was extended is listed again, in a new shard.

        Returns:
            The index of that shard, by the hash of the name.
        """
        if len(self._sections) == 1:  # the run was never extended
            return {}
        repeated_hashes = self._repeated_hashes()
        if not repeated_hashes:
            return {}

        last_shards: dict[bytes, int] = {}
        for shard in self:
            for name in shard.names:
                name_hash = hash_of(name)
                if name_hash in repeated_hashes:
                    last_shards[name_hash] = shard.number
        return last_shards

    def _repeated_hashes(self) -> set[bytes]:
        """Return the hashes of the names that are listed more than once.

        There may be millions of names, and few of them twice. So the hashes are sorted in an
        array, which takes less memory than a dictionary: equal ones are then neighbours.
        """
        hashes = np.sort(np.fromiter((hash_of(name) for name in self.all_names()), HASH))
        is_like_next = hashes[:-1] == hashes[1:]
        return set(hashes[:-1][is_like_next].tolist())

    @property
    def next_file(self) -> str:
        """Name of the file that the next extension becomes."""
        return file_name(len(self._sections))

    def part(self, number: int, attempt: int = 0) -> str:
        """Name of a shard's part, or of what an attempt of --retry-failed adds to it."""
        if attempt == 0:
            return f"part-{number:05}.jsonl"
        return f"part-{number:05}-{attempt}.jsonl"

    def last_attempts(self) -> dict[int, int]:
        """Find the shards whose records are published, and the last attempt at each.

        Attempt 0 is the first, which processes the whole shard. Each --retry-failed adds another,
        with a separate file: `part-00042.jsonl` and `part-00042-1.jsonl` are attempts 0 and 1 at
        shard 42.

        Returns:
            The number of the last attempt, by the index of the shard.
        """
        attempts_by_shard: defaultdict[int, set[int]] = defaultdict(set)
        for name in self._store.names():
            match = PART_NAME.fullmatch(name)
            if match is None:
                continue
            number = int(match[1])
            attempt = int(match[2] or 0)
            has_usual_digits = self.part(number, attempt) == name  # a part-000042.jsonl is not ours
            if has_usual_digits:
                attempts_by_shard[number].add(attempt)

        last_attempts = {}
        for number, attempts in attempts_by_shard.items():
            if 0 in attempts:  # a retry without what it retries is ignored
                last_attempts[number] = max(attempts)
        return last_attempts

    def _add_section(self, name: str) -> None:
        """Open and check a file of the manifest, add it to the sections, and count what it has.

        The number of shards and `name_count` increase by those of the file. It stays open as long
        as this object lives, since names are read from it later: a file of a bucket would have to
        be downloaded again.

        Args:
            name: The name of the file in the output folder.

        Raises:
            UsageError: The file is damaged, or the run wrote Parquet, which this version does not
                read.
            StoreError: The file cannot be read.
        """
        file = self._store.open(name)
        weakref.finalize(self, file.close)
        with self._readable(name):
            header_line = bounded_line(file)
            header = self._parse_header(header_line)
            index = _index_shards(header_line, file)

        section = Section(
            name=name,
            file=file,
            header=header,
            run=index.sha256[:RUN_DIGITS],
            first_shard=self._shard_count,
            names_before=self.name_count,
            offsets=index.offsets,
        )
        self._sections.append(section)
        self._shard_count += len(index.offsets)
        self.name_count += index.name_count

    def _parse_header(self, line: bytes) -> HeaderJson:
        """Parse the first line of a file of the manifest.

        Raises:
            ValueError: It is not a header.
            UsageError: The run wrote Parquet, which this version does not read.
        """
        header = json.loads(line)
        if not _is_header(header):
            raise ValueError("it has no header")
        if header["format"] == "parquet":
            raise UsageError(
                f"the parts in {self._store} are Parquet, which this version does not read",
                f"merge them with detcli {header['detcli']}, or write to another folder, whose "
                "parts are JSON Lines",
            )
        return cast("HeaderJson", header)

    def _require_next_number(self, number: int, name: str) -> None:
        """Require that the files of the manifest follow each other without a gap or a duplicate.

        The files have the numbers 0, 1, 2 and so on, and are read in this order. Two files may have
        the same number, since earlier versions wrote `manifest.jsonl`, without the `_`.

        Args:
            number: The number of the file to read next.
            name: The name of this file.

        Raises:
            UsageError: An earlier file has the same number, or one is missing between them.
        """
        expected_number = len(self._sections)
        is_duplicate = number < expected_number
        if is_duplicate:
            raise UsageError(
                f"{self._store} has both {self._sections[number].name} and {name}",
                "move one of them out of the folder; merge then says whether the parts belong to "
                "the one that is left",
            )
        if number > expected_number:
            raise self._damaged(name, f"{file_name(number - 1)} is missing")

    @contextmanager
    def _readable(self, name: str) -> Iterator[None]:
        """Turn what goes wrong in the block into an error that names the file."""
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


class _ShardIndex(NamedTuple):
    """Where the shards are in a file of a manifest."""

    offsets: "array[int]"  # where the line of each shard begins, in bytes
    name_count: int
    sha256: str  # of the whole file, in hexadecimal


def _index_shards(header_line: bytes, file: BinaryIO) -> _ShardIndex:
    """Record where the line of each shard begins in a file of a manifest.

    After the header, the file has lines such as

        {"shard": 0, "names": ["a.jpg", "b.jpg"]}
        {"shard": 1, "names": ["c.jpg"]}
        {"shards": 2, "names": 3}

    The last one shows that the file is complete.

    Args:
        header_line: Its first line, which has already been read.
        file: The file, at its second line.

    Raises:
        ValueError: The file is damaged.
    """
    digest = hashlib.sha256(header_line)
    offsets = array("Q")
    name_count = 0
    fields: Any = None  # of the line that was read last
    while True:
        offset = file.tell()
        line = bounded_line(file)
        if not line:
            break
        digest.update(line)
        fields = json.loads(line)
        if "shard" in fields:
            offsets.append(offset)
            name_count += len(fields["names"])

    if fields != {"shards": len(offsets), "names": name_count}:
        raise ValueError("its end is missing")
    return _ShardIndex(offsets, name_count, digest.hexdigest())


class _NumberedFile(NamedTuple):
    """A file of a manifest: the first has the number 0, its extensions 1 and up."""

    number: int
    name: str


def _numbered_files(store: Store) -> list[_NumberedFile]:
    """List the files of a store's manifest in the order of their numbers."""
    numbered_files = []
    for name in store.names():
        match = MANIFEST_NAME.fullmatch(name)
        if match is not None:
            number = int(match[1] or 0)
            numbered_files.append(_NumberedFile(number, name))
    return sorted(numbered_files)


def _is_header(fields: Any) -> bool:  # noqa: ANN401 - JSON
    """Return whether these are a header's fields; those that are only compared are not checked."""
    return (
        HeaderJson.__required_keys__ <= set(fields)
        and type(fields["shard_size"]) is int
        and fields["shard_size"] > 0
        and fields["format"] in {"jsonl", "parquet"}
        and isinstance(fields["settings"], dict)
        and isinstance(fields["inputs"], dict)
    )


def class_names_of(header: HeaderJson) -> list[str]:
    """Return the names of the model's classes that a manifest has, by class id; empty for none.

    The manifest may come from a stranger: unless all names are strings, there are none.
    """
    class_names: Any = header.get("class_names") or header["settings"].get("names")
    if not isinstance(class_names, list):
        return []
    if not all(isinstance(class_name, str) for class_name in class_names):
        return []
    return class_names


def shortened(names: Iterable[Name], count: int) -> str:
    """List the first few names, and add a mark if there are more."""
    examples = [source_of(name) for name in islice(names, EXAMPLES)]
    if count > EXAMPLES:
        examples.append("...")
    return ", ".join(examples)


def file_name(number: int) -> str:
    """Name of a manifest's first file, or of an extension, which are numbered from 1."""
    if number == 0:
        return FIRST_MANIFEST
    return f"_manifest-{number:05}.jsonl"


def publish(
    store: Store,
    section_name: str,
    header: HeaderJson,
    names: Iterable[Name],
    first_shard: int = 0,
) -> bool:
    """Cut the names of inputs into shards, and publish them as one file of a manifest.

    Args:
        store: The output folder of the run.
        section_name: The name of the file in it.
        header: Its first line, which also says how many names a shard has.
        names: The names of the inputs, in the order of the run.
        first_shard: The index of the first shard; not 0 in an extension of a manifest.

    Returns:
        Whether it was published; False if a file of that name already exists.
    """
    shard_count = 0
    name_count = 0
    with temporary_file_errors(), temporary() as file:
        _write(file, header)
        for names_of_shard in _batches(names, header["shard_size"]):
            names_json = [to_json(listed_name) for listed_name in names_of_shard]
            _write(file, {"shard": first_shard + shard_count, "names": names_json})
            shard_count += 1
            name_count += len(names_of_shard)
        _write(file, {"shards": shard_count, "names": name_count})
        return store.publish(section_name, file)


def _batches(names: Iterable[Name], size: int) -> Iterator[list[Name]]:
    """Cut names into lists of this size; the last one may be shorter."""
    remaining = iter(names)
    while True:
        batch = list(islice(remaining, size))
        if not batch:
            return
        yield batch


def _write(file: BinaryIO, fields: Any) -> None:  # noqa: ANN401 - JSON
    """Write a line; refuses names that make one longer than readers accept."""
    line = json.dumps(fields).encode("ascii") + b"\n"
    try:
        require_within_limit(line)
    except LineTooLongError as error:
        raise UsageError(
            f"the names of a shard make a line of the manifest, and {error}",
            "choose a smaller --shard-size",
        ) from error
    file.write(line)


def _flat(header: HeaderJson) -> dict[str, Any]:
    """Merge the settings and the options of inputs with the other fields of a header."""
    fields: dict[str, Any] = dict(header)
    fields.update(header["settings"])
    fields.update(header["inputs"])
    fields["settings"] = None
    fields["inputs"] = None
    return fields
