"""Adds the nodes that give any detector one input and one head.

The graph that runs takes images `[B, 3, H, W]` and ends in a head: boxes and then scores,
`[B, 4 + C, N]` or `[B, N, 4 + C]`; or, where the graph selects detections itself, rows
`[B, K, 6]` of x1, y1, x2, y2, score, class id. What a file has instead is brought to that form by
nodes before and after it, so that every device and engine runs the same graph.
"""

import numpy as np
import onnx
from onnx import ModelProto, helper

from detcli.core import frozen
from detcli.model.contract import Layout, ScoreForm
from detcli.model.editing import (
    copied,
    drop_unused,
    infer_shapes,
    rename,
    replace_nodes,
)
from detcli.model.graph import RESHAPES, GraphIndex
from detcli.model.grid_nodes import FLOAT, NodeBuilder, decoded_grid, input_size
from detcli.model.heads import BOX_COORDINATES, Activation, ChannelRange, Head
from detcli.model.inputs import CHANNELS, ImageInput, OtherInput, Role

HEAD = "detcli/head"  # no exporter makes that name
KEEP_SIZE = 0  # to Reshape, the size that the axis has already


@frozen
class Adaptation:
    """What has to be added to a graph so that it takes images only and ends in one head."""

    head: Head
    image: ImageInput
    others: tuple[OtherInput, ...]
    # Scores become shares of all classes, and the one of this index, 0 or -1, is dropped: it stands
    # for no object.
    no_object: int | None
    y_first: bool  # corners of detections that the graph selects are y1, x1, y2, x2

    @property
    def is_needed(self) -> bool:
        """True if the graph needs more than to be cut at its head."""
        return bool(self.others) or self.image.is_unusual or not self.is_joined

    @property
    def is_joined(self) -> bool:
        """True if the head is a tensor of the graph."""
        head = self.head
        if len(head.tensors) != 1 or head.layout in {Layout.ROWS, Layout.SCALES}:
            return False
        return not head.objectness and not head.has_more and self.no_object is None

    @property
    def head_name(self) -> str:
        """The name of the head in the graph that runs."""
        if self.is_needed:
            return HEAD
        return self.head.tensors[0]

    @property
    def head_sources(self) -> tuple[str, ...]:
        """The tensors of the file that the head is computed from; none if it is one of them."""
        if self.is_needed:
            return self.head.tensors
        return ()

    @property
    def score_form(self) -> ScoreForm:
        """What the scores of the head that runs are."""
        becomes_final = self.no_object is not None or self.head.objectness
        if self.head.scores_are is Activation.LINEAR and not becomes_final:
            return ScoreForm.LOGITS
        return ScoreForm.FINAL

    @property
    def anchors_first(self) -> bool:
        """True if the head that runs is `[B, N, 4 + C]`."""
        if self.no_object is not None or self.head.layout is Layout.SCALES:
            return True
        return self.head.anchors_first


def adapt(model: ModelProto, plan: Adaptation) -> ModelProto:
    """Cut a graph at its head, and add the nodes that a plan asks for.

    The same plan produces the same bytes in every process.
    """
    adapted = copied(model)
    if plan.head.takes_any_size:
        free_input_size(adapted, plan.image.name)

    add = NodeBuilder(adapted)
    if plan.head.layout is Layout.ROWS:
        head = _detection_rows(add, plan)
    else:
        head = _join_boxes_and_scores(add, plan)
    output = helper.make_tensor_value_info(HEAD, add.dtype(head), None)
    add("Identity", head, output=HEAD)
    del adapted.graph.output[:]
    adapted.graph.output.append(output)

    _replace_inputs(add, plan)
    drop_unused(adapted.graph)
    return onnx.shape_inference.infer_shapes(adapted)


