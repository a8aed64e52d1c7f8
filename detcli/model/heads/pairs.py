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
from detcli.model.heads.selected_in_graph import outputs_that_select, tensors_after_selection

BOX_ONLY_METHODS = frozenset({BoxDecode.DISTANCES, BoxDecode.EXPONENTIAL, BoxDecode.GRID})
"""Ways to decode boxes that never compute scores."""
RANK_OF_MASKS = 4  # axes of an output with masks: batch, channels, height, width


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
        Unrecognised: There is more than one pair; or the boxes of a pair are not selected, while
            the graph has another output with boxes that it has selected.
    """
    if any(_has_unselected_boxes(index, head) for head in heads):
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

    A graph with outputs boxes, scores and landmarks seems to have two heads: boxes with scores, and
    boxes with landmarks. Landmarks are the x and y of points, as a layer outputs them, while scores
    come from a softmax or sigmoid.

    Args:
        index: The graph.
        heads: Every pair of outputs that may be boxes and scores.

    Returns:
        The name of the output; None if it is not clear that it holds landmarks.
    """
    distinct_boxes = {head.boxes for head in heads}
    if len(heads) != 2 or len(distinct_boxes) != 1:
        return None
    heads_with_linear_scores = [head for head in heads if head.scores_are is Activation.LINEAR]
    if len(heads_with_linear_scores) != 1:
        return None

    landmark_head = heads_with_linear_scores[0]
    landmark_channels = landmark_head.class_count  # each was counted as the scores of a class
    has_whole_points = landmark_channels is not None and landmark_channels % 2 == 0
    if not has_whole_points:
        return None

    # If boxes or scores are computed from this output, it does not hold landmarks, but what comes
    # before their decoding or activation function.
    landmarks = landmark_head.scores[0].tensor
    computed_from_landmarks = index.tensors_computed_from(landmarks) - {landmarks}
    for head in heads:
        if not computed_from_landmarks.isdisjoint(head.tensors):
            return None
    return landmarks


def _has_unselected_boxes(index: GraphIndex, head: Head) -> bool:
    """True if the boxes of a head are not selected, but another output has boxes that are.

    What a graph selects is what its authors use. Its raw boxes may be in a different unit or order,
    and have a class for the background.
    """
    computed_from_selection = tensors_after_selection(index)
    if head.boxes[0].tensor in computed_from_selection:
        return False
    for output in index.outputs:
        has_box_columns = index.size(output, -1) == BOX_COORDINATES
        if has_box_columns and output in computed_from_selection:
            return True
    return False


def _holds_masks(index: GraphIndex, output: str, head: Head) -> bool:
    """True if an output, which is neither boxes nor scores, holds the masks of objects.

    Masks are [B, channels, H, W]. Two other kinds of outputs also have four axes, but are not
    masks: the output of a transformer's decoder layers for each of N boxes, which is
    [B, layers, N, features]; and a feature map, from which boxes or scores are computed.
    """
    dims = index.shapes[output]
    if len(dims) != RANK_OF_MASKS:
        return False

    # Boxes are [B, N, 4] or [B, 4, N].
    anchor_axis = 1 if head.anchors_first else 2
    anchor_count = index.shapes[head.boxes[0].tensor][anchor_axis]
    has_axis_of_boxes = dims[2] == anchor_count
    if has_axis_of_boxes:
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
        None if their shapes do not match, or the nodes that compute them show something else.
    """
    box_dims = index.shapes[boxes]
    score_dims = index.shapes[scores]
    if len(box_dims) != HEAD_RANK or len(score_dims) != HEAD_RANK:
        return None
    anchors_first = box_dims[2] == BOX_COORDINATES
    coordinate_axis = 2 if anchors_first else 1
    if box_dims[coordinate_axis] != BOX_COORDINATES:
        return None

    anchor_count = box_dims[_other_axis(coordinate_axis)]
    layer = nearest_layer_operator(index, boxes)
    class_axis = _class_axis(anchor_count, score_dims, coordinate_axis=coordinate_axis, layer=layer)
    if class_axis is None:
        return None
    score_count = known_size(score_dims[class_axis])
    if score_count is None:
        return None

    head_by_shape = Head(
        Layout.PAIR,
        boxes=(ChannelRange(boxes),),
        scores=(ChannelRange(scores),),
        class_count=score_count,  # as long as none of the scores is known to be an objectness
        anchors_first=anchors_first,
        decoded=box_decoding(index, boxes),
        scores_are=score_activation(index, scores),
        layer=layer,
        best_class_only=best_class_only,
        scores_transposed=class_axis != coordinate_axis,
    )
    return _head_confirmed_by_nodes(index, head_by_shape, score_count)


def _other_axis(axis: int) -> int:
    """Return 2 for axis 1 and 1 for axis 2: of a head's three axes, axis 0 is the batch."""
    if axis == 1:
        return 2
    return 1


