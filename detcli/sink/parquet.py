"""Parquet: one row per record, with its detections as a list of structs."""

import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, BinaryIO, Protocol, cast

from detcli.core.errors import loading
from detcli.core.record import OPTIONAL_FIELDS, SCHEMA_VERSION, DetectionJson, RecordJson, iso_time
from detcli.sink.protocol import Encodable, Stream
from detcli.sink.text import BOX

with loading("pyarrow", "pip install 'detcli[parquet]'"):
    import pyarrow as pa
    from pyarrow import parquet

ROW_GROUP = 20_000  # records and detections that are kept in memory before they are written

# Fields without a column: in the file's metadata, or only in JSON Lines.
LEFT_OUT = {"schema_version", "sha256", "settings", "provenance", "part"}

TYPES = {str: pa.string(), int: pa.int64(), float: pa.float64()}


def _type(kind: Any) -> pa.DataType:  # noqa: ANN401 - an annotation
    """The type of a column, from the annotation of a field."""
    if kind in TYPES:
        return TYPES[kind]
    if typing.get_origin(kind) is types.UnionType:
        return _type(typing.get_args(kind)[0])
    if typing.get_origin(kind) is list:
        return pa.list_(_type(*typing.get_args(kind)))
    return pa.struct(_fields(kind))


def _fields(kind: Any, optional_columns: Sequence[str] = ()) -> list[pa.Field]:  # noqa: ANN401 - a TypedDict
    """A column for each field of a JSON object; a box is four, as in CSV."""
    hints = typing.get_type_hints(kind)
    columns = {
        name: _type(annotation)
        for name, annotation in hints.items()
        if name not in {*LEFT_OUT, *OPTIONAL_FIELDS}
    }
    if "time" in columns:
        columns["time"] = pa.timestamp("ms", "UTC")
    if kind is DetectionJson:
        columns = {name: columns[name] for name in columns if name != "box"}
        columns |= dict.fromkeys(BOX, pa.float64())
        columns |= {name: _type(hints[name]) for name in optional_columns}
    if optional_columns and kind is RecordJson:
        columns["detections"] = pa.list_(pa.struct(_fields(DetectionJson, optional_columns)))
    return [pa.field(name, column) for name, column in columns.items()]


def schema(optional_columns: Sequence[str] = ()) -> pa.Schema:
    """The columns, which are the fields of a record in JSON."""
    metadata = {"detcli.schema_version": str(SCHEMA_VERSION)}
    return pa.schema(_fields(RecordJson, optional_columns), metadata)


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
        self._size = 0  # records and detections in `_rows`
        self._whole = True  # False once a row group could not be written

    def write(self, record: Encodable) -> None:
        row: dict[str, Any] = {**record.to_json()}
        if "detections" in row:
            row["detections"] = [
                {**found, **dict(zip(BOX, found["box"], strict=True))}
                # Of a symbol that could not be read, `corners` is empty.
                | ({"corners": found.get("corners", [])} if "text" in found else {})
                for found in row["detections"]
            ]
            self._size += len(row["detections"])
        if "time" in row:
            row["time"] = datetime.fromisoformat(row["time"])
        self._rows.append(_encodable(row))
        self._size += 1
        if self._size >= ROW_GROUP:
            self._write_rows()

    def describe(self, metadata: Mapping[str, str]) -> None:
        """Add to the file's metadata."""
        self._writer.add_key_value_metadata(metadata)

    def close(self) -> None:
        """Write the rest and the end of the file, and make it visible; all of it or nothing."""
        try:
            if self._whole:
                self._write_rows()
                self._writer.close()
        except BaseException:
            self._whole = False
            raise
        finally:
            if self._whole:
                self._output.commit()
            else:
                self._output.discard()

    def _write_rows(self) -> None:
        table = pa.Table.from_pylist(self._rows, self._schema)
        self._rows, self._size = [], 0
        self._whole = False
        self._writer.write_table(table)
        self._whole = True


class _ParquetWriter(parquet.ParquetWriter):  # type: ignore[misc]
    """pyarrow's writer, which would write the end of a file that has been discarded."""

    def __del__(self) -> None:
        pass


def read_records(file: BinaryIO) -> tuple[Iterator[RecordJson], dict[str, str]]:
    """The records of a file that a `ParquetSink` has written, and the file's metadata.

    Raises:
        ValueError, LookupError, AttributeError: It is something else.
        OSError: It cannot be read.
    """
    reader = parquet.ParquetFile(file)
    found = reader.schema_arrow.field("detections").type.value_type
    optional = [name for name in OPTIONAL_FIELDS if found.get_field_index(name) >= 0]
    if not reader.schema_arrow.equals(schema(optional)):
        raise ValueError("it has other columns")
    metadata = {name.decode(): value.decode() for name, value in reader.metadata.metadata.items()}
    return (_record(row) for batch in reader.iter_batches() for row in batch.to_pylist()), metadata


def _record(row: dict[str, Any]) -> RecordJson:
    """A row as JSON has it, with the fields of detections in the same order."""
    fields: dict[str, Any] = {"schema_version": SCHEMA_VERSION}
    fields |= {name: value for name, value in row.items() if value is not None}
    if "time" in fields:
        fields["time"] = iso_time(fields["time"])
    if "detections" in fields:
        fields["detections"] = [*map(_detection, fields["detections"])]
    return cast("RecordJson", fields)


def _detection(row: dict[str, Any]) -> dict[str, Any]:
    found = {**row, "box": [row[side] for side in BOX]}
    kept = {name for name, value in found.items() if value is not None}
    if "corners" in kept:
        kept.add("text")
        if not row["corners"]:
            kept.remove("corners")
    return {name: found[name] for name in DetectionJson.__annotations__ if name in kept}


def _encodable(value: Any) -> Any:  # noqa: ANN401 - JSON
    """A JSON value whose texts are valid UTF-8: names of files may hold other bytes."""
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case list():
            return [_encodable(entry) for entry in value]
        case dict():
            return {name: _encodable(entry) for name, entry in value.items()}
    return value
