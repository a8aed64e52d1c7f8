"""Reads the images in a column of a Parquet file, as Hugging Face's `datasets` writes them."""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

from detcli.core.errors import DecodeError, DeviceError, SourceError, loading, system_reason
from detcli.source.limits import LARGER
from detcli.storage.files import temporary

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK = 1 << 20

ROWS = 16  # how many are read at once

MAX_NAMES = 10  # columns that an error names


def read_parquet(
    file: BinaryIO, max_bytes: int, column: str | None = None
) -> Iterator[tuple[str, bytes | DecodeError]]:
    """Yield the name and the bytes of each image, or the error of one that cannot be used.

    `column` is the column that has them; without it, the file has to have a single one.

    Raises:
        DecodeError: No column has images, or several have.
        Exception: What pyarrow raises for a damaged file, which may be anything.
    """
    with loading("pyarrow", 'pip install "detcli[parquet]"', DeviceError):
        from pyarrow import parquet
    with temporary() as copy:  # it is read from its end
        _copy(file, copy)
        reader = parquet.ParquetFile(copy)
        field = image_field(reader.schema_arrow, column)
        number = 0  # of the row
        for batch in reader.iter_batches(ROWS, columns=[field.name]):
            column_number = _column_number(batch.schema, field.name)
            for name, scalar in _rows(batch.column(column_number)):
                yield name or str(number), _content(scalar, max_bytes)
                number += 1


def image_field(schema: "pa.Schema", column: str | None = None) -> "pa.Field":
    """The column that has the bytes of images: the one of this name, or the only one."""
    if column is not None:
        return _named_field(schema, column)
    candidates = [field.name for field in schema if _holds_images(field.type)]
    if len(candidates) > 1:
        raise DecodeError(
            f"{len(candidates)} columns have the bytes of images: {_listed(candidates)}",
            f"name one with --column, as in --column {candidates[-1]}",
        )
    if not candidates:
        raise _without_images(schema)
    return schema.field(_column_number(schema, candidates[0]))


def _named_field(schema: "pa.Schema", column: str) -> "pa.Field":
    """The column of this name; a DecodeError if there is none, or it cannot have images."""
    if column not in schema.names:
        raise DecodeError(
            f"it has no column {column!r}", f"its columns are {_listed(schema.names)}"
        )
    field = schema.field(_column_number(schema, column))
    if not _holds_images(field.type) and not _is_binary(field.type):
        raise DecodeError(
            f"the column {column!r} has no bytes of images: {_described(field.type)}",
            "name one of bytes, or of structs that have bytes",
        )
    return field


def _without_images(schema: "pa.Schema") -> DecodeError:
    """The error of a file in which no column is one of images."""
    for field in schema:
        if _bytes_type(field.type) is not None:
            return DecodeError(
                f"no column has the bytes of images: {field.name} is {_described(field.type)}",
                "write the bytes as binary, as Hugging Face's datasets does",
            )
    hint = "name a file with a column of structs that have bytes, as Hugging Face writes them"
    for field in schema:
        if _is_binary(field.type):
            hint = f"if the column {field.name} has images, name it with --column {field.name}"
            break
    return DecodeError("no column has the bytes of images", hint)


def _copy(file: BinaryIO, copy: BinaryIO) -> None:
    """Copy a file to one on the disk for temporary files."""
    while chunk := file.read(CHUNK):
        try:
            copy.write(chunk)
        except OSError as error:
            raise SourceError(
                f"cannot be copied to the folder for temporary files: {system_reason(error)}",
                "free space there, or name another folder with TMPDIR",
            ) from error


def _column_number(schema: "pa.Schema", name: str) -> int:
    """The number of a column; a DecodeError if several have this name."""
    numbers = schema.get_all_field_indices(name)
    if len(numbers) != 1:
        raise DecodeError(
            f"{len(numbers)} columns are called {name!r}", "give each column a name of its own"
        )
    return int(numbers[0])


def _rows(array: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - of pyarrow
    """The name of each row, empty if it has none, and its bytes as a scalar of pyarrow."""
    import pyarrow as pa

    if not pa.types.is_struct(array.type):
        for scalar in array:
            yield "", scalar
        return
    names = [field.name for field in array.type]
    columns = array.flatten()  # with null where the struct is
    contents = columns[names.index("bytes")]
    paths = None
    if "path" in names:
        paths = _as_bytes(columns[names.index("path")])
    for row in range(len(array)):
        path = None
        if paths is not None:
            path = paths[row].as_py()
        yield os.fsdecode(path or b""), contents[row]


def _as_bytes(paths: Any) -> Any:  # noqa: ANN401 - of pyarrow
    """An array of texts as bytes, which need not be UTF-8; None for what holds no texts."""
    import pyarrow as pa

    if not _is_text(_value_type(paths.type)):
        return None
    if pa.types.is_dictionary(paths.type):
        paths = paths.dictionary_decode()
    return paths.cast(pa.large_binary())


def _content(scalar: Any, max_bytes: int) -> bytes | DecodeError:  # noqa: ANN401 - of pyarrow
    """The bytes of an image, which may be in a dictionary."""
    import pyarrow as pa

    if isinstance(scalar, pa.DictionaryScalar):
        scalar = scalar.value
    if not scalar.is_valid:
        return DecodeError("it has no bytes", "see how the file was made")
    content = scalar.as_buffer()
    if content.size > max_bytes:
        return DecodeError(f"too large: more than {max_bytes} bytes", LARGER)
    return bytes(content)


def _bytes_type(column: "pa.DataType") -> "pa.DataType | None":
    """The type of `bytes` in a column of structs; None for another column."""
    import pyarrow as pa

    if not pa.types.is_struct(column):
        return None
    types = [field.type for field in column if field.name == "bytes"]
    if len(types) != 1:
        return None
    return types[0]


def _holds_images(column: "pa.DataType") -> bool:
    """Whether a column is one of structs with bytes."""
    kind = _bytes_type(column)
    return kind is not None and _is_binary(kind)


def _value_type(kind: "pa.DataType") -> "pa.DataType":
    """The type of the values, which may be in a dictionary."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return kind.value_type
    return kind


def _is_binary(kind: "pa.DataType") -> bool:
    """Whether values are bytes."""
    from pyarrow import types

    value_type = _value_type(kind)
    return bool(
        types.is_binary(value_type)
        or types.is_large_binary(value_type)
        or types.is_fixed_size_binary(value_type)
        or types.is_binary_view(value_type)
    )


def _is_text(kind: "pa.DataType") -> bool:
    """Whether values are texts."""
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _described(kind: "pa.DataType") -> str:
    """A type in words that are not too long."""
    return str(kind)[:100]


def _listed(names: list[str]) -> str:
    """The first few names."""
    text = ", ".join(names[:MAX_NAMES])
    if len(names) > MAX_NAMES:
        text += ", ..."
    return text
