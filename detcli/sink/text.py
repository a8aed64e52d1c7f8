"""Records as text: JSON Lines, a JSON array, CSV, and a table per image for people.

Spreadsheets run cells that begin like a formula, and terminals obey control codes. So in CSV,
control codes are escaped, and such cells begin with an apostrophe, as OWASP advises for "CSV
injection".
"""

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from detcli.core import Fields
from detcli.core.errors import UsageError
from detcli.core.text import escape_unprintable, wrap_for
from detcli.data.columns import OPTIONAL_COLUMNS, DetectionJson, OptionalColumn
from detcli.data.json_text import encode
from detcli.data.record import BOX, Record, RecordJson, box_of
from detcli.sink.protocol import Encodable, Output, TextSink
from detcli.storage.files import AppendedFile

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text


class JsonLinesSink(TextSink):
    """One JSON object per line, flushed so that a pipe gets each record at once."""

    def write(self, record: Encodable) -> None:
        self._output.write(encode_record(record) + "\n")


class JsonArray(TextSink):
    """A JSON array with one element per line, written as the elements come."""

    def __init__(self, output: Output) -> None:
        super().__init__(output)
        self._before = "[\n"  # what is written before the next element

    def extend(self, elements: Iterable[str]) -> None:
        """Write elements that are already JSON, all at once."""
        text = ",\n".join(elements)
        if text:
            self._output.write(self._before + text)
            self._before = ",\n"

    def close(self) -> None:
        """Write the end of the array, and close the output."""
        is_empty = self._before == "[\n"
        try:
            self._output.write("[]\n" if is_empty else "\n]\n")
        finally:
            super().close()


class JsonSink(JsonArray):
    """One JSON array with one record per line."""

    def write(self, record: Encodable) -> None:
        self.extend([encode_record(record)])


def encode_record(record: Encodable) -> str:
    """Encode a record as one line of JSON, without its line feed."""
    if isinstance(record, Record):
        return record.to_json_text()
    return encode(record.to_json())


COLUMNS = [
    "source",
    "index",
    "input",
    "frame",
    "time_s",
    "width",
    "height",
    "class_id",
    "class_name",
    "score",
    *BOX,
    "error",
    "time",
    "warnings",
    "meta",
    "source_bytes",
    "taken",
    "taken_offset",
]
"""The columns that CSV has in every run."""


OPTIONAL_BY_NAME = {column.name: column for column in OPTIONAL_COLUMNS}


def detection_rows(fields: RecordJson) -> Iterator[Fields]:
    """Yield the rows that a record has in CSV and Parquet.

    There is one row for each detection, which has the fields of the record, too; a record without
    detections has one row. The fields of an error get different names, such as `error_type`.
    """
    record_columns: Fields = {**fields}
    if "error" in fields:
        for name, value in fields["error"].items():
            record_columns[f"error_{name}"] = value
        record_columns["error"] = fields["error"]["message"]
    if "meta" in fields:
        record_columns["meta"] = json.dumps(fields["meta"])
    if not fields.get("detections"):
        yield record_columns
        return
    for detection in fields["detections"]:
        yield {**record_columns, **detection}


# With their full-width forms, which some spreadsheets treat alike.
FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")


class CsvSink(TextSink):
    """Comma-separated values with a header, and the rows of `detection_rows`.

    What is missing is empty. The columns are the same in all runs with the same options. A file
    that is appended to already has its header.

    Raises:
        UsageError: The file that is appended to has different columns.
    """

    def __init__(self, output: Output, optional_columns: Sequence[str] = ()) -> None:
        """Write the header; if rows are added to a file, check that its header is the same.

        Args:
            output: The output to write to.
            optional_columns: The names of columns that options of this run add.

        Raises:
            UsageError: The file has different columns; it is closed unchanged.
        """
        super().__init__(output)
        self._columns = [*COLUMNS, *optional_columns]
        header = ",".join(self._columns) + "\n"

        if not isinstance(output, AppendedFile) or not output.first_line:
            output.write(header)
        elif output.first_line != header:
            output.commit()  # this closes it
            raise UsageError(
                f"the columns of {output.path} differ from those of this run",
                "write to another file",
            )

    def write(self, record: Encodable) -> None:
        """Write the rows of a record, one for each detection."""
        import csv  # the other formats do without

        rows = []
        has_semicolon = False
        for fields in detection_rows(record.to_json()):
            cells = [_csv_cell(fields, name) for name in self._columns]
            has_semicolon = has_semicolon or any(";" in str(cell) for cell in cells)
            rows.append(cells)
        # Some readers split unquoted cells at a semicolon, and the second part may be a formula.
        text = io.StringIO()
        writer = csv.writer(
            text,
            lineterminator="\n",
            quoting=csv.QUOTE_ALL if has_semicolon else csv.QUOTE_MINIMAL,
        )
        writer.writerows(rows)
        self._output.write(text.getvalue())


