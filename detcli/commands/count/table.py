"""Writes counts: as a table for people, as CSV for spreadsheets, as JSON for programs."""

import csv
import io
import json
import sys
from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING

from detcli.cli.report import EMPTY, ReportFormat, write_report
from detcli.commands.count.groups import Groups
from detcli.core import Fields, frozen
from detcli.core.text import escape_unprintable, is_terminal, pluralize
from detcli.storage.files import StandardOutput

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

COUNTS = ("images", "boxes", "failed")
"""The columns after those of the keys."""

MAX_SHOWN_GROUPS = 1000
"""How many groups the table shows, as it is for people; CSV and JSON have all."""

LOT = 10_000
"""Lines of text that are written to standard output at once."""

VERSION = 1
"""The version of the JSON."""


class CountFormat(StrEnum):
    """How counts are written."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


@frozen
class CountTotals:
    """How many images and boxes there are in all records, each counted once."""

    images: int
    boxes: int
    failed: int  # inputs with an error


def write_counts(groups: Groups, requested_format: CountFormat | None) -> None:
    """Write counts to standard output.

    Args:
        groups: The counts.
        requested_format: The value of --format; None for a table on a terminal, and JSON elsewhere.
    """
    count_format = requested_format
    if count_format is None:
        count_format = CountFormat.JSON
        if is_terminal(sys.stdout):
            count_format = CountFormat.TABLE
    match count_format:
        case CountFormat.CSV:
            _write_lines(_csv_lines(groups))
        case CountFormat.JSON:
            _write_lines(_json_lines(groups))
        case CountFormat.TABLE:
            totals = CountTotals(groups.image_count, groups.box_count, groups.failed_count)
            write_report(totals, ReportFormat.TABLE, lambda _: _table_blocks(groups))


def _write_lines(lines: Iterable[str]) -> None:
    """Write lines to standard output, many at a time: there may be a line for each burst."""
    output = StandardOutput()
    remaining_lines = iter(lines)
    while True:
        lot = list(islice(remaining_lines, LOT))
        if not lot:
            break
        output.write("".join(lot))
    output.commit()


def _rows(groups: Groups) -> Iterator[Fields]:
    """Yield the values and the counts of each group, by the name of the column."""
    for values, counts in groups:
        row: Fields = {}
        for key, value in zip(groups.keys, values, strict=True):
            row[str(key)] = value
        for column in COUNTS:
            row[column] = getattr(counts, column)
        yield row


def _csv_lines(groups: Groups) -> Iterator[str]:
    """Yield the lines of CSV: a header, then a line for each group; a value of None is empty."""
    columns = [*groups.keys, *COUNTS]
    line = io.StringIO()  # the writer writes to it, and it is emptied for each line
    writer = csv.DictWriter(line, columns, lineterminator="\n")
    writer.writeheader()
    yield line.getvalue()
    for row in _rows(groups):
        line.seek(0)
        line.truncate()
        writer.writerow(row)
        yield line.getvalue()


def _json_lines(groups: Groups) -> Iterator[str]:
    """Yield the lines of one JSON object: the totals, then a line for each group.

    It is written line by line, as there may be too many groups to hold their text in memory:

        {"schema_version": 1, ..., "failed": 0, "groups": [
          {"class": "deer", "images": 2, "boxes": 3},
          ...
        ]}
    """
    totals = {
        "schema_version": VERSION,
        "by": list(groups.keys),
        "images": groups.image_count,
        "boxes": groups.box_count,
        "failed": groups.failed_count,
    }
    opened_object = json.dumps(totals).removesuffix("}")
    yield f'{opened_object}, "groups": ['
    separator = "\n"
    for row in _rows(groups):
        yield f"{separator}  {json.dumps(row, ensure_ascii=False)}"
        separator = ",\n"
    yield "\n]}\n"


def _table_blocks(groups: Groups) -> "Iterator[RenderableType]":
    """Yield the table for people, a line about groups that it does not show, and the totals."""
    from rich.text import Text

    yield _table(groups)

    hidden_count = len(groups) - MAX_SHOWN_GROUPS
    if hidden_count > 0:
        yield Text(f"{hidden_count} more groups: --format csv and json have all")

    boxes = f"{groups.box_count} boxes"
    if groups.box_count == 1:
        boxes = "1 box"
    totals = f"{pluralize(groups.image_count, 'image')}, {boxes}"
    if groups.failed_count:
        totals += f", {groups.failed_count} failed"
    yield Text(totals)


def _table(groups: Groups) -> "Table":
    """Lay out the first groups as a table: the keys on the left, the counts on the right.

    Failed inputs have a column only if there are any.
    """
    from rich.table import Table
    from rich.text import Text

    columns = [*groups.keys, "images", "boxes"]
    if groups.failed_count:
        columns.append("failed")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        if column in COUNTS:
            table.add_column(column, justify="right", no_wrap=True)
        else:
            table.add_column(column, overflow="fold")
    for row in islice(_rows(groups), MAX_SHOWN_GROUPS):
        cells = []
        for column in columns:
            value = row[column]
            if value is None:
                value = EMPTY
            cells.append(Text(escape_unprintable(str(value))))
        table.add_row(*cells)
    return table
