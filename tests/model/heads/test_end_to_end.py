"""YOLOs that select their best detections themselves, and graphs that nearly do."""

import numpy as np
import pytest
from graph_builder import Graph
from onnx import TensorProto
from query_heads import boxes_and_scores, index_of

from detcli.model.heads import Activation, BoxDecode, Unrecognised
from detcli.model.heads.end_to_end import find_end_to_end_head


def test_a_top_k_of_scores_that_were_not_split_from_boxes_is_no_end_to_end_head():
    """Of a batch of any size, a Sigmoid has as little a known size as a Split's output may."""
    graph = Graph(batch="N")
    boxes, scores = boxes_and_scores(graph)
    best = graph("ReduceMax", scores, axes=[2], keepdims=0)
    _, indices = graph.all("TopK", best, [5], outputs=2, axis=1)
    entries = graph("Tile", graph("Unsqueeze", indices, [2]), [1, 1, 4])
    detections = graph("GatherElements", boxes, entries, axis=1)
    assert find_end_to_end_head(index_of(graph, [detections]), boxes_only=False) is None


def top_k_of(graph, scores):
    """The best five of some scores [B, 24, C], as YOLOv10 chooses them."""
    best = graph("ReduceMax", scores, axes=[2], keepdims=0)
    values, _ = graph.all("TopK", best, [5], outputs=2, axis=1)
    return values


def rows_of_seven(graph):
    """Boxes and three scores of 24 queries, [B, 24, 7]."""
    return graph.concat(boxes_and_scores(graph), axis=2)


@pytest.mark.parametrize(
    ("start", "stop", "is_head"), [(4, 7, True), (4, 99, True), (4, 6, False), (3, 7, False)]
)
def test_scores_are_all_columns_behind_the_box(start, stop, is_head):
    graph = Graph()
    scores = graph.cut(rows_of_seven(graph), start, stop, 2)
    head = find_end_to_end_head(index_of(graph, [top_k_of(graph, scores)]), boxes_only=False)
    assert (head is not None) == is_head


def test_the_activation_of_the_scores_behind_the_box_is_told():
    graph = Graph()
    boxes, _ = boxes_and_scores(graph)
    shares = graph("Softmax", graph.linear(graph.queries(), 8, 3), axis=2)
    rows = graph("Concat", boxes, shares, axis=2)
    scores = graph.cut(rows, 4, 7, 2)
    head = find_end_to_end_head(index_of(graph, [top_k_of(graph, scores)]), boxes_only=False)
    assert head.scores_are is Activation.SOFTMAX


@pytest.mark.parametrize(("stop", "is_head"), [(1 << 40, True), (-1, False)])
def test_of_an_unknown_number_of_columns_all_behind_the_box_are_scores(stop, is_head):
    graph = Graph()
    rows = graph.input("rows", TensorProto.FLOAT, [1, 24, "columns"])
    scores = graph.cut(rows, 4, stop, 2)
    head = find_end_to_end_head(index_of(graph, [top_k_of(graph, scores)]), boxes_only=False)
    assert (head is not None) == is_head


@pytest.mark.parametrize(("stop", "is_head"), [(1 << 40, True), (-1, False)])
def test_along_an_unknown_axis_all_behind_the_box_are_scores(stop, is_head):
    graph = Graph()
    axes = graph.input("axes", TensorProto.INT64, [1])
    scores = graph("Slice", rows_of_seven(graph), [4], [stop], axes)
    head = find_end_to_end_head(index_of(graph, [top_k_of(graph, scores)]), boxes_only=False)
    assert (head is not None) == is_head


def test_the_step_of_a_slice_is_no_bound():
    """PyTorch writes the step of each Slice, which is 1."""
    graph = Graph()
    scores = graph("Slice", rows_of_seven(graph), [4], [99], [2], [1])
    head = find_end_to_end_head(index_of(graph, [top_k_of(graph, scores)]), boxes_only=False)
    assert head.class_count == 3


@pytest.mark.parametrize(("column_count", "class_count"), [(4, None), (5, 1), (7, 3)])
def test_each_column_behind_the_box_is_a_class(column_count, class_count):
    graph = Graph()
    rows = graph("Relu", graph.linear(graph.queries(), 8, column_count))
    scores = graph.cut(rows, 4, 99, 2)
    head = find_end_to_end_head(index_of(graph, [top_k_of(graph, scores)]), boxes_only=False)
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
    head = find_end_to_end_head(index_of(graph, [values]), boxes_only=False)
    assert head.anchors_first == are_rows
    assert head.class_count == 3


def test_a_graph_that_selects_and_has_another_output_is_no_end_to_end_head():
    graph = Graph()
    scores = graph.cut(rows_of_seven(graph), 4, 7, 2)
    index = index_of(graph, [top_k_of(graph, scores), graph.queries()])
    assert find_end_to_end_head(index, boxes_only=False) is None


def test_images_that_are_cut_off_a_batch_are_no_scores():
    """A Slice without axes is along the first one."""
    graph = Graph()
    images = graph("Slice", rows_of_seven(graph), [4], [7])
    index = index_of(graph, [top_k_of(graph, images)])
    assert find_end_to_end_head(index, boxes_only=False) is None


