"""Finds heads whose boxes and scores are joined in one tensor of a graph."""

from dataclasses import replace

from onnx import NodeProto

from detcli.model.contract import Layout
from detcli.model.graph import GraphIndex, attribute, integers
from detcli.model.heads import (
    BOX_COORDINATES,
    BOXES_ONLY,
    DETECTORS,
    HEAD_RANK,
    SELECTION,
    Activation,
    ChannelRange,
    Head,
    Unrecognised,
)
from detcli.model.heads.channels import ChannelGroups, groups_along
from detcli.model.heads.decode import box_decoding, decoding_of_joined_boxes
from detcli.model.heads.joined_classes import (
    classes_after_boxes,
    classes_after_landmarks,
    is_probability,
)
from detcli.model.heads.layers import layer_outputs, nearest_layer_operator, score_activation


def find_joined_head(
    index: GraphIndex, names: list[str] | None, *, boxes_only: bool
) -> Head | None:
    """Find a head that is an output of the graph and holds boxes and scores together.

    A head is first recognised by the nodes that join boxes and scores. Failing that, the only
    output of a graph may be one by its shape.

    Args:
        index: The graph.
        names: The class names in the file's metadata, if any. Their number tells which axis counts
            the channels where no node shows it.
        boxes_only: Whether a graph that also outputs masks or keypoints is read for its boxes.

    Returns:
        None if no output is such a head.
    """
    possible_heads = []
    for name in _final_outputs(index):
        possible_heads.append(_before_added_axes(index, name))
    has_one_output = len(possible_heads) == 1

    # Where there are several outputs, the others may be masks: the user must ask for boxes only.
    is_head_accepted = has_one_output or boxes_only
    for head_tensor in possible_heads:
        for channel_axis in (1, 2):
            head = _head_joined_along(index, head_tensor, channel_axis, boxes_only=boxes_only)
            if head is not None and is_head_accepted:
                return head

    selects_detections = bool(index.nodes(*SELECTION))
    if not has_one_output or selects_detections:
        return None
    return _head_by_shape(index, possible_heads[0], names)


def _before_added_axes(index: GraphIndex, output: str) -> str:
    """Go back from an output with more axes than a head to the tensor before they were added."""
    tensor = output
    while len(index.shapes[tensor]) > HEAD_RANK:
        unsqueeze = index.producer(tensor, "Unsqueeze")
        if unsqueeze is None:
            return output
        tensor = unsqueeze.input[0]
    return tensor


def _final_outputs(index: GraphIndex) -> list[str]:
    """List the outputs of a graph that none of its other outputs is computed from.

    YOLOv5 exported for training also outputs the feature maps that its head is computed from.
    """
    final_outputs = []
    for name in index.outputs:
        other_outputs = set(index.outputs) - {name}
        if index.tensors_computed_from(name).isdisjoint(other_outputs):
            final_outputs.append(name)
    return final_outputs


def _selects_only_queries(index: GraphIndex, boxes: list[str], scores: list[str]) -> bool:
    """True if a graph selects at most the queries of a transformer, and no finished detections.

    A transformer's decoder may begin with a TopK that selects queries. Both the boxes and the
    layers that predict the scores then depend on the indices that it outputs. A graph that selects
    finished detections has computed boxes and scores before that.

    Args:
        index: The graph.
        boxes: The tensors of the boxes in the head.
        scores: The tensors of the scores, and of whatever else follows the boxes.

    Returns:
        Also true if the graph selects nothing.
    """
    selecting_nodes = index.nodes(*SELECTION)
    if not selecting_nodes:
        return True

    score_layers: set[str] = set()  # the outputs of the layers
    for name in scores:
        score_layers |= layer_outputs(index, name)
    if not score_layers:
        return False  # Nothing shows that layers follow the selection.

    for node in selecting_nodes:
        if node.op_type != "TopK":
            return False
        selected_indices = node.output[1]
        computed_from_queries = index.tensors_computed_from(selected_indices)
        if not computed_from_queries.issuperset(score_layers):
            return False
        if not computed_from_queries.issuperset(boxes):
            return False
    return True


def _head_by_shape(index: GraphIndex, tensor: str, names: list[str] | None) -> Head | None:
    """Read a tensor as a head although its nodes do not show which channels are boxes and scores.

    If a Concat of two tensors makes it, these are taken to be boxes and scores. Otherwise one of
    its axes has to have as many channels as a head.

    Args:
        index: The graph.
        tensor: The tensor.
        names: The class names in the file's metadata, if any.

    Returns:
        None if the tensor cannot be a head.
    """
    concat, is_transposed = _concat_of_boxes_and_scores(index, tensor)
    if concat is None:
        return _head_by_channel_count(index, tensor, names)

    # Channels that are joined on the last axis, 2, come after the anchors: [B, N, channels].
    anchors_first = _concat_axis(concat) == 2
    if is_transposed:
        anchors_first = not anchors_first
    _, scores = concat.input
    return describe_joined_head(index, tensor, scores, anchors_first=anchors_first)


