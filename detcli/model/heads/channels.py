"""Which tensors a graph joins along the channels of another: boxes, scores, and parts of these."""

import itertools
from typing import NamedTuple

import numpy as np
import onnx
from onnx import NodeProto

from detcli.model.graph import Dims, GraphIndex, attribute, integers

DECODE_DEPTH = 8  # nodes between a head and the join of its boxes; 1 to 4 in practice
MAX_NESTED_CUTS = 8  # tensors that are cut out of joined tensors, one inside the other
MAX_OVERWRITINGS = 8  # ScatterND nodes that overwrite channels, one after the other

ChannelGroups = list[tuple[int, str]]
"""The tensors that a Concat joins into another: the number of channels and the name of each."""


def tensor_before_join(index: GraphIndex, tensor: str) -> str:
    """Undo a Concat that is followed by a Slice of just one of its inputs: return that input.

    Some exporters join boxes and scores, and cut them apart again. Returns the tensor before any
    change of its axes where it is not cut out, or holds parts of several inputs.
    """
    simplified_tensor, groups = channel_groups(index, tensor)
    if len(groups) == 1:
        _, only_input = groups[0]
        return only_input
    return simplified_tensor


def channel_groups(
    index: GraphIndex, tensor: str, max_nested_cuts: int = MAX_NESTED_CUTS
) -> tuple[str, ChannelGroups]:
    """List the tensors whose channels a tensor holds, if it is cut out of what a Concat joins.

    For example, a Concat may join boxes [B, N, 4] and scores [B, N, 80]. If a Slice takes the first
    6 of the 84 channels, the groups are `[(4, boxes), (2, scores)]`.

    Args:
        index: The graph.
        tensor: The tensor that a Slice or Split may have cut out.
        max_nested_cuts: How deep to look into inputs of the Concat that are themselves cut out of
            joined tensors.

    Returns:
        The tensor as the Slice or Split outputs it, before any node that only reorders, adds or
        drops its axes. And the groups: for each input of the Concat, its name and how many of its
        channels are in the tensor. There are none if nothing is cut, or it is unclear what.
    """
    cut_tensor = _before_axis_changes(index, tensor)
    cut = index.producer(cut_tensor, "Slice", "Split")
    if cut is None or not index.shapes[cut_tensor]:
        return cut_tensor, []
    axis, start_in_input = axis_and_start_of_cut(index, cut, cut_tensor)
    if axis is None:
        return cut_tensor, []
    length = index.size(cut_tensor, axis)
    if length is None:
        return cut_tensor, []

    # The input may be cut out of another tensor itself, in which the channels begin further back.
    uncut_tensor, start = _before_earlier_cuts(index, cut.input[0], axis, start_in_input)
    inputs_of_concat = groups_along(index, uncut_tensor, axis)
    groups: ChannelGroups = []
    for cut_input in _inputs_in_cut(inputs_of_concat, start, start + length):
        groups += _sources_of_cut_channels(index, cut_input, max_nested_cuts)
    return cut_tensor, groups


class _CutInput(NamedTuple):
    """An input of a Concat, some channels of which are cut out again."""

    name: str
    channel_count: int  # how many channels the input has
    channels_in_cut: int  # how many of them are cut out, at least one


def _inputs_in_cut(inputs_of_concat: ChannelGroups, start: int, stop: int) -> list[_CutInput]:
    """List the inputs of a Concat that have channels in the range from `start` to before `stop`.

    For example, the range from 3 to before 6 takes one channel of the first and two of the second
    input of `[(4, boxes), (80, scores)]`.
    """
    cut_inputs = []
    input_start = 0
    for channel_count, name in inputs_of_concat:
        input_stop = input_start + channel_count
        channels_in_cut = min(input_stop, stop) - max(input_start, start)
        if channels_in_cut > 0:
            cut_inputs.append(_CutInput(name, channel_count, channels_in_cut))
        input_start = input_stop
    return cut_inputs


