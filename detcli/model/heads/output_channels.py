"""Divides the channels of a raw output among the parts of a head, such as boxes and scores.

The parts that a family lists have to take all channels. Where the output joins several tensors,
each part has to be one of these. And each needs an activation function that it may have in the
family.
"""

from collections.abc import Mapping

from detcli.model.graph import CONVOLUTIONS, PRODUCTS, GraphIndex
from detcli.model.heads import (
    SCORES,
    Activation,
    BoxDecode,
    ChannelSlice,
    GridSpec,
    HeadPart,
    Offset,
    PartWidths,
)
from detcli.model.heads.channels import channel_groups, groups_along
from detcli.model.heads.decode import box_decoding
from detcli.model.heads.layers import nearest_layer_operator, nodes_back_to_layers, score_activation
from detcli.model.heads.output_layouts import OutputLayout

PartSlices = dict[HeadPart, ChannelSlice]
"""The channels that hold each part of a head, such as its boxes or its scores."""


def divide_channels(
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

    # Where an output joins several tensors, each part has to be one of these.
    tensor_by_first_channel = {0: layout.name}
    if len(parts) > 1 and not spec.is_of_one_layer:
        tensor_by_first_channel |= _concatenated_tensors(index, layout)

    slices_by_part: PartSlices = {}
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
        if not _may_be_predicted_by_convolution(index, tensor, part, activation):
            return {}
        slices_by_part[part] = _channel_slice(layout, part, channels, activation, spec)
        start = channels.stop

    are_all_channels_assigned = start == layout.channels
    if not are_all_channels_assigned:
        return {}
    return slices_by_part


def _tensor_of_part(
    tensor_by_first_channel: Mapping[int, str],
    *,
    layout: OutputLayout,
    part: HeadPart,
    channels: range,
    spec: GridSpec,
) -> str | None:
    """Return the tensor that an output takes a part of a head from, such as its boxes.

    Many graphs compute each part as a tensor, and then join these tensors into one output. The
    nodes that compute the part's tensor show how it is predicted.

    Args:
        tensor_by_first_channel: The tensors that the output joins, by the channel of the output at
            which each begins. If it joins none, it is the only entry, at channel 0.
        layout: The axes of the output.
        part: The part, such as boxes or scores.
        channels: Its channels in the output.
        spec: What the family's layers predict for each cell.

    Returns:
        The name of the tensor. If one layer of the family predicts all parts, it is the output
        itself. None if no joined tensor matches the channels of the part.
    """
    if spec.is_of_one_layer:
        return layout.name
    # One layer may predict landmarks together with the boxes, unless anchors share the channels.
    may_be_with_box = part is HeadPart.POINTS and layout.anchors == 1
    return _tensor_joined_at(tensor_by_first_channel, channels, may_be_with_box=may_be_with_box)


def _has_untrained_class(index: GraphIndex, layout: OutputLayout) -> bool:
    """True if an output ends in the score of a class that was never trained, as it is the only one.

    Where there is one class only, YOLOv5 trains the objectness alone, and leaves the bias of the
    class at log(0.6 / 0.01), about 4. A class among several has a negative bias, as each is rare.
    An output of 16 channels could be a box (4), an objectness (1) and 11 classes. With a positive
    bias at the end, it is a box, an objectness, landmarks (10) and a class (1).

    Args:
        index: The graph.
        layout: The axes of the output.

    Returns:
        Whether the last bias of each anchor is positive, in the nearest convolution that has
        biases. False if there is none, or if its biases do not match the channels of the output.
    """
    for node in nodes_back_to_layers(index, layout.name):
        has_biases = node.op_type in CONVOLUTIONS and len(node.input) >= 3
        if not has_biases:
            continue

        # The biases are those of all channels of the first anchor, then of the second, and so on.
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

    For example, if three anchors of a cell share the channels, the boxes have 12 of them: a width
    of 4 for each of the 3 anchors. Classes that all anchors have in common have one set of
    channels, which is repeated 3 times when the head is decoded.

    Args:
        layout: The axes of the output.
        part: The part, such as boxes or scores.
        channels: Its channels, of all anchors of a cell.
        activation: The activation function that they were computed by, if known.
        spec: What the family's layers predict for each cell.
    """
    start = channels.start
    if part is HeadPart.PAIR:
        # The first half of the channels are the scores of no object, which are left out. The second
        # half are those of the class.
        start = (channels.start + channels.stop) // 2
    stop = None  # the end of the axis
    if channels.stop != layout.channels:
        stop = channels.stop

    if _is_shared_by_anchors(part, spec):
        anchors_with_channels = 1
        repeated = layout.anchors
    else:
        anchors_with_channels = layout.anchors
        repeated = 1
    return ChannelSlice(
        tensor=layout.name,
        start=start,
        stop=stop,
        axis=layout.channel_axis,
        rank=layout.rank,
        anchors=anchors_with_channels,
        width=(channels.stop - start) // anchors_with_channels,
        repeated=repeated,
        activation=activation,
    )


def _channel_counts(layout: OutputLayout, parts: PartWidths, spec: GridSpec) -> list[int]:
    """Count the channels of each part in an output, over all anchors that share its channels.

    For example, an output has 255 channels that three anchors share. Boxes of width 4 take 12 of
    them, and an objectness of width 1 takes 3, which leaves 240 to the classes.

    Args:
        layout: The axes of the output.
        parts: The parts that it holds, each with its width: the number of channels for one anchor.
            A width of 0 means that the family does not fix it, as of the classes. Such a part has
            all channels that remain.
        spec: What the family's layers predict for each cell.
    """
    fixed_counts = []
    for part, width in parts:
        anchor_count = layout.anchors
        if _is_shared_by_anchors(part, spec):
            anchor_count = 1
        fixed_counts.append(width * anchor_count)
    remaining_channels = layout.channels - sum(fixed_counts)

    counts = []
    for fixed_count in fixed_counts:
        if fixed_count > 0:
            counts.append(fixed_count)
        else:
            counts.append(remaining_channels)
    return counts


def _is_shared_by_anchors(part: HeadPart, spec: GridSpec) -> bool:
    """True if all anchors of a cell have this part in common: in some families, the classes."""
    return spec.classes_shared_by_anchors and part is HeadPart.CLASSES


def _tensor_joined_at(
    tensor_by_first_channel: Mapping[int, str], channels: range, *, may_be_with_box: bool
) -> str | None:
    """Find the tensor that an output joins at some of its channels.

    For example, if the output joins `{0: "boxes", 4: "scores"}`, "scores" is at channels 4 to 83.

    Args:
        tensor_by_first_channel: The joined tensors by the channel at which each begins.
        channels: The channels that a part of the head takes.
        may_be_with_box: Whether the first tensor may hold these channels too, after those of the
            boxes, as it often holds landmarks.

    Returns:
        The tensor that begins at the first of the channels. If no tensor begins at any of them and
        `may_be_with_box` is set, the first tensor. None if the channels begin inside a tensor, or
        belong to several.
    """
    tensor_starts = [start for start in tensor_by_first_channel if start in channels]
    if may_be_with_box and not tensor_starts:
        return tensor_by_first_channel[0]
    if tensor_starts != [channels.start]:
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
    """Determine by which activation function a tensor with a part of a head was computed.

    Returns:
        None if that is not clear, and for boxes that the graph has decoded already: then they are
        not the output of a layer, even if they are a linear function of it.
    """
    activation = score_activation(index, tensor)
    if part is HeadPart.BOX and activation is Activation.LINEAR:
        decoded = box_decoding(index, tensor)
        is_decoded = decoded is not None and decoded.method is not BoxDecode.LINEAR
        if is_decoded:
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

    # A family with one class may output two scores for each box: of no object, and of the class.
    are_two_classes = part is HeadPart.CLASSES and width == 2
    if part is HeadPart.PAIR or are_two_classes:
        return _may_be_two_scores(activation, part, layout)

    if part in SCORES:
        if activation is Activation.SOFTMAX:
            return spec.softmax
        return activation is not None  # a sigmoid or logits
    return True  # Landmarks, centres and sizes may be anything.


def _may_be_two_scores(activation: Activation | None, part: HeadPart, layout: OutputLayout) -> bool:
    """True if a part may be the scores of no object and of the only class, which add up to 1.

    Families list these scores in two ways, and each matches one kind of output:

    - PAIR, where the anchors of a cell share the channels: first the scores of no object of all
      anchors, then their scores of the class.
    - CLASSES with a width of 2, where each anchor has an entry on an axis, and two channels.

    The two scores come from a softmax, or are logits, to which the softmax is still to be applied.

    Args:
        activation: The activation function by which the scores were computed; None if unknown.
        part: PAIR or CLASSES, as the family lists them.
        layout: The axes of the output.
    """
    anchors_share_channels = layout.anchors > 1
    needs_shared_channels = part is HeadPart.PAIR
    if needs_shared_channels != anchors_share_channels:
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


def _may_be_predicted_by_convolution(
    index: GraphIndex, tensor: str, part: HeadPart, activation: Activation | None
) -> bool:
    """Return whether a part may belong to grid cells, whose numbers convolutions predict.

    The boxes of a transformer's queries are predicted by matrix products. So the part does not
    belong to grid cells if the nearest layer before it is a matrix product. The layer is not looked
    for where it does not matter or is not near, and the answer is True then: for scores, and for
    boxes that an activation function or a decoding has changed.

    Args:
        index: The graph.
        tensor: The tensor that holds the part.
        part: The part, such as boxes or scores.
        activation: Its activation function; None if it is unknown or the boxes are decoded.
    """
    are_changed_boxes = part is HeadPart.BOX and activation is not Activation.LINEAR
    if part in SCORES or are_changed_boxes:
        return True
    return nearest_layer_operator(index, tensor) not in PRODUCTS
