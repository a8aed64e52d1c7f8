"""OutputFolder: a folder for the files of a sink, each with a unique and safe name."""

import itertools
import logging
import os
import re
import stat
import weakref
from collections.abc import Container, Iterable
from pathlib import Path, PurePath

from detcli.data.per_video import PerVideo
from detcli.data.record import Origin, Record, notes_of
from detcli.sink.claims import Claims
from detcli.sink.input_names import beginnings_of_roots, hash_of_input, stem
from detcli.sink.unique_names import UniqueNames, fold, prefixes_of
from detcli.source.names import MARK
from detcli.storage.file_names import safe
from detcli.storage.files import AtomicFile, locked, make_folder, write_file, writing
from detcli.storage.folder import LEFTOVER

log = logging.getLogger(__name__)


def mark_folder(folder: Path, marker_name: str) -> bool:
    """Mark a folder as made by detcli, if it is empty, with an empty file of a fixed name.

    Temporary files that a killed run has left do not count as content.

    Returns:
        Whether the folder has the marker now. False means that it has other files in it, so that
        somebody else made it.
    """
    marker = folder / marker_name
    with locked(folder), writing(folder):
        if marker.is_file() and not marker.is_symlink():
            return True
        for entry in folder.iterdir():
            if not re.fullmatch(LEFTOVER, entry.name):
                return False
        write_file(marker, b"")
    return True