def _csv_cell(row: Fields, name: str) -> str | float | None:
    """Return the content of a cell in CSV.

    Args:
        row: A row of `detection_rows`.
        name: The name of the column; the cell is empty if the row does not have it.
    """
    if name not in row:
        return ""
    value = row[name]
    if name == "warnings":
        value = "; ".join(value)
    elif name in OPTIONAL_BY_NAME:
        value = OPTIONAL_BY_NAME[name].to_csv(value)
    return _safe(value)


def _safe(cell: str | float | None) -> str | float | None:
    """Return the content of a cell so that no spreadsheet runs it as a formula.

    A string that begins like one gets an apostrophe before it; numbers are unchanged.
    """
    if not isinstance(cell, str):
        return cell
    text = escape_unprintable(cell)
    if text.lstrip().startswith(FORMULA):
        return f"'{text}"
    return text


UNLIMITED_WIDTH = 10_000


class TableSink(TextSink):
    """The detections of each image, aligned.

    On a terminal they are coloured, frames of videos take a line only if something was found, and
    the heads of columns are shown once, until different columns follow.
    """

    def __init__(self, output: Output) -> None:
        """Start without a table.

        Args:
            output: What is written to, a terminal or a file.
        """
        from rich.console import Console

        super().__init__(output)
        self._terminal = output.file.isatty()
        self._has_begun = False  # whether the text of a record was written
        self._last_had_several_lines = False  # whether the last record's text had several lines
        self._last_headings: list[str] = []  # heads of the columns of the last table
        # The terminal wraps long names, so that they can be copied whole. Only text is taken from
        # the console, which writes nothing.
        self._console = Console(
            file=io.StringIO(), force_terminal=self._terminal or None, width=UNLIMITED_WIDTH
        )

    def write(self, record: Encodable) -> None:
        """Write a heading and the detections of a record.

        An empty line comes before and after a record of several lines. On a terminal, frames are
        left out that have neither detections nor warnings nor an error.
        """
        fields = record.to_json()
        has_result = any(fields.get(name) for name in ("error", "warnings", "detections"))
        if self._terminal and "frame" in fields and not has_result:
            return

        def wrap(text: str) -> str:
            return wrap_for(escape_unprintable(text), self._output.file)

        if "error" in fields:
            blocks = _error_blocks(fields, wrap)
        else:
            blocks = _image_blocks(fields, wrap)

        if self._terminal and fields.get("detections"):
            detections_table = blocks[-1]
            self._hide_repeated_headings(detections_table)
        with self._console.capture() as capture:
            self._console.print(*blocks, sep="\n")
        has_several_lines = len(blocks) > 1
        self._write_with_empty_line(capture.get(), has_several_lines=has_several_lines)

    def _write_with_empty_line(self, text: str, *, has_several_lines: bool) -> None:
        """Write the text of a record, after an empty line if it or the last text has several lines.

        Args:
            text: The text, which ends with a line feed.
            has_several_lines: Whether it has several lines.
        """
        needs_empty_line = has_several_lines or self._last_had_several_lines
        if self._has_begun and needs_empty_line:
            text = f"\n{text}"
        self._output.write(text)
        self._has_begun = True
        self._last_had_several_lines = has_several_lines

    def _hide_repeated_headings(self, detections_table: "Table | Text") -> None:
        """Leave out the heads of a table's columns if those of the last table were the same."""
        from rich.table import Table

        if not isinstance(detections_table, Table):
            return
        headings = [str(column.header) for column in detections_table.columns]
        detections_table.show_header = headings != self._last_headings
        self._last_headings = headings


