"""Observes the values of tensors on images, and finds the nodes that may overflow in float16."""

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
from onnx import GraphProto, ModelProto, TensorProto, helper

from detcli.backend import open_tensors
from detcli.backend.preprocess import fit_letterbox, to_batch
from detcli.data.geometry import Image
from detcli.model.contract import Contract
from detcli.model.editing import copied
from detcli.model.graph import GraphIndex
from detcli.model.inputs import find_inputs

MARGIN = 4.0  # factor by which values may be larger on other images than on those observed
MAX_HALF = 65504.0 / MARGIN  # of observed values; 65504 is the largest number of float16
# Operators that square their input internally, where no tensor shows an overflow.
SQUARING = frozenset(
    "GroupNormalization InstanceNormalization LayerNormalization LpNormalization ReduceL2 "
    "ReduceSumSquare RMSNormalization SimplifiedLayerNormalization".split()
)

Tensor = npt.NDArray[Any]
Ranges = dict[str, tuple[float, float]]  # the lowest and the highest value of tensors


class Observation(NamedTuple):
    """Which values tensors take when a network runs on some images."""

    ranges: Ranges
    image_count: int


def overflowing_nodes(graph: GraphProto, ranges: Ranges) -> set[str]:
    """Find the nodes whose values might exceed the largest number of float16, 65504.

    A node might overflow if a tensor that it reads or computes has values near that limit. Some
    operators square their input internally; for these the values of the input must stay below the
    square root of the limit.

    Args:
        graph: The graph.
        ranges: The lowest and the highest observed value of each tensor, by its name.

    Returns:
        The first output of each node.
    """
    large_tensors = _tensors_beyond(MAX_HALF, ranges)
    large_when_squared = _tensors_beyond(MAX_HALF**0.5, ranges)
    overflowing = set()
    for node in graph.node:
        might_overflow = any(name in large_tensors for name in (*node.input, *node.output))
        if node.op_type in SQUARING and node.input:
            might_overflow = might_overflow or node.input[0] in large_when_squared
        if might_overflow:
            overflowing.add(node.output[0])
    return overflowing


def _tensors_beyond(limit: float, ranges: Ranges) -> set[str]:
    """Name the tensors with a value below -limit or above limit, or with NaN.

    Args:
        limit: The limit, a positive number.
        ranges: The lowest and the highest value of each tensor, by its name.
    """
    names = set()
    for name, (lowest, highest) in ranges.items():
        is_within = -limit <= lowest <= highest <= limit  # False for NaN
        if not is_within:
            names.add(name)
    return names


def constant_ranges(graph: GraphProto) -> Ranges:
    """Find the lowest and the highest value of each float32 constant of a graph, by its name."""
    ranges = {}
    for tensor in graph.initializer:
        if tensor.data_type == TensorProto.FLOAT and 0 not in tensor.dims:
            values = onnx.numpy_helper.to_array(tensor)
            ranges[tensor.name] = (float(values.min()), float(values.max()))
    return ranges


def tensor_of(image: Image, contract: Contract) -> Tensor:
    """Prepare an image as the input of a network.

    Args:
        image: The image.
        contract: What the network takes: the size, how images are prepared, and the batch.

    Returns:
        The tensor `(B, 3, H, W)`, in which the image is repeated to fill the batch.
    """
    preprocessing = contract.preprocessing
    letterbox = fit_letterbox(image.size, contract.input_shape(), preprocessing)
    batch = contract.batch or 1
    return to_batch(image, letterbox, preprocessing, contract.input_dtype, batch)


def float_tensors(model: ModelProto) -> list[str]:
    """Name the float32 tensors that the nodes of a graph compute, in the order of the nodes.

    Args:
        model: The model, in which the types and shapes of all tensors were inferred.
    """
    types = GraphIndex(model.graph).types
    tensors = []
    for node in model.graph.node:
        for name in node.output:
            if types.get(name) == TensorProto.FLOAT:
                tensors.append(name)
    return tensors


def observe(
    model: ModelProto,
    tensors: Collection[str],
    batches: Iterable[Tensor],
    title: str,
    outlier_share: float = 0.0,
) -> Observation:
    """Run a network on some images, and note which values its tensors take.

    A ReduceMin and a ReduceMax are added to the graph for each tensor, so that it returns only the
    lowest and the highest value: all tensors at once would fill the memory.

    Args:
        model: The network.
        tensors: The names of the tensors to look at.
        batches: An input (B, 3, H, W) for each image, in which the image is repeated B times.
        title: The name of the network in errors.
        outlier_share: The share of images that may have values outside the range, at each of its
            ends. With 0.1, up to a tenth of the images have values below a range.
    """
    model_with_reductions = _with_reductions(model, tensors)
    session = open_tensors("cpu", model_with_reductions.SerializeToString(), title)
    image_input, _ = find_inputs(GraphIndex(model.graph))

    # For each image, the lowest and the highest value of each tensor.
    lows_of_images = []
    highs_of_images = []
    for batch in batches:
        outputs = session.run_watched(image_input.name, batch)
        lows_of_images.append([outputs[f"{name}/ReduceMin"] for name in tensors])
        highs_of_images.append([outputs[f"{name}/ReduceMax"] for name in tensors])
    image_count = len(lows_of_images)
    if image_count == 0:
        return Observation({}, 0)

    # Quantiles over the images leave out the most extreme ones. The methods "lower" and "higher"
    # return one of the values. Others interpolate, which gives NaN between two infinite values.
    lows = np.array(lows_of_images, np.float64)  # (images, tensors)
    highs = np.array(highs_of_images, np.float64)
    range_starts = np.quantile(lows, outlier_share, axis=0, method="lower")  # (tensors,)
    range_ends = np.quantile(highs, 1 - outlier_share, axis=0, method="higher")

    ranges = {}
    for name, range_start, range_end in zip(tensors, range_starts, range_ends, strict=True):
        ranges[name] = (float(range_start), float(range_end))
    return Observation(ranges, image_count)


def _with_reductions(model: ModelProto, tensors: Collection[str]) -> ModelProto:
    """Copy a model so that it returns the lowest and the highest value of some of its tensors.

    Args:
        model: The model.
        tensors: The names of the tensors.

    Returns:
        A model with two outputs for each tensor, `{name}/ReduceMin` and `{name}/ReduceMax`, and no
        others.
    """
    reduced = copied(model)
    graph = reduced.graph
    del graph.output[:]
    for operator in ("ReduceMin", "ReduceMax"):
        for name in tensors:
            output = f"{name}/{operator}"
            graph.node.append(helper.make_node(operator, [name], [output], keepdims=0))
            graph.output.append(helper.make_tensor_value_info(output, TensorProto.FLOAT, []))
    return reduced
