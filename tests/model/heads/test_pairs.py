"""Which two tensors are boxes and scores of the same anchors."""

import pytest
from graph_builder import Graph

from detcli.config.values import BoxFormat
from detcli.model.contract import Layout
from detcli.model.editing import infer_shapes
from detcli.model.graph import GraphIndex
from detcli.model.heads import Activation, BoxDecode, ChannelRange, Decoded, Head
from detcli.model.heads.pairs import (
    _are_boxes_and_scores_clear,
    _class_axis,
    find_pair_head,
)


@pytest.mark.parametrize(
    ("anchors", "scores", "first", "layer", "axis"),
    [
        (24, [1, 24, 3], True, "Conv", 2),
        (24, [1, 3, 24], True, "Conv", 1),
        (24, [1, 3, 24], False, "Conv", 1),
        (24, [1, 24, 3], False, "Conv", 2),
        # where the number of anchors is not known, there are more of them than classes
        ("N", [1, 3, 84], True, "Conv", 1),
        ("N", [1, 84, 3], True, "Conv", 2),
        ("N", [1, 3, 84], False, "Conv", 1),
        ("N", [1, 84, 3], False, "Conv", 2),
        ("N", [1, "N", 3], True, "Conv", 2),
        ("N", [1, 3, "N"], True, "Conv", 1),
        # of queries, there may be fewer
        ("N", [1, 3, 84], True, "MatMul", 2),
        (24, [1, 3, 24], True, "MatMul", None),
        (24, [1, 25, 3], True, "Conv", None),
        ("N", [1, "A", "B"], True, "Conv", None),
    ],
)
def test_the_axis_of_the_classes(anchors, scores, first, layer, axis):
    channel_axis = 2 if first else 1
    assert _class_axis(anchors, scores, coordinate_axis=channel_axis, layer=layer) == axis


def ranked(graph, scores):
    """Values and places of the best queries, as columns."""
    best = graph("ReduceMax", scores, axes=[2], keepdims=0)
    values, places = graph.all("TopK", best, [24], outputs=2, axis=1)
    return graph("Unsqueeze", values, [-1]), graph("Unsqueeze", places, [-1])


@pytest.mark.parametrize(
    ("chooses", "is_head"),
    [("none", True), ("both", True), ("boxes", False), ("scores", False), ("certainty", True)],
)
def test_what_was_chosen_for_one_was_chosen_for_the_other(chooses, is_head):
    graph = Graph()
    features = graph.queries()
    boxes = graph("Sigmoid", graph.linear(features, 8, 4))
    scores = graph("Sigmoid", graph.linear(features, 8, 3))
    values, indices = ranked(graph, scores)
    if chooses == "certainty":  # the values measure, and choose nothing
        scores = graph("Mul", scores, graph("Sigmoid", values))
    if chooses in {"both", "boxes"}:
        boxes = graph("GatherElements", boxes, graph("Tile", indices, [1, 1, 4]), axis=1)
    if chooses in {"both", "scores"}:
        scores = graph("GatherElements", scores, graph("Tile", indices, [1, 1, 3]), axis=1)
    index = GraphIndex(infer_shapes(graph.model([boxes, scores])).graph)
    head = find_pair_head(index)
    assert (head is not None) == is_head
    if head is not None:
        assert head.boxes[0].tensor == boxes
        assert head.scores[0].tensor == scores
        assert head.class_count == 3


def test_what_is_made_of_scores_are_no_boxes():
    graph = Graph()
    scores = graph("Sigmoid", graph.linear(graph.queries(), 8, 5))
    boxes = graph.cut(scores, 0, 4, 2)
    assert find_pair_head(GraphIndex(infer_shapes(graph.model([boxes, scores])).graph)) is None


@pytest.mark.parametrize(
    ("box_method", "score_method", "scores_are", "layer", "are_told_apart"),
    [
        ("GRID", "SIGMOID", "SIGMOID", "Conv", True),
        ("GRID", "GRID", "SIGMOID", "Conv", False),
        ("LINEAR", None, "SOFTMAX", "MatMul", False),
        ("SIGMOID", None, "SOFTMAX", "Conv", False),
        ("SIGMOID", None, "SOFTMAX", "MatMul", True),
        ("REFINED", "SIGMOID", "SIGMOID", "MatMul", True),
        ("SIGMOID", "SIGMOID", "SIGMOID", "MatMul", False),
        ("SIGMOID", "REFINED", "SIGMOID", "MatMul", False),
    ],
)
def test_boxes_of_four_classes_are_told_by_what_makes_them(
    box_method, score_method, scores_are, layer, are_told_apart
):
    decoded = Decoded(BoxDecode[box_method], BoxFormat.CXCYWH)
    scores_as_boxes = None
    if score_method is not None:
        scores_as_boxes = Decoded(BoxDecode[score_method], BoxFormat.CXCYWH)
    head = Head(
        Layout.PAIR,
        boxes=(ChannelRange("boxes"),),
        scores=(ChannelRange("scores"),),
        class_count=4,
        anchors_first=True,
        decoded=decoded,
        scores_are=Activation[scores_are],
        layer=layer,
    )
    assert (
        _are_boxes_and_scores_clear(head, scores_as_boxes, has_objectness=False) == are_told_apart
    )
