"""Adds nodes that decode the raw outputs of a grid of anchors: boxes from distances and offsets."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import ModelProto, helper

from detcli.model.editing import (
    add_constant,
    opset,
    tensor_names,
    unused_name,
)
from detcli.model.graph import GraphIndex
from detcli.model.heads import (
    BOX_COORDINATES,
    SCORES,
    Activation,
    ChannelRange,
    ChannelSlice,
    GridHead,
    GridSpec,
    HeadPart,
    Offset,
)
from detcli.model.heads.output_layouts import RANK_WITH_ANCHORS
from detcli.model.inputs import ImageInput

FLOAT = onnx.TensorProto.FLOAT


class NodeBuilder:
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
        **attributes: Any,  # noqa: ANN401 - as in onnx
    ) -> str:
        """Add a node to the end of the graph, and return the name of its output.

        Args:
            operator: The operator of ONNX, such as `Mul`.
            inputs: Names of tensors, or lists of whole numbers, which become constants.
            output: The name of the output; empty for a new one.
            attributes: The attributes of the node.
        """
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
        """Return a name for a new tensor, `detcli_` and this, with a number if it is in use."""
        return unused_name(self._names, f"detcli_{name}")

    def constant(self, value: npt.ArrayLike, dtype: npt.DTypeLike = np.int64) -> str:
        """Add a constant, and return its name."""
        name = add_constant(self.graph, self.unused("constant"), np.asarray(value, dtype))
        self._types[name] = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return name

    def like(self, value: npt.ArrayLike, tensor: str) -> str:
        """Add a constant of the same element type as a tensor, and return its name."""
        return self.constant(value, helper.tensor_dtype_to_np_dtype(self.dtype(tensor)))

    def dtype(self, tensor: str) -> int:
        """Return ONNX's code for a tensor's element type; that of float32 if it is unknown."""
        return self._types.get(tensor) or FLOAT

    def cast(self, tensor: str, dtype: int) -> str:
        """Convert a tensor to another element type, unless it has that type already."""
        if self.dtype(tensor) == dtype:
            return tensor
        return self("Cast", tensor, to=dtype)

    def swapped(self, tensor: str) -> str:
        """Swap the last two of the three axes of a tensor."""
        return self("Transpose", tensor, perm=[0, 2, 1])

    def cut(self, tensor: str, *, start: int, stop: int | None, axis: int) -> str:
        """Take the entries of an axis from `start` to before `stop`, or to the end if None."""
        if stop is None:
            stop = np.iinfo(np.int64).max
        if self._opset < 10:  # the bounds of a Slice were attributes then
            return self("Slice", tensor, starts=[start], ends=[stop], axes=[axis])
        return self("Slice", tensor, [start], [stop], [axis])

    def channels(self, channel_range: ChannelRange, axis: int) -> str:
        """Take the channels of a range; `axis` is the axis on which the channels lie."""
        holds_all_channels = channel_range.start == 0 and channel_range.stop is None
        if holds_all_channels:
            return channel_range.tensor
        return self.cut(
            channel_range.tensor, start=channel_range.start, stop=channel_range.stop, axis=axis
        )

    def scaled(self, tensor: str, factor: float) -> str:
        """Multiply a tensor in float32 by a number, unless that is 1."""
        if factor == 1:
            return tensor
        return self("Mul", tensor, self.constant(factor, np.float32))


def decoded_grid(add: NodeBuilder, grid: GridHead, image: ImageInput) -> tuple[str, str]:
    """Add the nodes that decode a grid head, whose layers predict boxes for each cell of a map.

    Args:
        add: Adds nodes to the graph.
        grid: The channels of each part of the head, such as its boxes or its objectness, in every
            scale, and how its family decodes them.
        image: The graph's input for images.

    Returns:
        The names of the boxes `[B, N, 4]`, in pixels, and the scores `[B, N, C]`, in float32.
    """
    parts: dict[HeadPart, str] = {}  # the tensor `[B, N, width]` of each part
    for part, slices in grid.parts.items():
        if part is HeadPart.POINTS:  # landmarks are not decoded
            continue
        tensors_by_scale = [_part_of_slice(add, channels) for channels in slices]
        parts[part] = add.cast(add("Concat", *tensors_by_scale, axis=1), FLOAT)

    encoded_boxes = parts.get(HeadPart.BOX)
    if encoded_boxes is None:
        encoded_boxes = add("Concat", parts[HeadPart.CENTRE], parts[HeadPart.SIZE], axis=2)
    predicts_y_before_x = grid.spec.rows_first
    if predicts_y_before_x:
        encoded_boxes = add("Gather", encoded_boxes, [1, 0, 3, 2], axis=2)  # now x before y

    anchors = _anchors(add, grid, image)
    if grid.spec.offset is Offset.DISTANCES:
        # Each of the four distances has as many channels as there are bins.
        channels_of_box = grid.parts[HeadPart.BOX][0].width
        bins = channels_of_box // BOX_COORDINATES
        boxes = _from_distances(add, encoded_boxes, bins, anchors)
    else:
        boxes = _from_offsets(add, encoded_boxes, grid, anchors, image)
    return boxes, _scores_of_grid(add, parts, grid)


def _scores_of_grid(add: NodeBuilder, parts: dict[HeadPart, str], grid: GridHead) -> str:
    """Add the nodes that compute the final scores of a grid head.

    They are the scores of the classes, times the objectness where the family has one. Some families
    raise both to a power first: a score may be objectness**0.6 * class score**0.4, for example.

    Args:
        add: Adds nodes to the graph.
        parts: The tensor `[B, N, width]` of each part of the head.
        grid: How the family decodes them.

    Returns:
        The name of the scores `[B, N, C]`.
    """
    probabilities: dict[HeadPart, str] = {}
    # New nodes are numbered, so a fixed order of parts gives the same names in every process.
    for part in SCORES:
        if part in parts:
            probabilities[part] = _probabilities_of_part(add, parts, part, grid)

    class_scores = probabilities.get(HeadPart.CLASSES) or probabilities[HeadPart.PAIR]
    if HeadPart.OBJECTNESS not in probabilities:
        return class_scores
    objectness_power, class_power = grid.spec.powers
    objectness = _to_the_power(add, probabilities[HeadPart.OBJECTNESS], objectness_power)
    class_scores = _to_the_power(add, class_scores, class_power)
    return add("Mul", objectness, class_scores)


def _probabilities_of_part(
    add: NodeBuilder, parts: dict[HeadPart, str], part: HeadPart, grid: GridHead
) -> str:
    """Add the nodes that turn the scores of a part, as a layer outputs them, into probabilities.

    Nothing is added where the graph has such nodes already, or where the scores may stay logits:
    in families without a softmax or an objectness. The graph's contract then says that they are
    logits.

    Args:
        add: Adds nodes to the graph.
        parts: The tensor `[B, N, width]` of each part of the head.
        part: The part whose scores these are: the classes, the objectness, or the pair of scores
            for no object and for the only class.
        grid: How the family decodes them.

    Returns:
        The name of the result, or of the part's tensor if nothing was added.
    """
    tensor = parts[part]
    activation_in_graph = grid.parts[part][0].activation  # the same in all scales
    if activation_in_graph is not Activation.LINEAR:
        return tensor

    if part is HeadPart.CLASSES and grid.spec.softmax:
        return add("Softmax", tensor, axis=2)
    if part is HeadPart.OBJECTNESS and grid.spec.objectness_is_iou:
        # An IoU is predicted as it is, not as a logit, so it is only cut off at 0 and 1.
        not_negative = add("Max", tensor, add.constant(0, np.float32))
        return add("Min", not_negative, add.constant(1, np.float32))

    # An objectness is multiplied by the scores of the classes, so both become probabilities.
    has_objectness = HeadPart.OBJECTNESS in parts
    if has_objectness:
        return add("Sigmoid", tensor)
    return tensor


def _to_the_power(add: NodeBuilder, tensor: str, power: float) -> str:
    """Add the node that raises a tensor in float32 to a power, unless that is 1."""
    if power == 1:
        return tensor
    return add("Pow", tensor, add.constant(power, np.float32))


def _from_offsets(
    add: NodeBuilder, encoded_boxes: str, grid: GridHead, anchors: str, image: ImageInput
) -> str:
    """Add the nodes that decode boxes predicted relative to the centre and size of anchors.

    A box is shifted from the centre of its anchor. For the predictions c of the centre and s of
    the size, the family's `Offset` says how shift and size are computed:

    - EXPONENTIAL: c * variance * anchor size, and exp(s * variance) * anchor size
    - SIGMOID: (2 * sigmoid(c) - 0.5) * stride, and (2 * sigmoid(s))**2 * anchor size
    - TANH: tanh(c) * stride, and sigmoid(s) * input size
    - PIXELS: c and s themselves

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
            shift = add("Mul", add.scaled(centre, centre_variance), anchor_size)
            size = add("Mul", add("Exp", add.scaled(size, size_variance)), anchor_size)
        case Offset.SIGMOID:
            if grid.parts[HeadPart.BOX][0].activation is Activation.LINEAR:
                centre = add("Sigmoid", centre)
                size = add("Sigmoid", size)
            shift_in_strides = add("Sub", add.scaled(centre, 2), add.constant(0.5, np.float32))
            doubled_size = add.scaled(size, 2)
            shift = add("Mul", shift_in_strides, stride)
            size = add("Mul", add("Mul", doubled_size, doubled_size), anchor_size)
        case Offset.TANH:
            width_height = add("Gather", input_size(add, image), [1, 0], axis=0)
            width_height = add("Cast", width_height, to=FLOAT)
            shift = add("Mul", add("Tanh", centre), stride)
            size = add("Mul", add("Sigmoid", size), width_height)
        case _:  # PIXELS
            shift = centre
    return add("Concat", add("Add", anchor_centre, shift), size, axis=2)


