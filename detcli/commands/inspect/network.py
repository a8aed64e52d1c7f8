"""What the network of a graph computes: its precision, and how many operations a run takes."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import onnx
import onnx.inliner
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

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

POSITION_OF_WEIGHT = CONVOLUTIONS | PRODUCTS | {"ConvTranspose": 1}
"""By operator, which of a node's inputs is the weight, or the second factor of a product."""

KNOWN_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft"})  # others do anything

INTEGER_OPERATORS = frozenset({"QLinearConv", "QLinearMatMul", "QGemm"})

DYNAMIC_OPERATORS = frozenset({"ConvInteger", "MatMulInteger", "DynamicQuantizeLinear"})


@frozen
class Quantisation:
    """How a network is quantised, and how much of it is."""

    # Float operators between DequantizeLinear and QuantizeLinear, integer operators, scales
    # computed at each run, or only the weights.
    form: Literal["QDQ", "QOperator", "dynamic", "weights"]
    quantised: int  # convolutions and matrix products that compute in, or from, integers
    total: int


@frozen
class NetworkPrecision:
    """The types of numbers that a network computes in, and that its weights are stored in."""

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

    @property
    def uncounted_count(self) -> int:
        """The number of nodes that could not be counted."""
        return sum(self.uncounted.values())


def count_operations(model: ModelProto, input_shape: Sequence[int | None]) -> Operations | None:
    """Count the multiplications and additions that one run of a graph takes.

    The shapes of all its tensors are inferred from the shape of its input. Nodes without a known
    shape cannot be counted and are listed instead.

    Args:
        model: The graph.
        input_shape: The shape of its input, with None for an axis of unknown size.

    Returns:
        The operations by kind of node; None if the input has no axes, or one of unknown size.
    """
    known_sizes = []
    for size in input_shape:
        if not size:  # unknown, or 0
            return None
        known_sizes.append(size)
    if not known_sizes:
        return None

    inferred_model = infer_shapes(_prepare_for_shapes(model, known_sizes))
    operations = _count(inferred_model, known_sizes)
    if not operations.uncounted:
        return operations

    # Some exporters compute sizes with arithmetic on shapes that onnx does not fully follow, but
    # ONNX Runtime does when it simplifies the graph.
    simplified_content = simplified(inferred_model.SerializeToString())
    if simplified_content is None:
        return operations
    simplified_model = infer_shapes(onnx.load_model_from_string(simplified_content))
    operations_after_simplifying = _count(simplified_model, known_sizes)
    if operations_after_simplifying.uncounted_count < operations.uncounted_count:
        return operations_after_simplifying
    return operations


def _prepare_for_shapes(model: ModelProto, input_shape: Sequence[int]) -> ModelProto:
    """Copy a graph so that its shapes can be inferred quickly for one shape of its input.

    The copy differs from the graph in these points:

    - The input for images has the shape.
    - Each large weight is an input of the same name and shape, as shapes do not depend on its
      values. Small constants stay, since shapes may depend on them.
    - Outputs have no shape: the one in the graph may be symbolic, or for another input.
    - Functions of the model are replaced by their nodes.

    Args:
        model: The graph.
        input_shape: The shape that its input for images gets.
    """
    small_model = ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    small_model.functions.extend(model.functions)
    graph = small_model.graph
    graph.name = model.graph.name
    graph.node.extend(model.graph.node)

    for value in GraphIndex(model.graph).image_inputs():
        image_input = graph.input.add()
        image_input.CopyFrom(value)
        for dim, size in zip(image_input.type.tensor_type.shape.dim, input_shape, strict=True):
            dim.dim_value = size
    _copy_weights(model.graph, graph)
    for output in model.graph.output:
        output_without_shape = graph.output.add(name=output.name)
        element_type = output.type.tensor_type.elem_type
        output_without_shape.type.tensor_type.elem_type = element_type

    if small_model.functions:
        return onnx.inliner.inline_local_functions(small_model)
    return small_model


def _copy_weights(source: GraphProto, target: GraphProto) -> None:
    """Copy the small constants of a graph to another one, and declare its large ones as inputs.

    Args:
        source: The graph with all constants.
        target: The graph to add them to.
    """
    input_names = {value.name for value in source.input}
    for tensor in source.initializer:
        is_large = math.prod(tensor.dims) > MAX_SHAPE_SIZE
        if not is_large:
            target.initializer.append(tensor)
        # In old files, a constant is at the same time an input, of which it is the default value.
        if is_large or tensor.name in input_names:
            value = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            target.input.append(value)
    target.sparse_initializer.extend(source.sparse_initializer)


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
            flops = 0
        flops_by_operator[node.op_type] += flops
        uncounted_nodes += _multiplying_nodes_inside(node)
    multiplying_operators = +flops_by_operator  # the sign drops operators with a count of 0
    return Operations(
        flops=flops_by_operator.total(),
        by_operator=dict(multiplying_operators.most_common()),
        input_shape=tuple(sizes),
        uncounted=dict(uncounted_nodes),
    )


