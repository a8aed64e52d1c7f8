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
    """Count the operations that one run of a graph takes.

    Args:
        model: The graph.
        input_shape: The shape of its input.

    Returns:
        The operations by kind of node; None if the size of an axis of the input is unknown.
    """
    sizes = [size for size in input_shape if size]
    if not sizes or len(sizes) < len(input_shape):
        return None
    inferred_model = infer_shapes(_without_weights(model, sizes))
    operations = _count(inferred_model, sizes)
    if not operations.uncounted:
        return operations
    # Some exporters compute sizes with arithmetic on shapes that onnx does not fully follow, but
    # ONNX Runtime does when it simplifies the graph.
    simplified_content = simplified(inferred_model.SerializeToString())
    if simplified_content is None:
        return operations
    simplified_model = infer_shapes(onnx.load_model_from_string(simplified_content))
    operations_of_simplified = _count(simplified_model, sizes)
    if sum(operations_of_simplified.uncounted.values()) < sum(operations.uncounted.values()):
        return operations_of_simplified
    return operations


def _without_weights(model: ModelProto, sizes: Sequence[int]) -> ModelProto:
    """Copy a graph without its weights, which become inputs, to infer shapes quickly.

    Small constants stay, since shapes may depend on them. Functions of the model are replaced by
    their nodes.

    Args:
        model: The graph.
        sizes: The shape that its input gets.
    """
    input_names = {value.name for value in model.graph.input}
    small = ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    small.functions.extend(model.functions)
    small.graph.name = model.graph.name
    small.graph.node.extend(model.graph.node)
    for value in GraphIndex(model.graph).image_inputs():
        image_input = small.graph.input.add()
        image_input.CopyFrom(value)
        for dim, size in zip(image_input.type.tensor_type.shape.dim, sizes, strict=True):
            dim.dim_value = size
    for tensor in model.graph.initializer:
        is_large = math.prod(tensor.dims) > MAX_SHAPE_SIZE
        if not is_large:
            small.graph.initializer.append(tensor)
        if is_large or tensor.name in input_names:
            value = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            small.graph.input.append(value)
    small.graph.sparse_initializer.extend(model.graph.sparse_initializer)
    # The shapes of outputs are left open: they may be symbolic, or for another size of the input.
    for output in model.graph.output:
        output_without_shape = small.graph.output.add(name=output.name)
        element_type = output.type.tensor_type.elem_type
        output_without_shape.type.tensor_type.elem_type = element_type
    if small.functions:
        return onnx.inliner.inline_local_functions(small)
    return small


def _count(model: ModelProto, sizes: Sequence[int]) -> Operations:
    """Count the operations of all nodes of a graph whose shapes have been inferred.

    Args:
        model: The graph.
        sizes: The shape of its input, for the report.
    """
    index = GraphIndex(model.graph)
    flops_by_operator: Counter[str] = Counter()
    uncounted_nodes: Counter[str] = Counter()
    for node in model.graph.node:
        flops = _flops(node, index)
        if flops is None:
            uncounted_nodes[node.op_type] += 1
        flops_by_operator[node.op_type] += flops or 0
        uncounted_nodes += _multiplying_inside(node)
    multiplying_operators = +flops_by_operator  # without those that multiply nothing
    return Operations(
        flops=flops_by_operator.total(),
        by_operator=dict(multiplying_operators.most_common()),
        input_shape=tuple(sizes),
        uncounted=dict(uncounted_nodes),
    )