def _part_of_slice(add: NodeBuilder, channels: ChannelSlice) -> str:
    """Add the nodes that cut a part of a grid head out of its tensor, as `[B, N, width]`.

    N counts the anchors of all cells, cell by cell, and `width` is the number of channels of an
    anchor. The part may lie in its tensor in three ways, where "cells" is one axis, or two for
    height and width:

    - with an axis for the anchors of a cell: `[B, anchors, H, W, width]`
    - channels before cells: `[B, anchors * width, cells]`
    - channels last: `[B, cells, anchors * width]`, or `[cells, anchors * width]` without a batch

    Args:
        add: Adds nodes to the graph.
        channels: The channels that hold the part, their tensor, and how many anchors a cell has.

    Returns:
        The name of the part.
    """
    channel_range = ChannelRange(channels.tensor, channels.start, channels.stop)
    tensor = add.channels(channel_range, channels.axis)

    # In a Reshape, 0 keeps the size of that axis, and -1 takes all entries that are left.
    has_batch = channels.rank > 2
    batch = 0 if has_batch else 1

    if channels.rank == RANK_WITH_ANCHORS:
        # The new shape is [B, H, W, anchors, width].
        tensor = add("Transpose", tensor, perm=[0, 2, 3, 1, 4])
    elif has_batch and channels.axis == 1:
        # The new shape is [B, anchors, width, cells], and then [B, cells, anchors, width].
        tensor = add("Reshape", tensor, [batch, channels.anchors, channels.width, -1])
        tensor = add("Transpose", tensor, perm=[0, 3, 1, 2])
    else:
        # The new shape is [B, cells, anchors, width].
        tensor = add("Reshape", tensor, [batch, -1, channels.anchors, channels.width])

    # All anchors that share the channels get a copy, and cells and anchors become one axis.
    if channels.repeated > 1:
        tensor = add("Tile", tensor, [1, 1, channels.repeated, 1])
    return add("Reshape", tensor, [0, -1, channels.width])


