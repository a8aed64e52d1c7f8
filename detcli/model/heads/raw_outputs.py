"""Finds heads that a graph leaves undecoded: the raw outputs of its layers, cell by cell.

Each scale of such a detector is a feature map of cells: the input's height and width divided
by the scale's stride. For each anchor of a cell the layers give some channels: the box, objectness,
scores of classes, landmarks. Their widths and order are the same for all detectors of a family,
which a `GridSpec` describes; `detcli.model.adapt` adds the nodes that decode them.

An output may hold one scale or all scales, and one of these parts or several. Its shape is
`[B, channels, H, W]`, `[B, N, channels]` or `[B, channels, N]`, or the same without B where a graph
takes a single picture.
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
    BATCHED,
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
from detcli.model.heads.decode import boxes_of, channel_groups, groups_along, layer_of, scores_of

ALL_SCALES = -1

Slices = dict[HeadPart, ChannelSlice]
"""Where each part is."""


class OutputLayout(NamedTuple):
    """What the axes of an output are."""

    name: str
    scale: int  # its number, or ALL_SCALES
    channel_axis: int
    rank: int
    channels: int
    anchors: int  # anchors in the channels; 1 where each anchor is an entry of another axis


def shapes_at(model: onnx.ModelProto, image: str, size: Size) -> dict[str, Dims]:
    """The shapes of a graph's outputs if its input `image` is of (height, width).

    An output whose shape cannot be inferred has an empty one.
    """
    fixed_model = onnx.ModelProto()
    fixed_model.CopyFrom(model)
    graph = fixed_model.graph
    ranks = {output.name: len(shape(output)) for output in graph.output}  # without an added batch
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
    """Yield a head for each family whose grid head the graph's outputs may be.

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
    """The outputs in the order of the nodes that make them, as exporters reorder outputs."""
    node_numbers = {}
    for number, node in enumerate(index.graph.node):
        for tensor in node.output:
            node_numbers[tensor] = number
    all_outputs = [output.name for output in index.graph.output]
    outputs = [name for name in all_outputs if not _is_channel_sum(index, name, all_outputs)]
    return sorted(outputs, key=lambda name: node_numbers.get(name, 0))


