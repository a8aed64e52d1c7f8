"""OutputFolder: where the files of a sink go, each under a name of its own."""

import itertools
import os
from collections.abc import Container
from pathlib import Path

from detcli.files import make_folder
from detcli.record import Record
from detcli.sink.clips import PerClip
from detcli.sink.naming import Names, stem


class OutputFolder:
    """A folder that is made if it is not there, and the paths of files in it.

    Whatever an input is called, what it gives lies in this folder. No path is handed out twice, and
    none of an input. What an earlier run wrote is written over, unless it is to be kept.

    Raises:
        OutputError: The folder cannot be made.
    """

    def __init__(self, path: Path, inputs: Container[Path] = (), *, keep: bool = False) -> None:
        """Make the folder.

        Args:
            path: The folder.
            inputs: Files that are never written over.
            keep: Nothing that is there is written over: this run goes on with an earlier one.
        """
        make_folder(path)
        self.path = path
        self._inputs = inputs
        self._keep = keep
        self._names = Names()
        self._families = PerClip(lambda record: self._names.family(stem(record.source)))

    def file_for(self, source: str, suffix: str) -> Path:
        """Path of a file that is named after an input."""
        name = self._names.single(
            stem(source), suffix, lambda name: self._may_write(self.path / name)
        )
        return self.path / name

    def file_of(self, record: Record, suffix: str) -> Path:
        """Path of the one file that a record gives: `bus.txt`, or `film_17.txt` for a frame.

        To be called once for a record, as `family_of`.
        """
        if record.frame is None:
            return self.file_for(record.source, suffix)
        return self._member(self.path, f"{self._families.of(record)}_{record.frame}", suffix)

    def family_of(self, record: Record) -> str:
        """How the names of the files begin that a record gives: `bus`, `film_17` for a frame."""
        if record.frame is None:
            return self._names.family(stem(record.source))
        return f"{self._families.of(record)}_{record.frame}"

    def member(self, folder: Path, family: str, number: int, suffix: str) -> Path:
        """Path of a numbered file in a folder below this one."""
        return self._member(folder, f"{family}_{number}", suffix)

    def _member(self, folder: Path, name: str, suffix: str) -> Path:
        """Further numbers only if the name is an input's, so that nothing need be remembered."""
        paths = (
            folder / f"{name}{further}{suffix}"
            for further in itertools.chain([""], (f"_{n}" for n in itertools.count(2)))
        )
        return next(filter(self._may_write, paths))

    def _may_write(self, path: Path) -> bool:
        return path not in self._inputs and not (self._keep and os.path.lexists(path))
