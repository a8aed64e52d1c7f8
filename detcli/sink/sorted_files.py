"""Puts images into the folders that they are sorted into: links, copies, or lists of names."""

import errno
import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path, PurePath, PurePosixPath
from typing import NamedTuple

from detcli.core.errors import OutputError
from detcli.sink.sort_log import SortLog, is_copy
from detcli.storage.files import unwritable, writing

NO_LINKS_ERRORS = {errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS}
"""System errors for a file that cannot be linked: mostly, it is on a different disk."""


COPIED_BYTES = 1 << 20
"""How many bytes of a file are copied at once."""


class How(StrEnum):
    """How images get into the folders."""

    LINK = "link"
    COPY = "copy"
    LIST = "list"


def path_below(name: str) -> PurePosixPath:
    """Return the path of an image below a folder, which keeps the folders of its name.

    Examples:
        >>> str(path_below("/mnt/card1/a.jpg")), str(path_below("../pics/./a.jpg"))
        ('mnt/card1/a.jpg', 'pics/a.jpg')
    """
    path = PurePath(name)
    parts = [part for part in path.parts if part not in {path.anchor, "..", "."}]
    return PurePosixPath(*parts)


class Placer:
    """Links or copies images into a folder, and never writes over anything."""

    def __init__(self, folder: Path, log: SortLog, how: How) -> None:
        """Prepare to place images; none is counted yet.

        Args:
            folder: The folder with a folder for each class.
            log: Gets a line for everything that is made.
            how: Whether images are linked or copied.
        """
        self._folder = folder
        self._log = log
        self._how = how
        self._folders: set[PurePosixPath] = {PurePosixPath()}  # those that exist
        # number of images that are there now, by the folder of the class
        self.counts = Counter[str]()
        self.missing: list[str] = []  # names of images that are not files here
        self.blocked: list[str] = []  # names whose place is taken by another file

    def place(self, name: str, class_folder: str) -> None:
        """Link or copy an image into the folder of a class, below the folders of its own name.

        Args:
            name: The path of the image; what is not a file is added to `missing`.
            class_folder: The folder of the class.

        Raises:
            OutputError: It cannot be written.
        """
        source = _file_of(name)
        if source is None:
            self.missing.append(name)
            return
        relative_path = class_folder / path_below(name)
        target = self._folder / relative_path
        if os.path.lexists(target):
            is_placed = self._is_there(source, target)
        else:
            self._make_folders(relative_path.parent)
            is_placed = self._try_to_make(name, source, relative_path)
        if is_placed:
            self.counts[class_folder] += 1
        else:
            self.blocked.append(name)

    def _try_to_make(self, name: str, source: Path, relative_path: PurePosixPath) -> bool:
        """Link or copy an image; False if another program has written to its place meanwhile.

        Args:
            name: The name of the image, for the message of an error.
            source: Its file.
            relative_path: Its place, relative to the sorted folder.

        Raises:
            OutputError: It cannot be written.
        """
        target = self._folder / relative_path
        try:
            self._log_and_make(source, target, str(relative_path))
        except FileExistsError:
            return False
        except OSError as error:
            raise self._placing_error(name, target, error) from error
        return True

    def _log_and_make(self, source: Path, target: Path, logged_name: str) -> None:
        """Log a link or a copy of a file, and make it.

        It is logged first, so that a power cut leaves no file that the log does not have.

        Args:
            source: The file.
            target: The path of the link or copy, in a folder that exists.
            logged_name: The path of the link or copy relative to the sorted folder, with slashes.

        Raises:
            FileExistsError: There is a file at the path.
            OSError: The link or copy cannot be made.
        """
        entry = {"file": logged_name, "source": str(source)}
        if self._how is How.LINK:
            self._log.add(entry)
            os.link(source, target)
        else:
            status = source.stat()
            self._log.add({**entry, "size": status.st_size, "mtime_ns": status.st_mtime_ns})
            _copy(source, target)

    def _placing_error(self, name: str, target: Path, error: OSError) -> OutputError:
        """Make the error for an image that the system does not link or copy.

        Args:
            name: The name of the image.
            target: The path of the link or copy.
            error: The error of the system.
        """
        if self._how is How.LINK and error.errno in NO_LINKS_ERRORS:
            return OutputError(
                f"cannot link {name} into {self._folder}: it is on another disk, or its file "
                "system has no links",
                "name a folder on the same disk, or add --how copy",
            )
        return unwritable(target, error)

    def _is_there(self, source: Path, target: Path) -> bool:
        """Return whether an image is already in its place, from an earlier run."""
        try:
            if self._how is How.LINK:
                return not target.is_symlink() and target.samefile(source)
            status = source.stat()
            return target.is_file() and is_copy(target, status.st_size, status.st_mtime_ns)
        except OSError:
            return False

    def _make_folders(self, relative_path: PurePosixPath) -> None:
        """Make a folder and those above it, and log each that was not there.

        Raises:
            OutputError: A folder cannot be made, as a file has its name.
        """
        if relative_path in self._folders:
            return
        self._make_folders(relative_path.parent)
        path = self._folder / relative_path
        if not path.is_dir():
            self._log.add({"folder": str(relative_path)})
            with writing(path):
                path.mkdir()
        self._folders.add(relative_path)


