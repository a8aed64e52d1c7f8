"""Files: writing so that no half-written file is ever visible, and reading within limits."""

import contextlib
import errno
import io
import os
import stat
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from io import FileIO
from pathlib import Path
from typing import IO, Any, BinaryIO, TypeVar, cast

from detcli.core.errors import DetcliError, DetcliWarning, OutputError, system_reason
from detcli.core.interrupts import interrupts
from detcli.storage.folder import NO_WAIT, Folder, LockState, OutputState, lock, sync

T = TypeVar("T")

REDIRECT = "redirect it to a file or a pipe"
"""What to do where a standard stream is closed."""

LOCK_FILE = ".detcli-lock"
"""What stands for the lock of a folder in Windows."""

LOCK_TIMEOUT_S = 60.0
"""How long to wait for a lock that is held only for moments."""

LOCK_RETRY_S = 0.002
"""The pause between two attempts to get a lock."""

STDOUT, STDERR = 1, 2  # the descriptors of standard output and standard error
STREAMS = {
    "/dev/stdout": STDOUT,
    "/dev/fd/1": STDOUT,
    "/proc/self/fd/1": STDOUT,
    "/dev/stderr": STDERR,
    "/dev/fd/2": STDERR,
    "/proc/self/fd/2": STDERR,
}
"""Names of the process's own streams, by their descriptors."""

LFS_POINTER = b"version https://git-lfs.github.com/spec/"
LFS_REASON = "a Git LFS pointer, in place of the file itself"
LFS_HINT = "fetch the file: git lfs pull, in the repository that it is from"
GZIP = b"\x1f\x8b"  # how a compressed file begins


class StandardOutput:
    """Standard output as UTF-8, one record at a time.

    Bytes of a file name that are not Unicode become escapes, which JSON reads back.
    """

    def __init__(self) -> None:
        if sys.stdout is None:
            raise OutputError("standard output is closed", REDIRECT)
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace", newline="\n")
        self.file: IO[Any] = sys.stdout

    def write(self, text: str) -> None:
        """Write and flush, see `writing`."""
        with writing("standard output"):
            self.file.write(text)
            self.file.flush()

    def commit(self) -> None:
        """Do nothing: everything has been flushed."""


class AppendedFile:
    """A file to which records are added, for runs over cameras, which do not end by themselves.

    Each write is one system call, so that another process that also adds to the file never writes
    into the middle of a record.

    Attributes:
        path: The file.
        file: The same, open.
        first_line: The first line that an earlier run has written; empty in a new file.
    """

    def __init__(self, path: Path) -> None:
        """Open the file, and end its last line if a power cut has torn that."""
        self.path = path
        with writing(path):
            self.file = FileIO(path, "a+")  # without a buffer
            self.file.seek(0)
            self.first_line = self.file.readline(1 << 16).decode("utf-8", "replace")
            if self.first_line:
                self.file.seek(-1, os.SEEK_END)
                if self.file.read(1) != b"\n":
                    self.write("\n")

    def write(self, text: str) -> None:
        """Add text; if it cannot be written, the file is as before."""
        start = self.file.seek(0, os.SEEK_END)
        try:
            write_all(self.file, text)
        except OSError as error:
            with contextlib.suppress(OSError):
                self.file.truncate(start)
            raise unwritable(self.path, error) from error

    def commit(self) -> None:
        """Put the file on the disk, and close it; every piece is already in it.

        Raises:
            OutputError: It could not be put there, so that pieces may be lost.
        """
        with writing(self.path):
            try:
                sync(self.file.fileno())
            finally:
                self.file.close()


