"""How the boxes of a head are decoded."""

import numpy as np
import pytest
from graph_builder import Graph
from onnx import TensorProto
from query_heads import index_of

from detcli.config.values import BoxFormat
from detcli.model.heads import BoxDecode, Decoded
from detcli.model.heads.decode import (
    _hold_same_elements,
    _tell_if_factor_gives_fractions,
    box_decoding,
    decoding_of_joined_boxes,
    distance_bin_count,
    measures_from_cell_corners,
    method_of_centre_and_size,
)
from detcli.model.heads.layers import is_linear, layer_ending_at

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
    decoded = box_decoding(index_of(graph, [boxes]), boxes)
    assert decoded.method == BoxDecode.SIGMOID
    assert decoded.box_format == BoxFormat.CXCYWH
    assert decoded.fractions is fractions


@pytest.mark.parametrize("joins", [1, 2, 3])
def test_boxes_that_are_joined_twice_are_still_followed(joins):
    graph = Graph()
    boxes = graph("Sigmoid", graph.linear(graph.queries(), 8, 4))
    for _ in range(joins):
        decoded_otherwise = graph("Sigmoid", graph.linear(graph.queries(), 8, 4))
        boxes = graph("Concat", boxes, decoded_otherwise, np.zeros((1, 2, 4)), axis=1)
    decoded = box_decoding(index_of(graph, [boxes]), boxes)
    assert (decoded and decoded.method) == (BoxDecode.SIGMOID if joins < 3 else None)


@pytest.mark.parametrize("dims", [(4,), (1, 1, 4), (24, 4)])
def test_constants_that_differ_from_query_to_query_are_earlier_boxes(dims):
    graph = Graph()
    changes = graph("MatMul", graph.queries(), graph.weights(8, 4))
    boxes = graph("Sigmoid", graph("Add", changes, graph.weights(*dims)))
    how = BoxDecode.REFINED if dims[0] == 24 else BoxDecode.SIGMOID
    assert box_decoding(index_of(graph, [boxes]), boxes).method is how


@pytest.mark.parametrize(
    ("steps", "is_same"),
    [
        ([], True),
        ([("Relu", {})], True),
        ([("Transpose", {"perm": [0, 2, 1]})], True),
        ([("Relu", {})] * 7, True),
        ([("Relu", {})] * 8, True),
        ([("Relu", {})] * 9, False),
        ([("Relu", {})] * 20, False),
    ],
)
def test_what_is_computed_twice_is_the_same(steps, is_same):
    graph = Graph()
    source = graph.queries()

    def behind(tensor, steps):
        for operator, attributes in steps:
            tensor = graph(operator, tensor, **attributes)
        return tensor

    first_tensor = behind(source, steps)
    second_tensor = behind(source, steps)
    different = [
        behind(graph.queries(), steps),
        behind(source, steps + [("Neg", {})]),
    ]
    if steps:
        different.append(behind(source, steps[:-1] + [("Transpose", {"perm": [1, 0, 2]})]))
    index = index_of(graph, [first_tensor, second_tensor] + different)
    assert _hold_same_elements(index, first_tensor, second_tensor) == is_same
    for different_tensor in different:
        assert not _hold_same_elements(index, first_tensor, different_tensor)


def test_constants_and_parts_are_the_same_by_what_they_hold():
    graph = Graph()
    source = graph.queries()
    first_half, second_half = graph.all("Split", source, np.array([4, 4]), outputs=2, axis=2)
    doubled = graph("Mul", source, np.float32(2))
    doubled_again = graph("Mul", source, np.float32(2))
    tripled = graph("Mul", source, np.float32(3))
    index = index_of(graph, [first_half, second_half, doubled, doubled_again, tripled])
    assert _hold_same_elements(index, doubled, doubled_again)
    assert not _hold_same_elements(index, doubled, tripled)
    assert not _hold_same_elements(index, first_half, second_half)


def four(graph):
    """What a layer makes of four columns, `[B, N, 4]`."""
    return graph.swapped(graph.flat_convolution(4))


def test_a_layers_own_boxes_are_not_decoded():
    graph = Graph()
    boxes = graph.flat_convolution(4)
    assert box_decoding(index_of(graph, [boxes]), boxes) == Decoded(
        BoxDecode.LINEAR, BoxFormat.CXCYWH
    )


