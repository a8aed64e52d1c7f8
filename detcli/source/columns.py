"""Reads the images in a column of a Parquet file as written by Hugging Face's `datasets`."""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

from detcli.core.errors import DecodeError, DeviceError, SourceError, loading, system_reason
from detcli.source.limits import LARGER
from detcli.storage.temporary import temporary

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK = 1 << 20

ROWS = 16  # how many rows are read at once

MAX_NAMES = 10  # columns named in an error


def read_parquet(
    file: BinaryIO, max_bytes: int, column: str | None = None
) -> Iterator[tuple[str, bytes | DecodeError]]:
    """Yield the name and the bytes of each image in a Parquet file.

    Args:
        file: The file, which need not be seekable: it is copied first.
        max_bytes: The maximum number of bytes of an image.
        column: The column that has the images; if none is named, the file has to have exactly one.

    Yields:
        The path that is stored with an image, or else the index of its row; and its bytes, or the
        error of one that cannot be used.

    Raises:
        DecodeError: No column has images, or several have.
        Exception: What pyarrow raises for a damaged file, which may be anything.
    """
    with loading("pyarrow", 'pip install "detcli[parquet]"', DeviceError):
        from pyarrow import parquet
    with temporary() as copy:  # pyarrow reads the end of a file first
        _copy(file, copy)
        reader = parquet.ParquetFile(copy)
        field = image_field(reader.schema_arrow, column)
        row_number = 0
        for batch in reader.iter_batches(ROWS, columns=[field.name]):
            column_number = _column_number(batch.schema, field.name)
            for name, scalar in _paths_and_contents(batch.column(column_number)):
                yield name or str(row_number), _content(scalar, max_bytes)
                row_number += 1


def image_field(schema: "pa.Schema", column: str | None = None) -> "pa.Field":
    """Choose the column that has the images of a Parquet file.

    Without a name, it is the only one that looks like one of Hugging Face's `datasets`: its values
    are structs with the field `bytes`.

    Args:
        schema: The names and types of the file's columns.
        column: The name that the user gave, if any.

    Raises:
        DecodeError: There is no such column, or several look like it.
    """
    if column is not None:
        return _named_field(schema, column)
    candidates = [field.name for field in schema if _holds_images(field.type)]
    if len(candidates) > 1:
        raise DecodeError(
            f"{len(candidates)} columns have the bytes of images: {_listed(candidates)}",
            f"name one with --column, as in --column {candidates[-1]}",
        )
    if not candidates:
        raise _missing_column_error(schema)
    return schema.field(_column_number(schema, candidates[0]))


def _named_field(schema: "pa.Schema", column: str) -> "pa.Field":
    """Return the column that the user named.

    Its values have to be structs with a binary field `bytes`, or bytes themselves.

    Raises:
        DecodeError: There is no such column, or it cannot have images.
    """
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


def _missing_column_error(schema: "pa.Schema") -> DecodeError:
    """Make the error for a file in which no column looks as if it had images.

    It names the column that was most likely meant to have them. That is the first column of
    structs with a field `bytes`, whose values are then not binary. If there is no such column, it
    is the first one of plain bytes, which the user can name with --column.
    """
    for field in schema:
        if _bytes_type(field.type) is not None:
            return DecodeError(
                f"no column has the bytes of images: {field.name} is {_described(field.type)}",
                "write the bytes as binary, as Hugging Face's datasets does",
            )
    for field in schema:
        if _is_binary(field.type):
            return DecodeError(
                "no column has the bytes of images",
                f"if the column {field.name} has images, name it with --column {field.name}",
            )
    return DecodeError(
        "no column has the bytes of images",
        "name a file with a column of structs that have bytes, as Hugging Face writes them",
    )


def _copy(file: BinaryIO, copy: BinaryIO) -> None:
    """Copy a file into a temporary one; a SourceError if there is no room for it."""
    while chunk := file.read(CHUNK):
        try:
            copy.write(chunk)
        except OSError as error:
            raise SourceError(
                f"cannot be copied to the folder for temporary files: {system_reason(error)}",
                "free space there, or name another folder with TMPDIR",
            ) from error


