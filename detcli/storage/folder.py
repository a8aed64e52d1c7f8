"""An open folder: temporary files in it, which get their names when they are complete; locks."""

import contextlib
import errno
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator
from enum import Enum
from io import FileIO
from pathlib import Path
from typing import ClassVar, NamedTuple


def _open_flags(names: Iterable[str]) -> int:
    """Flags for `os.open`, without those that the system does not have."""
    flags = 0
    for name in names:
        flags |= getattr(os, name, 0)
    return flags


NO_WAIT = _open_flags(["O_NONBLOCK", "O_NOCTTY", "O_BINARY"])
"""Open a named pipe without waiting for its other end."""

NO_LINK = _open_flags(["O_NOFOLLOW"])
"""Refuse a link; not in Windows."""

LOCKED_BYTE = 2**31 - 2
"""The position of the byte that is locked in Windows, where no other process can read a locked one.

It is the last possible position, which no file has in practice."""

LEFTOVER = r"\.detcli-[0-9a-f]{16}\.part(\.\w+)?"  # names of temporary files

NO_LINKS_ERRORS = {errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK}
"""The errors of file systems that have no links."""


class OutputState(NamedTuple):
    """Size and time of a file, which show whether it is the same as before.

    Without the inode, which some mounts invent.
    """

    size: int
    changed_ns: int

    @classmethod
    def of(cls, path: Path) -> "OutputState":
        """Read the state of the file that a path leads to now; NO_OUTPUT if there is none."""
        try:
            status = path.stat()
        except (OSError, ValueError):
            return NO_OUTPUT
        return cls(status.st_size, status.st_mtime_ns)


NO_OUTPUT = OutputState(-1, -1)
"""The state of a name that nothing has."""