def _sources_of_cut_channels(
    index: GraphIndex, cut_input: _CutInput, max_nested_cuts: int
) -> ChannelGroups:
    """List the tensors from which the channels that are cut out of a Concat's input come.

    For example, the input may be boxes that are themselves cut out of a Concat of centres and
    sizes. If all four channels of the boxes are cut out, they come from
    `[(2, centres), (2, sizes)]`. If only some are, or there is no other Concat, they come from the
    input itself, as in `[(3, boxes)]`.

    Args:
        index: The graph.
        cut_input: The input of the Concat, and how many of its channels are cut out.
        max_nested_cuts: How deep to look into tensors that are cut out of joined ones.
    """
    takes_all_channels = cut_input.channels_in_cut == cut_input.channel_count
    if takes_all_channels and max_nested_cuts > 0:
        _, inner_groups = channel_groups(index, cut_input.name, max_nested_cuts - 1)
        if inner_groups:
            return inner_groups
    return [(cut_input.channels_in_cut, cut_input.name)]


def _before_earlier_cuts(
    index: GraphIndex, tensor: str, axis: int, channel: int
) -> tuple[str, int]:
    """Follow a channel back to the tensor before all cuts along its axis.

    For example, channel 1 after a Slice that begins at channel 4 is channel 5 before that Slice.

    Args:
        index: The graph.
        tensor: The tensor that has the channel, and may have been cut out of another one.
        axis: The axis of the channels.
        channel: The index of the channel on that axis; a negative one counts from the end.

    Returns:
        The tensor before the cuts, and the index of the channel in it. The search stops at a cut
        that begins at a negative index, and does not start from a negative channel.
    """
    uncut_tensor = tensor
    uncut_channel = channel
    while uncut_channel >= 0:
        cut = index.producer(uncut_tensor, "Slice", "Split")
        if cut is None:
            break
        output_of_cut = index.computed_as(uncut_tensor)
        axis_of_cut, start_of_cut = axis_and_start_of_cut(index, cut, output_of_cut)
        if axis_of_cut != axis or start_of_cut < 0:
            break
        uncut_tensor = cut.input[0]
        uncut_channel += start_of_cut
    return uncut_tensor, uncut_channel


def _before_axis_changes(index: GraphIndex, tensor: str) -> str:
    """Go back from a tensor through nodes that only reorder, add or drop its axes."""
    axis_operators = ("Transpose", "Unsqueeze", "Squeeze")
    source = tensor
    node = index.producer(source, *axis_operators)
    while node is not None:
        source = node.input[0]
        node = index.producer(source, *axis_operators)
    return index.computed_as(source)  # the name under which a node computes it, before any copy


def axis_and_start_of_cut(
    index: GraphIndex, node: NodeProto, output: str
) -> tuple[int | None, int]:
    """Determine where a Gather, Slice or Split begins to cut its input for one of its outputs.

    For example, the second output of a Split of 84 channels on axis 1 into 4 and 80 begins at
    channel 4 of that axis: (1, 4).

    Args:
        index: The graph.
        node: The Gather, Slice or Split.
        output: The name of the output.

    Returns:
        The axis along which it cuts, from 0, and the index of the first entry on that axis that
        the output holds; (None, 0) where the graph does not say either as a constant.
    """
    axis: int | None = attribute(node, "axis", 0)
    if node.op_type == "Split":
        start = _start_of_split_output(index, node, output)
    elif node.op_type == "Gather":
        start = _only_integer(index, node.input[1])
    else:
        start, axis = _start_and_axis_of_slice(index, node)
    rank = len(index.shapes[node.input[0]])
    if not rank or start is None or axis is None:
        return None, 0
    axis_from_front = axis % rank  # ONNX allows negative axes, which count from the end
    return axis_from_front, start


def _start_and_axis_of_slice(index: GraphIndex, node: NodeProto) -> tuple[int | None, int | None]:
    """Read where a Slice begins to cut, and along which axis.

    Returns:
        The start and the axis; twice None if it cuts along several axes, or a bound is computed.
    """
    # The inputs of a Slice after its data are starts, ends, axes and steps.
    bounds = [_only_integer(index, name) for name in node.input[1:5]]
    if len(bounds) < 3 or None in bounds:
        return None, None
    return bounds[0], bounds[2]


def _only_integer(index: GraphIndex, tensor: str) -> int | None:
    """Return the only integer of a constant tensor; None if it is computed or holds several."""
    integers_of_tensor = index.constant(tensor)
    if integers_of_tensor is None or len(integers_of_tensor) != 1:
        return None
    return integers_of_tensor[0]


