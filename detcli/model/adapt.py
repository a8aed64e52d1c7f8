"""Adds the nodes that give any detector one input and one head.

The graph that runs takes pictures `[B, 3, H, W]` and ends in a head: boxes and then scores,
`[B, 4 + C, N]` or `[B, N, 4 + C]`; or, where the graph selects detections itself, rows
`[B, K, 6]` of x1, y1, x2, y2, score, class id. What a file has instead is brought to that form by
nodes before and behind it, so that every device and engine runs the same graph.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import ModelProto, helper

from detcli.core import frozen
from detcli.model.contract import Layout, ScoreForm
from detcli.model.editing import (
    add_constant,
    copied,
    drop_unused,
    opset,
    rename,
    replace_nodes,
    tensor_names,
    unused_name,
)
from detcli.model.graph import GraphIndex
from detcli.model.heads import (
    SCORES,
    Activation,
    ChannelRange,
    ChannelSlice,
    GridHead,
    Head,
    HeadPart,
    Offset,
)
from detcli.model.inputs import ImageInput, OtherInput, Role

HEAD = "detcli/head"  # no exporter makes that name
FLOAT = onnx.TensorProto.FLOAT


@frozen
class Adaptation:
    """What has to be added to a graph."""

    head: Head
    image: ImageInput
    others: tuple[OtherInput, ...]
    # scores become shares of all classes, and the one of this index, 0 or -1, is dropped
    no_object: int | None
    swapped: bool  # corners of rows are y1, x1, y2, x2

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
        if self.head.scores_are is Activation.LINEAR and self.no_object is None:
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

    The same plan gives the same bytes in every process.
    """
    adapted = copied(model)
    if plan.head.takes_any_size:
        free(adapted, plan.image.name)

    add = _Builder(adapted)
    if plan.head.layout is Layout.ROWS:
        head = _detection_rows(add, plan)
    else:
        head = _boxes_and_scores(add, plan)
    output = helper.make_tensor_value_info(HEAD, add.dtype(head), None)
    add("Identity", head, output=HEAD)
    del adapted.graph.output[:]
    adapted.graph.output.append(output)

    _feed(add, plan)
    drop_unused(adapted.graph)
    return onnx.shape_inference.infer_shapes(adapted)


def free(model: ModelProto, image: str) -> None:
    """Let a graph take any pictures, in place of the number and size that it was traced with."""
    del model.graph.value_info[:]
    for value in model.graph.input:
        if value.name == image:
            dims = value.type.tensor_type.shape.dim
            dims[0].dim_param = "batch"
            dims[2].dim_param = "height"
            dims[3].dim_param = "width"


def with_one_input(model: ModelProto, plan: Adaptation) -> ModelProto:
    """Let a graph take `[B, 3, H, W]` in floating point as its only input."""
    adapted = copied(model)
    _feed(_Builder(adapted), plan)
    return adapted


