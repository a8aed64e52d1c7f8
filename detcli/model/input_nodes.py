"""Traces what the first nodes of a graph do to the pixels, which is preprocessing in the graph."""

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from onnx import NodeProto

from detcli.model.graph import CONVOLUTIONS, GraphIndex, attribute, integers
from detcli.model.inputs import CHANNELS, ImageInput
from detcli.model.sidecar import IMAGENET_MEAN

Values = npt.NDArray[np.float64]

Traced = dict[str, Values]
"""What tensors hold where the input is black, red, green and blue: `[4, ...]`."""

WHITE = 255.0  # the largest uint8 value

TOLERANCE = 1e-4  # relative, for constants that were float16

NEAR_IMAGENET = 0.02  # of its means; their names are rounded to two or three digits

VALUE_KEEPING_OPERATORS = frozenset(
    {"Cast", "DequantizeLinear", "Dropout", "Identity", "QuantizeLinear", "Resize"}
)

RENAMING_OPERATORS = frozenset({"Cast", "Identity"})

MAX_TRACED_TENSORS = 200  # at the input; real graphs have twenty

TRACED_SIZE = (5, 7)  # of the images that are traced; no other axis is as long


class InputNodes(NamedTuple):
    """What a graph does with its input before the network begins."""

    # what each channel is multiplied by, in the order of the model input
    gains: tuple[float, ...] = (1.0, 1.0, 1.0)
    offsets: tuple[float, ...] = (0.0, 0.0, 0.0)  # what is added after that
    reverses_channels: bool = False
    resizes: bool = False  # whether it resizes images to a size that is not a constant

    @property
    def changes_values(self) -> bool:
        """True if the nodes change the values of the image, not only the order of channels."""
        return not (np.allclose(self.gains, 1, TOLERANCE) and np.allclose(self.offsets, 0))

    @property
    def only_scales(self) -> bool:
        """True if the nodes multiply all channels by the same factor, and add nothing."""
        return bool(np.allclose(self.gains, self.gains[0]) and np.allclose(self.offsets, 0))

    @property
    def white_value(self) -> float | None:
        """The value of a white pixel that the graph's input expects, 255 or 1.

        It follows from the factor by which the graph multiplies its input, since the network
        behind takes values that span 1 to 5, or 255. None where the factor fits neither.
        """
        gain = abs(self.gains[0])
        if gain < 0.1:  # such as 1/255, or 1/58 with ImageNet's standard deviation
            return WHITE
        if np.isclose(gain, 1, TOLERANCE):
            # The graph only subtracts a mean, which tells the range of the values.
            are_means_of_uint8 = np.abs(self._means()).max() > 2
            if are_means_of_uint8:
                return WHITE
            return 1.0
        if gain > 1:
            return 1.0
        return None

    @property
    def takes_bgr(self) -> bool | None:
        """True if the input's channels are blue, green, red; False if red, green, blue.

        ImageNet's means, which many graphs subtract, differ by channel and so show the order. None
        where the graph subtracts others.
        """
        if self.white_value is None:
            return None
        relative_means = self._means() / self.white_value
        if np.abs(relative_means - IMAGENET_MEAN).max() < NEAR_IMAGENET:
            return False
        if np.abs(relative_means - IMAGENET_MEAN[::-1]).max() < NEAR_IMAGENET:
            return True
        return None

    def _means(self) -> Values:
        """Compute the input value of each channel that the graph turns into zero."""
        return -np.array(self.offsets) / self.gains


def read_input_nodes(index: GraphIndex, image: ImageInput) -> InputNodes:
    """Find out how a graph changes its images before the first layer of the network.

    A black, a red, a green and a blue image are run through the nodes in front of the network. What
    they become shows by how much each channel is multiplied, what is added, and whether the order
    of channels is reversed.

    Args:
        index: The graph.
        image: Its input for images.

    Returns:
        Values that stand for no change if the result is not clear.
    """
    traced, resizes = _trace_images(index, image.name, _colours_to_trace(image))
    first_inputs = _inputs_of_network(index, traced)
    if len(first_inputs) != 1:
        return InputNodes()
    colours = _first_pixels(traced[first_inputs.pop()])
    black = colours[0]
    changes = colours[1:] - black
    # Has a row for red, green and blue, and a column for each channel that the network takes.
    is_changed = changes != 0
    if is_changed.shape != (3, 3):
        return InputNodes()
    # Each colour must have become exactly one channel.
    channels_per_colour = is_changed.sum(axis=1)
    colours_per_channel = is_changed.sum(axis=0)
    if (colours_per_channel != 1).any() or (channels_per_colour != 1).any():
        return InputNodes()

    channels = is_changed.argmax(axis=1)
    return InputNodes(
        gains=tuple(changes[is_changed].tolist()),
        offsets=tuple(black[channels].tolist()),
        reverses_channels=channels.tolist() == [2, 1, 0],
        resizes=resizes,
    )