def _start_of_split_output(index: GraphIndex, split: NodeProto, output: str) -> int | None:
    """Add up the sizes of the outputs of a Split that come before one of them.

    Returns:
        The sum, which is where the output begins; None if a size is not known.
    """
    axis = attribute(split, "axis", 0)
    outputs = list(split.output)
    start = 0
    for name in outputs[: outputs.index(output)]:
        size = index.size(name, axis)
        if size is None:
            return None
        start += size
    return start


def groups_along(
    index: GraphIndex, head: str, axis: int, max_overwritings: int = MAX_OVERWRITINGS
) -> ChannelGroups:
    """List the tensors that a Concat joins along an axis of a head, such as boxes and scores.

    For example, `[(4, boxes), (80, scores)]` for axis 1 of a head [B, 84, N]. The search goes back
    from the head through transposes, and through reshapes that do not mix its channels with other
    axes. If a Concat joins several scales, only the first is followed, as all are alike. If a
    ScatterND overwrites channels, its new elements count as joined as well.

    Args:
        index: The graph.
        head: The tensor of boxes and scores.
        axis: The axis of its channels.
        max_overwritings: How many ScatterND nodes the search may pass.

    Returns:
        The number of channels and the name of each joined tensor; an empty list if no Concat
        joins them, or if the sizes are unknown.
    """
    channel_count = index.size(head, axis)
    tensor = head
    channel_axis = axis
    for _ in range(DECODE_DEPTH):
        node = index.producer(tensor)
        if node is None or channel_count is None:
            return []
        rank = len(index.shapes[tensor])  # 0 where the shape is not known

        if node.op_type == "Concat" and _joins_along(node, channel_axis, rank):
            return _groups_of_concat(index, node, channel_axis, channel_count)
        if node.op_type == "ScatterND" and max_overwritings > 0:
            return _groups_after_overwriting(index, node, channel_axis, max_overwritings - 1)

        input_and_axis = _input_with_same_channels(
            index, node, channel_axis, rank=rank, channel_count=channel_count
        )
        if input_and_axis is None:
            return []
        tensor, channel_axis = input_and_axis
    return []


def _input_with_same_channels(
    index: GraphIndex, node: NodeProto, axis: int, *, rank: int, channel_count: int
) -> tuple[str, int] | None:
    """Find the input of a node that has the channels of its output, perhaps on another axis.

    Args:
        index: The graph.
        node: The node, such as a Transpose.
        axis: The axis of the channels in its output.
        rank: The number of axes of the output; 0 if it is unknown.
        channel_count: The number of channels.

    Returns:
        The name of the input, and the axis of the channels in it. None if the node may mix the
        channels with other axes, as a Reshape from [B, 84, N] to [B, 84 * N] does.
    """
    summand = _summand_beside_zeros(index, node)
    if summand:
        return summand, axis

    first_input = node.input[0] if node.input else ""
    axis_in_input = _axis_in_first_input(
        node, index.shapes[first_input], axis, rank=rank, channel_count=channel_count
    )
    if axis_in_input is None:
        return None
    return first_input, axis_in_input


def _summand_beside_zeros(index: GraphIndex, node: NodeProto) -> str:
    """Find the tensor to which a node adds zeros, so that its output has the same elements.

    PyTorch exports `full_like(other, value)` as such an Add: zeros of the shape of `other`, plus
    the value.

    Returns:
        The name of the tensor; empty if the node is not an Add of zeros, or if the two may differ
        in shape, so that the output may have a different shape from the tensor.
    """
    if node.op_type != "Add":
        return ""
    first, second = node.input
    have_same_shape = index.shapes[first] == index.shapes[second] and bool(index.shapes[first])
    if not have_same_shape:
        return ""
    if _holds_zeros(index, first):
        return str(second)
    if _holds_zeros(index, second):
        return str(first)
    return ""


def _holds_zeros(index: GraphIndex, tensor: str) -> bool:
    """True if all elements of a tensor are 0, whatever its shape."""
    array = index.array(tensor)
    if array is not None:
        return not array.any()
    filled = index.producer(tensor, "ConstantOfShape")
    if filled is None:
        return False
    values = [onnx.numpy_helper.to_array(entry.t) for entry in filled.attribute]
    return not any(value.any() for value in values)


