"""Formats of records, and what writes them."""

import stat
import sys
from enum import StrEnum
from pathlib import Path

from detcli.commands.shared.messages import is_terminal
from detcli.errors import UsageError


class Format(StrEnum):
    """A format of records; the suffix of --output can choose it too."""

    TABLE = "table"
    JSONL = "jsonl"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"


SUFFIXES = {
    ".jsonl": Format.JSONL,
    ".ndjson": Format.JSONL,
    ".json": Format.JSON,
    ".csv": Format.CSV,
    ".parquet": Format.PARQUET,
}


def choose_format(wanted: Format | None, output: Path | None) -> Format:
    """The requested format, else the one of the file's suffix, else what suits standard output.

    Raises:
        UsageError: The suffix is unknown.
    """
    if wanted is not None:
        return wanted
    if output is None:
        return Format.TABLE if is_terminal(sys.stdout) else Format.JSONL
    suffix = output.suffix.lower()
    if suffix and suffix not in SUFFIXES and not is_special(output):
        raise UsageError(
            f"--output {output}: the suffix {output.suffix} names no format",
            f"use {', '.join(SUFFIXES)}, or say which with --format; --save-txt writes YOLO labels",
        )
    return SUFFIXES.get(suffix, Format.JSONL)


def is_special(path: Path) -> bool:
    """Whether a name is that of a device or a pipe, which may be called anything."""
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):  # nothing has this name
        return False


RECORD_SINKS = {
    Format.TABLE: ("detcli.sink.table", "TableSink"),
    Format.JSONL: ("detcli.sink.json", "JsonLinesSink"),
    Format.JSON: ("detcli.sink.json", "JsonSink"),
    Format.CSV: ("detcli.sink.csv", "CsvSink"),
    Format.PARQUET: ("detcli.sink.parquet", "ParquetSink"),
}
"""Sinks of records, each made of an `Output`; imported when used, as rich alone takes 40 ms."""