MIN_CLASS_WIDTH = 14
MIN_EDGE_WIDTH = 6
"""Columns of a terminal, at which the tables of most images line up."""


def _error_blocks(fields: RecordJson, wrap: Callable[[str], str]) -> "list[Table | Text]":
    """Return what is printed for a failed input: the error, and its hint below it if it has one.

    Args:
        fields: The record.
        wrap: Escapes a string, and wraps it to the width of the terminal.
    """
    from rich.text import Text

    label = "error:"
    message = wrap(f"{label} {_name_of_image(fields)}: {fields['error']['message']}")
    error_line = Text(message)
    error_line.stylize("bold red", end=len(label))
    blocks: list[Table | Text] = [error_line]
    hint = fields["error"]["hint"]
    if hint:
        blocks.append(Text(wrap(f"  hint: {hint}"), style="dim"))
    return blocks


def _image_blocks(fields: RecordJson, wrap: Callable[[str], str]) -> "list[Table | Text]":
    """Return what is printed for an image, one block below the other.

    They are the name and size of the image, each of its warnings, and last the table of its
    detections, if there are any.

    Args:
        fields: The record.
        wrap: Escapes a string, and wraps it to the width of the terminal.
    """
    from rich.text import Text

    size = f"{fields['width']}x{fields['height']}"
    heading = Text(f"{escape_unprintable(_name_of_image(fields))}  {size}", style="bold")
    if not fields["detections"]:
        heading.append("  nothing found", style="not bold dim")
    blocks: list[Table | Text] = [heading]

    for warning in fields.get("warnings", ()):
        blocks.append(Text(wrap(f"  {warning}"), style="yellow"))
    if fields["detections"]:
        blocks.append(_detections_table(fields["detections"]))
    return blocks


def _detections_table(detections: Sequence[DetectionJson]) -> "Table":
    """Make the table of an image's detections.

    Columns that only some options add, such as that of tracks, are there if a detection has a value
    in them.
    """
    from rich.table import Table
    from rich.text import Text

    optional_columns = []
    for column in OPTIONAL_COLUMNS:
        if column.heading and any(column.name in detection for detection in detections):
            optional_columns.append(column)

    table = Table(box=None, pad_edge=False)
    table.add_column("class", style="cyan", min_width=MIN_CLASS_WIDTH)
    table.add_column("score", justify="right", min_width=len("score"))
    for heading in BOX:
        table.add_column(heading, justify="right", min_width=MIN_EDGE_WIDTH)
    for column in optional_columns:
        table.add_column(
            column.heading,
            justify="right" if column.type is int else "left",
            style="dim" if column.name == "symbology" else None,
        )

    for detection in detections:
        cells: list[Text | str] = [Text(escape_unprintable(detection["class_name"]))]
        cells.append(f"{detection['score']:.2f}")
        for edge in box_of(detection):
            cells.append(f"{edge:.1f}")
        for column in optional_columns:
            cells.append(Text(_optional_text(detection, column)))
        table.add_row(*cells)
    return table


def _optional_text(fields: Mapping[str, Any], column: OptionalColumn) -> str:
    """Return the content of a cell in an optional column; empty if the detection has no value."""
    value = fields.get(column.name)
    if not value:
        return ""
    return escape_unprintable(str(column.to_csv(value)))


def _name_of_image(fields: RecordJson) -> str:
    """Name the image of a record: its input, and for a frame its number and time."""
    parts = [fields["source"]]
    if "frame" in fields:
        parts.append(f"frame {fields['frame']}")
    if "time" in fields:
        parts.append(fields["time"])
    elif "time_s" in fields:
        parts.append(f"{fields['time_s']:.2f} s")
    return "  ".join(parts)
