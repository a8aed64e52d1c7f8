"""Graphs that are nearly a head of boxes and scores, and are not read as one."""

import numpy as np
import pytest
from graph_builder import Graph

from detcli.model.editing import infer_shapes
from detcli.model.graph import GraphIndex
from detcli.model.heads import Unrecognised
from detcli.model.heads.tensors import (
    _task_of,
    best_class,
    end_to_end,
    pair,
    queries,
)


def index_of(graph, *outputs):
    return GraphIndex(infer_shapes(graph.model(list(outputs))).graph)


def boxes_and_scores(graph):
    """Of 24 queries: boxes [B, 24, 4] and scores of three classes [B, 24, 3]."""
    features = graph.queries()
    boxes = graph("Sigmoid", graph.linear(features, 8, 4))
    scores = graph("Sigmoid", graph.linear(features, 8, 3))
    return boxes, scores


def test_a_top_k_of_scores_that_were_not_split_from_boxes_is_no_end_to_end_head():
    """Of a batch of any size, a Sigmoid has as little a known size as a Split's output may."""
    graph = Graph(batch="N")
    boxes, scores = boxes_and_scores(graph)
    best = graph("ReduceMax", scores, axes=[2], keepdims=0)
    _, places = graph.all("TopK", best, [5], outputs=2, axis=1)
    entries = graph("Tile", graph("Unsqueeze", places, [2]), [1, 1, 4])
    detections = graph("GatherElements", boxes, entries, axis=1)
    assert end_to_end(index_of(graph, detections), boxes_only=False) is None


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        (None, "masks, keypoints or angles follow"),
        (1, "it finds oriented boxes"),
        (2, "it finds poses: 2 numbers"),
    ],
)
def test_a_task_is_not_guessed_where_the_number_of_columns_is_unknown(extra, reason):
    graph = Graph()
    boxes, _ = boxes_and_scores(graph)
    assert reason in _task_of(index_of(graph, boxes), extra)


def test_boxes_beside_two_outputs_of_scores_are_asked_about():
    graph = Graph()
    boxes, scores = boxes_and_scores(graph)
    more_scores = graph("Sigmoid", graph.linear(graph.queries(), 8, 3))
    with pytest.raises(Unrecognised, match="two of its outputs may be the boxes"):
        pair(index_of(graph, boxes, scores, more_scores))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_output_with_fewer_axes_is_neither_boxes_nor_scores(place):
    graph = Graph()
    boxes, scores = boxes_and_scores(graph)
    outputs = [boxes, scores]
    outputs.insert(place, graph("ReduceMax", scores, axes=[2], keepdims=0))
    head = pair(index_of(graph, *outputs))
    assert head.boxes[0].tensor == boxes
    assert head.scores[0].tensor == scores


def test_a_best_class_that_no_output_tells_does_not_select():
    graph = Graph()
    boxes, scores = boxes_and_scores(graph)
    labels = graph("ArgMax", scores, axis=2, keepdims=1)
    assert best_class(index_of(graph, boxes, scores)) is None
    assert best_class(index_of(graph, boxes, labels)).one_class


@pytest.mark.parametrize("suppresses", [False, True])
def test_what_is_suppressed_is_not_read_before_its_top_k(suppresses):
    graph = Graph()
    boxes, scores = boxes_and_scores(graph)
    best, places = graph.all("TopK", graph("Flatten", scores, axis=1), [5], outputs=2, axis=1)
    rows = graph("Unsqueeze", graph("Div", places, np.int64(3)), [2])
    entries = graph("Tile", rows, [1, 1, 4])
    chosen = graph("GatherElements", boxes, entries, axis=1)
    outputs = [chosen, best]
    if suppresses:
        by_class = graph("Unsqueeze", best, [1])
        outputs.append(graph("NonMaxSuppression", chosen, by_class, np.array([5])))
    head = queries(index_of(graph, *outputs))
    assert (head is None) == suppresses
