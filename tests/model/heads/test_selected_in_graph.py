"""Columns of the rows that a graph ends in."""

import numpy as np
import onnx
import pytest
from anchor_graphs import distances
from graph_builder import Graph
from onnx import TensorProto, helper
from query_heads import index_of

from detcli.model.graph import GraphIndex
from detcli.model.heads import Unrecognised
from detcli.model.heads.class_ids import is_integral, may_be_class_ids, suppression_column
from detcli.model.heads.output_parts import tensors_moved_into
from detcli.model.heads.pairs import find_pair_head
from detcli.model.heads.selected_in_graph import read_six_columns, selected_detections


@pytest.mark.parametrize(("columns", "is_usual"), [(5, False), (6, True), (7, False)])
def test_usual_rows_have_six_columns(columns, is_usual):
    graph = Graph()
    rows = graph.linear(graph.queries(), 8, columns)
    assert (read_six_columns(index_of(graph, [rows])) is not None) == is_usual


@pytest.mark.parametrize(("order", "are_boxes"), [((0, 1, 2, 3), True), ((1, 0, 3, 2), False)])
def test_sides_that_were_cut_apart_are_a_box_in_their_order_alone(order, are_boxes):
    graph = Graph()
    features = graph.queries()
    boxes = graph("Sigmoid", graph.linear(features, 8, 4))
    scores = graph("Sigmoid", graph.linear(features, 8, 3))
    sides = [graph.cut(boxes, column, column + 1, 2) for column in order]
    best = graph("ReduceMax", scores, axes=[2], keepdims=1)
    labels = graph("Cast", graph("ArgMax", scores, axis=2, keepdims=1), to=TensorProto.FLOAT)
    rows = graph.concat(sides + [best, labels], axis=2)
    assert (selected_detections(index_of(graph, [rows])) is not None) == are_boxes


@pytest.mark.parametrize("operator", ["Add", "Sub", "Mod"])
def test_whole_numbers_that_are_shifted_are_whole(operator):
    graph = Graph()
    scores = graph.linear(graph.queries(), 8, 3)
    labels = graph("Cast", graph("ArgMax", scores, axis=2), to=TensorProto.FLOAT)
    attributes = {"fmod": 1} if operator == "Mod" else {}
    shifted = graph(operator, labels, np.float32(1.0), **attributes)
    shifted_scores = graph("Add", scores, np.float32(1.0))
    index = index_of(graph, [shifted, shifted_scores])
    assert is_integral(index, shifted)
    assert not is_integral(index, shifted_scores)


def rows_and_parts(graph, label_of=None):
    """Rows [1, 24, 6] of boxes, scores and class ids, and their scores [1, 24]."""
    features = graph.queries()
    boxes = graph("Sigmoid", graph.linear(features, 8, 4))
    scores = graph("Sigmoid", graph.linear(features, 8, 3))
    best = graph("ReduceMax", scores, axes=[2], keepdims=1)
    labels = graph("ArgMax", scores, axis=2, keepdims=1)
    if label_of is not None:
        labels = label_of(graph, labels)
    labels = graph("Cast", labels, to=TensorProto.FLOAT)
    return graph("Concat", boxes, best, labels, axis=2), graph("Squeeze", best, [2])


def test_scores_that_are_an_output_as_well_do_not_hide_those_of_the_rows():
    graph = Graph()
    rows, scores = rows_and_parts(graph)
    head = selected_detections(index_of(graph, [rows, scores]))
    assert head.scores[0].tensor == rows
    assert head.class_ids.tensor == rows


@pytest.mark.parametrize(
    ("label_of", "classes"),
    [
        (lambda graph, labels: graph("Add", labels, np.int64(1)), 4),
        (lambda graph, labels: graph("Add", labels, labels), None),
        (lambda graph, labels: graph("Add", labels, np.zeros((1, 24, 1), np.int64)), None),
    ],
    ids=["a number", "what is computed", "a number for each row"],
)
def test_only_a_number_that_is_added_to_class_ids_tells_how_many_there_are(label_of, classes):
    graph = Graph()
    rows, _ = rows_and_parts(graph, label_of)
    assert selected_detections(index_of(graph, [rows])).class_count == classes