def _head_by_channel_count(index: GraphIndex, tensor: str, names: list[str] | None) -> Head | None:
    """Read a tensor as a head if one of its axes has 4 channels and one for each class name.

    If the file has no class names, an axis of unknown size is taken to be that of the channels.

    Args:
        index: The graph.
        tensor: The tensor.
        names: The class names in the file's metadata, if any.

    Returns:
        None if neither axis after the batch can be that of the channels, or either can.
    """
    dims = index.shapes[tensor]
    if len(dims) != HEAD_RANK or dims[1] == dims[2]:
        return None

    # The size of an unknown axis is None in a shape, so None finds such an axis.
    size_of_channel_axis = None
    if names:
        size_of_channel_axis = BOX_COORDINATES + len(names)
    if size_of_channel_axis not in dims[1:]:
        return None
    are_channels_last = dims[2] == size_of_channel_axis
    # No tensor of the scores alone is known, so the head stands for it.
    return describe_joined_head(index, tensor, scores=tensor, anchors_first=are_channels_last)


def _head_of_boxes_then_scores(
    tensor: str, class_count: int | None, *, anchors_first: bool, stop: int | None = None
) -> Head:
    """Describe a tensor that holds four channels of boxes and then scores.

    Args:
        tensor: The tensor.
        class_count: How many classes have scores in it, if known.
        anchors_first: Whether it is `[B, N, channels]`, not `[B, channels, N]`.
        stop: The channel before which the scores end; None if they end with the tensor.
    """
    layout = Layout.BODY
    if anchors_first:
        layout = Layout.TRANSPOSED_BODY
    return Head(
        layout,
        boxes=(ChannelRange(tensor, 0, BOX_COORDINATES),),
        scores=(ChannelRange(tensor, BOX_COORDINATES, stop),),
        class_count=class_count,
        anchors_first=anchors_first,
        decoded=None,
    )


def describe_joined_head(
    index: GraphIndex, head_tensor: str, scores: str, *, anchors_first: bool
) -> Head:
    """Describe a head that joins boxes to scores.

    Where the nodes show which activation function the scores were computed with, how the boxes were
    decoded and which layer predicts them, the description says so.

    Args:
        index: The graph.
        head_tensor: The tensor that holds four channels of boxes and then scores.
        scores: The tensor of the scores before the join; `head_tensor` if there is no such tensor.
        anchors_first: Whether the head is `[B, N, channels]`, not `[B, channels, N]`.
    """
    class_count = _class_count(index, head_tensor, scores, anchors_first=anchors_first)
    head = _head_of_boxes_then_scores(head_tensor, class_count, anchors_first=anchors_first)
    if scores != head_tensor:
        head = replace(head, scores_are=score_activation(index, scores))

    channel_axis = 2 if anchors_first else 1
    boxes = _joined_box_tensor(index, head_tensor, channel_axis)
    if boxes is None:
        return head
    decoded = box_decoding(index, boxes)
    return replace(head, decoded=decoded, layer=nearest_layer_operator(index, boxes))


def _joined_box_tensor(index: GraphIndex, head_tensor: str, channel_axis: int) -> str | None:
    """Find the tensor of the boxes that a head joins to the scores, and perhaps to more tensors.

    If the head is not a Concat of just boxes and scores, the first tensor that is joined along its
    channels is taken for the boxes, provided that it has four channels.

    Args:
        index: The graph.
        head_tensor: The head.
        channel_axis: The axis of its channels.

    Returns:
        The name of the tensor; None if there is none.
    """
    boxes = box_tensor_of(index, head_tensor)
    joins_only_boxes_and_scores = boxes != head_tensor
    if joins_only_boxes_and_scores:
        return boxes

    joined_tensors = groups_along(index, head_tensor, channel_axis)
    if not joined_tensors:
        return None
    channel_count, first_tensor = joined_tensors[0]
    if channel_count != BOX_COORDINATES:
        return None
    return first_tensor


def _class_count(
    index: GraphIndex, head_tensor: str, scores: str, *, anchors_first: bool
) -> int | None:
    """Count the classes of a head that joins four channels of boxes to its scores.

    Args:
        index: The graph.
        head_tensor: The tensor of boxes and scores.
        scores: The tensor of the scores before the join.
        anchors_first: Whether the head is `[B, N, channels]`, not `[B, channels, N]`.

    Returns:
        None if neither the shape of the head nor a Split before it shows the number.
    """
    dims = index.shapes[head_tensor]
    channels = None
    if len(dims) == HEAD_RANK:
        channel_axis = 2 if anchors_first else 1
        channels = dims[channel_axis]
    if not isinstance(channels, int):
        # The size is not known where it depends on the size of the input.
        return _score_count_of_split(index, scores)
    if channels <= BOX_COORDINATES:
        return None
    return channels - BOX_COORDINATES