class DirectFile:
    """An output that is written as the results come, in place: a named pipe or a device.

    Or the file that standard output is redirected to, which other programs write to as well.
    """

    def __init__(self, path: Path, open_descriptor: int | None = None) -> None:
        """Open the output.

        Args:
            path: The path of the pipe or device; or of the open file, for messages.
            open_descriptor: The descriptor of a file that is already open, if it is one.

        Raises:
            OutputError: It cannot be opened, or is a pipe that nobody reads: opening it as usual
                would wait for a reader.
        """
        self.path = path
        try:
            if open_descriptor is None:
                descriptor = os.open(path, os.O_WRONLY | NO_WAIT)
            else:
                descriptor = os.dup(open_descriptor)
        except OSError as error:
            if error.errno == errno.ENXIO:
                reason = f"cannot write {path}: no process reads it"
                raise OutputError(reason, "start its reader first, or name a file") from error
            raise unwritable(path, error) from error
        if sys.platform != "win32":
            os.set_blocking(descriptor, True)  # writes now wait for a slow reader
        self.file = FileIO(descriptor, "w")

    def write(self, data: str | bytes) -> None:
        """Write, see `writing`."""
        with writing(self.path):
            write_all(self.file, data)

    def commit(self) -> None:
        """Close it: everything has been written."""
        with writing(self.path):
            self.file.close()

    def discard(self) -> None:
        """Close it."""
        with contextlib.suppress(OSError):
            self.file.close()


def output_states(paths: Iterable[object]) -> dict[Path, OutputState]:
    """Return size and time of output files before a run; other outputs are left out."""
    states = {}
    for path in paths:
        if isinstance(path, Path):
            states[path] = OutputState.of(path)
    return states


class AtomicFile:
    """A file that appears under its name only when it is complete, and on the disk.

    It is written beside the target under a temporary name, then moved into place. No link is
    followed, either in place of the file or of its folder: whatever has the name is replaced,
    unless it is a folder. A write that fails halfway, as on a full disk, is undone, and the file
    may still be committed, with a warning.

    Attributes:
        path: The final path.
        file: The temporary file, open and unbuffered.
        temporary_path: The path of the temporary file, for libraries that open files by name.
    """

    def __init__(self, path: Path, *, suffix: str = "", display_name: str | Path = "") -> None:
        """Begin a file: make it under a temporary name, in the folder of its final path.

        Args:
            path: The final path.
            suffix: The end of the temporary name, for libraries that take the format from it.
            display_name: The file's name in messages; by default its path.

        Raises:
            OutputError: It cannot be made, or a folder has its name.
        """
        self.path = path
        self._display_name = display_name or path
        self._written_bytes = 0  # by writes that succeeded
        self._has_failed_write = False
        self._is_open = False  # whether the temporary file exists, at `temporary_path`

        with writing(self._display_name):
            self._folder = Folder(path.parent)
            try:
                replaced_mode = self._folder.mode(path.name)
                # An interrupt waits until the attributes by which `discard` removes the temporary
                # file are set.
                with interrupts.held():
                    temporary_name, self.file = self._folder.create(suffix)
                    self.temporary_path = path.with_name(temporary_name)
                    self._is_open = True
            except BaseException:
                if self._is_open:  # the interrupt was raised after the file was made
                    self.discard()
                else:
                    self._folder.close()
                raise
        self._set_permissions(replaced_mode)

    def _set_permissions(self, mode: int) -> None:
        """Give the file the permissions of the one that it will replace; 0 if there is none."""
        if stat.S_ISREG(mode) and sys.platform != "win32":
            with contextlib.suppress(OSError):  # some file systems have no permissions
                os.fchmod(self.file.fileno(), stat.S_IMODE(mode) & 0o777)

    def write(self, data: str | bytes) -> None:
        """Write without a buffer; data that cannot be written leaves the file as before."""
        try:
            write_all(self.file, data)
        except OSError as error:
            self._has_failed_write = True
            with contextlib.suppress(OSError):  # cut off the part that was written
                self.file.truncate(self._written_bytes)
                self.file.seek(self._written_bytes)
            raise unwritable(self._display_name, error) from error
        self._written_bytes = self.file.tell()

    def commit(self) -> None:
        """Put the file on the disk, and move it into place."""
        self._finish(self._folder.move)
        self._warn_if_incomplete()

    def _warn_if_incomplete(self) -> None:
        if self._has_failed_write:
            message = f"{self._display_name} is not complete: it lacks what could not be written"
            warnings.warn(message, DetcliWarning, stacklevel=3)

    def commit_new(self) -> bool:
        """Put the file on the disk, and give it its name, or return False if something has it."""
        return self._finish(self._folder.link)

    def _finish(self, rename: Callable[[str, str], T]) -> T:
        """Put the file on the disk, give it its final name, and close it.

        Args:
            rename: Gives the file its name; it is called with the temporary name and the final one.

        Returns:
            What `rename` returns.

        Raises:
            OutputError: It could not be written; then the temporary file is removed.
        """
        with interrupts.held():
            try:
                with writing(self._display_name):
                    sync(self.file.fileno())
                    if sys.platform == "win32":  # Windows cannot rename an open file
                        self.file.close()
                    result = rename(self.temporary_path.name, self.path.name)
                    # `discard` closes the file as well, but ignores errors. A network file system
                    # may report a failed write only now.
                    self.file.close()
            finally:
                # This closes the folder. It also removes the temporary name, which is left after an
                # error, and after a `rename` that gives the file a second name.
                self.discard()
        return result

    def discard(self) -> None:
        """Close and remove the temporary file; does nothing after `commit`."""
        if not self._is_open:
            return
        if sys.platform == "win32":  # where no open file is removed
            self.file.close()
        with contextlib.suppress(OSError):  # it has been moved
            self._folder.remove(self.temporary_path.name)
        self._is_open = False
        with contextlib.suppress(OSError):
            self.file.close()
        self._folder.close()


