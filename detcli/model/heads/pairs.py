"""Finds heads whose boxes and scores are two tensors of a graph, with an entry for each anchor."""

import itertools
import math
from dataclasses import replace

from detcli.model.contract import Layout
from detcli.model.graph import (
    PRODUCTS,
    Dims,
    GraphIndex,
    known_size,
)
from detcli.model.heads import (
    BOX_COORDINATES,
    HEAD_RANK,
    SELECTION,
    Activation,
    BoxDecode,
    ChannelRange,
    Decoded,
    Head,
    Unrecognised,
)
from detcli.model.heads.channels import channel_groups
from detcli.model.heads.decode import box_decoding, distance_bin_count, measures_from_cell_corners
from detcli.model.heads.joined_classes import is_multiplied
from detcli.model.heads.layers import (
    layer_outputs,
    nearest_layer_operator,
    score_activation,
)
from detcli.model.heads.selected_in_graph import outputs_that_select, tensors_behind_selection

BOX_ONLY_METHODS = frozenset({BoxDecode.DISTANCES, BoxDecode.EXPONENTIAL, BoxDecode.GRID})
"""Ways to decode boxes that never compute scores."""


def find_pair_head(index: GraphIndex) -> Head | None:
    """Find boxes [B, N, 4] and scores [B, N, C] that are two outputs of a graph.

    N is the number of anchors, C that of classes. Either tensor may have its last axes swapped.

    Returns:
        None if no two outputs have these shapes and are computed as boxes and scores are.

    Raises:
        Unrecognised: More than one pair may be meant, or masks come with the boxes.
    """
    heads = []
    for boxes, scores in itertools.permutations(index.outputs, 2):
        head = head_of_boxes_and_scores(index, boxes, scores)
        if head is not None:
            heads.append(head)
    _check_pair_is_clear(index, heads)
    if not heads:
        return None
    head = heads[0]
    for output in index.outputs:
        if output not in head.tensors and _holds_masks(index, output, head):
            raise Unrecognised("it segments objects: masks come with its boxes and scores")
    return head


def _check_pair_is_clear(index: GraphIndex, heads: list[Head]) -> None:
    """Refuse a graph if it is not clear which two outputs are its boxes and scores.

    Args:
        index: The graph.
        heads: Every pair of outputs that may be boxes and scores.

    Raises:
        Unrecognised: There is more than one pair, or the graph selects other boxes.
    """
    if any(_are_left_out_of_selection(index, head) for head in heads):
        raise Unrecognised(
            "it gives all its boxes beside those that it selects, and it is not clear which of its "
            "outputs are the scores and class ids of these"
        )
    if len(heads) <= 1:
        return
    landmarks = _landmarks_beside(index, heads)
    if landmarks is not None:
        raise Unrecognised(
            f"it gives landmarks, {landmarks}, beside its boxes and scores, and no family is "
            "known that has them like that"
        )
    raise Unrecognised("two of its outputs may be the boxes, or two the scores")


def _landmarks_beside(index: GraphIndex, heads: list[Head]) -> str | None:
    """Find an output that holds landmarks, which were taken for scores because of their shape.

    Such a graph seems to have two heads with the same boxes: one with the scores, and one with the
    landmarks in place of the scores. Landmarks are the x and y of points, as a layer gives them,
    while scores come from a softmax or sigmoid.

    Args:
        index: The graph.
        heads: Every pair of outputs that may be boxes and scores.

    Returns:
        The name of the output; None if it is not clear that it holds landmarks.
    """
    distinct_boxes = {head.boxes for head in heads}
    if len(heads) != 2 or len(distinct_boxes) != 1:
        return None
    heads_with_landmarks = [head for head in heads if head.scores_are is Activation.LINEAR]
    if len(heads_with_landmarks) != 1:
        return None
    landmark_head = heads_with_landmarks[0]
    landmark_channels = landmark_head.class_count  # they were counted as classes
    has_whole_points = landmark_channels is not None and landmark_channels % 2 == 0
    if not has_whole_points:
        return None

    # What scores or boxes are computed from are logits or distances, not landmarks.
    landmarks = landmark_head.scores[0].tensor
    computed_from_landmarks = index.tensors_computed_from(landmarks) - {landmarks}
    for head in heads:
        if not computed_from_landmarks.isdisjoint(head.tensors):
            return None
    return landmarks


def _are_left_out_of_selection(index: GraphIndex, head: Head) -> bool:
    """True if a graph gives boxes that it has selected, but the boxes of a head are not selected.

    What a graph selects is what its authors use. Its raw boxes may be in another unit or order, and
    have a class for the background.
    """
    computed_from_selection = tensors_behind_selection(index)
    if head.boxes[0].tensor in computed_from_selection:
        return False
    for output in index.outputs:
        has_box_columns = index.size(output, -1) == BOX_COORDINATES
        if has_box_columns and output in computed_from_selection:
            return True
    return False


