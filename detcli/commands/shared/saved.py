"""Reads records back: JSON Lines, an array, either behind gzip, or the parts of a run in shards."""

import gzip
import json
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from detcli.errors import InputError, SourceError, UsageError, system_reason
from detcli.object_store.address import is_object
from detcli.record import SCHEMA_VERSION, RecordJson
from detcli.source.item import STDIN

MAX_CLASS = 1_000_000
"""Class ids must be below this; no real model has a million classes."""

MAX_NUMBER = 1e15
"""Scores and corners must be below this, which float32 holds."""

SUFFIXES = (".jsonl", ".ndjson", ".json", ".jsonl.gz", ".ndjson.gz", ".json.gz")
"""Suffixes of saved records; a model's file never has them."""

GZIP = b"\x1f\x8b"
"""How a file that is compressed begins."""


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
        from detcli.shards.manifest import Manifest
        from detcli.shards.merging import Merge
        from detcli.shards.store import open_store

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
        if not is_record(fields):
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


def is_record(fields: Any) -> bool:  # noqa: ANN401 - JSON
    """Whether what was read has the form of a record, as far as a page shows it."""
    if not isinstance(fields, dict) or not isinstance(fields.get("source"), str):
        return False
    if "error" in fields:
        error = fields["error"]
        texts = ("type", "message", "hint")
        return isinstance(error, dict) and all(isinstance(error.get(t), str) for t in texts)
    return (
        isinstance(fields.get("detections"), list)
        and all(_is_natural(fields.get(name), 1) for name in ("width", "height"))
        and all(map(_is_detection, fields["detections"]))
        and ("frame" not in fields or _is_natural(fields["frame"], 0))
        and ("time_s" not in fields or _is_finite(fields["time_s"]))
        and isinstance(fields.get("time", ""), str)
        and all(isinstance(fields.get(name, ""), str) for name in ("model", "device"))
        and _is_list_of(fields.get("warnings", []), lambda one: isinstance(one, str))
        and isinstance(fields.get("settings", {}), dict)
        and isinstance(fields.get("provenance", {}), dict)
        and isinstance(fields.get("sha256", ""), str)
    )


def _is_detection(one: Any) -> bool:  # noqa: ANN401
    return (
        isinstance(one, dict)
        and _is_natural(one.get("class_id"), 0)
        and one["class_id"] < MAX_CLASS
        and isinstance(one.get("class_name"), str)
        and _is_finite(one.get("score"))
        and isinstance(one.get("box"), list)
        and len(one["box"]) == 4
        and all(map(_is_finite, one["box"]))
        and _is_natural(one.get("track_id", 0), 0)
        and _is_list_of(one.get("zones", []), lambda name: isinstance(name, str))
        and _is_list_of(one.get("crossed", []), _is_crossing)
    )


def _is_crossing(one: Any) -> bool:  # noqa: ANN401
    return isinstance(one, dict) and all(isinstance(one.get(name), str) for name in ("line", "to"))


def _is_list_of(value: object, holds: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(holds, value))


def _is_natural(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**53


def _is_finite(value: object) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and abs(value) < MAX_NUMBER  # NaN is not
    )