class ResultFile(AtomicFile):
    """A file that a user named, in which nothing that another process has written is lost.

    Two runs may write to the same name at the same time. The one that ends first gets the name. The
    other finds that the file there has changed since it began, keeps its own content beside it, and
    raises an OutputError.
    """

    def __init__(
        self, path: Path, *, display_name: str | Path = "", before: OutputState | None = None
    ) -> None:
        """Begin a file.

        Args:
            path: The final path.
            display_name: The file's name in messages; by default its path.
            before: The state of the file of that name when the run began; by default its state now.
        """
        if before is None:
            before = OutputState.of(path)
        self._state_before = before
        super().__init__(path, display_name=display_name)

    def commit(self) -> None:
        """Put the file on the disk, and move it into place.

        Raises:
            OutputError: Another process has written the file meanwhile; the content is beside it.
        """
        final_name = self._finish(self._rename)
        self._warn_if_incomplete()
        was_written_by_others = final_name != self.path.name
        if was_written_by_others:
            path = Path(self._display_name)
            raise OutputError(
                f"{path} was written by somebody else while this run went on; what this run would "
                f"have written there is in {path.with_name(final_name)}",
                "let each run write to a file of its own",
            )

    def _rename(self, temporary_name: str, name: str) -> str:
        """Give the temporary file its final name, unless another process has written that file.

        Returns:
            The name that it has now: the final one, or else the first free one with a number, such
            as boxes-2.jsonl for boxes.jsonl.
        """
        if self._folder.move_if_unchanged(temporary_name, name, self._state_before):
            return name
        number = 2
        while True:
            numbered_name = f"{self.path.stem}-{number}{self.path.suffix}"
            if self._folder.link(temporary_name, numbered_name):
                return numbered_name
            number += 1


def open_output(path: Path, before: OutputState | None = None) -> AtomicFile | DirectFile:
    """Open a file that a user named, to write it; links are followed.

    A regular file is replaced when the new one is complete, see `ResultFile`. A named pipe or a
    device (`/dev/null`, `>(command)`) is written directly. So is the file that standard output is
    redirected to, such as `/dev/stdout`: what other commands have written to it, or will, has to
    stay.

    Args:
        path: What the user named.
        before: The state of the file when the run began; by default its state now.

    Raises:
        OutputError: It cannot be opened.
    """
    _require_open_stream(path)
    is_pipe_or_device = False  # even if it does not exist, or cannot be opened
    with contextlib.suppress(OSError):
        status = path.stat()
        is_file = stat.S_ISREG(status.st_mode)
        is_pipe_or_device = not is_file and not stat.S_ISDIR(status.st_mode)
        if is_file and os.path.samestat(status, os.fstat(STDOUT)):
            return DirectFile(path, STDOUT)
    if is_pipe_or_device:
        return DirectFile(path)
    return ResultFile(Path(os.path.realpath(path)), display_name=path, before=before)


