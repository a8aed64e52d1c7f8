"""Graphs that are nearly a head of boxes and scores, and are not read as one."""

import numpy as np
import pytest
from graph_builder import Graph
from onnx import TensorProto, helper
from query_heads import boxes_and_scores, index_of

from detcli.model.contract import Layout
from detcli.model.heads import Activation, BoxDecode, Unrecognised
from detcli.model.heads.before_selection import (
    find_best_class_head,
    find_plugin_head,
    find_query_head,
)
from detcli.model.heads.joined import (
    _class_count,
    box_tensor_of,
    find_joined_head,
    score_tensor_of,
    swaps_last_axes,
    task_besides_boxes,
)
from detcli.model.heads.pairs import find_pair_head
from detcli.model.heads.queries import has_patches


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        (None, "masks, keypoints or angles follow"),
        (1, "it finds oriented boxes"),
        (2, "it finds poses: 2 numbers"),
    ],
)
def test_a_task_is_not_guessed_where_the_number_of_columns_is_unknown(extra, reason):
    graph = Graph()
    boxes, _ = boxes_and_scores(graph)
    assert reason in task_besides_boxes(index_of(graph, [boxes]), extra)


def test_boxes_beside_two_outputs_of_scores_are_asked_about():
    graph = Graph()
    boxes, scores = boxes_and_scores(graph)
    more_scores = graph("Sigmoid", graph.linear(graph.queries(), 8, 3))
    with pytest.raises(Unrecognised, match="two of its outputs may be the boxes"):
        find_pair_head(index_of(graph, [boxes, scores, more_scores]))


@pytest.mark.parametrize("position", [0, 1, 2])
def test_an_output_with_fewer_axes_is_neither_boxes_nor_scores(position):
    graph = Graph()
    boxes, scores = boxes_and_scores(graph)
    outputs = [boxes, scores]
    outputs.insert(position, graph("ReduceMax", scores, axes=[2], keepdims=0))
    head = find_pair_head(index_of(graph, outputs))
    assert head.boxes[0].tensor == boxes
    assert head.scores[0].tensor == scores


def test_a_best_class_that_no_output_tells_does_not_select():
    graph = Graph()
    boxes, scores = boxes_and_scores(graph)
    labels = graph("ArgMax", scores, axis=2, keepdims=1)
    assert find_best_class_head(index_of(graph, [boxes, scores])) is None
    assert find_best_class_head(index_of(graph, [boxes, labels])).best_class_only


@pytest.mark.parametrize("suppresses", [False, True])
def test_what_is_suppressed_is_not_read_before_its_top_k(suppresses):
    graph = Graph()
    boxes, scores = boxes_and_scores(graph)
    best, indices = graph.all("TopK", graph("Flatten", scores, axis=1), [5], outputs=2, axis=1)
    rows = graph("Unsqueeze", graph("Div", indices, np.int64(3)), [2])
    entries = graph("Tile", rows, [1, 1, 4])
    chosen_boxes = graph("GatherElements", boxes, entries, axis=1)
    outputs = [chosen_boxes, best]
    if suppresses:
        by_class = graph("Unsqueeze", best, [1])
        outputs.append(graph("NonMaxSuppression", chosen_boxes, by_class, np.array([5])))
    head = find_query_head(index_of(graph, outputs))
    assert (head is None) == suppresses


def test_scores_that_cannot_be_told_from_their_boxes_are_taken_for_sigmoids():
    """A layer gives both at once, so that its output says nothing about the scores alone."""
    graph = Graph()
    rows = graph.linear(graph.queries(), 8, 7)
    head = find_joined_head(index_of(graph, [rows]), ["red", "green", "blue"], boxes_only=False)
    assert head.class_count == 3
    assert head.scores_are is Activation.SIGMOID


@pytest.mark.parametrize("activated", [True, False])
@pytest.mark.parametrize(("part", "class_count"), [(1, 3), (0, 4)])
def test_a_split_tells_the_number_of_classes_where_that_of_columns_is_unknown(
    activated, part, class_count
):
    graph = Graph()
    rows = graph.input("rows", TensorProto.FLOAT, [1, 24, "columns"])
    parts = graph.all("Split", rows, np.array([4, 3]), outputs=2, axis=2)
    scores = graph("Sigmoid", parts[part]) if activated else parts[part]
    index = index_of(graph, [scores, graph("Relu", rows)])
    assert _class_count(index, rows, scores, anchors_first=True) == class_count