class _Builder:
    """Adds nodes to the end of a graph; each call adds a node, and returns its output's name."""

    def __init__(self, model: ModelProto) -> None:
        self.graph = model.graph
        self.index = GraphIndex(model.graph)
        self._types = dict(self.index.types)
        self._names = tensor_names(model.graph)
        self._opset = opset(model)

    def __call__(
        self,
        operator: str,
        *inputs: str | Sequence[int],
        output: str = "",
        **attributes: Any,  # noqa: ANN401 - as onnx has it
    ) -> str:
        """Add a node; whole numbers among its inputs become constants."""
        names = []
        for operand in inputs:
            name = operand if isinstance(operand, str) else self.constant(operand)
            names.append(name)
        if not output:
            output = self.unused(operator.lower())
        self.graph.node.append(helper.make_node(operator, names, [output], **attributes))

        if operator == "Cast":
            element_type = attributes.get("to")
        else:
            element_type = self._types.get(names[0])
        self._types[output] = element_type or FLOAT
        return output

    def unused(self, name: str) -> str:
        """A name like this that no tensor has yet."""
        return unused_name(self._names, f"detcli_{name}")

    def constant(self, value: npt.ArrayLike, dtype: npt.DTypeLike = np.int64) -> str:
        """Add a constant, and return its name."""
        name = add_constant(self.graph, self.unused("constant"), np.asarray(value, dtype))
        self._types[name] = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return name

    def like(self, value: npt.ArrayLike, tensor: str) -> str:
        """Add a constant of a tensor's type."""
        return self.constant(value, helper.tensor_dtype_to_np_dtype(self.dtype(tensor)))

    def dtype(self, tensor: str) -> int:
        """The element type of a tensor as ONNX numbers it; float32 where it is unknown."""
        return self._types.get(tensor) or FLOAT

    def cast(self, tensor: str, dtype: int) -> str:
        """A tensor in another element type; the tensor itself if it has that type."""
        if self.dtype(tensor) == dtype:
            return tensor
        return self("Cast", tensor, to=dtype)

    def swapped(self, tensor: str) -> str:
        """A tensor with its last two of three axes swapped."""
        return self("Transpose", tensor, perm=[0, 2, 1])

    def cut(self, tensor: str, *, start: int, stop: int | None, axis: int) -> str:
        """The entries of a tensor from `start` to before `stop`, or to the end, on an axis."""
        if stop is None:
            stop = np.iinfo(np.int64).max
        if self._opset < 10:
            return self("Slice", tensor, starts=[start], ends=[stop], axes=[axis])
        return self("Slice", tensor, [start], [stop], [axis])

    def channels(self, channel_range: ChannelRange, axis: int) -> str:
        """The channels of a range, which lie on an axis; the tensor itself if these are all."""
        if (channel_range.start, channel_range.stop) == (0, None):
            return channel_range.tensor
        return self.cut(
            channel_range.tensor, start=channel_range.start, stop=channel_range.stop, axis=axis
        )

    def scaled(self, tensor: str, factor: float) -> str:
        """A tensor in float32 times a number."""
        if factor == 1:
            return tensor
        return self("Mul", tensor, self.constant(factor, np.float32))


def _boxes_and_scores(add: _Builder, plan: Adaptation) -> str:
    """Add the nodes that join boxes and scores in one tensor, and decode them where needed.

    Args:
        add: Adds nodes to the graph.
        plan: Where boxes and scores are, and what has to be done to them.

    Returns:
        The name of the joined tensor, `[B, 4 + C, N]` or `[B, N, 4 + C]`.
    """
    head = plan.head
    if plan.is_joined:
        return head.tensors[0]

    axis = 2 if head.anchors_first else 1
    if head.grid is not None and head.layout is Layout.SCALES:
        boxes, scores = _decoded_grid(add, head.grid, plan.image)
    else:
        boxes = add.channels(head.boxes[0], axis)
        scores = add.channels(head.scores[0], axis)
    if head.scores_transposed:
        scores = add.swapped(scores)
    if head.objectness:
        objectness = add.cut(scores, start=0, stop=1, axis=axis)
        scores = add("Mul", add.cut(scores, start=1, stop=None, axis=axis), objectness)
    if not head.anchors_first and plan.anchors_first:
        boxes = add.swapped(boxes)
        scores = add.swapped(scores)
        axis = 2
    if plan.no_object is not None:
        if head.scores_are is Activation.LINEAR:
            scores = add("Softmax", scores, axis=axis)
        if plan.no_object == 0:
            scores = add.cut(scores, start=1, stop=None, axis=axis)
        else:
            scores = add.cut(scores, start=0, stop=-1, axis=axis)
    if add.dtype(boxes) != add.dtype(scores):  # boxes in float16 are half pixels
        boxes = add.cast(boxes, FLOAT)
        scores = add.cast(scores, FLOAT)
    return add("Concat", boxes, scores, axis=axis)


