"""What makes a tensor of a head: how its boxes are decoded, and what its scores are.

Exporters and simplifiers rename, reorder and reshape; what a head computes stays. So a tensor is
followed back through everything that only moves its elements to the nodes that make them.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import NodeProto

from detcli.config.values import BoxFormat
from detcli.model.graph import (
    CONVOLUTIONS,
    MAX_STEPS,
    PRODUCTS,
    GraphIndex,
    attribute,
)
from detcli.model.heads import Activation, BoxDecode, Decoded
from detcli.model.heads.channels import DECODE_DEPTH, channel_groups, tensor_before_join

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
ARITHMETIC = frozenset({"Add", "BatchNormalization", "Div", "Mul", "Neg", "Pow", "Sub"})
SEARCH_ENDS = frozenset({"DynamicQuantizeLinear", "LayerNormalization", "Log", "Shape", "TopK"})
"""Operators at which the search for a tensor's source ends."""

MAX_JOINED = 64  # boxes of scales, or of anchors of a cell

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
    for node, name in index.behind_all([tensor], inputs_to_follow):
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
    """Tell by which activation function a tensor of scores was computed.

    Returns:
        None if different elements come from different functions, or from an unknown one.
    """
    simplified_tensor, groups = channel_groups(index, tensor)
    tensors = [name for _, name in groups] or [simplified_tensor]
    activations = set()
    for name in tensors:
        for node in source_nodes(index, name):
            activations.add(_activation_of(index, node))
    return activations.pop() if len(activations) == 1 else None


