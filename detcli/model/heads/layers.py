"""Follows a tensor of a graph back to the nodes and layers that compute it, and to its activation.

Exporters and simplifiers rename, reorder and reshape; what a head computes stays. So a tensor is
followed back through everything that only moves its elements to the nodes that compute these. A
layer is a node with learnt weights: a convolution or a matrix product.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
from onnx import NodeProto

from detcli.model.graph import (
    CONVOLUTIONS,
    MAX_STEPS,
    PRODUCTS,
    GraphIndex,
    attribute,
)
from detcli.model.heads import Activation
from detcli.model.heads.channels import channel_groups, tensor_before_join

MOVES = {
    **dict.fromkeys(
        "Expand Flatten Gather GatherElements GatherND Pad Reshape SequenceAt Slice Split "
        "SplitToSequence Squeeze Tile Transpose Unsqueeze".split(),
        (0,),
    ),
    "ScatterND": (2,),
    "TopK": (0,),
    "Where": (1, 2),
}
"""Operators that only move elements, and the inputs that they take them from."""

LAYER_OPERATORS = frozenset({*CONVOLUTIONS, *PRODUCTS})
CONSTANTS = frozenset({"Constant", "ConstantOfShape"})
INTEGER_LAYERS = frozenset({"ConvInteger", "MatMulInteger"})
LINEAR_ARITHMETIC = frozenset({"Add", "BatchNormalization", "Div", "Mul", "Neg", "Sub"})
SEARCH_ENDS = frozenset({"DynamicQuantizeLinear", "LayerNormalization", "Log", "Shape", "TopK"})
"""Operators at which the search for a tensor's source ends."""

# From centre and size to two corners, as DeepStream-Yolo multiplies it.
CENTRE_SIZE_TO_CORNERS = np.array(
    [[1, 0, 1, 0], [0, 1, 0, 1], [-0.5, 0, 0.5, 0], [0, -0.5, 0, 0.5]]
)


def source_nodes(index: GraphIndex, tensor: str) -> list[NodeProto]:
    """List the nodes that compute the elements of a tensor.

    Nodes that only move elements, such as Reshape, Transpose or Concat, are passed through to
    their inputs: of `Reshape(Concat(Sigmoid(x), Exp(y)))` these are the Sigmoid and the Exp.
    """

    def inputs_to_follow(node: NodeProto, name: str) -> Iterable[str]:
        return moved_inputs(node, name) or ()

    computing_nodes = []
    for node, name in index.ancestors([tensor], inputs_to_follow):
        if moved_inputs(node, name) is None:
            computing_nodes.append(node)
    return computing_nodes


def is_computed(index: GraphIndex, tensor: str) -> bool:
    """True if some of a tensor's elements are not constants."""
    return any(node.op_type not in CONSTANTS for node in source_nodes(index, tensor))


def moved_inputs(node: NodeProto, output: str) -> list[str] | None:
    """List the inputs of a node whose elements appear, unchanged, in one of its outputs.

    Returns:
        The inputs, for a node such as Reshape or Concat that only moves elements; None for a node
        that computes new ones.
    """
    if node.op_type == "Concat":
        return list(node.input)
    if node.op_type == "TopK" and output in node.output[1:]:
        return None  # Its second output holds indices, which are not elements of the input.
    input_positions = MOVES.get(node.op_type)
    if input_positions is None:
        return None
    return [node.input[position] for position in input_positions if position < len(node.input)]


def score_activation(index: GraphIndex, tensor: str) -> Activation | None:
    """Determine the activation function that a tensor of class scores was computed with.

    If a Slice or Split cuts the scores from several joined tensors, those that end up in them
    decide.

    Returns:
        SIGMOID or SOFTMAX, or LINEAR for the bare output of a layer; None if the function is
        unknown, or not the same for all elements.
    """
    simplified_tensor, groups = channel_groups(index, tensor)
    joined_tensors = [name for _, name in groups]
    activations = set()
    for name in joined_tensors or [simplified_tensor]:
        for node in source_nodes(index, name):
            activations.add(_activation_of_node(index, node))
    if len(activations) != 1:
        return None
    return activations.pop()


