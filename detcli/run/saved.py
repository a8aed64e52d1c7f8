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

    Raises:
        SourceError: It cannot be read.
        UsageError: It holds something else.
        CheckError: A part of the run is missing or damaged.
    """
    if name == STDIN:
        if sys.stdin is None:
            raise SourceError("standard input is closed", "pipe records in, or name a file")
        try:
            yield from _from_lines(utf8_file(sys.stdin.buffer, close=False), "standard input")
        except UnicodeDecodeError as error:
            raise SourceError(f"cannot read standard input: {error}", "check it") from error
    elif is_folder(name) or is_object(name):
        from detcli.run.shards.manifest import Manifest
        from detcli.run.shards.parts import Merge
        from detcli.run.shards.store import open_store

        store = open_store(name)
        merge = Merge(store, Manifest(store))
        if not merge.faults:  # no part is missing
            yield from merge
        for fault in merge.faults:
            raise CheckError(f"{fault.part}: {fault.reason}", "complete the run, or see merge")
    else:
        try:
            with open_lines(Path(name)) as file:
                yield from _from_lines(file, name)
        except (OSError, EOFError, zlib.error, ValueError) as error:  # of archives and names
            raise SourceError(f"cannot read {name}: {system_reason(error)}", "check it") from error


def is_folder(name: str) -> bool:
    """Whether a name is that of a folder; a name that no file can have is not."""
    return os.path.isdir(name)  # noqa: PTH112 - raises nothing


def _from_lines(file: BinaryIO, name: str) -> Iterator[RecordJson]:
    """Records of lines; those of an array have a comma behind them."""
    lines = bounded_lines(file)
    number = 1
    try:
        for line in lines:
            text = line.strip().rstrip(b",")
            if text not in {b"", b"[", b"]"} and (number, text) != (1, b"[]"):
                yield parse_record(text)
            number += 1
    except UnicodeDecodeError:
        raise
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"line {number} of {name} is not a record of detcli: {error}",
            "name JSON Lines that predict or merge of this version, or an earlier one, wrote",
        ) from error