def _decoded_grid(add: _Builder, grid: GridHead, image: ImageInput) -> tuple[str, str]:
    """Add the nodes that decode a grid head: what layers predict for each cell of feature maps.

    Args:
        add: Adds nodes to the graph.
        grid: The channels of each part of the head, and how its family decodes them.
        image: The graph's input for images.

    Returns:
        The names of the boxes `[B, N, 4]`, in pixels, and the scores `[B, N, C]`, in float32.
    """
    parts: dict[HeadPart, str] = {}
    for part, slices in grid.parts.items():
        if part is HeadPart.POINTS:
            continue
        tensors_by_scale = [_of_slice(add, channels) for channels in slices]
        parts[part] = add.cast(add("Concat", *tensors_by_scale, axis=1), FLOAT)

    encoded_boxes = parts.get(HeadPart.BOX)
    if encoded_boxes is None:
        encoded_boxes = add("Concat", parts[HeadPart.CENTRE], parts[HeadPart.SIZE], axis=2)
    if grid.spec.rows_first:
        encoded_boxes = add("Gather", encoded_boxes, [1, 0, 3, 2], axis=2)  # x before y

    anchors = _anchors(add, grid, image)
    if grid.spec.offset is Offset.DISTANCES:
        bins = grid.parts[HeadPart.BOX][0].width // 4
        boxes = _from_distances(add, encoded_boxes, bins, anchors)
    else:
        boxes = _from_offsets(add, encoded_boxes, grid, anchors, image)
    return boxes, _scores_of_grid(add, parts, grid)


def _scores_of_grid(add: _Builder, parts: dict[HeadPart, str], grid: GridHead) -> str:
    """Add the nodes that compute the final scores of a grid head.

    They are the scores of the classes, times the objectness where the family has one. Some families
    raise both to a power, such as 0.5, before.

    Args:
        add: Adds nodes to the graph.
        parts: The tensor `[B, N, width]` of each part of the head.
        grid: How the family decodes them.

    Returns:
        The name of the scores `[B, N, C]`.
    """
    spec = grid.spec
    # New nodes are numbered, so a fixed order of parts gives the same names in every process.
    final = {part: parts[part] for part in SCORES if part in parts}
    for part, tensor in final.items():
        if grid.parts[part][0].activation is not Activation.LINEAR:
            continue
        if spec.softmax and part is HeadPart.CLASSES:
            final[part] = add("Softmax", tensor, axis=2)
        elif HeadPart.OBJECTNESS in final:
            final[part] = add("Sigmoid", tensor)

    if HeadPart.CLASSES in final:
        scores = final[HeadPart.CLASSES]
    else:
        scores = final[HeadPart.PAIR]
    if HeadPart.OBJECTNESS not in final:
        return scores
    objectness_power, class_power = spec.powers
    objectness = _to_the_power(add, final[HeadPart.OBJECTNESS], objectness_power)
    scores = _to_the_power(add, scores, class_power)
    return add("Mul", objectness, scores)


def _to_the_power(add: _Builder, tensor: str, power: float) -> str:
    """Add the node that raises a tensor in float32 to a power, unless that is 1."""
    if power == 1:
        return tensor
    return add("Pow", tensor, add.constant(power, np.float32))


