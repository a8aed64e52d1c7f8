"""Determines the order and unit of the corners of boxes that a graph selects."""

from typing import NamedTuple

from onnx import NodeProto

from detcli.model.contract import Layout
from detcli.model.graph import GraphIndex
from detcli.model.heads import BOX_COORDINATES, Head
from detcli.model.heads.decode import LARGEST_STRIDE
from detcli.model.heads.layers import converts_to_corners, source_nodes
from detcli.model.heads.output_parts import (
    MAX_MOVES,
    moved_input,
    parts_of_concat,
    source_of_column,
)

SCALING_OPERATORS = frozenset({"Div", "Mul"})
MAX_MOVES_AND_SCALINGS = 2 * MAX_MOVES
"""Nodes that move or scale boxes between their decoding and the output."""


class Corners(NamedTuple):
    """The order and unit of the corners of boxes."""

    y_first: bool  # the order is y1, x1, y2, x2, not x1, y1, x2, y2
    fractions: bool  # they are fractions of the input's size, not pixels


def corners_after_decoding(index: GraphIndex, head: Head) -> Corners | None:
    """Determine in which order and unit a graph that selects detections outputs their corners.

    Where boxes are decoded, their corners are x1, y1, x2, y2 in pixels. Nodes after that may swap
    x and y, and divide by the size of the input.

    Args:
        index: The graph.
        head: The selected detections.

    Returns:
        None if the graph does not select detections, or some other node comes after the decoding.
    """
    if head.layout is not Layout.ROWS or head.decoded is None:
        return None
    nodes = _nodes_back_to_decoding(index, tensor_of_selected_boxes(index, head))
    if nodes is None:
        return None
    swaps = [node for node in nodes if _swaps_x_and_y(index, node)]
    is_y_first = len(swaps) % 2 == 1  # A second swap undoes the first.
    scaling_nodes = [node for node in nodes if node.op_type in SCALING_OPERATORS]
    are_fractions = any(_divides_by_input_size(index, node) for node in scaling_nodes)
    return Corners(y_first=is_y_first, fractions=are_fractions)


def _nodes_back_to_decoding(index: GraphIndex, boxes: str) -> list[NodeProto] | None:
    """List the nodes that move and scale boxes after their decoding, nearest to the boxes first.

    The last is the Concat that joins the decoded coordinates, if there is one.

    Returns:
        None if one of the nodes does more than move and scale the boxes.
    """
    nodes: list[NodeProto] = []
    tensor = boxes
    for _ in range(MAX_MOVES_AND_SCALINGS):
        node = index.producer(tensor)
        if node is None or converts_to_corners(index, node):
            return nodes
        nodes.append(node)
        if _joins_computed_tensors(index, node):
            return nodes
        if node.op_type in SCALING_OPERATORS:
            tensor = node.input[0]  # the second input is the factor or divisor
        else:
            tensor = moved_input(node, tensor, index)
            if not tensor:
                return None
    return nodes


def _swaps_x_and_y(index: GraphIndex, node: NodeProto) -> bool:
    """True if a node turns x1, y1, x2, y2 into y1, x1, y2, x2, or joins coordinates like that."""
    if _joins_computed_tensors(index, node):
        return _joins_y_before_x(index, node)
    return node.op_type == "Gather" and index.constant(node.input[1]) == [1, 0, 3, 2]


def _divides_by_input_size(index: GraphIndex, scaling: NodeProto) -> bool:
    """True if a node divides by a constant that is larger than every stride between cells."""
    divisor = index.array(scaling.input[1])
    if scaling.op_type != "Div" or divisor is None:
        return False
    return bool(divisor.min() > LARGEST_STRIDE)


def _joins_computed_tensors(index: GraphIndex, node: NodeProto) -> bool:
    """True if a node is a Concat of several computed tensors, as where boxes are decoded."""
    if node.op_type != "Concat":
        return False
    computed_inputs = [name for name in node.input if index.constant_tensor(name) is None]
    return len(computed_inputs) > 1


def _joins_y_before_x(index: GraphIndex, concat: NodeProto) -> bool:
    """True if a Concat joins the coordinates of corners in the order y1, x1, y2, x2.

    The nodes show it for the first corner. Each of its coordinates is computed by a Sub: x1 is the
    x of the centre less half of the width, and y1 the y of the centre less half of the height. The
    tensor of the centres has x in column 0 and y in column 1.
    """
    if len(concat.input) != BOX_COORDINATES:
        return False

    columns_of_centres = []
    first_corner = concat.input[:2]
    for coordinate in first_corner:
        for node in source_nodes(index, coordinate):
            if node.op_type == "Sub":
                coordinate_of_centre = node.input[0]
                _, column = source_of_column(index, coordinate_of_centre)
                columns_of_centres.append(column)
    y_then_x = [1, 0]
    return columns_of_centres == y_then_x


def tensor_of_selected_boxes(index: GraphIndex, head: Head) -> str:
    """Find the tensor that holds only the boxes of detections which a graph selects.

    Where boxes are columns of an output, such as the first four of six, a Concat may have joined
    them to scores and class ids. The tensor is then the input of the Concat with these columns.

    Args:
        index: The graph.
        head: The selected detections.

    Returns:
        The name of the tensor; that of the output if no input of a Concat has just these columns.
    """
    boxes = head.boxes[0]  # selected boxes are always in one tensor
    are_some_columns = boxes.stop is not None
    if are_some_columns:
        for joined_part in parts_of_concat(index, boxes.tensor):
            if joined_part.columns == boxes:
                return joined_part.tensor
    return boxes.tensor