def _activation_of(index: GraphIndex, node: NodeProto) -> Activation | None:
    """Tell by which activation function a node's output was computed, if that holds scores.

    Limits and square roots are looked through, and a product of sigmoids, such as objectness
    times class score, counts as a sigmoid. None if the function is unknown.
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
            if {score_activation(index, name) for name in factors} == {Activation.SIGMOID}:
                return Activation.SIGMOID
    return Activation.LINEAR if is_linear(index, node) else None


def is_linear(index: GraphIndex, node: NodeProto | None) -> bool:
    """True if a node's output is a linear function of the outputs of layers.

    Layers are convolutions and matrix products. Their outputs may be added to each other, and
    added to or multiplied by constants, but not multiplied by each other.
    """
    nodes_to_check = [node]
    checked_count = 0
    while nodes_to_check:
        current_node = nodes_to_check.pop()
        checked_count += 1
        if current_node is None or checked_count > MAX_STEPS:
            return False
        if layer_ending_at(index, current_node) is not None:
            continue
        if current_node.op_type not in ARITHMETIC - {"Pow"}:
            return False
        inputs = [name for name in current_node.input if is_computed(index, name)]
        is_sum = current_node.op_type in {"Add", "Sub"}
        if not inputs or (len(inputs) > 1 and not is_sum):
            return False
        for name in inputs:
            # An input that no node computes is the image: None ends the search above.
            nodes_to_check.extend(source_nodes(index, name) or [None])
    return True


def layer_ending_at(index: GraphIndex, node: NodeProto) -> NodeProto | None:
    """Find the convolution or matrix product whose output a node gives.

    A quantised layer computes in integers: a Mul with its scale, which depends on the image, and
    an Add of its bias follow it, and count as part of the layer. None for any other node.
    """
    scaling = node
    if node.op_type == "Add":
        terms = [name for name in node.input if is_computed(index, name)]
        if len(terms) == 1:
            scaling = index.producer(terms[0], "Mul") or node
    if scaling.op_type == "Mul":
        for name in scaling.input:
            layer = index.producer(name, *INTEGER_LAYERS)
            if layer is not None:
                return layer
        return None
    return scaling if scaling.op_type in LAYER_OPERATORS else None


def _layers_behind(index: GraphIndex, tensor: str) -> list[NodeProto]:
    """List the convolutions and matrix products that a tensor is computed from, nearest first."""
    nodes = _decode_nodes(index, tensor_before_join(index, tensor))
    return [node for node in nodes if node.op_type in LAYER_OPERATORS]


def nearest_layer_operator(index: GraphIndex, tensor: str) -> str:
    """Name the operator, such as "Conv", of the nearest layer that a tensor is computed from.

    Matrix products that only change the form of boxes are passed over. Returns an empty string if
    the tensor does not come from a layer.
    """
    for layer in _layers_behind(index, tensor):
        if not _is_projection(index, layer):
            return layer.op_type
    return ""


def layer_outputs(index: GraphIndex, tensor: str) -> set[str]:
    """Name the outputs of all convolutions and matrix products that a tensor is computed from."""
    return {node.output[0] for node in _layers_behind(index, tensor)}


def distance_bin_count(index: GraphIndex, tensor: str) -> int | None:
    """Count the bins of the probability distribution that gives each box edge's distance.

    Detectors with a distribution focal loss, such as YOLOv8, predict a Softmax over 16 bins in
    place of each distance from the anchor point to an edge.

    Returns:
        1 if the distances are predicted as plain numbers; None if the count is not clear.
    """
    for node in _decode_nodes(index, tensor_before_join(index, tensor)):
        if node.op_type == "Softmax":
            return softmax_channel_count(index, node)
    return 1


def measures_from_cell_corners(index: GraphIndex, tensor: str) -> bool:
    """True if boxes are decoded from distances to the corners of grid cells, not their centres.

    The distances are subtracted from a constant array of anchor points. The first corner is at 0,
    while the first centre is half a cell further.
    """
    for node in _decode_nodes(index, tensor):
        if node.op_type == "Sub":
            points = index.array(node.input[0])
            if points is not None and points.size > 1 and points.min() == 0:
                return True
    return False


def softmax_channel_count(index: GraphIndex, softmax: NodeProto) -> int | None:
    """Count the probabilities that a Softmax makes add up to 1; None if its axis has no size."""
    axis = attribute(softmax, "axis", -1)
    return index.size(softmax.output[0], axis) or index.size(softmax.input[0], axis)


def _decode_nodes(index: GraphIndex, tensor: str) -> Iterator[NodeProto]:
    """Yield the nodes that a tensor is computed by, nearest first, back to the layers.

    Constants are not followed, and of a Concat whose output is cut again only the inputs that end
    up in the tensor are.
    """

    def inputs_to_follow(node: NodeProto, name: str) -> Iterable[str]:
        if _ends_search(index, node, name):
            return ()
        inputs = list(node.input)
        if node.op_type in {"Slice", "Split"}:
            _, groups = channel_groups(index, name)
            inputs = [group for _, group in groups] or inputs
        return [name for name in inputs if index.constant_tensor(name) is None]

    for node, _ in index.behind_all([tensor], inputs_to_follow):
        yield node


def _ends_search(index: GraphIndex, node: NodeProto, output: str) -> bool:
    """True if a search back from a node's output, for how it was decoded, stops at this node."""
    if node.op_type in LAYER_OPERATORS:
        return not _is_projection(index, node)
    # The first output holds the quantised values, the others their scale and zero point.
    is_quantised = node.op_type == "DynamicQuantizeLinear" and output == node.output[0]
    return node.op_type in SEARCH_ENDS and not is_quantised


def _is_projection(index: GraphIndex, node: NodeProto) -> bool:
    """True if a convolution or matrix product is part of the decoding of boxes, not a layer.

    Such a node takes the mean of a distribution that a Softmax made, or turns centre and size
    into corners.
    """
    source = node
    quantise = index.producer(node.input[0], "DynamicQuantizeLinear")
    if quantise is not None:
        source = quantise
    operators = {maker.op_type for maker in source_nodes(index, source.input[0])}
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


def box_decoding(index: GraphIndex, tensor: str) -> Decoded | None:
    """Tell how a tensor of boxes was decoded: by which method, in which format and unit.

    Returns:
        None if the nodes that compute it are not those of a known method.
    """
    decoded = _method_and_format(index, tensor)
    if decoded is None:
        return None
    return decoded._replace(fractions=_are_fractions(index, tensor))


