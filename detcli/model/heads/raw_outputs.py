"""Finds heads that a graph leaves undecoded: the raw outputs of its layers, cell by cell.

Each scale of such a detector is a feature map of cells: the input's height and width divided
by the scale's stride. For each anchor of a cell the layers give some channels: the box, objectness,
scores of classes, landmarks. Their widths and order are the same for all detectors of a family,
which a `GridSpec` describes; `detcli.model.adapt` adds the nodes that decode them.

An output may hold one scale or all scales, and one of these parts or several. Its shape is
`[B, channels, H, W]`, `[B, N, channels]` or `[B, channels, N]`, or the same without B where a graph
takes a single image.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import onnx

from detcli.config.values import BoxFormat
from detcli.model.contract import Layout, Size
from detcli.model.editing import tidy
from detcli.model.graph import PRODUCTS, Dims, GraphIndex, shape
from detcli.model.heads import (
    HEAD_RANK,
    SCORES,
    Activation,
    BoxDecode,
    ChannelRange,
    ChannelSlice,
    Decoded,
    GridHead,
    GridSpec,
    Head,
    HeadPart,
    Offset,
    PartWidths,
    TensorsPerScale,
    Unrecognised,
)
from detcli.model.heads.channels import channel_groups, groups_along
from detcli.model.heads.decode import box_decoding
from detcli.model.heads.layers import nearest_layer_operator, score_activation

ALL_SCALES = -1

PartSlices = dict[HeadPart, ChannelSlice]
"""The channels that hold each part of a head."""


class OutputLayout(NamedTuple):
    """The axes of an output that holds the cells of one or all scales."""

    name: str
    scale: int  # its number, or ALL_SCALES
    channel_axis: int
    rank: int
    channels: int
    anchors: int  # anchors in the channels; 1 where each anchor is an entry of another axis


def shapes_at(model: onnx.ModelProto, image: str, size: Size) -> dict[str, Dims]:
    """Infer the shapes of a graph's outputs for one image of a given height and width.

    Args:
        model: The model, which is left as it is.
        image: The name of the graph's input for images.
        size: Height and width of the image in pixels.

    Returns:
        The shape of each output by its name; empty where it cannot be inferred.
    """
    fixed_model = onnx.ModelProto()
    fixed_model.CopyFrom(model)
    graph = fixed_model.graph
    # The inference may add a batch axis in front, which is cut off again by the declared rank.
    ranks = {output.name: len(shape(output)) for output in graph.output}
    del graph.value_info[:], graph.output[:]
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in ranks)
    height, width = size
    for graph_input in graph.input:
        dims = graph_input.type.tensor_type.shape.dim
        if graph_input.name == image and len(dims) == 4:
            dims[0].dim_value = 1
            dims[2].dim_value = height
            dims[3].dim_value = width
    shapes = {}
    for output in tidy(fixed_model, folds=True).graph.output:
        shapes[output.name] = shape(output)[-ranks[output.name] :]
    return shapes


def grid_heads(
    index: GraphIndex,
    shapes: Mapping[str, Dims],
    input_size: Size,
    specs: Iterable[GridSpec],
) -> Iterator[Head]:
    """Yield a head for each family of detectors whose undecoded outputs the graph's may be.

    Args:
        index: The graph.
        shapes: The shapes of its outputs at this input size.
        input_size: Height and width of the input.
        specs: The grid heads of the families in question.
    """
    outputs = {name: shapes.get(name, []) for name in _outputs_in_network_order(index)}
    for spec in specs:
        if spec.input_sizes and input_size not in spec.input_sizes:
            continue
        for strides in spec.strides:
            head = _head_of_family(index, outputs, input_size, spec, strides)
            if head is not None:
                yield head
                break


def _outputs_in_network_order(index: GraphIndex) -> list[str]:
    """List the graph's outputs in the order of the nodes that compute them.

    Exporters may list outputs in any order, while the nodes keep the order of the network's
    layers. Outputs that only sum up another one are left out.
    """
    node_positions = {}
    for position, node in enumerate(index.graph.node):
        for tensor in node.output:
            node_positions[tensor] = position
    all_outputs = [output.name for output in index.graph.output]
    outputs = [name for name in all_outputs if not _is_channel_sum(index, name, all_outputs)]
    return sorted(outputs, key=lambda name: node_positions.get(name, 0))


def _is_channel_sum(index: GraphIndex, output: str, outputs: list[str]) -> bool:
    """True if an output is the sum over the channels of another output, clipped or not.

    Exports for Rockchip's RKNN add such outputs: its runtime skips the cells where the sum of the
    class scores is low.
    """
    tensor = output
    node = index.producer(tensor, "Clip", "Max", "Min")
    while node is not None:
        tensor = node.input[0]
        node = index.producer(tensor, "Clip", "Max", "Min")
    sum_node = index.producer(tensor, "ReduceSum")
    return sum_node is not None and sum_node.input[0] in outputs


def _head_of_family(
    index: GraphIndex,
    outputs: Mapping[str, Dims],
    input_size: Size,
    spec: GridSpec,
    strides: tuple[int, ...],
) -> Head | None:
    """Read a graph's outputs as the grid head of a family of detectors.

    A grid head predicts boxes and scores for each cell of feature maps, whose height and width
    are the input's divided by a stride.

    Args:
        index: The graph.
        outputs: The shapes of its outputs by name.
        input_size: Height and width of the input in pixels.
        spec: What the family's layers predict for each cell.
        strides: The pixels between neighbouring cells, for each scale.

    Returns:
        None if the shapes of the outputs, or the nodes that compute them, do not fit the family.
    """
    map_sizes = []
    anchor_counts = []
    for scale, stride in enumerate(strides):
        map_sizes.append([math.ceil(side / stride) for side in input_size])
        anchor_counts.append(len(spec.anchors[scale]) if spec.anchors else 1)

    layouts = []
    for name, dims in outputs.items():
        layout = _layout_of(name, dims, map_sizes, anchor_counts)
        if layout is None:
            return None
        layouts.append(layout)

    groups = _groups_by_scale(layouts, spec, len(strides))
    slices_of_groups = [_assign_parts_to_outputs(index, group, spec) for group in groups]
    parts = _parts_of_scales(slices_of_groups)
    if parts is None:
        return None

    total_anchors = 0
    for map_size, anchor_count in zip(map_sizes, anchor_counts, strict=True):
        total_anchors += math.prod(map_size) * anchor_count
    return _describe_grid_head(index, GridHead(spec, strides, parts, total_anchors))


def _layout_of(
    name: str, dims: Dims, map_sizes: list[list[int]], anchor_counts: list[int]
) -> OutputLayout | None:
    """Tell from an output's shape which axis holds its channels, and to which scale it belongs.

    Args:
        name: The output.
        dims: Its shape.
        map_sizes: Height and width in cells of each scale's feature map.
        anchor_counts: How many anchors each cell of a scale has.

    Returns:
        None if the shape is unknown, or does not have an entry for each cell or anchor.
    """
    rank = len(dims)
    if rank not in {2, HEAD_RANK, 4}:
        return None
    batch_axis_count = 1 if rank > 2 else 0
    sizes = [size for size in dims[batch_axis_count:] if isinstance(size, int)]
    has_unknown_sizes = len(sizes) < rank - batch_axis_count
    if has_unknown_sizes:
        return None
    # The channels are last, or first behind the batch.
    candidate_axes = [len(sizes) - 1]
    if batch_axis_count:
        candidate_axes.append(0)
    for axis in candidate_axes:
        other_sizes = sizes[:axis] + sizes[axis + 1 :]
        for expected_sizes, scale, anchors in _expected_sizes(rank, map_sizes, anchor_counts):
            if other_sizes == expected_sizes:
                return OutputLayout(
                    name=name,
                    scale=scale,
                    channel_axis=axis + batch_axis_count,
                    rank=rank,
                    channels=sizes[axis],
                    anchors=anchors,
                )
    return None


def _expected_sizes(
    rank: int, map_sizes: list[list[int]], anchor_counts: list[int]
) -> Iterator[tuple[list[int], int, int]]:
    """Yield the sizes that an output's axes may have, apart from the batch and the channels.

    Args:
        rank: How many axes the output has.
        map_sizes: Height and width in cells of each scale's feature map.
        anchor_counts: How many anchors each cell of a scale has.

    Yields:
        The sizes of the axes; the number of the scale, or `ALL_SCALES`; and how many anchors then
        share the channels, which is 1 where each anchor has an entry of its own.
    """
    if rank == 4:
        for scale, map_size in enumerate(map_sizes):
            yield map_size, scale, anchor_counts[scale]
        return
    cell_counts = [math.prod(map_size) for map_size in map_sizes]
    totals = [
        cell_count * anchor_count
        for cell_count, anchor_count in zip(cell_counts, anchor_counts, strict=True)
    ]
    for scale, total in enumerate(totals):  # an entry for each anchor
        yield [total], scale, 1
    for scale, cell_count in enumerate(cell_counts):  # an entry for each cell
        yield [cell_count], scale, anchor_counts[scale]
    yield [sum(totals)], ALL_SCALES, 1
    if len(set(anchor_counts)) == 1:
        yield [sum(cell_counts)], ALL_SCALES, anchor_counts[0]


def _groups_by_scale(
    layouts: list[OutputLayout], spec: GridSpec, scale_count: int
) -> list[list[OutputLayout]]:
    """Group the outputs of a graph by the scale of the feature map that they belong to.

    Returns:
        A group for each scale, or one group if every output holds all scales. Empty if a scale has
        no output, if both kinds are mixed, or if the family never joins its scales.
    """
    of_all_scales = [layout for layout in layouts if layout.scale == ALL_SCALES]
    groups = []
    for scale in range(scale_count):
        groups.append([layout for layout in layouts if layout.scale == scale])
    if of_all_scales:
        if any(groups) or not spec.scales_may_be_joined:
            return []
        return [of_all_scales]
    if all(groups):
        return groups
    return []


def _parts_of_scales(
    slices_of_groups: list[PartSlices],
) -> dict[HeadPart, tuple[ChannelSlice, ...]] | None:
    """Collect, for each part of a head such as boxes or scores, its channels in every scale.

    Args:
        slices_of_groups: The channels of each part, for one scale after the other.

    Returns:
        None if the scales have different parts, or a part differs in activation or width.
    """
    if not slices_of_groups or not all(slices_of_groups):
        return None
    parts_of_first_scale = slices_of_groups[0].keys()
    if any(slices.keys() != parts_of_first_scale for slices in slices_of_groups):
        return None
    parts = {}
    for part in parts_of_first_scale:
        parts[part] = tuple(slices[part] for slices in slices_of_groups)
        kinds = {(part_slice.activation, part_slice.width) for part_slice in parts[part]}
        if len(kinds) > 1:
            return None
    return parts


def _assign_parts_to_outputs(
    index: GraphIndex, group: list[OutputLayout], spec: GridSpec
) -> PartSlices:
    """Find out which channels of a scale's outputs are the boxes, the scores and so on.

    A family lists its parts in a fixed order, but its outputs may come in any order and each may
    hold several parts, so every assignment is tried.

    Args:
        index: The graph.
        group: The outputs of the scale.
        spec: The parts that the family's layers predict for each cell.

    Returns:
        The channels of each part; empty if the family's parts do not fit the outputs.

    Raises:
        Unrecognised: More than one output may be the boxes.
    """
    assignments: list[PartSlices] = []
    for parts in spec.part_lists:
        tensors = TensorsPerScale.JOINED
        if len(group) == len(parts):
            tensors = TensorsPerScale.APART
        if spec.tensors not in {TensorsPerScale.ANY, tensors}:
            continue
        for consecutive_parts in _consecutive_divisions(parts, len(group)):
            for ordered_group in itertools.permutations(group):
                slices_of_outputs = [
                    _assign_parts_to_channels(index, layout, parts_of_output, spec)
                    for layout, parts_of_output in zip(
                        ordered_group, consecutive_parts, strict=True
                    )
                ]
                if all(slices_of_outputs):
                    assignments.append(_merged(slices_of_outputs))
    box_tensors = {slices[HeadPart.BOX].tensor for slices in assignments if HeadPart.BOX in slices}
    if len(box_tensors) > 1:
        raise Unrecognised("two of its outputs may be the boxes, or two the scores")
    if assignments:
        return assignments[0]
    return {}


def _consecutive_divisions(parts: PartWidths, count: int) -> Iterator[list[PartWidths]]:
    """Yield every way to cut a sequence into `count` non-empty pieces.

    For example, (box, objectness, classes) is cut into two pieces as (box) and (objectness,
    classes), and as (box, objectness) and (classes).
    """
    for cuts in itertools.combinations(range(1, len(parts)), count - 1):
        bounds = [0, *cuts, len(parts)]
        yield [parts[start:stop] for start, stop in itertools.pairwise(bounds)]


def _merged(slices_of_outputs: list[PartSlices]) -> PartSlices:
    """Join mappings from a head's parts to their channels, one for each output, into one."""
    merged: PartSlices = {}
    for slices in slices_of_outputs:
        merged.update(slices)
    return merged


