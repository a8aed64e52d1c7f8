"""Which tensors a graph joins along the channels of another: boxes, scores, and parts of these."""

import itertools

import numpy as np
import onnx
from onnx import NodeProto

from detcli.model.graph import Dims, GraphIndex, attribute, integers

DECODE_DEPTH = 8  # nodes between a head and the join of its boxes; 1 to 4 in practice

ChannelGroups = list[tuple[int, str]]
"""The tensors that another tensor is joined from: the number of channels and the name of each."""


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
    index: GraphIndex, tensor: str, depth: int = DECODE_DEPTH
) -> tuple[str, ChannelGroups]:
    """Find which inputs of a Concat end up in a tensor that a Slice or Split cuts from its output.

    For example, if boxes [B, N, 4] and scores [B, N, 80] are joined, and a Slice takes channels
    0 to 6 of the 84, the groups are `[(4, boxes), (2, scores)]`.

    Args:
        index: The graph.
        tensor: The tensor that a Slice or Split may have cut out.
        depth: How often an input of the Concat is itself looked into.

    Returns:
        The tensor, before any node that only reorders, adds or drops its axes; and the number of
        channels and the name of each input. No groups if nothing is cut there, or it is unclear.
    """
    cut_tensor = _before_axis_changes(index, tensor)
    cut = index.producer(cut_tensor, "Slice", "Split")
    if cut is None or not index.shapes[cut_tensor]:
        return cut_tensor, []
    axis, start = axis_and_start_of_cut(index, cut, cut_tensor)
    if axis is None:
        return cut_tensor, []
    length = index.size(cut_tensor, axis)
    if length is None:
        return cut_tensor, []

    uncut_tensor, start = _before_earlier_cuts(index, cut.input[0], axis, start)
    groups: ChannelGroups = []
    input_start = 0
    for size, name in groups_along(index, uncut_tensor, axis):
        input_stop = input_start + size
        channels_in_cut = min(input_stop, start + length) - max(input_start, start)
        is_whole_input = size > 0 and channels_in_cut == size
        if is_whole_input and depth:
            # An input that the cut holds whole may itself be cut from what a Concat joins.
            _, inner_groups = channel_groups(index, name, depth - 1)
            groups += inner_groups or [(size, name)]
        elif channels_in_cut > 0:
            groups.append((channels_in_cut, name))
        input_start = input_stop
    return cut_tensor, groups


def _before_earlier_cuts(index: GraphIndex, tensor: str, axis: int, start: int) -> tuple[str, int]:
    """Go back from a tensor that is cut through earlier cuts along the same axis.

    For example, channel 1 of what a Slice cut out from channel 4 on is channel 5 before that Slice.

    Args:
        index: The graph.
        tensor: The tensor that is cut.
        axis: The axis along which it is cut.
        start: The first entry on that axis that is taken.

    Returns:
        The tensor before the earlier cuts, and the position of that entry on its axis: `tensor`
        and `start` themselves if no cut comes earlier, or if a position counts from the end.
    """
    uncut_tensor = tensor
    position = start
    cut = index.producer(uncut_tensor, "Slice", "Split")
    while cut is not None and position >= 0:
        cut_tensor = index.computed_as(uncut_tensor)
        earlier_axis, earlier_start = axis_and_start_of_cut(index, cut, cut_tensor)
        if earlier_axis != axis or earlier_start < 0:
            break
        uncut_tensor = cut.input[0]
        position += earlier_start
        cut = index.producer(uncut_tensor, "Slice", "Split")
    return uncut_tensor, position


def _before_axis_changes(index: GraphIndex, tensor: str) -> str:
    """Go back from a tensor through nodes that only reorder, add or drop its axes."""
    source = tensor
    node = index.producer(source, "Transpose", "Unsqueeze", "Squeeze")
    while node is not None:
        source = node.input[0]
        node = index.producer(source, "Transpose", "Unsqueeze", "Squeeze")
    return index.computed_as(source)


