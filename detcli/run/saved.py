"""Reads records back: JSON Lines or an array, gzip of these, or a run in shards.

Tables in CSV and Parquet, and what other programs write, are read by a row of `OTHER_FORMATS`.
"""

import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from detcli.config.inputs import InputOptions
from detcli.core import frozen
from detcli.core.errors import CheckError, SourceError, system_reason
from detcli.core.lines import utf8_file
from detcli.core.text import is_object
from detcli.data.record import RecordJson
from detcli.data.record_file import is_csv, is_parquet, is_single_object, read_lines
from detcli.source.loading import STDIN
from detcli.storage.file_names import did_you_mean
from detcli.storage.files import open_lines

if TYPE_CHECKING:
    import io

    from detcli.page.find_images import Finder

RECORD_SUFFIXES = (
    ".jsonl",
    ".ndjson",
    ".json",
    ".csv",
    ".jsonl.gz",
    ".ndjson.gz",
    ".json.gz",
    ".csv.gz",
    ".parquet",
)
"""Suffixes of saved records; a model's file never has them."""


PEEK_BYTES = 4096  # at the start of a file, which show its format


@frozen
class OtherFormat:
    """A format that records are read from, other than those with a record on each line."""

    is_format: Callable[[bytes], bool]  # recognises it by the first bytes of a file
    # yields the records of a file: its path, what to call it in messages, what finds images
    read: "Callable[[Path, str, Finder], Iterator[RecordJson]]"


def _begins_as_megadetector(beginning: bytes) -> bool:
    """Return whether a file holds results of MegaDetector, from its first bytes."""
    if not is_single_object(beginning):
        return False
    from detcli.run.megadetector import is_megadetector

    return is_megadetector(beginning)


def _read_megadetector(path: Path, name: str, finder: "Finder") -> Iterator[RecordJson]:
    """Yield the records of a file of MegaDetector's results."""
    from detcli.run.megadetector import read_megadetector

    return read_megadetector(path, name, finder)


def _read_csv(path: Path, name: str, finder: "Finder") -> Iterator[RecordJson]:
    """Yield the records of a table in CSV."""
    from detcli.run.tables import read_csv

    return read_csv(path, name, finder)


def _read_parquet(path: Path, name: str, finder: "Finder") -> Iterator[RecordJson]:
    """Yield the records of a table in Parquet."""
    from detcli.run.tables import read_parquet

    return read_parquet(path, name, finder)


OTHER_FORMATS = [
    OtherFormat(_begins_as_megadetector, _read_megadetector),
    OtherFormat(is_csv, _read_csv),
    OtherFormat(is_parquet, _read_parquet),
]
"""Formats other than one record per line. Their readers are imported when they are used."""


def read_records(name: str, finder: "Finder | None" = None) -> Iterator[RecordJson]:
    """Yield the records of a file, of standard input, or of a run in shards.

    Only the fields that a page shows are sure to exist, and to have the right types.

    Args:
        name: The path of a file of records; "-" for standard input; or the folder of a run in
            shards, on this machine or in a bucket. The file may hold results of MegaDetector.
        finder: Finds images where a format lacks their sizes; by default, where the records say.

    Raises:
        SourceError: It cannot be read.
        UsageError: It holds something else.
        CheckError: A part of the run is missing or damaged.
    """
    if name == STDIN:
        yield from _read_standard_input(finder)
    elif is_folder(name) or is_object(name):
        yield from _read_shards(name)
    else:
        yield from _read_file(name, finder)


def _read_file(name: str, finder: "Finder | None") -> Iterator[RecordJson]:
    """Yield the records of a file, or what the format of another program has instead.

    Args:
        name: The path of the file.
        finder: Finds images where a format lacks their sizes; None for the usual one.

    Raises:
        SourceError: It cannot be read.
        UsageError: It holds something else.
    """
    path = Path(name)
    try:
        with open_lines(path) as file:
            other_format = _other_format(file)
            if other_format is None:
                yield from read_lines(file, name)
                return
        yield from other_format.read(path, name, finder or _default_finder())
    except (OSError, EOFError, zlib.error, ValueError) as error:  # of archives and names
        hint = "check it"
        if isinstance(error, FileNotFoundError):
            hint = f"{did_you_mean(name)}check it"
        raise SourceError(f"cannot read {name}: {system_reason(error)}", hint) from error


def _default_finder() -> "Finder":
    """Make what finds images where the records say they are."""
    from detcli.page.find_images import Finder

    return Finder(None, InputOptions())


def _other_format(file: BinaryIO) -> OtherFormat | None:
    """Determine the format of a file from another program; None if it has records on lines.

    Args:
        file: The file, from which nothing has been read yet; its position stays.
    """
    beginning = cast("io.BufferedReader", file).peek(PEEK_BYTES)[:PEEK_BYTES]
    for other_format in OTHER_FORMATS:
        if other_format.is_format(beginning):
            return other_format
    return None


def _read_standard_input(finder: "Finder | None") -> Iterator[RecordJson]:
    """Yield the records on standard input.

    Args:
        finder: Finds images where a format lacks their sizes; None for the usual one.

    Raises:
        SourceError: It is closed, or holds no text.
        UsageError: A line is not a record.
    """
    if sys.stdin is None:
        raise SourceError("standard input is closed", "pipe records in, or name a file")
    try:
        file = utf8_file(sys.stdin.buffer, close=False)
        other_format = _other_format(file)
        if other_format is None:
            yield from read_lines(file, "standard input")
        else:
            yield from _read_copy(file, other_format, finder or _default_finder())
    except UnicodeDecodeError as error:
        raise SourceError(f"cannot read standard input: {error}", "check it") from error


def _read_copy(file: BinaryIO, other_format: OtherFormat, finder: "Finder") -> Iterator[RecordJson]:
    """Yield the records on standard input, in a format of another program.

    They are read from a temporary copy, as the readers of such formats may start again.
    """
    with tempfile.TemporaryDirectory(prefix="detcli-") as folder:
        copy_path = Path(folder, "records")
        with copy_path.open("wb") as copy:
            shutil.copyfileobj(file, copy)
        yield from other_format.read(copy_path, "standard input", finder)


def _read_shards(name: str) -> Iterator[RecordJson]:
    """Yield the records of a run that was cut into shards, in order, from the file of each shard.

    Args:
        name: The folder of the run, on this machine or in a bucket.

    Raises:
        CheckError: The file of a shard is missing or damaged.
    """
    from detcli.run.shards.manifest import Manifest
    from detcli.run.shards.parts import Merge
    from detcli.run.shards.store import open_store

    store = open_store(name)
    merge = Merge(store, Manifest(store))
    is_any_file_missing = bool(merge.faults)
    if not is_any_file_missing:
        yield from merge  # adds damaged files to the faults
    if merge.faults:
        fault = merge.faults[0]
        raise CheckError(f"{fault.part}: {fault.reason}", "complete the run, or see merge")


def is_folder(name: str) -> bool:
    """Whether a name is that of a folder; a name that no file can have is not."""
    return os.path.isdir(name)  # noqa: PTH112 - raises nothing