def _assign_parts_to_channels(
    index: GraphIndex, layout: OutputLayout, parts: PartWidths, spec: GridSpec
) -> PartSlices:
    """Divide the channels of an output among the parts of a head that it is assumed to hold.

    Args:
        index: The graph.
        layout: The axes of the output.
        parts: The assumed parts in their order, and how many channels an anchor has of each.
        spec: What the family's layers predict for each cell.

    Returns:
        The channels of each part; empty if the output cannot hold these parts.
    """
    first_channels = {0: layout.name}
    if len(parts) > 1:
        first_channels |= _concatenated_tensors(index, layout)
    slices: PartSlices = {}
    start = 0
    channel_counts = _channel_counts(layout, parts, spec)
    for (part, width), channel_count in zip(parts, channel_counts, strict=True):
        stop = start + channel_count
        with_box = part is HeadPart.POINTS and layout.anchors == 1
        tensor = _tensor_joined_at(first_channels, range(start, stop), may_be_with_box=with_box)
        if tensor is None or not _can_be_part(index, tensor, spec, (part, width), layout):
            return {}
        part_start = start
        if part is HeadPart.PAIR:
            # The first half is the probability that there is no object; the second is the class.
            part_start = (start + stop) // 2
        is_shared = _is_shared_by_anchors(part, spec)
        anchors = 1 if is_shared else layout.anchors
        slices[part] = ChannelSlice(
            tensor=layout.name,
            start=part_start,
            stop=stop,
            axis=layout.channel_axis,
            rank=layout.rank,
            anchors=anchors,
            width=(stop - part_start) // anchors,
            repeated=layout.anchors if is_shared else 1,
            activation=_activation_of_part(index, tensor, part),
        )
        start = stop
    if start == layout.channels:
        return slices
    return {}