def _inputs_of_network(index: GraphIndex, traced: Traced) -> set[str]:
    """Name the traced tensors that the first nodes of the network read.

    These are the nodes whose outputs could not be traced, as they do more than move, scale or shift
    values.
    """
    first_inputs = set[str]()
    for node in index.graph.node:
        is_traced = traced.keys() >= set(node.output)
        if node.op_type not in {"Shape", "Size"} and not is_traced:
            first_inputs |= traced.keys() & set(node.input)
    return first_inputs


def _first_pixels(tensor: Values) -> Values:
    """Return what one pixel of each traced image has become; all pixels of an image are alike.

    Args:
        tensor: What a tensor of the graph holds for the four images, stacked on the first axis.

    Returns:
        An array [4, channels].
    """
    # No other axis is as long as height and width of the traced images.
    image_axes = [tensor.shape.index(length) for length in TRACED_SIZE]
    values = np.moveaxis(tensor, image_axes, [-2, -1])
    return values[..., 0, 0].reshape(4, -1)


def _colours_to_trace(image: ImageInput) -> Values:
    """Build a black, a red, a green and a blue image, stacked on a new first axis.

    The axes behind it are those of the graph's input, such as `[4, 1, 3, height, width]`.
    """
    images = np.zeros((4, 3, *TRACED_SIZE))
    for channel in range(CHANNELS):
        images[channel + 1, channel] = 1
    if image.channels_last:
        images = np.moveaxis(images, 1, -1)
    if image.single:
        return images
    return images[:, np.newaxis]


def _trace_images(index: GraphIndex, image: str, images: Values) -> tuple[Traced, bool]:
    """Run images through the nodes of a graph that only move, scale or shift their values.

    Args:
        index: The graph.
        image: The name of its input for images.
        images: Four images, with the axes of that input behind an axis for the images.

    Returns:
        The four results in each tensor up to the first layers of the network; and whether a Resize
        to a size that is not a constant was among the nodes.
    """
    traced: Traced = {image: images}
    resizes = False
    for node in index.graph.node:  # in topological order
        if len(traced) > MAX_TRACED_TENSORS or traced.keys().isdisjoint(node.input):
            continue
        try:
            with np.errstate(all="ignore"):
                results = _outputs_for_images(index, node, traced)
        except (ValueError, IndexError, TypeError):
            # A damaged graph may, for example, name an axis that its tensor does not have.
            continue
        if len(results) != len(node.output):
            continue
        if not all(_holds_whole_image(result) for result in results):
            continue
        traced.update(zip(node.output, results, strict=True))
        if node.op_type == "Resize":
            # Scales that are constants multiply height and width.
            scales = node.input[2] if len(node.input) > 2 else ""
            resizes |= not scales or index.constant_tensor(scales) is None
    return traced, resizes


def _holds_whole_image(result: Values) -> bool:
    """True if a tensor still holds all pixels of the four images, in up to three channels."""
    has_size = set(TRACED_SIZE) <= set(result.shape[1:])
    is_small = result.size <= 4 * CHANNELS * math.prod(TRACED_SIZE)
    return has_size and is_small and bool(np.isfinite(result).all())


def _outputs_for_images(index: GraphIndex, node: NodeProto, traced: Traced) -> list[Values]:
    """Compute the outputs of a node from the values that its inputs have for four images.

    Args:
        index: The graph.
        node: The node, at least one of whose inputs has been traced.
        traced: The values of the tensors that have been traced so far.

    Returns:
        The values of each output; empty if the node does more than move, scale or shift values.

    Raises:
        ValueError: The node scales by something other than a constant for each channel.
    """
    traced_inputs = [traced[name] for name in node.input if name in traced]
    tensor = traced_inputs[0]
    is_first_traced = node.input[0] in traced
    operator = node.op_type
    if operator in VALUE_KEEPING_OPERATORS:
        return [tensor]
    is_commutative = operator in {"Add", "Mul"}
    may_scale = len(traced_inputs) == 1 and (is_first_traced or is_commutative)
    if operator in ARITHMETIC and may_scale:
        constant_name = node.input[1 if is_first_traced else 0]
        compute = ARITHMETIC[operator]
        return [compute(tensor, _channel_constant(index, constant_name, tensor))]
    if operator == "Concat" and len(traced_inputs) == len(node.input):
        rank = tensor.ndim - 1
        axis = _axis_of_stack(attribute(node, "axis", 0), rank)
        return [np.concatenate(traced_inputs, axis)]
    if is_first_traced:
        return _outputs_of_moving_node(index, node, tensor)
    return []