def _activation_of_node(index: GraphIndex, node: NodeProto) -> Activation | None:
    """Determine the activation function of a node's output, if it holds scores.

    Where the node only limits scores or takes their square root, the function is that of its input.
    A product of sigmoids, such as objectness times class score, counts as a sigmoid.

    Returns:
        LINEAR if the output is a linear function of what layers output, so that there is no
        activation function; None if the function is unknown.
    """
    match node.op_type:
        case "Sigmoid" | "HardSigmoid":
            return Activation.SIGMOID
        case "Softmax":
            return Activation.SOFTMAX
        case "Clip" | "Max" | "Min" | "ReduceMax" | "Sqrt":
            return score_activation(index, node.input[0])
        case "Mul":
            factors = [name for name in node.input if index.constant_tensor(name) is None]
            activations_of_factors = {score_activation(index, name) for name in factors}
            if activations_of_factors == {Activation.SIGMOID}:
                return Activation.SIGMOID

    # Any other node, or a Mul of other factors, such as a layer's output and a constant.
    if is_linear(index, node):
        return Activation.LINEAR
    return None


def is_linear(index: GraphIndex, node: NodeProto | None) -> bool:
    """True if a node's output is a linear function of the outputs of layers.

    Layers are convolutions and matrix products. Their outputs may be added to each other, and
    added to or multiplied by constants, but not multiplied by each other. Without a node, as for
    an input of the graph, the answer is False.
    """
    nodes_to_check = [node]
    checked_count = 0
    while nodes_to_check:
        current_node = nodes_to_check.pop()
        checked_count += 1
        if current_node is None or checked_count > MAX_STEPS:
            return False
        is_end_of_layer = layer_ending_at(index, current_node) is not None
        if is_end_of_layer:
            continue
        linear_inputs = _linear_inputs(index, current_node)
        if not linear_inputs:
            return False
        for name in linear_inputs:
            nodes_of_input = source_nodes(index, name)
            if not nodes_of_input:
                return False  # It is an input of the graph, which no layer computes.
            nodes_to_check.extend(nodes_of_input)
    return True


def _linear_inputs(index: GraphIndex, node: NodeProto) -> list[str]:
    """List the computed inputs of a node, if its output is a linear function of them.

    Returns:
        An empty list if it is not: if the operator is not linear, if the node multiplies or
        divides two computed tensors, or if all its inputs are constants.
    """
    if node.op_type not in LINEAR_ARITHMETIC:
        return []
    computed_inputs = [name for name in node.input if is_computed(index, name)]
    is_sum = node.op_type in {"Add", "Sub"}
    if len(computed_inputs) > 1 and not is_sum:
        return []
    return computed_inputs


def layer_ending_at(index: GraphIndex, node: NodeProto) -> NodeProto | None:
    """Find the layer, a convolution or matrix product, whose output a node computes.

    A plain layer is the node itself. A quantised layer computes in integers: a Mul with its scale,
    which depends on the image, and perhaps an Add of its bias follow it, and compute its output.

    Returns:
        The convolution or matrix product; None for any other node.
    """
    if node.op_type in LAYER_OPERATORS:
        return node
    scaling = node
    if node.op_type == "Add":
        terms = [name for name in node.input if is_computed(index, name)]
        if len(terms) == 1:  # the other one is the bias
            scaling = index.producer(terms[0], "Mul") or node
    if scaling.op_type != "Mul":
        return None
    for name in scaling.input:
        integer_layer = index.producer(name, *INTEGER_LAYERS)
        if integer_layer is not None:
            return integer_layer
    return None


def _layers_before(index: GraphIndex, tensor: str) -> list[NodeProto]:
    """List the convolutions and matrix products that a tensor is computed from, nearest first."""
    nodes = nodes_back_to_layers(index, tensor_before_join(index, tensor))
    return [node for node in nodes if node.op_type in LAYER_OPERATORS]


def nearest_layer_operator(index: GraphIndex, tensor: str) -> str:
    """Name the operator, such as "Conv", of the nearest layer that a tensor is computed from.

    Matrix products that only change the form of boxes are passed over. Returns an empty string if
    the tensor does not come from a layer.
    """
    for layer in _layers_before(index, tensor):
        if not is_part_of_decoding(index, layer):
            return layer.op_type
    return ""


