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

TracedValues = dict[str, Values]
"""What tensors hold where the input is black, red, green and blue: `[4, ...]`, by their name."""

WHITE = 255.0  # the largest uint8 value

TOLERANCE = 1e-4  # relative, for constants that were float16

MAX_GAIN_FROM_255 = 0.1
"""Values up to 255 are multiplied by less: by 1/255, or 1/58 with ImageNet's deviation."""

MAX_MEAN_OF_FRACTIONS = 2.0  # a mean above this cannot be that of values from 0 to 1

NEAR_IMAGENET = 0.02  # of its means; their names are rounded to two or three digits

VALUE_KEEPING_OPERATORS = frozenset(
    {"Cast", "DequantizeLinear", "Dropout", "Identity", "QuantizeLinear", "Resize"}
)

RENAMING_OPERATORS = frozenset({"Cast", "Identity"})

MAX_TRACED_TENSORS = 200  # at the input; real graphs have twenty

TRACED_IMAGES = 4  # a black, a red, a green and a blue image

TRACED_SIZE = (5, 7)  # of the images that are traced; no other axis is as long

DEFAULT_EPSILON = 1e-5  # what ONNX adds to the variance in a BatchNormalization that names none


class ImageTrace(NamedTuple):
    """What the traced images become up to the first layers of the network."""

    tensors: TracedValues
    resizes: bool  # whether a Resize to a size that is not a constant was among the nodes


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
        """The value that the graph's input has for a white pixel: 255 or 1; None if unclear.

        The factor by which the nodes multiply the input shows it:

        - Below 0.1, such as 1/255: they reduce values up to 255.
        - Above 1, such as 255, or 1/0.225 with ImageNet's deviation: they enlarge values up to 1.
        - 1: they subtract a mean at most. 114 is a mean of values up to 255, 0.45 of values up
          to 1.
        - A factor between 0.1 and 1 matches neither.
        """
        gain = abs(self.gains[0])  # those of the other channels are of the same magnitude
        if gain < MAX_GAIN_FROM_255:
            return WHITE

        is_mean_subtracted_at_most = np.isclose(gain, 1, TOLERANCE)
        if is_mean_subtracted_at_most:
            largest_mean = np.abs(self._means()).max()
            if largest_mean > MAX_MEAN_OF_FRACTIONS:
                return WHITE
            return 1.0

        if gain > 1:
            return 1.0
        return None

    @property
    def takes_bgr(self) -> bool | None:
        """True if the input's channels are blue, green, red; False if red, green, blue.

        ImageNet's means, which many graphs subtract, differ by channel: 0.485 of red, 0.456 of
        green and 0.406 of blue. So their order shows that of the channels. None if the graph
        subtracts other means, or it is unclear for which range of values they are.
        """
        if self.white_value is None:
            return None
        means_from_0_to_1 = self._means() / self.white_value

        rgb_means = np.array(IMAGENET_MEAN)
        bgr_means = rgb_means[::-1]
        if np.abs(means_from_0_to_1 - rgb_means).max() < NEAR_IMAGENET:
            return False
        if np.abs(means_from_0_to_1 - bgr_means).max() < NEAR_IMAGENET:
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
    trace = _trace_images(index, image.name, _colours_to_trace(image))
    network_inputs = _inputs_of_network(index, trace.tensors)
    if len(network_inputs) != 1:
        return InputNodes()
    colours = _first_pixels(trace.tensors[network_inputs.pop()])
    black = colours[0]
    # The differences from black have a row for red, green and blue, and a column for each channel
    # that the network takes.
    differences = colours[1:] - black
    is_changed = differences != 0
    if is_changed.shape != (CHANNELS, CHANNELS) or not _is_one_to_one(is_changed):
        return InputNodes()

    channel_of_colours = is_changed.argmax(axis=1)
    return InputNodes(
        gains=tuple(differences[is_changed].tolist()),
        offsets=tuple(black[channel_of_colours].tolist()),
        reverses_channels=channel_of_colours.tolist() == [2, 1, 0],
        resizes=trace.resizes,
    )


def _is_one_to_one(is_changed: npt.NDArray[np.bool_]) -> bool:
    """True if each colour changes exactly one channel, and each channel is changed by one colour.

    Args:
        is_changed: For each colour, a row that says for each channel whether the colour changes it.
    """
    channels_per_colour = is_changed.sum(axis=1)
    colours_per_channel = is_changed.sum(axis=0)
    return bool((channels_per_colour == 1).all() and (colours_per_channel == 1).all())