@pytest.mark.parametrize("in_loop", [False, True])
def test_detections_that_a_graph_selects_are_read_and_not_all_its_boxes_beside_them(in_loop):
    """As TensorFlow's detectors give them, with the index of each detection's box."""
    graph = Graph()
    boxes = graph.swapped(distances(graph, centres=False))
    scores = graph("Sigmoid", graph.maps(3))
    selected = graph.non_max_suppression(boxes, scores)
    label = graph("Gather", selected, np.int64(1), axis=1)
    box = graph("Gather", selected, np.int64(2), axis=1)
    selected_boxes = graph("Gather", boxes, box, axis=1)
    pairs = graph.concat(graph.unsqueezed([label, box], axis=1), axis=1)
    score = graph("GatherND", graph("Squeeze", scores, [0]), pairs)
    labels = graph("Unsqueeze", label, [0])
    indices = graph("Unsqueeze", box, [0])
    selected_scores = graph("Unsqueeze", score, [0])
    outputs = [boxes, graph.swapped(scores), indices, labels, selected_scores, selected_boxes]
    index = index_of(graph, outputs)
    if in_loop:
        put_in_loop(index.graph, selected)
        with pytest.raises(Unrecognised, match="all its boxes beside those that it selects"):
            find_pair_head(GraphIndex(index.graph))
        return
    head = selected_detections(index)
    assert head.boxes[0].tensor == selected_boxes
    assert head.scores[0].tensor == selected_scores
    assert head.class_ids.tensor == labels


@pytest.mark.parametrize(
    ("opset", "sizes", "attributes", "columns"),
    [
        (17, [1, 1, 1], {}, [0, 1, 2]),
        (17, [2, 1], {}, [0, 2]),
        (17, [1, 2], {}, [0, 1]),
        (18, None, {"num_outputs": 3}, [0, 1, 2]),
        (11, None, {"split": [1, 1, 1]}, [0, 1, 2]),
    ],
)
def test_a_column_that_a_split_cuts_out_is_known(opset, sizes, attributes, columns):
    """A result of NonMaxSuppression has columns of the image, the class and the box."""
    graph = Graph(opset=opset)
    boxes = graph.swapped(distances(graph, centres=False))
    selected = graph.non_max_suppression(boxes, graph("Sigmoid", graph.maps(3)))
    inputs = [selected]
    if sizes is not None:
        inputs.append(np.array(sizes))
    parts = graph.all("Split", *inputs, outputs=len(columns), axis=1, **attributes)
    index = index_of(graph, parts)
    assert [suppression_column(index, part) for part in parts] == columns
    is_class_id = [column == 1 for column in columns]
    assert [may_be_class_ids(index, part) for part in parts] == is_class_id


def put_in_loop(graph, tensor):
    """Let a Loop compute a tensor, with the node that did so in its body."""
    for node in graph.node:
        if tensor in node.output:
            inner_node = onnx.NodeProto.FromString(node.SerializeToString())
            body = helper.make_graph([inner_node], "body", [], [])
            node.op_type = "Loop"
            node.attribute.append(helper.make_attribute("body", body))


def test_a_trail_ends_at_what_makes_elements():
    graph = Graph()
    sums = graph("Add", graph.queries(), np.float32(1))
    moved = graph.swapped(sums)
    assert list(tensors_moved_into(index_of(graph, [moved]), moved)) == [moved, sums]


@pytest.mark.parametrize("product", [False, True])
def test_scores_of_one_sigmoid_are_no_products(product):
    graph = Graph()
    features = graph.queries()
    boxes = graph("Sigmoid", graph.linear(features, 8, 4))
    scores = graph("Sigmoid", graph.linear(features, 8, 3))
    if product:
        scores = graph("Sqrt", graph("Mul", scores, graph("Sigmoid", graph.linear(features, 8, 1))))
    else:
        scores = graph("Sqrt", graph("Mul", scores, np.float32(0.5)))
    best = graph("ReduceMax", scores, axes=[2], keepdims=1)
    labels = graph("Cast", graph("ArgMax", scores, axis=2, keepdims=1), to=TensorProto.FLOAT)
    rows = graph("Concat", boxes, best, labels, axis=2)
    assert selected_detections(index_of(graph, [rows])).are_products == product