def _groups_after_overwriting(
    index: GraphIndex, scatter: NodeProto, axis: int, max_overwritings: int
) -> ChannelGroups:
    """List the tensors whose channels a tensor holds after a ScatterND has overwritten some.

    PyTorch exports `head[..., :2] = centres` like that, as in the decoding of YOLOX. If the head
    has 85 channels, the groups are `[(2, centres), (83, head)]`.

    Args:
        index: The graph.
        scatter: The ScatterND.
        axis: The axis of the channels.
        max_overwritings: How many more ScatterND nodes the search may pass, as one often
            overwrites the output of another.

    Returns:
        The number of channels and the name of each tensor; empty if it is not clear which channels
        are overwritten.
    """
    overwritten_channels = _overwritten_channels(index, scatter, axis)
    if overwritten_channels is None:
        return []

    # First the tensor that each channel came from before the ScatterND. If no Concat joined the
    # old tensor, that is the old tensor itself.
    old_tensor, _, new_tensor = scatter.input[:3]
    groups_before = groups_along(index, old_tensor, axis, max_overwritings)
    tensor_of_channel = _tensor_of_each_channel(groups_before)
    if not tensor_of_channel:
        channel_count = index.size(old_tensor, axis) or 0
        tensor_of_channel = [old_tensor] * channel_count

    first = overwritten_channels.start
    stop = overwritten_channels.stop
    tensor_of_channel[first:stop] = [new_tensor] * len(overwritten_channels)
    return _groups_of_channels(tensor_of_channel)


def _tensor_of_each_channel(groups: ChannelGroups) -> list[str]:
    """Name the tensor that each channel comes from, as [a, a, b] where a has two channels."""
    tensor_of_channel: list[str] = []
    for channel_count, name in groups:
        tensor_of_channel += [name] * channel_count
    return tensor_of_channel


def _groups_of_channels(tensor_of_channel: list[str]) -> ChannelGroups:
    """Count the neighbouring channels that come from the same tensor."""
    groups = []
    for name, neighbours in itertools.groupby(tensor_of_channel):
        groups.append((len(list(neighbours)), name))
    return groups


def _overwritten_channels(index: GraphIndex, scatter: NodeProto, axis: int) -> range | None:
    """Determine which channels of a tensor a ScatterND overwrites, if it replaces them whole.

    For example, new centres [1, 8400, 2] can overwrite channels 0 and 1 of a head [1, 8400, 85].
    The ScatterND then reads positions [1, 8400, 2, 3]: for each new element, an index on each of
    the three axes of the head. The new element [0, 7, 1] belongs at the position [0, 7, 1], or at
    [0, 7, 5] if the channels begin at 4.

    Args:
        index: The graph.
        scatter: The ScatterND. Its inputs are the old elements, the positions and the new elements.
        axis: The axis of the channels.

    Returns:
        None unless the new elements replace neighbouring channels, in the same order.
    """
    old_tensor, positions_tensor, new_tensor = scatter.input[:3]
    positions = index.array(positions_tensor)
    if positions is None:
        return None

    # The old and new elements may differ in the number of channels only.
    old_dims = index.shapes[old_tensor]
    new_dims = index.shapes[new_tensor]
    new_sizes = [size for size in new_dims if isinstance(size, int)]
    has_unknown_sizes = len(new_sizes) < len(new_dims)
    if has_unknown_sizes or not _differ_only_at(old_dims, new_sizes, axis):
        return None

    axis_count = len(new_sizes)
    if positions.size == 0 or positions.shape != (*new_sizes, axis_count):
        return None

    # Where whole channels are replaced, the position of a new element is its index among the new
    # elements, moved along the channels to the first that is overwritten.
    first_channel = int(positions[..., axis].min())
    indices_by_axis = np.indices(new_sizes)  # [axis_count, *new_sizes]
    expected_positions = np.moveaxis(indices_by_axis, 0, -1)  # [*new_sizes, axis_count]
    expected_positions[..., axis] += first_channel
    if not np.array_equal(positions, expected_positions):
        return None
    return range(first_channel, first_channel + new_sizes[axis])


def _differ_only_at(dims: Dims, sizes: list[int], axis: int) -> bool:
    """True if a shape has the same sizes as another on all axes, apart from perhaps one."""
    if not dims or len(dims) != len(sizes):
        return False
    expected = list(dims)
    expected[axis] = sizes[axis]
    return expected == sizes