def _is_channel_sum(index: GraphIndex, tensor: str, outputs: list[str]) -> bool:
    """True if a map sums the channels of another output; RKNN's runtime skips cells by it."""
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
    """The head, if the outputs are the grid head of a family at these strides; else None."""
    map_sizes = []
    anchor_counts = []
    for scale, stride in enumerate(strides):
        map_sizes.append([-(-side // stride) for side in input_size])  # rounded up
        anchor_counts.append(len(spec.anchors[scale]) if spec.anchors else 1)

    layouts = []
    for name, dims in outputs.items():
        layout = _layout_of(name, dims, map_sizes, anchor_counts)
        if layout is None:
            return None
        layouts.append(layout)

    groups = _groups_by_scale(layouts, spec, len(strides))
    slices_of_groups = [_slices_of_group(index, group, spec) for group in groups]
    parts = _parts_of_scales(slices_of_groups)
    if parts is None:
        return None

    total_anchors = 0
    for map_size, anchor_count in zip(map_sizes, anchor_counts, strict=True):
        total_anchors += math.prod(map_size) * anchor_count
    return _make_head(index, GridHead(spec, strides, parts, total_anchors))


def _layout_of(
    name: str, dims: Dims, map_sizes: list[list[int]], anchor_counts: list[int]
) -> OutputLayout | None:
    """What the axes of an output are, by its shape; None if it does not hold spec."""
    rank = len(dims)
    if rank not in {2, BATCHED, 4}:
        return None
    batch_axes = 1 if rank > 2 else 0
    sides = [side for side in dims[batch_axes:] if isinstance(side, int)]
    if len(sides) < rank - batch_axes:  # some are not known
        return None
    # The channels are last, or first behind the batch.
    candidate_axes = [len(sides) - 1]
    if batch_axes:
        candidate_axes.append(0)
    for axis in candidate_axes:
        other_sides = sides[:axis] + sides[axis + 1 :]
        for expected_sides, scale, anchors in _expected_sides(rank, map_sizes, anchor_counts):
            if other_sides == expected_sides:
                return OutputLayout(name, scale, axis + batch_axes, rank, sides[axis], anchors)
    return None


def _expected_sides(
    rank: int, map_sizes: list[list[int]], anchor_counts: list[int]
) -> Iterator[tuple[list[int], int, int]]:
    """Yield what the axes besides the channels may be: sides, scale, anchors in the channels."""
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
    """The outputs of each scale, or one group if each holds all scales; empty if they are mixed."""
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
    slices_of_groups: list[Slices],
) -> dict[HeadPart, tuple[ChannelSlice, ...]] | None:
    """The slices of each part, one for each scale; None if the scales do not hold the same."""
    if not slices_of_groups or not all(slices_of_groups):
        return None
    first = slices_of_groups[0]
    if any(slices.keys() != first.keys() for slices in slices_of_groups):
        return None
    parts = {}
    for part in first:
        parts[part] = tuple(slices[part] for slices in slices_of_groups)
        kinds = {(part_slice.activation, part_slice.width) for part_slice in parts[part]}
        if len(kinds) > 1:
            return None
    return parts


def _slices_of_group(index: GraphIndex, group: list[OutputLayout], spec: GridSpec) -> Slices:
    """Tell which parts each output of a scale holds; empty if the family's parts do not fit.

    Raises:
        Unrecognised: They fit in several ways.
    """
    assignments: list[Slices] = []
    for parts in spec.part_lists:
        tensors = TensorsPerScale.JOINED
        if len(group) == len(parts):
            tensors = TensorsPerScale.APART
        if spec.tensors not in {TensorsPerScale.ANY, tensors}:
            continue
        for runs in _splits(parts, len(group)):
            for ordered_group in itertools.permutations(group):
                slices_of_outputs = [
                    _slices_of_output(index, layout, run, spec)
                    for layout, run in zip(ordered_group, runs, strict=True)
                ]
                if all(slices_of_outputs):
                    assignments.append(_merged(slices_of_outputs))
    box_tensors = {slices[HeadPart.BOX].tensor for slices in assignments if HeadPart.BOX in slices}
    if len(box_tensors) > 1:
        raise Unrecognised("two of its outputs may be the boxes, or two the scores")
    if assignments:
        return assignments[0]
    return {}


def _splits(parts: PartWidths, count: int) -> Iterator[list[PartWidths]]:
    """Yield every way to cut a sequence of parts into a number of runs."""
    for cuts in itertools.combinations(range(1, len(parts)), count - 1):
        bounds = [0, *cuts, len(parts)]
        yield [parts[start:stop] for start, stop in itertools.pairwise(bounds)]


def _merged(slices_of_outputs: list[Slices]) -> Slices:
    merged: Slices = {}
    for slices in slices_of_outputs:
        merged.update(slices)
    return merged


def _slices_of_output(
    index: GraphIndex, layout: OutputLayout, run: PartWidths, spec: GridSpec
) -> Slices:
    """Cut an output's channels into a run of parts; empty if that is not what it holds."""
    anchors_of_parts = []
    for part, _ in run:
        anchors_share_it = spec.classes_shared_by_anchors and part is HeadPart.CLASSES
        anchors_of_parts.append(1 if anchors_share_it else layout.anchors)
    known_channels = 0
    for (_, width), anchors in zip(run, anchors_of_parts, strict=True):
        known_channels += width * anchors
    tensors = {0: layout.name}
    if len(run) > 1:
        tensors |= _concatenated_tensors(index, layout)
    slices: Slices = {}
    start = 0
    for (part, width), anchors in zip(run, anchors_of_parts, strict=True):
        stop = start + (width * anchors or layout.channels - known_channels)
        with_box = part is HeadPart.POINTS and layout.anchors == 1
        tensor = _tensor_of(tensors, range(start, stop), may_be_with_box=with_box)
        if tensor is None:
            return {}
        if not _may_be(index, tensor, spec, (part, width), layout):
            return {}
        first = start
        if part is HeadPart.PAIR:  # its second half is the class
            first = (start + stop) // 2
        anchors_share_it = spec.classes_shared_by_anchors and part is HeadPart.CLASSES
        slices[part] = ChannelSlice(
            tensor=layout.name,
            start=first,
            stop=stop,
            axis=layout.channel_axis,
            rank=layout.rank,
            anchors=anchors,
            width=(stop - first) // anchors,
            repeated=layout.anchors if anchors_share_it else 1,
            activation=_activation_of(index, tensor, part),
        )
        start = stop
    if start == layout.channels:
        return slices
    return {}


def _tensor_of(tensors: Mapping[int, str], channels: range, *, may_be_with_box: bool) -> str | None:
    """The one tensor that these channels come from; None if they are several, or a part of one.

    One layer may make boxes and landmarks, which then do not begin a tensor of their own.
    """
    beginning_inside = [name for first, name in tensors.items() if first in channels]
    if may_be_with_box and not beginning_inside:
        return tensors[0]
    if len(beginning_inside) == 1 and channels.start in tensors:
        return beginning_inside[0]
    return None


def _concatenated_tensors(index: GraphIndex, layout: OutputLayout) -> dict[int, str]:
    """The tensors that an output's channels were joined from, by the first channel of each."""
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


def _activation_of(index: GraphIndex, tensor: str, part: HeadPart) -> Activation | None:
    """What makes a tensor; for boxes, LINEAR if nothing decodes them, else None."""
    activation = scores_of(index, tensor)
    if part is HeadPart.BOX and activation is Activation.LINEAR:
        decoded = boxes_of(index, tensor)
        if decoded is not None and decoded.method is not BoxDecode.LINEAR:
            return None
    return activation


def _may_be(
    index: GraphIndex,
    tensor: str,
    spec: GridSpec,
    expected: tuple[HeadPart, int],
    layout: OutputLayout,
) -> bool:
    """True if the nodes that make a tensor do not contradict that it is this part."""
    part, _ = expected
    activation = _activation_of(index, tensor, part)
    if part is HeadPart.PAIR or expected == (HeadPart.CLASSES, 2):
        # Two scores that add up to 1: each has its own map with all anchors (PAIR), or each anchor
        # has an entry of its own.
        has_own_map = layout.anchors > 1
        is_plausible = activation in {Activation.SOFTMAX, Activation.LINEAR}
        return is_plausible and has_own_map == (part is HeadPart.PAIR)
    if part in SCORES:
        if activation is Activation.SOFTMAX:
            return spec.softmax
        return activation is not None
    if part is HeadPart.BOX and activation is None:
        # The graph decodes its boxes: the input's size has to tell which family's they are.
        return bool(spec.input_sizes)
    if part is HeadPart.BOX and activation is not Activation.LINEAR:
        return spec.offset is Offset.SIGMOID
    return layer_of(index, tensor) not in PRODUCTS  # a matrix product makes queries


def _make_head(index: GraphIndex, grid_head: GridHead) -> Head | None:
    """The head that a grid head makes; None if the graph decodes their boxes in an unknown way."""
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
    if HeadPart.OBJECTNESS in parts or spec.softmax:  # the decode multiplies, or normalises
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
    # The graph decodes its boxes itself; the family only says how pictures are prepared.
    if len(boxes) != 1:
        return None
    graph_decode = boxes_of(index, boxes[0].tensor)
    if graph_decode is None:
        return None
    if graph_decode.method not in {BoxDecode.EXPONENTIAL, BoxDecode.DISTANCES}:
        return None
    return replace(head, layout=Layout.PAIR, decoded=graph_decode, scores_are=scores[0].activation)
