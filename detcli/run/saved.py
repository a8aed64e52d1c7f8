"""Reads records back: JSON Lines, an array, either behind gzip, or the parts of a run in shards."""

import gzip
import json
import os
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from detcli.core.errors import CheckError, SourceError, UsageError, system_reason
from detcli.core.files import open_regular
from detcli.core.record import SCHEMA_VERSION, RecordJson, to_record
from detcli.core.text import is_object
from detcli.source.loading import STDIN

SUFFIXES = (".jsonl", ".ndjson", ".json", ".jsonl.gz", ".ndjson.gz", ".json.gz")
"""Suffixes of saved records; a model's file never has them."""

GZIP = b"\x1f\x8b"  # how a file that is compressed begins


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
        yield from _from_lines(sys.stdin.buffer, "standard input")
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


def open_lines(path: Path) -> BinaryIO:
    """Open a file of text, which may be compressed by gzip.

    Raises:
        OSError: It cannot be opened.
    """
    with open_regular(path) as file:
        begins = file.peek(len(GZIP))[: len(GZIP)]
    return cast("BinaryIO", gzip.open(path)) if begins == GZIP else path.open("rb")


def _from_lines(file: BinaryIO, name: str) -> Iterator[RecordJson]:
    """Records of lines; those of an array have a comma behind them."""
    for number, line in enumerate(file, start=1):
        text = line.strip().rstrip(b",")
        if text in {b"", b"[", b"]"} or (number, text) == (1, b"[]"):
            continue
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError):
            fields = None
        record = to_record(fields)
        if record is None:
            raise UsageError(
                f"line {number} of {name} is not a record of detcli",
                "name a file that predict or merge wrote, as JSON Lines",
            )
        if record.get("schema_version") != SCHEMA_VERSION:
            raise UsageError(
                f"line {number} of {name} is a record of another version",
                f"this detcli reads versions up to {SCHEMA_VERSION}; take the one that wrote it",
            )
        yield record
