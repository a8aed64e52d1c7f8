"""Parquet: the rows of CSV, one per detection, with all fields of a record in columns."""

import types
import typing
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Protocol

from detcli.core.errors import loading
from detcli.data import capture_time
from detcli.data.columns import OPTIONAL_COLUMNS, DetectionJson
from detcli.data.record import BURST_COLUMNS, SCHEMA_VERSION, RecordJson
from detcli.sink.protocol import Encodable, Stream
from detcli.sink.text import detection_rows

with loading("pyarrow", 'pip install "detcli[parquet]"'):
    import pyarrow as pa
    from pyarrow import parquet

ROWS_IN_GROUP = 20_000  # rows kept in memory before they are written

# Fields without a column of their own: stored as several columns, in the file's metadata, or only
# in JSON Lines.
FIELDS_WITHOUT_COLUMN = {
    "schema_version",
    "sha256",
    "settings",
    "provenance",
    "part",
    "detections",
    "error",
    "burst",
    "burst_score",
} | {column.name for column in OPTIONAL_COLUMNS}

ERROR_COLUMNS = {"type": "error_type", "message": "error", "hint": "error_hint"}
"""The column of each field of an error."""

TYPES = {str: pa.string(), bool: pa.bool_(), int: pa.int64(), float: pa.float64(), Any: pa.string()}


def _column_type(annotation: Any) -> pa.DataType:  # noqa: ANN401 - of any field
    """Return the Parquet type of a column, for the type of a record's field.

    Args:
        annotation: The type as in Python's annotations: a simple one, a union with None, a
            list, or a `TypedDict`, which becomes a struct.
    """
    if annotation in TYPES:
        return TYPES[annotation]
    if typing.get_origin(annotation) is types.UnionType:
        type_without_none = typing.get_args(annotation)[0]
        return _column_type(type_without_none)
    if typing.get_origin(annotation) is list:
        [element] = typing.get_args(annotation)
        return pa.list_(_column_type(element))
    fields = []
    for name, field_annotation in typing.get_type_hints(annotation).items():
        fields.append((name, _column_type(field_annotation)))
    return pa.struct(fields)


def schema(optional_columns: Sequence[str] = ()) -> pa.Schema:
    """Return the names and types of the columns: the fields of a record and of a detection in JSON.

    Columns that options add, and those of errors, come after the others.

    Args:
        optional_columns: The names of columns that options of this run add.
    """
    annotations = typing.get_type_hints(RecordJson) | typing.get_type_hints(DetectionJson)
    columns = {}
    for name, annotation in annotations.items():
        if name not in FIELDS_WITHOUT_COLUMN:
            columns[name] = _column_type(annotation)
    for column in OPTIONAL_COLUMNS:
        if column.name in optional_columns:
            columns[column.name] = _column_type(column.type)
    for name in BURST_COLUMNS:
        if name in optional_columns:
            columns[name] = _column_type(annotations[name])
    for name in ERROR_COLUMNS.values():
        columns[name] = pa.string()

    # Strings in JSON: the time of a frame in UTC, and that of a photograph in local time.
    columns["time"] = pa.timestamp("ms", "UTC")
    columns["taken"] = pa.timestamp("us")
    return pa.schema(list(columns.items()), {"detcli.schema_version": str(SCHEMA_VERSION)})


class BytesOutput(Protocol):
    """Target of a file that is complete only with its end."""

    def write(self, data: bytes) -> None: ...

    def commit(self) -> None: ...

    def discard(self) -> None: ...


class ParquetSink:
    """Writes records in row groups, so that memory does not grow with their number.

    The file can be read once it is complete: the end of a Parquet file says where its parts are.
    """

    def __init__(self, output: BytesOutput, optional_columns: Sequence[str] = ()) -> None:
        self._output = output
        self._schema = schema(optional_columns)
        self._writer = _ParquetWriter(Stream(output.write), self._schema, compression="zstd")
        self._rows: list[Any] = []
        self._is_complete = True  # False once a row group could not be written

    def write(self, record: Encodable) -> None:
        """Add the rows of a record, one for each detection, with values of their columns' types.

        Rows are collected in memory, and written to the file thousands at a time.
        """
        for row in detection_rows(record.to_json()):
            is_barcode = "text" in row
            if is_barcode:
                row.setdefault("corners", [])  # not null, where the barcode was not located
            if "time" in row:
                row["time"] = datetime.fromisoformat(row["time"])
            if "taken" in row:
                row["taken"] = capture_time.from_text(row["taken"])
            self._rows.append(row)
        if len(self._rows) >= ROWS_IN_GROUP:
            self._write_rows()

    def close(self) -> None:
        """Write the last rows and the end of the file, which then appears under its name.

        If any part of it could not be written, nothing appears.
        """
        try:
            if self._is_complete:
                self._write_rows()
                self._writer.close()
        except BaseException:
            self._output.discard()
            raise
        if self._is_complete:
            self._output.commit()
        else:
            self._output.discard()

    def _write_rows(self) -> None:
        """Write the rows that are kept in memory as a row group."""
        table = pa.Table.from_pylist(self._rows, self._schema)
        self._rows = []
        self._is_complete = False
        self._writer.write_table(table)
        self._is_complete = True


class _ParquetWriter(parquet.ParquetWriter):  # type: ignore[misc]
    """pyarrow's writer, which would write the end of a file that has been discarded."""

    def __del__(self) -> None:
        pass
