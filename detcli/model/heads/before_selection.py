"""Finds boxes and scores in front of the nodes by which a graph selects its detections."""

from collections.abc import Iterable
from dataclasses import replace

from onnx import NodeProto

from detcli.model.graph import GraphIndex, attribute
from detcli.model.heads import (
    BOX_COORDINATES,
    HEAD_RANK,
    SELECTION,
    SUPPRESSION,
    Head,
    Unrecognised,
)
from detcli.model.heads.layers import LAYER_OPERATORS, converts_to_corners, moved_inputs
from detcli.model.heads.pairs import head_of_boxes_and_scores


def find_best_class_head(index: GraphIndex) -> Head | None:
    """Find the boxes and scores of a graph that outputs only the best class of each box.

    DeepStream-Yolo appends an ArgMax over the classes for that. The head is the boxes and the
    scores that the ArgMax reads.

    Returns:
        None if no output is computed by such an ArgMax, or if the graph selects detections.
    """
    if index.nodes(*SELECTION):
        return None
    output_names = {output.name for output in index.graph.output}
    for arg_max in index.nodes("ArgMax"):
        scores = arg_max.input[0]
        if len(index.shapes[scores]) != HEAD_RANK:
            continue
        computed_from_class = index.tensors_computed_from(arg_max.output[0])
        if computed_from_class.isdisjoint(output_names):
            continue
        for boxes in _boxes_before_selection(index, computed_from_class):
            head = head_of_boxes_and_scores(index, boxes, scores, best_class_only=True)
            if head is not None:
                return head
    return None


def _boxes_before_selection(index: GraphIndex, computed_from_selection: set[str]) -> list[str]:
    """List the tensors [B, N, 4] that may be the boxes from which a graph selects its outputs.

    The search goes back from the outputs through the selection, and through nodes that only move
    elements, to the first tensors of this shape in front of the selection.

    Args:
        index: The graph.
        computed_from_selection: The tensors that depend on which boxes or classes were selected.
    """

    def may_be_boxes(name: str) -> bool:
        dims = index.shapes[name]
        has_shape_of_boxes = len(dims) == HEAD_RANK and dims[2] == BOX_COORDINATES
        return has_shape_of_boxes and name not in computed_from_selection

    def inputs_to_follow(node: NodeProto, name: str) -> Iterable[str]:
        if may_be_boxes(name):
            return ()
        only_moves_elements = moved_inputs(node, name) is not None
        if name in computed_from_selection or only_moves_elements:
            return list(node.input)
        return ()

    outputs = [output.name for output in index.graph.output]
    boxes = []
    for _, name in index.ancestors(outputs, inputs_to_follow):
        if may_be_boxes(name):
            boxes.append(name)
    return boxes


def find_query_head(index: GraphIndex) -> Head | None:
    """Find the boxes and scores of a transformer that selects its best detections by a TopK.

    DETR and its successors flatten the scores [B, Q, C] of Q queries and C classes to [B, Q * C],
    and a TopK takes the best pairs of query and class. The head is the boxes [B, Q, 4] and the
    scores before that.

    Returns:
        None if the graph has no such TopK, or selects by non-maximum suppression.
    """
    if index.nodes(*SUPPRESSION):
        return None
    for top_k in reversed(index.nodes("TopK")):
        scores = _scores_before_flattening(index, top_k.input[0])
        if scores is None or _is_read_by_layers(index, top_k):
            continue
        # Boxes are scaled to the size of the image, which is another input, after the selection.
        computed_from_selection = index.tensors_computed_from(
            *top_k.output, *_inputs_beside_images(index)
        )
        for boxes in _boxes_before_selection(index, computed_from_selection):
            head = head_of_boxes_and_scores(index, boxes, scores)
            if head is not None:
                return replace(head, max_detections=_selected_count(index, top_k))
    return None


def _inputs_beside_images(index: GraphIndex) -> list[str]:
    """List the inputs of a graph that have too few axes for images, such as the size of these."""
    inputs = index.image_inputs()
    return [value.name for value in inputs if len(index.shapes[value.name]) < HEAD_RANK]


