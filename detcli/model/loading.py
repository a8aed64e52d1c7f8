"""Loads an ONNX file, and what it keeps outside itself."""

from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx.external_data_helper import load_external_data_for_model, uses_external_data

from detcli.errors import ModelError
from detcli.model.graph import tensors


def load(path: Path, content: bytes) -> tuple[onnx.ModelProto, list[str]]:
    """Parse a model, with its weights.

    Args:
        path: Where it came from; external data lies beside it.
        content: The file's bytes.

    Returns:
        The model, and the names of the files beside it that hold its weights.

    Raises:
        ModelError: It is no ONNX model, it is truncated, or its external data is missing or
            outside the model's folder.
    """
    try:
        model = onnx.load_model_from_string(content)
    except DecodeError as error:
        model, reason = onnx.ModelProto(), f": {error}"
    else:
        reason = ""
    if not model.graph.node:
        raise ModelError(
            f"{path} is no ONNX model, or is truncated{reason}",
            "give a complete .onnx file; a PyTorch .pt file has to be exported first",
        )
    locations = {
        entry.value
        for tensor in tensors(model.graph)
        if uses_external_data(tensor)
        for entry in tensor.external_data
        if entry.key == "location"
    }
    try:
        load_external_data_for_model(model, str(path.parent))
    except (OSError, ValueError, RuntimeError, onnx.checker.ValidationError) as error:
        raise ModelError(
            f"the external data of {path} cannot be read: {error}",
            f"put {', '.join(sorted(locations))} beside the model",
        ) from error
    return model, sorted(locations)
