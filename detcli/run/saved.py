"""Reads records back: JSON Lines, an array, either behind gzip, or the parts of a run in shards."""

import gzip
import json
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from detcli.core.errors import InputError, SourceError, UsageError, system_reason
from detcli.core.record import SCHEMA_VERSION, RecordJson
from detcli.core.text import is_object
from detcli.source.loading import STDIN

MAX_CLASS = 1_000_000
"""Class ids must be below this; no real model has a million classes."""

MAX_NUMBER = 1e15
"""Scores and corners must be below this, which float32 holds."""

SUFFIXES = (".jsonl", ".ndjson", ".json", ".jsonl.gz", ".ndjson.gz", ".json.gz")
"""Suffixes of saved records; a model's file never has them."""

GZIP = b"\x1f\x8b"
"""How a file that is compressed begins."""

Check = Callable[[Any], bool]


def read_records(name: str) -> Iterator[RecordJson]:
    """Yield the records of a file, of standard input, or of a run in shards.

    Only the fields that a page shows are there for sure, and have the right types.

    Raises:
        SourceError: It cannot be read.
        UsageError: It holds something else.
    """
    if name == STDIN:
        if sys.stdin is None:
            raise SourceError("standard input is closed", "pipe records in, or name a file")
        yield from _from_lines(sys.stdin.buffer, "standard input")
    elif is_folder(name) or is_object(name):
        from detcli.run.shards.manifest import Manifest
        from detcli.run.shards.parts import Merge
        from detcli.run.shards.store import open_store

        store = open_store(name if name.endswith(("/", os.sep)) else f"{name}/")
        merge = Merge(store, Manifest(store))
        if not merge.faults:  # no part is missing
            yield from merge
        for fault in merge.faults:
            raise InputError(f"{fault.part}: {fault.reason}", "complete the run, or see merge")
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
    with path.open("rb") as file:
        begins = file.peek(len(GZIP))[: len(GZIP)] if file.seekable() else b""
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
        if not _is_record(fields):
            raise UsageError(
                f"line {number} of {name} is not a record of detcli",
                "name a file that predict or merge wrote, as JSON Lines",
            )
        if fields.get("schema_version") != SCHEMA_VERSION:
            raise UsageError(
                f"line {number} of {name} is a record of another version",
                f"this detcli reads version {SCHEMA_VERSION}; take the one that wrote it",
            )
        yield cast("RecordJson", fields)


def _of(kind: type) -> Check:
    return lambda value: isinstance(value, kind)


def _list_of(check: Check, count: int | None = None) -> Check:
    return lambda value: (
        isinstance(value, list) and count in {None, len(value)} and all(map(check, value))
    )


def _natural(least: int, below: int = 2**53) -> Check:
    return lambda value: type(value) is int and least <= value < below


def _is_finite(value: Any) -> bool:  # noqa: ANN401
    return type(value) in {int, float} and abs(value) < MAX_NUMBER  # NaN is not


def _object(required: dict[str, Check], optional: dict[str, Check] | None = None) -> Check:
    return lambda value: (
        isinstance(value, dict)
        and all(name in value and check(value[name]) for name, check in required.items())
        and all(check(value[name]) for name, check in (optional or {}).items() if name in value)
    )


TEXT = _of(str)

DETECTION = _object(
    {
        "class_id": _natural(0, MAX_CLASS),
        "class_name": TEXT,
        "score": _is_finite,
        "box": _list_of(_is_finite, 4),
    },
    {
        "track_id": _natural(0),
        "zones": _list_of(TEXT),
        "crossed": _list_of(_object({"line": TEXT, "to": TEXT})),
    },
)

FAILURE = _object({"source": TEXT, "error": _object({"type": TEXT, "message": TEXT, "hint": TEXT})})

RECORD = _object(
    {
        "source": TEXT,
        "width": _natural(1),
        "height": _natural(1),
        "detections": _list_of(DETECTION),
    },
    {
        "frame": _natural(0),
        "time_s": _is_finite,
        "time": TEXT,
        "model": TEXT,
        "device": TEXT,
        "warnings": _list_of(TEXT),
        "settings": _of(dict),
        "provenance": _of(dict),
        "sha256": TEXT,
    },
)
"""The form of a record with detections, as far as a page or `verify` shows it."""


def _is_record(fields: Any) -> bool:  # noqa: ANN401 - JSON
    return (FAILURE if isinstance(fields, dict) and "error" in fields else RECORD)(fields)
