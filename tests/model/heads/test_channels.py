"""Which tensors are joined along the channels of a head."""

import numpy as np
import pytest
from graph_builder import Graph
from query_heads import index_of

from detcli.model.heads.channels import (
    _channel_axis_before_reshape,
    axis_and_start_of_cut,
    channel_groups,
    groups_along,
)


@pytest.mark.parametrize("levels", [1, 2, 5])
def test_channels_that_were_cut_out_and_joined_again_are_followed(levels):
    graph = Graph()
    first = graph.flat_convolution(2)
    second = graph.flat_convolution(3)
    joined = graph("Concat", first, second, axis=1)
    for _ in range(levels):
        joined = graph("Concat", graph.cut(joined, 0, 2, 1), graph.cut(joined, 2, 5, 1), axis=1)
    last = graph.cut(joined, 0, 5, 1)
    assert channel_groups(index_of(graph, [last]), last)[1] == [(2, first), (3, second)]


def test_a_long_chain_of_cuts_ends_somewhere():
    graph = Graph()
    joined = graph.flat_convolution(5)
    for _ in range(2000):
        joined = graph("Concat", graph.cut(joined, 0, 2, 1), graph.cut(joined, 2, 5, 1), axis=1)
    last = graph.cut(joined, 0, 2, 1)
    _, groups = channel_groups(index_of(graph, [last]), last)
    sizes = [size for size, _ in groups]
    assert sum(sizes) == 2


def test_the_axis_that_is_cut_along():
    graph = Graph()
    source = graph.queries()  # [1, 24, 8]
    halves = graph.all("Split", source, np.array([3, 5]), outputs=2, axis=-1)
    cases = {
        halves[1]: (2, 3),
        graph("Gather", source, np.array([5]), axis=1): (1, 5),
        graph("Gather", source, np.array([0])): (0, 0),
        graph("Gather", source, np.array([5, 6]), axis=1): (None, None),
        graph.cut(source, 2, 9, -2): (1, 2),
        graph("Slice", source, [0, 2], [1, 4], [0, 2]): (None, None),
        graph("Slice", source, [0], [1]): (None, None),
    }
    index = index_of(graph, cases)
    for name, (expected_axis, expected_start) in cases.items():
        axis, start = axis_and_start_of_cut(index, index.producer(name), name)
        assert axis == expected_axis
        if axis is not None:
            assert start == expected_start


@pytest.mark.parametrize(
    ("before", "rank", "axis", "channels", "axis_before"),
    [
        ([1, 8, 4, 6], 3, 1, 8, 1),  # as far from the front
        ([1, 3, 4, 8], 3, 2, 8, 3),  # as far from the end
        ([8, 24], 3, 1, 8, 0),
        ([8, 1, 24], 3, 1, 8, None),
        ([1, 3, 4, 8], 3, 2, 9, None),
        ([8], 3, 1, 8, None),  # two from the end of one
        ([], 3, 2, 8, 2),
        ([1, 24, 8], 0, 2, 8, 2),
    ],
)
def test_where_channels_were_before_a_reshape(before, rank, axis, channels, axis_before):
    axis_before_reshape = _channel_axis_before_reshape(
        before, rank=rank, axis=axis, channel_count=channels
    )
    assert axis_before_reshape == axis_before


def test_parts_that_are_joined_along_an_axis_from_the_end():
    graph = Graph()
    boxes = graph.linear(graph.queries(), 8, 4)
    final = graph.linear(graph.queries(), 8, 3)
    second_part = graph.linear(graph.queries(), 8, 2)
    head = graph("Concat", graph("Concat", boxes, final, axis=-1), second_part, axis=-1)
    assert groups_along(index_of(graph, [head]), head, 2) == [
        (4, boxes),
        (3, final),
        (2, second_part),
    ]


def test_a_cut_of_unknown_length_has_no_known_parts():
    graph = Graph()
    joined = graph("Concat", graph.flat_convolution(2), graph.flat_convolution(3), axis=1)
    end = graph.cut(graph("Shape", joined), 1, 2, 0)
    part = graph("Slice", joined, np.array([1]), graph("Sub", end, np.array([1])), np.array([1]))
    index = index_of(graph, [part])
    index.shapes[part] = [1, "length", 96]  # as where nothing is folded
    assert channel_groups(index, part) == (part, [])


def test_a_join_of_parts_of_unknown_size_is_not_clear():
    graph = Graph()
    parts = [graph.flat_convolution(2), graph.flat_convolution(3)]
    joined = graph.concat(parts, axis=1)
    index = index_of(graph, [joined])
    assert groups_along(index, joined, 1) == [(2, parts[0]), (3, parts[1])]
    index.shapes[parts[1]] = [1, "channels", 96]
    assert groups_along(index, joined, 1) == []


def test_a_transpose_without_an_order_tells_no_columns():
    """It reverses all axes, which no exporter writes for a head."""
    graph = Graph()
    parts = [graph.flat_convolution(2), graph.flat_convolution(3)]
    turned = graph("Transpose", graph.concat(parts, axis=1))
    assert groups_along(index_of(graph, [turned]), turned, 1) == []


def positions_of(channels, axes=3):
    """Where a ScatterND puts new channels of a tensor [1, 24, 8], and how many of them."""
    positions = np.moveaxis(np.indices((1, 24, len(channels))), 0, -1)
    positions[..., 2] = channels
    return positions[..., :axes]


def test_channels_that_are_overwritten_come_from_what_overwrites_them():
    graph = Graph()
    features = graph.queries()
    first = graph.linear(features, 8, 5)
    second = graph.linear(features, 8, 3)
    joined = graph("Concat", first, second, axis=2)
    centres = graph("Exp", graph.cut(joined, 0, 2, 2))
    moved = graph("ScatterND", joined, positions_of([0, 1]), centres)
    sizes = graph("Exp", graph.cut(moved, 2, 4, 2))
    head = graph("ScatterND", moved, positions_of([2, 3]), sizes)
    index = index_of(graph, [head])
    assert groups_along(index, head, 2) == [(2, centres), (2, sizes), (1, first), (3, second)]


def test_a_cut_of_overwritten_channels_shows_what_overwrites_them():
    graph = Graph()
    features = graph.queries()
    centres = graph("Exp", graph.cut(features, 1, 3, 2))
    head = graph("ScatterND", features, positions_of([1, 2]), centres)
    boxes = graph.cut(head, 1, 5, 2)
    y = graph.cut(boxes, 1, 2, 2)
    index = index_of(graph, [boxes, y])
    assert channel_groups(index, boxes)[1] == [(2, centres), (2, features)]
    assert channel_groups(index, y)[1] == [(1, centres)]


@pytest.mark.parametrize("channels", [[1, 0], [0, 2]], ids=["swapped", "not neighbours"])
def test_channels_that_are_overwritten_in_another_order_are_unclear(channels):
    graph = Graph()
    features = graph.queries()
    new_channels = graph("Exp", graph.cut(features, 0, 2, 2))
    head = graph("ScatterND", features, positions_of(channels), new_channels)
    assert groups_along(index_of(graph, [head]), head, 2) == []