@pytest.mark.parametrize("tensor", ["rows", "scores"])
def test_without_a_split_an_unknown_number_of_columns_stays_unknown(tensor):
    graph = Graph()
    rows = graph.input("rows", TensorProto.FLOAT, [1, 24, "columns"])
    scores = graph("Sigmoid", rows)
    index = index_of(graph, [scores])
    assert (
        _class_count(index, rows, rows if tensor == "rows" else scores, anchors_first=True) is None
    )


@pytest.mark.parametrize(("rows", "is_head"), [(24, True), (7, False)])
def test_of_as_many_rows_as_columns_neither_is_taken_for_channels(rows, is_head):
    graph = Graph()
    queries = graph.cut(graph.queries(), 0, rows, 1)
    head = graph("Relu", graph.linear(queries, 8, 7))
    index = index_of(graph, [head])
    names = ["red", "green", "blue"]
    assert (find_joined_head(index, names, boxes_only=False) is not None) == is_head


def test_three_parts_behind_a_box_are_no_objectness_and_classes():
    graph = Graph()
    centre = graph("Sigmoid", graph.maps(2))
    size = graph("Exp", graph.maps(2))
    parts = [centre, size]
    for count in (1, 3, 5):
        parts.append(graph("Sigmoid", graph.maps(count)))
    index = index_of(graph, [graph.concat(parts, axis=1)])
    with pytest.raises(Unrecognised, match="8 numbers of keypoints"):
        find_joined_head(index, None, boxes_only=False)


def test_the_scores_of_a_head_are_what_it_joins_to_the_boxes():
    graph = Graph()
    boxes, scores = boxes_and_scores(graph)
    rows = graph("Concat", boxes, scores, axis=2)
    index = index_of(graph, [rows, graph("Relu", rows)])
    assert score_tensor_of(index, rows) == scores
    assert score_tensor_of(index, scores) == scores


def test_boxes_and_scores_are_the_first_two_inputs_of_a_plugin():
    """Anchors are its third, where it has one."""
    graph = Graph()
    boxes, scores = boxes_and_scores(graph)
    anchors = graph.constant(graph.weights(1, 24, 4))
    outputs = graph.all("EfficientNMS_TRT", boxes, scores, anchors, outputs=4, domain="TRT")
    head = find_plugin_head(index_of(graph, outputs))
    assert head.boxes[0].tensor == boxes
    assert head.scores[0].tensor == scores


@pytest.mark.parametrize(
    ("kernel", "are_patches"), [((8, 8), True), ((7, 7), False), ((16, 4), False)]
)
def test_patches_have_eight_pixels_a_side_or_more(kernel, are_patches):
    graph = Graph(size=(112, 112))
    height, width = kernel
    weights = graph.weights(8, 3, height, width)
    maps = graph("Conv", "images", weights, kernel_shape=list(kernel), strides=list(kernel))
    assert has_patches(index_of(graph, [maps])) == are_patches


def test_scores_that_an_objectness_was_multiplied_into_have_none_left():
    """One layer makes boxes and scores, and what joined them is cut in two again."""
    graph = Graph()
    numbers = graph("Sigmoid", graph.linear(graph.queries(), 8, 8))
    scores = graph("Mul", graph.cut(numbers, 5, 8, 2), graph.cut(numbers, 4, 5, 2))
    joined = graph("Concat", graph.cut(numbers, 0, 4, 2), scores, axis=2)
    boxes = graph.cut(joined, 0, 4, 2)
    head = find_pair_head(index_of(graph, [boxes, graph.cut(joined, 4, 7, 2)]))
    assert not head.objectness
    assert head.class_count == 3


def best_rows(graph, scores, count):
    """Where the best of some scores [B, 24, C] are, [B, count, 1]."""
    best = graph("ReduceMax", scores, axes=[2], keepdims=0)
    _, indices = graph.all("TopK", best, [count], outputs=2, axis=1)
    return graph("Unsqueeze", indices, [2])


def chosen(graph, tensor, rows, columns):
    """Some rows of a tensor [B, 24, columns]."""
    return graph("GatherElements", tensor, graph("Tile", rows, [1, 1, columns]), axis=1)


def test_queries_that_are_chosen_before_layers_decode_them_are_a_head():
    """As in a transformer that chooses its best queries, and has more layers for these."""
    graph = Graph()
    _, scores = boxes_and_scores(graph)
    features = chosen(graph, graph.queries(), best_rows(graph, scores, 5), 8)
    boxes = graph("Sigmoid", graph.linear(features, 8, 4))
    final_scores = graph("Sigmoid", graph.linear(features, 8, 3))
    index = index_of(graph, [graph("Concat", boxes, final_scores, axis=2)])
    assert find_joined_head(index, None, boxes_only=False).class_count == 3


