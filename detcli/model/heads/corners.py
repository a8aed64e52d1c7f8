"""Tells the order and unit of the corners of boxes that a graph selects."""

from typing import NamedTuple

from onnx import NodeProto

from detcli.model.contract import Layout
from detcli.model.graph import GraphIndex
from detcli.model.heads import BOX_COORDINATES, Head
from detcli.model.heads.decode import LARGEST_STRIDE
from detcli.model.heads.layers import converts_to_corners, source_nodes
from detcli.model.heads.selected_in_graph import (
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
    """Tell in which order and unit a graph that selects detections gives their corners.

    Where boxes are decoded, their corners are x1, y1, x2, y2 in pixels. Nodes behind that may swap
    x and y, and divide by the size of the input.

    Args:
        index: The graph.
        head: The selected detections.

    Returns:
        None if the graph does not select detections, or some other node comes behind the decoding.
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
        return _joins_rows_first(index, node)
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


def _joins_rows_first(index: GraphIndex, concat: NodeProto) -> bool:
    """True if a Concat joins the coordinates of corners in the order y1, x1, y2, x2.

    Each coordinate of the top left corner is a Sub: one of the centre less half of a side. In the
    tensor of the centres, column 0 is x and column 1 is y.
    """
    if len(concat.input) != BOX_COORDINATES:
        return False
    columns_of_centres = []
    first_corner = concat.input[:2]
    for coordinate in first_corner:
        for node in source_nodes(index, coordinate):
            if node.op_type == "Sub":
                centre = node.input[0]
                _, column = source_of_column(index, centre)
                columns_of_centres.append(column)
    return columns_of_centres == [1, 0]  # y before x


def tensor_of_selected_boxes(index: GraphIndex, head: Head) -> str:
    """Find the tensor that holds only the boxes of detections which a graph selects.

    A Concat may join it to scores and class ids.

    Args:
        index: The graph.
        head: The selected detections.

    Returns:
        The name of the tensor; that of the joined tensor if it is not clear what was joined.
    """
    boxes = head.boxes[0]  # selected boxes are always in one tensor
    if boxes.stop is not None:
        for part in parts_of_concat(index, boxes.tensor):
            if part.columns == boxes:
                return part.tensor
    return boxes.tensor
