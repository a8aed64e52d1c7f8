"""Names that runs at work have taken in a folder, so that none writes over another's files.

The file that marks a folder has a line for each name, with the run and the input that it is for.
Each run at work holds a shared lock on it, and one that finds no other at work begins it anew. So
two runs at the same time share the names of a folder as the inputs of one run do. Where a system
has no such locks, as Windows and some network drives, names are not shared.
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
    """The names of one folder, as this run and others at work have taken them."""

    def __init__(self, mark: Path) -> None:
        """Join the runs at work in a folder that a file marks, until this object is gone."""
        self._file = mark
        self._folder = mark.parent
        self._run = _name_of_run(os.getpid())
        self._taken_here: set[str] = set()
        self._input_of_name: dict[str, str] = {}  # of names that other runs have taken
        self._input_of_prefix: dict[str, str] = {}  # of prefixes that such names begin with
        self._position = 0  # up to which the file was read
        self._descriptor = self._join()
        if self._descriptor is not None:
            weakref.finalize(self, _leave, self._descriptor)

    def take(self, name: str, prefixes: Iterable[str], mark: str, *, is_new: bool) -> bool:
        """Take a name for an input, unless another run has taken it for another input.

        Args:
            name: The name of a file with its suffix, or a prefix of names; folded.
            prefixes: The prefixes of files that could give this name.
            mark: By which inputs are told apart.
            is_new: Whether the input is another one in every run.
        """
        if self._descriptor is None or name in self._taken_here:
            return True
        if is_new:
            mark = f"{mark} {self._run}"
        prefixes = list(prefixes)
        with locked(self._folder):
            self._read(self._descriptor)
            if not self._is_free(name, prefixes, mark):
                return False
            line = json.dumps([self._run, name, prefixes, mark])
            os.write(self._descriptor, f"{line}\n".encode())
        self._taken_here.add(name)
        return True

    def _is_free(self, name: str, prefixes: Iterable[str], mark: str) -> bool:
        """Whether no other run has taken a name, or one of its prefixes, for another input."""
        if self._input_of_prefix.get(name, mark) != mark:
            return False
        for taken_name in (name, *prefixes):
            if self._input_of_name.get(taken_name, mark) != mark:
                return False
        return True

    def _join(self) -> int | None:
        """Open the file, which begins anew if no other run is at work; None without locks."""
        if sys.platform == "win32":
            return None
        import fcntl

        try:
            descriptor = os.open(self._file, os.O_RDWR | os.O_APPEND | NO_WAIT | NO_LINK)
        except OSError:
            return None
        try:
            with locked(self._folder):
                with contextlib.suppress(BlockingIOError):  # another run is at work
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.ftruncate(descriptor, 0)
                fcntl.flock(descriptor, fcntl.LOCK_SH)
        except OSError:
            os.close(descriptor)
            return None
        return descriptor

    def _read(self, descriptor: int) -> None:
        """Read what was added since the last time."""
        if sys.platform == "win32":
            return
        size = os.fstat(descriptor).st_size
        lines = os.pread(descriptor, size - self._position, self._position)
        self._position = size
        for line in lines.splitlines():
            run, name, prefixes, mark = json.loads(line)
            if run != self._run:
                self._input_of_name[name] = mark
                for prefix in prefixes:
                    self._input_of_prefix[prefix] = mark


def _leave(descriptor: int) -> None:
    """Leave the runs at work; the last one empties the file."""
    if sys.platform != "win32":
        import fcntl

        with contextlib.suppress(OSError):  # another run is at work
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
    os.close(descriptor)


@cache
def _name_of_run(process: int) -> str:
    """What distinguishes the run of a process from those of all others, also on other machines."""
    return f"{process}-{os.urandom(8).hex()}"