def _axis_of_stack(axis: int, rank: int) -> int:
    """Convert an axis of a graph's tensor to that of an array that stacks four such tensors.

    The four images are stacked on an axis of their own, the first, so each axis comes one later.
    ONNX allows negative axes, which count from the end: of four axes, -1 is axis 3, and 4 in the
    stack.
    """
    axis_from_front = axis % rank
    return axis_from_front + 1


def _outputs_of_moving_node(index: GraphIndex, node: NodeProto, tensor: Values) -> list[Values]:
    """Compute the outputs of a node that normalises its first input or moves its elements.

    Args:
        index: The graph.
        node: The node.
        tensor: The values of its first input for four images, stacked on the first axis.

    Returns:
        The values of each output, stacked likewise; empty for any other node.
    """
    rank = tensor.ndim - 1
    axis = _axis_of_stack(attribute(node, "axis", 0), rank)
    axes = index.axes(node) or []
    match node.op_type:
        case "BatchNormalization":
            return [_batch_normalised(index, node, tensor)]
        case "Gather":
            indices = index.array(node.input[1])
            if indices is None:
                return []
            return [tensor.take(indices, axis)]
        case "Slice":
            return [_sliced(index, node, tensor)]
        case "Split":
            return np.split(tensor, len(node.output), axis)
        case "Transpose":
            order = integers(node, "perm") or list(reversed(range(rank)))
            return [tensor.transpose([0] + [source_axis + 1 for source_axis in order])]
        case "Squeeze":
            dropped_axes = [_axis_of_stack(dropped_axis, rank) for dropped_axis in axes]
            return [tensor.squeeze(tuple(dropped_axes))]
        case "Unsqueeze":
            rank_of_output = rank + len(axes)
            added_axes = [_axis_of_stack(added_axis, rank_of_output) for added_axis in axes]
            return [np.expand_dims(tensor, tuple(added_axes))]
    return []


def _sliced(index: GraphIndex, node: NodeProto, tensor: Values) -> Values:
    """Compute the output of a Slice node from the values of its input for four images.

    Raises:
        ValueError: It slices along several axes, or by something that is not a constant.
    """
    bounds = []
    for name in node.input[1:5]:  # starts, ends, axes and steps
        (bound,) = index.constant(name) or []
        bounds.append(bound)
    bounds.append(1)  # The steps may be missing, and are 1 then.
    start, end, axis, step = bounds[:4]
    stack_axis = _axis_of_stack(axis, tensor.ndim - 1)
    all_of_axes_before = (slice(None),) * stack_axis
    return tensor[all_of_axes_before + (slice(start, end, step),)]


def _batch_normalised(index: GraphIndex, node: NodeProto, tensor: Values) -> Values:
    """Compute the output of a BatchNormalization node from its input's values for four images."""
    # The channels are axis 2, behind those of the images and the batch: one axis for each channel's
    # constant, and one of length 1 for each axis behind.
    channel_shape = [-1] + [1] * (tensor.ndim - 3)
    factors = [
        _channel_constant(index, name, tensor).reshape(channel_shape) for name in node.input[1:5]
    ]
    weight, bias, mean, variance = factors
    epsilon = 1e-5
    for entry in node.attribute:
        if entry.name == "epsilon":
            epsilon = entry.f
            break
    return (tensor - mean) * (weight / np.sqrt(variance + epsilon)) + bias


def _channel_constant(index: GraphIndex, name: str, tensor: Values) -> Values:
    """Return the constant that a node scales or shifts images by: one number, or one a channel.

    Args:
        index: The graph.
        name: The tensor.
        tensor: The values that it is combined with, for four images.

    Raises:
        ValueError: It is not such a constant.
    """
    array = index.array(index.behind(name, RENAMING_OPERATORS))
    if array is None or array.size not in {1, 3} or array.ndim > tensor.ndim - 1:
        raise ValueError(f"{name} is not a factor of channels")
    return array.astype(np.float64)