def _channel_counts(layout: OutputLayout, parts: PartWidths, spec: GridSpec) -> list[int]:
    """Count the channels of each part in an output, over all anchors that share its channels.

    A width of 0 means that the family does not fix how many channels the part has, as with the
    classes. Such a part has the channels that the others leave.
    """
    fixed_counts = []
    for part, width in parts:
        anchors = 1 if _is_shared_by_anchors(part, spec) else layout.anchors
        fixed_counts.append(width * anchors)
    remaining_channels = layout.channels - sum(fixed_counts)
    return [count if count > 0 else remaining_channels for count in fixed_counts]


def _is_shared_by_anchors(part: HeadPart, spec: GridSpec) -> bool:
    """True if all anchors of a cell have this part in common: in some families, the classes."""
    return spec.classes_shared_by_anchors and part is HeadPart.CLASSES


def _tensor_joined_at(
    first_channels: Mapping[int, str], channels: range, *, may_be_with_box: bool
) -> str | None:
    """Find the tensor, of those joined in an output, that a range of channels was joined from.

    Args:
        first_channels: The joined tensors by the channel at which each begins.
        channels: The channels in question.
        may_be_with_box: Whether these are landmarks, which one layer may predict together with
            the boxes: they then do not begin a tensor of their own.

    Returns:
        None if the range begins inside a tensor, or covers several.
    """
    beginning_inside = [name for first, name in first_channels.items() if first in channels]
    if may_be_with_box and not beginning_inside:
        return first_channels[0]
    if len(beginning_inside) == 1 and channels.start in first_channels:
        return beginning_inside[0]
    return None


