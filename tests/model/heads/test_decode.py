"""What makes the tensors of a head."""

import numpy as np
import pytest
from anchor_graphs import scores
from graph_builder import Graph
from onnx import TensorProto, helper

from detcli.config.values import BoxFormat
from detcli.model.editing import infer_shapes
from detcli.model.graph import GraphIndex
from detcli.model.heads import Activation, BoxDecode, Decoded
from detcli.model.heads.channels import (
    _channel_axis_before,
    axis_and_start_of_cut,
    channel_groups,
    groups_along,
)
from detcli.model.heads.decode import (
    _hold_same_elements,
    box_decoding,
    is_linear,
    layer_outputs,
    measures_from_cell_corners,
    method_of_centre_and_size,
    moved_inputs,
    score_activation,
    softmax_channel_count,
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
    assert channel_groups(read(graph, last), last)[1] == [(2, first), (3, second)]


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


def test_a_long_chain_of_cuts_ends_somewhere():
    graph = Graph()
    joined = graph.flat(graph.convolution(5, 8), 5)
    for _ in range(2000):
        joined = graph("Concat", graph.cut(joined, 0, 2, 1), graph.cut(joined, 2, 5, 1), axis=1)
    last = graph.cut(joined, 0, 2, 1)
    assert sum(size for size, _ in channel_groups(read(graph, last), last)[1]) == 2


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


SIDES = [33, 64, 33, 64]


@pytest.mark.parametrize(
    ("steps", "fractions"),
    [
        ([("Div", 33)], True),
        ([("Div", 32)], None),
        ([("Div", [8, 99, 8, 99])], None),
        ([("Mul", SIDES)], False),
        ([("Mul", 33)], False),
        ([("Mul", [32, 99, 32, 99])], None),
        ([("Mul", [1 / 99, 1, 1 / 99, 1])], None),
        ([("Mul", [[33]] * 24)], None),  # a factor for each box: strides
        ([("Mul", 1 / 33)], True),
        ([("Mul", 1 / 32)], None),
        ([("Mul", 0)], None),
        ([("Div", 99), ("Mul", 8)], True),
        ([("Mul", SIDES), ("Mul", 1 / 99)], True),
    ],
)
def test_products_behind_boxes_say_whether_they_are_pixels(steps, fractions):
    graph = Graph()
    boxes = graph("Sigmoid", graph.linear(graph.queries(), 8, 4))
    for operator, factor in steps:
        boxes = graph(operator, boxes, np.float32(factor))
    decoded = box_decoding(read(graph, boxes), boxes)
    assert decoded.method == BoxDecode.SIGMOID
    assert decoded.box_format == BoxFormat.CXCYWH
    assert decoded.fractions is fractions


def test_what_only_moves_elements_and_what_makes_them():
    node = helper.make_node
    for operator, moved in (("Where", "bc"), ("ScatterND", "c"), ("Tile", "a"), ("Concat", "abc")):
        assert moved_inputs(node(operator, list("abc"), ["y"]), "y") == list(moved)
    assert moved_inputs(node("Add", list("ab"), ["y"]), "y") is None
    assert [moved_inputs(node("TopK", list("ab"), list("yz")), name) for name in "yz"] == [
        ["a"],
        None,
    ]


def test_the_axis_that_is_cut_along():
    graph = Graph()
    source = graph.queries()  # [1, 24, 8]
    halves = graph.all("Split", source, np.array([3, 5]), outputs=2, axis=-1)
    cases = {
        halves[1]: (2, 3),
        graph("Gather", source, np.array([5]), axis=1): (1, 5),
        graph("Gather", source, np.array([0])): (0, 0),
        graph("Gather", source, np.array([5, 6]), axis=1): (None, 0),
        graph.cut(source, 2, 9, -2): (1, 2),
        graph("Slice", source, [0, 2], [1, 4], [0, 2]): (None, 0),
        graph("Slice", source, [0], [1]): (None, 0),
    }
    index = read(graph, *cases)
    cuts = {name: axis_and_start_of_cut(index, index.producer(name), name) for name in cases}
    assert {name: cut for name, cut in cuts.items() if cut[0] is not None} == {
        name: cut for name, cut in cases.items() if cut[0] is not None
    }


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


@pytest.mark.parametrize("joins", [1, 2, 3])
def test_boxes_that_are_joined_twice_are_still_followed(joins):
    graph = Graph()
    boxes = graph("Sigmoid", graph.linear(graph.queries(), 8, 4))
    for _ in range(joins):
        decoded_otherwise = graph("Sigmoid", graph.linear(graph.queries(), 8, 4))
        boxes = graph("Concat", boxes, decoded_otherwise, np.zeros((1, 2, 4)), axis=1)
    decoded = box_decoding(read(graph, boxes), boxes)
    assert (decoded and decoded.method) == (BoxDecode.SIGMOID if joins < 3 else None)


@pytest.mark.parametrize("dims", [(4,), (1, 1, 4), (24, 4)])
def test_constants_that_differ_from_query_to_query_are_earlier_boxes(dims):
    graph = Graph()
    changes = graph("MatMul", graph.queries(), graph.weights(8, 4))
    boxes = graph("Sigmoid", graph("Add", changes, graph.weights(*dims)))
    how = BoxDecode.REFINED if dims[0] == 24 else BoxDecode.SIGMOID
    assert box_decoding(read(graph, boxes), boxes).method is how


def test_a_softmax_without_an_axis_takes_the_last():
    graph = Graph()
    shares = graph("Softmax", graph.linear(graph.queries(), 8, 5))
    index = read(graph, shares)
    assert softmax_channel_count(index, index.producer(shares)) == 5


@pytest.mark.parametrize(
    ("steps", "is_same"),
    [
        ([], True),
        ([("Relu", {})], True),
        ([("Transpose", {"perm": [0, 2, 1]})], True),
        *(([("Relu", {})] * number, number <= 8) for number in (7, 8, 9, 20)),
    ],
)
def test_what_is_computed_twice_is_the_same(steps, is_same):
    graph = Graph()
    source = graph.queries()

    def behind(tensor, steps):
        for operator, attributes in steps:
            tensor = graph(operator, tensor, **attributes)
        return tensor

    computed_tensor = behind(source, steps)
    twin = behind(source, steps)
    different = [behind(graph.queries(), steps), behind(source, [*steps, ("Neg", {})])]
    if steps:
        different += [behind(source, [*steps[:-1], ("Transpose", {"perm": [1, 0, 2]})])]
    index = read(graph, computed_tensor, twin, *different)
    assert _hold_same_elements(index, computed_tensor, twin) == is_same
    for different_tensor in different:
        assert not _hold_same_elements(index, computed_tensor, different_tensor)


def test_constants_and_parts_are_the_same_by_what_they_hold():
    graph = Graph()
    source = graph.queries()
    halves = graph.all("Split", source, np.array([4, 4]), outputs=2, axis=2)
    twins = [graph("Mul", source, np.float32(factor)) for factor in (2, 2, 3)]
    index = read(graph, *halves, *twins)
    assert _hold_same_elements(index, twins[0], twins[1])
    assert not _hold_same_elements(index, twins[0], twins[2])
    assert not _hold_same_elements(index, *halves)


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
    assert _channel_axis_before(before, rank, axis, channels) == axis_before


def test_parts_that_are_joined_along_an_axis_from_the_end():
    graph = Graph()
    boxes, final = (graph.linear(graph.queries(), 8, count) for count in (4, 3))
    second_part = graph.linear(graph.queries(), 8, 2)
    head = graph("Concat", graph("Concat", boxes, final, axis=-1), second_part, axis=-1)
    assert groups_along(read(graph, head), head, 2) == [(4, boxes), (3, final), (2, second_part)]


def four(graph):
    """What a layer makes of four columns, `[B, N, 4]`."""
    return graph.swapped(graph.flat(graph.convolution(4, 8), 4))


def test_a_layers_own_boxes_are_not_decoded():
    graph = Graph()
    boxes = graph.flat(graph.convolution(4, 8), 4)
    assert box_decoding(read(graph, boxes), boxes) == Decoded(BoxDecode.LINEAR, BoxFormat.CXCYWH)


@pytest.mark.parametrize(
    ("same_centre", "same_half", "how"),
    [
        (True, True, BoxDecode.EXPONENTIAL),
        (False, True, BoxDecode.DISTANCES),
        (True, False, BoxDecode.DISTANCES),
    ],
)
def test_corners_around_a_centre_have_one_centre_and_one_half(same_centre, same_half, how):
    """A point less and plus two distances is no centre, even if these are exponentials."""
    graph = Graph()
    columns_of_boxes = four(graph)
    centre = graph("Add", graph.cut(columns_of_boxes, 0, 2, 2), np.float32([[[1.0, 2.0]]]))  # type: ignore[arg-type]
    half = graph("Exp", graph.cut(columns_of_boxes, 2, 4, 2))
    unrelated = four(graph)
    other_centre = graph("Add", graph.cut(unrelated, 0, 2, 2), np.float32([[[1.0, 2.0]]]))  # type: ignore[arg-type]
    other_half = graph("Exp", graph.cut(unrelated, 2, 4, 2))
    low = graph("Sub", centre, half)
    high = graph("Add", centre if same_centre else other_centre, half if same_half else other_half)
    boxes = graph("Concat", low, high, axis=2)
    decoded = box_decoding(read(graph, boxes), boxes)
    assert decoded.method is how
    assert decoded.box_format is BoxFormat.XYXY


@pytest.mark.parametrize("operator", ["Max", "Min", "Clip"])
def test_sides_that_end_at_the_image_are_no_centre_and_size(operator):
    graph = Graph()
    columns_of_boxes = four(graph)
    centre = graph.cut(columns_of_boxes, 0, 2, 2)
    size = graph("Exp", graph.cut(columns_of_boxes, 2, 4, 2))
    limited = graph(operator, centre, np.float32(1.0))
    index = read(graph, centre, size, limited)
    assert method_of_centre_and_size(index, centre, size) is BoxDecode.EXPONENTIAL
    assert method_of_centre_and_size(index, limited, size) is None


def test_a_cut_of_unknown_length_has_no_known_parts():
    graph = Graph()
    joined = graph("Concat", *(graph.flat(graph.convolution(n, 8), n) for n in (2, 3)), axis=1)
    end = graph.cut(graph("Shape", joined), 1, 2, 0)
    part = graph("Slice", joined, np.array([1]), graph("Sub", end, np.array([1])), np.array([1]))
    index = read(graph, part)
    index.shapes[part] = [1, "length", 96]  # as where nothing is folded
    assert channel_groups(index, part) == (part, [])


def test_a_join_of_parts_of_unknown_size_is_not_clear():
    graph = Graph()
    parts = [graph.flat(graph.convolution(n, 8), n) for n in (2, 3)]
    joined = graph("Concat", *parts, axis=1)
    index = read(graph, joined)
    assert groups_along(index, joined, 1) == [(2, parts[0]), (3, parts[1])]
    index.shapes[parts[1]] = [1, "channels", 96]
    assert groups_along(index, joined, 1) == []


def test_a_transpose_without_an_order_tells_no_columns():
    """It reverses all axes, which no exporter writes for a head."""
    graph = Graph()
    parts = [graph.flat(graph.convolution(n, 8), n) for n in (2, 3)]
    turned = graph("Transpose", graph("Concat", *parts, axis=1))
    assert groups_along(read(graph, turned), turned, 1) == []


@pytest.mark.parametrize(
    ("points", "are_corners"),
    [
        (np.arange(96, dtype=np.float32), True),
        (np.arange(96, dtype=np.float32) + 0.5, False),
        (np.float32(0), False),
        (np.zeros(1, np.float32), False),
    ],
    ids=["corners", "centres", "a number", "a number in a list"],
)
def test_distances_from_corners_begin_at_a_list_of_points_with_0(points, are_corners):
    graph = Graph()
    distances = graph.flat(graph.convolution(4, 8), 4)
    sides = graph("Sub", points, distances)
    assert measures_from_cell_corners(read(graph, sides), sides) == are_corners


def test_halves_that_are_cut_out_together_are_centre_and_size_in_their_order():
    graph = Graph()
    centre = graph("Sigmoid", graph.flat(graph.convolution(2, 8), 2))
    size = graph("Exp", graph.flat(graph.convolution(2, 8), 2))
    scores = graph("Sigmoid", graph.flat(graph.convolution(3, 8), 3))
    joined = graph("Concat", centre, size, scores, axis=1)
    boxes = graph.cut(joined, 0, 4, 1)
    decoded = box_decoding(read(graph, boxes), boxes)
    assert decoded.method is BoxDecode.GRID


@pytest.mark.parametrize("sums_up", [True, False])
def test_a_centre_is_half_the_sum_of_two_corners(sums_up):
    graph = Graph()
    points = np.arange(96, dtype=np.float32) + 0.5
    low = graph("Sub", points, graph.flat(graph.convolution(2, 8), 2))
    high = graph("Add", points, graph.flat(graph.convolution(2, 8), 2))
    doubled = graph("Add", low, high) if sums_up else low
    centre = graph("Div", doubled, np.float32(2))
    boxes = graph("Concat", centre, graph("Sub", high, low), axis=1)
    decoded = box_decoding(read(graph, boxes), boxes)
    assert (decoded is not None) == sums_up