def _flops(node: NodeProto, index: GraphIndex) -> int | None:
    """Count the operations of a node: two for each multiplication and its addition.

    Args:
        node: The node.
        index: The graph, with the shapes of its tensors.

    Returns:
        The number of operations. 0 if the node is neither a convolution nor a matrix product; None
        if it may be one of an unknown kind, or a shape is unknown.
    """
    if node.op_type in NOT_COUNTED or node.domain not in KNOWN_DOMAINS:
        return None
    if node.op_type not in MULTIPLYING:
        return 0

    weight_shape = _known_shape(index, node.input[POSITION_OF_WEIGHT[node.op_type]])
    # Each element of the output takes the same number of multiplications. A ConvTranspose goes the
    # other way: it multiplies each element of its input equally often, and adds the products up.
    counted_tensor = node.output[0]
    if node.op_type == "ConvTranspose":
        counted_tensor = node.input[0]
    counted_shape = _known_shape(index, counted_tensor)
    if not weight_shape or not counted_shape:
        return None
    element_count = math.prod(counted_shape)
    return 2 * element_count * _multiplications_per_element(node, weight_shape)


def _multiplications_per_element(node: NodeProto, weight_shape: list[int]) -> int:
    """Count the multiplications for one element of a node's output.

    For a ConvTranspose, they are counted for one element of its input.

    A convolution multiplies once for each element of one filter: with the weight [filters,
    channels, height, width], these are channels * height * width. A matrix product multiplies once
    for each row of its second factor, which is [..., rows, columns]. With `transB` it is stored as
    [columns, rows], and a vector is [rows].

    Args:
        node: A convolution, a ConvTranspose or a matrix product.
        weight_shape: The shape of its weight, or of its second factor.
    """
    is_convolution = node.op_type not in PRODUCTS
    if is_convolution:
        return math.prod(weight_shape[1:])
    is_vector = len(weight_shape) == 1
    is_transposed = bool(attribute(node, "transB", 0))
    if is_vector or is_transposed:
        return weight_shape[-1]
    return weight_shape[-2]


def _known_shape(index: GraphIndex, tensor: str) -> list[int] | None:
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


def _multiplying_nodes_inside(node: NodeProto) -> Counter[str]:
    """Count the convolutions and matrix products in the graphs inside of a node, by operator.

    Such a graph is a branch of an If or the body of a Loop. How often it runs is unknown, so its
    operations cannot be counted.
    """
    counts: Counter[str] = Counter()
    for node_attribute in node.attribute:
        for inner_graph in (node_attribute.g, *node_attribute.graphs):
            for inner_node in inner_graph.node:
                if inner_node.op_type in MULTIPLYING | NOT_COUNTED:
                    counts[inner_node.op_type] += 1
                counts += _multiplying_nodes_inside(inner_node)
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
    """Find out in which of ONNX's forms a network is quantised, from the operators in its graph.

    Args:
        index: The graph.
        multiplying_nodes: Its convolutions and matrix products.

    Returns:
        The form, and how many of the nodes are quantised; None if the network is not quantised.
    """
    operators = {node.op_type for node in index.graph.node}
    integer_count = 0  # nodes that multiply integers
    fully_dequantised_count = 0  # nodes with two factors that a DequantizeLinear computes
    dequantised_count = 0  # nodes with one or two of these
    for node in multiplying_nodes:
        if node.op_type in INTEGER_OPERATORS | DYNAMIC_OPERATORS:
            integer_count += 1
        are_dequantised = _dequantised_factors(index, node)
        if all(are_dequantised):
            fully_dequantised_count += 1
        if any(are_dequantised):
            dequantised_count += 1

    total = len(multiplying_nodes)
    if operators & DYNAMIC_OPERATORS:
        return Quantisation("dynamic", integer_count, total)
    if operators & INTEGER_OPERATORS:
        return Quantisation("QOperator", integer_count, total)
    # A runtime may multiply integers where both factors come from a DequantizeLinear.
    if "QuantizeLinear" in operators:
        return Quantisation("QDQ", fully_dequantised_count, total)
    if "DequantizeLinear" in operators:
        return Quantisation("weights", dequantised_count, total)
    return None


def _dequantised_factors(index: GraphIndex, node: NodeProto) -> list[bool]:
    """Determine which of the two factors of a product are computed by a DequantizeLinear.

    That operator turns stored integers into floats.

    Returns:
        One value for each factor; fewer than two if the node has fewer inputs.
    """
    are_dequantised = []
    for tensor_name in node.input[:2]:
        producer = index.producers.get(tensor_name)
        is_dequantised = producer is not None and producer.op_type == "DequantizeLinear"
        are_dequantised.append(is_dequantised)
    return are_dequantised