def _concatenated_tensors(index: GraphIndex, layout: OutputLayout) -> dict[int, str]:
    """Find the tensors that an output's channels were joined from.

    Returns:
        The name of each tensor by the channel of the output at which it begins.
    """
    widths_and_names = (
        groups_along(index, layout.name, layout.channel_axis)
        or channel_groups(index, layout.name)[1]
    )
    tensors = {}
    first = 0
    for width, name in widths_and_names:
        tensors[first] = name
        first += width
    return tensors


def _activation_of_part(index: GraphIndex, tensor: str, part: HeadPart) -> Activation | None:
    """Tell by which activation function a tensor that holds a part of a head was computed.

    Returns:
        None if that is not clear, and for boxes that the graph has decoded already.
    """
    activation = score_activation(index, tensor)
    if part is HeadPart.BOX and activation is Activation.LINEAR:
        decoded = box_decoding(index, tensor)
        if decoded is not None and decoded.method is not BoxDecode.LINEAR:
            return None
    return activation


def _can_be_part(
    index: GraphIndex,
    tensor: str,
    spec: GridSpec,
    expected: tuple[HeadPart, int],
    layout: OutputLayout,
) -> bool:
    """True if a tensor may be a part of a head, as far as the nodes that compute it show.

    Args:
        index: The graph.
        tensor: The tensor.
        spec: What the family's layers predict for each cell.
        expected: The part, such as boxes or scores, and how many channels each anchor has of it.
        layout: The axes of the output that the tensor is joined into.
    """
    part, _ = expected
    activation = _activation_of_part(index, tensor, part)
    if part is HeadPart.PAIR or expected == (HeadPart.CLASSES, 2):
        # Two scores add up to 1, those of no object and of the only class. As a PAIR, the first
        # half of the channels holds one score of all anchors, the second half the other; as two
        # CLASSES, each anchor has an entry of its own.
        anchors_share_channels = layout.anchors > 1
        is_plausible = activation in {Activation.SOFTMAX, Activation.LINEAR}
        return is_plausible and anchors_share_channels == (part is HeadPart.PAIR)
    if part in SCORES:
        if activation is Activation.SOFTMAX:
            return spec.softmax
        return activation is not None
    if part is HeadPart.BOX and activation is None:
        # The graph decodes its boxes: the input's size has to tell which family's they are.
        return bool(spec.input_sizes)
    if part is HeadPart.BOX and activation is not Activation.LINEAR:
        return spec.offset is Offset.SIGMOID
    # A matrix product predicts the boxes of a transformer's queries, not those of cells.
    return nearest_layer_operator(index, tensor) not in PRODUCTS