def _inputs_of_network(index: GraphIndex, traced: TracedValues) -> set[str]:
    """Name the tensors at which the tracing of images ended, where the network itself begins.

    Nodes before that only move, scale or shift the images, so that their outputs were traced. The
    first nodes of the network do more: they read traced tensors, but output others.
    """
    network_inputs = set[str]()
    for node in index.graph.node:
        if node.op_type in {"Shape", "Size"}:
            continue  # reads no values of the image
        is_traced = all(name in traced for name in node.output)
        if not is_traced:
            network_inputs.update(name for name in node.input if name in traced)
    return network_inputs


def _first_pixels(tensor: Values) -> Values:
    """Return the channels of one pixel of each traced image; all pixels of an image are alike.

    Args:
        tensor: What a tensor of the graph holds for the four images, stacked on the first axis,
            such as `[4, 1, 3, height, width]`.

    Returns:
        An array `[4, channels]`.
    """
    # Nodes may have moved the axes. The height and width of traced images are chosen so that no
    # other axis has these lengths, which tells where the two axes are now.
    height, width = TRACED_SIZE
    height_axis = tensor.shape.index(height)
    width_axis = tensor.shape.index(width)
    height_and_width_last = np.moveaxis(tensor, [height_axis, width_axis], [-2, -1])
    first_pixels = height_and_width_last[..., 0, 0]
    return first_pixels.reshape(TRACED_IMAGES, -1)


def _colours_to_trace(image: ImageInput) -> Values:
    """Build a black, a red, a green and a blue image, stacked on a new first axis.

    The axes after it are those of the graph's input, such as `[4, 1, 3, height, width]`.
    """
    images = np.zeros((TRACED_IMAGES, CHANNELS, *TRACED_SIZE))
    for channel in range(CHANNELS):
        position = channel + 1  # after the black image
        images[position, channel] = 1
    if image.channels_last:
        images = np.moveaxis(images, 1, -1)
    if image.single:
        return images
    return images[:, np.newaxis]


def _trace_images(index: GraphIndex, image: str, images: Values) -> ImageTrace:
    """Run images through the nodes of a graph that only move, scale or shift their values.

    Any other node is skipped, and so are those that read its outputs.

    Args:
        index: The graph.
        image: The name of its input for images.
        images: Four images, as an array `[4, ...]` with the axes of that input after the first.

    Returns:
        What each tensor holds that such nodes compute, and whether one of them resizes the images
        to a size that is not a constant.
    """
    values_by_tensor: TracedValues = {image: images}
    resizes_to_computed_size = False
    for node in index.graph.node:  # in topological order
        if len(values_by_tensor) > MAX_TRACED_TENSORS:
            break
        if values_by_tensor.keys().isdisjoint(node.input):
            continue
        try:
            with np.errstate(all="ignore"):
                results = _outputs_for_images(index, node, values_by_tensor)
        except (ValueError, IndexError, TypeError):
            # NumPy raises these where a damaged graph names an axis or index that its tensor does
            # not have, or where shapes do not match. Such a node is skipped.
            continue

        is_traceable = len(results) == len(node.output)
        if is_traceable and all(_holds_whole_image(result) for result in results):
            values_by_tensor.update(zip(node.output, results, strict=True))
            if _resizes_to_computed_size(index, node):
                resizes_to_computed_size = True
    return ImageTrace(tensors=values_by_tensor, resizes=resizes_to_computed_size)


def _resizes_to_computed_size(index: GraphIndex, node: NodeProto) -> bool:
    """True if a node is a Resize by anything but constant factors for height and width."""
    if node.op_type != "Resize":
        return False
    has_scales = len(node.input) > 2 and bool(node.input[2])
    return not has_scales or index.constant_tensor(node.input[2]) is None


def _holds_whole_image(result: Values) -> bool:
    """True if a tensor still holds all pixels of the four images, in up to three channels."""
    has_size = set(TRACED_SIZE) <= set(result.shape[1:])
    is_small = result.size <= TRACED_IMAGES * CHANNELS * math.prod(TRACED_SIZE)
    return has_size and is_small and bool(np.isfinite(result).all())


def _outputs_for_images(index: GraphIndex, node: NodeProto, traced: TracedValues) -> list[Values]:
    """Compute the outputs of a node from the values that its inputs have for four images.

    Args:
        index: The graph.
        node: The node, at least one of whose inputs has been traced.
        traced: What the tensors hold that have been traced so far, for the four images that are
            stacked on the first axis.

    Returns:
        The values of each output; empty if the node does more than move, scale or shift values.

    Raises:
        ValueError: The node scales by something other than a constant for each channel.
    """
    traced_inputs = [traced[name] for name in node.input if name in traced]
    images = traced_inputs[0]
    if node.op_type in VALUE_KEEPING_OPERATORS:
        return [images]

    is_first_input_traced = node.input[0] in traced
    if node.op_type in ARITHMETIC and len(traced_inputs) == 1:
        return _result_of_arithmetic(index, node, images, is_first_operand=is_first_input_traced)
    if node.op_type == "Concat" and len(traced_inputs) == len(node.input):
        axis = _axis_in_stack(attribute(node, "axis", 0), rank=images.ndim - 1)
        return [np.concatenate(traced_inputs, axis)]
    if is_first_input_traced:
        return _outputs_from_first_input(index, node, images)
    return []


