"""Reading: the bytes of files, pipes and standard input, and no more than an image can take up."""

import errno
import os
import select
import stat
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from io import BytesIO, UnsupportedOperation
from pathlib import Path
from threading import Event
from typing import NamedTuple, Self

from detcli.core.errors import AlteredError, DecodeError, PlaceError, SourceError, system_reason
from detcli.core.timing import POLL_S, RunningTime
from detcli.data.geometry import Image
from detcli.data.record import Origin
from detcli.source.decode import (
    DEFAULTS,
    DecodeOptions,
    format_of,
    load_bytes,
    too_slow,
)
from detcli.source.jpeg_header import read_header
from detcli.source.limits import LARGER
from detcli.source.segments import JPEG
from detcli.storage.file_names import did_you_mean
from detcli.storage.folder import NO_WAIT

CHUNK = 65536
FILE_CHUNK = 1 << 20

IDLE_S = 1.0  # after a silence this long, the reader gets an empty chunk

_FIRST_CHECK_BYTES = 65536  # the beginning of a file is checked when this many bytes have arrived

_BYTES_PER_PIXEL = 32  # more than a pixel of a JPEG takes
_MAX_METADATA_BYTES = 64 << 20  # more than the rest of a JPEG takes

# Up to this size, a file is read whole before it is checked.
_SMALL_FILE_BYTES = 64 << 20


class VersionedPath(str):  # noqa: SLOT000 - with an attribute
    """A name with the stamp of its file, by which a later change of the file is noticed."""

    stamp: str  # size and time of a file, or the ETag of an object

    @classmethod
    def of(cls, name: str, stamp: str) -> Self:
        """Return a name that carries the stamp with which it was listed."""
        versioned = cls(name)
        versioned.stamp = stamp
        return versioned


def stamp_of(status: os.stat_result) -> str:
    """Return the stamp of a file, by which a change is noticed: its size and its time in µs."""
    return f"{status.st_size}-{status.st_mtime_ns // 1000}"


def file_stamp(path: str | Path) -> str | None:
    """Return the stamp (size and time) of a file as it is now.

    It is None if the file is missing, or is a pipe or device, or `path` is an address.
    """
    try:
        status = os.stat(path)  # noqa: PTH116 - a million
    except (OSError, ValueError):  # it may be an address
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return stamp_of(status)


def present_stamp(origin: Origin) -> str | None:
    """Return the current stamp of an input's file; if it has no file, the one it was read with."""
    if origin.path is not None:
        return file_stamp(origin.path)
    return origin.file_stamp


def stamp_in_listing(entry: str) -> str | None:
    """The stamp that an entry was listed with; None if it has none."""
    if isinstance(entry, VersionedPath) and entry.stamp:
        return entry.stamp
    return None


def require_unchanged(name: str | Path, stamp: str | None) -> None:
    """Raise an AlteredError if a file or object has changed since it was listed.

    Args:
        name: The file; only a VersionedPath carries the stamp that it was listed with, and any
            other name passes.
        stamp: The stamp that the file has now (size and time of change, or an object's ETag).
    """
    if isinstance(name, VersionedPath) and name.stamp != stamp:
        raise changed_since_listed()


def changed_since_listed() -> AlteredError:
    """Make the error for a file or object that is not as it was when it was listed."""
    return AlteredError(
        "it has changed since it was listed", "process it as it is now with --retry-failed"
    )


def _too_large(max_bytes: int) -> DecodeError:
    return DecodeError(f"too large: more than {max_bytes} bytes", LARGER)


