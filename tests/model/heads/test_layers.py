"""Which nodes and layers compute a tensor of a head."""

import numpy as np
from anchor_graphs import scores
from graph_builder import Graph
from onnx import TensorProto, helper
from query_heads import index_of

from detcli.model.heads import Activation
from detcli.model.heads.channels import channel_groups
from detcli.model.heads.layers import (
    is_linear,
    layer_outputs,
    moved_inputs,
    score_activation,
    softmax_channel_count,
)


def test_a_cast_behind_a_split_leads_to_its_own_part():
    graph = Graph()
    first_map = graph.flat_convolution(2)
    second_map = graph.flat_convolution(3)
    joined = graph("Concat", first_map, second_map, axis=1)
    first_part, second_part = graph.all("Split", joined, np.array([2, 3]), outputs=2, axis=1)
    first_cast = graph("Cast", first_part, to=TensorProto.DOUBLE)
    second_cast = graph("Cast", second_part, to=TensorProto.DOUBLE)
    first_output = graph("Sigmoid", first_cast)
    second_output = graph("Sigmoid", second_cast)
    index = index_of(graph, [first_output, second_output])
    assert channel_groups(index, second_cast)[1] == [(3, second_map)]
    assert layer_outputs(index, second_output) == layer_outputs(index, second_map)


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
    index = index_of(graph, kinds)
    for name, activation in kinds.items():
        assert score_activation(index, name) == activation


def test_what_only_moves_elements_and_what_makes_them():
    node = helper.make_node
    for operator, moved in (("Where", "bc"), ("ScatterND", "c"), ("Tile", "a"), ("Concat", "abc")):
        assert moved_inputs(node(operator, list("abc"), ["y"]), "y") == list(moved)
    assert moved_inputs(node("Add", list("ab"), ["y"]), "y") is None
    top_k = node("TopK", ["a", "b"], ["y", "z"])
    assert moved_inputs(top_k, "y") == ["a"]
    assert moved_inputs(top_k, "z") is None


def test_what_is_a_layers_output():
    graph = Graph()
    first_layer = graph.linear(graph.queries(), 8, 4)
    second_layer = graph.linear(graph.queries(), 8, 4)
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
    index = index_of(graph, cases)
    for name, is_output_of_layer in cases.items():
        assert is_linear(index, index.producer(name)) == is_output_of_layer
    assert not is_linear(index, None)


def test_a_softmax_without_an_axis_takes_the_last():
    graph = Graph()
    shares = graph("Softmax", graph.linear(graph.queries(), 8, 5))
    index = index_of(graph, [shares])
    assert softmax_channel_count(index, index.producer(shares)) == 5