def axis_and_start_of_cut(
    index: GraphIndex, node: NodeProto, output: str
) -> tuple[int | None, int]:
    """Tell where a Gather, Slice or Split begins to cut its input for one of its outputs.

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
    # The inputs of a Slice behind its data are starts, ends, axes and steps.
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
    index: GraphIndex, head: str, axis: int, depth: int = DECODE_DEPTH
) -> ChannelGroups:
    """List the tensors that a Concat joins along an axis of a head, such as boxes and scores.

    Goes back from the head through transposes, reshapes that keep the channels apart, and the
    Concat of several scales, of which it follows the first only.

    Args:
        index: The graph.
        head: The tensor of boxes and scores.
        axis: The axis of its channels.
        depth: Through how many nodes that overwrite channels the search goes.

    Returns:
        The number of channels and the name of each joined tensor; an empty list if no Concat
        joins them, or if the sizes are unknown.
    """
    channels = index.size(head, axis)
    tensor = head
    channel_axis = axis
    for _ in range(DECODE_DEPTH):
        node = index.producer(tensor)
        if node is None or channels is None:
            return []
        rank = len(index.shapes[tensor])  # 0 where the shape is not known
        if node.op_type == "Concat" and _joins_along(node, channel_axis, rank):
            return _groups_of_concat(index, node, channel_axis, channels)
        if node.op_type == "ScatterND" and depth:
            return _groups_behind_overwriting(index, node, channel_axis, depth - 1)
        source = _term_beside_zeros(index, node)
        if source:
            tensor = source
            continue
        source = node.input[0] if node.input else ""
        source_axis = _axis_in_first_input(
            node, index.shapes[source], channel_axis, rank=rank, channels=channels
        )
        if source_axis is None:
            return []
        channel_axis = source_axis
        tensor = source
    return []


def _term_beside_zeros(index: GraphIndex, node: NodeProto) -> str:
    """Find the tensor that a node adds to zeros of the same shape, as PyTorch's `full_like` leaves.

    Returns:
        Its name; empty if the node is not an Add of zeros, or may give another shape.
    """
    if node.op_type != "Add":
        return ""
    first, second = node.input
    for zeros, term in ((first, second), (second, first)):
        has_same_shape = index.shapes[zeros] == index.shapes[term] != []
        if has_same_shape and _holds_zeros(index, zeros):
            return str(term)
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


def _groups_behind_overwriting(
    index: GraphIndex, scatter: NodeProto, axis: int, depth: int
) -> ChannelGroups:
    """List the tensors that a tensor consists of after a ScatterND has overwritten some channels.

    PyTorch exports `head[..., :2] = centres` like that, as in the decoding of YOLOX.

    Args:
        index: The graph.
        scatter: The ScatterND.
        axis: The axis of the channels.
        depth: Through how many more such nodes the search goes.

    Returns:
        The number of channels and the name of each tensor; empty if it is not clear which channels
        are overwritten, or what was there before.
    """
    data, indices, updates = scatter.input[:3]
    overwritten = _overwritten_channels(index, data, indices, updates, axis)
    if overwritten is None:
        return []
    tensor_of_channel = _tensor_of_each_channel(groups_along(index, data, axis, depth))
    if not tensor_of_channel:  # It is not known to be joined from others.
        channel_count = index.size(data, axis) or 0
        tensor_of_channel = [data] * channel_count
    tensor_of_channel[overwritten.start : overwritten.stop] = [updates] * len(overwritten)
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


def _overwritten_channels(
    index: GraphIndex, data: str, indices: str, updates: str, axis: int
) -> range | None:
    """Tell which channels of a tensor a ScatterND overwrites, if it overwrites them whole.

    Args:
        index: The graph.
        data: The tensor whose elements are overwritten.
        indices: The positions of these elements.
        updates: The new elements.
        axis: The axis of the channels.

    Returns:
        None unless the new elements have the shape of neighbouring channels, and lie in their
        order.
    """
    data_dims = index.shapes[data]
    update_dims = index.shapes[updates]
    positions = index.array(indices)
    if positions is None or not data_dims or len(update_dims) != len(data_dims):
        return None
    # Only the number of channels may differ between the two.
    whole_channels = list(data_dims)
    whole_channels[axis] = update_dims[axis]
    sizes = [size for size in update_dims if isinstance(size, int)]
    if len(sizes) < len(update_dims) or sizes != whole_channels:
        return None
    # There is a position, with an index for each axis, for each new element.
    if positions.size == 0 or positions.shape != (*sizes, len(sizes)):
        return None
    start = int(positions[..., axis].min())
    positions_of_channels = np.moveaxis(np.indices(sizes), 0, -1)
    positions_of_channels[..., axis] += start
    if not np.array_equal(positions, positions_of_channels):
        return None
    return range(start, start + sizes[axis])


def _joins_along(concat: NodeProto, axis: int, rank: int) -> bool:
    """True if a Concat joins tensors along an axis.

    ONNX allows negative axes, which count from the end of the `rank` axes; 0 if unknown.
    """
    concat_axis = attribute(concat, "axis", 0)
    return concat_axis == axis or (rank > 0 and concat_axis % rank == axis)


def _axis_in_first_input(
    node: NodeProto, source_dims: Dims, axis: int, *, rank: int, channels: int
) -> int | None:
    """Find the axis of a node's first input that is an axis of its output, that of the channels.

    Args:
        node: The node.
        source_dims: The shape of its first input; empty if it is unknown.
        axis: The axis of the channels in the output.
        rank: The number of axes of the output; 0 if it is unknown.
        channels: The number of channels.

    Returns:
        None if the node does not keep the channels apart.
    """
    if node.op_type in {"Concat", "Mul", "Div"}:
        return axis
    if node.op_type == "Transpose":
        permutation = integers(node, "perm")
        return permutation[axis] if axis < len(permutation) else None
    if node.op_type in {"Flatten", "Reshape", "Squeeze", "Unsqueeze"}:
        return _channel_axis_before(source_dims, rank, axis, channels)
    return None


def _groups_of_concat(
    index: GraphIndex, concat: NodeProto, axis: int, channels: int
) -> ChannelGroups:
    """List the tensors that a Concat joins along an axis, and those that nested Concats join.

    Args:
        index: The graph.
        concat: The Concat.
        axis: The axis of the channels.
        channels: How many channels the joined tensors have to have together.

    Returns:
        The number of channels and the name of each tensor; empty if they do not add up.
    """
    sizes = [index.size(name, axis) or 0 for name in concat.input]
    if sum(sizes) != channels:
        return []
    groups: ChannelGroups = []
    for size, name in zip(sizes, concat.input, strict=True):
        nested_groups: ChannelGroups = []
        nested_concat = index.producer(name, "Concat")
        rank = len(index.shapes[name])  # 0 where the shape is not known
        if nested_concat is None or len(nested_concat.input) < 2:
            groups.append((size, name))
            continue
        if _joins_along(nested_concat, axis, rank):
            nested_groups = _groups_of_concat(index, nested_concat, axis, size)
        groups += nested_groups or [(size, name)]
    return groups


def _channel_axis_before(source_dims: Dims, rank: int, axis: int, channels: int) -> int | None:
    """Find the axis that held the channels before a reshape that keeps them apart.

    For example, a reshape from [B, 84, 80, 80] to [B, 84, 6400] keeps the channels on axis 1.

    Args:
        source_dims: The shape before the reshape; empty if it is unknown.
        rank: The number of axes after the reshape; 0 if it is unknown.
        axis: The axis of the channels after the reshape.
        channels: The number of channels.

    Returns:
        None if no axis that it may have been has this size.
    """
    if not source_dims:
        return axis  # Assume that it stays; the sizes at the Concat will show if that is wrong.
    source_rank = len(source_dims)
    # If only axes before that of the channels were joined or split, it stays in place counted from
    # the end; if only axes behind it, counted from the front.
    axes_from_end = rank - axis if rank else 1
    same_from_end = source_rank - axes_from_end
    if axis > 1:
        candidates = [same_from_end]
    elif axis == rank - 1:
        candidates = [same_from_end, axis]
    else:
        candidates = [axis, same_from_end]
    for candidate in candidates:
        if 0 <= candidate < source_rank and source_dims[candidate] == channels:
            return candidate
    return None