def _joins_along(concat: NodeProto, axis: int, rank: int) -> bool:
    """True if a Concat joins tensors along an axis.

    ONNX allows negative axes, which count from the end of the `rank` axes; 0 if unknown.
    """
    concat_axis = attribute(concat, "axis", 0)
    return concat_axis == axis or (rank > 0 and concat_axis % rank == axis)


def _axis_in_first_input(
    node: NodeProto, input_dims: Dims, axis: int, *, rank: int, channel_count: int
) -> int | None:
    """Find the axis of the channels in a node's first input, from their axis in its output.

    Args:
        node: The node.
        input_dims: The shape of its first input; empty if it is unknown.
        axis: The axis of the channels in the output.
        rank: The number of axes of the output; 0 if it is unknown.
        channel_count: The number of channels.

    Returns:
        The axis; None if the node may mix the channels with other axes.
    """
    if node.op_type in {"Concat", "Mul", "Div"}:
        return axis
    if node.op_type == "Transpose":
        # Axis i of the output is axis permutation[i] of the input.
        permutation = integers(node, "perm")
        if axis < len(permutation):
            return permutation[axis]
        return None
    if node.op_type in {"Flatten", "Reshape", "Squeeze", "Unsqueeze"}:
        return _channel_axis_before_reshape(
            input_dims, rank=rank, axis=axis, channel_count=channel_count
        )
    return None


def _groups_of_concat(
    index: GraphIndex, concat: NodeProto, axis: int, channel_count: int
) -> ChannelGroups:
    """List the tensors that a Concat joins along an axis, and those that nested Concats join.

    Args:
        index: The graph.
        concat: The Concat.
        axis: The axis of the channels.
        channel_count: How many channels the joined tensors have to have together.

    Returns:
        The number of channels and the name of each tensor; empty if they do not add up.
    """
    sizes = [index.size(name, axis) or 0 for name in concat.input]
    if sum(sizes) != channel_count:
        return []
    groups: ChannelGroups = []
    for size, name in zip(sizes, concat.input, strict=True):
        nested_groups: ChannelGroups = []
        nested_concat = index.producer(name, "Concat")
        if nested_concat is not None and len(nested_concat.input) > 1:
            rank = len(index.shapes[name])  # 0 where the shape is not known
            if _joins_along(nested_concat, axis, rank):
                nested_groups = _groups_of_concat(index, nested_concat, axis, size)
        groups += nested_groups or [(size, name)]
    return groups


def _channel_axis_before_reshape(
    input_dims: Dims, *, rank: int, axis: int, channel_count: int
) -> int | None:
    """Find the axis on which the channels were before a reshape that does not mix them with others.

    A reshape joins or splits the axes of the cells. If these come after the channels, as from
    [B, 84, 80, 80] to [B, 84, 6400], the channels have the same axis counted from the front: 1. If
    they come before the channels, as from [B, 80, 80, 84] to [B, 6400, 84], the channels have the
    same axis counted from the end: the last.

    Args:
        input_dims: The shape before the reshape; empty if it is unknown.
        rank: The number of axes after the reshape; 0 if it is unknown.
        axis: The axis of the channels after the reshape.
        channel_count: The number of channels.

    Returns:
        The axis; None if no axis on which they may have been has this size.
    """
    if not input_dims:
        return axis  # Assume that it stays; the sizes at the Concat will show if that is wrong.

    distance_from_end = 1  # Where the rank is unknown, the channels are taken to be last.
    if rank:
        distance_from_end = rank - axis
    same_axis_from_front = axis
    same_axis_from_end = len(input_dims) - distance_from_end

    # Where both axes have the right size, the more likely one is used, which comes first.
    is_last_axis = axis == rank - 1
    has_cells_before = axis > 1  # on the axes between the batch, which is 0, and the channels
    if has_cells_before:
        possible_axes = [same_axis_from_end]
    elif is_last_axis:
        possible_axes = [same_axis_from_end, same_axis_from_front]
    else:
        possible_axes = [same_axis_from_front, same_axis_from_end]

    for possible_axis in possible_axes:
        exists = 0 <= possible_axis < len(input_dims)
        if exists and input_dims[possible_axis] == channel_count:
            return possible_axis
    return None