def _holds_masks(index: GraphIndex, output: str, head: Head) -> bool:
    """True if an output, which is neither boxes nor scores, holds the masks of objects.

    Masks are [B, channels, H, W]. Two other kinds of outputs have four axes and do no harm: what
    the layers of a transformer's decoder give for each of N boxes, [B, layers, N, features], and a
    feature map of the network, from which boxes or scores are computed.
    """
    dims = index.shapes[output]
    anchor_axis = 1 if head.anchors_first else 2
    anchor_count = index.shapes[head.boxes[0].tensor][anchor_axis]
    if len(dims) != 4 or dims[2] == anchor_count:
        return False
    is_feature_map = not index.tensors_computed_from(output).isdisjoint(head.tensors)
    return not is_feature_map


def head_of_boxes_and_scores(
    index: GraphIndex, boxes: str, scores: str, *, best_class_only: bool = False
) -> Head | None:
    """Describe two tensors as the boxes and scores of a head, if that is what they are.

    Args:
        index: The graph.
        boxes: The tensor that may be the boxes, [B, N, 4] or [B, 4, N].
        scores: The tensor that may be their scores, [B, N, C] or [B, C, N].
        best_class_only: Whether the graph takes only the best class of each box.

    Returns:
        None if their shapes do not fit, or the nodes that compute them show something else.
    """
    box_dims = index.shapes[boxes]
    score_dims = index.shapes[scores]
    if len(box_dims) != HEAD_RANK or len(score_dims) != HEAD_RANK:
        return None
    anchors_first = box_dims[2] == BOX_COORDINATES
    channel_axis = 2 if anchors_first else 1
    if box_dims[channel_axis] != BOX_COORDINATES:
        return None

    anchor_count = box_dims[_other_axis(channel_axis)]
    layer = nearest_layer_operator(index, boxes)
    class_axis = _class_axis(anchor_count, score_dims, coordinate_axis=channel_axis, layer=layer)
    if class_axis is None:
        return None
    score_count = known_size(score_dims[class_axis])
    if score_count is None:
        return None
    head = Head(
        Layout.PAIR,
        boxes=(ChannelRange(boxes),),
        scores=(ChannelRange(scores),),
        class_count=score_count,
        anchors_first=anchors_first,
        decoded=box_decoding(index, boxes),
        scores_are=score_activation(index, scores),
        layer=layer,
        best_class_only=best_class_only,
        scores_transposed=class_axis != channel_axis,
    )
    return _complete_by_nodes(index, head, score_count)


def _other_axis(axis: int) -> int:
    """Return the axis of a tensor [B, N, channels] or [B, channels, N] beside the batch and one."""
    if axis == 1:
        return 2
    return 1


def _complete_by_nodes(index: GraphIndex, head: Head, score_count: int) -> Head | None:
    """Complete a head with what its nodes show, if they do compute boxes and scores.

    Args:
        index: The graph.
        head: The head, whose tensors have the shapes of boxes and scores.
        score_count: How many scores each box has, an objectness included.

    Returns:
        The head with its objectness, its number of classes and how its boxes are encoded; None if
        the nodes show that the tensors are not boxes and scores.
    """
    boxes = head.boxes[0].tensor
    scores = head.scores[0].tensor
    if head.scores_are is None or not _may_be_of_same_detections(index, boxes, scores):
        return None
    has_objectness = _scores_begin_with_objectness(index, boxes, scores)
    have_same_shape = score_count == BOX_COORDINATES
    if have_same_shape:  # then boxes and scores may have been confused
        scores_as_boxes = box_decoding(index, scores)
        if not _are_boxes_told_from_scores(head, scores_as_boxes, has_objectness=has_objectness):
            return None

    class_count = score_count
    if has_objectness:
        class_count = score_count - 1
    return replace(
        head,
        class_count=class_count,
        objectness=has_objectness,
        bins=distance_bin_count(index, boxes),
        from_corners=measures_from_cell_corners(index, boxes),
    )


def _are_boxes_told_from_scores(
    head: Head, scores_as_boxes: Decoded | None, *, has_objectness: bool
) -> bool:
    """True if the nodes tell the boxes of a head from its scores, which have the same shape.

    With four classes, boxes and scores have four channels each. The head was built with one of the
    two tensors as boxes and the other as scores, which may be the wrong way round.

    Args:
        head: The head.
        scores_as_boxes: How its scores would be decoded if they were the boxes; None if their
            nodes fit no method.
        has_objectness: Whether its scores begin with an objectness.
    """
    if scores_as_boxes is not None and scores_as_boxes.method in BOX_ONLY_METHODS:
        return False  # The two are the wrong way round.
    if head.decodes(*BOX_ONLY_METHODS):
        return True
    if head.of_queries:
        return _are_query_boxes_told_from_scores(head, scores_as_boxes)
    # Detectors with grid cells have the objectness in front of the scores, not of the boxes.
    return has_objectness


