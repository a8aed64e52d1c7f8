"""The log of a sorted folder: what was put there, so that sorting can be undone.

It is JSON Lines. The first line says by which rules and how; each other line a folder or a file,
before it is made, so that a power cut leaves nothing that the log does not have.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from detcli.core import Fields
from detcli.core.errors import SourceError, UsageError, system_reason
from detcli.core.lines import bounded_lines
from detcli.storage.files import AppendedFile, open_lines, sha256, writing

LOG_NAME = "sort-log.jsonl"

VERSION = 1

TIME_TOLERANCE_NS = 2_000_000_000
"""How exact the time of a file is on memory cards, which store it in steps of two seconds."""


class SortLog:
    """The log of a folder, to which each step is added."""

    def __init__(self, folder: Path, rules: Sequence[str], how: str) -> None:
        """Start the log of a folder, or continue that of an earlier run.

        Args:
            folder: The folder, which exists.
            rules: The rules as they were typed.
            how: How images get into the folder.

        Raises:
            UsageError: The folder was sorted by other rules, or in a different way.
            OutputError: The log cannot be written.
        """
        header = {"sort_log": VERSION, "by": list(rules), "how": how}
        self._file = AppendedFile(folder / LOG_NAME)
        is_new = not self._file.first_line
        if is_new:
            self.add(header)
        elif self._file.first_line.strip() != json.dumps(header):
            self._file.file.close()
            raise UsageError(
                f"{folder} was sorted before, by other rules or in another way",
                f"name another folder, or take that back: detcli sort -o {folder} --undo",
            )

    def add(self, entry: Fields) -> None:
        """Add a line; a name that is not UTF-8 has Python's escapes in it."""
        self._file.write(json.dumps(entry) + "\n")

    def close(self) -> None:
        """Put the log on the disk."""
        self._file.commit()


def read_log(folder: Path) -> list[Fields]:
    """Read the log of a folder, without its first line.

    Returns:
        What was made, in that order: `{"folder": "cat"}` or `{"file": "cat/a.jpg", ...}`.

    Raises:
        SourceError: There is none, or it cannot be read.
        UsageError: It is not a log, or names something outside of the folder.
    """
    path = folder / LOG_NAME
    try:
        with open_lines(path) as file:
            lines = list(_parsed(bounded_lines(file)))
    except OSError as error:
        raise SourceError(
            f"cannot read {path}: {system_reason(error)}", "name a folder that detcli sort made"
        ) from error
    if not lines or lines[0].get("sort_log") != VERSION:
        raise UsageError(f"{path} is not a log of detcli sort", "take the files back by hand")
    entries = lines[1:]
    for entry in entries:
        name = entry.get("file", entry.get("folder"))
        if not isinstance(name, str) or not is_inside(name):
            raise UsageError(f"{path} is damaged: {name!r}", "take the files back by hand")
    return entries


def _parsed(lines: Iterator[bytes]) -> Iterator[Fields]:
    """Yield the objects of a log, without a line that a power cut has torn."""
    for line in lines:
        with contextlib.suppress(ValueError):
            value: Any = json.loads(line)
            if isinstance(value, dict):
                yield value


def is_inside(name: str) -> bool:
    """Return whether a path, with slashes, leads to something below the folder it begins in."""
    path = PurePosixPath(name)
    is_relative = not path.is_absolute() and not os.path.isabs(name)  # noqa: PTH117
    return is_relative and name not in {"", "."} and ".." not in path.parts


class TakenBack(NamedTuple):
    """What became of the files that were sorted into a folder."""

    removed_count: int
    left: list[str]  # names of files that are not removed


def take_back(folder: Path) -> TakenBack:
    """Remove what was sorted into a folder, and the log if nothing is left.

    A file is left where it is if it is not the one that was put there any more, or if its original
    is gone, as it would be the last copy then. A folder is left unless it is empty.

    Args:
        folder: A folder with a log.

    Raises:
        SourceError: There is no log, or it cannot be read.
        UsageError: It is damaged.
        OutputError: A file cannot be removed.
    """
    removed_count = 0
    remaining_files = []
    for entry in reversed(read_log(folder)):  # a folder was made before the files in it
        if "folder" in entry:
            with contextlib.suppress(OSError):  # it is not empty, or it is gone
                (folder / entry["folder"]).rmdir()
            continue
        path = folder / entry["file"]
        if not os.path.lexists(path):
            continue
        if _may_be_removed(path, entry):
            with writing(path):
                path.unlink()
            removed_count += 1
        else:
            remaining_files.append(entry["file"])

    if not remaining_files:
        log_path = folder / LOG_NAME
        with writing(log_path):
            log_path.unlink()
    return TakenBack(removed_count, remaining_files)


def _may_be_removed(path: Path, entry: Fields) -> bool:
    """Return whether a file may be removed: it is what was put there, and not the last copy of it.

    The log has files of three types, each with different keys:

    - a list of names: `sha256` of its text
    - a hard link to an image: `source`, the path of the original
    - a copy of an image: `source`, and the `size` and `mtime_ns` of the original

    Args:
        path: The file.
        entry: What the log says about it. The log may be damaged: a file whose entry lacks a key,
            or has a value of a different type, may not be removed.
    """
    try:
        if path.is_symlink() or not path.is_file():
            return False
        is_list_of_names = "sha256" in entry
        if is_list_of_names:
            return sha256(path) == str(entry["sha256"])

        original = Path(entry["source"])
        is_hard_link = "size" not in entry
        if is_hard_link:
            return path.samefile(original)

        has_original = original.is_file() and original.stat().st_size == entry["size"]
        return has_original and is_copy(path, entry["size"], entry["mtime_ns"])
    except (OSError, KeyError, TypeError, ValueError):
        return False


def is_copy(path: Path, size: int, mtime_ns: int) -> bool:
    """Return whether a file has the size and the time of the file that it may be a copy of."""
    status = path.stat()
    has_time = abs(status.st_mtime_ns - mtime_ns) <= TIME_TOLERANCE_NS
    return status.st_size == size and has_time