def _from_offsets(
    add: _Builder, encoded_boxes: str, grid: GridHead, anchors: str, image: ImageInput
) -> str:
    """Add the nodes that decode boxes predicted as offsets from the centre and size of anchors.

    Args:
        add: Adds nodes to the graph.
        encoded_boxes: The predictions `[B, N, 4]`: two for the centre, two for the size.
        grid: How the family encodes them.
        anchors: Centre, size and stride of each anchor, `[1, N, 6]`.
        image: The graph's input for images.

    Returns:
        The name of the boxes `[B, N, 4]`: centre and size in pixels.
    """
    centre = add.cut(encoded_boxes, start=0, stop=2, axis=2)
    size = add.cut(encoded_boxes, start=2, stop=4, axis=2)
    anchor_centre = add.cut(anchors, start=0, stop=2, axis=2)
    anchor_size = add.cut(anchors, start=2, stop=4, axis=2)
    stride = add.cut(anchors, start=4, stop=6, axis=2)

    match grid.spec.offset:
        case Offset.EXPONENTIAL:
            centre_variance, size_variance = grid.spec.variances
            centre = add("Mul", add.scaled(centre, centre_variance), anchor_size)
            size = add("Mul", add("Exp", add.scaled(size, size_variance)), anchor_size)
        case Offset.SIGMOID:
            if grid.parts[HeadPart.BOX][0].activation is Activation.LINEAR:
                centre = add("Sigmoid", centre)
                size = add("Sigmoid", size)
            strides_from_centre = add("Sub", add.scaled(centre, 2), add.constant(0.5, np.float32))
            doubled_size = add.scaled(size, 2)
            centre = add("Mul", strides_from_centre, stride)
            size = add("Mul", add("Mul", doubled_size, doubled_size), anchor_size)
        case Offset.TANH:
            width_height = add("Gather", _input_size(add, image), [1, 0], axis=0)
            width_height = add("Cast", width_height, to=FLOAT)
            centre = add("Mul", add("Tanh", centre), stride)
            size = add("Mul", add("Sigmoid", size), width_height)
    return add("Concat", add("Add", anchor_centre, centre), size, axis=2)


def _of_slice(add: _Builder, channels: ChannelSlice) -> str:
    """Add the nodes that cut a part of a grid head out of its tensor and give it three axes.

    Args:
        add: Adds nodes to the graph.
        channels: Which channels of which tensor hold the part, for how many anchors of a cell.

    Returns:
        The name of the part, `[B, N, width]` with an entry for each anchor of each cell.
    """
    tensor = add.cut(channels.tensor, start=channels.start, stop=channels.stop, axis=channels.axis)
    # A Reshape to 0 keeps the size of that axis; a tensor without a batch gets one of 1.
    batch = 0 if channels.rank > 2 else 1
    if channels.axis == 1 and channels.rank > 2:
        tensor = add("Reshape", tensor, [batch, channels.anchors, channels.width, -1])
        tensor = add("Transpose", tensor, perm=[0, 3, 1, 2])
    else:
        tensor = add("Reshape", tensor, [batch, -1, channels.anchors, channels.width])
    if channels.repeated > 1:
        tensor = add("Tile", tensor, [1, 1, channels.repeated, 1])
    return add("Reshape", tensor, [0, -1, channels.width])


def _from_distances(add: _Builder, distances: str, bins: int, anchors: str) -> str:
    """Add the nodes that decode boxes predicted as distances from anchor points to four edges.

    With more than one bin, each distance is predicted as logits of the values 0, 1, ..., bins - 1:
    it is the mean of these, weighted by the softmax of the logits.

    Args:
        add: Adds nodes to the graph.
        distances: The predictions `[B, N, 4 * bins]`, in strides.
        bins: How many numbers predict a distance.
        anchors: Centre, size and stride of each anchor, `[1, N, 6]`.

    Returns:
        The name of the boxes `[B, N, 4]`: x1, y1, x2, y2 in pixels.
    """
    means = distances
    if bins > 1:
        weights = add("Softmax", add("Reshape", distances, [0, -1, 4, bins]), axis=3)
        bin_values = add.like(np.arange(bins).reshape(bins, 1), weights)
        means = add("Reshape", add("MatMul", weights, bin_values), [0, -1, 4])
    point = add.cut(anchors, start=0, stop=2, axis=2)
    stride = add.cut(anchors, start=4, stop=6, axis=2)
    to_top_left = add("Mul", add.cut(means, start=0, stop=2, axis=2), stride)
    top_left = add("Sub", point, to_top_left)
    to_bottom_right = add("Mul", add.cut(means, start=2, stop=4, axis=2), stride)
    bottom_right = add("Add", point, to_bottom_right)
    return add("Concat", top_left, bottom_right, axis=2)


