"""Lists of names: read as they come, however long they are."""

import os
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from threading import Event

from detcli.errors import SourceError, UsageError
from detcli.source.pipe import read_file, read_stdin

MOST_BYTES = 65536
"""In a name; no system takes more in a path."""


def check_list(name: str) -> None:
    """Look whether a list can be read, `-` for standard input.

    Raises:
        UsageError: It cannot.
    """
    if name == "-":
        if sys.stdin is None or sys.stdin.isatty():
            raise UsageError(
                "--files-from - has nothing to read: standard input is "
                + ("closed" if sys.stdin is None else "a terminal"),
                "pipe names in, as in: find . -name '*.jpg' | detcli predict --files-from - ...",
            )
        return
    try:
        mode = Path(name).stat().st_mode
        reason = "it is a folder" if stat.S_ISDIR(mode) else ""
        if not reason and not os.access(name, os.R_OK):
            reason = "no permission"
    except (OSError, ValueError) as error:
        reason = str(error.strerror if isinstance(error, OSError) else error)
    if reason:
        raise UsageError(f"--files-from {name} cannot be read: {reason}", "check the path")


def read_list(name: str, stop: Event, *, null_separated: bool) -> Iterator[str | SourceError]:
    """Yield the names in a list as they come.

    Args:
        name: File with the list, or `-` for standard input.
        stop: Ends the list early.
        null_separated: Names end with NUL instead of a newline.

    Yields:
        A name; bytes that are no UTF-8 become surrogates. Or why there is none.
    """
    separator = b"\0" if null_separated else b"\n"
    chunks = read_stdin(stop) if name == "-" else read_file(name, stop)
    try:
        for number, line in enumerate(_split(chunks, separator)):
            if isinstance(line, SourceError):
                yield line
            elif found := line if null_separated else _without_windows(line, first=number == 0):
                yield os.fsdecode(found)
    except OSError as error:
        yield SourceError(
            f"the list cannot be read further: {error.strerror or error}", "look at its disk"
        )


def _without_windows(line: bytes, *, first: bool) -> bytes:
    """A line without what Windows puts around it."""
    return (line.removeprefix(b"\xef\xbb\xbf") if first else line).removesuffix(b"\r")


def _split(chunks: Iterable[bytes], separator: bytes) -> Iterator[bytes | SourceError]:
    """Yield what lies between separators; of what is too long, an error."""
    rest, skipping = b"", False
    for chunk in chunks:
        *complete, rest = (rest + chunk).split(separator)
        for line in complete:
            if not skipping:
                yield line
            skipping = False
        if skipping:
            rest = b""
        elif len(rest) > MOST_BYTES:
            rest, skipping = b"", True
            yield SourceError(
                f"a name of more than {MOST_BYTES} bytes in the list",
                "a list has a name a line; with -0, names end with NUL",
            )
    if rest:
        yield rest