def _are_query_boxes_told_from_scores(head: Head, scores_as_boxes: Decoded | None) -> bool:
    """True if the nodes tell the boxes of a transformer from its scores, which have the same shape.

    A transformer's boxes end in a sigmoid. If its scores do so too, only refined boxes differ from
    them: an earlier estimate of the boxes is added before their sigmoid, and never to scores.

    Args:
        head: The head of the transformer.
        scores_as_boxes: How its scores would be decoded if they were the boxes; None if their
            nodes fit no method.
    """
    boxes_end_in_sigmoid = head.decodes(BoxDecode.SIGMOID, BoxDecode.REFINED)
    if head.scores_are is not Activation.SIGMOID:
        return boxes_end_in_sigmoid
    # BoxDecode.SIGMOID is a sigmoid of a layer's output alone, without such an estimate.
    are_scores_unrefined = (
        scores_as_boxes is not None and scores_as_boxes.method is BoxDecode.SIGMOID
    )
    return head.decodes(BoxDecode.REFINED) and are_scores_unrefined


def _scores_begin_with_objectness(index: GraphIndex, boxes: str, scores: str) -> bool:
    """True if the first channel of the scores is an objectness, not a class.

    An objectness says how probable it is that there is any object, of whatever class. It may be
    joined to the scores of the classes as a tensor of one channel. Or one layer predicts it
    together with boxes and classes, as in YOLOv5. Where the graph has multiplied the scores by such
    an objectness, it is no longer among their channels.

    Args:
        index: The graph.
        boxes: The tensor of the boxes.
        scores: The tensor of the scores.
    """
    tensor_of_scores, joined_groups = channel_groups(index, scores)
    sizes_before_classes = [size for size, _ in joined_groups[:-1]]
    if sizes_before_classes == [1]:
        return True

    if joined_groups:
        _, tensor_of_scores = joined_groups[0]
    common_layers = layer_outputs(index, boxes) & layer_outputs(index, scores)
    return bool(common_layers) and not is_multiplied(index, tensor_of_scores)


def _class_axis(
    anchor_count: int | str | None, score_dims: Dims, *, coordinate_axis: int, layer: str
) -> int | None:
    """Find the axis of scores, [B, N, C] or [B, C, N], that counts the classes.

    It is usually the axis that holds the four coordinates in the boxes, but PaddlePaddle's
    detectors with grid cells have scores in the other order.

    Args:
        anchor_count: N as the shape of the boxes has it: a number, a symbol or unknown.
        score_dims: The shape of the scores.
        coordinate_axis: The axis of the four coordinates in the boxes, 1 or 2.
        layer: The operator of the layer that predicts the boxes, such as "Conv".

    Returns:
        The axis, 1 or 2; None if neither fits.
    """
    possible_axes = []
    for class_axis in (1, 2):
        anchor_axis = _other_axis(class_axis)
        if _may_be_equal(score_dims[anchor_axis], anchor_count):
            possible_axes.append(class_axis)

    is_transformer = layer in PRODUCTS
    if not is_transformer:
        return _shortest_axis(score_dims, possible_axes)
    # Boxes and scores of a transformer always have their axes in the same order.
    if coordinate_axis in possible_axes:
        return coordinate_axis
    return None


def _shortest_axis(dims: Dims, axes: list[int]) -> int | None:
    """Choose the shortest of some axes of a shape, as there are fewer classes than cells of a grid.

    Of equally long axes it is the last one. None if the length of none is known.
    """
    shortest_axis = None
    shortest_length = math.inf
    for axis in axes:
        length = dims[axis]
        if isinstance(length, int) and length <= shortest_length:
            shortest_axis = axis
            shortest_length = length
    return shortest_axis


def _may_be_equal(size: int | str | None, other_size: int | str | None) -> bool:
    """True unless two axes have different sizes; a symbol or unknown size may be any number."""
    are_both_known = isinstance(size, int) and isinstance(other_size, int)
    return not are_both_known or size == other_size


def _may_be_of_same_detections(index: GraphIndex, boxes: str, scores: str) -> bool:
    """True if two tensors may be the boxes and scores of the same detections, in the same order.

    They are not if only one of them comes behind a selection, by a TopK or non-maximum suppression:
    it then has other detections than the other, or another order. Nor are they if the boxes are
    computed from the scores.
    """
    if boxes in index.tensors_computed_from(scores):
        return False
    for node in index.nodes(*SELECTION):
        computed_from_selection = index.tensors_computed_from(*outputs_that_select(node))
        are_boxes_selected = boxes in computed_from_selection
        are_scores_selected = scores in computed_from_selection
        if are_boxes_selected != are_scores_selected:
            return False
    return True