def test_tensors_with_other_sources_or_more_inputs_are_different():
    graph = Graph()
    source = graph.queries()
    pair = graph("Concat", source, source, axis=1)
    triple = graph("Concat", source, source, source, axis=1)
    index = index_of(graph, [pair, triple])
    assert not _hold_same_elements(index, pair, triple)
    assert not _hold_same_elements(index, "images", source)
    assert not _hold_same_elements(index, source, "images")
    assert _hold_same_elements(index, "images", "images")


@pytest.mark.parametrize("half_first", [True, False])
def test_corners_around_a_centre_are_told_in_either_order_of_a_sum(half_first):
    graph = Graph()
    columns_of_boxes = four(graph)
    centre = graph("Add", graph.cut(columns_of_boxes, 0, 2, 2), np.float32([[[1.0, 2.0]]]))  # type: ignore[arg-type]
    half = graph("Exp", graph.cut(columns_of_boxes, 2, 4, 2))
    low = graph("Sub", centre, half)
    if half_first:
        high = graph("Add", half, centre)
    else:
        high = graph("Add", centre, half)
    boxes = graph("Concat", low, high, axis=2)
    assert box_decoding(index_of(graph, [boxes]), boxes).method is BoxDecode.EXPONENTIAL


def test_a_sigmoid_of_an_input_is_of_no_layer():
    graph = Graph()
    estimates = graph.input("estimates", TensorProto.FLOAT, [1, 24, 4])
    boxes = graph("Sigmoid", estimates)
    assert box_decoding(index_of(graph, [boxes]), boxes).method is BoxDecode.REFINED


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
    decoded = box_decoding(index_of(graph, [boxes]), boxes)
    assert decoded.method is how
    assert decoded.box_format is BoxFormat.XYXY


@pytest.mark.parametrize("operator", ["Max", "Min", "Clip"])
def test_sides_that_end_at_the_image_are_no_centre_and_size(operator):
    graph = Graph()
    columns_of_boxes = four(graph)
    centre = graph.cut(columns_of_boxes, 0, 2, 2)
    size = graph("Exp", graph.cut(columns_of_boxes, 2, 4, 2))
    limited = graph(operator, centre, np.float32(1.0))
    index = index_of(graph, [centre, size, limited])
    assert method_of_centre_and_size(index, centre, size) is BoxDecode.EXPONENTIAL
    assert method_of_centre_and_size(index, limited, size) is None


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
    distances = graph.flat_convolution(4)
    sides = graph("Sub", points, distances)
    assert measures_from_cell_corners(index_of(graph, [sides]), sides) == are_corners


def test_halves_that_are_cut_out_together_are_centre_and_size_in_their_order():
    graph = Graph()
    centre = graph("Sigmoid", graph.flat_convolution(2))
    size = graph("Exp", graph.flat_convolution(2))
    scores = graph("Sigmoid", graph.flat_convolution(3))
    joined = graph("Concat", centre, size, scores, axis=1)
    boxes = graph.cut(joined, 0, 4, 1)
    decoded = box_decoding(index_of(graph, [boxes]), boxes)
    assert decoded.method is BoxDecode.GRID


@pytest.mark.parametrize("sums_up", [True, False])
def test_a_centre_is_half_the_sum_of_two_corners(sums_up):
    graph = Graph()
    points = np.arange(96, dtype=np.float32) + 0.5
    low = graph("Sub", points, graph.flat_convolution(2))
    high = graph("Add", points, graph.flat_convolution(2))
    doubled = graph("Add", low, high) if sums_up else low
    centre = graph("Div", doubled, np.float32(2))
    boxes = graph("Concat", centre, graph("Sub", high, low), axis=1)
    decoded = box_decoding(index_of(graph, [boxes]), boxes)
    assert (decoded is not None) == sums_up


@pytest.mark.parametrize(("length", "is_known"), [(390, True), (410, False)])
def test_a_search_for_layers_ends_after_400_nodes(length, is_known):
    """A graph may be deep, and reach its nodes in many ways."""
    graph = Graph()
    deep = graph.linear(graph.queries(), 8, 4)
    for _ in range(length):
        deep = graph("Neg", deep)
    index = index_of(graph, [deep])
    assert is_linear(index, index.producer(deep)) == is_known