def _result_of_arithmetic(
    index: GraphIndex, node: NodeProto, images: Values, *, is_first_operand: bool
) -> list[Values]:
    """Compute the output of a node that combines images with a constant, such as an Add.

    Args:
        index: The graph.
        node: The node, whose operator is one of `ARITHMETIC`.
        images: The values of the operand that holds images.
        is_first_operand: Whether that is the first of the two operands.

    Returns:
        The values of the output; empty if images are subtracted from the constant, or divide it.

    Raises:
        ValueError: The other operand is not a constant for each channel.
    """
    if is_first_operand:
        constant_name = node.input[1]
    elif node.op_type in {"Add", "Mul"}:  # the order of their operands does not matter
        constant_name = node.input[0]
    else:
        return []
    compute = ARITHMETIC[node.op_type]
    return [compute(images, _channel_constant(index, constant_name, images))]


def _axis_in_stack(axis: int, rank: int) -> int:
    """Convert an axis of a graph's tensor to that of an array that stacks four such tensors.

    The four images are stacked on an axis of their own, the first, so each axis comes one later.
    ONNX allows negative axes, which count from the end: of four axes, -1 is axis 3, and 4 in the
    stack.
    """
    axis_from_front = axis % rank
    return axis_from_front + 1


def _outputs_from_first_input(index: GraphIndex, node: NodeProto, tensor: Values) -> list[Values]:
    """Compute the outputs of a node that moves or normalises the elements of its first input.

    The other inputs of such a node are constants, such as indices.

    Args:
        index: The graph.
        node: The node.
        tensor: The values of its first input for four images, stacked on the first axis. The axes
            of the graph's tensor come after that, so each of them is one further.

    Returns:
        The values of each output, stacked in the same way; empty for a node that does something
        else.
    """
    rank = tensor.ndim - 1  # of the graph's tensor
    axis = _axis_in_stack(attribute(node, "axis", 0), rank)
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
            permutation = integers(node, "perm") or list(reversed(range(rank)))
            permutation_of_stack = [0] + [source_axis + 1 for source_axis in permutation]
            return [tensor.transpose(permutation_of_stack)]
        case "Squeeze":
            dropped_axes = [_axis_in_stack(dropped_axis, rank) for dropped_axis in axes]
            return [tensor.squeeze(tuple(dropped_axes))]
        case "Unsqueeze":
            rank_of_output = rank + len(axes)
            added_axes = [_axis_in_stack(added_axis, rank_of_output) for added_axis in axes]
            return [np.expand_dims(tensor, tuple(added_axes))]
    return []


def _sliced(index: GraphIndex, node: NodeProto, tensor: Values) -> Values:
    """Compute the output of a Slice node from the values of its input for four images.

    Raises:
        ValueError: It slices along several axes, or by something that is not a constant.
    """
    bounds = []
    for name in node.input[1:5]:  # starts, ends, axes and steps
        constants = index.constant(name)
        if constants is None or len(constants) != 1:
            raise ValueError(f"{name} is not one number")
        bounds.append(constants[0])
    if len(bounds) == 3:
        bounds.append(1)  # the steps may be missing, and are 1 then
    start, end, axis, step = bounds
    # Along the axes before this one, all entries stay.
    slices = [slice(None)] * _axis_in_stack(axis, tensor.ndim - 1)
    slices.append(slice(start, end, step))
    return tensor[tuple(slices)]


def _batch_normalised(index: GraphIndex, node: NodeProto, tensor: Values) -> Values:
    """Compute the output of a BatchNormalization node from its input's values for four images."""
    # The channels are axis 2, after the axes of the images and of the batch. A constant for each
    # channel needs an axis of length 1 for each axis after them.
    axes_after_channels = tensor.ndim - 3
    channel_shape = [-1] + [1] * axes_after_channels
    factors = []
    for name in node.input[1:5]:
        factor = _channel_constant(index, name, tensor)
        factors.append(factor.reshape(channel_shape))
    weight, bias, mean, variance = factors
    epsilon = DEFAULT_EPSILON
    for entry in node.attribute:
        if entry.name == "epsilon":
            epsilon = entry.f
            break
    return (tensor - mean) * (weight / np.sqrt(variance + epsilon)) + bias


