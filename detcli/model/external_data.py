"""External data: the files beside a model that hold its weights.

A model file larger than 2 GiB is not possible, and some exporters never put weights into it. Then a
tensor in the model has the name of such a file, and says at which byte of it its elements begin.
"""

import hashlib
import math
import os
import re
from collections import defaultdict
from io import BufferedReader
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, Self

from detcli.core import frozen
from detcli.core.errors import ModelError
from detcli.storage.files import (
    LFS_HINT,
    LFS_POINTER,
    LFS_REASON,
    is_lfs_pointer,
    open_regular,
)
from detcli.storage.folder import NO_LINK

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto

MAX_BYTES = (1 << 31) - 1
"""The maximum size of a protobuf message, and so of what a runtime can be given."""

BITS = {"BOOL": 8, "FLOAT": 32, "DOUBLE": 64}
"""Bits of the types whose names do not contain them, unlike UINT4, BFLOAT16 and FLOAT8E5M2."""

NUMBER_FIELDS = (
    "float_data",
    "int32_data",
    "string_data",
    "int64_data",
    "double_data",
    "uint64_data",
)
"""The lists in which a tensor may have its elements, in place of raw data."""

MAX_PACKED = 16
"""The maximum number of elements in an entry of a 32-bit list: 16 of the smallest type, 2 bits."""