def _method_and_format(index: GraphIndex, tensor: str, max_joins: int = 2) -> Decoded | None:
    """Tell by which method boxes were decoded and in which format, but not in which unit.

    Goes back through the graph one node at a time, over all inputs at once, to the nearest node
    that shows the method.

    Args:
        index: The graph.
        tensor: The boxes.
        max_joins: How many Concats of separately decoded boxes may follow each other.

    Returns:
        None if no node within `DECODE_DEPTH` shows the method.
    """
    tensors_at_depth = [tensor]
    for _ in range(DECODE_DEPTH):
        tensors_one_deeper: list[str] = []
        for boxes in tensors_at_depth:
            name, groups = channel_groups(index, boxes)
            if [size for size, _ in groups] == [2, 2]:
                (_, centre), (_, size_tensor) = groups
                return _decoding_of_halves(index, centre, size_tensor)
            if len(groups) == 1:
                _, name = groups[0]
            node = index.producer(name)
            if node is None:
                continue
            decoded = _decoding_ending_at(index, node)
            if decoded is not None:
                return decoded
            if converts_to_corners(index, node):
                before = _method_and_format(index, node.input[0], max_joins)
                return None if before is None else before._replace(box_format=BoxFormat.XYXY)
            if node.op_type == "Concat" and len(node.input) > 1:
                return _decoding_shared_by_inputs(index, node, max_joins)
            # Scaling, reshaping and joining boxes that were decoded separately keep the format;
            # any other arithmetic changes it.
            if node.op_type in {"Mul", "Div"}:
                tensors_one_deeper += node.input
            else:
                tensors_one_deeper += moved_inputs(node, name) or []
        tensors_at_depth = [name for name in dict.fromkeys(tensors_one_deeper) if name]
    return None


def _decoding_shared_by_inputs(
    index: GraphIndex, join: NodeProto, max_joins: int
) -> Decoded | None:
    """Tell how the boxes that a Concat joins, as those of several scales, were decoded.

    Returns:
        None if they were decoded in different ways, or more than `max_joins` Concats follow each
        other.
    """
    if not max_joins or len(join.input) > MAX_JOINED:
        return None
    decodes = set()
    for name in join.input:
        if is_computed(index, name):  # Constant boxes only fill up to a fixed number.
            decodes.add(_method_and_format(index, name, max_joins - 1))
    return decodes.pop() if len(decodes) == 1 else None


def _gives_fractions(index: GraphIndex, scaling: NodeProto) -> bool | None:
    """Tell into which unit a Mul or Div by a constant turns the coordinates of boxes.

    Returns:
        True if into fractions of the input's size, False if into pixels, None if neither is clear.
    """
    for name in scaling.input:
        factor = index.array(name)
        if factor is not None:
            return _gives_fractions_by_factor(factor, divides=scaling.op_type == "Div")
    return None


def _gives_fractions_by_factor(factor: npt.NDArray[Any], *, divides: bool) -> bool | None:
    """Tell into which unit a constant factor or divisor turns the coordinates of boxes.

    A factor is the height and width of the input if it is greater than every stride (32); smaller
    factors are strides, which change grid cells to pixels, and tell nothing.

    Args:
        factor: The constant.
        divides: Whether the coordinates are divided by it, not multiplied.

    Returns:
        True if into fractions of the input's size, False if into pixels, None if neither is clear.
    """
    if not factor.size:
        return None
    lowest = float(np.min(factor))
    highest = float(np.max(factor))
    if divides:
        return True if lowest > LARGEST_STRIDE else None
    # An array of more than the four factors of a box's numbers holds a stride for each anchor.
    if lowest > LARGEST_STRIDE and factor.size <= 4:
        return False
    return True if 0 < highest < 1 / LARGEST_STRIDE else None


LARGEST_STRIDE = 32.0  # the largest stride; height and width of an input are larger


def _decoding_ending_at(index: GraphIndex, node: NodeProto) -> Decoded | None:
    """Tell how boxes were decoded from the last node of their decoding; None if it is another."""
    if node.op_type == "Sigmoid":
        return Decoded(_method_of_sigmoid(index, node), BoxFormat.CXCYWH)
    layer = layer_ending_at(index, node)
    if layer is not None and not _is_projection(index, layer):
        return Decoded(BoxDecode.LINEAR, BoxFormat.CXCYWH)
    if node.op_type == "Concat":
        return _decoding_of_coordinates(index, list(node.input))
    return None