def _require_open_stream(path: Path) -> None:
    """Refuse the name of a standard stream that is closed: another file has its descriptor."""
    descriptor = STREAMS.get(str(path))
    if descriptor == STDOUT and sys.__stdout__ is None:
        raise OutputError(f"cannot write {path}: standard output is closed", REDIRECT)
    if descriptor == STDERR and sys.__stderr__ is None:
        raise OutputError(f"cannot write {path}: standard error is closed", REDIRECT)


def write_output(path: Path, data: bytes) -> None:
    """Write a file that a user named, see `open_output`: the whole of it, or nothing."""
    _write_whole(open_output(path), data)


def write_file(path: Path, data: bytes) -> None:
    """Write a file as `AtomicFile` does: the whole of it, or nothing."""
    _write_whole(AtomicFile(path), data)


def _write_whole(target: AtomicFile | DirectFile, data: bytes) -> None:
    try:
        target.write(data)
    except BaseException:
        target.discard()
        raise
    target.commit()


def write_all(file: FileIO, data: str | bytes) -> None:
    """Write all bytes, of which a system call may take only a part; text becomes UTF-8."""
    if isinstance(data, str):
        data = data.encode("utf-8", "backslashreplace")
    rest = memoryview(data)
    while rest:
        written_bytes = file.write(rest)
        rest = rest[written_bytes:]


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder while the block runs, after waiting until no other process has it locked.

    Only processes that call this are kept out. Where the file system has no locks, as on some
    network drives, nobody waits.

    Raises:
        OutputError: It is locked for longer than a moment, or the file cannot be made.
    """
    if sys.platform == "win32":
        # Folders have no locks there, but a file in the folder has. It is never removed: of two
        # processes, one could hold the lock of the removed file, and the other that of a new one.
        with writing(folder):
            descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | NO_WAIT, 0o666)
    else:
        with writing(folder):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _wait_for_lock(descriptor, folder)
        yield
    finally:
        os.close(descriptor)  # closing also unlocks it


def _wait_for_lock(descriptor: int, folder: Path) -> None:
    """Lock an open folder, or its file, as soon as no other process holds the lock.

    Raises:
        OutputError: Another process has it locked for longer than a moment.
    """
    deadline_s = time.monotonic() + LOCK_TIMEOUT_S
    while lock(descriptor) is LockState.HELD_BY_OTHER:
        if time.monotonic() > deadline_s:
            raise OutputError(
                f"{folder} has been locked by another run for {LOCK_TIMEOUT_S:.0f} s",
                "see whether that run is suspended, or write to another folder",
            )
        time.sleep(LOCK_RETRY_S)


def open_regular(path: Path, max_bytes: int | None = None, flags: int = 0) -> io.BufferedReader:
    """Open a regular file to read it; anything else is refused, as opening a pipe could wait.

    Args:
        path: The file.
        max_bytes: A larger file is refused; None for any size.
        flags: More flags for `os.open`.

    Raises:
        OSError: It is a different kind of file, or too large, or cannot be opened.
    """
    status = path.stat()  # before it is opened, as opening may do anything to a device
    if stat.S_ISDIR(status.st_mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    if max_bytes is not None and status.st_size > max_bytes:
        limit_mib = (max_bytes + 1) >> 20
        limit = f"{limit_mib} MiB"
        if limit_mib >= 1024:
            limit = f"{limit_mib >> 10} GiB"
        raise OSError(errno.EFBIG, f"it is larger than {limit}")
    # In case a pipe has taken the place of the file meanwhile.
    all_flags = flags | getattr(os, "O_NONBLOCK", 0)

    def open_with_flags(name: str, flags_of_mode: int) -> int:
        return os.open(name, flags_of_mode | all_flags)

    return open(path, "rb", opener=open_with_flags)


def is_lfs_pointer(data: bytes) -> bool:
    """True if data are what Git stores in place of a file that Git LFS has not fetched."""
    return data.startswith(LFS_POINTER)


def read_text(path: Path) -> str:
    """Read a regular file of text, in UTF-8 or the encoding that its byte order mark names.

    Raises:
        OSError: It cannot be read.
        ValueError: It is not text in this encoding.
    """
    from detcli.core.lines import MAX_TEXT_BYTES, decoded

    with open_regular(path, MAX_TEXT_BYTES) as file:
        return decoded(file.read())


def sha256(path: Path) -> str:
    """The SHA-256 of a file's content."""
    import hashlib  # `--help` needs none

    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def open_lines(path: Path) -> BinaryIO:
    """Open a regular file of text as UTF-8; it may be compressed by gzip, or UTF-16 with a mark.

    Raises OSError; reading raises ValueError, too. A line can have any length: read them with
    `bounded_lines`.
    """
    import gzip

    from detcli.core.lines import utf8_file

    with open_regular(path) as file:
        is_compressed = file.peek(len(GZIP)).startswith(GZIP)
    if is_compressed:
        return utf8_file(cast("BinaryIO", gzip.open(path)))
    return utf8_file(path.open("rb"))