def gather(chunks: Iterable[bytes], max_bytes: int, total: int = 0, limit_s: float = 0.0) -> bytes:
    """Join the chunks of an image file, and stop early if they cannot be an image.

    What is read may be endless, or not an image at all. So the bytes that have arrived are checked
    at 64 KiB and each time they have doubled, instead of only at the end.

    Args:
        chunks: The bytes of the file as they come; an empty chunk says that none came for a while.
        max_bytes: The largest file that is accepted.
        total: The size of the file in bytes; 0 if it is not known before its end.
        limit_s: Seconds that all chunks together may take; 0 for any time.

    Raises:
        DecodeError: The file is too large, or not an image.
        SourceError: The chunks did not come in time.
    """
    if total > max_bytes:
        raise _too_large(max_bytes)
    next_check_bytes = _FIRST_CHECK_BYTES
    is_small_file = 0 < total <= _SMALL_FILE_BYTES
    if is_small_file:
        next_check_bytes = _SMALL_FILE_BYTES  # decoding checks it, too, so it may be read whole
    data = BytesIO()
    running = RunningTime()
    for chunk in chunks:
        data.write(chunk)
        read_bytes = data.tell()
        if read_bytes >= next_check_bytes:
            next_check_bytes = 2 * read_bytes
            min_length = max(read_bytes, total)  # `total` is 0 if it is not known
            _check_begin(data.getvalue(), min_length)
        if read_bytes > max_bytes:
            raise _too_large(max_bytes)
        if limit_s and running.seconds() > limit_s:
            raise too_slow(limit_s)
    return data.getvalue()


def _check_begin(begin: bytes, length: int) -> None:
    """Require that bytes are the beginning of an image file whose length is plausible.

    Only the length of a JPEG is checked: its header says how many pixels it has, and a file with
    far more bytes than these can take has something else after the image.

    Args:
        begin: The bytes that were read so far.
        length: How many bytes the file has, or has at least.

    Raises:
        DecodeError: The format is unknown, or the file is too long for its pixels.
    """
    if not format_of(begin):
        raise DecodeError(
            "not an image (not in a known image format)", "check what it is, as `file NAME` does"
        )
    if not begin.startswith(JPEG):
        return
    header = read_header(begin)
    if not header:
        return
    height, width = header.size
    max_length = _BYTES_PER_PIXEL * height * width + _MAX_METADATA_BYTES
    if length > max_length:
        raise DecodeError(
            f"too large: {length} bytes or more for {width}x{height} pixels",
            "check what follows the image in the file",
        )


def load_file(path: str | Path, options: DecodeOptions = DEFAULTS) -> Image:
    """Read an image file, or an image from a named pipe or a device, and decode it.

    A VersionedPath is refused if the file has changed since it was listed. The image holds the
    bytes of its file only if `options.keep` says so.

    Raises:
        AlteredError: The file has changed since it was listed.
        SourceError: The file cannot be read, or not in time.
        DecodeError: The image is incomplete or too large, or not in a known format.
    """
    try:
        with open(path, "rb", buffering=0, opener=_open_without_waiting) as file:
            content = _read_descriptor(path, file.fileno(), options)
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    image = load_bytes(content.data, options)
    if options.keep:
        return replace(image, file=content.data, file_stamp=content.stamp)
    return replace(image, file_stamp=content.stamp)


class _FileContent(NamedTuple):
    """The bytes of a file, and its stamp; a pipe has no stamp."""

    data: bytes
    stamp: str | None


def _read_descriptor(path: str | Path, descriptor: int, options: DecodeOptions) -> _FileContent:
    """Read an open file, or what is written to a pipe or device within the time limit.

    Args:
        path: The name of the file; a VersionedPath has the stamp that it was listed with.
        descriptor: Its descriptor.
        options: The time limit, and the size of the largest file that is accepted.

    Raises:
        AlteredError: The file has changed since it was listed.
        DecodeError: It is too large, or not an image.
    """
    status = os.fstat(descriptor)
    stamp = stamp_of(status)
    require_unchanged(path, stamp)
    is_file = stat.S_ISREG(status.st_mode)
    if is_file:
        chunks = iter(lambda: os.read(descriptor, FILE_CHUNK), b"")
        data = gather(chunks, options.max_bytes, status.st_size)
        return _FileContent(data, stamp)
    chunks = descriptor_chunks(descriptor, Event())
    data = gather(chunks, options.max_bytes, limit_s=options.inputs.input_timeout)
    return _FileContent(data, None)


def _open_without_waiting(path: str, flags: int) -> int:
    """Open a file without waiting for the writer of a named pipe; an `opener` for `open`."""
    return os.open(path, flags | NO_WAIT)