def decoding_of_joined_boxes(index: GraphIndex, tensors: list[str]) -> Decoded | None:
    """Tell how boxes were decoded whose four channels come from one or several tensors.

    Args:
        index: The graph.
        tensors: The boxes; or centre and size, or two corners, or four single coordinates.

    Returns:
        None if the nodes that compute them are not those of a known method.
    """
    if len(tensors) == 1:
        decoded = _method_and_format(index, tensors[0])
    else:
        decoded = _decoding_of_coordinates(index, tensors)
    if decoded is None:
        return None
    return decoded._replace(fractions=_are_fractions(index, tensors[0]))


def _method_of_sigmoid(index: GraphIndex, node: NodeProto) -> BoxDecode:
    """Tell what a Sigmoid that gives boxes is applied to.

    Returns:
        SIGMOID for the output of a layer alone, as in DETR; REFINED for its sum with an earlier
        estimate of the boxes, as in Deformable DETR.
    """
    computing_nodes = source_nodes(index, node.input[0])
    if not computing_nodes or not all(is_linear(index, maker) for maker in computing_nodes):
        return BoxDecode.REFINED
    for maker in computing_nodes:
        terms = maker.input if maker.op_type == "Add" else ()
        for name in terms:
            # A bias varies along one axis only. A constant that also varies from query to query
            # is an earlier estimate of the boxes, learnt in training.
            constant = index.array(name)
            if constant is None:
                continue
            varying_axes = [length for length in constant.shape if length > 1]
            if len(varying_axes) > 1:
                return BoxDecode.REFINED
    return BoxDecode.SIGMOID


