"""Whether a graph keeps channels and cells apart: a Reshape in place of a Transpose mixes them.

Maps are `[B, C, H, W]`. A head with the cells first, `[B, H x W, C]`, takes a Transpose; a Reshape
alone gives that shape, too, but each of its rows then holds one channel of neighbouring cells.
"""

import itertools
import math
import operator
from collections.abc import Iterable, Sequence

from onnx import NodeProto

from detcli.model.graph import GraphIndex, known_size
from detcli.model.heads.layers import LAYER_OPERATORS, is_computed

RESHAPES = frozenset({"Flatten", "Reshape", "Squeeze", "Unsqueeze"})
"""Operators that leave the elements of a tensor in their order."""


def mixes_channels(index: GraphIndex, tensors: Iterable[str]) -> bool:
    """True if a graph mixes the channels of its last layers with the cells of their feature maps.

    Some exports use a Reshape between a layer and its outputs where a Transpose was needed. No
    detection from such a graph can be right.

    Args:
        index: The graph.
        tensors: The boxes and scores, or the outputs. The nodes back from these to the nearest
            convolutions and matrix products are looked at.
    """

    def inputs_to_follow(node: NodeProto, _: str) -> Iterable[str]:
        if node.op_type in LAYER_OPERATORS:
            return ()
        return [name for name in node.input if name and is_computed(index, name)]

    earlier_nodes = index.ancestors(tensors, inputs_to_follow)
    return any(_mixes_channels_with_cells(index, node) for node, _ in earlier_nodes)


def _mixes_channels_with_cells(index: GraphIndex, node: NodeProto) -> bool:
    """True if a node is a Reshape that, with reshapes right before it, mixes channels with cells.

    A feature map [C, H, W] becomes [H x W, C] by a Transpose. If a Reshape alone gives that shape,
    each row holds neighbouring cells of one channel in place of the channels of one cell. Axes of
    length 1 make no difference to the order of elements, so they are left out.
    """
    if node.op_type not in RESHAPES:
        return False
    source = _before_reshapes(index, str(node.input[0]))
    sizes_before = _sizes_above_one(index, source)
    sizes_after = _sizes_above_one(index, str(node.output[0]))
    if sizes_before is None or sizes_after is None:
        return False
    are_shapes_consistent = math.prod(sizes_before) == math.prod(sizes_after)
    if not are_shapes_consistent:  # A reshape keeps the number of elements.
        return False

    if not keeps_axes(sizes_before, sizes_after):
        return True
    return _swaps_channels_and_cells(sizes_before, sizes_after) and _is_feature_map(index, source)


def _swaps_channels_and_cells(sizes_before: list[int], sizes_after: list[int]) -> bool:
    """True if a map [C, H, W] gets the shape [H x W, C], which no Reshape can do without mixing.

    `keeps_axes` does not see that where the sizes divide evenly. From [8, 2, 2] to [4, 8], it takes
    the 8 channels to be split in 4 x 2, and these 2 to be joined to the 2 x 2 cells.

    Args:
        sizes_before: The sizes of the axes before the reshape, without those of 1.
        sizes_after: The sizes after it, in the same form.
    """
    channel_count = sizes_before[0]
    cell_count = math.prod(sizes_before[1:])
    if cell_count == channel_count:
        return False  # It cannot be seen which of the two new axes has the cells.
    return sizes_after == [cell_count, channel_count]


def _before_reshapes(index: GraphIndex, tensor: str) -> str:
    """Go back from a tensor through nodes that leave its elements in their order."""
    source = index.computed_as(tensor)
    reshape = index.producer(source, *RESHAPES)
    while reshape is not None:
        source = index.computed_as(str(reshape.input[0]))
        reshape = index.producer(source, *RESHAPES)
    return source


def _sizes_above_one(index: GraphIndex, tensor: str) -> list[int] | None:
    """List the sizes of a tensor's axes, without those of 1; None if any size is unknown."""
    sizes = []
    for dim in index.shapes[tensor]:
        size = known_size(dim)
        if size is None:
            return None
        if size > 1:
            sizes.append(size)
    return sizes or None


def _is_feature_map(index: GraphIndex, tensor: str) -> bool:
    """True if a tensor is a feature map: a convolution's output, or several joined in one."""
    node = index.producer(tensor)
    while node is not None and node.op_type in {"Concat", "Sigmoid", *RESHAPES}:
        node = index.producer(str(node.input[0]))
    return node is not None and node.op_type == "Conv"


def keeps_axes(dims: Sequence[int], reshaped: Sequence[int]) -> bool:
    """True if a reshape only joins neighbouring axes and splits axes, without mixing others.

    That can be seen from the number of elements that the first axes have together: wherever a new
    axis ends inside an old one, both have to divide evenly.

    Args:
        dims: The sizes of the axes before the reshape.
        reshaped: The sizes after it.

    Examples:
        >>> keeps_axes([255, 80, 80], [3, 85, 6400]), keeps_axes([85, 80, 80], [6400, 85])
        (True, False)
    """
    # How many elements the first axes have together: 1, the first, the first two, and so on. For
    # [255, 80, 80] these are 1, 255, 20400 and 1632000.
    old_products = list(itertools.accumulate(dims, operator.mul, initial=1))
    for new_product in itertools.accumulate(reshaped, operator.mul):
        # The old axis in which the new axis ends begins at one product and ends at the next.
        old_start = max(product for product in old_products if product <= new_product)
        old_end = min(product for product in old_products if product >= new_product)
        divides_evenly = new_product % old_start == 0 and old_end % new_product == 0
        if not divides_evenly:
            return False
    return True