def test_detections_that_are_chosen_by_finished_scores_are_no_head():
    graph = Graph()
    _, scores = boxes_and_scores(graph)
    rows = best_rows(graph, scores, 5)
    features = chosen(graph, graph.queries(), rows, 8)
    boxes = graph("Sigmoid", graph.linear(features, 8, 4))
    detections = graph("Concat", boxes, chosen(graph, scores, rows, 3), axis=2)
    assert find_joined_head(index_of(graph, [detections]), None, boxes_only=False) is None


def test_boxes_that_do_not_depend_on_the_choice_of_the_scores_are_no_head():
    graph = Graph()
    boxes, scores = boxes_and_scores(graph)
    features = chosen(graph, graph.queries(), best_rows(graph, scores, 24), 8)
    final_scores = graph("Sigmoid", graph.linear(features, 8, 3))
    index = index_of(graph, [graph("Concat", boxes, final_scores, axis=2)])
    assert find_joined_head(index, None, boxes_only=False) is None


def test_images_of_a_batch_that_are_joined_are_no_boxes_and_scores():
    """Names tell that seven columns are a box and three scores."""
    graph = Graph()
    first_image = graph("Relu", graph.linear(graph.queries(), 8, 7))
    second_image = graph("Relu", graph.linear(graph.queries(), 8, 7))
    index = index_of(graph, [graph("Concat", first_image, second_image, axis=0)])
    head = find_joined_head(index, ["red", "green", "blue"], boxes_only=False)
    assert head.anchors_first
    assert head.class_count == 3


def test_the_scores_of_a_head_are_followed_through_a_transpose_of_its_last_axes():
    graph = Graph()
    boxes, scores = boxes_and_scores(graph)
    rows = graph("Concat", boxes, scores, axis=2)
    swapped = graph.swapped(rows)
    moved = graph("Transpose", rows, perm=[1, 0, 2])
    index = index_of(graph, [swapped, moved])
    assert score_tensor_of(index, swapped) == scores
    assert box_tensor_of(index, swapped) == boxes
    assert score_tensor_of(index, moved) == moved
    assert box_tensor_of(index, moved) == moved


@pytest.mark.parametrize(
    ("node", "swaps"),
    [
        (helper.make_node("Transpose", ["a"], ["b"], perm=[0, 2, 1]), True),
        (helper.make_node("Transpose", ["a"], ["b"], perm=[1, 0, 2]), False),
        (helper.make_node("Transpose", ["a"], ["b"]), False),
        (helper.make_node("Relu", ["a"], ["b"]), False),
    ],
    ids=["last two", "first two", "all", "none"],
)
def test_which_nodes_swap_channels_and_anchors(node, swaps):
    assert swaps_last_axes(node) == swaps


def test_detections_whose_scores_a_selection_gives_are_no_head():
    """No layer is behind its scores but that of the numbers that it selects by."""
    graph = Graph()
    boxes, scores = boxes_and_scores(graph)
    best = graph("ReduceMax", scores, axes=[2], keepdims=0)
    values, indices = graph.all("TopK", best, [5], outputs=2, axis=1)
    best_boxes = chosen(graph, boxes, graph("Unsqueeze", indices, [2]), 4)
    detections = graph("Concat", best_boxes, graph("Unsqueeze", values, [2]), axis=2)
    assert find_joined_head(index_of(graph, [detections]), None, boxes_only=False) is None


@pytest.mark.parametrize(
    ("axis", "swaps", "anchors_first"),
    [(2, False, True), (2, True, False), (1, False, False), (1, True, True)],
)
def test_the_axis_of_a_join_is_that_of_the_channels_where_no_size_shows_it(
    axis, swaps, anchors_first
):
    graph = Graph()
    boxes, _ = boxes_and_scores(graph)
    dims = [1, 24, "classes"]
    if axis == 1:
        boxes = graph.swapped(boxes)
        dims = [1, "classes", 24]
    scores = graph.input("scores", TensorProto.FLOAT, dims)
    head_tensor = graph("Concat", boxes, scores, axis=axis)
    if swaps:
        head_tensor = graph.swapped(head_tensor)
    head = find_joined_head(index_of(graph, [head_tensor]), None, boxes_only=False)
    assert head.anchors_first == anchors_first
    assert head.class_count is None
    assert head.decoded.method is BoxDecode.SIGMOID