def quantised_layer(graph):
    """The output of a layer in integers, with its scale."""
    integers, scale, zero_point = graph.all("DynamicQuantizeLinear", graph.queries(), outputs=3)
    weights = np.ones((8, 4), np.uint8)
    product = graph("MatMulInteger", integers, weights, zero_point, np.uint8(0))
    return graph("Mul", graph("Cast", product, to=TensorProto.FLOAT), scale)


def test_a_quantised_layer_ends_with_its_bias():
    graph = Graph()
    scaled = quantised_layer(graph)
    biased = graph("Add", scaled, graph.constant(np.ones(4, np.float32)))
    total = graph("Add", scaled, quantised_layer(graph))
    index = index_of(graph, [biased, total])
    assert layer_ending_at(index, index.producer(scaled)).op_type == "MatMulInteger"
    assert layer_ending_at(index, index.producer(biased)).op_type == "MatMulInteger"
    assert layer_ending_at(index, index.producer(total)) is None  # two layers are in it


def test_a_size_may_be_the_product_of_two_tensors():
    """The exponential is found in either of them."""
    graph = Graph()
    columns = four(graph)
    centre = graph("Add", graph.cut(columns, 0, 2, 2), np.float32([[[1.0, 2.0]]]))  # type: ignore[arg-type]
    half = graph("Mul", graph.cut(four(graph), 0, 2, 2), graph("Exp", graph.cut(columns, 2, 4, 2)))
    boxes = graph("Concat", graph("Sub", centre, half), graph("Add", centre, half), axis=2)
    decoded = box_decoding(index_of(graph, [boxes]), boxes)
    assert decoded.method is BoxDecode.EXPONENTIAL


@pytest.mark.parametrize(
    ("centre_is_sigmoid", "size_is_sigmoid", "method"),
    [
        (True, True, BoxDecode.GRID),
        (True, False, None),
        (False, True, None),
        (False, False, None),
    ],
)
def test_a_grid_has_sigmoids_in_centres_and_in_sizes(centre_is_sigmoid, size_is_sigmoid, method):
    graph = Graph()
    columns = four(graph)
    centre = graph.cut(columns, 0, 2, 2)
    if centre_is_sigmoid:
        centre = graph("Sigmoid", centre)
    size = graph.cut(columns, 2, 4, 2)
    if size_is_sigmoid:
        size = graph("Sigmoid", size)
    assert method_of_centre_and_size(index_of(graph, [centre, size]), centre, size) is method


def test_a_distance_that_is_a_plain_number_has_one_bin():
    graph = Graph()
    boxes = graph("Sub", np.arange(96, dtype=np.float32), four(graph))
    assert distance_bin_count(index_of(graph, [boxes]), boxes) == 1


def test_a_distance_has_as_many_bins_as_its_softmax():
    graph = Graph()
    bins = graph("Reshape", graph.convolution(64, 8), [0, 4, 16, -1])
    shares = graph("Softmax", bins, axis=2)
    distances = graph("ReduceSum", shares, np.array([2]), keepdims=0)
    assert distance_bin_count(index_of(graph, [distances]), distances) == 16


@pytest.mark.parametrize("refines_size", [True, False])
def test_boxes_are_refined_if_one_of_their_halves_is_added_to_an_earlier_estimate(refines_size):
    graph = Graph()
    centre = graph.linear(graph.queries(), 8, 2)
    size = graph.linear(graph.queries(), 8, 2)
    if refines_size:
        earlier_size = graph("Log", graph("Sigmoid", graph.linear(graph.queries(), 8, 2)))
        size = graph("Add", size, earlier_size)
    boxes = graph("Sigmoid", graph("Concat", centre, size, axis=2))
    method = BoxDecode.REFINED if refines_size else BoxDecode.SIGMOID
    assert box_decoding(index_of(graph, [boxes]), boxes).method is method


