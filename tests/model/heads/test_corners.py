"""The order and unit of the corners of selected detections."""

import numpy as np
import pytest
from anchor_graphs import distances
from graph_builder import Graph

from detcli.config.values import BoxFormat
from detcli.model.contract import Layout
from detcli.model.editing import infer_shapes
from detcli.model.graph import GraphIndex
from detcli.model.heads import BoxDecode, ChannelRange, Decoded, Head
from detcli.model.heads.corners import Corners, corners_after_decoding


def swap_x_and_y(graph, boxes):
    return graph("Gather", boxes, [1, 0, 3, 2], axis=2)


def divide_by(divisor):
    return lambda graph, boxes: graph("Div", boxes, np.float32(divisor))


def corners_behind(nodes, layout=Layout.ROWS):
    """What is read of boxes that are decoded from distances and then pass these nodes."""
    graph = Graph()
    boxes = graph.swapped(distances(graph, centres=False))
    for add_node in nodes:
        boxes = add_node(graph, boxes)
    index = GraphIndex(infer_shapes(graph.model([boxes])).graph)
    head = Head(
        layout,
        boxes=(ChannelRange(boxes),),
        scores=(ChannelRange(boxes),),
        class_count=None,
        anchors_first=True,
        decoded=Decoded(BoxDecode.DISTANCES, BoxFormat.XYXY),
    )
    return corners_after_decoding(index, head)


@pytest.mark.parametrize(
    ("nodes", "y_first", "fractions"),
    [
        ([], False, False),
        ([swap_x_and_y], True, False),
        ([swap_x_and_y, swap_x_and_y], False, False),
        ([divide_by(640.0)], False, True),
        ([divide_by(2.0)], False, False),
        ([divide_by(640.0), swap_x_and_y], True, True),
    ],
)
def test_nodes_behind_the_decoding_change_order_and_unit(nodes, y_first, fractions):
    assert corners_behind(nodes) == Corners(y_first=y_first, fractions=fractions)


def test_other_arithmetic_behind_the_decoding_leaves_the_order_unclear():
    assert corners_behind([lambda graph, boxes: graph("Exp", boxes)]) is None


def test_a_graph_that_does_not_select_shows_no_order():
    assert corners_behind([swap_x_and_y], layout=Layout.PAIR) is None
