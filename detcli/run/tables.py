"""Reads records back from the tables that detcli writes: CSV and Parquet, one detection per row.

Parquet has all that a record says about an image and its detections. CSV has less: the message of
an error without its type, several warnings as one string, and odd characters of names escaped.
"""

import base64
import binascii
import contextlib
import csv
import io
import itertools
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from detcli.core import Fields
from detcli.core.errors import UsageError, loading
from detcli.data import capture_time
from detcli.data.columns import DetectionJson
from detcli.data.record import SCHEMA_VERSION, RecordJson, iso_time
from detcli.data.saved_record import to_record
from detcli.sink.text import FORMULA
from detcli.storage.files import open_lines

if TYPE_CHECKING:
    from detcli.page.find_images import Finder

MAX_CELL_BYTES = 1 << 27  # more than any text of a barcode; Python's reader stops at 128 KiB

HINT = "name CSV or Parquet that predict or merge wrote"


class _ParsedRow(NamedTuple):
    """A row of a table."""

    number: int  # from 1
    fields: Fields  # of its record and its detection


def read_csv(path: Path, name: str, finder: "Finder") -> Iterator[RecordJson]:  # noqa: ARG001
    """Yield the records of a table in CSV.

    Args:
        path: The file, which may be compressed by gzip.
        name: What to call it in messages.
        finder: Not used, as the table has the sizes of images.

    Raises:
        UsageError: It is not a table that detcli wrote.
        OSError: It cannot be read.
    """
    csv.field_size_limit(MAX_CELL_BYTES)
    with open_lines(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        rows = csv.DictReader(text, strict=True)
        yield from _records(rows, _fields_of_csv_row, name)


def read_parquet(path: Path, name: str, finder: "Finder") -> Iterator[RecordJson]:  # noqa: ARG001
    """Yield the records of a table in Parquet, with one row group in memory at a time.

    Args:
        path: The file.
        name: What to call it in messages.
        finder: Not used, as the table has the sizes of images.

    Raises:
        UsageError: It is not a table that detcli wrote, or damaged.
        DependencyError: pyarrow is not installed.
        OSError: It cannot be read.
    """
    with loading("pyarrow", 'pip install "detcli[parquet]"'):
        import pyarrow as pa
        from pyarrow import parquet

    def rows() -> Iterator[Fields]:
        try:
            with parquet.ParquetFile(path) as file:
                for batch in file.iter_batches():
                    yield from batch.to_pylist()
        except pa.ArrowException as error:
            raise UsageError(f"{name} cannot be read as Parquet: {error}", HINT) from error

    yield from _records(rows(), _fields_of_parquet_row, name)


def _records(
    rows: Iterator[Fields], to_fields: Callable[[Fields], Fields], name: str
) -> Iterator[RecordJson]:
    """Yield the records of a table, in which an image has one row for each of its detections.

    The rows of an image or a frame follow each other, and make one record.

    Args:
        rows: The cells of each row by the name of their column.
        to_fields: Converts the cells of a row to fields as in JSON: those of its detection, and
            those of the record, which all rows of the record have.
        name: What to call the table in messages.

    Raises:
        UsageError: A row cannot be parsed, or the rows of an image or a frame make no record.
    """
    parsed_rows = _parsed_rows(rows, to_fields, name)
    for _, group in itertools.groupby(parsed_rows, _record_key):
        rows_of_record = list(group)
        fields_of_rows = [row.fields for row in rows_of_record]
        try:
            yield to_record(_record_fields(fields_of_rows))
        except ValueError as error:
            raise _row_error(rows_of_record[0].number, name, error) from error


def _parsed_rows(
    rows: Iterator[Fields], to_fields: Callable[[Fields], Fields], name: str
) -> Iterator[_ParsedRow]:
    """Yield the rows of a table, with their row numbers and their cells converted to fields.

    Args:
        rows: The cells of each row by the name of their column.
        to_fields: Converts the cells of a row to the fields of a record and of a detection.
        name: What to call the table in messages.

    Raises:
        UsageError: A row cannot be parsed, or its cells cannot be converted to fields.
    """
    row_number = 1
    try:
        for row in rows:
            yield _ParsedRow(row_number, to_fields(row))
            row_number += 1
    except UnicodeDecodeError:  # a ValueError, but the caller says what is wrong with the bytes
        raise
    except (ValueError, csv.Error) as error:
        raise _row_error(row_number, name, error) from error


def _row_error(row_number: int, name: str, reason: Exception) -> UsageError:
    """Make the error that says what is wrong with a row."""
    return UsageError(f"row {row_number} of {name} is not a row of detcli's: {reason}", HINT)


def _record_key(row: _ParsedRow) -> tuple[Any, ...]:
    """Return what distinguishes the rows of one record from those of the next."""
    return tuple(row.fields.get(name) for name in ("index", "source", "input", "frame", "time"))


def _record_fields(rows: list[Fields]) -> Fields:
    """Combine the rows of one record into the fields of the record.

    Args:
        rows: The fields in each row: those of the record, and of one of its detections. A record
            without detections has a single row, perhaps with an error in place of a detection.
    """
    first_row = rows[0]  # all rows have the same fields of the record
    record: Fields = {"schema_version": SCHEMA_VERSION}
    for field_name, value in first_row.items():
        if field_name not in DETECTION_FIELDS and field_name not in ERROR_FIELDS:
            record[field_name] = value
    if "error" in first_row:
        record["error"] = {
            "type": first_row.get("error_type", "SourceError"),
            "message": first_row["error"],
            "hint": first_row.get("error_hint", ""),
        }
        return record

    detections = []
    for row in rows:
        has_detection = "class_id" in row
        if has_detection:
            detection = {field: row[field] for field in DETECTION_FIELDS if field in row}
            detections.append(detection)
    record["detections"] = detections
    return record


DETECTION_FIELDS = tuple(DetectionJson.__annotations__)
ERROR_FIELDS = {"error", "error_type", "error_hint"}


def _fields_of_parquet_row(row: Fields) -> Fields:
    """Convert a row of a Parquet table to fields of a record and of a detection, as in JSON.

    A field that the record or the detection does not have is null in the row, and left out. The
    fields of barcodes, which --read adds, are an exception: in JSON, each detection has a text,
    which is null if no barcode was read, or a binary one; and it has corners only if a barcode was
    located. In the table, each detection has a list of corners, which may be empty.
    """
    fields = {name: value for name, value in row.items() if value is not None}

    if isinstance(fields.get("time"), datetime):
        fields["time"] = iso_time(fields["time"].replace(tzinfo=UTC))
    if isinstance(fields.get("taken"), datetime):
        fields["taken"] = capture_time.to_text(fields["taken"])
    if "meta" in fields:
        fields["meta"] = json.loads(fields["meta"])

    has_barcode_columns = "corners" in fields
    if has_barcode_columns:
        fields.setdefault("text", None)  # a null was left out above
        is_barcode_located = len(fields["corners"]) > 0
        if not is_barcode_located:
            del fields["corners"]
    return fields


def _fields_of_csv_row(row: Fields) -> Fields:
    """Convert a row of a CSV table to fields of a record and of a detection, as in JSON.

    A field that the record or the detection does not have is an empty cell, and left out. In a few
    fields of detections an empty cell stands for a value, such as an empty list of zones.

    Raises:
        ValueError: The row is longer or shorter than the header, or a cell does not have the type
            of its column.
    """
    if None in row or None in row.values():  # how `csv` shows cells without a column, or none
        raise ValueError("it has more or fewer cells than the header")

    fields: Fields = {}
    for name, cell in row.items():
        if cell == "":
            continue
        parse = PARSERS.get(name, _unprotected)  # a column without a parser has strings
        try:
            fields[name] = parse(cell)
        except ValueError as error:
            raise ValueError(f"{name} is {cell[:40]!r}") from error

    has_detection = "class_id" in fields
    if has_detection:
        _fill_in_empty_cells(fields, row)
    return fields


def _fill_in_empty_cells(fields: Fields, row: Fields) -> None:
    """Fill in the values that empty cells of a detection stand for.

    The columns `zones`, `crossed` and `text` exist if --zone, --line or --read was used. Then each
    detection has the field. An empty cell stands for no zones, no lines, or a text that is empty or
    null.

    Args:
        fields: The fields of the cells that are not empty, to which the values are added.
        row: All cells, by the name of their column.
    """
    for name in ("zones", "crossed"):
        if name in row:
            fields.setdefault(name, [])

    if "text" in row and "text" not in fields:
        # A barcode that was read has a symbology. If its content is not text, it is in `bytes`.
        was_read_as_text = "symbology" in fields and "bytes" not in fields
        if was_read_as_text:
            fields["text"] = ""
        else:
            fields["text"] = None


def _unprotected(cell: str) -> str:
    """Strip the apostrophe that keeps spreadsheets from running a string as a formula."""
    if cell.startswith("'") and cell[1:].lstrip().startswith(FORMULA):
        return cell[1:]
    return cell


def _boolean(cell: str) -> bool:
    """Parse True, the only value that is written."""
    if cell.lower() not in {"true", "false"}:
        raise ValueError
    return cell.lower() == "true"


def _names(cell: str) -> list[str]:
    """Parse names of zones, which have no spaces."""
    return _unprotected(cell).split()


def _crossings(cell: str) -> list[Fields]:
    """Parse lines that were crossed, as in `gate:left road:right`."""
    crossings: list[Fields] = []
    for word in _unprotected(cell).split():
        line, _, side = word.rpartition(":")
        crossings.append({"line": line, "to": side})
    return crossings


def _corners(cell: str) -> list[list[float]]:
    """Parse corners, as in `1.0,2.0 30.0,2.0`."""
    corners = []
    for word in _unprotected(cell).split():
        x, y = word.split(",")
        corners.append([float(x), float(y)])
    return corners


def _base64(cell: str) -> str:
    """Check that a string is base64; it may begin with "+", and has an apostrophe then."""
    text = _unprotected(cell)
    with contextlib.suppress(binascii.Error):
        base64.b64decode(text, validate=True)
        return text
    raise ValueError


def _json(cell: str) -> Any:  # noqa: ANN401 - JSON
    """Parse what the list of inputs said about one of them."""
    return json.loads(_unprotected(cell))


def _warnings(cell: str) -> list[str]:
    """Return warnings as one string, as they may have semicolons of their own."""
    return [_unprotected(cell)]


PARSERS: dict[str, Callable[[str], Any]] = {
    "index": int,
    "input": int,
    "frame": int,
    "width": int,
    "height": int,
    "burst": int,
    "class_id": int,
    "track_id": int,
    "repeated": int,
    "time_s": float,
    "burst_score": float,
    "classified_score": float,
    "score": float,
    "x1": float,
    "y1": float,
    "x2": float,
    "y2": float,
    "confirmed": _boolean,
    "doubt": _boolean,
    "earlier": _boolean,
    "zones": _names,
    "crossed": _crossings,
    "corners": _corners,
    "bytes": _base64,
    "source_bytes": _base64,
    "meta": _json,
    "warnings": _warnings,
}
"""How the cells of each column of CSV are parsed; those of others are strings."""
