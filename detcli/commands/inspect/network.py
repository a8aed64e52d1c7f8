"""What a network computes in, and how many operations one run takes, from its shapes.

As in papers on detectors, each multiplication of a convolution or matrix product counts as two
operations, with its addition; activations, biases and the selection of boxes are left out.
"""

import math
from collections import Counter
from collections.abc import Sequence

import onnx
import onnx.inliner
from onnx import ModelProto, NodeProto, TensorProto

from detcli.backend.runtime.survey import simplified
from detcli.commands.inspect.report import NetworkPrecision, Operations, Quantisation
from detcli.model.editing import infer_shapes
from detcli.model.graph import (
    CONVOLUTIONS,
    MULTIPLYING,
    PRODUCTS,
    GraphIndex,
    attribute,
    dtype_name,
    known_size,
)

# These multiply too, but are not counted; a count without them is incomplete.
NOT_COUNTED = frozenset(
    "Attention DeformConv Einsum FusedMatMul GRU LSTM MatMulNBits MultiHeadAttention RNN".split()
)
KNOWN_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft"})
"""Operators of other domains may compute anything."""

INTEGER_OPERATORS = frozenset({"QLinearConv", "QLinearMatMul", "QGemm"})
DYNAMIC_OPERATORS = frozenset({"ConvInteger", "MatMulInteger", "DynamicQuantizeLinear"})

MAX_SHAPE_SIZE = 64  # elements of a constant that shapes may depend on; weights have more


def count_operations(model: ModelProto, input_shape: Sequence[int | None]) -> Operations | None:
    """Count the operations of one run.

    Args:
        model: A model with one input.
        input_shape: The size of each axis of its input.

    Returns:
        The count; None if the size of an axis is unknown.
    """
    sizes = [size for size in input_shape if size]
    if not sizes or len(sizes) < len(input_shape):
        return None
    model = infer_shapes(_without_weights(model, sizes))
    found = _count(model, sizes)
    if found.uncounted:
        # Some exporters compute sizes with arithmetic on shapes that onnx does not fully follow.
        folded = simplified(model.SerializeToString())
        if folded is not None:
            again = _count(infer_shapes(onnx.load_model_from_string(folded)), sizes)
            found = min(found, again, key=lambda count: sum(count.uncounted.values()))
    return found


def _without_weights(model: ModelProto, sizes: Sequence[int]) -> ModelProto:
    """A small copy that takes an input of this shape, with the weights as further inputs."""
    index = GraphIndex(model.graph)
    inputs = {value.name for value in model.graph.input}
    small = ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    small.functions.extend(model.functions)
    small.graph.name = model.graph.name
    small.graph.node.extend(model.graph.node)
    for value in index.image_inputs():
        fixed = small.graph.input.add()
        fixed.CopyFrom(value)
        for dim, size in zip(fixed.type.tensor_type.shape.dim, sizes, strict=True):
            dim.dim_value = size
    for tensor in model.graph.initializer:
        if math.prod(tensor.dims) <= MAX_SHAPE_SIZE:
            small.graph.initializer.append(tensor)
        if math.prod(tensor.dims) > MAX_SHAPE_SIZE or tensor.name in inputs:
            value = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            small.graph.input.append(value)
    small.graph.sparse_initializer.extend(model.graph.sparse_initializer)
    for output in model.graph.output:  # its shape may be symbolic, or for another size
        free = small.graph.output.add(name=output.name)
        free.type.tensor_type.elem_type = output.type.tensor_type.elem_type
    return onnx.inliner.inline_local_functions(small) if small.functions else small


def _count(model: ModelProto, sizes: Sequence[int]) -> Operations:
    index = GraphIndex(model.graph)
    counted: Counter[str] = Counter()
    uncounted: Counter[str] = Counter()
    for node in model.graph.node:
        flops = _flops(node, index)
        counted[node.op_type] += flops or 0
        uncounted[node.op_type] += flops is None
        uncounted += _multiplying_inside(node)
    return Operations(
        flops=counted.total(),
        by_operator=dict((+counted).most_common()),
        input_shape=tuple(sizes),
        uncounted=dict(+uncounted),
    )


