"""Records that a command takes as its argument, read without OpenCV where that is possible."""

import contextlib
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

from detcli.core.errors import UsageError
from detcli.core.text import is_object, public_name
from detcli.data.record import RecordJson
from detcli.data.record_file import (
    is_csv,
    is_parquet,
    is_single_object,
    read_file,
    read_standard_input,
)
from detcli.data.saved_record import parse_record, parse_scored
from detcli.storage.files import open_lines

if TYPE_CHECKING:
    import io

STDIN = "-"
"""The name that stands for standard input."""

RECORDS_HELP = (
    "JSON Lines, CSV or Parquet of detcli predict or merge, MegaDetector's results, or the folder "
    "of a run in shards; - is standard input."
)

BEGINNING_BYTES = 64
"""How much of a file is read to see what it holds."""


def read_for_scores(name: str) -> Iterator[RecordJson]:
    """Yield records for a command that uses only the classes and scores of their detections.

    There may be millions of records in JSON Lines, so they are checked no further than that. CSV,
    Parquet, a single JSON object and the folder of a run in shards have a slower reader, which
    checks all.

    Args:
        name: A name that was typed; "-" for standard input.

    Raises:
        SourceError: It cannot be read.
        UsageError: It holds something else.
        CheckError: A part of the run in shards is missing or damaged.
    """
    if not _has_record_on_each_line(name):
        from detcli.run.saved import read_records  # only here, as it loads OpenCV

        yield from read_records(name)
    elif name == STDIN:
        yield from read_standard_input(parse_scored)
    else:
        yield from read_file(name, parse_scored)


def read_selected(
    name: str, is_selected: Callable[[int], bool]
) -> Iterator[tuple[int, RecordJson]]:
    """Yield the selected records of a file with their indices, fully checked.

    The records are numbered from 0. If the file has a record on each line, the lines of other
    records are not parsed.

    Args:
        name: The name of a file, or of the folder of a run in shards, which was read before.
        is_selected: Takes the index of a record, and returns whether to yield it.

    Raises:
        The errors of `read_for_scores`.
    """
    if not _has_record_on_each_line(name):
        from detcli.run.saved import read_records  # only here, as it loads OpenCV

        for number, record in enumerate(read_records(name)):
            if is_selected(number):
                yield number, record
        return

    # `read_file` yields what the parser returns for each line: a record, or `skipped`.
    parser = _SelectiveParser(is_selected)
    for record in read_file(name, parser):
        if record is not parser.skipped:
            yield parser.last_number, record


class _SelectiveParser:
    """Parses the lines of the selected records of a file, and returns `skipped` for all others.

    Attributes:
        last_number: The index of the record whose line it got last, from 0.
        skipped: Stands for each record that is not selected.
    """

    def __init__(self, is_selected: Callable[[int], bool]) -> None:
        """Take the function that returns, for the index of a record, whether it is selected."""
        self.last_number = -1  # before the first line
        self.skipped = cast("RecordJson", {})
        self._is_selected = is_selected

    def __call__(self, line: bytes) -> RecordJson:
        """Parse the next line, or return `skipped`."""
        self.last_number += 1
        if self._is_selected(self.last_number):
            return parse_record(line)
        return self.skipped


def _has_record_on_each_line(name: str) -> bool:
    """Return whether records come one per line, not in parts, tables or another program's form."""
    # Not Path.is_dir, which raises an OSError for a name that is too long, say.
    is_shards = os.path.isdir(name) or is_object(name)  # noqa: PTH112
    return not is_shards and not _is_not_json_lines(name)


def take_records(
    name: str, take: Callable[[RecordJson], object], advance: Callable[[str], object]
) -> None:
    """Read the records of a file, and report which of them a command cannot use.

    Args:
        name: A name that was typed, as for `read_for_scores`.
        take: Uses a record; it raises ValueError if something is wrong with it.
        advance: Is called with the source of each record, for a progress bar.

    Raises:
        UsageError: A record cannot be used. Other errors are those of `read_for_scores`.
    """
    for number, record in enumerate(read_for_scores(name), start=1):
        try:
            take(record)
        except ValueError as error:
            raise UsageError(
                f"record {number} of {public_name(name)} is not a record of detcli: {error}",
                "name a file that predict or merge wrote",
            ) from error
        advance(record["source"])


def _is_not_json_lines(name: str) -> bool:
    """Return whether a file is a single JSON object, CSV or Parquet, by its first bytes.

    It is False for a file that cannot be read, as the reader's error says why; and for a pipe,
    which cannot be read twice.
    """
    if name == STDIN:
        beginning = _beginning_of_stdin()
    else:
        beginning = _beginning_of_file(name)
    return is_single_object(beginning) or is_csv(beginning) or is_parquet(beginning)


def _beginning_of_file(name: str) -> bytes:
    """Read the first bytes of a regular file; none if it cannot be read."""
    # Not Path.is_file, which raises an OSError for a name that is too long, say.
    if not os.path.isfile(name):  # noqa: PTH113
        return b""
    with (
        contextlib.suppress(OSError, EOFError, zlib.error, ValueError),
        open_lines(Path(name)) as file,
    ):
        return file.read(BEGINNING_BYTES)
    return b""


def _beginning_of_stdin() -> bytes:
    """Peek at the first bytes of standard input, which stay unread; empty if it is closed."""
    if sys.stdin is None:
        return b""
    return cast("io.BufferedReader", sys.stdin.buffer).peek(BEGINNING_BYTES)


def require_different(names: tuple[str, ...]) -> None:
    """Refuse a name that was typed twice, as its records would be counted twice.

    Raises:
        UsageError: There is such a name, or none at all.
    """
    if not names:
        raise UsageError("no records given", "name a file of records, or - for standard input")
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{name} is named twice", "name each file of records once")