def _score_count_of_split(index: GraphIndex, scores: str) -> int | None:
    """Count the channels of scores by the Split that separates them from boxes.

    The sizes of the outputs of a Split are constants. A Sigmoid may follow it.

    Returns:
        None if no Split outputs the scores, or if its sizes are not known.
    """
    split_output = scores
    sigmoid = index.producer(scores, "Sigmoid")
    if sigmoid is not None:
        split_output = sigmoid.input[0]
    split = index.producer(split_output, "Split")
    if split is None or len(split.input) < 2:
        return None
    sizes = index.constant(split.input[1])
    if not sizes:
        return None
    output_position = list(split.output).index(index.computed_as(split_output))
    return sizes[output_position]


def _head_joined_along(
    index: GraphIndex, head_tensor: str, axis: int, *, boxes_only: bool
) -> Head | None:
    """Read a tensor as a head that joins boxes and scores along one of its axes.

    The boxes are the first four channels: one tensor, or several such as centre and size. The
    scores come after them. Some families have an objectness and landmarks before the scores, others
    masks or keypoints after them.

    Args:
        index: The graph.
        head_tensor: The tensor.
        axis: The axis along which boxes and scores are joined, 1 or 2.
        boxes_only: Whether a graph that also outputs masks or keypoints is read for its boxes.

    Returns:
        None if the joined tensors are not boxes and scores.
    """
    boxes, groups_after_boxes = _divide_after_boxes(groups_along(index, head_tensor, axis))
    tensors_after_boxes = [name for _, name in groups_after_boxes]
    if not groups_after_boxes or not _selects_only_queries(index, boxes, tensors_after_boxes):
        return None
    decoded = decoding_of_joined_boxes(index, boxes)
    if decoded is None and len(boxes) > 1:
        return None

    anchors_first = axis == 2
    classes = classes_after_boxes(index, decoded, groups_after_boxes)
    if classes is None:
        classes = classes_after_landmarks(index, groups_after_boxes)
    if classes is None:
        return _head_before_extras(
            index,
            head_tensor,
            groups_after_boxes,
            anchors_first=anchors_first,
            boxes_only=boxes_only,
        )

    head = replace(
        _head_of_boxes_then_scores(head_tensor, classes.class_count, anchors_first=anchors_first),
        decoded=decoded,
        layer=_first_layer_operator(index, boxes),
        objectness=classes.have_objectness,
        landmark_channels=classes.landmark_channels,
    )
    if classes.have_objectness:
        return replace(head, layout=Layout.ONE_TO_MANY, scores_are=Activation.SIGMOID)
    scores = tensors_after_boxes[0]
    return replace(head, scores_are=score_activation(index, scores))


def _first_layer_operator(index: GraphIndex, tensors: list[str]) -> str:
    """Name the operator of the layer before the first tensor that has one; empty if none has.

    For boxes that are computed as centre and size, either may come without a layer.
    """
    for tensor in tensors:
        operator = nearest_layer_operator(index, tensor)
        if operator:
            return operator
    return ""


def _head_before_extras(
    index: GraphIndex,
    head_tensor: str,
    groups_after_boxes: ChannelGroups,
    *,
    anchors_first: bool,
    boxes_only: bool,
) -> Head | None:
    """Read the boxes and scores of a head that also holds masks, keypoints or angles.

    Args:
        index: The graph.
        head_tensor: The tensor.
        groups_after_boxes: The tensors that the head joins to the boxes, with their number of
            channels: first the scores, then the masks, keypoints or angles.
        anchors_first: Whether the head is `[B, N, channels]`, not `[B, channels, N]`.
        boxes_only: Whether the user has asked to read the boxes alone.

    Returns:
        None if nothing follows the scores, or they are not probabilities.

    Raises:
        Unrecognised: The boxes alone were not asked for, or are of no use without their angle.
    """
    class_count, scores = groups_after_boxes[0]
    extra_channels = [channel_count for channel_count, _ in groups_after_boxes[1:]]
    if not extra_channels or not is_probability(index, scores):
        return None

    task = task_besides_boxes(index, sum(extra_channels))
    has_angle = extra_channels == [1] and len(index.outputs) == 1
    if has_angle:  # An oriented box without its angle would be a wrong box.
        raise Unrecognised(task, DETECTORS)
    if not boxes_only:
        raise Unrecognised(task, BOXES_ONLY)
    return describe_without_extras(index, head_tensor, class_count, anchors_first=anchors_first)