def _missing(path: str | Path) -> SourceError:
    """Return the error to raise for a path at which there is no file.

    A path with "://" was meant as an address. Any other path counts as mistyped if its folder has
    files. Otherwise its drive may be gone, which leaves an empty folder or none at all: that is a
    PlaceError.
    """
    if "://" in str(path):
        hint = "addresses begin with http, https, rtsp, rtsps, s3, gs or az; or name a path"
        return SourceError("not an address that can be read", hint)
    is_broken_link = os.path.lexists(path)  # its target may be on a drive that is gone
    if _has_files(Path(path).parent) and not is_broken_link:
        return SourceError("no such file", f"{did_you_mean(path)}check the path")
    hint = "check the path, from which folder it counts, and that its drive is there"
    return PlaceError("no such file", hint)


def _has_files(folder: Path) -> bool:
    """Whether anything is in a folder; False if it cannot be listed."""
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is not None
    except OSError:
        return False


CAUSED_BY_NAME = {None, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL}
"""Numbers of the errors that a name is to blame for; None for a name that no file can have."""


def unreadable(path: str | Path, error: OSError | ValueError) -> SourceError:
    """Return the error to raise for a file that cannot be opened or read.

    It is a SourceError if only this file is to blame, as with a mistyped name. It is a PlaceError
    if other files would fail as well, as on a missing drive. A run stops at a PlaceError and can be
    resumed later.

    Args:
        path: The file, as the user named it.
        error: What Python raised; a ValueError for a name that no file can have.
    """
    error_number = getattr(error, "errno", None)  # None for a ValueError
    if error_number in {errno.ENOENT, errno.ENOTDIR}:
        return _missing(path)
    message = f"cannot be read: {system_reason(error)}"
    hint = "check the path and permissions"
    if error_number is None:
        # The name has a NUL, as the names in a list that is read without the option -0.
        hint = "with -0, names end with NUL"
    if error_number in CAUSED_BY_NAME:
        return SourceError(message, hint)
    return PlaceError(message, hint)


def stdin_problem() -> str:
    """Return why there is nothing to read from standard input; empty if there may be something."""
    if sys.stdin is None:
        return "standard input is closed"
    if sys.stdin.isatty():
        return "standard input is a terminal"
    return ""


def stdin_chunks(stop: Event) -> Iterator[bytes]:
    """Yield the bytes of standard input as they come, until its end or until `stop` is set.

    An empty chunk comes after each second of silence, so that the reader can check the time.

    Raises:
        SourceError: Standard input is closed, or a terminal where nobody pipes anything in.
    """
    problem = stdin_problem()
    if problem:
        raise SourceError(problem, "pipe an image in, as in: detcli predict - ... < bus.jpg")
    try:
        descriptor = sys.stdin.fileno()
    except UnsupportedOperation:  # replaced by an object without a file
        yield from iter(lambda: sys.stdin.buffer.read(CHUNK), b"")
    else:
        yield from descriptor_chunks(descriptor, stop)


def file_chunks(name: str, stop: Event) -> Iterator[bytes]:
    """Yield the bytes of a file or a named pipe, see `descriptor_chunks`."""
    with Path(name).open("rb", buffering=0) as file:
        yield from descriptor_chunks(file.fileno(), stop)


def descriptor_chunks(descriptor: int, stop: Event) -> Iterator[bytes]:
    """Yield the bytes of an open file or pipe as they come.

    It ends with the file, or soon after another thread has set `stop`. While a pipe is silent, an
    empty chunk comes each second, so that the reader can check its time limit.
    """
    silent_s = 0.0
    while not stop.is_set():
        # Windows can only wait for sockets.
        is_readable = sys.platform == "win32" or bool(
            select.select([descriptor], [], [], POLL_S)[0]
        )
        if is_readable:
            data = os.read(descriptor, CHUNK)
            if not data:
                return
            yield data
            silent_s = 0.0
        else:
            silent_s += POLL_S
            if silent_s >= IDLE_S:
                yield b""
                silent_s = 0.0
