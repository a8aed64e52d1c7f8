"""Reads records back: JSON Lines, an array, either behind gzip, or the parts of a run in shards."""

import os
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from detcli.core.errors import CheckError, SourceError, UsageError, system_reason
from detcli.core.lines import bounded_lines, utf8_file
from detcli.core.text import is_object
from detcli.data.record import (
    RecordJson,
    parse_record,
)
from detcli.source.loading import STDIN
from detcli.storage.files import open_lines

SUFFIXES = (".jsonl", ".ndjson", ".json", ".jsonl.gz", ".ndjson.gz", ".json.gz")
"""Suffixes of saved records; a model's file never has them."""


def read_records(name: str) -> Iterator[RecordJson]:
    """Yield the records of a file, of standard input, or of a run in shards.

    Only the fields that a page shows are there for sure, and have the right types.

    Args:
        name: The path of a file of records; "-" for standard input; or the folder of a run in
            shards, on this machine or in a bucket.

    Raises:
        SourceError: It cannot be read.
        UsageError: It holds something else.
        CheckError: A part of the run is missing or damaged.
    """
    if name == STDIN:
        yield from _read_standard_input()
    elif is_folder(name) or is_object(name):
        yield from _read_shards(name)
    else:
        try:
            with open_lines(Path(name)) as file:
                yield from _read_lines(file, name)
        except (OSError, EOFError, zlib.error, ValueError) as error:  # of archives and names
            raise SourceError(f"cannot read {name}: {system_reason(error)}", "check it") from error


def _read_standard_input() -> Iterator[RecordJson]:
    """Yield the records on standard input.

    Raises:
        SourceError: It is closed, or holds no text.
        UsageError: A line is not a record.
    """
    if sys.stdin is None:
        raise SourceError("standard input is closed", "pipe records in, or name a file")
    try:
        yield from _read_lines(utf8_file(sys.stdin.buffer, close=False), "standard input")
    except UnicodeDecodeError as error:
        raise SourceError(f"cannot read standard input: {error}", "check it") from error


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
    if not merge.faults:  # no file is missing
        yield from merge
    if merge.faults:  # reading may have found another one
        fault = merge.faults[0]
        raise CheckError(f"{fault.part}: {fault.reason}", "complete the run, or see merge")


def is_folder(name: str) -> bool:
    """Whether a name is that of a folder; a name that no file can have is not."""
    return os.path.isdir(name)  # noqa: PTH112 - raises nothing


def _read_lines(file: BinaryIO, name: str) -> Iterator[RecordJson]:
    """Yield the records of a file that has one on each line.

    It may be JSON Lines, or an array of JSON as detcli writes it: with its brackets on lines of
    their own, and a comma behind each record but the last.

    Args:
        file: The file, at its beginning.
        name: What to call it in a message.

    Raises:
        UsageError: A line is something else.
    """
    lines = bounded_lines(file)
    line_number = 1
    try:
        for line in lines:
            text = line.strip().rstrip(b",")
            is_bracket_or_empty = text in {b"", b"[", b"]"}
            is_empty_array = line_number == 1 and text == b"[]"
            if not is_bracket_or_empty and not is_empty_array:
                yield parse_record(text)
            line_number += 1
    except UnicodeDecodeError:
        raise
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"line {line_number} of {name} is not a record of detcli: {error}",
            "name JSON Lines that predict or merge of this version, or an earlier one, wrote",
        ) from error