def _file_of(name: str) -> Path | None:
    """Return the file that a name leads to, through links; None if there is no regular file."""
    try:
        path = Path(os.path.realpath(name))
        is_file = path.is_file()
    except (OSError, ValueError):  # a name that no file can have
        return None
    if not is_file:
        return None
    return path


def _copy(source: Path, target: Path) -> None:
    """Copy a file with its times to a name that no other file has.

    Raises:
        FileExistsError: A file has the name.
        OSError: It cannot be copied; nothing is left of it then.
    """
    status = source.stat()
    with source.open("rb") as original:
        copy = target.open("xb")
        try:
            with copy:
                shutil.copyfileobj(original, copy, COPIED_BYTES)
            os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
        except BaseException:
            target.unlink()
            raise


class ListedNames(NamedTuple):
    """Which names are in lists of names, and which are not."""

    counts: Counter[str]  # how many names are in the list of each class folder
    unlisted: list[str]  # names that no list can hold


def write_lists(
    assignment: Iterable[tuple[str, str]], folders: Iterable[str], output: Path, log: SortLog
) -> ListedNames:
    """Write a list of names for each class folder, which predict --files-from reads.

    Nothing is written if any of the lists already exists.

    Args:
        assignment: The name of each image, and its class folder.
        folders: The class folders; each has a list, even an empty one: `cat.txt` for `cat`.
        output: The folder to write the lists to.
        log: Gets a line for each list.

    Raises:
        OutputError: There is a file with the name of a list, or it cannot be written.
    """
    listed = ListedNames(Counter(), [])
    text_of_folder = {folder: bytearray() for folder in folders}
    for name, folder in assignment:
        line = _list_line(name)
        if line is None:
            listed.unlisted.append(name)
        else:
            text_of_folder[folder] += line
            listed.counts[folder] += 1

    for folder in text_of_folder:
        path = output / f"{folder}.txt"
        if os.path.lexists(path):
            raise OutputError(f"{path} exists", "name another folder, or remove it")
    for folder, text in text_of_folder.items():
        file_name = f"{folder}.txt"
        path = output / file_name
        log.add({"file": file_name, "sha256": hashlib.sha256(text).hexdigest()})
        with writing(path), path.open("xb") as file:
            file.write(text)
    return listed


def _list_line(name: str) -> bytes | None:
    """Return the line of an image in a list of names; None if no line can name it.

    A name with a line end in it, or that looks like JSON, is written as JSON. JSON is UTF-8, so a
    name that is not has no line then. Images that came through standard input have none either, as
    nothing can read them again.
    """
    is_of_standard_input = name == "-" or name.startswith("-:")
    if is_of_standard_input:
        return None

    looks_like_json = name.lstrip().startswith("{")
    ends_line = any(character in name for character in "\r\n\0")
    if not looks_like_json and not ends_line:
        return os.fsencode(name) + b"\n"

    try:
        return json.dumps({"path": name}, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        return None
