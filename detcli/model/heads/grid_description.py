"""Describes a recognised grid head in the form that all kinds of heads share."""

from dataclasses import replace

from detcli.config.values import BoxFormat
from detcli.model.contract import Layout
from detcli.model.graph import GraphIndex
from detcli.model.heads import (
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
)
from detcli.model.heads.decode import box_decoding


def describe_grid_head(index: GraphIndex, grid_head: GridHead) -> Head | None:
    """Describe a recognised grid head in the form that all kinds of heads share.

    Nodes that detcli adds to the graph decode the boxes and complete the scores. The head is
    described as it is after these.

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
    # Some families have a part for the boxes, others one for their centres and one for their sizes.
    box_or_centre_slices = parts.get(HeadPart.CENTRE) or parts[HeadPart.BOX]
    box_slices = box_or_centre_slices + parts.get(HeadPart.SIZE, ())

    activation_in_graph = class_slices[0].activation
    head = Head(
        Layout.SCALES,
        boxes=tuple(ChannelRange(box_slice.tensor) for box_slice in box_slices),
        scores=tuple(ChannelRange(score_slice.tensor) for score_slice in score_slices),
        class_count=class_slices[0].width,
        anchors_first=True,
        decoded=_decoding_by_added_nodes(spec),
        scores_are=_activation_with_added_nodes(grid_head, activation_in_graph),
        grid=grid_head,
    )

    are_outputs_of_layers = box_or_centre_slices[0].activation is Activation.LINEAR
    # With this offset, a graph may have applied the sigmoids, and detcli does the rest.
    may_be_sigmoids = spec.offset is Offset.SIGMOID
    if are_outputs_of_layers or may_be_sigmoids:
        return head
    return _head_with_decoded_boxes(index, head, box_or_centre_slices, activation_in_graph)


def _decoding_by_added_nodes(spec: GridSpec) -> Decoded:
    """Return how boxes of a grid head are decoded once detcli's nodes have been added."""
    if spec.offset is Offset.DISTANCES:
        return Decoded(BoxDecode.DISTANCES, BoxFormat.XYXY, fractions=False)
    return Decoded(BoxDecode.LINEAR, BoxFormat.CXCYWH, fractions=False)


def _activation_with_added_nodes(
    grid_head: GridHead, activation_in_graph: Activation | None
) -> Activation | None:
    """Return what the scores of a grid head are once detcli's nodes have been added.

    The nodes bring them to 0 to 1, which SIGMOID stands for, if the family has a softmax or
    multiplies by an objectness. Otherwise the scores stay as the graph outputs them.
    """
    if HeadPart.OBJECTNESS in grid_head.parts or grid_head.spec.softmax:
        return Activation.SIGMOID
    return activation_in_graph


def _head_with_decoded_boxes(
    index: GraphIndex,
    head: Head,
    boxes: tuple[ChannelSlice, ...],
    activation_in_graph: Activation | None,
) -> Head | None:
    """Describe a grid head whose boxes the graph decodes itself.

    Its boxes and scores are two finished tensors (PAIR), to which no nodes have to be added. The
    family only says how images are prepared.

    Args:
        index: The graph.
        head: The description of the head as it is with added nodes that decode it.
        boxes: The channels of the boxes in every scale.
        activation_in_graph: The activation function of the graph's scores, if known. It counts in
            place of the one with added nodes.

    Returns:
        None if the boxes are several tensors, or are decoded in a way other than by
        exponentials or as distances to their edges.
    """
    if len(boxes) != 1:
        return None
    decoded = box_decoding(index, boxes[0].tensor)
    if decoded is None or decoded.method not in {BoxDecode.EXPONENTIAL, BoxDecode.DISTANCES}:
        return None
    return replace(head, layout=Layout.PAIR, decoded=decoded, scores_are=activation_in_graph)
