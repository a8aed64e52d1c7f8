"""Files: where the cache is, and writing so that no half-written file is ever visible."""

import contextlib
import io
import logging
import os
import secrets
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from detcli.errors import DetcliError, OutputError, system_reason
from detcli.interrupts import interrupts

log = logging.getLogger(__name__)


def cache_folder() -> Path:
    """The user's cache folder for detcli; `DETCLI_CACHE_DIR` moves it.

    Raises:
        OutputError: The user has no home folder, as in some containers.
    """
    if moved := os.environ.get("DETCLI_CACHE_DIR"):
        return Path(moved)
    import platformdirs  # 15 ms that the variable saves

    try:
        folder = platformdirs.user_cache_path("detcli", appauthor=False)
    except RuntimeError:
        folder = Path()
    if not folder.is_absolute():  # older platformdirs return an unresolved `~`
        raise OutputError("no home folder for the cache", "set DETCLI_CACHE_DIR")
    return folder


def cached(name: str, build: Callable[[], bytes]) -> bytes:
    """Read an entry of the cache, or build and store it.

    Each entry begins with the SHA-256 of the rest; a damaged one is built again. Without a writable
    cache, an entry is built each time.

    Args:
        name: Path of the entry's file in the cache folder.
        build: Builds the entry.
    """
    import hashlib  # `--help` needs none

    try:
        path = cache_folder() / name
    except OutputError as error:
        log.info("no cache: %s", error)
        return build()
    try:
        with path.open("rb") as file:
            digest, entry = file.read(hashlib.sha256().digest_size), file.read()
    except OSError:
        log.info("%s is not in the cache: building it", name)
    else:
        if hashlib.sha256(entry).digest() == digest:
            return entry
        log.info("%s is damaged: building it again", name)
    entry = build()
    try:
        make_folder(path.parent)
        write_file(path, hashlib.sha256(entry).digest() + entry)
    except OutputError as error:
        log.info("cannot cache %s: %s", name, error)
    return entry


class StandardOutput:
    """Standard output as UTF-8, one record at a time.

    Bytes of a file name that are not Unicode become escapes, which JSON reads back.

    Raises:
        OutputError: Standard output is closed.
    """

    def __init__(self) -> None:
        if sys.stdout is None:
            raise OutputError("standard output is closed", "open it, or use --output FILE")
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
        self.file: IO[Any] = sys.stdout

    def write(self, text: str) -> None:
        """Write and flush.

        Raises:
            OutputError: The text cannot be written, for instance on a full disk.
            BrokenPipeError: The reader has closed the pipe.
        """
        _write(self.file, text, "standard output")

    def commit(self) -> None:
        """Do nothing: everything has been flushed."""


class AtomicFile:
    """A file that appears under its name only when it is complete.

    It is written beside the target under a temporary name, then moved into place. A target that is
    not a regular file (`/dev/null`, a named pipe) is written directly; a link is followed. A write
    that fails halfway, as on a full disk, is undone, and the file may still be committed. `suffix`
    ends the temporary name, for libraries that take the format from it.

    Attributes:
        path: The target as it was named.
        written: The temporary file, for libraries that open files by name.
        file: The temporary file, open.

    Raises:
        OutputError: The folder cannot be written to.
    """

    def __init__(self, path: Path, *, binary: bool = False, suffix: str = "") -> None:
        self.path = path
        self._binary = binary
        self._size = 0  # of the writes that succeeded
        target = Path(os.path.realpath(path))
        try:
            direct = target.exists() and not target.is_file()
            self._target = None if direct else target
            part = target.with_name(f".{secrets.token_hex(8)}.part{suffix}")
            self.written = target if direct else part
            # Exclusively, so that a planted link is never followed.
            self.file: IO[Any] = self._open("w" if direct else "x")
        except OSError as error:
            raise _output_error(path, error) from error
        if self._target and self._target.exists():
            with contextlib.suppress(OSError):  # some file systems have no permissions
                shutil.copymode(self._target, self.written)

    def write(self, data: str | bytes) -> None:
        """Write and flush.

        Raises:
            OutputError: The data cannot be written; the file is as before.
        """
        try:
            _write(self.file, data, self.path)
        except OutputError:
            if self._target:  # cut off what was written
                with contextlib.suppress(OSError):  # closing flushes, which fails on a full disk
                    self.file.close()
                with contextlib.suppress(OSError):
                    os.truncate(self.written, self._size)
                    self.file = self._open("a")
            raise
        if self._target:
            self._size = os.fstat(self.file.fileno()).st_size

    def commit(self) -> None:
        """Close the file and move it into place.

        Raises:
            OutputError: The file cannot be completed; no temporary file is left behind.
        """
        with interrupts.held():
            try:
                self.file.close()
                if self._target:
                    self.written.replace(self._target)
            except OSError as error:
                self.discard()
                raise _output_error(self.path, error) from error

    def discard(self) -> None:
        """Close and remove the temporary file."""
        with contextlib.suppress(OSError):  # closing flushes, which fails on a full disk
            self.file.close()
        if self._target:
            self.written.unlink(missing_ok=True)

    def _open(self, mode: str) -> IO[Any]:
        if self._binary:
            return self.written.open(f"{mode}b")
        return self.written.open(mode, encoding="utf-8", errors="backslashreplace", newline="")


def write_file(path: Path, data: bytes) -> None:
    """Write a whole file, or nothing.

    Raises:
        OutputError: The file cannot be written.
    """
    target = AtomicFile(path, binary=True)
    try:
        target.write(data)
    except BaseException:
        target.discard()
        raise
    target.commit()


def _write(file: IO[Any], data: str | bytes, title: str | Path) -> None:
    try:
        file.write(data)
        file.flush()
    except BrokenPipeError:
        raise  # not a failure: the reader has seen enough
    except OSError as error:
        raise _output_error(title, error) from error


def read_json(path: Path, unusable: Callable[[Path, str], DetcliError]) -> Any:  # noqa: ANN401
    """The content of a JSON file.

    Args:
        path: The file.
        unusable: Makes the error from the path and the reason.
    """
    import json

    try:
        with path.open("rb") as file:
            return json.load(file)
    except OSError as error:
        raise unusable(path, system_reason(error)) from error
    except (ValueError, RecursionError) as error:
        raise unusable(path, "it is not JSON") from error


def make_folder(path: Path) -> None:
    """Make a folder and its parents, if they do not exist.

    Raises:
        OutputError: A file has that name, or the parent cannot be written to.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _output_error(path, error) from error


def _output_error(path: str | Path, error: OSError) -> OutputError:
    return OutputError(
        f"cannot write {path}: {system_reason(error)}",
        "check the folder, its permissions and the free disk space",
    )
