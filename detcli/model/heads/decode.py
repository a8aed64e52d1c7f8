"""Recognises how boxes are decoded: by which method, in which format and in which unit.

What the layers of a detector predict becomes boxes by the arithmetic of its family. Exporters write
it in many ways, so the nodes are followed back from the boxes to those that show the method.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from onnx import NodeProto

from detcli.config.values import BoxFormat
from detcli.model.graph import GraphIndex
from detcli.model.heads import BOX_COORDINATES, BoxDecode, Decoded
from detcli.model.heads.channels import DECODE_DEPTH, channel_groups, tensor_before_join
from detcli.model.heads.layers import (
    converts_to_corners,
    is_computed,
    is_linear,
    is_part_of_decoding,
    layer_ending_at,
    moved_inputs,
    nodes_back_to_layers,
    softmax_channel_count,
    source_nodes,
)

MAX_CONCAT_INPUTS = 64  # boxes of scales, or of anchors of a cell

MAX_CONCATS = 2  # of boxes that are decoded separately, one Concat after the other

UNIT_DEPTH = 2 * DECODE_DEPTH  # nodes that scale, move or convert boxes after their decoding

LARGEST_STRIDE = 32.0  # pixels between cells; height and width of an input are larger


class DecodingStep(NamedTuple):
    """What the node that computes boxes shows about how they were decoded."""

    is_last: bool  # whether the search ends with it
    decoded: Decoded | None = None  # the answer, if the search ends; None if it stays unknown
    inputs: tuple[str, ...] = ()  # the tensors to go on with, if it does not end


def distance_bin_count(index: GraphIndex, tensor: str) -> int | None:
    """Count the bins of the probability distribution for the distance of each edge of a box.

    Detectors with a distribution focal loss, such as YOLOv8, predict a Softmax over 16 bins in
    place of each distance from the anchor point to an edge.

    Args:
        index: The graph.
        tensor: The boxes.

    Returns:
        1 if the distances are predicted as plain numbers; None if the count is not clear.
    """
    for node in nodes_back_to_layers(index, tensor_before_join(index, tensor)):
        if node.op_type == "Softmax":
            return softmax_channel_count(index, node)
    return 1


def measures_from_cell_corners(index: GraphIndex, tensor: str) -> bool:
    """True if boxes are decoded from distances to the corners of grid cells, not their centres.

    The distances are subtracted from a constant array of anchor points. The first corner is at 0,
    while the first centre is half a cell further.
    """
    for node in nodes_back_to_layers(index, tensor):
        if node.op_type == "Sub":
            points = index.array(node.input[0])
            if points is not None and points.size > 1 and points.min() == 0:
                return True
    return False


def box_decoding(index: GraphIndex, tensor: str) -> Decoded | None:
    """Determine how a tensor of boxes was decoded: by which method, in which format and unit.

    Returns:
        None if the nodes that compute it are not those of a known method.
    """
    decoded = _method_and_format(index, tensor)
    if decoded is None:
        return None
    return decoded._replace(fractions=_tell_if_fractions(index, tensor))


def _method_and_format(
    index: GraphIndex, tensor: str, max_concats: int = MAX_CONCATS
) -> Decoded | None:
    """Determine by which method boxes were decoded and in which format, but not in which unit.

    The search goes back from the boxes to the nearest node that shows the method. All nodes that
    are one step away from the boxes are looked at first, then all that are two steps away, and so
    on.

    Args:
        index: The graph.
        tensor: The boxes.
        max_concats: How many Concats of separately decoded boxes may follow each other.

    Returns:
        None if no node within `DECODE_DEPTH` shows the method.
    """
    tensors_to_check = [tensor]
    for _ in range(DECODE_DEPTH):
        inputs: list[str] = []
        for tensor_with_boxes in tensors_to_check:
            step = _decoding_step(index, tensor_with_boxes, max_concats)
            if step.is_last:
                return step.decoded
            inputs += step.inputs
        distinct_inputs = dict.fromkeys(inputs)  # in their order
        tensors_to_check = [name for name in distinct_inputs if name]
    return None


def _decoding_step(index: GraphIndex, boxes: str, max_concats: int) -> DecodingStep:
    """Look at the node that computes boxes for what it shows about how they were decoded.

    Args:
        index: The graph.
        boxes: The tensor of the boxes.
        max_concats: How many Concats of separately decoded boxes may still follow each other.

    Returns:
        The last step of the search if the node decodes the boxes, or joins decoded boxes.
        Otherwise a step with the inputs that hold the same boxes in a different unit or order, or
        without any if the node computes them in an unknown way.
    """
    # If the boxes are cut out of what a Concat joins, only the inputs that the cut takes matter.
    uncut_boxes, joined_groups = channel_groups(index, boxes)
    channel_counts = [channel_count for channel_count, _ in joined_groups]
    are_centres_and_sizes = channel_counts == [2, 2]
    if are_centres_and_sizes:
        (_, centres), (_, sizes) = joined_groups
        decoded = _decoding_of_halves(index, centres, sizes)
        return DecodingStep(is_last=True, decoded=decoded)
    if len(joined_groups) == 1:
        _, uncut_boxes = joined_groups[0]

    node = index.producer(uncut_boxes)
    if node is None:
        return DecodingStep(is_last=False)
    last_step = _last_decoding_step(index, node, max_concats)
    if last_step is not None:
        return last_step

    # Scaling and moving keep the format of boxes, so the search goes on with the inputs of such a
    # node. Any other arithmetic changes the format.
    if node.op_type in {"Mul", "Div"}:
        return DecodingStep(is_last=False, inputs=tuple(node.input))
    inputs_with_boxes = moved_inputs(node, uncut_boxes) or []
    return DecodingStep(is_last=False, inputs=tuple(inputs_with_boxes))


def _last_decoding_step(
    index: GraphIndex, node: NodeProto, max_concats: int
) -> DecodingStep | None:
    """Read a node that decodes boxes, converts them to corners or joins several tensors of them.

    Args:
        index: The graph.
        node: The node that computes the boxes.
        max_concats: How many Concats of separately decoded boxes may still follow each other.

    Returns:
        The step that ends the search for the method; None for any other node.
    """
    decoded = _decoding_ending_at(index, node)
    if decoded is not None:
        return DecodingStep(is_last=True, decoded=decoded)
    if converts_to_corners(index, node):
        decoded = _decoding_before_corners(index, node, max_concats)
        return DecodingStep(is_last=True, decoded=decoded)
    if node.op_type == "Concat" and len(node.input) > 1:
        decoded = _decoding_shared_by_inputs(index, node, max_concats)
        return DecodingStep(is_last=True, decoded=decoded)
    return None


def _decoding_before_corners(
    index: GraphIndex, conversion: NodeProto, max_concats: int
) -> Decoded | None:
    """Determine how boxes were decoded before a node converts centre and size to corners."""
    decoded = _method_and_format(index, conversion.input[0], max_concats)
    if decoded is None:
        return None
    return decoded._replace(box_format=BoxFormat.XYXY)


def _decoding_shared_by_inputs(
    index: GraphIndex, concat: NodeProto, max_concats: int
) -> Decoded | None:
    """Determine how a Concat's inputs were decoded, if each holds boxes, such as those of a scale.

    Args:
        index: The graph.
        concat: The Concat.
        max_concats: How many Concats may follow each other, this one included. An input may itself
            be a Concat, as where the anchors of a cell are joined first and then the scales.

    Returns:
        What all inputs have in common. None if they were decoded in different ways, if the way is
        not known, or if there are too many Concats or inputs.
    """
    if max_concats == 0 or len(concat.input) > MAX_CONCAT_INPUTS:
        return None
    decodings = set()
    for name in concat.input:
        # Boxes that are constants only fill up to a fixed number.
        if is_computed(index, name):
            decodings.add(_method_and_format(index, name, max_concats - 1))
    if len(decodings) != 1:
        return None
    return decodings.pop()


def _tell_if_scaled_to_fractions(index: GraphIndex, scaling: NodeProto) -> bool | None:
    """Return whether a Mul or Div by a constant gives coordinates as fractions or in pixels.

    Returns:
        True for fractions of the input's size, False for pixels, None if neither is clear.
    """
    for name in scaling.input:
        factor = index.array(name)
        if factor is not None:
            return _tell_if_factor_gives_fractions(factor, divides=scaling.op_type == "Div")
    return None


def _tell_if_factor_gives_fractions(factor: npt.NDArray[Any], *, divides: bool) -> bool | None:
    """Return whether a constant factor or divisor gives coordinates as fractions or in pixels.

    Pixels become fractions if they are divided by the height and width of the input, or multiplied
    by the inverse, such as 1/640. Fractions become pixels if they are multiplied by height and
    width. These are greater than every stride between grid cells (32). A multiplication by strides,
    from cells to pixels, shows neither.

    Args:
        factor: The constant: one number, one for each coordinate, or one for each anchor.
        divides: Whether the coordinates are divided by it, not multiplied.

    Returns:
        True for fractions of the input's size, False for pixels, None if neither is clear.
    """
    if not factor.size:
        return None
    lowest = float(np.min(factor))
    highest = float(np.max(factor))
    is_input_size = lowest > LARGEST_STRIDE
    is_inverse_of_input_size = 0 < highest < 1 / LARGEST_STRIDE

    if divides:
        return True if is_input_size else None
    if is_inverse_of_input_size:
        return True
    # A box has four coordinates, so a longer array does not hold height and width, but the strides
    # of all anchors.
    if is_input_size and factor.size <= BOX_COORDINATES:
        return False
    return None


def _decoding_ending_at(index: GraphIndex, node: NodeProto) -> Decoded | None:
    """Determine how boxes were decoded, if a node is the last step of their decoding.

    That is a Sigmoid, a Concat of coordinates, or a layer, whose output is not decoded at all.

    Returns:
        None for any other node, such as one that scales decoded boxes.
    """
    if node.op_type == "Sigmoid":
        return Decoded(_method_of_sigmoid(index, node), BoxFormat.CXCYWH)

    # Some matrix products and convolutions have constants of the method as their weights. They do
    # not predict boxes, but belong to the decoding.
    layer = layer_ending_at(index, node)
    if layer is not None and not is_part_of_decoding(index, layer):
        return Decoded(BoxDecode.LINEAR, BoxFormat.CXCYWH)
    if node.op_type == "Concat":
        return _decoding_of_coordinates(index, list(node.input))
    return None


def decoding_of_joined_boxes(index: GraphIndex, tensors: list[str]) -> Decoded | None:
    """Determine from the tensors that a head joins into four channels how boxes were decoded.

    Args:
        index: The graph.
        tensors: The boxes; or centre and size, or two corners, or four separate coordinates.

    Returns:
        The method, the format and, if a node shows it, the unit: fractions of the input's size or
        pixels. None if the nodes that compute the tensors are not those of a known method.
    """
    if len(tensors) == 1:
        decoded = _method_and_format(index, tensors[0])
    else:
        decoded = _decoding_of_coordinates(index, tensors)
    if decoded is None:
        return None

    are_fractions = _tell_if_fractions(index, tensors[0])  # all coordinates have the same unit
    return decoded._replace(fractions=are_fractions)


def _method_of_sigmoid(index: GraphIndex, sigmoid: NodeProto) -> BoxDecode:
    """Determine if boxes that a Sigmoid outputs are refined from an earlier estimate of them.

    Returns:
        SIGMOID if it is applied to the output of a layer alone, as in DETR; REFINED if the output
        is added to an earlier estimate, as in Deformable DETR. Also REFINED if a node other than a
        layer, or none, computes what it is applied to.
    """
    nodes = source_nodes(index, sigmoid.input[0])
    if not nodes or not all(is_linear(index, node) for node in nodes):
        return BoxDecode.REFINED

    # A sum with an estimate that is a constant is linear as well.
    for node in nodes:
        if node.op_type == "Add" and any(_is_earlier_estimate(index, term) for term in node.input):
            return BoxDecode.REFINED
    return BoxDecode.SIGMOID


def _is_earlier_estimate(index: GraphIndex, term: str) -> bool:
    """True if a constant that is added to a layer's output is an earlier estimate of the boxes.

    A bias varies along one axis only. An estimate, which is learnt in training, also varies from
    query to query. False for a tensor that is not a constant.
    """
    constant = index.array(term)
    if constant is None:
        return False
    varying_axes = [length for length in constant.shape if length > 1]
    return len(varying_axes) > 1


def _decoding_of_coordinates(index: GraphIndex, tensors: list[str]) -> Decoded | None:
    """Determine how boxes were decoded, if their coordinates are computed apart and then joined.

    The operators that compute the coordinates show it. For example, if a Sub computes x1 and y1 and
    an Add x2 and y2, a distance was subtracted from and another one added to an anchor point.

    Args:
        index: The graph.
        tensors: Two tensors of two coordinates each, or four tensors of one, in their order.

    Returns:
        None if the operators are not those of a known method.
    """
    nodes_of_tensors = [source_nodes(index, name) for name in tensors]
    operators = [_common_operator(nodes) for nodes in nodes_of_tensors]
    match operators:
        # Corners: point - distances, point + distances. The point is that of an anchor, unless it
        # is the centre of a box and the distances are half of its size.
        case ["Sub", "Add"] | ["Sub", "Sub", "Add", "Add"]:
            nodes_of_first_corner = nodes_of_tensors[0]
            second_corner = len(tensors) // 2  # x2 is tensor 2 of four, the corner tensor 1 of two
            nodes_of_second_corner = nodes_of_tensors[second_corner]
            method = _method_before_corners(
                index,
                subtraction=nodes_of_first_corner[0],
                addition=nodes_of_second_corner[0],
            )
            return Decoded(method or BoxDecode.DISTANCES, BoxFormat.XYXY)
        # Centre and size of two such corners: (low + high) / 2, high - low.
        case ["Div" | "Mul", "Sub"] | ["Div" | "Mul", "Div" | "Mul", "Sub", "Sub"]:
            scaling = nodes_of_tensors[0][0]
            if _scales_sum(index, scaling):
                return Decoded(BoxDecode.DISTANCES, BoxFormat.CXCYWH)
            return None

    if len(tensors) != 2:
        return None
    # Any other two tensors may be centre and size, if both have two channels: an axis of length 2
    # after the batch.
    have_two_channels = all(2 in index.shapes[name][1:] for name in tensors)
    if not have_two_channels:
        return None
    centre, size = tensors
    return _decoding_of_halves(index, centre, size)


def _scales_sum(index: GraphIndex, scaling: NodeProto) -> bool:
    """True if a Mul or Div scales the result of an Add, as the mean of two corners does."""
    operators = set()
    for name in scaling.input:
        operators |= {node.op_type for node in source_nodes(index, name)}
    return "Add" in operators


def _common_operator(nodes: list[NodeProto]) -> str:
    """Name the operator that all these nodes have, such as "Add"; empty if they differ."""
    operators = {node.op_type for node in nodes}
    return operators.pop() if len(operators) == 1 else ""


def _decoding_of_halves(index: GraphIndex, centre: str, size: str) -> Decoded | None:
    """Determine how boxes were decoded from tensors of their centres and sizes; None if unknown."""
    method = method_of_centre_and_size(index, centre, size)
    return None if method is None else Decoded(method, BoxFormat.CXCYWH)


def _tell_if_fractions(index: GraphIndex, boxes: str) -> bool | None:
    """Return whether the coordinates of boxes are fractions of the input's size or pixels.

    The search goes back through the nodes that scale, move or convert the boxes, to the nearest Mul
    or Div that shows the unit.

    Returns:
        True if they are fractions of the input's size, False if pixels, None if no node shows it.
    """
    tensor = boxes
    for _ in range(UNIT_DEPTH):
        node = index.producer(tensor)
        if node is None:
            return None
        if node.op_type in {"Div", "Mul"}:
            are_fractions = _tell_if_scaled_to_fractions(index, node)
            if are_fractions is not None:
                return are_fractions
        source = _input_with_same_boxes(index, node, tensor)
        if source is None:
            return None
        tensor = source
    return None


def _input_with_same_boxes(index: GraphIndex, node: NodeProto, output: str) -> str | None:
    """Find the input of a node that holds the same boxes as its output, perhaps in different units.

    Args:
        index: The graph.
        node: The node.
        output: Its output that holds boxes.

    Returns:
        The first input that is not a constant; None if there is none, or if the node does more
        than scale or move the boxes, or convert them to corners.
    """
    is_scaling = node.op_type in {"Div", "Mul"}
    if is_scaling or converts_to_corners(index, node):
        inputs: list[str] = list(node.input)
    else:
        inputs = moved_inputs(node, output) or []
    for name in inputs:
        if is_computed(index, name):
            return name
    return None


def _method_before_corners(
    index: GraphIndex, *, subtraction: NodeProto, addition: NodeProto
) -> BoxDecode | None:
    """Determine how centre and size of boxes were decoded, if the corners are computed from these.

    The corners are then centre - size / 2 and centre + size / 2: both nodes read the same two
    tensors. Otherwise the corners are an anchor point - one distance and the point + another one.

    Some exporters join centre and size to one tensor before that and cut it apart again, which is
    undone here.

    Args:
        index: The graph.
        subtraction: The Sub that computes the top left corner.
        addition: The Add that computes the bottom right corner.

    Returns:
        None if the corners are not computed from centres and sizes.
    """
    if not _share_both_inputs(index, subtraction, addition):
        return None
    minuend, subtrahend = subtraction.input[:2]
    centre = tensor_before_join(index, minuend)
    size = tensor_before_join(index, _before_halving(index, subtrahend))

    nodes_of_centre = source_nodes(index, centre)
    if _common_operator(nodes_of_centre) == "Sigmoid":
        return _method_of_sigmoid(index, nodes_of_centre[0])
    return method_of_centre_and_size(index, centre, size)


def _share_both_inputs(index: GraphIndex, subtraction: NodeProto, addition: NodeProto) -> bool:
    """True if a Sub and an Add have the same two inputs; the Add may have them in either order."""
    minuend, subtrahend = subtraction.input[:2]
    first_term, second_term = addition.input[:2]
    other_term = second_term
    if not _hold_same_elements(index, minuend, first_term):
        if not _hold_same_elements(index, minuend, second_term):
            return False
        other_term = first_term
    return _hold_same_elements(index, subtrahend, other_term)


def _before_halving(index: GraphIndex, half_size: str) -> str:
    """Go back from half sizes of boxes through all products with constants, such as 0.5."""
    size = half_size
    product = index.producer(size, "Mul", "Div")
    while product is not None:
        factors = [name for name in product.input if index.array(name) is None]
        if len(factors) != 1:
            break
        size = factors[0]
        product = index.producer(size, "Mul", "Div")
    return size


def _hold_same_elements(index: GraphIndex, tensor: str, other: str, depth: int = 8) -> bool:
    """True if two tensors always have the same elements: exporters may compute one twice.

    They do if equal operators compute both from inputs that are the same in turn, or if both are
    equal constants.

    Args:
        index: The graph.
        tensor: One tensor.
        other: The other one.
        depth: How many nodes to look back; tensors that are only equal further back count as
            different.
    """
    array = index.array(tensor)
    if array is not None:
        other_array = index.array(other)
        return other_array is not None and np.array_equal(array, other_array)
    if tensor == other:
        return True
    node = index.producer(tensor)
    other_node = index.producer(other)
    if node is None or other_node is None or depth == 0:
        return False
    if not _have_same_operation(node, other_node):
        return False
    return all(
        _hold_same_elements(index, name, other_name, depth - 1)
        for name, other_name in zip(node.input, other_node.input, strict=True)
    )


def _have_same_operation(node: NodeProto, other: NodeProto) -> bool:
    """True if two nodes would compute the same from the same inputs, and have just one output."""
    if node.op_type != other.op_type:
        return False
    if len(node.output) > 1 or len(node.input) != len(other.input):
        return False
    attributes = sorted(str(entry) for entry in node.attribute)
    other_attributes = sorted(str(entry) for entry in other.attribute)
    return attributes == other_attributes


def method_of_centre_and_size(index: GraphIndex, centre: str, size: str) -> BoxDecode | None:
    """Determine how boxes were decoded from two tensors that may be their centres and sizes.

    The operators between these and the layers show it: an exponential gives the size in
    EXPONENTIAL, as in SSD or YOLOX, and sigmoids give the centre in GRID, as in YOLOv5.

    Returns:
        GRID or EXPONENTIAL; None if the operators match neither, or the tensors are two corners.
    """
    last_operators = {node.op_type for node in source_nodes(index, centre)}
    if last_operators & {"Clip", "Max", "Min"}:
        return None  # Only corners are clipped to the edges of the image.

    centre_operators = {node.op_type for node in nodes_back_to_layers(index, centre)}
    size_operators = {node.op_type for node in nodes_back_to_layers(index, size)}
    has_sigmoid_centre = "Sigmoid" in centre_operators
    if "Exp" in size_operators:
        # YOLOv3 and v4 have a sigmoid for the centre and an exponential for the size.
        return BoxDecode.GRID if has_sigmoid_centre else BoxDecode.EXPONENTIAL

    # A Softmax would output the bins of distances to the edges, which GRID does not have.
    are_sigmoids = has_sigmoid_centre and "Sigmoid" in size_operators
    if are_sigmoids and "Softmax" not in centre_operators:
        return BoxDecode.GRID
    return None