def _describe_grid_head(index: GraphIndex, grid_head: GridHead) -> Head | None:
    """Describe a recognised grid head in the form that all kinds of heads share.

    Args:
        index: The graph.
        grid_head: The family's spec, and the channels of each part in every scale.

    Returns:
        None if the graph decodes its boxes itself, in a way that is not known.
    """
    spec = grid_head.spec
    parts = grid_head.parts
    scores = parts[HeadPart.PAIR if HeadPart.PAIR in parts else HeadPart.CLASSES]
    boxes = parts[HeadPart.CENTRE if HeadPart.CENTRE in parts else HeadPart.BOX]
    box_slices = boxes + parts.get(HeadPart.SIZE, ())
    score_slices = scores + parts.get(HeadPart.OBJECTNESS, ())
    if spec.offset is Offset.DISTANCES:
        decoded = Decoded(BoxDecode.DISTANCES, BoxFormat.XYXY, fractions=False)
    else:
        decoded = Decoded(BoxDecode.LINEAR, BoxFormat.CXCYWH, fractions=False)
    activation = scores[0].activation
    if HeadPart.OBJECTNESS in parts or spec.softmax:
        # The nodes that detcli adds give scores from 0 to 1, as if by a sigmoid.
        activation = Activation.SIGMOID
    head = Head(
        Layout.SCALES,
        boxes=tuple(ChannelRange(part_slice.tensor) for part_slice in box_slices),
        scores=tuple(ChannelRange(part_slice.tensor) for part_slice in score_slices),
        class_count=scores[0].width,
        anchors_first=True,
        decoded=decoded,
        scores_are=activation,
        grid=grid_head,
    )
    if boxes[0].activation is Activation.LINEAR or spec.offset is Offset.SIGMOID:
        return head
    # The graph decodes its boxes itself; the family only says how images are prepared.
    if len(boxes) != 1:
        return None
    graph_decode = box_decoding(index, boxes[0].tensor)
    if graph_decode is None:
        return None
    if graph_decode.method not in {BoxDecode.EXPONENTIAL, BoxDecode.DISTANCES}:
        return None
    return replace(head, layout=Layout.PAIR, decoded=graph_decode, scores_are=scores[0].activation)
