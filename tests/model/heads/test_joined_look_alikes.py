"""Graphs that are nearly a head of boxes and scores, and are not read as one."""

import numpy as np
import pytest
from graph_builder import Graph
from onnx import TensorProto, helper

from detcli.model.editing import infer_shapes
from detcli.model.graph import GraphIndex
from detcli.model.heads import Activation, BoxDecode, Unrecognised
from detcli.model.heads.before_selection import (
    find_best_class_head,
    find_plugin_head,
    find_query_head,
)
from detcli.model.heads.joined import (
    _class_count,
    _task_besides_boxes,
    box_tensor_of,
    find_end_to_end_head,
    find_joined_head,
    score_tensor_of,
    swaps_last_axes,
)
from detcli.model.heads.pairs import find_pair_head
from detcli.model.heads.queries import has_patches


def index_of(graph, *outputs):
    return GraphIndex(infer_shapes(graph.model(list(outputs))).graph)


def boxes_and_scores(graph):
    """Of 24 queries: boxes [B, 24, 4] and scores of three classes [B, 24, 3]."""
    features = graph.queries()
    boxes = graph("Sigmoid", graph.linear(features, 8, 4))
    scores = graph("Sigmoid", graph.linear(features, 8, 3))
    return boxes, scores


def test_a_top_k_of_scores_that_were_not_split_from_boxes_is_no_end_to_end_head():
    """Of a batch of any size, a Sigmoid has as little a known size as a Split's output may."""
    graph = Graph(batch="N")
    boxes, scores = boxes_and_scores(graph)
    best = graph("ReduceMax", scores, axes=[2], keepdims=0)
    _, indices = graph.all("TopK", best, [5], outputs=2, axis=1)
    entries = graph("Tile", graph("Unsqueeze", indices, [2]), [1, 1, 4])
    detections = graph("GatherElements", boxes, entries, axis=1)
    assert find_end_to_end_head(index_of(graph, detections), boxes_only=False) is None


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
    assert reason in _task_besides_boxes(index_of(graph, boxes), extra)


def test_boxes_beside_two_outputs_of_scores_are_asked_about():
    graph = Graph()
    boxes, scores = boxes_and_scores(graph)
    more_scores = graph("Sigmoid", graph.linear(graph.queries(), 8, 3))
    with pytest.raises(Unrecognised, match="two of its outputs may be the boxes"):
        find_pair_head(index_of(graph, boxes, scores, more_scores))


@pytest.mark.parametrize("position", [0, 1, 2])
def test_an_output_with_fewer_axes_is_neither_boxes_nor_scores(position):
    graph = Graph()
    boxes, scores = boxes_and_scores(graph)
    outputs = [boxes, scores]
    outputs.insert(position, graph("ReduceMax", scores, axes=[2], keepdims=0))
    head = find_pair_head(index_of(graph, *outputs))
    assert head.boxes[0].tensor == boxes
    assert head.scores[0].tensor == scores


def test_a_best_class_that_no_output_tells_does_not_select():
    graph = Graph()
    boxes, scores = boxes_and_scores(graph)
    labels = graph("ArgMax", scores, axis=2, keepdims=1)
    assert find_best_class_head(index_of(graph, boxes, scores)) is None
    assert find_best_class_head(index_of(graph, boxes, labels)).best_class_only


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
    head = find_query_head(index_of(graph, *outputs))
    assert (head is None) == suppresses


def top_k_of(graph, scores):
    """The best five of some scores [B, 24, C], as YOLOv10 chooses them."""
    best = graph("ReduceMax", scores, axes=[2], keepdims=0)
    values, _ = graph.all("TopK", best, [5], outputs=2, axis=1)
    return values


def rows_of_seven(graph):
    """Boxes and three scores of 24 queries, [B, 24, 7]."""
    return graph("Concat", *boxes_and_scores(graph), axis=2)


@pytest.mark.parametrize(
    ("start", "stop", "is_head"), [(4, 7, True), (4, 99, True), (4, 6, False), (3, 7, False)]
)
def test_scores_are_all_columns_behind_the_box(start, stop, is_head):
    graph = Graph()
    scores = graph.cut(rows_of_seven(graph), start, stop, 2)
    head = find_end_to_end_head(index_of(graph, top_k_of(graph, scores)), boxes_only=False)
    assert (head is not None) == is_head