def free_input_size(model: ModelProto, image: str) -> None:
    """Let a graph take any number of images of any size, not only the size it was traced with.

    A Reshape to the very shape that its tensor had when it was traced would fail for other sizes,
    so it becomes an Identity.

    Args:
        model: The model, which is changed in place.
        image: The name of its input for images, `[B, 3, H, W]`.
    """
    index = GraphIndex(infer_shapes(model).graph)
    for node in model.graph.node:
        if node.op_type != "Reshape":
            continue
        # The last of several reshapes in a row may restore the shape from before the first.
        unreshaped = index.before(node.output[0], RESHAPES)
        unreshaped_dims = index.shapes[unreshaped]
        has_known_shape = bool(unreshaped_dims) and all(
            isinstance(dim, int) for dim in unreshaped_dims
        )
        restores_shape = unreshaped_dims == index.shapes[node.output[0]]
        if has_known_shape and restores_shape:
            node.op_type = "Identity"
            node.input[:] = [unreshaped]
            del node.attribute[:]

    del model.graph.value_info[:]  # the shapes of all tensors in between
    for value in model.graph.input:
        if value.name == image:
            image_dims = value.type.tensor_type.shape.dim
            image_dims[0].dim_param = "batch"
            image_dims[2].dim_param = "height"
            image_dims[3].dim_param = "width"


def with_one_input(model: ModelProto, plan: Adaptation) -> ModelProto:
    """Let a graph take `[B, 3, H, W]` in floating point as its only input."""
    adapted = copied(model)
    if plan.head.takes_any_size:
        free_input_size(adapted, plan.image.name)
        for output in adapted.graph.output:
            output.type.tensor_type.ClearField("shape")
    _replace_inputs(NodeBuilder(adapted), plan)
    return adapted


def _join_boxes_and_scores(add: NodeBuilder, plan: Adaptation) -> str:
    """Add the nodes that join boxes and scores in one tensor.

    Where the plan asks for it, other nodes come before that: they decode the boxes, multiply the
    scores by an objectness, put the anchors first, and drop the class that stands for no object.

    Args:
        add: Adds nodes to the graph.
        plan: Where boxes and scores are, and what has to be done to them.

    Returns:
        The name of the joined tensor, `[B, 4 + C, N]` or `[B, N, 4 + C]`.
    """
    head = plan.head
    if plan.is_joined:
        return head.tensors[0]

    channel_axis = 2 if head.anchors_first else 1
    boxes, scores = _boxes_and_scores(add, plan, channel_axis)
    if head.objectness:
        scores = _multiply_by_objectness(add, scores, head, channel_axis)

    has_to_put_anchors_first = plan.anchors_first and not head.anchors_first
    if has_to_put_anchors_first:
        boxes = add.swapped(boxes)
        scores = add.swapped(scores)
        channel_axis = 2
    if plan.no_object is not None:
        scores = _drop_no_object(add, scores, plan, channel_axis)

    if add.dtype(boxes) != add.dtype(scores):  # boxes in float16 would be exact to half a pixel
        boxes = add.cast(boxes, FLOAT)
        scores = add.cast(scores, FLOAT)
    return add("Concat", boxes, scores, axis=channel_axis)


def _boxes_and_scores(add: NodeBuilder, plan: Adaptation, channel_axis: int) -> tuple[str, str]:
    """Add the nodes that give boxes and scores two tensors with their channels on one axis.

    Args:
        add: Adds nodes to the graph.
        plan: Where boxes and scores are in the graph.
        channel_axis: The axis of the channels.

    Returns:
        The names of the tensor of the boxes and of that of the scores.
    """
    head = plan.head
    if head.grid is not None and head.layout is Layout.SCALES:
        return decoded_grid(add, head.grid, plan.image)
    boxes = add.channels(head.boxes[0], channel_axis)
    scores = add.channels(head.scores[0], channel_axis)
    if head.scores_transposed:
        scores = add.swapped(scores)
    return boxes, scores


