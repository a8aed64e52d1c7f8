"""Finds heads that a graph leaves undecoded: the raw outputs of its layers, cell by cell.

Each scale of such a detector is a feature map of cells: the input's height and width divided
by the scale's stride. For each anchor of a cell the layers give some channels: the box, objectness,
scores of classes, landmarks. Their widths and order are the same for all detectors of a family,
which a `GridSpec` describes; `detcli.model.adapt` adds the nodes that decode them.

An output may hold one scale or all scales, and one of these parts or several. Its shape is
`[B, channels, H, W]`, `[B, N, channels]` or `[B, channels, N]`, or the same without B where a graph
takes a single image; or `[B, A, H, W, channels]`, with an axis for the A anchors of a cell.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from detcli.config.values import BoxFormat
from detcli.model.contract import Layout, Size
from detcli.model.graph import CONVOLUTIONS, PRODUCTS, Dims, GraphIndex
from detcli.model.heads import (
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
from detcli.model.heads.layers import (
    nearest_layer_operator,
    nodes_back_to_layers,
    score_activation,
)
from detcli.model.heads.output_layouts import (
    OutputLayout,
    group_by_scale,
    layout_of_output,
    outputs_in_network_order,
    outputs_without_images,
)

PartSlices = dict[HeadPart, ChannelSlice]
"""The channels that hold each part of a head, such as its boxes or its scores."""


def grid_heads(
    index: GraphIndex,
    shapes: Mapping[str, Dims],
    input_size: Size,
    specs: Iterable[GridSpec],
) -> Iterator[Head]:
    """Yield a head for each family of detectors that the undecoded outputs of a graph fit.

    Several families can have outputs of the same shapes; the caller tells them apart.

    Args:
        index: The graph.
        shapes: The shapes of its outputs at this input size.
        input_size: Height and width of the input in pixels.
        specs: What the layers of each family in question predict for a cell of their grids.
    """
    outputs = {name: shapes.get(name, []) for name in outputs_in_network_order(index)}
    # The only outputs of a known family that no image changes are the sizes of its feature maps.
    gives_map_sizes = bool(outputs_without_images(index))
    for spec in specs:
        has_other_input_size = bool(spec.input_sizes) and input_size not in spec.input_sizes
        if has_other_input_size or spec.gives_map_sizes != gives_map_sizes:
            continue
        for strides in spec.strides:
            head = _head_of_family(index, outputs, input_size, spec, strides)
            if head is not None:
                yield head
                break  # a family counts once, with the first strides that fit


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
        None if the shapes of the outputs, or the nodes that compute them, do not fit the family.
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
    return _describe_grid_head(index, GridHead(spec, strides, parts, total_anchors))


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
    index: GraphIndex, group: list[OutputLayout], spec: GridSpec
) -> PartSlices:
    """Find out which channels of a scale's outputs are the boxes, the scores and so on.

    Every way in which the outputs may hold these parts is tried. If several fit, and they agree on
    the output of the boxes, the first one counts.

    Args:
        index: The graph.
        group: The outputs of the scale.
        spec: The parts that the family's layers predict for each cell.

    Returns:
        The channels of each part; empty if the family's parts do not fit the outputs.

    Raises:
        Unrecognised: More than one output may be the boxes.
    """
    fitting_divisions: list[PartSlices] = []
    for assumed_parts in _possible_assignments(group, spec):
        slices_by_part = _divide_outputs(index, assumed_parts, spec)
        if slices_by_part:
            fitting_divisions.append(slices_by_part)
    if not fitting_divisions:
        return {}

    box_tensors = set()
    for slices_by_part in fitting_divisions:
        if HeadPart.BOX in slices_by_part:
            box_tensors.add(slices_by_part[HeadPart.BOX].tensor)
    if len(box_tensors) > 1:
        raise Unrecognised("two of its outputs may be the boxes, or two the scores")
    return fitting_divisions[0]


def _divide_outputs(
    index: GraphIndex, assumed_parts: list[tuple[OutputLayout, PartWidths]], spec: GridSpec
) -> PartSlices:
    """Divide the channels of a scale's outputs among the parts that they are assumed to hold.

    Returns:
        The channels of each part; empty if an output cannot hold its parts.
    """
    slices: PartSlices = {}
    for layout, parts_of_output in assumed_parts:
        slices_of_output = _divide_channels(index, layout, parts_of_output, spec)
        if not slices_of_output:
            return {}
        slices.update(slices_of_output)
    return slices


def _possible_assignments(
    group: list[OutputLayout], spec: GridSpec
) -> Iterator[list[tuple[OutputLayout, PartWidths]]]:
    """Yield every way in which the outputs of a scale may hold the parts of a family's head.

    A family lists its parts in a fixed order, such as boxes, objectness and classes. Each output
    may hold several parts that follow one another, and the outputs may come in any order. So of two
    outputs, one may hold the boxes and the other objectness and classes; or one may hold boxes and
    objectness and the other the classes.

    Yields:
        Each output with the parts that it is assumed to hold, and how many channels each has.
    """
    for parts in spec.part_lists:
        # Some families give each part an output of its own, others join parts in one output.
        tensors_per_scale = TensorsPerScale.JOINED
        if len(group) == len(parts):
            tensors_per_scale = TensorsPerScale.APART
        if spec.tensors not in {TensorsPerScale.ANY, tensors_per_scale}:
            continue

        for consecutive_parts in _consecutive_divisions(parts, len(group)):
            for ordered_group in itertools.permutations(group):
                yield list(zip(ordered_group, consecutive_parts, strict=True))


def _consecutive_divisions(parts: PartWidths, count: int) -> Iterator[list[PartWidths]]:
    """Yield every way to cut a sequence into `count` non-empty pieces.

    For example, (box, objectness, classes) is cut into two pieces as (box) and (objectness,
    classes), and as (box, objectness) and (classes).
    """
    for cuts in itertools.combinations(range(1, len(parts)), count - 1):
        bounds = [0, *cuts, len(parts)]
        yield [parts[start:stop] for start, stop in itertools.pairwise(bounds)]


def _divide_channels(
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
    if spec.is_of_one_layer and not _has_untrained_class(index, layout):
        return {}
    tensor_by_first_channel = {0: layout.name}
    if len(parts) > 1 and not spec.is_of_one_layer:
        tensor_by_first_channel |= _concatenated_tensors(index, layout)

    slices: PartSlices = {}
    start = 0
    channel_counts = _channel_counts(layout, parts, spec)
    for (part, width), channel_count in zip(parts, channel_counts, strict=True):
        channels = range(start, start + channel_count)
        tensor = _tensor_of_part(
            tensor_by_first_channel, layout=layout, part=part, channels=channels, spec=spec
        )
        if tensor is None:
            return {}
        activation = _activation_of_part(index, tensor, part)
        if not _may_have_activation(activation, part, width, layout=layout, spec=spec):
            return {}
        if not _may_come_from_cells(index, tensor, part, activation):
            return {}
        slices[part] = _channel_slice(layout, part, channels, activation, spec)
        start = channels.stop

    has_channels_of_no_part = start != layout.channels
    if has_channels_of_no_part:
        return {}
    return slices


def _tensor_of_part(
    tensor_by_first_channel: Mapping[int, str],
    *,
    layout: OutputLayout,
    part: HeadPart,
    channels: range,
    spec: GridSpec,
) -> str | None:
    """Name the tensor that holds a part of a head where an output joins several tensors.

    Args:
        tensor_by_first_channel: The tensors that the output joins, by the channel of the output at
            which each begins; or the output itself at channel 0.
        layout: The axes of the output.
        part: The part, such as boxes or scores.
        channels: Its channels in the output.
        spec: What the family's layers predict for each cell.

    Returns:
        The output itself where one layer predicts all parts; None if no tensor has just these
        channels.
    """
    if spec.is_of_one_layer:
        return layout.name
    # One layer may predict landmarks together with the boxes, unless anchors share the channels.
    may_be_with_box = part is HeadPart.POINTS and layout.anchors == 1
    return _tensor_joined_at(tensor_by_first_channel, channels, may_be_with_box=may_be_with_box)


def _has_untrained_class(index: GraphIndex, layout: OutputLayout) -> bool:
    """True if the last channel of an output is that of an only class, which was never trained.

    Where there is one class only, YOLOv5 trains the objectness alone, and leaves the bias of the
    class at log(0.6 / 0.01), about 4. A class among several has a negative bias, as each is rare.
    So an output of 16 channels is recognised as a box (4), an objectness (1), landmarks (10) and a
    class (1), and not as a box, an objectness and 11 classes.

    Args:
        index: The graph.
        layout: The axes of the output, of which the last are the channels.
    """
    for node in nodes_back_to_layers(index, layout.name):
        has_biases = node.op_type in CONVOLUTIONS and len(node.input) >= 3
        if not has_biases:
            continue
        biases = index.array(index.computed_as(node.input[2]))
        if biases is None or biases.size == 0 or biases.size % layout.channels:
            return False
        biases_of_anchors = biases.reshape(-1, layout.channels)
        biases_of_last_channel = biases_of_anchors[:, -1]
        return bool((biases_of_last_channel > 0).all())
    return False


def _channel_slice(
    layout: OutputLayout,
    part: HeadPart,
    channels: range,
    activation: Activation | None,
    spec: GridSpec,
) -> ChannelSlice:
    """Describe the channels of an output that hold one part of a head.

    Args:
        layout: The axes of the output.
        part: The part, such as boxes or scores.
        channels: Its channels, of all anchors of a cell.
        activation: The activation function that they were computed by, if known.
        spec: What the family's layers predict for each cell.
    """
    start = channels.start
    if part is HeadPart.PAIR:
        # The first half of a pair is the score of no object, which is left out. The second half is
        # that of the class.
        start = (channels.start + channels.stop) // 2
    stop = None  # the end of the axis
    if channels.stop != layout.channels:
        stop = channels.stop

    if _is_shared_by_anchors(part, spec):  # one set of channels, which all anchors of a cell share
        channel_sets = 1
        anchors_per_set = layout.anchors
    else:
        channel_sets = layout.anchors
        anchors_per_set = 1
    return ChannelSlice(
        tensor=layout.name,
        start=start,
        stop=stop,
        axis=layout.channel_axis,
        rank=layout.rank,
        anchors=channel_sets,
        width=(channels.stop - start) // channel_sets,
        repeated=anchors_per_set,
        activation=activation,
    )


def _channel_counts(layout: OutputLayout, parts: PartWidths, spec: GridSpec) -> list[int]:
    """Count the channels of each part in an output, over all anchors that share its channels.

    A width of 0 means that the family does not fix how many channels the part has, as with the
    classes. Such a part has the channels that the others leave.

    For example, of 255 channels that three anchors share, boxes of width 4 and an objectness of
    width 1 take 12 and 3, and leave 240 to the classes.

    Args:
        layout: The axes of the output.
        parts: The parts that it holds, and how many channels an anchor has of each.
        spec: What the family's layers predict for each cell.
    """
    fixed_counts = []
    for part, width in parts:
        anchors = layout.anchors
        if _is_shared_by_anchors(part, spec):
            anchors = 1
        fixed_counts.append(width * anchors)
    remaining_channels = layout.channels - sum(fixed_counts)
    return [count if count > 0 else remaining_channels for count in fixed_counts]


def _is_shared_by_anchors(part: HeadPart, spec: GridSpec) -> bool:
    """True if all anchors of a cell have this part in common: in some families, the classes."""
    return spec.classes_shared_by_anchors and part is HeadPart.CLASSES


def _tensor_joined_at(
    tensor_by_first_channel: Mapping[int, str], channels: range, *, may_be_with_box: bool
) -> str | None:
    """Find the tensor, of those joined in an output, that has the first of some channels.

    For example, of the tensors `{0: "boxes", 4: "scores"}`, "scores" has channels 4 to 83.

    Args:
        tensor_by_first_channel: The joined tensors by the channel at which each begins.
        channels: The channels in question.
        may_be_with_box: Whether they may follow the boxes in the first tensor, as landmarks do.

    Returns:
        None if the channels begin inside a tensor, or are those of several.
    """
    first_channels_in_range = [first for first in tensor_by_first_channel if first in channels]
    if may_be_with_box and not first_channels_in_range:
        return tensor_by_first_channel[0]
    if first_channels_in_range != [channels.start]:
        return None
    return tensor_by_first_channel[channels.start]


def _concatenated_tensors(index: GraphIndex, layout: OutputLayout) -> dict[int, str]:
    """Find the tensors that an output's channels were joined from.

    Returns:
        The name of each tensor by the channel of the output at which it begins.
    """
    groups = groups_along(index, layout.name, layout.channel_axis)
    if not groups:  # the output may be cut out of what was joined
        _, groups = channel_groups(index, layout.name)
    tensors = {}
    first_channel = 0
    for channel_count, name in groups:
        tensors[first_channel] = name
        first_channel += channel_count
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


def _may_have_activation(
    activation: Activation | None,
    part: HeadPart,
    width: int,
    *,
    layout: OutputLayout,
    spec: GridSpec,
) -> bool:
    """True if a part of a family's head, such as boxes or scores, may have an activation function.

    Args:
        activation: The function by which a tensor was computed; None if it is unknown, or if the
            tensor holds decoded boxes.
        part: The part that the tensor may be.
        width: How many channels each anchor has of this part; 0 if the family leaves that open.
        layout: The axes of the output that the tensor is joined into.
        spec: What the family's layers predict for each cell.
    """
    if part is HeadPart.BOX:
        return _may_have_box_activation(activation, spec)
    are_two_classes = part is HeadPart.CLASSES and width == 2
    if part is HeadPart.PAIR or are_two_classes:
        return _may_be_two_scores(activation, part, layout)
    if part in SCORES:
        if activation is Activation.SOFTMAX:
            return spec.softmax
        return activation is not None
    return True  # Landmarks, centres and sizes may be anything.


def _may_be_two_scores(activation: Activation | None, part: HeadPart, layout: OutputLayout) -> bool:
    """True if a part may be the scores of no object and of the only class, which add up to 1.

    If anchors share channels, these are a PAIR: first one score of all anchors, then the other. If
    each anchor has an entry of its own in the output, they are two CLASSES.

    Args:
        activation: The activation function by which the scores were computed; None if unknown.
        part: PAIR or CLASSES, as the family has it.
        layout: The axes of the output.
    """
    anchors_share_channels = layout.anchors > 1
    is_pair = part is HeadPart.PAIR
    if is_pair != anchors_share_channels:
        return False
    return activation in {Activation.SOFTMAX, Activation.LINEAR}


def _may_have_box_activation(activation: Activation | None, spec: GridSpec) -> bool:
    """True if boxes of a family may have an activation function; None stands for decoded boxes."""
    if activation is Activation.LINEAR:
        return True
    if activation is None:
        # The graph decodes its boxes: the input's size has to tell which family's they are.
        return bool(spec.input_sizes)
    return spec.offset is Offset.SIGMOID


def _may_come_from_cells(
    index: GraphIndex, tensor: str, part: HeadPart, activation: Activation | None
) -> bool:
    """True unless a tensor is predicted by a matrix product, for the queries of a transformer.

    Cells of a grid are predicted by convolutions. Scores, and boxes behind an activation function
    or a decoding, are not looked at.
    """
    is_behind_activation = part is HeadPart.BOX and activation is not Activation.LINEAR
    if part in SCORES or is_behind_activation:
        return True
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
    class_slices = parts.get(HeadPart.PAIR) or parts[HeadPart.CLASSES]
    score_slices = class_slices + parts.get(HeadPart.OBJECTNESS, ())
    # Boxes are one part, or centre and size are two.
    box_or_centre_slices = parts.get(HeadPart.CENTRE) or parts[HeadPart.BOX]
    box_slices = box_or_centre_slices + parts.get(HeadPart.SIZE, ())

    # The boxes and scores are described as they will be behind the nodes that detcli adds.
    decoded = Decoded(BoxDecode.LINEAR, BoxFormat.CXCYWH, fractions=False)
    if spec.offset is Offset.DISTANCES:
        decoded = Decoded(BoxDecode.DISTANCES, BoxFormat.XYXY, fractions=False)
    activation_in_graph = class_slices[0].activation
    activation_with_added_nodes = activation_in_graph
    if HeadPart.OBJECTNESS in parts or spec.softmax:
        activation_with_added_nodes = Activation.SIGMOID  # The scores are then from 0 to 1.
    head = Head(
        Layout.SCALES,
        boxes=tuple(ChannelRange(box_slice.tensor) for box_slice in box_slices),
        scores=tuple(ChannelRange(score_slice.tensor) for score_slice in score_slices),
        class_count=class_slices[0].width,
        anchors_first=True,
        decoded=decoded,
        scores_are=activation_with_added_nodes,
        grid=grid_head,
    )

    are_outputs_of_layers = box_or_centre_slices[0].activation is Activation.LINEAR
    # With this offset, a graph may have applied the sigmoids, and detcli does the rest.
    may_be_sigmoids = spec.offset is Offset.SIGMOID
    if are_outputs_of_layers or may_be_sigmoids:
        return head
    return _head_with_decoded_boxes(index, head, box_or_centre_slices, activation_in_graph)


def _head_with_decoded_boxes(
    index: GraphIndex,
    head: Head,
    boxes: tuple[ChannelSlice, ...],
    activation_in_graph: Activation | None,
) -> Head | None:
    """Describe a grid head whose boxes the graph decodes itself, so that detcli need not.

    Its boxes and scores are then read as two finished tensors; the family only says how images are
    prepared.

    Args:
        index: The graph.
        head: The head as if its boxes were not decoded.
        boxes: The channels of the boxes in every scale.
        activation_in_graph: The activation function of the graph's scores, if known.

    Returns:
        None if the boxes are several tensors, or are decoded in another way than by exponentials or
        as distances to their edges.
    """
    if len(boxes) != 1:
        return None
    decoded = box_decoding(index, boxes[0].tensor)
    if decoded is None or decoded.method not in {BoxDecode.EXPONENTIAL, BoxDecode.DISTANCES}:
        return None
    return replace(head, layout=Layout.PAIR, decoded=decoded, scores_are=activation_in_graph)
