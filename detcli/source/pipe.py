"""Reading what comes bit by bit: whatever is there at once, and never a wait without end."""

import os
import select
import sys
from collections.abc import Iterator
from io import UnsupportedOperation
from pathlib import Path
from threading import Event

from detcli.errors import SourceError

CHUNK = 65536
PATIENCE_S = 1.0
"""Nothing for so long is told to the reader as an empty chunk."""
LOOK_UP_S = 0.2
"""How often a waiting thread looks whether it is to stop."""


def read_stdin(stop: Event) -> Iterator[bytes]:
    """Yield the bytes of standard input, see `read_descriptor`.

    Raises:
        SourceError: It is closed, or a terminal.
        OSError: It cannot be read.
    """
    hint = "pipe a picture in, as in: detcli predict - ... < bus.jpg"
    if sys.stdin is None:
        raise SourceError("standard input is closed", hint)
    if sys.stdin.isatty():
        raise SourceError("standard input is a terminal", hint)
    try:
        descriptor = sys.stdin.fileno()
    except UnsupportedOperation:  # somebody has put another object there
        yield from iter(lambda: sys.stdin.buffer.read(CHUNK), b"")
    else:
        yield from read_descriptor(descriptor, stop)


def read_file(name: str, stop: Event) -> Iterator[bytes]:
    """Yield the bytes of a file or a named pipe, see `read_descriptor`.

    Raises:
        OSError: It cannot be read.
    """
    with Path(name).open("rb", buffering=0) as file:
        yield from read_descriptor(file.fileno(), stop)


def read_descriptor(descriptor: int, stop: Event) -> Iterator[bytes]:
    """Yield bytes as they come, until there are no more or `stop` is set.

    Yields:
        Some bytes; none when nothing has come for a second.

    Raises:
        OSError: They cannot be read.
    """
    waited = 0.0
    while not stop.is_set():
        # Elsewhere only sockets can be waited for.
        if os.name == "posix" and not select.select([descriptor], [], [], LOOK_UP_S)[0]:
            waited += LOOK_UP_S
            if waited >= PATIENCE_S:
                waited = 0.0
                yield b""
            continue
        waited = 0.0
        if not (data := os.read(descriptor, CHUNK)):
            return
        yield data