def _multiply_by_objectness(add: NodeBuilder, scores: str, head: Head, channel_axis: int) -> str:
    """Add the nodes that multiply the scores of all classes by the objectness of their box.

    Args:
        add: Adds nodes to the graph.
        scores: The tensor of scores; its first channel is the objectness, which is the probability
            that there is any object, and then comes one for each class, perhaps after landmarks.
        head: Says whether the scores are logits, which become probabilities first, and how many
            channels the landmarks have.
        channel_axis: The axis of the channels.

    Returns:
        The name of the tensor with the products, which has a channel for each class.
    """
    probabilities = scores
    if head.scores_are is Activation.LINEAR:
        probabilities = add("Sigmoid", scores)
    objectness = add.cut(probabilities, start=0, stop=1, axis=channel_axis)
    first_class = 1 + head.landmark_channels
    class_scores = add.cut(probabilities, start=first_class, stop=None, axis=channel_axis)
    return add("Mul", class_scores, objectness)


def _drop_no_object(add: NodeBuilder, scores: str, plan: Adaptation, channel_axis: int) -> str:
    """Add the nodes that drop the score of the class that stands for no object.

    The scores become shares of all classes (softmax) before that, unless they are already.

    Args:
        add: Adds nodes to the graph.
        scores: The tensor of scores.
        plan: Says whether that class is the first or the last.
        channel_axis: The axis of the classes.

    Returns:
        The name of the tensor without it.
    """
    if plan.head.scores_are is Activation.LINEAR:
        scores = add("Softmax", scores, axis=channel_axis)
    if plan.no_object == 0:
        return add.cut(scores, start=1, stop=None, axis=channel_axis)
    return add.cut(scores, start=0, stop=-1, axis=channel_axis)


def _detection_rows(add: NodeBuilder, plan: Adaptation) -> str:
    """Add the nodes that join the detections which a graph selects in one tensor.

    Args:
        add: Adds nodes to the graph.
        plan: Where the boxes, scores and class ids of detections are.

    Returns:
        The name of the joined tensor, `[B, K, 6]`: x1, y1, x2, y2, score and class id of each of
        the K detections.
    """
    head = plan.head
    # Heads of this layout always have class ids; the scores are there for the type checker.
    class_id_columns = head.class_ids or head.scores[0]

    boxes = _columns_with_batch(add, head.boxes[0], width=4)
    scores = _columns_with_batch(add, head.scores[0], width=1)
    class_ids = _columns_with_batch(add, class_id_columns, width=1)
    if plan.y_first:
        boxes = add("Gather", boxes, [1, 0, 3, 2], axis=2)  # x before y
    return add("Concat", boxes, scores, class_ids, axis=2)


def _columns_with_batch(add: NodeBuilder, columns: ChannelRange, width: int) -> str:
    """Add the nodes that give columns of selected detections the shape `[B, K, width]` in float32.

    K is the number of detections. Boxes in the graph are `[B, K, 4]` or `[K, 4]`. Scores and class
    ids are single columns of such a tensor, or a tensor `[B, K]` or `[K]` without an axis for
    columns.

    Args:
        add: Adds nodes to the graph.
        columns: The tensor, and which of its columns to take. Without an end, it is the whole
            tensor.
        width: How many columns there are: 4 of boxes, 1 of scores or class ids.

    Returns:
        The name of the new tensor.
    """
    are_boxes = width == BOX_COORDINATES
    is_cut_from_tensor = columns.stop is not None
    rank_without_batch = 1  # [K]
    if are_boxes or is_cut_from_tensor:
        rank_without_batch = 2  # [K, columns]

    rank = len(add.index.shapes[columns.tensor])
    has_batch = rank == rank_without_batch + 1
    batch_size = KEEP_SIZE if has_batch else 1

    # A whole tensor is returned as it is, so the axis does not matter for [B, K] and [K].
    last_axis = rank - 1
    tensor = add.channels(columns, last_axis)
    reshaped = add("Reshape", tensor, [batch_size, -1, width])
    return add.cast(reshaped, FLOAT)


