"""Formats of records, and what writes them."""

import stat
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from detcli.commands.shared.messages import is_terminal
from detcli.errors import UsageError
from detcli.text import OBJECT_SCHEMES, public_name

if TYPE_CHECKING:
    from detcli.files import AtomicFile, DirectFile
    from detcli.objects.address import Address
    from detcli.sink import Output, RecordSink


class Format(StrEnum):
    """A format of records; the suffix of --output can choose it too."""

    TABLE = "table"
    JSONL = "jsonl"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"
    LABELSTUDIO = "labelstudio"


SUFFIXES = {
    ".jsonl": Format.JSONL,
    ".ndjson": Format.JSONL,
    ".json": Format.JSON,
    ".csv": Format.CSV,
    ".parquet": Format.PARQUET,
}


Target: TypeAlias = "Path | Address"
"""What records are written to: a file, or an object in a store."""


def read_target(output: str | None) -> "Target | None":
    """The value of `--output`; None for standard output, where a hyphen sends records too.

    Raises:
        UsageError: It is a malformed address, or the folder of a store.
    """
    if output is None or output == "-":
        return None
    from detcli.objects.address import Address, is_object
    from detcli.objects.failures import ObjectError

    if not is_object(output):
        return Path(output)
    try:
        address = Address.parse(output)
    except ObjectError as error:
        raise UsageError(f"--output {public_name(output)}: {error}", error.hint) from None
    if not address.key:
        raise UsageError(f"--output {output} names no object", "write it as in s3://bucket/a.jsonl")
    return address


def require_disk(options: Mapping[str, Path | None]) -> None:
    """Refuse objects in stores where files on a disk are wanted.

    Args:
        options: Paths by the names of their options.

    Raises:
        UsageError: One is an address, in which a path leaves one slash.
    """
    for name, path in options.items():
        if path is not None and str(path).startswith(tuple(s[:-1] for s in OBJECT_SCHEMES)):
            raise UsageError(
                f"{name} cannot write to an object store",
                "name a place on a disk; records can go there, with --output",
            )


def open_target(target: Target) -> "AtomicFile | DirectFile":
    """Open what records are written to.

    Raises:
        OutputError: It cannot be written.
    """
    if isinstance(target, Path):
        from detcli.files import open_output

        return open_output(target)
    from detcli.sink.object import ObjectFile

    return ObjectFile(target)


def choose_format(wanted: Format | None, output: "Target | None") -> Format:
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


def is_special(path: Target) -> bool:
    """Whether a name is that of a device or a pipe, which may be called anything."""
    try:
        return isinstance(path, Path) and not stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):  # nothing has this name
        return False


RECORD_SINKS = {
    Format.TABLE: ("detcli.sink.table", "TableSink"),
    Format.JSONL: ("detcli.sink.json", "JsonLinesSink"),
    Format.JSON: ("detcli.sink.json", "JsonSink"),
    Format.CSV: ("detcli.sink.csv", "CsvSink"),
    Format.PARQUET: ("detcli.sink.parquet", "ParquetSink"),
    Format.LABELSTUDIO: ("detcli.sink.labelstudio", "LabelStudioSink"),
}
"""Sinks of records, each made of an `Output`; imported when used, as rich alone takes 40 ms."""


def open_record_sink(chosen: Format, output: "Output", watched: Sequence[str]) -> "RecordSink":
    """What writes records in a format.

    Args:
        chosen: The format.
        output: What is written to.
        watched: Columns of CSV and Parquet that are there only with an option.

    Raises:
        DependencyError: The library for Parquet is missing.
        UsageError: A file that is added to has other columns.
    """
    module, name = RECORD_SINKS[chosen]
    make = getattr(import_module(module), name)
    columns = chosen in {Format.CSV, Format.PARQUET}
    sink: RecordSink = make(output, watched) if columns else make(output)
    return sink