def split_in_three(graph):
    """What the best are chosen of, in rows of a box, three scores and two more columns."""
    boxes, scores = boxes_and_scores(graph)
    rows = graph("Concat", boxes, scores, graph.linear(graph.queries(), 8, 2), axis=2)
    parts = graph.all("Split", rows, np.array([4, 3, 2]), outputs=3, axis=2)
    return top_k_of(graph, parts[1])


def test_columns_behind_the_scores_are_refused():
    graph = Graph()
    index = index_of(graph, [split_in_three(graph)])
    with pytest.raises(Unrecognised, match="it finds poses: 2 numbers"):
        find_end_to_end_head(index, boxes_only=False)


def test_columns_behind_the_scores_are_left_out_where_boxes_are_enough():
    graph = Graph()
    index = index_of(graph, [split_in_three(graph)])
    head = find_end_to_end_head(index, boxes_only=True)
    assert head.class_count == 3
    assert head.has_more
    assert head.anchors_first
    assert head.decoded.method is BoxDecode.SIGMOID


def scores_behind_boxes(graph, axis):
    """What is cut out behind undecoded boxes, which two tensors of scores were joined to at once.

    The tensors are joined along an axis of their channels, 1 or 2; the scores are `[B, 96, 5]`.
    """
    boxes = graph.flat_convolution(4)
    scores = graph("Sigmoid", graph.flat_convolution(3))
    more_scores = graph("Sigmoid", graph.flat_convolution(2))
    parts = [boxes, scores, more_scores]
    if axis == 1:
        rows = graph.swapped(graph.concat(parts, axis=1))
    else:
        rows = graph.concat([graph.swapped(part) for part in parts], axis=2)
    return graph.cut(rows, 4, 9, 2)


@pytest.mark.parametrize("axis", [1, 2])
def test_boxes_are_the_first_of_several_tensors_that_are_joined_at_once(axis):
    graph = Graph()
    scores = scores_behind_boxes(graph, axis)
    head = find_end_to_end_head(index_of(graph, [top_k_of(graph, scores)]), boxes_only=False)
    assert head.anchors_first == (axis == 2)
    assert head.class_count == 5
    assert head.decoded.method is BoxDecode.LINEAR


def test_the_first_of_several_tensors_that_has_no_four_columns_is_no_boxes():
    graph = Graph()
    features = graph.queries()
    parts = [graph.linear(features, 8, count) for count in (2, 4, 3)]
    scores = graph.cut(graph.concat(parts, axis=2), 4, 9, 2)
    head = find_end_to_end_head(index_of(graph, [top_k_of(graph, scores)]), boxes_only=False)
    assert head.decoded is None


def test_nan_that_is_replaced_before_the_highest_score_is_taken_changes_nothing():
    graph = Graph()
    scores = graph.cut(rows_of_seven(graph), 4, 7, 2)
    guarded = graph("Where", graph("IsNaN", scores), np.float32(0), scores)
    head = find_end_to_end_head(index_of(graph, [top_k_of(graph, guarded)]), boxes_only=False)
    assert head.class_count == 3


def test_scores_up_to_a_column_that_the_graph_computes_are_no_head():
    graph = Graph()
    ends = graph.input("ends", TensorProto.INT64, [1])
    scores = graph("Slice", rows_of_seven(graph), [4], ends, [2])
    index = index_of(graph, [top_k_of(graph, scores)])
    assert find_end_to_end_head(index, boxes_only=False) is None


def test_of_a_head_that_is_split_in_two_the_second_part_is_the_scores():
    graph = Graph()
    boxes, _ = boxes_and_scores(graph)
    shares = graph("Softmax", graph.linear(graph.queries(), 8, 3), axis=2)
    rows = graph("Concat", boxes, shares, axis=2)
    parts = graph.all("Split", rows, np.array([4, 3]), outputs=2, axis=2)
    head = find_end_to_end_head(index_of(graph, [top_k_of(graph, parts[1])]), boxes_only=False)
    assert head.scores_are is Activation.SOFTMAX
    assert head.class_count == 3


def test_a_split_of_one_image_is_along_its_channels_unless_it_says_otherwise():
    """The head of one image is `[channels, N]`, and a Split without an axis is along the first."""
    graph = Graph()
    boxes, scores = boxes_and_scores(graph)
    rows = graph("Concat", boxes, scores, graph.linear(graph.queries(), 8, 2), axis=2)
    head_tensor = graph("Transpose", graph("Squeeze", rows, [0]), perm=[1, 0])
    parts = graph.all("Split", head_tensor, np.array([4, 3, 2]), outputs=3)
    best = graph("ReduceMax", parts[1], axes=[0], keepdims=0)
    values, _ = graph.all("TopK", best, [5], outputs=2, axis=0)
    index = index_of(graph, [values])
    with pytest.raises(Unrecognised, match="it finds poses: 2 numbers"):
        find_end_to_end_head(index, boxes_only=False)
