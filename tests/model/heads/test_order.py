"""A Reshape in place of a Transpose mixes channels and cells."""

import math

import pytest
from anchor_graphs import distances, scores
from graph_builder import STRIDES, Graph
from head_checks import file_of, read
from hypothesis import given
from hypothesis import strategies as st

from detcli.core.errors import ModelError
from detcli.model.editing import infer_shapes
from detcli.model.graph import GraphIndex
from detcli.model.heads.order import keeps_axes, mixes_channels

CLASSES = 3
MIXED = "a Reshape in place of a Transpose mixes the channels"


def yolox(moves):
    """YOLOX's raw head [1, N, 5 + C]; `way` brings a map to cells before channels."""
    graph = Graph()
    scales = []
    for stride in STRIDES:
        boxes = graph.convolution(4, stride)
        objectness = graph("Sigmoid", graph.convolution(1, stride))
        class_scores = graph("Sigmoid", graph.convolution(CLASSES, stride))
        maps = graph("Concat", boxes, objectness, class_scores, axis=1)
        scales.append(moves(graph, maps, (64 // stride) * (96 // stride)))
    return graph.model([graph.concat(scales, axis=1)])


def transposed(graph, maps, cells):
    flat = graph("Reshape", maps, [1, 5 + CLASSES, cells])
    return graph("Transpose", flat, perm=[0, 2, 1])


def transposed_first(graph, maps, cells):
    last = graph("Transpose", maps, perm=[0, 2, 3, 1])
    return graph("Reshape", last, [1, cells, 5 + CLASSES])


def reshaped(graph, maps, cells):
    return graph("Reshape", maps, [1, cells, 5 + CLASSES])


def flattened_and_reshaped(graph, maps, cells):
    return graph("Reshape", graph("Flatten", maps, axis=1), [1, cells, 5 + CLASSES])


def reshaped_with_a_free_side(graph, maps, _cells):
    return graph("Reshape", maps, [1, -1, 5 + CLASSES])


def cells_first_in_front(graph, maps, cells):
    """As in a file that was found: the batch is last, and a Transpose brings it to the front."""
    apart = graph("Reshape", maps, [cells, 5 + CLASSES, 1])
    return graph("Transpose", apart, perm=[2, 0, 1])


@pytest.mark.parametrize("moves", [transposed, transposed_first])
def test_a_transpose_keeps_them_apart(moves):
    file = file_of(yolox(moves))
    assert file.detector().family == "YOLOX"


@pytest.mark.parametrize(
    "moves",
    [reshaped, flattened_and_reshaped, reshaped_with_a_free_side, cells_first_in_front],
)
def test_a_reshape_alone_is_refused(moves):
    with pytest.raises(ModelError, match=MIXED):
        read(yolox(moves))


def test_scores_apart_are_looked_at_too():
    graph = Graph()
    maps = graph.convolution(CLASSES, 8)
    boxes = graph.swapped(graph.cut(distances(graph, centres=False), 0, 96, 2))
    mixed = graph("Sigmoid", graph("Reshape", maps, [1, 96, CLASSES]))
    with pytest.raises(ModelError, match=MIXED):
        read(graph.model([boxes, mixed]))


def test_as_many_classes_as_a_row_has_cells():
    """[12, 8, 12] could be cut at its axes into [96, 12], but that is no order of cells."""
    graph = Graph()
    maps = graph.convolution(12, 8)
    boxes = graph.swapped(graph.cut(distances(graph, centres=False), 0, 96, 2))
    mixed = graph("Sigmoid", graph("Reshape", maps, [1, 96, 12]))
    with pytest.raises(ModelError, match=MIXED):
        read(graph.model([boxes, mixed]))


def test_scales_that_are_joined_before():
    """Of 126 cells, a multiple of the 7 channels."""
    graph = Graph()
    scales = []
    for stride in STRIDES:
        boxes = graph.convolution(4, stride)
        objectness = graph("Sigmoid", graph.convolution(1, stride))
        class_scores = graph("Sigmoid", graph.convolution(2, stride))
        maps = graph("Concat", boxes, objectness, class_scores, axis=1)
        scales.append(graph.flat(maps, 7))
    joined = graph.concat(scales, axis=2)
    with pytest.raises(ModelError, match=MIXED):
        read(graph.model([graph("Reshape", joined, [1, 126, 7])]))


def test_a_body_in_order_is_read():
    graph = Graph()
    head = graph("Concat", distances(graph, centres=True), scores(graph, CLASSES), axis=1)
    assert file_of(graph.model([head])).detector().family == "YOLO"


SIDES = st.lists(st.integers(2, 5), min_size=1, max_size=4)


@given(SIDES, st.data())
def test_joining_and_splitting_axes_keeps_them(dims, data):
    cut = data.draw(st.integers(1, len(dims)))
    joined = [math.prod(dims[:cut])] + dims[cut:]
    assert keeps_axes(dims, joined)
    assert keeps_axes(joined, dims)


@pytest.mark.parametrize(("channels", "cells"), [(85, 6400), (6, 35)])
def test_channels_and_cells_do_not_change_places(channels, cells):
    assert not keeps_axes([channels, cells], [cells, channels])
    assert not keeps_axes([cells, channels], [channels, cells])


@pytest.mark.parametrize(
    ("shape", "is_mixed"),
    [([1, 64, 9], True), ([1, 6, 96], False), ([1, 2, 3, 96], False)],
)
def test_a_reshape_across_the_axes_of_a_map_mixes_them(shape, is_mixed):
    """The map has 6 channels of 8 by 12 cells."""
    graph = Graph()
    reshaped_map = graph("Reshape", graph.convolution(6, 8), shape)
    index = GraphIndex(infer_shapes(graph.model([reshaped_map])).graph)
    assert mixes_channels(index, [reshaped_map]) == is_mixed


def test_what_a_backbone_reshapes_is_not_looked_at():
    """Before the last layer channels and cells may mix, as where a network moves windows."""
    graph = Graph()
    mixed = graph("Reshape", graph.convolution(8, 8), [1, 96, 8])
    maps = graph("Reshape", mixed, [1, 8, 8, 12])
    weights = graph.weights(6, 8, 1, 1)
    last_layer = graph("Conv", maps, weights, kernel_shape=[1, 1])
    head = graph.flat(last_layer, 6)
    index = GraphIndex(infer_shapes(graph.model([head, mixed])).graph)
    assert not mixes_channels(index, [head])
    assert mixes_channels(index, [mixed])
