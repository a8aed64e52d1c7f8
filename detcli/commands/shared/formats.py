"""Formats of records, and what writes them: a new one is a row of `Format`."""

import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeAlias

from detcli.commands.shared.messages import is_terminal
from detcli.errors import UsageError
from detcli.text import OBJECT_SCHEMES, public_name

if TYPE_CHECKING:
    from detcli.files import AtomicFile, DirectFile
    from detcli.object_store.address import Address
    from detcli.sink import Output, RecordSink


@dataclass(frozen=True, slots=True)
class Traits:
    """The properties of a format of records.

    Attributes:
        sink: The class that writes it, made of an `Output`; imported when used, as rich alone takes
            40 ms.
        suffixes: Suffixes of --output that choose it.
        appendable: It is complete after each record, so that records can be added to a file.
        has_provenance: Its records can carry their provenance, what made them.
        has_optional_columns: It has columns that only some options add.
        needs_file: It cannot be written to standard output.
        can_be_part: The parts of a run in shards can have it.
    """

    sink: str
    suffixes: tuple[str, ...] = ()
    appendable: bool = False
    has_provenance: bool = False
    has_optional_columns: bool = False
    needs_file: bool = False
    can_be_part: bool = False


class Format(StrEnum):
    """A format of records, a row each; the suffix of --output can choose it too."""

    traits: Traits

    def __new__(cls, value: str, traits: Traits) -> Self:
        """A member whose value is its name on the command line."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.traits = traits
        return member

    TABLE = "table", Traits("detcli.sink.text.TableSink", appendable=True)
    JSONL = (
        "jsonl",
        Traits(
            "detcli.sink.text.JsonLinesSink",
            (".jsonl", ".ndjson"),
            appendable=True,
            has_provenance=True,
            can_be_part=True,
        ),
    )
    JSON = "json", Traits("detcli.sink.text.JsonSink", (".json",), has_provenance=True)
    CSV = (
        "csv",
        Traits("detcli.sink.text.CsvSink", (".csv",), appendable=True, has_optional_columns=True),
    )
    PARQUET = (
        "parquet",
        Traits(
            "detcli.sink.parquet.ParquetSink",
            (".parquet",),
            has_optional_columns=True,
            needs_file=True,
            can_be_part=True,
        ),
    )
    LABELSTUDIO = "labelstudio", Traits("detcli.sink.labels.LabelStudioSink")


SUFFIXES = {suffix: one for one in Format for suffix in one.traits.suffixes}


Target: TypeAlias = "Path | Address"
"""What records are written to: a file, or an object in a store."""


def read_target(output: str | None) -> "Target | None":
    """The value of `--output`; None for standard output, where a hyphen sends records too.

    Raises:
        UsageError: It is a malformed address, or the folder of a store.
    """
    if output is None or output == "-":
        return None
    from detcli.object_store.address import Address, is_object
    from detcli.object_store.failures import ObjectError

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
    """Refuse objects in stores and standard output where files on a disk are wanted.

    Args:
        options: Paths by the names of their options.

    Raises:
        UsageError: One is an address, in which a path leaves one slash; or a hyphen.
    """
    for name, path in options.items():
        if str(path) == "-":
            raise UsageError(
                f"{name} cannot write to standard output", "name a place on a disk, not -"
            )
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
    from detcli.object_store.file import ObjectFile

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


def require_file(chosen: Format, output: "Target | None") -> None:
    """Refuse standard output for a format that needs a file.

    Raises:
        DependencyError: The library for the format is missing.
        UsageError: It is standard output.
    """
    if chosen.traits.needs_file:
        if output is None:
            raise UsageError(f"--format {chosen} needs --output", "name a file for it")
        _sink_class(chosen)  # its library may be missing: say so at once


def open_record_sink(
    chosen: Format, output: "Output", optional_columns: Sequence[str]
) -> "RecordSink":
    """What writes records in a format.

    Args:
        chosen: The format.
        output: What is written to.
        optional_columns: Columns that options add, in formats that have such columns.

    Raises:
        DependencyError: The library for the format is missing.
        UsageError: A file that is added to has other columns.
    """
    make = _sink_class(chosen)
    return make(output, optional_columns) if chosen.traits.has_optional_columns else make(output)


def _sink_class(chosen: Format) -> "Callable[..., RecordSink]":
    module, _, name = chosen.traits.sink.rpartition(".")
    made: Callable[..., RecordSink] = getattr(import_module(module), name)
    return made