def _shape(index: GraphIndex, tensor: str) -> list[int] | None:
    """The shape of a tensor; None if a size is unknown."""
    dims = index.shapes.get(tensor)
    if dims is None:
        constant = index.constant_tensor(tensor)
        return None if constant is None else list(constant.dims)
    sizes = [size for dim in dims if (size := known_size(dim)) is not None]
    return sizes if len(sizes) == len(dims) else None


def _flops(node: NodeProto, index: GraphIndex) -> int | None:
    """Operations of a node; None if it multiplies an unknown amount."""
    if node.op_type in NOT_COUNTED or node.domain not in KNOWN_DOMAINS:
        return None
    if node.op_type not in MULTIPLYING:
        return 0
    place = {**CONVOLUTIONS, **PRODUCTS, "ConvTranspose": 1}[node.op_type]
    weight = _shape(index, node.input[place])
    # A weight [M, ...] is applied at each entry of the output; in a ConvTranspose, of the input.
    entries = _shape(index, node.input[0] if node.op_type == "ConvTranspose" else node.output[0])
    if not weight or not entries:
        return None
    if node.op_type not in PRODUCTS:
        return 2 * math.prod(entries) * math.prod(weight[1:])
    # The sum runs over the last axis but one of the second factor, unless that is transposed.
    depth = weight[-1] if len(weight) == 1 or attribute(node, "transB", 0) else weight[-2]
    return 2 * math.prod(entries) * depth


def _multiplying_inside(node: NodeProto) -> Counter[str]:
    """Operators that multiply in the branches of an If or Loop, run an unknown number of times."""
    inside: Counter[str] = Counter()
    for entry in node.attribute:
        for branch in (entry.g, *entry.graphs):
            for inner in branch.node:
                inside[inner.op_type] += inner.op_type in MULTIPLYING | NOT_COUNTED
                inside += _multiplying_inside(inner)
    return +inside


def describe_precision(index: GraphIndex, weights: list[TensorProto]) -> NetworkPrecision:
    """Describe the types that a network computes in and stores; `weights` are its parameters."""
    kept: Counter[str] = Counter()
    for tensor in weights:
        kept[dtype_name(tensor.data_type)] += math.prod(tensor.dims)
    values = [*index.graph.value_info, *index.graph.output, *index.graph.input]
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    multiplying = [node for node in index.graph.node if node.op_type in MULTIPLYING]
    computes = Counter(dtype_name(types.get(node.output[0], 0)) for node in multiplying)
    return NetworkPrecision(
        computes=dict(computes.most_common()),
        weights=dict(kept.most_common()),
        quantisation=_quantisation(index, multiplying),
    )


def _quantisation(index: GraphIndex, multiplying: list[NodeProto]) -> Quantisation | None:
    operators = {node.op_type for node in index.graph.node}
    integer = sum(node.op_type in INTEGER_OPERATORS | DYNAMIC_OPERATORS for node in multiplying)
    if operators & DYNAMIC_OPERATORS:
        return Quantisation("dynamic", integer, len(multiplying))
    if operators & INTEGER_OPERATORS:
        return Quantisation("QOperator", integer, len(multiplying))
    # A runtime may multiply integers where both factors come from a DequantizeLinear.
    if "QuantizeLinear" in operators:
        both = sum(all(_are_dequantised(index, node)) for node in multiplying)
        return Quantisation("QDQ", both, len(multiplying))
    if "DequantizeLinear" in operators:
        weights = sum(any(_are_dequantised(index, node)) for node in multiplying)
        return Quantisation("weights", weights, len(multiplying))
    return None


def _are_dequantised(index: GraphIndex, node: NodeProto) -> list[bool]:
    """For each of the two factors, whether it is dequantised from integers."""
    makers = [index.producers.get(name) for name in node.input[:2]]
    return [maker is not None and maker.op_type == "DequantizeLinear" for maker in makers]
