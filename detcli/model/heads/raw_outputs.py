"""Finds heads that a graph leaves undecoded: the raw outputs of its layers, cell by cell.

Each scale of such a detector is a feature map of cells: the input's height and width divided
by the scale's stride. For each anchor of a cell the layers output several channels: the box,
objectness, scores of classes, landmarks. Their widths and order are the same for all detectors of a
family, which a `GridSpec` describes; `detcli.model.adapt` adds the nodes that decode them.

An output may hold one scale or all scales, and one of these parts or several. Its shape is
`[B, channels, H, W]`, `[B, N, channels]` or `[B, channels, N]`, or the same without B where a graph
takes a single image; or `[B, A, H, W, channels]`, with an axis for the A anchors of a cell.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping

from detcli.model.contract import Size
from detcli.model.graph import Dims, GraphIndex
from detcli.model.heads import (
    ChannelSlice,
    GridHead,
    GridSpec,
    Head,
    HeadPart,
    PartWidths,
    TensorsPerScale,
    Unrecognised,
)
from detcli.model.heads.grid_description import describe_grid_head
from detcli.model.heads.output_channels import PartSlices, divide_channels
from detcli.model.heads.output_layouts import (
    OutputLayout,
    group_by_scale,
    layout_of_output,
    outputs_in_network_order,
    outputs_without_images,
)


def grid_heads(
    index: GraphIndex,
    shapes: Mapping[str, Dims],
    input_size: Size,
    specs: Iterable[GridSpec],
) -> Iterator[Head]:
    """Yield a head for each family of detectors that the undecoded outputs of a graph match.

    Several families can have outputs of the same shapes; the caller tells them apart.

    Args:
        index: The graph.
        shapes: The shapes of its outputs at this input size.
        input_size: Height and width of the input in pixels.
        specs: What the layers of each family in question predict for a cell of their grids.
    """
    outputs = {name: shapes.get(name, []) for name in outputs_in_network_order(index)}
    # In some families, additional outputs hold the sizes of the feature maps, whatever the image
    # shows. No known family has other outputs that do not depend on the image.
    graph_gives_map_sizes = bool(outputs_without_images(index))
    for spec in specs:
        if spec.input_sizes and input_size not in spec.input_sizes:
            continue
        if spec.gives_map_sizes != graph_gives_map_sizes:
            continue
        for strides in spec.strides:
            head = _head_of_family(index, outputs, input_size, spec, strides)
            if head is not None:
                yield head
                break  # a family counts once, with the first strides that match


def _head_of_family(
    index: GraphIndex,
    outputs: Mapping[str, Dims],
    input_size: Size,
    spec: GridSpec,
    strides: tuple[int, ...],
) -> Head | None:
    """Read a graph's outputs as the grid head of a family of detectors.

    A grid head predicts boxes and scores for each cell of feature maps, one map for each scale,
    whose height and width are the input's divided by the stride of the scale.

    Args:
        index: The graph.
        outputs: The shapes of its outputs by name.
        input_size: Height and width of the input in pixels.
        spec: What the family's layers predict for each cell.
        strides: The pixels between neighbouring cells, for each scale.

    Returns:
        None if the shapes of the outputs, or the nodes that compute them, do not match the family.
    """
    map_sizes = []  # height and width in cells, for each scale
    anchor_counts = []  # anchors of a cell, for each scale
    total_anchors = 0
    for scale, stride in enumerate(strides):
        map_size = [spec.cell_count(side, stride) for side in input_size]
        anchor_count = len(spec.anchors[scale]) if spec.anchors else 1
        map_sizes.append(map_size)
        anchor_counts.append(anchor_count)
        total_anchors += math.prod(map_size) * anchor_count

    # What the axes of each output are, and then what their channels are.
    layouts = []
    for name, dims in outputs.items():
        layout = layout_of_output(name, dims, map_sizes, anchor_counts)
        if layout is None:
            return None
        layouts.append(layout)
    slices_of_scales = []
    for outputs_of_scale in group_by_scale(layouts, spec, len(strides)):
        slices_of_scales.append(_find_parts_in_outputs(index, outputs_of_scale, spec))
    parts = _parts_of_scales(slices_of_scales)
    if parts is None:
        return None
    return describe_grid_head(index, GridHead(spec, strides, parts, total_anchors))


def _parts_of_scales(
    slices_of_scales: list[PartSlices],
) -> dict[HeadPart, tuple[ChannelSlice, ...]] | None:
    """Collect, for each part of a head such as boxes or scores, its channels in every scale.

    Args:
        slices_of_scales: For each scale, the channels of each part.

    Returns:
        For each part, its channels in one scale after the other. None if the scales have different
        parts, or a part differs in activation or width.
    """
    if not slices_of_scales or not all(slices_of_scales):
        return None
    parts_of_first_scale = slices_of_scales[0].keys()
    if any(slices.keys() != parts_of_first_scale for slices in slices_of_scales):
        return None
    slices_of_parts = {}
    for part in parts_of_first_scale:
        slices_of_part = tuple(slices[part] for slices in slices_of_scales)
        activations = {part_slice.activation for part_slice in slices_of_part}
        widths = {part_slice.width for part_slice in slices_of_part}
        if len(activations) > 1 or len(widths) > 1:
            return None
        slices_of_parts[part] = slices_of_part
    return slices_of_parts


def _find_parts_in_outputs(
    index: GraphIndex, outputs_of_scale: list[OutputLayout], spec: GridSpec
) -> PartSlices:
    """Find out which channels of a scale's outputs are the boxes, the scores and so on.

    Every way in which the outputs may hold these parts is tried. If several match, the first one is
    used, but only if all of them have the boxes in the same output.

    Args:
        index: The graph.
        outputs_of_scale: The outputs of the scale.
        spec: The parts that the family's layers predict for each cell.

    Returns:
        The channels of each part; empty if the family's parts do not match the outputs.

    Raises:
        Unrecognised: More than one output may be the boxes.
    """
    fitting_slices: list[PartSlices] = []  # one entry for each way that matches
    for outputs_with_parts in _possible_assignments(outputs_of_scale, spec):
        slices_by_part = _divide_outputs(index, outputs_with_parts, spec)
        if slices_by_part:
            fitting_slices.append(slices_by_part)
    if not fitting_slices:
        return {}

    box_tensors = set()
    for slices_by_part in fitting_slices:
        if HeadPart.BOX in slices_by_part:
            box_tensors.add(slices_by_part[HeadPart.BOX].tensor)
    if len(box_tensors) > 1:
        raise Unrecognised("two of its outputs may be the boxes, or two the scores")
    return fitting_slices[0]


def _divide_outputs(
    index: GraphIndex, outputs_with_parts: list[tuple[OutputLayout, PartWidths]], spec: GridSpec
) -> PartSlices:
    """Divide the channels of a scale's outputs among the parts that they are assumed to hold.

    Args:
        index: The graph.
        outputs_with_parts: Each output, with the parts of the head that it is assumed to hold, such
            as boxes and objectness, and how many channels each part has.
        spec: What the family's layers predict for each cell.

    Returns:
        The channels of each part; empty if an output cannot hold its parts.
    """
    slices_by_part: PartSlices = {}
    for output, parts_of_output in outputs_with_parts:
        slices_of_output = divide_channels(index, output, parts_of_output, spec)
        if not slices_of_output:
            return {}
        slices_by_part.update(slices_of_output)
    return slices_by_part


def _possible_assignments(
    outputs_of_scale: list[OutputLayout], spec: GridSpec
) -> Iterator[list[tuple[OutputLayout, PartWidths]]]:
    """Yield every way in which the outputs of a scale may hold the parts of a family's head.

    A family lists its parts in a fixed order, such as boxes, objectness and classes. Each output
    may hold several parts that follow one another, and the outputs may come in any order. So of two
    outputs, one may hold the boxes and the other objectness and classes; or one may hold boxes and
    objectness and the other the classes.

    Args:
        outputs_of_scale: The outputs of the scale.
        spec: The parts, for models with and without landmarks if the family has both. And whether
            its graphs have an output for each part (APART), join some parts in one output (JOINED),
            or do either (ANY).

    Yields:
        Each output with the parts that it is assumed to hold, and how many channels each has.
    """
    for parts in spec.part_lists:
        tensors_per_scale = TensorsPerScale.JOINED
        if len(outputs_of_scale) == len(parts):
            tensors_per_scale = TensorsPerScale.APART
        if spec.tensors not in {TensorsPerScale.ANY, tensors_per_scale}:
            continue

        for consecutive_parts in _consecutive_divisions(parts, len(outputs_of_scale)):
            for ordered_outputs in itertools.permutations(outputs_of_scale):
                yield list(zip(ordered_outputs, consecutive_parts, strict=True))


def _consecutive_divisions(parts: PartWidths, count: int) -> Iterator[list[PartWidths]]:
    """Yield every way to cut a sequence into `count` non-empty pieces.

    For example, (box, objectness, classes) is cut into two pieces as (box) and (objectness,
    classes), and as (box, objectness) and (classes).
    """
    for cuts in itertools.combinations(range(1, len(parts)), count - 1):
        bounds = [0, *cuts, len(parts)]
        yield [parts[start:stop] for start, stop in itertools.pairwise(bounds)]
