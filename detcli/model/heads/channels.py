"""Which tensors a graph joins along the channels of another: boxes, scores, and parts of these."""

from onnx import NodeProto

from detcli.model.graph import (
    GraphIndex,
    attribute,
    integers,
)

DECODE_DEPTH = 8  # nodes between a head and the join of its boxes; 1 to 4 in practice

ChannelGroups = list[tuple[int, str]]
"""What a tensor is joined from: number of channels and name of each."""


def tensor_before_join(index: GraphIndex, tensor: str) -> str:
    """Undo a Concat that is followed by a Slice of just one of its inputs: return that input.

    Returns the tensor as `channel_groups` simplifies it where it holds several inputs, or none.
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
    node = index.producer(tensor, "Transpose", "Unsqueeze", "Squeeze")
    while node is not None:
        tensor = node.input[0]
        node = index.producer(tensor, "Transpose", "Unsqueeze", "Squeeze")
    tensor = index.computed_as(tensor)
    cut = index.producer(tensor, "Slice", "Split")
    if cut is None or not index.shapes[tensor]:
        return tensor, []
    axis, start = axis_and_start_of_cut(index, cut, tensor)
    length = None if axis is None else index.size(tensor, axis)
    if axis is None or length is None:
        return tensor, []

    stop = start + length
    groups: ChannelGroups = []
    group_start = 0
    for size, name in groups_along(index, cut.input[0], axis):
        group_stop = group_start + size
        overlap = min(group_stop, stop) - max(group_start, start)
        if overlap > 0:
            inner_groups: ChannelGroups = []
            is_cut_out_whole = overlap == size
            if depth and is_cut_out_whole:
                _, inner_groups = channel_groups(index, name, depth - 1)
            groups += inner_groups or [(overlap, name)]
        group_start = group_stop
    return tensor, groups


def axis_and_start_of_cut(
    index: GraphIndex, node: NodeProto, output: str
) -> tuple[int | None, int]:
    """Tell where a Gather, Slice or Split begins to cut its input for one of its outputs.

    Returns:
        The axis along which it cuts, from 0, and the index of the first entry on that axis that
        the output holds; (None, 0) where the graph does not say either as a constant.
    """
    axis = attribute(node, "axis", 0)
    starts: list[int] = []
    if node.op_type == "Split":
        outputs_before = node.output[: list(node.output).index(output)]
        sizes = [index.size(name, axis) for name in outputs_before]
        if None not in sizes:
            starts = [sum(size for size in sizes if size is not None)]
    elif node.op_type == "Gather":
        starts = index.constant(node.input[1]) or []
    else:
        # The inputs of a Slice behind its data are starts, ends, axes and steps; each has to be a
        # single constant.
        bounds = [index.constant(name) or [] for name in node.input[1:5]]
        if len(bounds) > 2 and all(len(bound) == 1 for bound in bounds):
            starts = bounds[0]
            axis = bounds[2][0]
    rank = len(index.shapes[node.input[0]])
    if not rank or len(starts) != 1:
        return None, 0
    axis_from_front = axis % rank  # ONNX allows negative axes, which count from the end
    return axis_from_front, starts[0]


def groups_along(index: GraphIndex, head: str, axis: int) -> ChannelGroups:
    """List the tensors that a Concat joins along an axis of a head, such as boxes and scores.

    Goes back from the head through transposes, reshapes that keep the channels apart, and the
    Concat of several scales, of which it follows the first only.

    Args:
        index: The graph.
        head: The tensor of boxes and scores.
        axis: The axis of its channels.

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
        dims = index.shapes[tensor]
        source = node.input[0] if node.input else ""
        if node.op_type == "Concat":
            join_axis = attribute(node, "axis", 0)
            if join_axis == channel_axis or (dims and join_axis % len(dims) == channel_axis):
                return _groups_of_concat(index, node, channel_axis, channels)
        elif node.op_type == "Transpose":
            permutation = integers(node, "perm")
            if channel_axis >= len(permutation):
                return []
            channel_axis = permutation[channel_axis]
        elif node.op_type in {"Flatten", "Reshape", "Squeeze", "Unsqueeze"}:
            source_axis = _channel_axis_before(
                index.shapes[source], len(dims), channel_axis, channels
            )
            if source_axis is None:
                return []
            channel_axis = source_axis
        elif node.op_type not in {"Mul", "Div"}:
            return []
        tensor = source
    return []


def _groups_of_concat(
    index: GraphIndex, join: NodeProto, axis: int, channels: int
) -> ChannelGroups:
    """List the tensors that a Concat joins along an axis, and those that nested Concats join.

    Args:
        index: The graph.
        join: The Concat.
        axis: The axis of the channels.
        channels: How many channels the joined tensors have to have together.

    Returns:
        The number of channels and the name of each tensor; empty if they do not add up.
    """
    sizes = [index.size(name, axis) or 0 for name in join.input]
    if sum(sizes) != channels:
        return []
    groups: ChannelGroups = []
    for size, name in zip(sizes, join.input, strict=True):
        nested_groups: ChannelGroups = []
        nested_join = index.producer(name, "Concat")
        if nested_join is not None and len(nested_join.input) > 1:
            nested_axis = attribute(nested_join, "axis", 0)
            rank = len(index.shapes[name])  # 0 where the shape is not known
            if nested_axis < 0 and rank:
                nested_axis += rank
            if nested_axis == axis:
                nested_groups = _groups_of_concat(index, nested_join, axis, size)
        groups += nested_groups or [(size, name)]
    return groups


def _channel_axis_before(
    source_dims: list[int | str | None], rank: int, axis: int, channels: int
) -> int | None:
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
    same_axis_from_end = source_rank - 1
    if rank:
        axes_behind = rank - axis
        same_axis_from_end = source_rank - axes_behind
    candidates = [same_axis_from_end]
    if axis <= 1:
        candidates.append(axis)
    is_last_axis = axis == rank - 1
    if not is_last_axis:
        candidates.reverse()
    for candidate in candidates:
        if 0 <= candidate < source_rank and source_dims[candidate] == channels:
            return candidate
    return None
