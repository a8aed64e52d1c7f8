"""Which boxes and scores a graph selects its detections from."""

import numpy as np
import pytest
from graph_builder import Graph
from onnx import helper

from detcli.model.editing import infer_shapes
from detcli.model.graph import GraphIndex
from detcli.model.heads.before_selection import _scores_before_flattening, _selected_count


@pytest.mark.parametrize(("count", "expected"), [(np.array([24]), 24), (None, None)])
def test_how_many_a_top_k_keeps(count, expected):
    graph = Graph()
    features = graph.queries()
    count = graph.cut(graph("Shape", features), 1, 2, 0) if count is None else count
    best, _ = graph.all("TopK", features, count, outputs=2, axis=1)
    index = GraphIndex(infer_shapes(graph.model([best])).graph)
    assert _selected_count(index, index.producer(best)) == expected
    assert _selected_count(index, helper.make_node("TopK", ["x"], ["y", "z"], k=7)) == 7


def test_what_was_flattened_for_a_top_k():
    graph = Graph()
    raw = graph.linear(graph.queries(), 8, 3)
    final = graph("Sigmoid", raw)
    cases = {
        graph("Flatten", final, axis=1): raw,
        graph("Reshape", graph("Unsqueeze", final, [0]), [1, -1]): raw,
        graph("Reshape", graph("Squeeze", final, [0]), [-1]): final,
        graph("Reshape", graph("Gather", final, np.int64(0), axis=0), [-1]): final,
        graph("Reshape", graph("ReduceMax", final, axes=[2], keepdims=0), [-1]): None,
        raw: None,
    }
    index = GraphIndex(infer_shapes(graph.model(list(cases))).graph)
    for name, scores in cases.items():
        assert _scores_before_flattening(index, name) == scores