def _decoding_of_coordinates(index: GraphIndex, names: list[str]) -> Decoded | None:
    """Tell how boxes were decoded whose coordinates are computed apart and then joined.

    Args:
        index: The graph.
        names: Two tensors of two coordinates each, or four tensors of one, in their order.

    Returns:
        None if the operators that compute them are not those of a known method.
    """
    makers_by_tensor = [source_nodes(index, name) for name in names]
    match [_common_operator(nodes) for nodes in makers_by_tensor]:
        # Corners: anchor point - distances, anchor point + distances.
        case ["Sub", "Add"] | ["Sub", "Sub", "Add", "Add"]:
            low = makers_by_tensor[0][0]
            high = makers_by_tensor[len(names) // 2][0]
            method = _method_of_shared_centre(index, low, high) or BoxDecode.DISTANCES
            return Decoded(method, BoxFormat.XYXY)
        # Centre and size of two such corners: (low + high) / 2, high - low.
        case ["Div" | "Mul", "Sub"] | ["Div" | "Mul", "Div" | "Mul", "Sub", "Sub"]:
            halved_operators = set()
            for name in makers_by_tensor[0][0].input:
                halved_operators |= {node.op_type for node in source_nodes(index, name)}
            if "Add" in halved_operators:
                return Decoded(BoxDecode.DISTANCES, BoxFormat.CXCYWH)
            return None
    if len(names) == 2 and all(2 in index.shapes[name][1:] for name in names):
        return _decoding_of_halves(index, names[0], names[1])
    return None


def _common_operator(nodes: list[NodeProto]) -> str:
    """Name the operator that all these nodes have, such as "Add"; empty if they differ."""
    operators = {node.op_type for node in nodes}
    return operators.pop() if len(operators) == 1 else ""


def _decoding_of_halves(index: GraphIndex, centre: str, size: str) -> Decoded | None:
    """Tell how boxes were decoded from tensors of their centres and sizes; None if unknown."""
    method = method_of_centre_and_size(index, centre, size)
    return None if method is None else Decoded(method, BoxFormat.CXCYWH)


def _are_fractions(index: GraphIndex, tensor: str) -> bool | None:
    """Tell in which unit the coordinates of boxes are.

    Goes back through the nodes that scale, move or convert them to the nearest Mul or Div that
    shows the unit.

    Returns:
        True if they are fractions of the input's size, False if pixels, None if no node shows it.
    """
    for _ in range(2 * DECODE_DEPTH):
        node = index.producer(tensor)
        if node is None:
            break
        is_scaling = node.op_type in {"Div", "Mul"}
        if is_scaling:
            unit = _gives_fractions(index, node)
            if unit is not None:
                return unit
        inputs = list(node.input)
        if not is_scaling and not converts_to_corners(index, node):
            inputs = moved_inputs(node, tensor) or []
        computed_inputs = [name for name in inputs if is_computed(index, name)]
        if not computed_inputs:
            break
        tensor = computed_inputs[0]
    return None


def _method_of_shared_centre(
    index: GraphIndex, low: NodeProto, high: NodeProto
) -> BoxDecode | None:
    """Tell how centres and sizes were decoded if corners are computed from these.

    The corners are then centre - size / 2 and centre + size / 2. Corners can also be anchor point
    - one distance and anchor point + another: the two nodes then do not share both inputs.

    Args:
        index: The graph.
        low: The Sub that computes the top left corner.
        high: The Add that computes the bottom right corner.

    Returns:
        None if the corners are not computed from centres and sizes.
    """
    centre, half_size = low.input[:2]
    added_centre, added_half_size = high.input[:2]
    if not _hold_same_elements(index, centre, added_centre):
        # The terms of a sum may come in either order.
        added_half_size, added_centre = high.input[:2]
    if not _hold_same_elements(index, centre, added_centre) or not _hold_same_elements(
        index, half_size, added_half_size
    ):
        return None
    # Look through the products that halve the size.
    size = half_size
    product = index.producer(size, "Mul", "Div")
    while product is not None:
        factors = [name for name in product.input if index.array(name) is None]
        if len(factors) != 1:
            break
        size = factors[0]
        product = index.producer(size, "Mul", "Div")
    centre = tensor_before_join(index, centre)
    centre_makers = source_nodes(index, centre)
    if _common_operator(centre_makers) == "Sigmoid":
        return _method_of_sigmoid(index, centre_makers[0])
    return method_of_centre_and_size(index, centre, tensor_before_join(index, size))


def _hold_same_elements(index: GraphIndex, tensor: str, other: str, depth: int = 8) -> bool:
    """True if two tensors always have the same elements: exporters may compute one twice.

    They do if equal operators compute both from inputs that are the same in turn, to a depth of
    `depth` nodes, or if both are equal constants.
    """
    array = index.array(tensor)
    if array is not None:
        other_array = index.array(other)
        return other_array is not None and np.array_equal(array, other_array)
    node = index.producer(tensor)
    other_node = index.producer(other)
    if tensor == other or node is None or other_node is None:
        return tensor == other
    if depth == 0 or len(node.output) > 1 or len(node.input) != len(other_node.input):
        return False
    if node.op_type != other_node.op_type:
        return False
    attributes = sorted(str(entry) for entry in node.attribute)
    if attributes != sorted(str(entry) for entry in other_node.attribute):
        return False
    pairs = zip(node.input, other_node.input, strict=True)
    return all(
        _hold_same_elements(index, name, other_name, depth - 1) for name, other_name in pairs
    )


def method_of_centre_and_size(index: GraphIndex, centre: str, size: str) -> BoxDecode | None:
    """Tell how boxes were decoded from two tensors that may be their centres and sizes.

    Returns:
        GRID or EXPONENTIAL; None if the operators fit neither, or the tensors are two corners.
    """
    if {node.op_type for node in source_nodes(index, centre)} & {"Clip", "Max", "Min"}:
        return None  # Only corners are clipped to the edges of the image.
    centre_operators = {node.op_type for node in _decode_nodes(index, centre)}
    size_operators = {node.op_type for node in _decode_nodes(index, size)}
    if "Exp" in size_operators:
        return BoxDecode.GRID if "Sigmoid" in centre_operators else BoxDecode.EXPONENTIAL
    are_sigmoids = "Sigmoid" in centre_operators and "Sigmoid" in size_operators
    if are_sigmoids and "Softmax" not in centre_operators:
        return BoxDecode.GRID
    return None