def _column_number(schema: "pa.Schema", name: str) -> int:
    """Return the index of a column; a DecodeError if several columns have this name."""
    numbers = schema.get_all_field_indices(name)
    if len(numbers) != 1:
        raise DecodeError(
            f"{len(numbers)} columns are called {name!r}", "give each column a name of its own"
        )
    return int(numbers[0])


def _paths_and_contents(array: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - of pyarrow
    """Yield the path and the bytes of the image in each row of a column.

    Args:
        array: Rows of the column: structs with `bytes` and perhaps `path`, or bytes alone.

    Yields:
        The path, empty if there is none, and the bytes as a scalar of pyarrow.
    """
    import pyarrow as pa

    if not pa.types.is_struct(array.type):
        for content in array:
            yield "", content
        return
    field_names = [field.name for field in array.type]
    field_arrays = array.flatten()  # one for each field, with null in rows without a struct
    contents = field_arrays[field_names.index("bytes")]
    paths = None
    if "path" in field_names:
        paths = _paths_as_bytes(field_arrays[field_names.index("path")])
    for row, content in enumerate(contents):
        path = None
        if paths is not None:
            path = paths[row].as_py()  # None where it is null
        yield os.fsdecode(path or b""), content


def _paths_as_bytes(paths: Any) -> Any:  # noqa: ANN401 - of pyarrow
    """Return an array of paths as an array of bytes; None if its values are not strings.

    A path need not be UTF-8, so pyarrow may be unable to decode it as text.
    """
    import pyarrow as pa

    if not _is_text(_value_type(paths.type)):
        return None
    if pa.types.is_dictionary(paths.type):  # rows with equal paths share them
        paths = paths.dictionary_decode()
    return paths.cast(pa.large_binary())


def _content(scalar: Any, max_bytes: int) -> bytes | DecodeError:  # noqa: ANN401 - of pyarrow
    """Take the bytes of an image out of a scalar of pyarrow.

    An error is returned and not raised, so that a caller can go on with the other images.

    Args:
        scalar: A value of the column, perhaps null. In a column encoded as a dictionary, it refers
            to a value that several rows may share.
        max_bytes: The maximum number of bytes of the image.

    Returns:
        The bytes, or the error of an image that has no bytes or too many.
    """
    import pyarrow as pa

    if isinstance(scalar, pa.DictionaryScalar):
        scalar = scalar.value  # the value that it refers to
    if not scalar.is_valid:
        return DecodeError("it has no bytes", "see how the file was made")
    content = scalar.as_buffer()
    if content.size > max_bytes:
        return DecodeError(f"too large: more than {max_bytes} bytes", LARGER)
    return bytes(content)


def _bytes_type(column: "pa.DataType") -> "pa.DataType | None":
    """Return the type of the field `bytes` in a column of structs.

    It is None for a column of anything else, and for structs with no such field or several.
    """
    import pyarrow as pa

    if not pa.types.is_struct(column):
        return None
    types = [field.type for field in column if field.name == "bytes"]
    if len(types) != 1:
        return None
    return types[0]


def _holds_images(column: "pa.DataType") -> bool:
    """Whether the values of a column are structs whose field `bytes` is binary."""
    bytes_type = _bytes_type(column)
    return bytes_type is not None and _is_binary(bytes_type)


def _value_type(kind: "pa.DataType") -> "pa.DataType":
    """Return the type of a column's values, even where a dictionary holds each value once."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return kind.value_type
    return kind


def _is_binary(kind: "pa.DataType") -> bool:
    """Whether the values of a column are bytes, in any of pyarrow's types for bytes."""
    from pyarrow import types

    value_type = _value_type(kind)
    return bool(
        types.is_binary(value_type)
        or types.is_large_binary(value_type)
        or types.is_fixed_size_binary(value_type)
        or types.is_binary_view(value_type)
    )


def _is_text(kind: "pa.DataType") -> bool:
    """Whether values of this type are strings."""
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _described(kind: "pa.DataType") -> str:
    """Describe a type for an error message, in at most 100 characters."""
    return str(kind)[:100]


def _listed(names: list[str]) -> str:
    """List the first few names for an error message."""
    text = ", ".join(names[:MAX_NAMES])
    if len(names) > MAX_NAMES:
        text += ", ..."
    return text
