"""The lines of a journal: records, and what a kill or a power cut leaves of one."""

from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Mapping
from typing import Any, cast

from detcli.core import Fields
from detcli.data.json_text import encode
from detcli.data.saved_record import RECORD_START, parse_outline


def encode_line(fields: Mapping[str, Any]) -> bytes:
    """Encode a record as a line of a journal."""
    return f"{encode(fields)}\n".encode()


def parse_line(line: bytes, *, after_record: bool) -> Fields:
    """Parse a line of a journal.

    Args:
        line: The line, with its line feed if it has one.
        after_record: Whether an undamaged record comes before it in the file. If so, the file is
            a journal for sure, and any line that begins with zeros is a damaged record.

    Returns:
        The fields of the record; empty for a line that a kill or a power cut has damaged.

    Raises:
        ValueError: The line is neither a record nor what is left of one.
    """
    if line.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        raise ValueError("it is UTF-16, as PowerShell's > writes, and cannot be continued")

    # A line that was written whole ends with a line feed, and has no zeros of lost disk pages.
    is_complete = b"\0" not in line and line.endswith(b"\n")
    if is_complete:
        return cast("Fields", parse_outline(line))
    if not _is_damaged_record(line, after_record=after_record):
        raise ValueError("it contains NUL bytes, or no line feed ends it")
    return {}


def _is_damaged_record(line: bytes, *, after_record: bool) -> bool:
    """Return whether an incomplete line is what a kill or a power cut leaves of a record.

    A killed run leaves the beginning of a line. A power cut leaves zeros in place of disk pages
    that were not written, and perhaps the rest of a line after them. After zeros, the rest may be
    anything. So it is accepted only in a file that certainly is a journal, as it has a record.

    Args:
        line: A line with zeros in it or without a line feed.
        after_record: Whether an undamaged record comes before it.
    """
    beginning = line.partition(b"\0")[0]
    if beginning:
        has_record_start = beginning.startswith(RECORD_START)
        is_cut_in_record_start = RECORD_START.startswith(beginning)
        return has_record_start or is_cut_in_record_start
    has_only_zeros = not line.strip(b"\0\n")
    return after_record or has_only_zeros
