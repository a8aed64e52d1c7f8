"""The formats that records can be written in."""

import sys
from enum import StrEnum
from pathlib import Path


class Format(StrEnum):
    """How records are written."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    CSV = "csv"


def choose_format(wanted: Format | None, output: Path | None) -> Format:
    """The format asked for, or that of the file's suffix, or what suits standard output."""
    if wanted is not None:
        return wanted
    if output is not None:
        suffix = output.suffix.lower().removeprefix(".")
        return Format(suffix) if suffix in list(Format) else Format.JSONL
    return Format.TABLE if sys.stdout and sys.stdout.isatty() else Format.JSONL