def _flops(node: NodeProto, index: GraphIndex) -> int | None:
    """Count the operations of a node: two for each multiplication and its addition.

    Returns:
        The number; 0 if it is no convolution or matrix product, None if that cannot be told.
    """
    if node.op_type in NOT_COUNTED or node.domain not in KNOWN_DOMAINS:
        return None
    if node.op_type not in MULTIPLYING:
        return 0
    weight_inputs = CONVOLUTIONS | PRODUCTS | {"ConvTranspose": 1}
    weight_shape = _shape(index, node.input[weight_inputs[node.op_type]])
    # A convolution multiplies one filter of the weight, [filters, ...], for each entry of its
    # output; a ConvTranspose, for each entry of its input.
    applied_to = node.output[0]
    if node.op_type == "ConvTranspose":
        applied_to = node.input[0]
    applied_shape = _shape(index, applied_to)
    if not weight_shape or not applied_shape:
        return None
    entry_count = math.prod(applied_shape)
    if node.op_type not in PRODUCTS:
        multiplications_per_entry = math.prod(weight_shape[1:])
    elif len(weight_shape) == 1 or attribute(node, "transB", 0):
        multiplications_per_entry = weight_shape[-1]
    else:
        # A matrix product sums over the last axis but one of its second factor.
        multiplications_per_entry = weight_shape[-2]
    return 2 * entry_count * multiplications_per_entry


def _shape(index: GraphIndex, tensor: str) -> list[int] | None:
    """Return the shape of a tensor; None if the size of an axis is unknown."""
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
    """Count the nodes that multiply in the graphs inside of a node, by operator.

    These are the branches of an If or the body of a Loop, which run an unknown number of times.
    """
    counts: Counter[str] = Counter()
    for node_attribute in node.attribute:
        for inner_graph in (node_attribute.g, *node_attribute.graphs):
            for inner_node in inner_graph.node:
                if inner_node.op_type in MULTIPLYING | NOT_COUNTED:
                    counts[inner_node.op_type] += 1
                counts += _multiplying_inside(inner_node)
    return counts


def describe_precision(index: GraphIndex, weights: list[TensorProto]) -> NetworkPrecision:
    """Describe the number types that a network computes in and stores its weights in.

    Args:
        index: The graph.
        weights: Its parameters.
    """
    stored_types: Counter[str] = Counter()
    for tensor in weights:
        stored_types[dtype_name(tensor.data_type)] += math.prod(tensor.dims)
    multiplying_nodes = [node for node in index.graph.node if node.op_type in MULTIPLYING]
    computed_types: Counter[str] = Counter()
    for node in multiplying_nodes:
        computed_types[dtype_name(index.types.get(node.output[0], 0))] += 1
    return NetworkPrecision(
        computes=dict(computed_types.most_common()),
        weights=dict(stored_types.most_common()),
        quantisation=_quantisation(index, multiplying_nodes),
    )


def _quantisation(index: GraphIndex, multiplying_nodes: list[NodeProto]) -> Quantisation | None:
    """Find out in which way a network is quantised; None if it is not.

    Args:
        index: The graph.
        multiplying_nodes: Its convolutions and matrix products.
    """
    total = len(multiplying_nodes)
    operators = {node.op_type for node in index.graph.node}
    integer_count = 0
    for node in multiplying_nodes:
        if node.op_type in INTEGER_OPERATORS | DYNAMIC_OPERATORS:
            integer_count += 1
    if operators & DYNAMIC_OPERATORS:
        return Quantisation("dynamic", integer_count, total)
    if operators & INTEGER_OPERATORS:
        return Quantisation("QOperator", integer_count, total)
    factors_of_nodes = [_dequantised_factors(index, node) for node in multiplying_nodes]
    # A runtime may multiply integers where both factors come from a DequantizeLinear.
    if "QuantizeLinear" in operators:
        quantised_count = sum(all(factors) for factors in factors_of_nodes)
        return Quantisation("QDQ", quantised_count, total)
    if "DequantizeLinear" in operators:
        quantised_count = sum(any(factors) for factors in factors_of_nodes)
        return Quantisation("weights", quantised_count, total)
    return None


def _dequantised_factors(index: GraphIndex, node: NodeProto) -> list[bool]:
    """Tell for both factors of a node that multiplies whether a DequantizeLinear produces them."""
    are_dequantised = []
    for tensor_name in node.input[:2]:
        producer = index.producers.get(tensor_name)
        is_dequantised = producer is not None and producer.op_type == "DequantizeLinear"
        are_dequantised.append(is_dequantised)
    return are_dequantised
