"""Reads the records of a file or of standard input: JSON Lines or an array, or gzip of these.

It does not need OpenCV, so commands that read records and no images start fast.
"""

import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from detcli.core.errors import SourceError, UsageError, system_reason
from detcli.core.lines import bounded_lines, utf8_file
from detcli.data.record import RecordJson
from detcli.data.saved_record import RECORD_START, parse_record
from detcli.storage.file_names import did_you_mean
from detcli.storage.files import open_lines

ParseRecord = Callable[[bytes], RecordJson]
"""Parses a line as a record; raises ValueError or RecursionError if it is not one."""

WITHOUT_RECORD = frozenset({b"", b"[", b"]"})
"""Lines of an array of records, besides those of the records."""


def read_file(name: str, parse: ParseRecord = parse_record) -> Iterator[RecordJson]:
    """Yield the records of a file.

    Args:
        name: The path of the file.
        parse: Parses a line; a function that checks less of it is faster.

    Raises:
        SourceError: The file cannot be read.
        UsageError: A line is not a record.
    """
    try:
        with open_lines(Path(name)) as file:
            yield from read_lines(file, name, parse)
    # A damaged gzip file raises EOFError or zlib.error, and a name that no path can have, or text
    # that is not UTF-8, a ValueError.
    except (OSError, EOFError, zlib.error, ValueError) as error:
        hint = "check it"
        if isinstance(error, FileNotFoundError):
            hint = did_you_mean(name) + hint
        raise SourceError(f"cannot read {name}: {system_reason(error)}", hint) from error


def read_standard_input(parse: ParseRecord = parse_record) -> Iterator[RecordJson]:
    """Yield the records on standard input; `parse` is that of `read_file`.

    Raises:
        SourceError: It is closed, or is not text.
        UsageError: A line is not a record.
    """
    if sys.stdin is None:
        raise SourceError("standard input is closed", "pipe records in, or name a file")
    try:
        file = utf8_file(sys.stdin.buffer, close=False)
        yield from read_lines(file, "standard input", parse)
    except UnicodeDecodeError as error:
        raise SourceError(f"cannot read standard input: {error}", "check it") from error


def is_single_object(beginning: bytes) -> bool:
    """Return whether a file, by its first bytes, is one object of JSON, not one record per line."""
    beginning = beginning.lstrip()
    return beginning.startswith(b"{") and not beginning.startswith(RECORD_START)


CSV_START = b"source,index,"
PARQUET_START = b"PAR1"


def is_csv(beginning: bytes) -> bool:
    """Return whether a file, by its first bytes, is a table in CSV that detcli wrote."""
    return beginning.startswith(CSV_START)


def is_parquet(beginning: bytes) -> bool:
    """Return whether a file, by its first bytes, is a table in Parquet."""
    return beginning.startswith(PARQUET_START)


def read_lines(
    file: BinaryIO, name: str, parse: ParseRecord = parse_record
) -> Iterator[RecordJson]:
    """Yield the records of a file that has one on each line.

    It may be JSON Lines, or an array of JSON as detcli writes it: with its brackets on lines of
    their own, and a comma after each record but the last. An empty array is `[]`.

    Args:
        file: The file, at its beginning.
        name: What to call it in a message.
        parse: Parses a line.

    Raises:
        UnicodeDecodeError: The file is not text.
        UsageError: A line is something else.
    """
    line_number = 1
    try:
        for line in bounded_lines(file):
            text = line.strip().rstrip(b",")
            is_empty_array = text == b"[]" and line_number == 1
            if text not in WITHOUT_RECORD and not is_empty_array:
                yield parse(text)
            line_number += 1
    except UnicodeDecodeError:  # a ValueError, but not about a single line
        raise
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"line {line_number} of {name} is not a record of detcli: {error}",
            "name JSON Lines that predict or merge of this version, or an earlier one, wrote",
        ) from error