class Folder:
    """An open folder, which stays the same one even if another folder gets its name meanwhile.

    Files of dead processes are removed when a process opens a folder for the first time. A
    temporary file is locked as long as its process lives, on whichever machine or container; its
    name alone would say nothing.

    Windows has no open folders, and its locks keep others from reading: there, names are used and
    nothing is removed.
    A link is refused. Everything here raises OSError.
    """

    _opened_before: ClassVar[set[tuple[int, int]]] = set()  # device and inode of each

    def __init__(self, path: Path) -> None:
        """Open a folder.

        When this process opens it for the first time, the temporary files of processes that were
        killed are removed from it. On Windows the folder is not opened, and nothing is removed.

        Raises:
            OSError: It cannot be opened, or is a link.
        """
        self._path = path
        self._descriptor: int | None = None
        if sys.platform == "win32":
            return
        flags = os.O_DIRECTORY | os.O_NOFOLLOW
        try:
            self._descriptor = os.open(path, os.O_RDONLY | flags)
        except PermissionError:  # a folder that can be written but not listed
            self._descriptor = os.open(path, getattr(os, "O_PATH", os.O_RDONLY) | flags)

        status = os.fstat(self._descriptor)
        device_and_inode = (status.st_dev, status.st_ino)
        if device_and_inode not in self._opened_before:
            self._opened_before.add(device_and_inode)
            with contextlib.suppress(OSError):
                self._remove_leftovers()

    def mode(self, name: str) -> int:
        """Return the type and permissions of a file as in `st_mode`; 0 if there is no such file.

        A link is not followed.

        Raises:
            IsADirectoryError: It is a folder.
        """
        try:
            status = os.stat(self._at(name), dir_fd=self._descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return 0
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        return status.st_mode

    def create(self, suffix: str) -> tuple[str, FileIO]:
        """Make a temporary file, and lock it as long as this process lives.

        The lock shows other processes that the file is in use: they remove unlocked temporary files
        when they open the folder. On Windows nothing is removed, so there is no lock.

        Args:
            suffix: The end of its name.

        Returns:
            Its name, and the open file.
        """
        # O_EXCL: nothing may have the name, so that a link that somebody planted is refused.
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | NO_WAIT
        while True:
            name = f".detcli-{os.urandom(8).hex()}.part{suffix}"
            descriptor = os.open(self._at(name), flags, 0o666, dir_fd=self._descriptor)
            file = FileIO(descriptor, "r+")
            if sys.platform == "win32":
                return name, file

            # Before the file is locked here, another process may already have locked it to remove
            # it, or have removed it, so that no name links to it. Then the loop makes another file.
            is_ours = lock(file) is not LockState.HELD_BY_OTHER
            has_name = os.fstat(file.fileno()).st_nlink > 0
            if is_ours and has_name:
                return name, file
            file.close()

    def move(self, old: str, new: str) -> None:
        """Give a file a new name, replacing what has it, and put both on the disk."""
        folder = self._descriptor
        os.replace(self._at(old), self._at(new), src_dir_fd=folder, dst_dir_fd=folder)
        self.sync()

    def move_if_unchanged(
        self, temporary_name: str, final_name: str, expected_state: OutputState
    ) -> bool:
        """Move a file over another one, unless some other process has written to that one since.

        Where folders have no locks, as on some network drives and in Windows, two processes that do
        this in the same millisecond may both succeed.

        Args:
            temporary_name: The name that the file has now.
            final_name: The name that it gets. A file of this name is replaced.
            expected_state: The size and time that the file to be replaced had when it was looked at
                last. It may also be gone by now.

        Returns:
            Whether the file was moved. It is not if the file to be replaced has changed.
        """
        with self._locked():
            current_state = OutputState.of(self._path / final_name)
            has_changed = current_state not in {expected_state, NO_OUTPUT}
            if has_changed:
                return False
            self.move(temporary_name, final_name)
            return True

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the folder while the block runs; `move_if_unchanged` of other processes waits.

        Where the system or the file system has no locks, nothing waits.
        """
        if sys.platform == "win32" or self._descriptor is None:
            yield
            return
        import fcntl

        with contextlib.suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def link(self, old: str, new: str) -> bool:
        """Give a file a second name, unless that is taken, and sync the folder to the disk.

        Making a hard link fails if the name is taken, even at this very moment. A file system
        without links, as on memory cards, has no such operation. There the file is renamed; if two
        processes do so at the same time, both succeed, and the file of the later one stays.

        Args:
            old: The name that the file has.
            new: The name that it gets.

        Returns:
            False if a file already has the new name; then nothing was done.
        """
        folder = self._descriptor
        try:
            os.link(self._at(old), self._at(new), src_dir_fd=folder, dst_dir_fd=folder)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in NO_LINKS_ERRORS:
                raise
            if self.mode(new):
                return False
            self.move(old, new)
        self.sync()
        return True

    def remove(self, name: str) -> None:
        """Remove a file."""
        os.unlink(self._at(name), dir_fd=self._descriptor)

    def sync(self) -> None:
        """Put the names in it on the disk, as far as the file system can."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                sync(self._descriptor)

    def close(self) -> None:
        """Close the folder."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _at(self, name: str) -> str:
        """Return what the system accepts as a file in this folder.

        That is its name, together with `dir_fd`; in Windows, which has no open folders, its path.
        """
        if self._descriptor is None:
            return str(self._path / name)
        return name

    def _remove_leftovers(self) -> None:
        """Remove the temporary files of processes that have ended: nobody holds their locks."""
        with os.scandir(self._descriptor) as entries:
            names = [entry.name for entry in entries if re.fullmatch(LEFTOVER, entry.name)]
        for name in names:
            with contextlib.suppress(OSError):  # not ours, or gone by now
                descriptor = os.open(name, os.O_RDWR | NO_LINK | NO_WAIT, dir_fd=self._descriptor)
                with FileIO(descriptor, "r+") as file:
                    is_regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
                    if is_regular and lock(file) is LockState.LOCKED:
                        self.remove(name)


class LockState(Enum):
    """What became of the attempt to lock a file."""

    LOCKED = "locked now"
    HELD_BY_OTHER = "locked by another process"
    WITHOUT_LOCKS = "on a file system that has no locks"


def lock(file: FileIO | int) -> LockState:
    """Lock a file until it is closed, or its process ends.

    In Windows the position in the file is then 0.

    Args:
        file: The open file, or its descriptor.
    """
    if isinstance(file, int):
        descriptor = file
    else:
        descriptor = file.fileno()
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(descriptor, LOCKED_BYTE, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
            os.lseek(descriptor, 0, os.SEEK_SET)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return LockState.HELD_BY_OTHER
    except OSError:  # some network file systems
        return LockState.WITHOUT_LOCKS
    return LockState.LOCKED


def sync(descriptor: int) -> None:
    """Put a file or folder on the disk, so that it survives a power cut."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP}:  # some file systems
            raise
