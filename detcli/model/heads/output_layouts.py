"""Finds out what the axes of a graph's outputs mean where a head is left undecoded, cell by cell.

Each scale of such a detector is a feature map of cells: the input's height and width divided by the
scale's stride. The number of cells tells which scale an output belongs to.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import onnx
from onnx import helper

from detcli.model.contract import Size
from detcli.model.editing import copied, infer_shapes, tidy
from detcli.model.graph import Dims, GraphIndex, shape
from detcli.model.heads import HEAD_RANK, GridSpec

RANK_OF_MAPS = 4  # axes of an output that holds feature maps: [B, C, H, W] or [B, H, W, C]
RANK_WITH_ANCHORS = 5  # axes of an output that has one for the anchors of a cell: [B, A, H, W, C]
ALL_SCALES = -1  # in place of a scale's position: an output holds all of them


class OutputLayout(NamedTuple):
    """What the axes mean in an output that holds the cells of one scale or of all scales."""

    name: str
    scale: int  # the position of its scale, or ALL_SCALES
    channel_axis: int
    rank: int
    channels: int  # the length of that axis
    # how many anchors of a cell share the channels; 1 if each anchor is an entry of another axis
    anchors: int


class ExpectedAxes(NamedTuple):
    """The axes that an output has, apart from batch and channels, if it holds cells of a scale."""

    sizes: list[int]
    scale: int  # the position of the scale, or ALL_SCALES
    anchors: int  # how many anchors then share the channels; 1 if each has an entry on an axis


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
    ranks = {output.name: len(shape(output)) for output in graph.output}
    # All shapes that the file declares are dropped, since they may be those of a different size.
    del graph.value_info[:], graph.output[:]
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in ranks)
    _set_image_size(graph, image, size)
    shapes = {}
    for output in tidy(fixed_model, folds_constants=True).graph.output:
        # The inference may add a batch axis in front, which the declared number of axes cuts off.
        shapes[output.name] = shape(output)[-ranks[output.name] :]
    return shapes


def shapes_by_nodes(model: onnx.ModelProto) -> GraphIndex:
    """Index a graph with the shapes that its nodes compute, in place of those that it declares.

    A file may declare shapes for its outputs that differ from those it computes; ONNX Runtime only
    warns. Where the nodes do not show the size of an axis, it is unknown.
    """
    bare_model = copied(model)
    graph = bare_model.graph
    outputs = [
        helper.make_tensor_value_info(output.name, output.type.tensor_type.elem_type, None)
        for output in graph.output
    ]
    del graph.value_info[:], graph.output[:]
    graph.output.extend(outputs)
    return GraphIndex(infer_shapes(bare_model).graph)


def _set_image_size(graph: onnx.GraphProto, image: str, size: Size) -> None:
    """Declare that the input `image` of a graph, [B, 3, H, W], is one image of the given size."""
    height, width = size
    for graph_input in graph.input:
        dims = graph_input.type.tensor_type.shape.dim
        if graph_input.name == image and len(dims) == 4:
            dims[0].dim_value = 1
            dims[2].dim_value = height
            dims[3].dim_value = width


def outputs_in_network_order(index: GraphIndex) -> list[str]:
    """List the graph's outputs in the order of the nodes that compute them.

    Exporters may list outputs in any order, while the nodes keep the order of the network's layers.
    Nodes that only copy or reshape an output may come anywhere, so the node before them is used.

    Two kinds of outputs are left out: those that sum up another output, and those that do not
    depend on the images.
    """
    node_positions = {}
    for position, node in enumerate(index.graph.node):
        for tensor in node.output:
            node_positions[tensor] = position

    def position_of(output: str) -> int:
        computed_tensor = index.elements_of(output)
        return node_positions.get(computed_tensor, 0)  # an input of the graph comes first

    all_outputs = index.outputs
    independent_of_images = outputs_without_images(index)
    outputs = []
    for name in all_outputs:
        if name in independent_of_images or _is_channel_sum(index, name, all_outputs):
            continue
        outputs.append(name)
    return sorted(outputs, key=position_of)


def outputs_without_images(index: GraphIndex) -> set[str]:
    """Find the outputs that no image changes: constants, and what depends on its size alone.

    SeetaFace6 outputs the sizes of its feature maps in this way.
    """
    inputs = [graph_input.name for graph_input in index.image_inputs()]
    return set(index.outputs) - index.tensors_computed_from(*inputs)


def _is_channel_sum(index: GraphIndex, output: str, outputs: list[str]) -> bool:
    """True if an output is the sum over the channels of another output, clipped or not.

    Exports for Rockchip's RKNN add such outputs: its runtime skips the cells where the sum of the
    class scores is low.
    """
    limits = ("Clip", "Max", "Min")
    unlimited = output
    node = index.producer(unlimited, *limits)
    while node is not None:
        unlimited = node.input[0]
        node = index.producer(unlimited, *limits)
    sum_node = index.producer(unlimited, "ReduceSum")
    if sum_node is None:
        return False
    # `computed_as` leaves out casts and copies, so that equal names mean equal elements.
    summed = index.computed_as(sum_node.input[0])
    return any(index.computed_as(name) == summed for name in outputs)


def layout_of_output(
    name: str, dims: Dims, map_sizes: list[list[int]], anchor_counts: list[int]
) -> OutputLayout | None:
    """Determine from an output's shape the axis of its channels and the scale that it belongs to.

    Apart from the batch and the channels, the axes count the cells of a feature map. For example,
    for a scale with 80 x 80 cells of one anchor, an output with 85 channels has one of the shapes
    [1, 85, 80, 80], [1, 80, 80, 85], [1, 85, 6400], [1, 6400, 85] and [6400, 85]. With three
    anchors, it may also have an axis for these, [1, 3, 80, 80, 85].

    Args:
        name: The output.
        dims: Its shape.
        map_sizes: Height and width in cells of each scale's feature map.
        anchor_counts: How many anchors each cell of a scale has.

    Returns:
        None if the shape is unknown, or does not have an entry for each cell or anchor.
    """
    rank = len(dims)
    if rank not in {2, HEAD_RANK, RANK_OF_MAPS, RANK_WITH_ANCHORS}:
        return None
    has_batch = rank > 2
    batch_axes = 1 if has_batch else 0
    sizes = [size for size in dims[batch_axes:] if isinstance(size, int)]
    has_unknown_sizes = len(sizes) < rank - batch_axes
    if has_unknown_sizes:
        return None

    # The channels are the last axis, or the first one after the batch.
    last_axis = rank - 1
    possible_channel_axes = [last_axis]
    if has_batch and rank != RANK_WITH_ANCHORS:
        possible_channel_axes.append(batch_axes)

    axes_of_scales = list(_expected_axes(rank, map_sizes, anchor_counts))
    for channel_axis in possible_channel_axes:
        position = channel_axis - batch_axes  # of the channels in `sizes`
        sizes_beside_channels = sizes[:position] + sizes[position + 1 :]
        for expected in axes_of_scales:
            if expected.sizes == sizes_beside_channels:
                return OutputLayout(
                    name=name,
                    scale=expected.scale,
                    channel_axis=channel_axis,
                    rank=rank,
                    channels=sizes[position],
                    anchors=expected.anchors,
                )
    return None


def _expected_axes(
    rank: int, map_sizes: list[list[int]], anchor_counts: list[int]
) -> Iterator[ExpectedAxes]:
    """Yield the sizes that an output's axes may have, apart from the batch and the channels.

    They depend on the number of axes of the output:

    - Four: it is a feature map, and all anchors of a cell share its channels. The other axes are
      height and width, such as [80, 80].
    - Five: the anchors have an axis, so that each has channels for itself: [3, 80, 80].
    - Two or three: a single axis counts the cells or the anchors, of one scale or of all: [6400].

    Args:
        rank: How many axes the output has.
        map_sizes: Height and width in cells of each scale's feature map.
        anchor_counts: How many anchors each cell of a scale has.
    """
    if rank == RANK_OF_MAPS:
        for scale, map_size in enumerate(map_sizes):
            yield ExpectedAxes(sizes=map_size, scale=scale, anchors=anchor_counts[scale])
    elif rank == RANK_WITH_ANCHORS:
        for scale, (height, width) in enumerate(map_sizes):
            anchors_and_map_size = [anchor_counts[scale], height, width]
            yield ExpectedAxes(sizes=anchors_and_map_size, scale=scale, anchors=1)
    else:
        yield from _expected_lengths(map_sizes, anchor_counts)


def _expected_lengths(
    map_sizes: list[list[int]], anchor_counts: list[int]
) -> Iterator[ExpectedAxes]:
    """Yield the lengths that an output's axis may have if it counts cells or anchors.

    If it counts cells, all anchors of a cell share its channels. If it counts anchors, each has
    channels for itself.

    Args:
        map_sizes: Height and width in cells of each scale's feature map.
        anchor_counts: How many anchors each cell of a scale has.
    """
    cell_counts = [math.prod(map_size) for map_size in map_sizes]
    total_anchors = []
    for cell_count, anchor_count in zip(cell_counts, anchor_counts, strict=True):
        total_anchors.append(cell_count * anchor_count)

    # One scale: first an entry for each anchor, then an entry for each cell.
    for scale, total in enumerate(total_anchors):
        yield ExpectedAxes(sizes=[total], scale=scale, anchors=1)
    for scale, cell_count in enumerate(cell_counts):
        yield ExpectedAxes(sizes=[cell_count], scale=scale, anchors=anchor_counts[scale])

    # All scales: the cells of different scales need equally many anchors to share channels.
    yield ExpectedAxes(sizes=[sum(total_anchors)], scale=ALL_SCALES, anchors=1)
    if len(set(anchor_counts)) == 1:
        all_cells = sum(cell_counts)
        yield ExpectedAxes(sizes=[all_cells], scale=ALL_SCALES, anchors=anchor_counts[0])


def group_by_scale(
    layouts: list[OutputLayout], spec: GridSpec, scale_count: int
) -> list[list[OutputLayout]]:
    """Group the outputs of a graph by the scale of the feature map that they belong to.

    Args:
        layouts: The axes of each output, and its scale.
        spec: What the family's layers predict for each cell.
        scale_count: How many scales the family has.

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