def test_a_tensor_of_unclear_channels_beside_another_output_is_no_head():
    graph = Graph()
    rows = graph("Relu", graph.linear(graph.queries(), 8, 7))
    index = index_of(graph, [rows, graph.queries()])
    names = ["red", "green", "blue"]
    assert find_joined_head(index, names, boxes_only=False) is None


def test_a_head_of_three_axes_is_not_followed_to_a_tensor_of_two():
    graph = Graph()
    rows = graph("Relu", graph.linear(graph.queries(), 8, 7))
    of_one_image = graph("Relu", graph("Squeeze", rows, [0]))
    head_tensor = graph("Unsqueeze", of_one_image, [0])
    names = ["red", "green", "blue"]
    head = find_joined_head(index_of(graph, [head_tensor]), names, boxes_only=False)
    assert head.class_count == 3


def test_as_many_images_as_channels_are_no_channels():
    graph = Graph(batch=7)
    rows = graph("Relu", graph.linear(graph.queries(), 8, 9))
    names = ["red", "green", "blue"]
    assert find_joined_head(index_of(graph, [rows]), names, boxes_only=False) is None


@pytest.mark.parametrize("has_sizes", [True, False])
def test_a_split_whose_sizes_are_not_constant_does_not_tell_the_number_of_classes(has_sizes):
    """Without sizes, its parts are equal."""
    graph = Graph()
    rows = graph.input("rows", TensorProto.FLOAT, [1, 24, "columns"])
    if has_sizes:
        sizes = graph.input("sizes", TensorProto.INT64, [2])
        parts = graph.all("Split", rows, sizes, outputs=2, axis=2)
    else:
        parts = graph.all("Split", rows, outputs=2, axis=2)
    index = index_of(graph, [parts[1], graph("Relu", rows)])
    assert _class_count(index, rows, parts[1], anchors_first=True) is None


def test_an_objectness_is_told_behind_boxes_of_an_unknown_decoding():
    graph = Graph()
    features = graph.queries()
    boxes = graph("Relu", graph.linear(features, 8, 4))
    objectness = graph("Sigmoid", graph.linear(features, 8, 1))
    scores = graph("Sigmoid", graph.linear(features, 8, 3))
    index = index_of(graph, [graph("Concat", boxes, objectness, scores, axis=2)])
    head = find_joined_head(index, None, boxes_only=False)
    assert head.objectness
    assert head.class_count == 3
    assert head.decoded is None
    assert head.layout is Layout.ONE_TO_MANY
    assert head.scores_are is Activation.SIGMOID


def test_two_tensors_of_an_unknown_decoding_are_no_centre_and_size():
    graph = Graph()
    features = graph.queries()
    first_half = graph("Relu", graph.linear(features, 8, 2))
    second_half = graph("Relu", graph.linear(features, 8, 2))
    scores = graph("Sigmoid", graph.linear(features, 8, 3))
    index = index_of(graph, [graph("Concat", first_half, second_half, scores, axis=2)])
    assert find_joined_head(index, None, boxes_only=False) is None


def test_numbers_that_are_no_probabilities_are_not_scores_before_keypoints():
    graph = Graph()
    boxes, _ = boxes_and_scores(graph)
    features = graph.queries()
    three_numbers = graph.linear(features, 8, 3)
    two_numbers = graph.linear(features, 8, 2)
    index = index_of(graph, [graph("Concat", boxes, three_numbers, two_numbers, axis=2)])
    assert find_joined_head(index, None, boxes_only=False) is None


def test_boxes_that_are_joined_from_centre_and_size_are_not_boxes_and_scores():
    graph = Graph()
    features = graph.queries()
    centre = graph("Sigmoid", graph.linear(features, 8, 2))
    size = graph("Sigmoid", graph.linear(features, 8, 2))
    boxes = graph("Concat", centre, size, axis=2)
    index = index_of(graph, [boxes])
    assert box_tensor_of(index, boxes) == boxes
    assert score_tensor_of(index, boxes) == boxes


@pytest.mark.parametrize("activated", [True, False])
def test_an_input_of_the_graph_is_a_head_of_its_own(activated):
    graph = Graph()
    rows = graph.input("rows", TensorProto.FLOAT, [1, 24, 7])
    output = graph("Relu", rows) if activated else graph.swapped(rows)
    assert box_tensor_of(index_of(graph, [output]), rows) == rows