class OutputFolder:
    """A folder that is made if it does not exist, and the files in it.

    An input that was found in a folder keeps its path below that one: `a/bus.txt` for
    `pics/a/bus.jpg`, when `pics` was named. A second input of the same path gets a hash of its
    whole name: `bus-1f3c9b20.txt`. So a later run gives each input the same names again, and
    replaces what it has in a folder that detcli made. In any other folder nothing is replaced.
    Nor is what came from standard input or a live source, which are a different input in every run.

    All files lie in this folder, whatever the inputs are called and whatever links are in it.

    Runs that write to it at the same time share its names, see `Claims`: a name that another run at
    work has given to a different input counts as taken.
    """

    def __init__(
        self,
        path: Path,
        inputs: Container[Path] = (),
        *,
        roots: Iterable[str] = (),
        resumed: bool = False,
        has_inputs: bool = False,
    ) -> None:
        """Make the folder if it does not exist, and mark it as made by detcli if it is empty.

        Args:
            path: The folder.
            inputs: The files that the run reads, which are never written to.
            roots: The folders and patterns that were searched for inputs.
            resumed: Whether the run continues an earlier one. It replaces none of that run's
                videos: the remaining frames go to new videos, under other names.
            has_inputs: Whether the folder has inputs in it. Then each file gets a hash in its name,
                by which a later search for inputs leaves it out.

        Raises:
            OutputError: The folder cannot be made or read.
        """
        self.path = path
        self._real_path = make_folder(path)  # without links
        self._inputs = inputs
        # What the paths of inputs from searched folders begin with, such as `pics/`; files here are
        # named after the rest of the path.
        self._root_beginnings = beginnings_of_roots(roots)
        self._resumed = resumed
        self._has_inputs = has_inputs

        self._names = UniqueNames()  # of the files that this run writes
        self._is_made_by_detcli = mark_folder(self._real_path, MARK)
        self._claims: Claims | None = None  # names that are shared with other runs at work
        if self._is_made_by_detcli:
            self._claims = Claims(self._real_path / MARK)

        # What the names of a video's frames begin with. The function refers to this folder only
        # weakly. Otherwise the two would keep each other alive after the run, and the names that
        # the folder has claimed would stay claimed.
        folder = weakref.proxy(self)

        def choose_prefix(record: Record) -> str:
            prefix: str = folder._choose_prefix(record)  # noqa: SLF001 - the same class
            return prefix

        self._prefixes = PerVideo(choose_prefix)

    def file_of(self, record: Record, suffix: str) -> Path:
        """Choose the path of a record's file: `bus.txt`, or `film_17.txt` for a frame of a video.

        Call either this or `prefix_of`, once per record.
        """
        if record.origin.frame is not None:
            return self.path_of_numbered_file(record, self.path, self.prefix_of(record), suffix)
        return self._path_of_single_file(record.origin, suffix)

    def video_of(self, record: Record, suffix: str) -> Path:
        """Choose the path for an annotated video whose first frame is that of a record.

        A resumed run does not overwrite the video that the interrupted run wrote: the rest of the
        frames goes to a second video, and a warning says so.

        Args:
            record: The record of the first frame.
            suffix: The suffix of the video's file, such as ".mp4".

        Returns:
            The path, whose folder exists.
        """
        origin = record.origin
        path = self._path_of_single_file(origin, suffix, may_replace=not self._resumed)
        usual_path = self.path / f"{self._relative_name(origin)}{suffix}"
        is_second_video = path != usual_path and os.path.lexists(self.real(usual_path))
        if self._resumed and is_second_video:
            log.warning(
                "%s: %s is kept; frames from %s on are in %s",
                origin.source,
                usual_path,
                origin.frame,
                path,
            )
        self.subfolder(path.parent)
        return path

    def has_earlier(self, record: Record, suffix: str) -> bool:
        """Return whether this run continues one that wrote a video's file with this suffix."""
        path = self.path / f"{self._relative_name(record.origin)}{suffix}"
        return self._resumed and os.path.lexists(self.real(path))

    def prefix_of(self, record: Record) -> str:
        """Choose how the names of a record's files begin: `bus`, or `film_17` for a frame."""
        if record.origin.frame is None:
            return self._choose_prefix(record)
        return f"{self._prefixes.state_of(record)}_{record.origin.frame}"

    def path_of_numbered_file(self, record: Record, folder: Path, name: str, suffix: str) -> Path:
        """Choose the path of one of several files of a record or a video, such as a crop.

        Their names end with a number: `bus_0`, `bus_1`. Where a file that must not be replaced has
        the name, a second number is added: `bus_0_2`.

        Args:
            record: The record that the file is for.
            folder: The folder of the file: this one, or one below it.
            name: The name without its suffix; it begins with the result of `prefix_of`.
            suffix: The suffix of the file.
        """
        path = folder / f"{name}{suffix}"
        number = 1
        while not self._may_write(path, may_replace=not record.origin.is_new):
            number += 1
            path = folder / f"{name}_{number}{suffix}"
        return path

    def skip(self, origin: Origin) -> None:
        """Reserve the name of an input that a resumed run leaves out, as its files are written."""
        self._names.reserve(self._relative_name(origin), hash_of_input(origin))

    def subfolder(self, path: Path) -> None:
        """Make a folder in this one, if it does not exist."""
        if path != self.path:
            make_folder(self.real(path))

    def is_usable(self, name: str) -> bool:
        """Return whether this folder exists here or can be made; a link is not accepted."""
        folder = self._real_path
        for folder_name in PurePath(name).parts:
            folder /= folder_name
            if os.path.lexists(folder) and not stat.S_ISDIR(folder.lstat().st_mode):
                return False
        return True

    def write(self, record: Record, path: Path, data: bytes) -> None:
        """Write a file of a record, and list it among the record's saved files.

        In a folder that somebody else made, the file never replaces another, and gets a number in
        its name instead.
        """
        self.subfolder(path.parent)
        if self._is_made_by_detcli:
            write_file(self.real(path), data)
            notes_of(record).saved.append(path)
        else:
            notes_of(record).saved.append(self._write_new(path, data))

    def _write_new(self, path: Path, data: bytes) -> Path:
        """Write a file without replacing one, even one that appears at this moment.

        Returns:
            The path, or with a number added if it exists: `bus-2.jpg`.
        """
        free_path = path
        for number in itertools.count(2):
            file = AtomicFile(self.real(free_path))
            try:
                file.write(data)
            except BaseException:
                file.discard()
                raise
            if file.commit_new():
                break
            free_path = path.with_name(f"{path.stem}-{number}{path.suffix}")
        return free_path

    def real(self, path: Path) -> Path:
        """Return the path of a file in this folder without links in the folder's own path."""
        return self._real_path / path.relative_to(self.path)

    def _path_of_single_file(
        self, origin: Origin, suffix: str, *, may_replace: bool = True
    ) -> Path:
        """Choose the path of an input's file, such as `bus.jpg`, and claim its name for the input.

        Neither another input of this run nor another run at work can then get the name. If the name
        `bus.jpg` belongs to a different input, a hash of this input is added, which is the same in
        every run. If it is a file that must not be replaced, a number is added.

        Args:
            origin: The input, of an image or a video.
            suffix: The suffix of the file.
            may_replace: Whether the file may replace one from an earlier run. The file of a new
                input, such as standard input, never does.
        """
        name = self._relative_name(origin)
        if self._needs_hash(name, suffix):
            self._names.withhold(name)
        self._claim_usual_name(name, suffix, origin)

        if origin.is_new:
            may_replace = False
        input_hash = ""  # for files that replace none: only numbers tell their names apart
        if may_replace:
            input_hash = hash_of_input(origin)

        def is_usable(file_name: str) -> bool:
            """Return whether the input may have a name, which is then claimed for it."""
            if not self._may_write(self.path / file_name, may_replace=may_replace):
                return False
            return self._claim_name(file_name, suffix, origin)

        return self.path / self._names.choose_file_name(name, suffix, is_usable, input_hash)

    def _needs_hash(self, name: str, suffix: str) -> bool:
        """Return whether an input's file needs a hash in its name, in a folder that others made.

        It does if another file has its usual name, which must not be replaced; or if inputs are in
        the folder, so that a later search for them leaves the file out.

        Args:
            name: The usual name of the file, without its suffix.
            suffix: The suffix of the file.
        """
        if self._is_made_by_detcli:
            return False
        return self._has_inputs or os.path.lexists(self._real_path / f"{name}{suffix}")

    def _claim_usual_name(self, name: str, suffix: str, origin: Origin) -> None:
        """Claim the name that an input's files usually have, unless another run at work has it.

        If another run has it for a different input, this input gets its name with a hash, which is
        the same in every run: `bus-1f3c9b20.jpg` instead of `bus.jpg`. For that the name is
        withheld from the inputs of this run.

        Args:
            name: The usual name, without its suffix.
            suffix: The suffix of the file. An input of several files, `film_0.jpg`, `film_1.jpg`
                and so on, claims their common beginning `film_`: then it is `_`.
            origin: The input.
        """
        is_claimed = self._claim_name(f"{name}{suffix}", suffix, origin)
        if not is_claimed:
            self._names.withhold(name)

    def _choose_prefix(self, record: Record) -> str:
        """Choose how the names of an input's numbered files begin, and claim that for the input.

        It is `film` for the frames `film_17.jpg`. A video gets the same prefix in every run, and
        replaces the files of an earlier run. A new input, such as a camera, gets a prefix that no
        file here has, with a number if needed.
        """
        origin = record.origin
        name = self._relative_name(origin)
        self._claim_usual_name(name, "_", origin)

        if origin.is_new:
            input_hash = ""  # prefixes of new inputs are told apart by numbers only
            excluded_prefixes = self._present_prefixes()
        else:
            input_hash = hash_of_input(origin)
            excluded_prefixes = set()

        def is_usable(prefix: str) -> bool:
            """Return whether the input may have a prefix, with its `_`, which is then claimed."""
            if fold(prefix) in excluded_prefixes:
                return False
            return self._claim_name(prefix, "_", origin)

        return self._names.choose_prefix(name, is_usable, input_hash)

    def _present_prefixes(self) -> set[str]:
        """Return the prefixes that files in this folder and below have in their names."""
        present_prefixes: set[str] = set()
        for _, _, file_names in os.walk(self._real_path):
            for file_name in file_names:
                present_prefixes.update(prefixes_of(PurePath(file_name).stem))
        return present_prefixes

    def _claim_name(self, name: str, suffix: str, origin: Origin) -> bool:
        """Claim a name for an input, so that other runs at work in this folder do not use it.

        Args:
            name: The name of a file with its suffix, `bus.jpg`; or what the names of several files
                begin with, and then it ends with `_`: `film_`.
            suffix: The end of the name: the suffix, or `_`.
            origin: The input that the file is for.

        Returns:
            Whether this run may use the name. False if another run at work has claimed it for a
            different input.
        """
        if self._claims is None:  # somebody else made the folder, so nothing is claimed in it
            return True
        prefixes = prefixes_of(name.removesuffix(suffix))
        return self._claims.take(fold(name), prefixes, hash_of_input(origin), is_new=origin.is_new)

    def _relative_name(self, origin: Origin) -> str:
        """Return the name that an input's files should have here, without a suffix.

        It is the input's path below the folder that was searched: `a/bus` for `pics/a/bus.jpg`. It
        is `bus` alone for an input that was named itself, or whose subfolder cannot be made here.
        """
        own_name = safe(stem(origin.source))
        path_below_root = self._path_below_root(origin.source)
        if path_below_root is None or path_below_root.is_absolute():
            return own_name
        folder = "/".join([safe(folder_name) for folder_name in path_below_root.parts[:-1]])
        if not self.is_usable(folder):
            return own_name
        name = safe(path_below_root.stem)
        if not folder:
            return name
        return f"{folder}/{name}"

    def _path_below_root(self, source: str) -> PurePath | None:
        """Return the path of an input below the searched folder it is in; None if it is in none."""
        for beginning in self._root_beginnings:
            if source.startswith(beginning):
                return PurePath(source[len(beginning) :])
        return None

    def _may_write(self, path: Path, *, may_replace: bool) -> bool:
        """Return whether a file may be written to this path.

        Inputs are never written to. An existing file is replaced only with `may_replace`, and only
        in a folder that detcli made; a folder or a device of this name is never replaced.
        """
        if path in self._inputs:
            return False
        try:
            mode = self.real(path).lstat().st_mode
        except FileNotFoundError:
            return True
        is_replaceable = stat.S_ISREG(mode) or stat.S_ISLNK(mode)
        return self._is_made_by_detcli and may_replace and is_replaceable


class FolderSink:
    """Base of sinks that write whole files into a folder."""

    def __init__(self, folder: OutputFolder) -> None:
        self._folder = folder

    def close(self) -> None:
        pass  # each file was complete when it was written
