"""Loads an ONNX file, and what it keeps outside itself."""

import math
import os
import stat
from io import BufferedReader
from pathlib import Path, PureWindowsPath

import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto

from detcli.errors import ModelError
from detcli.model.graph import model_tensors

# Neither follows a link that was laid after the check, nor waits for the writer of a pipe.
CAREFULLY = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


def open_external(model: Path, location: str) -> BufferedReader:
    """Open a file of external data.

    Args:
        model: The model file, which has it beside itself or in a folder below.
        location: Its path, relative to the model's folder, as the model names it.

    Raises:
        ModelError: It is not there, no regular file, or outside the folder: then it is not opened.
    """
    missing = f"put {location} beside the model"
    try:
        file = _inside(model, location)
        if not stat.S_ISREG(file.stat().st_mode):
            raise external_error(model, f"{location}: it is no regular file", missing)
        return open(file, "rb", opener=lambda name, flags: os.open(name, flags | CAREFULLY))
    except OSError as error:
        why = f"{location}: {error.strerror or error}"
        raise external_error(model, why, missing) from error


def _inside(model: Path, location: str) -> Path:
    """The file that is meant, with all links on the way followed.

    Raises:
        ModelError: It is outside the model's folder.
    """
    # Windows' notation has all that POSIX' has, drives and backslashes besides. A model comes from
    # anywhere, and is to be refused everywhere.
    path = PureWindowsPath(location)
    if not location or "\0" in location or path.anchor or ".." in path.parts:
        raise external_error(
            model,
            f"'{location}' is no path below the model's folder",
            "export it again, with its weights in the same folder",
        )
    folder = Path(os.path.realpath(model.parent))
    file = Path(os.path.realpath(folder / location))
    if not file.is_relative_to(folder):
        raise external_error(
            model,
            f"{location}: a link leads out of the model's folder",
            "put the file itself beside the model, not a link to it; cp -L copies what is linked",
        )
    return file


def external_error(model: Path, why: str, hint: str) -> ModelError:
    """Build the error for external data that cannot be had."""
    return ModelError(f"the external data of {model} cannot be read: {why}", hint)


MOST_BYTES = (1 << 31) - 1
"""What protobuf can hold in one message, and so what a runtime can be handed."""

BITS = {
    **dict.fromkeys(("INT2", "UINT2"), 2),
    **dict.fromkeys(("INT4", "UINT4", "FLOAT4E2M1"), 4),
    **dict.fromkeys(("FLOAT6E2M3", "FLOAT6E3M2"), 6),
    **dict.fromkeys(("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2"), 8),
    **dict.fromkeys(("FLOAT8E5M2FNUZ", "FLOAT8E8M0"), 8),
    "BFLOAT16": 16,
}
"""Sizes of the types that NumPy lacks: some versions of onnx make larger ones of them."""

MOST_IN_ONE = 16
"""How many entries of the smallest type share an entry of a list of 32 bits."""


def load(path: Path, content: bytes) -> tuple[onnx.ModelProto, list[str]]:
    """Parse a model, with its weights.

    Args:
        path: Where it came from; external data lies beside it.
        content: The file's bytes.

    Returns:
        The model, and the names of the files beside it that hold its weights.

    Raises:
        ModelError: It is no ONNX model, it is truncated, or its external data is missing, too
            short or outside the model's folder.
    """
    try:
        model = onnx.load_model_from_string(content)
    except DecodeError as error:
        model, reason = onnx.ModelProto(), f": {error}"
    else:
        # The graph comes first: of a file that ends behind it, the operator sets are missing.
        reason = "" if model.opset_import or not content else ": it names no operator set"
    if not model.graph.node or reason:
        raise ModelError(
            f"{path} is no ONNX model, or is truncated{reason}",
            "give a complete .onnx file; a PyTorch .pt file has to be exported first",
        )
    try:
        return model, _load_external(model, path, MOST_BYTES - len(content))
    except (TypeError, ValueError) as error:  # a path may be no text
        raise ModelError(f"{path} is damaged: {error}", "fetch or copy the file again") from error


def _load_external(model: onnx.ModelProto, path: Path, most: int) -> list[str]:
    """Move external data into the model; names of the files it was in.

    onnx has a function for this, but what it refuses depends on its version, it leaves out sparse
    tensors, and it reads as much as a file says.

    Raises:
        ModelError: It cannot be read, or is more than `most` bytes.
        ValueError: A tensor makes no sense.
    """
    names = set()
    for tensor in model_tensors(model):
        if tensor.data_location != TensorProto.EXTERNAL:
            _check_size(tensor)
            continue
        most -= _byte_size(tensor)
        if most < 0:
            raise external_error(
                path, "it is more than 2 GiB", "no detector is that large; see what the file is"
            )
        names.add(_load_tensor(tensor, path))
    return sorted(names)


def _check_size(tensor: TensorProto) -> None:
    """See that a tensor has the entries that its shape promises, which libraries trust.

    Raises:
        ValueError: It has not.
    """
    if tensor.HasField("raw_data"):
        there, wanted = len(tensor.raw_data), _byte_size(tensor)
        if there != wanted:
            raise ValueError(f"{tensor.name} takes {wanted} bytes and has {there}")
        return
    lists = (tensor.float_data, tensor.int32_data, tensor.string_data)
    there = sum(map(len, (*lists, tensor.int64_data, tensor.double_data, tensor.uint64_data)))
    if _count(tensor) > MOST_IN_ONE * there:
        raise ValueError(f"{tensor.name} of shape {list(tensor.dims)} has {there} entries")


def _load_tensor(tensor: TensorProto, path: Path) -> str:
    """Move one tensor into the model; the name of the file it was in."""
    place: dict[str, str] = {entry.key: entry.value for entry in tensor.external_data}
    location = place.get("location", "")
    size, start = _byte_size(tensor), int(place.get("offset") or 0)
    stop = start + int(place.get("length") or size)
    if start < 0:
        raise ValueError(f"{tensor.name} begins at byte {start} of {location}")
    with open_external(path, location) as file:
        there = max(0, min(stop, os.fstat(file.fileno()).st_size) - start)
        if there != size:
            raise external_error(
                path,
                f"{location} is truncated or another model's: of {tensor.name}, "
                f"which takes {size} bytes, it has {there}",
                f"fetch {location} again, together with the model",
            )
        file.seek(start)
        tensor.raw_data = file.read(size)
    tensor.data_location = TensorProto.DEFAULT
    del tensor.external_data[:]
    return location


def _byte_size(tensor: TensorProto) -> int:
    """How many bytes a tensor of this shape and type takes.

    Raises:
        ValueError: It has a negative axis, or a type without a size.
    """
    name = TensorProto.DataType.Name(tensor.data_type)
    if name in {"STRING", "UNDEFINED"}:
        raise ValueError(f"{tensor.name} is of type {name.lower()}, which has no size")
    bits = BITS.get(name) or 8 * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    return -(-_count(tensor) * int(bits) // 8)


def _count(tensor: TensorProto) -> int:
    """How many entries a tensor has.

    Raises:
        ValueError: It has a negative axis.
    """
    if any(dim < 0 for dim in tensor.dims):
        raise ValueError(f"{tensor.name} is of shape {list(tensor.dims)}")
    return math.prod(tensor.dims)