class ChangedError(ModelError):
    """A file of a model was written while it was read."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} changed while it was read", "wait until it is complete")


@frozen
class ExternalFile:
    """A file beside the model that holds some of its weights."""

    name: str  # its path, relative to the model's folder
    bytes: int
    sha256: str  # of its content

    @classmethod
    def read(cls, model: Path, name: str) -> Self:
        """Open a file of external data, and return it with its size and hash.

        Args:
            model: The path of the model.
            name: The path of the file, relative to the model's folder.

        Raises:
            ModelError: It cannot be read.
        """
        with open_external(model, name) as file:
            return cls.of(name, file)

    @classmethod
    def of(cls, name: str, file: BufferedReader) -> Self:
        """Return an open file of external data with its size and hash; it is read to its end."""
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return cls(name, file.tell(), digest)


def open_external(model: Path, location: str) -> BufferedReader:
    """Open a file of external data, which is in the model's folder or in one below it.

    No other file is opened, since a model from elsewhere could name any file of this machine.

    Args:
        model: The path of the model.
        location: The path of the file that the model names, relative to the model's folder.

    Raises:
        ModelError: It is not below that folder, or cannot be read.
    """
    # Windows paths have all that POSIX paths have, and drives and backslashes besides. A model
    # that is refused on one system is to be refused on all.
    parts = PureWindowsPath(location)
    if not location or "\0" in location or parts.anchor or ".." in parts.parts:
        raise _external_error(
            model,
            f"'{location}' is not a path below the model's folder",
            "export it again, with its weights in the same folder",
        )
    try:
        folder = Path(os.path.realpath(model.parent))
        file = Path(os.path.realpath(folder / location))
        if not file.is_relative_to(folder):
            raise _external_error(
                model,
                f"{location}: a link leads out of the model's folder",
                "put the file itself beside the model, not a link to it; cp -L copies what is "
                "linked",
            )
        # A link that was created after this check is not followed.
        return open_regular(file, MAX_BYTES, NO_LINK)
    except OSError as error:
        reason = f"{location}: {error.strerror or error}"
        raise _external_error(model, reason, f"put {location} beside the model") from error


def _external_error(model: Path, reason: str, hint: str) -> ModelError:
    """Return the error that says why the external data of a model cannot be read."""
    return ModelError(f"the external data of {model} cannot be read: {reason}", hint)


def load_external(model: "ModelProto", path: Path, limit: int) -> tuple[ExternalFile, ...]:
    """Read the external data of a model into its tensors.

    onnx has a function for this, but what it refuses depends on its version, it ignores sparse
    tensors, and it reads as much as a file claims.

    Args:
        model: The model, whose tensors have their data afterwards.
        path: Its path, as external data is relative to its folder.
        limit: How many bytes all external data may have.

    Returns:
        The files that were read.

    Raises:
        ModelError: A file cannot be read, or the data is more than the limit.
        ChangedError: A file was written while it was read.
        ValueError: The data of a tensor does not match its shape and type.
    """
    from onnx import TensorProto

    files = []
    for location, tensors in sorted(_external_tensors(model, path, limit).items()):
        with open_external(path, location) as file:
            status_before = os.fstat(file.fileno())
            for tensor in tensors:
                _load_tensor(tensor, path, location, file)
                tensor.data_location = TensorProto.DEFAULT
            files.append(ExternalFile.of(location, file))
            status_after = os.fstat(file.fileno())
        has_new_time = status_before.st_mtime_ns != status_after.st_mtime_ns
        if has_new_time or status_before.st_size != status_after.st_size:
            raise ChangedError(path)
    return tuple(files)


def _external_tensors(
    model: "ModelProto", path: Path, limit: int
) -> "dict[str, list[TensorProto]]":
    """Find the tensors of a model whose data is in files beside it, and check the others.

    Args:
        model: The model.
        path: Its path, for messages.
        limit: How many bytes all external data may have.

    Returns:
        The tensors, by the path of their file relative to the model's folder.

    Raises:
        ModelError: The external data is more than the limit.
        ValueError: The data of a tensor in the model itself does not match its shape and type.
    """
    from onnx import TensorProto

    from detcli.model.graph import model_tensors

    tensors_by_location = defaultdict[str, list["TensorProto"]](list)
    total_size = 0  # bytes of external data
    for tensor in model_tensors(model):
        if tensor.data_location != TensorProto.EXTERNAL:
            _check_size(tensor)
            continue
        total_size += _byte_size(tensor)
        if total_size > limit:
            raise _external_error(path, "it is more than 2 GiB", "check what the file is")
        reference = {entry.key: entry.value for entry in tensor.external_data}
        tensors_by_location[reference.get("location", "")].append(tensor)
    return tensors_by_location


def _check_size(tensor: "TensorProto") -> None:
    """Check that a tensor in the model file itself has as much data as its shape and type say.

    The data is bytes, or a list of numbers. Several elements of a small type may share an entry of
    such a list, so a list is only checked for too few entries.

    Raises:
        ValueError: The amount of data does not match the shape and type.
    """
    if tensor.HasField("raw_data"):
        byte_count = len(tensor.raw_data)
        expected_count = _byte_size(tensor)
        if byte_count != expected_count:
            raise ValueError(
                f"{tensor.name} has {byte_count} bytes, but by its shape and type "
                f"it needs {expected_count}"
            )
        return

    entry_count = 0
    for field in NUMBER_FIELDS:
        entry_count += len(getattr(tensor, field))
    if _element_count(tensor) > MAX_PACKED * entry_count:
        raise ValueError(f"{tensor.name} of shape {list(tensor.dims)} has {entry_count} entries")


def _load_tensor(tensor: "TensorProto", path: Path, location: str, file: BufferedReader) -> None:
    """Read the data of one tensor from a file of external data into the model.

    Args:
        tensor: The tensor, which says where its data begins in the file, and perhaps how long it
            is.
        path: The path of the model, for messages.
        location: The path of the file, relative to the model's folder, for messages.
        file: The file.

    Raises:
        ModelError: The file ends before the tensor does.
        ValueError: The tensor says that its data begins before the file.
    """
    # ONNX stores such a reference as strings: {"offset": "4096", "length": "1024"}.
    reference: dict[str, str] = {entry.key: entry.value for entry in tensor.external_data}
    size = _byte_size(tensor)  # by the tensor's shape and type
    start = int(reference.get("offset") or 0)
    stop = start + int(reference.get("length") or size)
    if start < 0:
        raise ValueError(f"{tensor.name} begins at byte {start} of {location}")

    file_size = os.fstat(file.fileno()).st_size
    available = max(0, min(stop, file_size) - start)
    if available != size:
        file.seek(0)
        if is_lfs_pointer(file.read(len(LFS_POINTER))):
            raise _external_error(path, f"{location} is {LFS_REASON}", LFS_HINT)
        raise _external_error(
            path,
            f"{location} is truncated or belongs to another model: it has {available} bytes "
            f"for {tensor.name}, which takes {size}",
            f"fetch {location} again, together with the model",
        )
    file.seek(start)
    tensor.raw_data = file.read(size)
    del tensor.external_data[:]


def _byte_size(tensor: "TensorProto") -> int:
    """Return how many bytes the elements of a tensor take, from its shape and type.

    Elements of less than 8 bits are packed, so the last byte may be filled in part.

    Raises:
        ValueError: Its elements are strings, or its shape is impossible.
    """
    from onnx import TensorProto

    type_name = TensorProto.DataType.Name(tensor.data_type)  # such as FLOAT16, UINT4 or BOOL
    bits_in_name = re.search(r"\d+", type_name)
    bits_per_element = BITS.get(type_name)
    if bits_in_name:
        bits_per_element = int(bits_in_name[0])
    if bits_per_element is None:  # strings
        raise ValueError(f"{tensor.name} is of type {type_name.lower()}, which has no size")
    bit_count = _element_count(tensor) * bits_per_element
    return (bit_count + 7) // 8  # rounded up


def _element_count(tensor: "TensorProto") -> int:
    """Return how many elements a tensor has.

    Raises:
        ValueError: Its shape has a negative number.
    """
    if any(dim < 0 for dim in tensor.dims):
        raise ValueError(f"{tensor.name} is of shape {list(tensor.dims)}")
    return math.prod(tensor.dims)