def _divide_after_boxes(groups: ChannelGroups) -> tuple[list[str], ChannelGroups]:
    """Divide the tensors that a head joins into those of its boxes and those that follow.

    Args:
        groups: The number of channels and the name of each joined tensor.

    Returns:
        The names of the tensors that make up the first four channels, and the rest of the groups;
        both empty if no tensor ends after four channels.
    """
    boxes = []
    channels = 0
    for position, (size, name) in enumerate(groups):
        boxes.append(name)
        channels += size
        if channels == BOX_COORDINATES:
            return boxes, groups[position + 1 :]
    return [], []


def describe_without_extras(
    index: GraphIndex, head_tensor: str, class_count: int, *, anchors_first: bool
) -> Head:
    """Describe the boxes and scores of a head, and leave out the masks or keypoints after them.

    Args:
        index: The graph.
        head_tensor: The tensor that holds them all.
        class_count: How many classes have scores in it.
        anchors_first: Whether it is `[B, N, channels]`, not `[B, channels, N]`.
    """
    channel_axis = 2 if anchors_first else 1
    boxes, _ = _divide_after_boxes(groups_along(index, head_tensor, channel_axis))
    scores_end = BOX_COORDINATES + class_count
    head = _head_of_boxes_then_scores(
        head_tensor, class_count, anchors_first=anchors_first, stop=scores_end
    )
    decoded = decoding_of_joined_boxes(index, boxes)
    return replace(head, decoded=decoded, has_more=True)


def task_besides_boxes(index: GraphIndex, extra_count: int | None) -> str:
    """Describe, for an error message, what a graph does besides finding boxes.

    Args:
        index: The graph.
        extra_count: How many numbers follow the scores of each box, if known.
    """
    if extra_count is None:
        return "masks, keypoints or angles follow the scores of each box"
    if len(index.outputs) > 1:
        # The second output holds the prototypes that the coefficients weight.
        return f"it segments objects: {extra_count} mask coefficients follow the scores of each box"
    if extra_count == 1:
        return "it finds oriented boxes: an angle follows the scores of each box"
    return f"it finds poses: {extra_count} numbers of keypoints follow the scores of each box"


def score_tensor_of(index: GraphIndex, head_tensor: str) -> str:
    """The tensor of class scores, where a head joins it to the boxes; else the head."""
    concat, _ = _concat_of_boxes_and_scores(index, head_tensor)
    if concat is None:
        return head_tensor
    return str(concat.input[1])


def box_tensor_of(index: GraphIndex, head_tensor: str) -> str:
    """Find the tensor of the boxes that a head joins to the scores.

    Returns:
        The name of that tensor; the head itself if it joins no two tensors.

    Raises:
        Unrecognised: The tensor before the scores does not have four channels.
    """
    concat, _ = _concat_of_boxes_and_scores(index, head_tensor)
    if concat is None:
        return head_tensor
    channel_count = index.size(concat.input[0], _concat_axis(concat))
    if channel_count not in {None, BOX_COORDINATES}:
        raise Unrecognised(f"{channel_count} rows come before its class scores, not 4")
    return str(concat.input[0])


def _concat_of_boxes_and_scores(
    index: GraphIndex, head_tensor: str
) -> tuple[NodeProto | None, bool]:
    """Find the Concat that joins boxes and scores in a head, and whether a Transpose follows it.

    Returns:
        The Concat, or None if the head is not a Concat of two tensors; and whether a Transpose of
        the last two axes comes between the Concat and the head. If there is no Concat, that means
        nothing.
    """
    last_node = index.producer(head_tensor)
    if last_node is None:
        return None, False
    is_transposed = swaps_last_axes(last_node)
    concat: NodeProto | None = last_node
    if is_transposed:
        concat = index.producer(last_node.input[0])

    if concat is None or concat.op_type != "Concat" or len(concat.input) != 2:
        return None, is_transposed

    axis = _concat_axis(concat)
    if axis == 0:  # it joins images of a batch
        return None, is_transposed
    dims = index.shapes[concat.output[0]]
    if len(dims) == HEAD_RANK and dims[axis] == BOX_COORDINATES:
        # Its four channels are boxes alone: it joins centre and size, or two corners.
        return None, is_transposed
    return concat, is_transposed


def _concat_axis(concat: NodeProto) -> int:
    """Return the axis, from 0 to 2, along which a Concat of tensors with three axes joins them."""
    axis = attribute(concat, "axis", 0)
    return axis % HEAD_RANK  # ONNX allows negative axes, which count from the end


def swaps_last_axes(node: NodeProto) -> bool:
    """True if a node is a Transpose between channels first and anchors first."""
    permutation = integers(node, "perm")
    return node.op_type == "Transpose" and permutation == [0, 2, 1]
