"""Lists of names, read as they come, however long they are."""

import os
import stat
import sys
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from pathlib import Path
from threading import Event

from detcli.errors import SourceError, UsageError, system_reason
from detcli.source.item import STDIN
from detcli.source.reading import file_chunks
from detcli.source.stdin import stdin_chunks

MAX_NAME_BYTES = 65536
"""No system accepts a longer path."""


def check_list(name: str) -> None:
    """Require that a list can be read, `-` for standard input.

    Raises:
        UsageError: The list cannot be read.
    """
    if name == STDIN:
        if sys.stdin is None or sys.stdin.isatty():
            raise UsageError(
                "--files-from - has nothing to read: standard input is "
                + ("closed" if sys.stdin is None else "a terminal"),
                "pipe names in, as in: find . -name '*.jpg' | detcli predict --files-from - ...",
            )
        return
    try:
        mode = Path(name).stat().st_mode
        problem = "it is a folder" if stat.S_ISDIR(mode) else ""
        if not problem and not os.access(name, os.R_OK):
            problem = "no permission"
    except (OSError, ValueError) as error:
        problem = system_reason(error)
    if problem:
        raise UsageError(f"--files-from {name} cannot be read: {problem}", "check the path")


def read_list(name: str, stop: Event, *, null_separated: bool) -> Iterator[str | SourceError]:
    """Yield the names in a list as they come.

    Args:
        name: File with the list, or `-` for standard input.
        stop: Ends the list early.
        null_separated: Whether names end with NUL instead of a newline.

    Yields:
        A name, in which bytes that are not UTF-8 become surrogates; or an error in its place.
    """
    separator = b"\0" if null_separated else b"\n"
    chunks = stdin_chunks(stop) if name == STDIN else file_chunks(name, stop)
    try:
        for number, line in enumerate(_split(chunks, separator)):
            if isinstance(line, SourceError):
                yield line
                continue
            entry = line
            if not null_separated:  # Windows adds a byte order mark and carriage returns
                entry = (line if number else line.removeprefix(BOM_UTF8)).removesuffix(b"\r")
            if entry:
                yield os.fsdecode(entry)
    except OSError as error:
        yield SourceError(
            f"the rest of the list cannot be read: {system_reason(error)}", "check its disk"
        )


def _split(chunks: Iterable[bytes], separator: bytes) -> Iterator[bytes | SourceError]:
    """Yield the lines between separators, and an error in place of one that is too long."""
    rest, skipping = b"", False
    for chunk in chunks:
        *complete, rest = (rest + chunk).split(separator)
        for line in complete:
            if not skipping:
                yield line
            skipping = False
        if skipping:
            rest = b""
        elif len(rest) > MAX_NAME_BYTES:
            rest, skipping = b"", True
            yield SourceError(
                f"a name of more than {MAX_NAME_BYTES} bytes in the list",
                "a list has one name a line; with -0, names end with NUL",
            )
    if rest:
        yield rest