def test_the_activation_of_the_scores_behind_the_box_is_told():
    graph = Graph()
    boxes, _ = boxes_and_scores(graph)
    shares = graph("Softmax", graph.linear(graph.queries(), 8, 3), axis=2)
    rows = graph("Concat", boxes, shares, axis=2)
    scores = graph.cut(rows, 4, 7, 2)
    head = find_end_to_end_head(index_of(graph, top_k_of(graph, scores)), boxes_only=False)
    assert head.scores_are is Activation.SOFTMAX


def test_scores_that_cannot_be_told_from_their_boxes_are_taken_for_sigmoids():
    """A layer gives both at once, so that its output says nothing about the scores alone."""
    graph = Graph()
    rows = graph.linear(graph.queries(), 8, 7)
    head = find_joined_head(index_of(graph, rows), ["red", "green", "blue"], boxes_only=False)
    assert head.class_count == 3
    assert head.scores_are is Activation.SIGMOID


@pytest.mark.parametrize(("stop", "is_head"), [(1 << 40, True), (-1, False)])
def test_of_an_unknown_number_of_columns_all_behind_the_box_are_scores(stop, is_head):
    graph = Graph()
    rows = graph.input("rows", TensorProto.FLOAT, [1, 24, "columns"])
    scores = graph.cut(rows, 4, stop, 2)
    head = find_end_to_end_head(index_of(graph, top_k_of(graph, scores)), boxes_only=False)
    assert (head is not None) == is_head


@pytest.mark.parametrize(("stop", "is_head"), [(1 << 40, True), (-1, False)])
def test_along_an_unknown_axis_all_behind_the_box_are_scores(stop, is_head):
    graph = Graph()
    axes = graph.input("axes", TensorProto.INT64, [1])
    scores = graph("Slice", rows_of_seven(graph), [4], [stop], axes)
    head = find_end_to_end_head(index_of(graph, top_k_of(graph, scores)), boxes_only=False)
    assert (head is not None) == is_head


@pytest.mark.parametrize(("column_count", "class_count"), [(4, None), (5, 1), (7, 3)])
def test_each_column_behind_the_box_is_a_class(column_count, class_count):
    graph = Graph()
    rows = graph("Relu", graph.linear(graph.queries(), 8, column_count))
    scores = graph.cut(rows, 4, 99, 2)
    head = find_end_to_end_head(index_of(graph, top_k_of(graph, scores)), boxes_only=False)
    assert head.class_count == class_count


@pytest.mark.parametrize(("axis", "are_rows"), [(2, True), (-1, True), (1, False)])
def test_the_axis_of_the_highest_scores_is_that_of_the_columns(axis, are_rows):
    graph = Graph()
    if are_rows:
        head_tensor = rows_of_seven(graph)
    else:
        head_tensor = graph.flat(graph("Sigmoid", graph.convolution(7, 8)), 7)
    scores = graph.cut(head_tensor, 4, 7, axis % 3)
    best = graph("ReduceMax", scores, axes=[axis], keepdims=0)
    values, _ = graph.all("TopK", best, [5], outputs=2, axis=1)
    head = find_end_to_end_head(index_of(graph, values), boxes_only=False)
    assert head.anchors_first == are_rows
    assert head.class_count == 3


def test_a_graph_that_selects_and_has_another_output_is_no_end_to_end_head():
    graph = Graph()
    scores = graph.cut(rows_of_seven(graph), 4, 7, 2)
    index = index_of(graph, top_k_of(graph, scores), graph.queries())
    assert find_end_to_end_head(index, boxes_only=False) is None


def test_images_that_are_cut_off_a_batch_are_no_scores():
    """A Slice without axes is along the first one."""
    graph = Graph()
    images = graph("Slice", rows_of_seven(graph), [4], [7])
    index = index_of(graph, top_k_of(graph, images))
    assert find_end_to_end_head(index, boxes_only=False) is None