@pytest.mark.parametrize(
    ("first_count", "second_count", "are_halves"),
    [(2, 2, True), (1, 3, False), (2, 3, False), (3, 2, False)],
)
def test_centre_and_size_have_two_columns_each(first_count, second_count, are_halves):
    graph = Graph()
    first = graph("Add", graph.flat_convolution(first_count), np.float32(1))
    second = graph("Exp", graph.flat_convolution(second_count))
    boxes = graph("Concat", first, second, axis=1)
    decoded = box_decoding(index_of(graph, [boxes]), boxes)
    assert (decoded is not None) == are_halves


def test_four_single_coordinates_are_no_halves():
    """Each is of two rows, and so has as many of these as a centre has columns."""
    graph = Graph()
    two_rows = graph.cut(graph.queries(), 0, 2, 1)
    columns = [graph("Exp", graph.linear(two_rows, 8, 1)) for _ in range(4)]
    boxes = graph.concat(columns, axis=2)
    assert box_decoding(index_of(graph, [boxes]), boxes) is None


@pytest.mark.parametrize(("count", "is_known"), [(64, True), (65, False)])
def test_boxes_of_64_scales_are_followed(count, is_known):
    graph = Graph()
    boxes = graph("Sigmoid", graph.linear(graph.queries(), 8, 4))
    joined = graph.concat([boxes] * count, axis=1)
    assert (box_decoding(index_of(graph, [joined]), joined) is not None) == is_known


@pytest.mark.parametrize(("move_count", "fractions"), [(15, True), (16, None)])
def test_the_unit_of_boxes_is_that_of_a_product_among_the_last_16_nodes(move_count, fractions):
    graph = Graph()
    boxes = graph("Sigmoid", graph.linear(graph.queries(), 8, 4))
    boxes = graph("Div", boxes, np.float32(99))
    for _ in range(move_count):
        boxes = graph.swapped(boxes)
    decoded = box_decoding(index_of(graph, [boxes]), boxes)
    assert decoded.method is BoxDecode.SIGMOID
    assert decoded.fractions is fractions


def test_boxes_that_an_input_of_the_graph_scales_are_followed():
    graph = Graph()
    scales = graph.input("scales", TensorProto.FLOAT, [1, 1, 4])
    boxes = graph("Mul", scales, graph("Sigmoid", graph.linear(graph.queries(), 8, 4)))
    assert box_decoding(index_of(graph, [boxes]), boxes).method is BoxDecode.SIGMOID


def test_boxes_that_are_decoded_in_two_ways_are_not_known():
    graph = Graph()
    changes = graph.linear(graph.queries(), 8, 4)
    boxes = graph("Concat", graph("Sigmoid", changes), changes, axis=1)
    assert box_decoding(index_of(graph, [boxes]), boxes) is None


@pytest.mark.parametrize("divides", [True, False])
def test_a_factor_without_elements_says_nothing_about_the_unit(divides):
    assert _tell_if_factor_gives_fractions(np.zeros(0, np.float32), divides=divides) is None


def test_the_unit_of_boxes_in_two_tensors_is_that_of_the_first():
    graph = Graph()
    centre = graph("Div", graph("Sigmoid", graph.maps(2)), np.float32(99))
    size = graph("Exp", graph.maps(2))
    index = index_of(graph, [centre, size])
    assert decoding_of_joined_boxes(index, [centre, size]).fractions is True


def test_corners_of_several_scales_are_around_a_centre_in_each():
    graph = Graph()
    low = []
    high = []
    for _ in range(2):
        columns = four(graph)
        centre = graph("Add", graph.cut(columns, 0, 2, 2), np.float32([[[1.0, 2.0]]]))  # type: ignore[arg-type]
        half = graph("Exp", graph.cut(columns, 2, 4, 2))
        low.append(graph("Sub", centre, half))
        high.append(graph("Add", centre, half))
    boxes = graph("Concat", graph.concat(low, axis=1), graph.concat(high, axis=1), axis=2)
    assert box_decoding(index_of(graph, [boxes]), boxes).method is BoxDecode.EXPONENTIAL


def test_two_images_of_a_batch_are_not_two_columns():
    graph = Graph(batch=2)
    first = graph("Add", graph("Relu", graph.linear(graph.queries(), 8, 1)), np.float32(1))
    second = graph("Exp", graph.linear(graph.queries(), 8, 3))
    boxes = graph("Concat", first, second, axis=2)
    assert box_decoding(index_of(graph, [boxes]), boxes) is None
