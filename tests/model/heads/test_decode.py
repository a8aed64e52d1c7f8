"""What makes the tensors of a head."""

import numpy as np
import pytest
from anchor_graphs import distances, scores
from graph_builder import HEIGHT, STRIDES, WIDTH, Graph
from onnx import TensorProto
from query_graphs import exponential, refined

from detcli.core.values import BoxFormat
from detcli.model.editing import infer_shapes
from detcli.model.graph import GraphIndex
from detcli.model.heads.decode import (
    Activation,
    BoxDecode,
    bins_of,
    boxes_of,
    layer_of,
    layers_of,
    parts_of,
    scores_of,
)

ANCHORS = sum((HEIGHT // s) * (WIDTH // s) for s in STRIDES)


def read(graph, *outputs):
    return GraphIndex(infer_shapes(graph.model(list(outputs))).graph)


@pytest.mark.parametrize("bins", [8, 16, 17])
def test_the_bins_of_distances_are_counted(bins):
    graph = Graph()
    boxes = distances(graph, centres=True, bins=bins)
    index = read(graph, boxes)
    assert bins_of(index, boxes) == bins
    assert boxes_of(index, boxes) == (BoxDecode.DISTANCES, BoxFormat.CXCYWH, None)
    assert layer_of(index, boxes) == "Conv"  # of the maps, not the one that sums up the bins


def test_what_is_not_distributed_has_one_bin():
    graph = Graph()
    boxes = refined(graph, graph.queries())
    index = read(graph, boxes)
    assert bins_of(index, boxes) == 1
    assert boxes_of(index, boxes) == (BoxDecode.REFINED, BoxFormat.CXCYWH, None)
    assert layer_of(index, boxes) == "MatMul"


@pytest.mark.parametrize("levels", [1, 2, 5])
def test_channels_that_were_cut_out_and_joined_again_are_followed(levels):
    graph = Graph()
    first, second = (graph.flat(graph.convolution(n, 8), n) for n in (2, 3))
    joined = graph("Concat", first, second, axis=1)
    for _ in range(levels):
        joined = graph("Concat", graph.cut(joined, 0, 2, 1), graph.cut(joined, 2, 5, 1), axis=1)
    last = graph.cut(joined, 0, 5, 1)
    assert parts_of(read(graph, last), last)[1] == [(2, first), (3, second)]


def test_a_cast_behind_a_split_leads_to_its_own_part():
    graph = Graph()
    maps = [graph.flat(graph.convolution(n, 8), n) for n in (2, 3)]
    joined = graph("Concat", *maps, axis=1)
    halves = graph.all("Split", joined, np.array([2, 3]), outputs=2, axis=1)
    casts = [graph("Cast", half, to=TensorProto.DOUBLE) for half in halves]
    finals = [graph("Sigmoid", cast) for cast in casts]
    index = read(graph, *finals)
    assert parts_of(index, casts[1])[1] == [(3, maps[1])]
    assert layers_of(index, finals[1]) == layers_of(index, maps[1])


def test_a_long_chain_of_cuts_ends_somewhere():
    graph = Graph()
    joined = graph.flat(graph.convolution(5, 8), 5)
    for _ in range(2000):
        joined = graph("Concat", graph.cut(joined, 0, 2, 1), graph.cut(joined, 2, 5, 1), axis=1)
    last = graph.cut(joined, 0, 2, 1)
    assert sum(size for size, _ in parts_of(read(graph, last), last)[1]) == 2


def test_layers_are_those_that_a_tensor_is_made_of():
    graph = Graph()
    features = graph.queries()
    logits, boxes = graph.linear(features, 8, 3), exponential(graph, features)
    shared = graph("Sigmoid", logits)
    index = read(graph, logits, boxes, shared)
    assert layers_of(index, logits) == layers_of(index, shared)
    assert not layers_of(index, logits) & layers_of(index, boxes)


def test_what_scores_are():
    graph = Graph()
    final = scores(graph, 3)
    raw = graph.linear(graph.queries(), 8, 3)
    shares = graph("Softmax", raw, axis=2)
    product = graph("Mul", final, final)
    halved = graph("Div", raw, graph("Abs", raw))
    index = read(graph, final, raw, shares, product, halved)
    assert scores_of(index, final) is Activation.SIGMOID
    assert scores_of(index, product) is Activation.SIGMOID
    assert scores_of(index, raw) is Activation.LINEAR
    assert scores_of(index, shares) is Activation.SOFTMAX
    assert scores_of(index, halved) is None
