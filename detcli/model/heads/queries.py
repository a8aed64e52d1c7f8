"""Finds out what a transformer's decoder starts from, and whether it reads an image in patches."""

from collections.abc import Iterable

from onnx import NodeProto

from detcli.model.graph import (
    CONVOLUTIONS,
    GraphIndex,
    attribute,
    integers,
    known_size,
    needed_nodes,
)
from detcli.model.heads import Queries

ATTENTION = frozenset({"Attention", "GridSample", "MultiHeadAttention", "Softmax"})

SMALLEST_PATCH = 8  # pixels; a vision transformer's are 14 or 16, a convolution's stride is 2 or 4


def queries_of(index: GraphIndex, boxes: str) -> Queries:
    """Determine where the queries that a transformer's decoder turns into boxes come from.

    Without a TopK they are the same for every image, as training left them (LEARNT). A TopK selects
    the best places of the image: of feature maps, as convolutions leave them (MAPS), or of what a
    transformer's encoder makes of the maps (ENCODED).

    Args:
        index: The graph.
        boxes: The tensor of the boxes.
    """
    nodes, _ = needed_nodes(index.graph, boxes)
    top_k_nodes = [node for node in nodes if node.op_type == "TopK"]
    if not top_k_nodes:
        return Queries.LEARNT
    if all(_selects_from_feature_maps(index, top_k) for top_k in top_k_nodes):
        return Queries.MAPS
    return Queries.ENCODED


def _selects_from_feature_maps(index: GraphIndex, top_k: NodeProto) -> bool:
    """True if a TopK selects from feature maps, and not from the output of an encoder.

    The search goes back from the TopK to the convolutions, and must not meet the attention of an
    encoder before them.
    """

    def inputs_to_follow(node: NodeProto, _output: str) -> Iterable[str]:
        ends_search = node.op_type in CONVOLUTIONS or node.op_type == "Shape"
        if ends_search:
            return ()
        return list(node.input)

    reaches_convolution = False
    for node, _ in index.ancestors([top_k.input[0]], inputs_to_follow):
        if node.op_type in ATTENTION:
            return False
        reaches_convolution |= node.op_type in CONVOLUTIONS
    return reaches_convolution


def has_patches(index: GraphIndex) -> bool:
    """True if a graph begins as a vision transformer does, which cuts the image into patches.

    A convolution of the three colours then has a stride as large as its kernel, of 8 pixels or
    more, so that patches do not overlap.
    """
    for convolution in index.nodes(*CONVOLUTIONS):
        weights_position = CONVOLUTIONS[convolution.op_type]
        weight_dims = index.shapes[convolution.input[weights_position]]
        if len(weight_dims) != 4:
            continue
        _, input_channels, kernel_height, kernel_width = weight_dims
        if input_channels != 3 or attribute(convolution, "group", 1) != 1:
            continue
        patch_size = known_size(kernel_width) or 0
        has_kernel_as_stride = [kernel_height, kernel_width] == integers(convolution, "strides")
        if patch_size >= SMALLEST_PATCH and has_kernel_as_stride:
            return True
    return False