def _anchors(add: _Builder, grid: GridHead, image: ImageInput) -> str:
    """Centre, size and stride of all anchors, x before y, in pixels: `[1, N, 6]`."""
    scales = [_anchors_of_scale(add, grid, image, scale) for scale in range(len(grid.strides))]
    return add("Concat", *scales, axis=1)


def _anchors_of_scale(add: _Builder, grid: GridHead, image: ImageInput, scale: int) -> str:
    """Add the nodes that list the anchors of a scale, for an input of any size.

    Args:
        add: Adds nodes to the graph.
        grid: The strides of the scales, and the anchors of each cell.
        image: The graph's input for images.
        scale: The number of the scale.

    Returns:
        The name of the anchors `[1, N, 6]`: centre, size and stride, each as x and y in pixels.
    """
    stride = grid.strides[scale]
    steps = [float(stride), float(stride)]  # pixels from cell to cell, along x and y
    max_size: tuple[float, float] = (np.inf, np.inf)
    if grid.spec.cells_divide_input_evenly and image.size is not None:
        max_size = image.size[::-1]
        steps = [length / _cell_count(length, stride) for length in max_size]

    strides_from_corner, pixels_from_corner = grid.spec.centre
    centre = [strides_from_corner * step + pixels_from_corner for step in steps]
    anchors_of_first_cell = []
    for size in grid.anchors(scale):
        width, height = np.minimum(size, max_size)
        anchors_of_first_cell.append((*centre, width, height, stride, stride))

    # The anchors of another cell are those of the first, moved by the cell's column and row. Only
    # the centre moves: the four numbers behind it are multiplied by 0 and so stay.
    cells = _cells(add, image, stride)
    cells = add("Gather", cells, [1, 0, 0, 0, 0, 0], axis=0)
    cells = add("Cast", add("Transpose", cells, perm=[1, 0]), to=FLOAT)
    shifts = add("Mul", cells, add.constant([*steps, 0, 0, 0, 0], np.float32))
    shifts = add("Reshape", shifts, [-1, 1, 6])
    anchors = add("Add", shifts, add.constant([anchors_of_first_cell], np.float32))
    return add("Reshape", anchors, [1, -1, 6])


def _cells(add: _Builder, image: ImageInput, stride: int) -> str:
    """Add the nodes that list row and column of all cells of a scale, row by row: `[2, cells]`.

    NonZero of a map of ones lists the positions of all its elements.
    """
    if image.size is not None:
        height, width = image.size
        grid = np.ones((_cell_count(height, stride), _cell_count(width, stride)))
        return add.constant(np.nonzero(grid))
    counts = add("Add", _input_size(add, image), add.constant([stride - 1]))
    counts = add("Div", counts, add.constant([stride]))
    ones = helper.make_tensor("one", onnx.TensorProto.INT64, [1], [1])
    return add("NonZero", add("ConstantOfShape", counts, value=ones))


def _cell_count(length: int, stride: int) -> int:
    """Count the cells along a side of the input, of which the last may reach beyond it."""
    whole_cells, remaining_pixels = divmod(length, stride)
    if remaining_pixels:
        return whole_cells + 1
    return whole_cells


def _input_size(add: _Builder, image: ImageInput) -> str:
    """Height and width of the input, `[2]`."""
    height_axis = 1 if image.channels_last else 2
    if image.single:
        height_axis -= 1
    return add.cut(add("Shape", image.name), start=height_axis, stop=height_axis + 2, axis=0)


def _detection_rows(add: _Builder, plan: Adaptation) -> str:
    """Add the nodes that join the detections which a graph selects to rows `[B, K, 6]`.

    A row is x1, y1, x2, y2, score and class id.
    """
    head = plan.head
    boxes = _columns_of_rows(add, head.boxes[0], width=4)
    scores = _columns_of_rows(add, head.scores[0], width=1)
    class_ids = _columns_of_rows(add, head.labels or head.scores[0], width=1)
    if plan.swapped:
        boxes = add("Gather", boxes, [1, 0, 3, 2], axis=2)
    return add("Concat", boxes, scores, class_ids, axis=2)


