"""Names that runs at work have taken in a folder, so that none writes over another's files.

The file that marks a folder has a line for each name, with the run and the input that it is for.
Each run at work holds a shared lock on it, and one that finds no other at work starts it from
scratch. So two runs at the same time share the names of a folder as the inputs of one run do. Where
there are no such locks, as on Windows and some network drives, names are not shared.
"""

import contextlib
import json
import os
import sys
import weakref
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from detcli.storage.files import locked
from detcli.storage.folder import NO_LINK, NO_WAIT


class Claims:
    """The file names in one folder that this run and others at work have taken for their inputs.

    They are in a file of the folder, with a JSON list `[run, name, prefixes, input]` on each line.
    """

    def __init__(self, claims_file: Path) -> None:
        """Open the file of claims beside other runs at work, with a shared lock.

        The lock tells other runs that this one is at work. It is released when this object is
        deleted.

        Args:
            claims_file: The file of claims, which exists. It lies in the folder whose names the
                runs share.
        """
        self._claims_file = claims_file
        self._folder = claims_file.parent
        self._run_id = _run_id(os.getpid())

        self._names_of_this_run: set[str] = set()
        # The names that other runs have taken, each with the id of the input that it is for. Then
        # the prefixes of these names, as in `a_` for `a_1.jpg`, with the same ids.
        self._input_of_name: dict[str, str] = {}
        self._input_of_prefix: dict[str, str] = {}
        self._read_until = 0  # position in the file, in bytes

        # The descriptor of the file of claims; None where runs cannot share names.
        self._descriptor = self._open_with_shared_lock()
        if self._descriptor is not None:
            weakref.finalize(self, _leave, self._descriptor)

    def take(self, name: str, prefixes: Iterable[str], input_hash: str, *, is_new: bool) -> bool:
        """Take a name for the file of an input, unless another run has taken it for another input.

        Two runs that read the same input may have the same name for its file.

        Args:
            name: The name of a file with its suffix, or a prefix that the names of several files
                begin with; folded, as `fold` in `sink/unique_names.py` does.
            prefixes: The prefixes of files that could give this name: `a_` for `a_1.jpg`.
            input_hash: A hash of the input's path, the same in every run.
            is_new: Whether the input is a different one in every run, such as a camera or standard
                input.

        Returns:
            Whether this run has the name now; always True where runs cannot share names.
        """
        if self._descriptor is None:  # runs cannot share names here
            return True
        if name in self._names_of_this_run:
            return True

        # Runs that read the same file give its results the same name. A camera, though, shows
        # something else in every run, so its name is for this run alone.
        input_id = input_hash
        if is_new:
            input_id = f"{input_hash} {self._run_id}"

        prefix_list = list(prefixes)
        with locked(self._folder):
            self._read_new_claims(self._descriptor)
            if not self._is_free(name, prefix_list, input_id):
                return False
            claim = json.dumps([self._run_id, name, prefix_list, input_id])
            os.write(self._descriptor, f"{claim}\n".encode())
        self._names_of_this_run.add(name)
        return True

    def _is_free(self, name: str, prefixes: Iterable[str], input_id: str) -> bool:
        """Return whether an input may have a name: no other run has taken it for another input.

        `a_` is not free either if another run has the file `a_1`, and `a_1` is not free if another
        run has the prefix `a_`: files of both would have the same names.
        """
        if self._input_of_prefix.get(name, input_id) != input_id:
            return False
        for taken_name in (name, *prefixes):
            if self._input_of_name.get(taken_name, input_id) != input_id:
                return False
        return True

    def _open_with_shared_lock(self) -> int | None:
        """Open the file of claims, and lock it as every run at work does.

        Errors are not raised: the run then goes on without sharing names.

        Returns:
            The descriptor of the open file; None if it cannot be opened, or if the system or the
            drive has no such locks.
        """
        if sys.platform == "win32":
            return None
        flags = os.O_RDWR | os.O_APPEND | NO_WAIT | NO_LINK
        try:
            descriptor = os.open(self._claims_file, flags)
        except OSError:
            return None
        try:
            self._lock_shared(descriptor)
        except OSError:
            os.close(descriptor)
            return None
        return descriptor

    def _lock_shared(self, descriptor: int) -> None:
        """Take a shared lock on the file of claims, and empty the file if no other run holds one.

        Meanwhile another lock, on the folder, keeps other runs from doing the same.

        Args:
            descriptor: The open file of claims.

        Raises:
            OSError: The file system has no such locks.
        """
        if sys.platform == "win32":
            return
        import fcntl

        with locked(self._folder):
            # An exclusive lock is refused while another run at work has a shared one.
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # No other run is at work, so all names are those of runs that have ended.
                os.ftruncate(descriptor, 0)
            # This turns an exclusive lock into a shared one.
            fcntl.flock(descriptor, fcntl.LOCK_SH)

    def _read_new_claims(self, descriptor: int) -> None:
        """Read the names that other runs have added to the file since it was read last."""
        if sys.platform == "win32":
            return
        file_size = os.fstat(descriptor).st_size
        new_lines = os.pread(descriptor, file_size - self._read_until, self._read_until)
        self._read_until = file_size
        for line in new_lines.splitlines():
            run_id, name, prefixes, input_id = json.loads(line)
            if run_id != self._run_id:
                self._input_of_name[name] = input_id
                for prefix in prefixes:
                    self._input_of_prefix[prefix] = input_id


def _leave(descriptor: int) -> None:
    """Close the file of claims, and with it the lock of this run; the last run empties the file."""
    if sys.platform != "win32":
        import fcntl

        with contextlib.suppress(OSError):  # another run is at work
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
    os.close(descriptor)


@cache
def _run_id(process_id: int) -> str:
    """Return a string that identifies the run of a process among those on all machines.

    It is the same at each call in one process.
    """
    return f"{process_id}-{os.urandom(8).hex()}"
