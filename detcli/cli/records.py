"""Records that a command takes as its argument, read without OpenCV where that is possible."""

import os
from collections.abc import Iterator

from detcli.core.errors import UsageError
from detcli.core.text import is_object
from detcli.data.record import RecordJson
from detcli.data.record_file import read_file, read_standard_input
from detcli.data.saved_record import parse_scored

STDIN = "-"
"""The name that stands for standard input."""

RECORDS_HELP = (
    "JSON Lines of detcli predict or merge, or the folder of a run in shards; - is standard input."
)


def read_scored(name: str) -> Iterator[RecordJson]:
    """Yield the records of a file, of standard input, or of the folder of a run in shards.

    The classes and scores of their detections are checked, and perhaps nothing else of these.

    Args:
        name: A name that was typed; "-" for standard input.

    Raises:
        SourceError: It cannot be read.
        UsageError: It holds something else.
        CheckError: A part of the run in shards is missing or damaged.
    """
    if name == STDIN:
        yield from read_standard_input(parse_scored)
    elif os.path.isdir(name) or is_object(name):  # noqa: PTH112 - raises nothing
        from detcli.run.saved import read_records  # it loads OpenCV

        yield from read_records(name)
    else:
        yield from read_file(name, parse_scored)


def require_different(names: tuple[str, ...]) -> None:
    """Refuse a name that was typed twice, whose records would count twice.

    Raises:
        UsageError: There is such a name, or none at all.
    """
    if not names:
        raise UsageError("no records given", "name a file of records, or - for standard input")
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{name} is named twice", "name each file of records once")
