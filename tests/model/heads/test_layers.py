"""Which nodes and layers compute a tensor of a head."""

import numpy as np
from anchor_graphs import scores
from graph_builder import Graph
from onnx import TensorProto, helper

from detcli.model.editing import infer_shapes
from detcli.model.graph import GraphIndex
from detcli.model.heads import Activation
from detcli.model.heads.channels import channel_groups
from detcli.model.heads.layers import (
    is_linear,
    layer_outputs,
    moved_inputs,
    score_activation,
    softmax_channel_count,
)


def read(graph, *outputs):
    return GraphIndex(infer_shapes(graph.model(list(outputs))).graph)


def test_a_cast_behind_a_split_leads_to_its_own_part():
    graph = Graph()
    maps = [graph.flat(graph.convolution(n, 8), n) for n in (2, 3)]
    joined = graph("Concat", *maps, axis=1)
    halves = graph.all("Split", joined, np.array([2, 3]), outputs=2, axis=1)
    casts = [graph("Cast", half, to=TensorProto.DOUBLE) for half in halves]
    finals = [graph("Sigmoid", cast) for cast in casts]
    index = read(graph, *finals)
    assert channel_groups(index, casts[1])[1] == [(3, maps[1])]
    assert layer_outputs(index, finals[1]) == layer_outputs(index, maps[1])


def test_what_scores_are():
    graph = Graph()
    final = scores(graph, 3)
    raw = graph.linear(graph.queries(), 8, 3)
    kinds = {
        final: Activation.SIGMOID,
        graph("Mul", final, final): Activation.SIGMOID,
        raw: Activation.LINEAR,
        graph("Softmax", raw, axis=2): Activation.SOFTMAX,
        graph("Div", raw, graph("Abs", raw)): None,
    }
    index = read(graph, *kinds)
    assert {name: score_activation(index, name) for name in kinds} == kinds


def test_what_only_moves_elements_and_what_makes_them():
    node = helper.make_node
    for operator, moved in (("Where", "bc"), ("ScatterND", "c"), ("Tile", "a"), ("Concat", "abc")):
        assert moved_inputs(node(operator, list("abc"), ["y"]), "y") == list(moved)
    assert moved_inputs(node("Add", list("ab"), ["y"]), "y") is None
    assert [moved_inputs(node("TopK", list("ab"), list("yz")), name) for name in "yz"] == [
        ["a"],
        None,
    ]


def test_what_is_a_layers_output():
    graph = Graph()
    first_layer, second_layer = (graph.linear(graph.queries(), 8, 4) for _ in range(2))
    deep = first_layer
    for _ in range(250):
        deep = graph("Neg", deep)
    cases = {
        deep: True,
        graph("Add", first_layer, second_layer): True,
        graph("Mul", first_layer, np.float32(2)): True,
        graph("Mul", first_layer, second_layer): False,
        graph("Sigmoid", first_layer): False,
        graph("Pow", first_layer, np.float32(2)): False,
        graph("Sub", first_layer, graph("Abs", second_layer)): False,
    }
    index = read(graph, *cases)
    assert {name: is_linear(index, index.producer(name)) for name in cases} == cases
    assert not is_linear(index, None)


def test_a_softmax_without_an_axis_takes_the_last():
    graph = Graph()
    shares = graph("Softmax", graph.linear(graph.queries(), 8, 5))
    index = read(graph, shares)
    assert softmax_channel_count(index, index.producer(shares)) == 5
