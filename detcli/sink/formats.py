"""The formats of records: what each can do, which sink writes it, and which one a run gets."""

import stat
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from detcli.config.values import SUFFIXES, Format, Target
from detcli.core.errors import UsageError
from detcli.core.text import is_terminal
from detcli.sink.protocol import Output, RecordSink
from detcli.storage.files import (
    AtomicFile,
    DirectFile,
    OutputState,
    open_output,
)


def open_target(target: Target, before: OutputState | None = None) -> AtomicFile | DirectFile:
    """Open what records are written to; `before` is the state of its name when the run began.

    Raises:
        OutputError: It cannot be written.
    """
    if isinstance(target, Path):
        return open_output(target, before)
    from detcli.storage.objects import ObjectFile

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


def open_record_sink(chosen: Format, output: Output, optional_columns: Sequence[str]) -> RecordSink:
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
    return make(output, optional_columns) if chosen.traits.flat else make(output)


def _sink_class(chosen: Format) -> Callable[..., RecordSink]:
    module, _, name = chosen.traits.sink.rpartition(".")
    made: Callable[..., RecordSink] = getattr(import_module(module), name)
    return made
