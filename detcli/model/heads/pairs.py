"""Finds heads whose boxes and scores are two tensors of a graph, with an entry for each anchor."""

import itertools
import math
from collections.abc import Iterable
from dataclasses import replace

from onnx import NodeProto

from detcli.model.contract import Layout
from detcli.model.graph import (
    CONVOLUTIONS,
    PRODUCTS,
    Dims,
    GraphIndex,
    attribute,
    integers,
    known_size,
    needed_nodes,
)
from detcli.model.heads import (
    BOX_COORDINATES,
    HEAD_RANK,
    SELECTION,
    SUPPRESSION,
    Activation,
    BoxDecode,
    ChannelRange,
    Decoded,
    Head,
    Queries,
    Unrecognised,
)
from detcli.model.heads.channels import channel_groups
from detcli.model.heads.decode import box_decoding, distance_bin_count, measures_from_cell_corners
from detcli.model.heads.joined_classes import is_multiplied
from detcli.model.heads.layers import (
    LAYER_OPERATORS,
    converts_to_corners,
    layer_outputs,
    moved_inputs,
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
        head = _head_of_boxes_and_scores(index, boxes, scores)
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
    """Find the output that holds landmarks, where its shape could also be that of scores.

    Landmarks are the x and y of points, so each box has an even count of numbers. They are as a
    layer leaves them, while scores come from a softmax or sigmoid. So there are two ways to read
    the graph, with the same boxes, and one of the two takes the landmarks for the scores. What the
    scores or boxes are computed from are not landmarks, but logits or distances.

    Args:
        index: The graph.
        heads: Every pair of outputs that may be boxes and scores.

    Returns:
        The name of the output; None if it is not clear that it holds landmarks.
    """
    have_same_boxes = len({head.boxes for head in heads}) == 1
    if len(heads) != 2 or not have_same_boxes:
        return None
    heads_without_activation = [head for head in heads if head.scores_are is Activation.LINEAR]
    if len(heads_without_activation) != 1:
        return None
    head_with_landmarks = heads_without_activation[0]
    numbers_per_box = head_with_landmarks.class_count
    if numbers_per_box is None or numbers_per_box % 2 == 1:
        return None
    landmarks = head_with_landmarks.scores[0].tensor
    computed_from_it = index.moved_from(landmarks) - {landmarks}
    for head in heads:
        if not computed_from_it.isdisjoint(head.tensors):
            return None
    return landmarks


def _are_left_out_of_selection(index: GraphIndex, head: Head) -> bool:
    """True if a graph gives boxes that it selects, and those of a head are not among them.

    What a graph selects is what its authors use. Its raw boxes may be in another unit or order, and
    have a class for the background.
    """
    depend_on_selection = tensors_behind_selection(index)
    if head.boxes[0].tensor in depend_on_selection:
        return False
    for output in index.outputs:
        if output in depend_on_selection and index.size(output, -1) == BOX_COORDINATES:
            return True
    return False


def _holds_masks(index: GraphIndex, output: str, head: Head) -> bool:
    """True if another output than boxes and scores holds the masks of objects.

    These are [B, channels, H, W]. An output [B, layers, N, features], N being the number of boxes,
    holds what the layers of a transformer's decoder give for each box, and does no harm. Nor does
    a tensor that the boxes or scores are computed from, such as a map of the network.
    """
    anchor_axis = 1 if head.anchors_first else 2
    anchor_count = index.shapes[head.boxes[0].tensor][anchor_axis]
    dims = index.shapes[output]
    if len(dims) != 4 or dims[2] == anchor_count:
        return False
    return index.moved_from(output).isdisjoint(head.tensors)


def _head_of_boxes_and_scores(
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
    class_axis = _class_axis(anchor_count, score_dims, channel_axis=channel_axis, layer=layer)
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
    return _checked_by_nodes(index, head, score_count)


def _other_axis(axis: int) -> int:
    """Return the axis of a tensor [B, N, channels] or [B, channels, N] beside the batch and one."""
    if axis == 1:
        return 2
    return 1


def _checked_by_nodes(index: GraphIndex, head: Head, score_count: int) -> Head | None:
    """Complete a head whose boxes and scores have fitting shapes, if their nodes fit as well.

    Args:
        index: The graph.
        head: The head; whether its scores begin with an objectness is not known yet.
        score_count: How many scores each box has, an objectness included.

    Returns:
        None if the nodes that compute the tensors show that they are not boxes and scores.
    """
    boxes = head.boxes[0].tensor
    scores = head.scores[0].tensor
    if head.scores_are is None or not _may_belong_together(index, boxes, scores):
        return None
    has_objectness = _begin_with_objectness(index, boxes, scores)
    have_same_shape = score_count == BOX_COORDINATES
    if have_same_shape:
        scores_as_boxes = box_decoding(index, scores)
        if not _are_told_apart(head, scores_as_boxes, has_objectness=has_objectness):
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


def _are_told_apart(head: Head, scores_as_boxes: Decoded | None, *, has_objectness: bool) -> bool:
    """True if the nodes show which of two tensors of the same shape is the boxes.

    With four classes, boxes and scores have the same shape, and may be the other way round.

    Args:
        head: The head as it is assumed to be.
        scores_as_boxes: How its scores would have been decoded if they were the boxes.
        has_objectness: Whether its scores begin with an objectness.
    """
    if scores_as_boxes is not None and scores_as_boxes.method in BOX_ONLY_METHODS:
        return False  # The assumed scores are boxes.
    is_of_cells = not head.of_queries
    if has_objectness and is_of_cells:
        return True  # Detectors with cells have the objectness before the scores, not the boxes.
    if head.decodes(*BOX_ONLY_METHODS):
        return True  # The assumed boxes are boxes.
    if is_of_cells:
        return False
    return _sigmoid_boxes_are_told_apart(head, scores_as_boxes)


def _sigmoid_boxes_are_told_apart(head: Head, scores_as_boxes: Decoded | None) -> bool:
    """True if boxes that end in a sigmoid, as a transformer's do, cannot be the scores.

    Scores may end in a sigmoid as well. But only boxes are computed from an earlier estimate of
    the boxes, which is added before the sigmoid.
    """
    if not head.decodes(BoxDecode.SIGMOID, BoxDecode.REFINED):
        return False
    if head.scores_are is not Activation.SIGMOID:
        return True
    if scores_as_boxes is None or scores_as_boxes.method is not BoxDecode.SIGMOID:
        return False
    return head.decodes(BoxDecode.REFINED)


def _begin_with_objectness(index: GraphIndex, boxes: str, scores: str) -> bool:
    """True if the first channel of the scores is an objectness, not a class.

    An objectness says how probable it is that there is any object, of whatever class. Either it is
    a tensor of one channel that is joined to the scores of the classes. Or one layer predicts
    boxes, objectness and classes together, as in YOLOv5; if the scores were already multiplied by
    the objectness, none is left.
    """
    tensor_of_scores, joined_groups = channel_groups(index, scores)
    sizes_before_classes = [size for size, _ in joined_groups[:-1]]
    if sizes_before_classes == [1]:
        return True
    if joined_groups:
        _, tensor_of_scores = joined_groups[0]
    layers_of_both = layer_outputs(index, boxes) & layer_outputs(index, scores)
    has_common_layer = bool(layers_of_both)
    return has_common_layer and not is_multiplied(index, tensor_of_scores)


def _class_axis(
    anchor_count: int | str | None, score_dims: Dims, *, channel_axis: int, layer: str
) -> int | None:
    """Find the axis of scores, [B, N, C] or [B, C, N], that counts the classes.

    It is usually the axis that holds the four coordinates in the boxes. PaddlePaddle's detectors
    with grid cells have scores in the other order. None if neither axis fits.

    Args:
        anchor_count: N as the shape of the boxes has it: a number, a symbol or unknown.
        score_dims: The shape of the scores.
        channel_axis: The axis of the four coordinates in the boxes, 1 or 2.
        layer: The operator that predicts the boxes; a matrix product in transformers.
    """
    possible_axes = []
    for class_axis in (1, 2):
        anchor_axis = _other_axis(class_axis)
        if _may_be_equal(score_dims[anchor_axis], anchor_count):
            possible_axes.append(class_axis)
    if layer in PRODUCTS:  # Transformers always have the same order in boxes and scores.
        if channel_axis in possible_axes:
            return channel_axis
        return None
    return _shortest_axis(score_dims, possible_axes)


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


def _may_belong_together(index: GraphIndex, boxes: str, scores: str) -> bool:
    """True if two tensors can be the boxes and scores of the same detections, in the same order.

    A TopK or non-maximum suppression selects detections. If one of the two tensors depends on such
    a selection, the other has to depend on it too. The boxes must not be computed from the scores.
    """
    if boxes in index.moved_from(scores):
        return False
    for node in index.nodes(*SELECTION):
        depend_on_selection = index.moved_from(*outputs_that_select(node))
        are_boxes_selected = boxes in depend_on_selection
        are_scores_selected = scores in depend_on_selection
        if are_boxes_selected != are_scores_selected:
            return False
    return True


def find_best_class_head(index: GraphIndex) -> Head | None:
    """Find the head of a graph that reduces the scores of each box to those of its best class.

    DeepStream-Yolo appends an ArgMax over the classes for that. The head is the boxes and the
    scores that the ArgMax reads. Returns None for a graph without this ArgMax.
    """
    if index.nodes(*SELECTION):
        return None
    output_names = {output.name for output in index.graph.output}
    for arg_max in index.nodes("ArgMax"):
        scores = arg_max.input[0]
        if len(index.shapes[scores]) != HEAD_RANK:
            continue
        depend_on_class = index.moved_from(arg_max.output[0])
        if depend_on_class.isdisjoint(output_names):
            continue
        for boxes in _boxes_before_selection(index, depend_on_class):
            head = _head_of_boxes_and_scores(index, boxes, scores, best_class_only=True)
            if head is not None:
                return head
    return None


def _boxes_before_selection(index: GraphIndex, depend_on_selection: set[str]) -> list[str]:
    """List the tensors that may be all boxes, [B, N, 4], from which a graph selects its outputs.

    The search goes back from the outputs through what depends on the selection, to the first
    tensors of this shape that do not.

    Args:
        index: The graph.
        depend_on_selection: The tensors that depend on which boxes or classes were selected.
    """

    def may_be_all_boxes(name: str) -> bool:
        dims = index.shapes[name]
        has_shape_of_boxes = len(dims) == HEAD_RANK and dims[2] == BOX_COORDINATES
        return has_shape_of_boxes and name not in depend_on_selection

    def inputs_to_follow(node: NodeProto, name: str) -> Iterable[str]:
        if may_be_all_boxes(name):
            return ()
        only_moves_elements = moved_inputs(node, name) is not None
        if name in depend_on_selection or only_moves_elements:
            return list(node.input)
        return ()

    outputs = [output.name for output in index.graph.output]
    boxes = []
    for _, name in index.behind_all(outputs, inputs_to_follow):
        if may_be_all_boxes(name):
            boxes.append(name)
    return boxes


def find_query_head(index: GraphIndex) -> Head | None:
    """Find the head of a transformer that selects its best detections by a TopK.

    DETR and its successors flatten the scores [B, Q, C] of Q queries and C classes, and a TopK
    takes the best pairs of query and class. The head is the boxes and scores before that.

    Returns:
        None if the graph has no such TopK, or selects by non-maximum suppression.
    """
    if index.nodes(*SUPPRESSION):
        return None
    for top_k in reversed(index.nodes("TopK")):
        scores = _scores_before_flattening(index, top_k.input[0])
        if scores is None:
            continue
        depend_on_top_k = index.moved_from(*top_k.output)
        if _layers_read_any(index, depend_on_top_k):
            # This TopK selects the queries that the layers of a decoder begin with.
            continue
        # Boxes are scaled by the size of the image only after the selection.
        depend_on_selection = depend_on_top_k | index.moved_from(*_inputs_beside_images(index))
        for boxes in _boxes_before_selection(index, depend_on_selection):
            head = _head_of_boxes_and_scores(index, boxes, scores)
            if head is not None:
                return replace(head, max_detections=_selected_count(index, top_k))
    return None


def _inputs_beside_images(index: GraphIndex) -> list[str]:
    """List the inputs of a graph that have too few axes for images, such as the size of these."""
    inputs = index.image_inputs()
    return [value.name for value in inputs if len(index.shapes[value.name]) < HEAD_RANK]


def _layers_read_any(index: GraphIndex, tensors: set[str]) -> bool:
    """True if a layer, a convolution or matrix product with weights, reads one of some tensors."""
    for node in index.nodes(*LAYER_OPERATORS):
        if not converts_to_corners(index, node) and not tensors.isdisjoint(node.input):
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
    """Find the scores [B, Q, C] of queries that were flattened, as for a TopK over all of them.

    Reshapes and a sigmoid may come between, in any order. The search passes over all of them.

    Args:
        index: The graph.
        tensor: The tensor that may be the flattened scores.

    Returns:
        The name of the scores; None if the tensor has three axes itself, or no scores are found.
    """
    is_flattened = len(index.shapes[tensor]) < HEAD_RANK
    if not is_flattened:
        return None
    scores = tensor
    for _ in range(MAX_RESHAPES):
        node = index.producer(scores, *SHAPE_OPERATORS, "Sigmoid")
        if node is None:
            return _nearest_of_head_rank(index, scores)
        source = node.input[0]
        may_flatten = node.op_type in {"Flatten", "Reshape"}
        if may_flatten and len(index.shapes[source]) < HEAD_RANK:
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
    return _head_of_boxes_and_scores(index, str(boxes), str(scores))


ATTENTION = frozenset({"Attention", "GridSample", "MultiHeadAttention", "Softmax"})
SMALLEST_PATCH = 8  # pixels; a vision transformer's are 14 or 16, a convolution's stride is 2 or 4


def queries_of(index: GraphIndex, boxes: str) -> Queries:
    """Tell what a transformer's decoder starts from to predict a tensor of boxes.

    It starts from queries. Without a TopK they are the same for every image, as training left
    them. A TopK selects the best places of the image: of the feature maps that convolutions give,
    or of what a transformer's encoder makes of these.
    """
    nodes, _ = needed_nodes(index.graph, boxes)
    top_k_nodes = [node for node in nodes if node.op_type == "TopK"]
    if not top_k_nodes:
        return Queries.LEARNT
    if all(_chooses_from_maps(index, top_k) for top_k in top_k_nodes):
        return Queries.MAPS
    return Queries.ENCODED


def _chooses_from_maps(index: GraphIndex, top_k: NodeProto) -> bool:
    """True if a TopK chooses from feature maps, and not from the output of an encoder.

    The search goes back to the convolutions, and must not meet the attention of an encoder.
    """

    def inputs_to_follow(node: NodeProto, _: str) -> Iterable[str]:
        ends_search = node.op_type in CONVOLUTIONS or node.op_type == "Shape"
        if ends_search:
            return ()
        return list(node.input)

    reaches_convolution = False
    for node, _ in index.behind_all([top_k.input[0]], inputs_to_follow):
        if node.op_type in ATTENTION:
            return False
        reaches_convolution |= node.op_type in CONVOLUTIONS
    return reaches_convolution


def has_patches(index: GraphIndex) -> bool:
    """True if a graph begins as a vision transformer does, which cuts the image into patches.

    A convolution of the three colours then has a stride as large as its kernel, of 8 pixels or
    more, so that patches do not overlap.
    """
    for convolution in index.nodes(*CONVOLUTIONS):
        weights_position = CONVOLUTIONS[convolution.op_type]
        weight_dims = index.shapes[convolution.input[weights_position]]
        if len(weight_dims) != 4:
            continue
        _, input_channels, kernel_height, kernel_width = weight_dims
        if input_channels != 3 or attribute(convolution, "group", 1) != 1:
            continue
        patch_size = known_size(kernel_width) or 0
        has_kernel_as_stride = [kernel_height, kernel_width] == integers(convolution, "strides")
        if patch_size >= SMALLEST_PATCH and has_kernel_as_stride:
            return True
    return False