ARITHMETIC = {"Add": np.add, "Div": np.divide, "Mul": np.multiply, "Sub": np.subtract}


def first_weight(index: GraphIndex, image: str) -> float | None:
    """Compute the mean absolute weight of the first convolution that the images reach.

    It tells the range of values that a network was trained on: for values up to 255, weights are
    far smaller than for values up to 1. A batch normalisation behind the convolution is multiplied
    in. If the images reach several convolutions at once, the largest mean counts, so that the order
    of nodes does not matter.

    Returns:
        None if the weights are not constants, or there is no convolution.
    """
    before_convolutions = {image}
    means: list[float] = []
    for node in index.graph.node:
        if not node.input or before_convolutions.isdisjoint(node.input):
            continue
        if node.op_type not in CONVOLUTIONS:
            before_convolutions.update(node.output)
        elif node.input[0] in before_convolutions and len(node.input) > 1:
            mean = _mean_absolute_weight(index, node)
            if mean is None:
                return None
            means.append(mean)
    return max(means, default=None)


def _mean_absolute_weight(index: GraphIndex, convolution: NodeProto) -> float | None:
    """Compute the mean absolute weight of a convolution and the batch normalisation behind it.

    Returns:
        None if the weights are not constants, or the mean is not finite.
    """
    weights = _dequantised(index, str(convolution.input[1]))
    if weights is None or not weights.size or weights.ndim < 2:
        return None
    weights = np.abs(weights.astype(np.float64))
    normalisation = _normalisation_behind(index, convolution)
    if normalisation is not None:
        gain = index.array(normalisation.input[1])
        variance = index.array(normalisation.input[4])
        if gain is None or variance is None or len(gain) != len(weights):
            return None
        factor = np.abs(gain.astype(np.float64)) / np.sqrt(variance.astype(np.float64) + 1e-5)
        # The first axis of the weights is the output channel, which the factors are for.
        weights *= factor.reshape([-1] + [1] * (weights.ndim - 1))
    mean = float(weights.mean())
    if math.isfinite(mean):
        return mean
    return None


def _normalisation_behind(index: GraphIndex, convolution: NodeProto) -> NodeProto | None:
    """Find the first node that reads a convolution's output, if it is a BatchNormalization."""
    output = convolution.output[0]
    nodes: list[NodeProto] = list(index.graph.node)
    for node in nodes:
        if output in node.input:
            is_normalisation = node.op_type == "BatchNormalization" and len(node.input) > 4
            return node if is_normalisation else None
    return None


def _dequantised(index: GraphIndex, tensor: str) -> npt.NDArray[Any] | None:
    """Return the elements of a constant tensor, dequantised where it is stored as integers.

    Returns:
        None if the tensor is not a constant.
    """
    constant = index.behind(tensor, RENAMING_OPERATORS)
    node = index.producers.get(constant)
    if node is None or node.op_type != "DequantizeLinear":
        return index.array(constant)
    stored = index.array(node.input[0])
    scale = index.array(node.input[1])
    if stored is None or scale is None:
        return None
    shifted = stored.astype(np.float64)
    zero_point = index.array(node.input[2]) if len(node.input) > 2 else None
    if zero_point is not None:
        shifted = shifted - _broadcast_along_axis(zero_point, node, rank=stored.ndim)
    dequantised: npt.NDArray[Any] = shifted * _broadcast_along_axis(scale, node, rank=stored.ndim)
    return dequantised


def _broadcast_along_axis(
    values: npt.NDArray[Any], dequantise: NodeProto, *, rank: int
) -> npt.NDArray[Any]:
    """Reshape the scales or zero points of a DequantizeLinear to broadcast along its axis.

    For example, 16 scales for axis 0 of weights with four axes get the shape (16, 1, 1, 1). A
    single scale becomes a scalar.

    Args:
        values: The scales or zero points.
        dequantise: The node, whose attribute names the axis.
        rank: The number of axes of the tensor that they are for.
    """
    floats = values.astype(np.float64)
    if floats.size == 1:
        return floats.reshape(())
    axis = attribute(dequantise, "axis", 1) % rank  # ONNX allows negative axes
    broadcast_shape = [1] * rank
    broadcast_shape[axis] = -1  # takes as many as there are values
    return floats.reshape(broadcast_shape)