def _from_distances(add: NodeBuilder, distances: str, bins: int, anchors: str) -> str:
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
        # A matrix product with 0, 1, ... as a column adds up the weighted values.
        bin_values = add.like(np.arange(bins).reshape(bins, 1), weights)
        means = add("Reshape", add("MatMul", weights, bin_values), [0, -1, 4])
    point = add.cut(anchors, start=0, stop=2, axis=2)
    stride = add.cut(anchors, start=4, stop=6, axis=2)
    to_top_left = add("Mul", add.cut(means, start=0, stop=2, axis=2), stride)
    top_left = add("Sub", point, to_top_left)
    to_bottom_right = add("Mul", add.cut(means, start=2, stop=4, axis=2), stride)
    bottom_right = add("Add", point, to_bottom_right)
    return add("Concat", top_left, bottom_right, axis=2)


def _anchors(add: NodeBuilder, grid: GridHead, image: ImageInput) -> str:
    """Add the nodes that list the anchors of all scales, in the order of the scales.

    Returns:
        The name of the anchors `[1, N, 6]`: centre, size and stride, each as x and y in pixels.
    """
    scales = [_anchors_of_scale(add, grid, image, scale) for scale in range(len(grid.strides))]
    return add("Concat", *scales, axis=1)


def _anchors_of_scale(add: NodeBuilder, grid: GridHead, image: ImageInput, scale: int) -> str:
    """Add the nodes that list the anchors of a scale, for an input of any size.

    All cells have the same anchors, so those of the first cell are moved to each other cell. With
    cells of 8 pixels, the cell in column 2 of row 1 has its anchors 16 pixels further to the right
    and 8 further down.

    Args:
        add: Adds nodes to the graph.
        grid: The strides of the scales, and the anchors of each cell.
        image: The graph's input for images.
        scale: The index of the scale.

    Returns:
        The name of the anchors `[1, N, 6]`: centre, size and stride, each as x and y in pixels.
    """
    stride = grid.strides[scale]
    cell_size = [float(stride), float(stride)]  # width and height in pixels
    max_size = None  # no anchor is wider or higher than this
    if grid.spec.cells_divide_input_evenly and image.size is not None:
        height, width = image.size
        max_size = (width, height)
        cell_size = [length / grid.spec.cell_count(length, stride) for length in max_size]
    anchors_of_first_cell = _anchors_of_first_cell(grid, scale, cell_size, max_size)

    # What is added to the six numbers of an anchor: column * cell width to x of its centre, and row
    # * cell height to y. Its size and stride stay, so 0 is added to these. To get six numbers for
    # each cell, the row is gathered another four times, and multiplied by 0.
    row_and_column = _cells(add, grid.spec, image, stride)  # [2, cells]
    six_factors = add("Gather", row_and_column, [1, 0, 0, 0, 0, 0], axis=0)  # [6, cells]
    factors_of_cells = add("Transpose", six_factors, perm=[1, 0])  # [cells, 6]
    float_factors = add("Cast", factors_of_cells, to=FLOAT)
    pixels_per_cell = add.constant([*cell_size, 0, 0, 0, 0], np.float32)
    shifts = add("Mul", float_factors, pixels_per_cell)
    shifts_of_cells = add("Reshape", shifts, [-1, 1, 6])  # [cells, 1, 6]

    first_anchors = add.constant([anchors_of_first_cell], np.float32)  # [1, anchors of a cell, 6]
    anchors_of_cells = add("Add", shifts_of_cells, first_anchors)  # [cells, anchors of a cell, 6]
    return add("Reshape", anchors_of_cells, [1, -1, 6])