def _replace_inputs(add: NodeBuilder, plan: Adaptation) -> None:
    """Make float images the only input of a graph, and compute its other inputs from them.

    New nodes are added at the end of the graph, but have to come first in it. The order is then:
    the nodes that convert the images, those that compute other inputs from the converted images,
    and the network.

    Args:
        add: Adds nodes to the end of the graph, which is changed in place.
        plan: Which inputs there are, and what they take.
    """
    graph = add.graph
    network = list(graph.node)

    for other in plan.others:
        _compute_other_input(add, other, plan.image)
    nodes_for_others = list(graph.node)[len(network) :]
    replaced_inputs = {other.name for other in plan.others}

    inputs: list[onnx.ValueInfoProto] = []
    if plan.image.is_unusual:
        float_images = _convert_images(add, plan.image)
        inputs.append(float_images)
        replaced_inputs.add(float_images.name)
    inputs.extend(value for value in graph.input if value.name not in replaced_inputs)
    del graph.input[:]
    graph.input.extend(inputs)

    conversion = list(graph.node)[len(network) + len(nodes_for_others) :]
    replace_nodes(graph, conversion + nodes_for_others + network)


def _compute_other_input(add: NodeBuilder, other: OtherInput, image: ImageInput) -> None:
    """Add the nodes that compute one of the inputs that a graph has beside the image.

    Such an input tells the graph how large an image is, how much it was scaled, or which of its
    pixels are not padding. The whole of the network's input counts as the image here, so that
    nothing was scaled, and no pixel is padding.

    Args:
        add: Adds nodes to the graph.
        other: The input; the nodes output a tensor of its name, `[B, 2]` or a mask `[B, H, W]`.
        image: The graph's input for images.
    """
    height_and_width = input_size(add, image)
    if image.single:
        batch = add.constant([1])
    else:
        batch = add.cut(add("Shape", image.name), start=0, stop=1, axis=0)
    dtype = helper.tensor_dtype_to_np_dtype(other.dtype)
    # The values of one image, which are the same for all images of the batch.
    match other.role:
        case Role.MASK:
            shape = add("Concat", batch, height_and_width, axis=0)
            values = add.constant(np.ones((1, 1, 1)), dtype)
        case Role.SCALE:
            shape = add("Concat", batch, [2], axis=0)
            values = add.constant(np.ones((1, 2)), dtype)
        case Role.WIDTH_HEIGHT:
            shape = add("Concat", batch, [2], axis=0)
            width_and_height = add("Gather", height_and_width, [1, 0], axis=0)
            values = add("Reshape", add("Cast", width_and_height, to=other.dtype), [1, 2])
        case Role.HEIGHT_WIDTH:
            shape = add("Concat", batch, [2], axis=0)
            values = add("Reshape", add("Cast", height_and_width, to=other.dtype), [1, 2])
    add("Expand", values, shape, output=other.name)


def _convert_images(add: NodeBuilder, image: ImageInput) -> onnx.ValueInfoProto:
    """Add the nodes that convert float images `[B, 3, H, W]` to what a graph takes.

    detcli feeds such images, while a graph may take whole numbers, the channels last, or a single
    image without a batch. The new input takes over the name of the graph's input, which is renamed,
    so that callers need not know of the change.

    Args:
        add: Adds nodes to the graph.
        image: The graph's input for images.

    Returns:
        The description of the new input.
    """
    # The input of the file is renamed, so that the new input can have its name.
    file_input = add.unused("image")
    rename(add.graph, image.name, file_input)

    new_input = image.name
    converted = new_input
    if image.dtype == "uint8":
        converted = add("Cast", converted, to=onnx.TensorProto.UINT8)
    if image.channels_last:
        converted = add("Transpose", converted, perm=[0, 2, 3, 1])
    if image.single:
        converted = add("Reshape", converted, _shape_of_single_image(image))
    add("Identity", converted, output=file_input)

    element_type = helper.np_dtype_to_tensor_dtype(np.dtype(image.float_dtype))
    batch: int | str = image.batch or "batch"
    if image.single:
        batch = 1
    height, width = image.size or ("height", "width")
    return helper.make_tensor_value_info(new_input, element_type, [batch, 3, height, width])


def _shape_of_single_image(image: ImageInput) -> list[int]:
    """Return the shape of the image that a graph without a batch takes; -1 is any size."""
    height, width = image.size or (-1, -1)
    if image.channels_last:
        return [height, width, CHANNELS]
    return [CHANNELS, height, width]
