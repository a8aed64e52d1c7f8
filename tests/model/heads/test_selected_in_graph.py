"""Columns of the rows that a graph ends in."""

import numpy as np
import pytest
from graph_builder import Graph
from onnx import TensorProto

from detcli.model.editing import infer_shapes
from detcli.model.graph import GraphIndex
from detcli.model.heads.selected_in_graph import (
    _tensors_moved_into,
    is_integral,
    selected_detections,
    six_columns,
)


def read(graph, *outputs):
    return GraphIndex(infer_shapes(graph.model(list(outputs))).graph)


@pytest.mark.parametrize(("columns", "is_usual"), [(5, False), (6, True), (7, False)])
def test_usual_rows_have_six_columns(columns, is_usual):
    graph = Graph()
    rows = graph.linear(graph.queries(), 8, columns)
    assert (six_columns(read(graph, rows)) is not None) == is_usual


@pytest.mark.parametrize(("order", "are_boxes"), [((0, 1, 2, 3), True), ((1, 0, 3, 2), False)])
def test_sides_that_were_cut_apart_are_a_box_in_their_order_alone(order, are_boxes):
    graph = Graph()
    features = graph.queries()
    boxes = graph("Sigmoid", graph.linear(features, 8, 4))
    scores = graph("Sigmoid", graph.linear(features, 8, 3))
    sides = [graph.cut(boxes, column, column + 1, 2) for column in order]
    best = graph("ReduceMax", scores, axes=[2], keepdims=1)
    labels = graph("Cast", graph("ArgMax", scores, axis=2, keepdims=1), to=TensorProto.FLOAT)
    rows = graph("Concat", *sides, best, labels, axis=2)
    assert (selected_detections(read(graph, rows)) is not None) == are_boxes


@pytest.mark.parametrize("operator", ["Add", "Sub", "Mod"])
def test_whole_numbers_that_are_shifted_are_whole(operator):
    graph = Graph()
    scores = graph.linear(graph.queries(), 8, 3)
    labels = graph("Cast", graph("ArgMax", scores, axis=2), to=TensorProto.FLOAT)
    attributes = {"fmod": 1} if operator == "Mod" else {}
    shifted = graph(operator, labels, np.float32(1.0), **attributes)
    shifted_scores = graph("Add", scores, np.float32(1.0))
    index = read(graph, shifted, shifted_scores)
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
    head = selected_detections(read(graph, rows, scores))
    assert head.scores[0].tensor == rows
    assert head.labels.tensor == rows


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
    assert selected_detections(read(graph, rows)).class_count == classes


def test_a_trail_ends_at_what_makes_elements():
    graph = Graph()
    sums = graph("Add", graph.queries(), np.float32(1))
    moved = graph.swapped(sums)
    assert list(_tensors_moved_into(read(graph, moved), moved)) == [moved, sums]


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
    assert selected_detections(read(graph, rows)).are_products == product