def _anchors_of_first_cell(
    grid: GridHead, scale: int, cell_size: list[float], max_size: tuple[float, float] | None
) -> list[tuple[float, ...]]:
    """List the anchors of the cell in the top left corner of a scale.

    Args:
        grid: The strides of the scales, and the anchors of each cell.
        scale: The index of the scale.
        cell_size: Width and height of a cell in pixels.
        max_size: Width and height that no anchor exceeds; None for no limit.

    Returns:
        Centre, size and stride of each anchor, each as x and y in pixels.
    """
    stride = grid.strides[scale]
    cell_width, cell_height = cell_size
    _, pixels_from_corner = grid.spec.centre
    anchors: list[tuple[float, ...]] = []
    for centre_in_cells, anchor_size in zip(grid.centres(scale), grid.anchors(scale), strict=True):
        x_in_cells, y_in_cells = centre_in_cells
        centre_x = x_in_cells * cell_width + pixels_from_corner
        centre_y = y_in_cells * cell_height + pixels_from_corner
        width, height = anchor_size
        if max_size is not None:
            max_width, max_height = max_size
            width = min(width, max_width)
            height = min(height, max_height)
        anchors.append((centre_x, centre_y, width, height, stride, stride))
    return anchors


def _cells(add: NodeBuilder, spec: GridSpec, image: ImageInput, stride: int) -> str:
    """Add the nodes that list row and column of all cells of a scale, as `[2, cells]`.

    For example, two rows of three cells give `[[0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2]]`. These are
    the positions of all elements of a map of ones, which NonZero lists. They are a constant if the
    input has a fixed size; otherwise the graph computes them at run time.

    Args:
        add: Adds nodes to the graph.
        spec: Says whether a part of a cell at the edge of the image counts as one.
        image: The graph's input for images.
        stride: The pixels from one cell to the next.
    """
    if image.size is not None:
        height, width = image.size
        row_count = spec.cell_count(height, stride)
        column_count = spec.cell_count(width, stride)
        return add.constant(np.nonzero(np.ones((row_count, column_count))))

    height_and_width = input_size(add, image)
    if not spec.cells_rounded_down:
        # One less than the stride is added, so that the division rounds up.
        height_and_width = add("Add", height_and_width, add.constant([stride - 1]))
    rows_and_columns = add("Div", height_and_width, add.constant([stride]))
    one = helper.make_tensor("one", onnx.TensorProto.INT64, [1], [1])
    map_of_ones = add("ConstantOfShape", rows_and_columns, value=one)
    return add("NonZero", map_of_ones)


def input_size(add: NodeBuilder, image: ImageInput) -> str:
    """Add the nodes that output height and width of the input at run time, as a tensor `[2]`."""
    height_axis = 1 if image.channels_last else 2
    if image.single:
        height_axis -= 1
    return add.cut(add("Shape", image.name), start=height_axis, stop=height_axis + 2, axis=0)