def _columns_of_rows(add: _Builder, columns: ChannelRange, width: int) -> str:
    """Add the nodes that give columns of selected detections the shape `[B, K, width]` in float32.

    The graph may have them without a batch axis, and scores and class ids without a column axis.
    """
    rank = len(add.index.shapes[columns.tensor])
    tensor = add.channels(columns, rank - 1)
    has_column_axis = width == 4 or columns.stop is not None
    batched_rank = 3 if has_column_axis else 2
    batch = 0 if rank == batched_rank else 1  # 0 takes over the size of the batch
    tensor = add("Reshape", tensor, [batch, -1, width])
    return add.cast(tensor, FLOAT)


def _feed(add: _Builder, plan: Adaptation) -> None:
    """Add nodes that compute all inputs of the graph from its images, in front of all others.

    Args:
        add: Adds nodes to the end of the graph, which are then moved to its front.
        plan: Which inputs there are, and what they take.
    """
    graph = add.graph
    image = plan.image
    count_of_graph = len(graph.node)
    for other in plan.others:
        _feed_other(add, other, image)
    count_with_others = len(graph.node)
    new_inputs = []
    if image.is_unusual:
        new_inputs.append(_convert_pictures(add, image))
    nodes = list(graph.node)
    for_image = nodes[count_with_others:]
    for_others = nodes[count_of_graph:count_with_others]
    of_graph = nodes[:count_of_graph]

    replaced = {other.name for other in plan.others}
    replaced.update(value.name for value in new_inputs)
    inputs = new_inputs + [value for value in graph.input if value.name not in replaced]
    del graph.input[:]
    graph.input.extend(inputs)
    replace_nodes(graph, for_image + for_others + of_graph)


def _feed_other(add: _Builder, other: OtherInput, image: ImageInput) -> None:
    """Compute an input beside the image under its name: `[B, 2]`, or a mask `[B, H, W]`."""
    size = _input_size(add, image)
    if image.single:
        batch = add.constant([1])
    else:
        batch = add.cut(add("Shape", image.name), start=0, stop=1, axis=0)
    shape = add("Concat", batch, size if other.role is Role.MASK else [2], axis=0)

    if other.role is Role.WIDTH_HEIGHT:
        size = add("Gather", size, [1, 0], axis=0)
    if other.role in {Role.MASK, Role.SCALE}:
        dtype = helper.tensor_dtype_to_np_dtype(other.dtype)
        ones_shape = (1, 1, 1) if other.role is Role.MASK else (1, 2)
        values = add.constant(np.ones(ones_shape), dtype)
    else:
        values = add("Reshape", add("Cast", size, to=other.dtype), [1, 2])
    add("Expand", values, shape, output=other.name)


def _convert_pictures(add: _Builder, image: ImageInput) -> onnx.ValueInfoProto:
    """Add the nodes that bring images `[B, 3, H, W]` to the form that a graph takes.

    That is another type, another order of axes or a single image without a batch. The new input
    takes over the name of the graph's own.

    Returns:
        The description of the new input.
    """
    model_input = add.unused("image")
    rename(add.graph, image.name, model_input)
    tensor = image.name
    if image.dtype == "uint8":
        tensor = add("Cast", tensor, to=onnx.TensorProto.UINT8)
    if image.channels_last:
        tensor = add("Transpose", tensor, perm=[0, 2, 3, 1])
    if image.single:
        size = list(image.size or (-1, -1))
        shape = [*size, 3] if image.channels_last else [3, *size]
        tensor = add("Reshape", tensor, shape)
    add("Identity", tensor, output=model_input)

    floats = helper.np_dtype_to_tensor_dtype(np.dtype(image.floats))
    batch: int | str = image.batch or "batch"
    if image.single:
        batch = 1
    height, width = image.size or ("height", "width")
    return helper.make_tensor_value_info(image.name, floats, [batch, 3, height, width])
