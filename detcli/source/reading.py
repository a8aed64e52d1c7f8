"""Reading: the bytes of a picture from a file or a pipe, and no more than a picture can need."""

import os
import select
import stat
from collections.abc import Iterable, Iterator
from io import BytesIO
from pathlib import Path
from threading import Event

from detcli.errors import DecodeError
from detcli.source import decode_jpeg
from detcli.source.decode_size import JPEG, is_known
from detcli.timing import RunningTime

CHUNK = 65536
FILE_CHUNK = 1 << 20
POLL_S = 0.2
"""How often a waiting thread checks whether it is to stop."""

IDLE_S = 1.0
"""After a silence this long, the reader gets an empty chunk."""

_FIRST_LOOK, _LOOK_AGAIN = 65536, 2
"""The beginning is looked at when this many bytes are there, and when twice as many are."""

_BYTES_PER_PIXEL, _METADATA = 32, 64 << 20
"""More than a pixel of a JPEG takes, and the rest of the file."""


class InputTimeoutError(Exception):
    """An input took too long; not the built-in TimeoutError, which is an OSError."""


def gather(chunks: Iterable[bytes], max_bytes: int, total: int = 0) -> bytes:
    """Join chunks, as long as they may be a picture.

    Args:
        chunks: The bytes as they come.
        max_bytes: More are refused.
        total: How many will come, if that is known.

    Raises:
        DecodeError: There are too many, or they are not in a known format.
    """
    data = BytesIO()
    look_at = _METADATA if 0 < total <= _METADATA else _FIRST_LOOK  # no need in a small file
    _check_length(total, max_bytes)
    for chunk in chunks:
        data.write(chunk)
        if data.tell() >= look_at:
            look_at = _LOOK_AGAIN * data.tell()
            _check_begin(data.getvalue(), max(data.tell(), total))
        _check_length(data.tell(), max_bytes)
    return data.getvalue()


def _check_length(length: int, max_bytes: int) -> None:
    if length > max_bytes:
        raise DecodeError(
            f"too large: more than {max_bytes} bytes",
            "raise --max-pixels if it is meant to be that large",
        )


def _check_begin(begin: bytes, length: int) -> None:
    """Require that a picture begins like this and may have this many bytes."""
    if not is_known(begin):
        raise DecodeError(
            "not a picture (not in a known picture format)", "check what it is, as `file NAME` does"
        )
    header = decode_jpeg.read_header(begin) if begin.startswith(JPEG) else None
    if header and length > _BYTES_PER_PIXEL * header.height * header.width + _METADATA:
        height, width = header.size
        raise DecodeError(
            f"too large: {length} bytes or more for {width}x{height} pixels",
            "check what follows the picture in the file",
        )


def read_file(path: Path, max_bytes: int, timeout_s: float) -> bytes:
    """Read a picture file; or a pipe or device, which may have no end and may never begin.

    Raises:
        OSError, ValueError: It cannot be read.
        InputTimeoutError: It did not end in time.
        DecodeError: It has too many bytes, or is not in a known format.
    """
    # Opening a pipe would wait for its writer.
    descriptor = os.open(
        path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    )
    try:
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            chunks = iter(lambda: os.read(descriptor, FILE_CHUNK), b"")
            return gather(chunks, max_bytes, status.st_size)
        if stat.S_ISDIR(status.st_mode):
            os.read(descriptor, 1)  # raises IsADirectoryError
        return gather(in_time(descriptor_chunks(descriptor, Event()), timeout_s), max_bytes)
    finally:
        os.close(descriptor)


def in_time(chunks: Iterable[bytes], timeout_s: float) -> Iterator[bytes]:
    """Yield chunks for at most this long; 0 for no limit.

    Raises:
        InputTimeoutError: They do not end in time.
    """
    running = RunningTime()
    for chunk in chunks:
        yield chunk
        if timeout_s and running.seconds() > timeout_s:
            raise InputTimeoutError


def file_chunks(name: str, stop: Event) -> Iterator[bytes]:
    """Yield the bytes of a file or a named pipe, see `descriptor_chunks`.

    Raises:
        OSError: The file cannot be read.
    """
    with Path(name).open("rb", buffering=0) as file:
        yield from descriptor_chunks(file.fileno(), stop)


def descriptor_chunks(descriptor: int, stop: Event) -> Iterator[bytes]:
    """Yield bytes as they come, until the end or until `stop` is set.

    Yields:
        Some bytes; empty when nothing has come for a second.

    Raises:
        OSError: The descriptor cannot be read.
    """
    waited = 0.0
    while not stop.is_set():
        # Windows can only wait for sockets.
        if os.name == "posix" and not select.select([descriptor], [], [], POLL_S)[0]:
            waited += POLL_S
            if waited < IDLE_S:
                continue
            yield b""
        elif data := os.read(descriptor, CHUNK):
            yield data
        else:
            return
        waited = 0.0