@pytest.mark.parametrize("activated", [True, False])
@pytest.mark.parametrize(("part", "class_count"), [(1, 3), (0, 4)])
def test_a_split_tells_the_number_of_classes_where_that_of_columns_is_unknown(
    activated, part, class_count
):
    graph = Graph()
    rows = graph.input("rows", TensorProto.FLOAT, [1, 24, "columns"])
    parts = graph.all("Split", rows, np.array([4, 3]), outputs=2, axis=2)
    scores = graph("Sigmoid", parts[part]) if activated else parts[part]
    index = index_of(graph, scores, graph("Relu", rows))
    assert _class_count(index, rows, scores, anchors_first=True) == class_count


@pytest.mark.parametrize("tensor", ["rows", "scores"])
def test_without_a_split_an_unknown_number_of_columns_stays_unknown(tensor):
    graph = Graph()
    rows = graph.input("rows", TensorProto.FLOAT, [1, 24, "columns"])
    scores = graph("Sigmoid", rows)
    index = index_of(graph, scores)
    assert (
        _class_count(index, rows, rows if tensor == "rows" else scores, anchors_first=True) is None
    )


def split_in_three(graph):
    """What the best are chosen of, in rows of a box, three scores and two more columns."""
    boxes, scores = boxes_and_scores(graph)
    rows = graph("Concat", boxes, scores, graph.linear(graph.queries(), 8, 2), axis=2)
    parts = graph.all("Split", rows, np.array([4, 3, 2]), outputs=3, axis=2)
    return top_k_of(graph, parts[1])


def test_columns_behind_the_scores_are_refused():
    graph = Graph()
    index = index_of(graph, split_in_three(graph))
    with pytest.raises(Unrecognised, match="it finds poses: 2 numbers"):
        find_end_to_end_head(index, boxes_only=False)


def test_columns_behind_the_scores_are_left_out_where_boxes_are_enough():
    graph = Graph()
    index = index_of(graph, split_in_three(graph))
    head = find_end_to_end_head(index, boxes_only=True)
    assert head.class_count == 3
    assert head.has_more


@pytest.mark.parametrize(("rows", "is_head"), [(24, True), (7, False)])
def test_of_as_many_rows_as_columns_neither_is_taken_for_channels(rows, is_head):
    graph = Graph()
    queries = graph.cut(graph.queries(), 0, rows, 1)
    head = graph("Relu", graph.linear(queries, 8, 7))
    index = index_of(graph, head)
    names = ["red", "green", "blue"]
    assert (find_joined_head(index, names, boxes_only=False) is not None) == is_head


def test_three_parts_behind_a_box_are_no_objectness_and_classes():
    graph = Graph()
    centre = graph("Sigmoid", graph.maps(2))
    size = graph("Exp", graph.maps(2))
    scores = [graph("Sigmoid", graph.maps(count)) for count in (1, 3, 5)]
    index = index_of(graph, graph("Concat", centre, size, *scores, axis=1))
    with pytest.raises(Unrecognised, match="8 numbers of keypoints"):
        find_joined_head(index, None, boxes_only=False)


def test_the_scores_of_a_head_are_what_it_joins_to_the_boxes():
    graph = Graph()
    boxes, scores = boxes_and_scores(graph)
    rows = graph("Concat", boxes, scores, axis=2)
    index = index_of(graph, rows, graph("Relu", rows))
    assert score_tensor_of(index, rows) == scores
    assert score_tensor_of(index, scores) == scores


def test_boxes_and_scores_are_the_first_two_inputs_of_a_plugin():
    """Anchors are its third, where it has one."""
    graph = Graph()
    boxes, scores = boxes_and_scores(graph)
    anchors = graph.constant(graph.weights(1, 24, 4))
    outputs = graph.all("EfficientNMS_TRT", boxes, scores, anchors, outputs=4, domain="TRT")
    head = find_plugin_head(index_of(graph, *outputs))
    assert head.boxes[0].tensor == boxes
    assert head.scores[0].tensor == scores


@pytest.mark.parametrize(
    ("kernel", "are_patches"), [((8, 8), True), ((7, 7), False), ((16, 4), False)]
)
def test_patches_have_eight_pixels_a_side_or_more(kernel, are_patches):
    graph = Graph(size=(112, 112))
    weights = graph.weights(8, 3, *kernel)
    maps = graph("Conv", "images", weights, kernel_shape=list(kernel), strides=list(kernel))
    assert has_patches(index_of(graph, maps)) == are_patches