def layer_outputs(index: GraphIndex, tensor: str) -> set[str]:
    """Name the outputs of all convolutions and matrix products that a tensor is computed from."""
    return {node.output[0] for node in _layers_before(index, tensor)}


def softmax_channel_count(index: GraphIndex, softmax: NodeProto) -> int | None:
    """Count the probabilities that a Softmax makes add up to 1; None if its axis has no size."""
    axis = attribute(softmax, "axis", -1)
    return index.size(softmax.output[0], axis) or index.size(softmax.input[0], axis)


def nodes_back_to_layers(index: GraphIndex, tensor: str) -> Iterator[NodeProto]:
    """Yield the nodes that compute a tensor from the outputs of layers, and these layers.

    The nearest to the tensor comes first. The search ends at the layers, which are convolutions and
    matrix products, and at constants.
    """

    def inputs_to_follow(node: NodeProto, name: str) -> Iterable[str]:
        if _ends_search(index, node, name):
            return ()
        inputs = list(node.input)
        if node.op_type in {"Slice", "Split"}:
            # A Concat may have joined boxes and scores before the cut. Then the search goes on from
            # those inputs of the Concat that have channels in the cut, and not from the others.
            _, groups = channel_groups(index, name)
            inputs = [joined_tensor for _, joined_tensor in groups] or inputs
        return [name for name in inputs if index.constant_tensor(name) is None]

    for node, _ in index.ancestors([tensor], inputs_to_follow):
        yield node


def _ends_search(index: GraphIndex, node: NodeProto, output: str) -> bool:
    """True if the search back from a tensor to its layers stops at this node.

    Args:
        index: The graph.
        node: The node.
        output: Its output from which the search arrives.
    """
    if node.op_type in LAYER_OPERATORS:
        return not is_part_of_decoding(index, node)
    if node.op_type == "DynamicQuantizeLinear" and output == node.output[0]:
        return False  # The values go on; scale and zero point, the other outputs, do not.
    return node.op_type in SEARCH_ENDS


def biases_of_layer(index: GraphIndex, tensor: str) -> npt.NDArray[np.floating] | None:
    """Return the biases that the last layer before a tensor adds, one for each of its channels.

    Returns:
        None if they are not found, or are not known as numbers, as in some quantised files; an
        empty array if the last layer is a matrix product that nothing is added to.
    """
    nodes = source_nodes(index, tensor)
    if len(nodes) != 1:
        return None
    last_node = nodes[0]
    if last_node.op_type == "MatMul":
        return np.zeros(0, np.float32)
    if last_node.op_type not in {"Add", "Gemm"}:
        return None
    for name in last_node.input:
        constant = index.array(index.computed_as(name))  # also where a Cast or Identity follows it
        if constant is None or not np.issubdtype(constant.dtype, np.floating):
            continue
        # Weights vary along two axes, biases along one only.
        are_weights = constant.ndim > 1 and constant.size > max(constant.shape)
        if not are_weights:
            return constant
    return None


def is_part_of_decoding(index: GraphIndex, node: NodeProto) -> bool:
    """True if a convolution or matrix product is part of the decoding of boxes, not a layer.

    The weights of a layer are learnt. In the decoding, they are fixed numbers: a product with 0, 1,
    2, ... takes the mean of a distribution that a Softmax computes, and another one turns centre
    and size into corners.
    """
    source = node.input[0]
    # In a quantised graph, the output of the Softmax is turned into integers first.
    quantisation = index.producer(source, "DynamicQuantizeLinear")
    if quantisation is not None:
        source = quantisation.input[0]
    operators = {source_node.op_type for source_node in source_nodes(index, source)}
    return "Softmax" in operators or converts_to_corners(index, node)


def converts_to_corners(index: GraphIndex, node: NodeProto) -> bool:
    """True if a node is the matrix product that turns centre and size of boxes into corners."""
    if node.op_type != "MatMul":
        return False
    matrix = index.array(node.input[1])
    return (
        matrix is not None
        and matrix.shape == (4, 4)
        and np.allclose(matrix, CENTRE_SIZE_TO_CORNERS)
    )
