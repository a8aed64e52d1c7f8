"""What makes the tensors of a head."""

import numpy as np
import pytest
from anchor_graphs import scores
from graph_builder import Graph
from onnx import TensorProto, helper

from detcli.core.values import BoxFormat
from detcli.model.editing import infer_shapes
from detcli.model.graph import GraphIndex
from detcli.model.heads.decode import (
    Activation,
    BoxDecode,
    boxes_of,
    cut_along,
    is_linear,
    layers_of,
    moved_inputs,
    parts_of,
    scores_of,
)


def read(graph, *outputs):
    return GraphIndex(infer_shapes(graph.model(list(outputs))).graph)


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


def test_what_scores_are():
    graph = Graph()
    final, raw = scores(graph, 3), graph.linear(graph.queries(), 8, 3)
    kinds = {
        final: Activation.SIGMOID,
        graph("Mul", final, final): Activation.SIGMOID,
        raw: Activation.LINEAR,
        graph("Softmax", raw, axis=2): Activation.SOFTMAX,
        graph("Div", raw, graph("Abs", raw)): None,
    }
    index = read(graph, *kinds)
    assert {name: scores_of(index, name) for name in kinds} == kinds


SIDES = [33, 64, 33, 64]


@pytest.mark.parametrize(
    ("steps", "fractions"),
    [
        *(([("Div", 33)], True), ([("Div", 32)], None), ([("Div", [8, 99, 8, 99])], None)),
        *(([("Mul", SIDES)], False), ([("Mul", 33)], False), ([("Mul", [32, 99, 32, 99])], None)),
        ([("Mul", [1 / 99, 1, 1 / 99, 1])], None),
        ([("Mul", [[33]] * 24)], None),  # a factor for each box: strides
        *(([("Mul", 1 / 33)], True), ([("Mul", 1 / 32)], None), ([("Mul", 0)], None)),
        *(([("Div", 99), ("Mul", 8)], True), ([("Mul", SIDES), ("Mul", 1 / 99)], True)),
    ],
)
def test_products_behind_boxes_say_whether_they_are_pixels(steps, fractions):
    graph = Graph()
    boxes = graph("Sigmoid", graph.linear(graph.queries(), 8, 4))
    for operator, factor in steps:
        boxes = graph(operator, boxes, np.float32(factor))
    found = boxes_of(read(graph, boxes), boxes)
    assert (found.how, found.box_format) == (BoxDecode.SIGMOID, BoxFormat.CXCYWH)
    assert found.fractions is fractions


def test_what_only_moves_elements_and_what_makes_them():
    node = helper.make_node
    for operator, moved in (("Where", "bc"), ("ScatterND", "c"), ("Tile", "a"), ("Concat", "abc")):
        assert moved_inputs(node(operator, [*"abc"], ["y"]), "y") == [*moved]
    assert moved_inputs(node("Add", [*"ab"], ["y"]), "y") is None
    assert [moved_inputs(node("TopK", [*"ab"], [*"yz"]), name) for name in "yz"] == [["a"], None]


def test_the_axis_that_is_cut_along():
    graph = Graph()
    source = graph.queries()  # [1, 24, 8]
    halves = graph.all("Split", source, np.array([3, 5]), outputs=2, axis=-1)
    cases = {
        halves[1]: (2, 3),
        graph("Gather", source, np.array([5]), axis=1): (1, 5),
        graph("Gather", source, np.array([5, 6]), axis=1): (None, 0),
        graph.cut(source, 2, 9, -2): (1, 2),
        graph("Slice", source, [0, 2], [1, 4], [0, 2]): (None, 0),
        graph("Slice", source, [0], [1]): (None, 0),
    }
    index = read(graph, *cases)
    found = {name: cut_along(index, index.producer(name), name) for name in cases}
    assert {name: cut for name, cut in found.items() if cut[0] is not None} == {
        name: cut for name, cut in cases.items() if cut[0] is not None
    }


def test_what_is_a_layers_output():
    graph = Graph()
    one, other = (graph.linear(graph.queries(), 8, 4) for _ in range(2))
    cases = {
        graph("Add", one, other): True,
        graph("Mul", one, np.float32(2)): True,
        graph("Mul", one, other): False,
        graph("Sigmoid", one): False,
        graph("Pow", one, np.float32(2)): False,
        graph("Sub", one, graph("Abs", other)): False,
    }
    index = read(graph, *cases)
    assert {name: is_linear(index, index.producer(name)) for name in cases} == cases
    assert not is_linear(index, None)