def _head_confirmed_by_nodes(index: GraphIndex, head: Head, score_count: int) -> Head | None:
    """Check that the nodes of a head compute boxes and scores, and add what they show about these.

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
    is_activation_unclear = head.scores_are is None
    if is_activation_unclear or not _may_be_of_same_detections(index, boxes, scores):
        return None

    has_objectness = _scores_begin_with_objectness(index, boxes, scores)
    have_same_shape = score_count == BOX_COORDINATES
    if have_same_shape:
        # The boxes may have been taken for the scores, and the scores for the boxes.
        decoding_of_scores = box_decoding(index, scores)
        if not _are_boxes_and_scores_clear(head, decoding_of_scores, has_objectness=has_objectness):
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


def _are_boxes_and_scores_clear(
    head: Head, decoding_of_scores: Decoded | None, *, has_objectness: bool
) -> bool:
    """True if the nodes show which of two tensors of the same shape are boxes and which scores.

    With four classes, boxes and scores have four channels each. The head takes one tensor for the
    boxes and the other for the scores, but it may be the other way round.

    Args:
        head: The head.
        decoding_of_scores: How the tensor that is taken for the scores would be decoded if it held
            boxes; None if its nodes match no method.
        has_objectness: Whether that tensor begins with an objectness.
    """
    if decoding_of_scores is not None and decoding_of_scores.method in BOX_ONLY_METHODS:
        return False  # It is the other way round.
    if head.decodes(*BOX_ONLY_METHODS):
        return True
    if head.of_queries:
        return _are_query_boxes_clear(head, decoding_of_scores)
    # Detectors with grid cells have the objectness in front of the scores, not of the boxes.
    return has_objectness


def _are_query_boxes_clear(head: Head, decoding_of_scores: Decoded | None) -> bool:
    """True if the nodes show which of a transformer's two tensors are boxes and which scores.

    Both have the same shape. A transformer's boxes end in a sigmoid. If both tensors do, only
    refined boxes differ from scores: an earlier estimate of the boxes is added before the sigmoid,
    while nothing is added to scores.

    Args:
        head: The head of the transformer.
        decoding_of_scores: How the tensor that is taken for the scores would be decoded if it held
            boxes; None if its nodes match no method.
    """
    boxes_end_in_sigmoid = head.decodes(BoxDecode.SIGMOID, BoxDecode.REFINED)
    scores_end_in_sigmoid = head.scores_are is Activation.SIGMOID
    if not scores_end_in_sigmoid:
        return boxes_end_in_sigmoid

    # BoxDecode.SIGMOID is the sigmoid of a layer's output alone, without an earlier estimate.
    are_scores_unrefined = (
        decoding_of_scores is not None and decoding_of_scores.method is BoxDecode.SIGMOID
    )
    are_boxes_refined = head.decodes(BoxDecode.REFINED)
    return are_boxes_refined and are_scores_unrefined


def _scores_begin_with_objectness(index: GraphIndex, boxes: str, scores: str) -> bool:
    """True if the first channel of the scores is an objectness, not a class.

    An objectness says how probable it is that there is any object, of whatever class. There is one
    in two cases:

    - A tensor of one channel is joined to the scores of the classes, in front of them.
    - One layer predicts boxes and scores together, as in YOLOv5. Then there is an objectness unless
      the graph has multiplied it into the scores already.

    Args:
        index: The graph.
        boxes: The tensor of the boxes.
        scores: The tensor of the scores.
    """
    simplified_scores, joined_groups = channel_groups(index, scores)
    channels_before_classes = [channel_count for channel_count, _ in joined_groups[:-1]]
    if channels_before_classes == [1]:
        return True

    first_scores = simplified_scores
    if joined_groups:
        _, first_scores = joined_groups[0]
    common_layers = layer_outputs(index, boxes) & layer_outputs(index, scores)
    are_products = is_multiplied(index, first_scores)  # of objectness and class scores
    return bool(common_layers) and not are_products


def _class_axis(
    anchor_count: int | str | None, score_dims: Dims, *, coordinate_axis: int, layer: str
) -> int | None:
    """Find the axis of scores, [B, N, C] or [B, C, N], that counts the classes.

    Its other axis has to have the length of the boxes' axis of anchors. In a transformer it is the
    axis that holds the four coordinates in the boxes. That need not be so in a detector with grid
    cells: PaddlePaddle's have boxes [B, N, 4] and scores [B, C, N]. There, the shorter axis counts
    the classes.

    Args:
        anchor_count: N, from the shape of the boxes: a number, a symbol or unknown.
        score_dims: The shape of the scores.
        coordinate_axis: The axis of the four coordinates in the boxes, 1 or 2.
        layer: The operator of the layer that predicts the boxes, such as "Conv".

    Returns:
        The axis, 1 or 2; None if neither matches.
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
    """Choose the shortest of the given axes, as there are fewer classes than cells of a grid.

    Among equally long axes, it is the last one. None if the length of none is known.
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

    They are not if only one of them comes after a selection, by a TopK or non-maximum suppression:
    it then has different detections from the other one, or a different order. Nor are they if the
    boxes are computed from the scores.
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