def _channel_constant(index: GraphIndex, name: str, tensor: Values) -> Values:
    """Return the constant by which a node scales or shifts images.

    It is one number, or one for each channel.

    Args:
        index: The graph.
        name: The constant.
        tensor: The values that it is combined with, for four images, stacked on the first axis.

    Raises:
        ValueError: It is not a constant, has neither one nor three elements, or has more axes than
            an image.
    """
    array = index.array(index.before(name, RENAMING_OPERATORS))
    rank = tensor.ndim - 1  # of the graph's tensor, without the axis on which images are stacked
    if array is None or array.size not in {1, CHANNELS} or array.ndim > rank:
        raise ValueError(f"{name} is not a factor of channels")
    return array.astype(np.float64)


ARITHMETIC = {"Add": np.add, "Div": np.divide, "Mul": np.multiply, "Sub": np.subtract}


def first_weight(index: GraphIndex, image: str) -> float | None:
    """Compute the mean absolute weight of the first convolution that the images reach.

    It shows the range of values that a network was trained on: for values up to 255, weights are
    far smaller than for values up to 1. If the images reach several convolutions at once, the
    largest mean is used, so that the order of nodes does not matter.

    Returns:
        None if the weights are not constants, or there is no convolution.
    """
    tensors_before_convolutions = {image}
    means: list[float] = []
    for node in index.graph.node:
        if not node.input or tensors_before_convolutions.isdisjoint(node.input):
            continue
        if node.op_type not in CONVOLUTIONS:
            tensors_before_convolutions.update(node.output)
            continue
        reads_images = node.input[0] in tensors_before_convolutions
        if not reads_images or len(node.input) < 2:
            continue
        mean = _mean_absolute_weight(index, node)
        if mean is None:
            return None
        means.append(mean)
    return max(means, default=None)


def _mean_absolute_weight(index: GraphIndex, convolution: NodeProto) -> float | None:
    """Compute the mean absolute weight of a convolution and the batch normalisation after it.

    Returns:
        None if the weights are not constants, or the mean is not finite.
    """
    weights = _dequantised(index, str(convolution.input[1]))
    if weights is None or not weights.size or weights.ndim < 2:
        return None
    absolute_weights = np.abs(weights.astype(np.float64))
    normalisation = _normalisation_after(index, convolution)
    if normalisation is not None:
        factors = _factors_of_normalisation(index, normalisation)
        if factors is None or len(factors) != len(weights):
            return None
        # There is a factor for each output channel, which is the first axis of the weights.
        other_axes = weights.ndim - 1
        absolute_weights *= factors.reshape([-1] + [1] * other_axes)
    mean = float(absolute_weights.mean())
    if not math.isfinite(mean):
        return None
    return mean


def _factors_of_normalisation(index: GraphIndex, normalisation: NodeProto) -> Values | None:
    """Compute by how much a BatchNormalization multiplies each channel: gain / deviation.

    ONNX's default epsilon is used, even if the node names a different one.

    Args:
        index: The graph.
        normalisation: The node, whose inputs are data, gain, bias, mean and variance.

    Returns:
        A factor for each channel, without its sign; None if they are not constants.
    """
    _, gain_name, _, _, variance_name = normalisation.input[:5]
    gain = index.array(gain_name)
    variance = index.array(variance_name)
    if gain is None or variance is None:
        return None
    deviation = np.sqrt(variance.astype(np.float64) + DEFAULT_EPSILON)
    factors: Values = np.abs(gain.astype(np.float64)) / deviation
    return factors


def _normalisation_after(index: GraphIndex, convolution: NodeProto) -> NodeProto | None:
    """Find the first node that reads a convolution's output, if it is a BatchNormalization."""
    output = convolution.output[0]
    nodes: list[NodeProto] = list(index.graph.node)
    for node in nodes:
        if output in node.input:
            is_normalisation = node.op_type == "BatchNormalization" and len(node.input) > 4
            return node if is_normalisation else None
    return None


def _dequantised(index: GraphIndex, tensor: str) -> npt.NDArray[Any] | None:
    """Return the elements of a constant tensor, dequantised if it is stored as integers.

    A DequantizeLinear computes (integers - zero point) * scale. The zero point is 0 if it is left
    out.

    Returns:
        None if the tensor is not a constant.
    """
    renamed_tensor = index.before(tensor, RENAMING_OPERATORS)
    dequantise = index.producers.get(renamed_tensor)
    if dequantise is None or dequantise.op_type != "DequantizeLinear":
        return index.array(renamed_tensor)

    stored_integers = index.array(dequantise.input[0])
    scale = index.array(dequantise.input[1])
    if stored_integers is None or scale is None:
        return None
    zero_point = None
    if len(dequantise.input) > 2:
        zero_point = index.array(dequantise.input[2])

    rank = stored_integers.ndim
    shifted = stored_integers.astype(np.float64)
    if zero_point is not None:
        shifted = shifted - _broadcast_along_axis(zero_point, dequantise, rank=rank)
    scale_of_elements = _broadcast_along_axis(scale, dequantise, rank=rank)
    dequantised: npt.NDArray[Any] = shifted * scale_of_elements
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