def test_scores_that_an_objectness_was_multiplied_into_have_none_left():
    """One layer makes boxes and scores, and what joined them is cut in two again."""
    graph = Graph()
    numbers = graph("Sigmoid", graph.linear(graph.queries(), 8, 8))
    scores = graph("Mul", graph.cut(numbers, 5, 8, 2), graph.cut(numbers, 4, 5, 2))
    joined = graph("Concat", graph.cut(numbers, 0, 4, 2), scores, axis=2)
    boxes = graph.cut(joined, 0, 4, 2)
    head = find_pair_head(index_of(graph, boxes, graph.cut(joined, 4, 7, 2)))
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
    index = index_of(graph, graph("Concat", boxes, final_scores, axis=2))
    assert find_joined_head(index, None, boxes_only=False).class_count == 3


def test_detections_that_are_chosen_by_finished_scores_are_no_head():
    graph = Graph()
    _, scores = boxes_and_scores(graph)
    rows = best_rows(graph, scores, 5)
    features = chosen(graph, graph.queries(), rows, 8)
    boxes = graph("Sigmoid", graph.linear(features, 8, 4))
    detections = graph("Concat", boxes, chosen(graph, scores, rows, 3), axis=2)
    assert find_joined_head(index_of(graph, detections), None, boxes_only=False) is None


def test_boxes_that_do_not_depend_on_the_choice_of_the_scores_are_no_head():
    graph = Graph()
    boxes, scores = boxes_and_scores(graph)
    features = chosen(graph, graph.queries(), best_rows(graph, scores, 24), 8)
    final_scores = graph("Sigmoid", graph.linear(features, 8, 3))
    index = index_of(graph, graph("Concat", boxes, final_scores, axis=2))
    assert find_joined_head(index, None, boxes_only=False) is None


def scores_behind_boxes(graph, axis):
    """What is cut out behind undecoded boxes, which two tensors of scores were joined to at once.

    The tensors are joined along an axis of their channels, 1 or 2; the scores are `[B, 96, 5]`.
    """
    boxes, *scores = [graph.flat(graph.convolution(count, 8), count) for count in (4, 3, 2)]
    parts = [boxes]
    parts += [graph("Sigmoid", part) for part in scores]
    if axis == 1:
        rows = graph.swapped(graph("Concat", *parts, axis=1))
    else:
        rows = graph("Concat", *[graph.swapped(part) for part in parts], axis=2)
    return graph.cut(rows, 4, 9, 2)


@pytest.mark.parametrize("axis", [1, 2])
def test_boxes_are_the_first_of_several_tensors_that_are_joined_at_once(axis):
    graph = Graph()
    scores = scores_behind_boxes(graph, axis)
    head = find_end_to_end_head(index_of(graph, top_k_of(graph, scores)), boxes_only=False)
    assert head.anchors_first == (axis == 2)
    assert head.class_count == 5
    assert head.decoded.method is BoxDecode.LINEAR


def test_the_first_of_several_tensors_that_has_no_four_columns_is_no_boxes():
    graph = Graph()
    features = graph.queries()
    parts = [graph.linear(features, 8, count) for count in (2, 4, 3)]
    scores = graph.cut(graph("Concat", *parts, axis=2), 4, 9, 2)
    head = find_end_to_end_head(index_of(graph, top_k_of(graph, scores)), boxes_only=False)
    assert head.decoded is None


def test_images_of_a_batch_that_are_joined_are_no_boxes_and_scores():
    """Names tell that seven columns are a box and three scores."""
    graph = Graph()
    images = [graph("Relu", graph.linear(graph.queries(), 8, 7)) for _ in range(2)]
    index = index_of(graph, graph("Concat", *images, axis=0))
    head = find_joined_head(index, ["red", "green", "blue"], boxes_only=False)
    assert head.anchors_first
    assert head.class_count == 3


def test_the_scores_of_a_head_are_followed_through_a_transpose_of_its_last_axes():
    graph = Graph()
    boxes, scores = boxes_and_scores(graph)
    rows = graph("Concat", boxes, scores, axis=2)
    swapped = graph.swapped(rows)
    moved = graph("Transpose", rows, perm=[1, 0, 2])
    index = index_of(graph, swapped, moved)
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