def read_json(path: Path, unusable: Callable[[Path, str], DetcliError]) -> Any:  # noqa: ANN401
    """Read a JSON file, which may be compressed by gzip, and in UTF-8 or UTF-16.

    Args:
        path: The file.
        unusable: Makes the error to raise if it cannot be read, from the path and the reason.

    Returns:
        What the JSON stands for: dictionaries, lists, strings, numbers, bools and None.
    """
    import json
    import zlib

    from detcli.core.lines import MAX_TEXT_BYTES, TooLargeError, read_bounded

    try:
        with open_lines(path) as file:
            return json.loads(read_bounded(file, MAX_TEXT_BYTES))
    except TooLargeError as error:
        raise unusable(path, str(error)) from error
    except (OSError, EOFError, zlib.error) as error:
        raise unusable(path, system_reason(error)) from error
    except (ValueError, RecursionError) as error:
        raise unusable(path, "it is not JSON") from error


def make_folder(path: Path) -> Path:
    """Make a folder and its parents, if they do not exist; returns its path without links."""
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
    return Path(os.path.realpath(path))


@contextlib.contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Raise an OutputError for what the system does not let the block write.

    BrokenPipeError stays: it is not a failure, the reader has seen enough.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise unwritable(path, error) from error


def unwritable(path: str | Path, error: OSError, more: str = "") -> OutputError:
    """Make the error for a file that cannot be written, with a hint for the system's reason.

    Args:
        path: The file's name in messages.
        error: The error of the system.
        more: What is added to the hint.
    """
    hint = _REMEDIES.get(error.errno, "check the folder, its permissions and its disk")
    return OutputError(f"cannot write {path}: {system_reason(error)}", hint + more)


_REMEDIES: dict[int | None, str] = {
    errno.EISDIR: "name a file instead of a folder",
    errno.EEXIST: "name a folder, or move the file of that name away",
    errno.ENOTDIR: "name a folder, or move the file of that name away",
    errno.ENOENT: "make the folder first, or name one that exists",
    errno.EACCES: "check the permissions of the file and its folder",
    errno.EPERM: "check the permissions of the file and its folder",
    errno.EROFS: "name a folder that can be written to",
    errno.ENOSPC: "free space on its disk, or name a folder on another",
    errno.EDQUOT: "free space within your quota, or name a folder on another disk",
    errno.EFBIG: "check the limit on the size of files (ulimit -f)",
}
