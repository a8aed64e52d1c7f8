"""Calibration: the range of each tensor of a network over pictures, for --half and --int8.

`steps.py` says of which tensors.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, TensorProto, helper

from detcli.backend import open_tensors
from detcli.backend.preprocess import place, to_batch
from detcli.geometry import Picture
from detcli.model.contract import Contract
from detcli.model.editing import copied
from detcli.model.graph import GraphIndex
from detcli.model.inputs import find_inputs

Pictures = Callable[[], Iterable[Picture]]
"""Returns the pictures to calibrate on, at each call from the start."""

Tensor = npt.NDArray[Any]

Ranges = dict[str, tuple[float, float]]
"""The lowest and the highest value of tensors, by name."""

OUTLYING = 0.1
"""Share of the pictures whose lowest and whose highest value an int8 model may cut off: for the
sake of few, the steps between all values would widen (see docs/convert.md)."""


def tensor_of(picture: Picture, contract: Contract) -> Tensor:
    """A picture as an input of the network, repeated to fill the batch: `(B, 3, H, W)`."""
    preprocessing = contract.preprocessing
    letterbox = place(picture.size, contract.canvas(), preprocessing)
    batch = contract.batch or 1
    return to_batch(picture, letterbox, preprocessing, contract.input_dtype, batch)


def float_tensors(model: ModelProto) -> list[str]:
    """Names of the float32 tensors that a graph computes, in order; shapes must be inferred."""
    values = (*model.graph.value_info, *model.graph.output)
    floats = {v.name for v in values if v.type.tensor_type.elem_type == TensorProto.FLOAT}
    return [name for node in model.graph.node for name in node.output if name in floats]


def observe(
    model: ModelProto,
    tensors: Collection[str],
    batches: Iterable[Tensor],
    title: str,
    outlying: float = 0.0,
) -> Ranges:
    """Run a network and return the range of each tensor.

    The graph itself reduces each tensor to its lowest and highest value, since all tensors at once
    would fill the memory.

    Args:
        model: A network with one image input.
        tensors: Names of its float tensors, possibly with the input.
        batches: What to feed it.
        title: Its name in errors.
        outlying: Share of the batches that may go below a range, and above it.

    Returns:
        The ranges; none without a batch.

    Raises:
        InferenceError: The network failed on a batch.
        ModelError: The runtime refuses the graph.
    """
    wanted = list(tensors)
    session = open_tensors("cpu", _reduced(model, wanted).SerializeToString(), title)
    image, _ = find_inputs(GraphIndex(model.graph))
    found = [[*session.run_watched(image.name, batch).values()] for batch in batches]
    if not found:
        return {}
    lows, highs = np.split(np.array(found, np.float64), 2, axis=1)  # (batches, tensors) each
    # Of the values themselves: between infinite ones nothing can be interpolated.
    lowest = np.quantile(lows, outlying, axis=0, method="lower")
    highest = np.quantile(highs, 1 - outlying, axis=0, method="higher")
    return dict(zip(wanted, zip(lowest.tolist(), highest.tolist(), strict=True), strict=True))


def _reduced(model: ModelProto, tensors: list[str]) -> ModelProto:
    """The model with the lowest values of tensors as outputs, then the highest."""
    reduced = copied(model)
    graph = reduced.graph
    del graph.output[:]
    for operator in ("ReduceMin", "ReduceMax"):
        for name in tensors:
            output = f"{name}/{operator}"
            graph.node.append(helper.make_node(operator, [name], [output], keepdims=0))
            graph.output.append(helper.make_tensor_value_info(output, TensorProto.FLOAT, []))
    return reduced
