"""Finds heads of YOLOs that select their best detections themselves, as YOLOv10 does."""

from dataclasses import replace

from onnx import NodeProto

from detcli.model.contract import Layout
from detcli.model.graph import GraphIndex, attribute
from detcli.model.heads import BOX_COORDINATES, BOXES_ONLY, HEAD_RANK, Head, Unrecognised
from detcli.model.heads.joined import (
    describe_joined_head,
    describe_without_extras,
    swaps_last_axes,
    task_besides_boxes,
)


def find_end_to_end_head(index: GraphIndex, *, boxes_only: bool) -> Head | None:
    """Find the head of a YOLO that selects its best detections itself, as YOLOv10 does.

    The nodes of such a graph are, in this order: perhaps a Transpose; a Split of the head into
    boxes and scores; perhaps a Where that replaces NaN scores, as `detcli convert --end-to-end`
    appends; a ReduceMax, for the highest score of each anchor; and a TopK, for the best anchors.
    They are looked for from the end, from the TopK back to the head.

    Args:
        index: The graph.
        boxes_only: Whether a graph that also outputs masks or keypoints is read for its boxes.

    Returns:
        None if the graph does not select in this way.

    Raises:
        Unrecognised: The graph outputs masks or keypoints too, and `boxes_only` is not set.
    """
    for top_k in index.nodes("TopK"):
        maximum = index.producer(top_k.input[0], "ReduceMax")
        if maximum is None:
            continue
        split = _split_before_maximum(index, maximum)
        if split is None:
            continue

        # The maximum is taken over the classes, so its axis is that of the channels.
        are_channels_last = index.axes(maximum) in ([-1], [2])
        head = _head_before_split(
            index, split, anchors_first=are_channels_last, boxes_only=boxes_only
        )
        if head is not None:
            return head
    return None


def _head_before_split(
    index: GraphIndex, split: NodeProto, *, anchors_first: bool, boxes_only: bool
) -> Head | None:
    """Describe the head of a YOLO that splits it into boxes and scores, and selects by the scores.

    Args:
        index: The graph.
        split: The Split, or a Slice that outputs the scores alone.
        anchors_first: Whether the tensor that is split is `[B, N, channels]`, not
            `[B, channels, N]`.
        boxes_only: Whether a graph that also outputs masks or keypoints is read for its boxes.

    Returns:
        None if the graph has more outputs than the detections, but no masks or keypoints.

    Raises:
        Unrecognised: The graph outputs masks or keypoints too, and `boxes_only` is not set.
    """
    head_tensor = split.input[0]
    transpose = index.producer(head_tensor)
    if transpose is not None and swaps_last_axes(transpose):
        # The head is the tensor before the Transpose, which is [B, channels, N].
        head_tensor = transpose.input[0]
        anchors_first = False

    # A Split outputs boxes, scores and perhaps masks or keypoints; a Slice outputs the scores
    # alone.
    has_masks_or_keypoints = len(split.output) == 3
    if has_masks_or_keypoints:
        return _head_with_masks_or_keypoints(
            index, head_tensor, split, anchors_first=anchors_first, boxes_only=boxes_only
        )
    if len(index.outputs) != 1:
        return None

    scores = split.output[-1]
    head = describe_joined_head(index, head_tensor, scores, anchors_first=anchors_first)
    return replace(head, layout=Layout.END_TO_END)


def _split_before_maximum(index: GraphIndex, maximum: NodeProto) -> NodeProto | None:
    """Find the node that separates scores from boxes before a ReduceMax takes the highest scores.

    Returns:
        The Slice or Split; None if another node computes what the ReduceMax reads.
    """
    scores = maximum.input[0]
    nan_guard = index.producer(scores, "Where")
    if nan_guard is not None:
        scores = nan_guard.input[2]  # It is Where(IsNaN(scores), 0, scores).
    split = index.producer(scores)
    if split is None or not _splits_off_boxes(index, split):
        return None
    return split


def _head_with_masks_or_keypoints(
    index: GraphIndex, head_tensor: str, split: NodeProto, *, anchors_first: bool, boxes_only: bool
) -> Head:
    """Describe a head that a graph splits into boxes, scores, and masks or keypoints.

    Args:
        index: The graph.
        head_tensor: The tensor before the Split.
        split: The Split, with three outputs.
        anchors_first: Whether the head is `[B, N, channels]`, not `[B, channels, N]`.
        boxes_only: Whether the user has asked to read the boxes alone.

    Raises:
        Unrecognised: The boxes alone were not asked for, or the number of classes is not clear.
    """
    _, scores, masks_or_keypoints = split.output
    axis = attribute(split, "axis", 0)
    class_count = index.size(scores, axis)
    if not boxes_only or class_count is None:
        extra_count = index.size(masks_or_keypoints, axis)
        raise Unrecognised(task_besides_boxes(index, extra_count), BOXES_ONLY)
    return describe_without_extras(index, head_tensor, class_count, anchors_first=anchors_first)


def _splits_off_boxes(index: GraphIndex, node: NodeProto) -> bool:
    """True if a node separates a head's four channels of boxes from those after them.

    It is a Split into boxes, scores and perhaps more, or a Slice of all channels starting at the
    fifth.
    """
    if node.op_type == "Split" and len(node.output) in {2, 3}:
        first_size = index.size(node.output[0], attribute(node, "axis", 0))
        return first_size in {BOX_COORDINATES, None}
    if node.op_type == "Slice" and len(node.input) >= 4:
        return _slices_all_after_boxes(index, node)
    return False


def _slices_all_after_boxes(index: GraphIndex, node: NodeProto) -> bool:
    """True if a Slice takes all channels of a head starting at the fifth, those after the boxes."""
    # The inputs of a Slice are data, starts, ends and axes.
    head_tensor = node.input[0]
    starts, ends, axes = (index.constant(name) for name in node.input[1:4])
    if starts != [BOX_COORDINATES] or ends is None:
        return False
    channel_count = 0  # where it is not known, any end is taken for that of the channels
    if axes and len(index.shapes[head_tensor]) == HEAD_RANK:
        channel_count = index.size(head_tensor, axes[0]) or 0
    return ends[0] >= channel_count
