"""What the network of a graph computes: its precision, and how many operations a run takes."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import onnx
import onnx.inliner
from onnx import ModelProto, NodeProto, TensorProto

from detcli.backend.session import simplified
from detcli.core import frozen
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

MAX_SHAPE_SIZE = 64  # elements of a constant that shapes may depend on; weights have more

# These multiply too, but are not counted; a count without them is incomplete.
NOT_COUNTED = frozenset(
    "Attention DeformConv Einsum FusedMatMul GRU LSTM MatMulNBits MultiHeadAttention RNN".split()
)

KNOWN_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft"})  # others do anything

INTEGER_OPERATORS = frozenset({"QLinearConv", "QLinearMatMul", "QGemm"})

DYNAMIC_OPERATORS = frozenset({"ConvInteger", "MatMulInteger", "DynamicQuantizeLinear"})


@frozen
class Quantisation:
    # Float operators between DequantizeLinear and QuantizeLinear, integer operators, scales
    # computed at each run, or only the weights.
    form: Literal["QDQ", "QOperator", "dynamic", "weights"]
    quantised: int  # convolutions and matrix products that compute in, or from, integers
    total: int


@frozen
class NetworkPrecision:
    computes: dict[str, int]  # convolutions and matrix products by type of their result
    weights: dict[str, int]  # parameters by type that they are stored in
    quantisation: Quantisation | None


@frozen
class Operations:
    """Operations of one run, counted as in papers on detectors.

    Each multiplication of a convolution or matrix product counts as two, with its addition;
    activations, biases and the selection of boxes are left out.
    """

    flops: int
    by_operator: dict[str, int]
    input_shape: tuple[int, ...]
    uncounted: dict[str, int]  # nodes by operator; with any, `flops` is a lower bound


def count_operations(model: ModelProto, input_shape: Sequence[int | None]) -> Operations | None:
    """Count the operations of one run for an input; None if the size of an axis is unknown."""
    sizes = [size for size in input_shape if size]
    if not sizes or len(sizes) < len(input_shape):
        return None
    model = infer_shapes(_without_weights(model, sizes))
    operations = _count(model, sizes)
    if not operations.uncounted:
        return operations
    # Some exporters compute sizes with arithmetic on shapes that onnx does not fully follow.
    folded = simplified(model.SerializeToString())
    if folded is None:
        return operations
    operations_of_folded = _count(infer_shapes(onnx.load_model_from_string(folded)), sizes)
    if sum(operations_of_folded.uncounted.values()) < sum(operations.uncounted.values()):
        return operations_of_folded
    return operations


def _without_weights(model: ModelProto, sizes: Sequence[int]) -> ModelProto:
    """A small copy that takes an input of this shape, with the weights as further inputs."""
    input_names = {value.name for value in model.graph.input}
    small = ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    small.functions.extend(model.functions)
    small.graph.name = model.graph.name
    small.graph.node.extend(model.graph.node)
    for value in GraphIndex(model.graph).image_inputs():
        fixed = small.graph.input.add()
        fixed.CopyFrom(value)
        for dim, size in zip(fixed.type.tensor_type.shape.dim, sizes, strict=True):
            dim.dim_value = size
    for tensor in model.graph.initializer:
        is_large = math.prod(tensor.dims) > MAX_SHAPE_SIZE
        if not is_large:
            small.graph.initializer.append(tensor)
        if is_large or tensor.name in input_names:
            value = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            small.graph.input.append(value)
    small.graph.sparse_initializer.extend(model.graph.sparse_initializer)
    for output in model.graph.output:  # its shape may be symbolic, or for another size
        free = small.graph.output.add(name=output.name)
        free.type.tensor_type.elem_type = output.type.tensor_type.elem_type
    if small.functions:
        return onnx.inliner.inline_local_functions(small)
    return small


def _count(model: ModelProto, sizes: Sequence[int]) -> Operations:
    """Count the operations of all nodes, whose shapes have been inferred."""
    index = GraphIndex(model.graph)
    counted: Counter[str] = Counter()
    uncounted: Counter[str] = Counter()
    for node in model.graph.node:
        flops = _flops(node, index)
        counted[node.op_type] += flops or 0
        uncounted[node.op_type] += flops is None
        uncounted += _multiplying_inside(node)
    by_operator = dict((+counted).most_common())
    return Operations(counted.total(), by_operator, tuple(sizes), dict(+uncounted))


def _flops(node: NodeProto, index: GraphIndex) -> int | None:
    """Operations of a node; None if it multiplies an unknown amount."""
    if node.op_type in NOT_COUNTED or node.domain not in KNOWN_DOMAINS:
        return None
    if node.op_type not in MULTIPLYING:
        return 0
    weight_inputs = CONVOLUTIONS | PRODUCTS | {"ConvTranspose": 1}
    weight = _shape(index, node.input[weight_inputs[node.op_type]])
    # A weight [M, ...] is applied at each entry of the output; in a ConvTranspose, of the input.
    applied_to = node.output[0]
    if node.op_type == "ConvTranspose":
        applied_to = node.input[0]
    entries = _shape(index, applied_to)
    if not weight or not entries:
        return None
    if node.op_type not in PRODUCTS:
        return 2 * math.prod(entries) * math.prod(weight[1:])
    # The sum runs over the last axis but one of the second factor, unless that is transposed.
    if len(weight) == 1 or attribute(node, "transB", 0):
        depth = weight[-1]
    else:
        depth = weight[-2]
    return 2 * math.prod(entries) * depth


def _shape(index: GraphIndex, tensor: str) -> list[int] | None:
    """The shape of a tensor; None if a size is unknown."""
    dims = index.shapes.get(tensor)
    if dims is None:
        constant = index.constant_tensor(tensor)
        if constant is None:
            return None
        return list(constant.dims)
    sizes = []
    for dim in dims:
        size = known_size(dim)
        if size is None:
            return None
        sizes.append(size)
    return sizes


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
    stored: Counter[str] = Counter()
    for tensor in weights:
        stored[dtype_name(tensor.data_type)] += math.prod(tensor.dims)
    multiplying = [node for node in index.graph.node if node.op_type in MULTIPLYING]
    computes = Counter(dtype_name(index.types.get(node.output[0], 0)) for node in multiplying)
    quantisation = _quantisation(index, multiplying)
    return NetworkPrecision(dict(computes.most_common()), dict(stored.most_common()), quantisation)


def _quantisation(index: GraphIndex, multiplying: list[NodeProto]) -> Quantisation | None:
    """How a network is quantised, by its nodes that multiply; None if it is not."""
    operators = {node.op_type for node in index.graph.node}
    integer = sum(node.op_type in INTEGER_OPERATORS | DYNAMIC_OPERATORS for node in multiplying)
    if operators & DYNAMIC_OPERATORS:
        return Quantisation("dynamic", integer, len(multiplying))
    if operators & INTEGER_OPERATORS:
        return Quantisation("QOperator", integer, len(multiplying))
    dequantised = [_dequantised_factors(index, node) for node in multiplying]
    # A runtime may multiply integers where both factors come from a DequantizeLinear.
    if "QuantizeLinear" in operators:
        with_both = sum(all(factors) for factors in dequantised)
        return Quantisation("QDQ", with_both, len(multiplying))
    if "DequantizeLinear" in operators:
        with_any = sum(any(factors) for factors in dequantised)
        return Quantisation("weights", with_any, len(multiplying))
    return None


def _dequantised_factors(index: GraphIndex, node: NodeProto) -> list[bool]:
    """Whether each factor of a node that multiplies comes from a DequantizeLinear."""
    factors = []
    for name in node.input[:2]:
        producer = index.producers.get(name)
        factors.append(producer is not None and producer.op_type == "DequantizeLinear")
    return factors