def _is_read_by_layers(index: GraphIndex, top_k: NodeProto) -> bool:
    """True if layers with weights follow a TopK, so that it does not select finished detections.

    Such a TopK selects, for example, the queries with which a transformer's decoder begins.
    """
    computed_from_top_k = index.tensors_computed_from(*top_k.output)
    for node in index.nodes(*LAYER_OPERATORS):
        is_layer = not converts_to_corners(index, node)
        if is_layer and not computed_from_top_k.isdisjoint(node.input):
            return True
    return False


def _selected_count(index: GraphIndex, top_k: NodeProto) -> int | None:
    """Return how many entries a TopK selects; None if that number is computed.

    The number is an attribute before opset 10, and an input since then.
    """
    if len(top_k.input) > 1:
        counts = index.constant(top_k.input[1])
        if counts:
            return counts[0]
    return attribute(top_k, "k", 0) or None


SHAPE_OPERATORS = frozenset({"Flatten", "Reshape", "Squeeze", "Unsqueeze"})

MAX_RESHAPES = 8  # reshapes and sigmoids between the scores and a TopK


def _scores_before_flattening(index: GraphIndex, tensor: str) -> str | None:
    """Find the scores [B, Q, C] of Q queries and C classes that a graph flattens for a TopK.

    A TopK over the flat scores [B, Q * C] selects from all queries and classes at once. The search
    goes back from it through reshapes and a sigmoid, in any order.

    Args:
        index: The graph.
        tensor: The tensor that the TopK reads, such as [B, Q * C].

    Returns:
        The name of the scores; None if the tensor is not flat, or no scores are found.
    """
    is_flat = len(index.shapes[tensor]) < HEAD_RANK
    if not is_flat:
        return None

    scores = tensor
    for _ in range(MAX_RESHAPES):
        node = index.producer(scores, *SHAPE_OPERATORS, "Sigmoid")
        if node is None:  # the scores are computed by another node
            return _nearest_of_head_rank(index, scores)
        source = node.input[0]
        is_source_flat = len(index.shapes[source]) < HEAD_RANK
        if is_source_flat and node.op_type in {"Flatten", "Reshape"}:
            # This reshape has a flat input as well, so it is not the one that flattens the scores.
            # It may be the one that gave them three axes, and its output the scores.
            return _nearest_of_head_rank(index, scores)
        scores = source
    return None


def _nearest_of_head_rank(index: GraphIndex, tensor: str) -> str | None:
    """Go back from a tensor to the nearest that has three axes, which may be itself.

    An axis of length 1 may have been added or dropped since, such as that of a single image.

    Returns:
        The name of that tensor; None if a node comes before it that computes new elements.
    """
    while len(index.shapes[tensor]) != HEAD_RANK:
        node = index.producer(tensor, "Squeeze", "Unsqueeze", "Reshape", "Gather")
        if node is None:
            return None
        tensor = node.input[0]
    return tensor


def find_plugin_head(index: GraphIndex) -> Head | None:
    """Find the head of a graph that selects its detections with TensorRT's plugin for NMS.

    Only TensorRT has that operator, EfficientNMS_TRT, so the graph is cut before it: the head is
    the boxes and scores that it reads. Returns None for a graph without this node.

    Raises:
        Unrecognised: The node leaves out a class that stands for the background.
    """
    suppressions = index.nodes("EfficientNMS_TRT")
    if not suppressions:
        return None
    suppression = suppressions[0]
    for entry in suppression.attribute:
        class_ids = entry.ints or [entry.i]
        # An id of -1 says that no class stands for the background.
        if entry.name == "background_class" and any(class_id >= 0 for class_id in class_ids):
            raise Unrecognised("its EfficientNMS_TRT leaves out a class, that of no object")
    boxes, scores = suppression.input[:2]
    return head_of_boxes_and_scores(index, str(boxes), str(scores))
