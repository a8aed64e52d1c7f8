"""Graphs with the boxes and scores of a transformer, and what is read of a graph."""

from detcli.model.editing import infer_shapes
from detcli.model.graph import GraphIndex


def index_of(graph, outputs):
    """The index of a graph that ends in these outputs, with the shapes of its tensors."""
    return GraphIndex(infer_shapes(graph.model(list(outputs))).graph)


def boxes_and_scores(graph):
    """Of 24 queries: boxes [B, 24, 4] and scores of three classes [B, 24, 3]."""
    features = graph.queries()
    boxes = graph("Sigmoid", graph.linear(features, 8, 4))
    scores = graph("Sigmoid", graph.linear(features, 8, 3))
    return boxes, scores
