"""The number type that a network computes in."""

from enum import StrEnum
from typing import TYPE_CHECKING

from detcli.config.device import Device

if TYPE_CHECKING:
    from onnx import ModelProto


class Precision(StrEnum):
    """The number type that a network computes in."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    INT8 = "int8"


def precision_in(model: "ModelProto", device: Device, *, half: bool) -> Precision:
    """Return the lowest precision that a graph is computed in on a device, see `precision_of`.

    Args:
        model: The model; shapes must be inferred.
        device: The device.
        half: Whether it is to compute in 16 bits where it can, as `--half` asks for.
    """
    if half and device.computes_half:
        return Precision(device.half_type)
    return precision_of(model)


def precision_of(model: "ModelProto") -> Precision:
    """Return the lowest precision that a graph computes in, as its nodes and tensors show it.

    Args:
        model: The model; shapes must be inferred, as only then all tensors have their types.
    """
    from onnx import TensorProto  # large, and not needed to compare saved records

    from detcli.model.graph import is_quantised

    if is_quantised(model.graph):
        return Precision.INT8
    element_types = {tensor.data_type for tensor in model.graph.initializer}
    # Weights may be in Constant nodes in place of initializers, so other tensors are looked at,
    # too.
    for values in (model.graph.input, model.graph.value_info):
        element_types.update(value.type.tensor_type.elem_type for value in values)
    if TensorProto.FLOAT16 in element_types:
        return Precision.FLOAT16
    return Precision.FLOAT32
