"""Parquet: the rows of CSV, a detection each, with all fields of a record in columns."""

import json
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import Any, BinaryIO, Protocol, cast

from detcli.core import Fields
from detcli.core.errors import loading
from detcli.data.columns import OPTIONAL_COLUMNS, DetectionJson
from detcli.data.record import BOX, SCHEMA_VERSION, RecordJson, iso_time
from detcli.sink.protocol import Encodable, Stream
from detcli.sink.text import detection_rows

with loading("pyarrow", 'pip install "detcli[parquet]"'):
    import pyarrow as pa
    from pyarrow import parquet

ROW_GROUP = 20_000  # rows that are kept in memory before they are written

# Fields without a column of their own: as several, in the file's metadata, or only in JSON Lines.
LEFT_OUT = {
    *("schema_version", "sha256", "settings", "provenance", "part"),
    *("detections", "error", *(column.name for column in OPTIONAL_COLUMNS)),
}

ERROR = {"type": "error_type", "message": "error", "hint": "error_hint"}

TYPES = {str: pa.string(), bool: pa.bool_(), int: pa.int64(), float: pa.float64(), Any: pa.string()}


def _type(kind: Any) -> pa.DataType:  # noqa: ANN401 - an annotation
    """The type of a column, from the annotation of a field."""
    if kind in TYPES:
        return TYPES[kind]
    if typing.get_origin(kind) is types.UnionType:
        return _type(typing.get_args(kind)[0])
    if typing.get_origin(kind) is list:
        return pa.list_(_type(*typing.get_args(kind)))
    return pa.struct([(name, _type(one)) for name, one in typing.get_type_hints(kind).items()])


def schema(optional_columns: Sequence[str] = ()) -> pa.Schema:
    """The columns: the fields of a record in JSON, with those of a detection among them."""
    fields = {**typing.get_type_hints(RecordJson), **typing.get_type_hints(DetectionJson)}
    columns = {name: _type(fields[name]) for name in fields if name not in LEFT_OUT}
    for column in OPTIONAL_COLUMNS:
        if column.name in optional_columns:
            columns[column.name] = _type(column.type)
    columns |= dict.fromkeys(ERROR.values(), pa.string())
    columns["time"] = pa.timestamp("ms", "UTC")
    return pa.schema([*columns.items()], {"detcli.schema_version": str(SCHEMA_VERSION)})


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
        self._whole = True  # False once a row group could not be written

    def write(self, record: Encodable) -> None:
        for row in detection_rows(record.to_json()):
            if "text" in row:  # of a symbol that could not be read, `corners` is empty
                row.setdefault("corners", [])
            if "time" in row:
                row["time"] = datetime.fromisoformat(row["time"])
            self._rows.append(row)
        if len(self._rows) >= ROW_GROUP:
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
        self._rows = []
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
    metadata = {name.decode(): value.decode() for name, value in reader.metadata.metadata.items()}
    rows = (row for batch in reader.iter_batches() for row in batch.to_pylist())
    version = int(metadata["detcli.schema_version"])
    return (_record([*same], version) for _, same in groupby(rows, itemgetter("index"))), metadata


def _record(rows: Sequence[Fields], version: int) -> RecordJson:
    """The rows of a record as JSON has it, with the fields in the same order."""
    fields = {**rows[0], "schema_version": version}
    if fields["time"] is not None:
        fields["time"] = iso_time(fields["time"])
    if fields["error"] is None:
        found = [row for row in rows if row["class_id"] is not None]
        fields["detections"] = [_detection(row, version) for row in found]
    else:
        fields["error"] = {name: fields[column] for name, column in ERROR.items()}
    kept = [name for name in RecordJson.__annotations__ if fields.get(name) is not None]
    if "meta" in kept:
        fields["meta"] = json.loads(fields["meta"])
    return cast("RecordJson", {name: fields[name] for name in kept})


def _detection(row: Fields, version: int) -> Fields:
    kept = {name for name, value in row.items() if value is not None}
    if "corners" in kept:
        kept.add("text")
        if not row["corners"]:
            kept.remove("corners")
    found = {name: row[name] for name in DetectionJson.__annotations__ if name in kept}
    if version > 1:
        return found
    box = [found.pop(corner) for corner in BOX]
    first = {name: found.pop(name) for name in ("class_id", "class_name", "score")}
    return {**first, "box": box, **found}
