"""The shapes that a graph says of its tensors."""

import onnx
from onnx import ModelProto


def infer_shapes(model: ModelProto) -> ModelProto:
    """Add the shapes of intermediate tensors, as far as they can be inferred."""
    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=True)
    except (onnx.shape_inference.InferenceError, ValueError):
        return model  # what the graph says itself has to do


def renew_shapes(model: ModelProto) -> ModelProto:
    """Infer the shapes of intermediate tensors anew, from those of the inputs and outputs.

    Raises:
        ValueError: The shapes contradict each other, or a constant of the graph.
    """
    renewed = ModelProto()
    renewed.CopyFrom(model)
    del renewed.graph.value_info[:]
    try:
        return onnx.shape_inference.infer_shapes(renewed, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError as error:
        raise ValueError(_first(str(error))) from error


def _first(message: str) -> str:
    """The first of the errors that shape inference found: the others follow from it."""
    for separator in ("[ShapeInferenceError] Inference error(s): ", "[ShapeInferenceError] "):
        message = message.removeprefix(separator)
    return message.strip().splitlines()[0]
