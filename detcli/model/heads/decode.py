"""What makes a tensor of a head: how its boxes are decoded, and what its scores are.

Exporters and simplifiers rename, reorder and reshape; what a head computes stays. So a tensor is
followed back through everything that only moves its elements to the nodes that make them.
"""

from collections.abc import Iterable, Iterator

import numpy as np
from onnx import NodeProto

from detcli.config.values import BoxFormat
from detcli.model.graph import (
    CONVOLUTIONS,
    MAX_STEPS,
    PRODUCTS,
    GraphIndex,
    attribute,
    integers,
)
from detcli.model.heads import Activation, BoxDecode, Decoded

MOVES = {
    **dict.fromkeys(
        "Expand Flatten Gather GatherElements GatherND Pad Reshape SequenceAt Slice Split "
        "SplitToSequence Squeeze Tile Transpose Unsqueeze".split(),
        (0,),
    ),
    "ScatterND": (2,),
    "TopK": (0,),
    "Where": (1, 2),
}
"""Operators that only move elements, and the inputs that they take them from."""

LEARNT = frozenset({*CONVOLUTIONS, *PRODUCTS})
CONSTANTS = frozenset({"Constant", "ConstantOfShape"})
INTEGER_LAYERS = frozenset({"ConvInteger", "MatMulInteger"})
ARITHMETIC = frozenset({"Add", "BatchNormalization", "Div", "Mul", "Neg", "Pow", "Sub"})
ENDS = frozenset({"DynamicQuantizeLinear", "LayerNormalization", "Log", "Shape", "TopK"})
"""Operators at which the search for a tensor's source ends."""

MAX_JOINED = 64  # boxes of scales, or of anchors of a cell
DECODE_DEPTH = 8  # nodes between a head and the join of its boxes; 1 to 4 in practice

# From centre and size to two corners, as DeepStream-Yolo multiplies it.
TO_CORNERS = np.array([[1, 0, 1, 0], [0, 1, 0, 1], [-0.5, 0, 0.5, 0], [0, -0.5, 0, 0.5]])

ChannelGroups = list[
    tuple[int, str]
]  # what a tensor is joined from: number of channels and name of each


def makers(index: GraphIndex, tensor: str) -> list[NodeProto]:
    """The nodes that make a tensor's elements, behind all that only moves them."""
    behind = index.behind_all([tensor], lambda node, name: moved_inputs(node, name) or ())
    return [node for node, name in behind if moved_inputs(node, name) is None]


def computed(index: GraphIndex, tensor: str) -> bool:
    """True if some of a tensor's elements are not constants."""
    return any(node.op_type not in CONSTANTS for node in makers(index, tensor))


def only_group(index: GraphIndex, tensor: str) -> str:
    """The tensor that some channels were joined from, where they are cut out again."""
    behind, parts = channel_groups(index, tensor)
    return parts[0][1] if len(parts) == 1 else behind


def channel_groups(
    index: GraphIndex, tensor: str, depth: int = DECODE_DEPTH
) -> tuple[str, ChannelGroups]:
    """The tensors that channels were joined from, where some are cut out again."""
    while (node := index.producer(tensor, "Transpose", "Unsqueeze", "Squeeze")) is not None:
        tensor = node.input[0]
    tensor = index.computed_as(tensor)
    node = index.producer(tensor, "Slice", "Split")
    if node is None or not index.shapes[tensor]:
        return tensor, []
    axis, start = cut_along(index, node, tensor)
    length = None if axis is None else index.size(tensor, axis)
    if axis is None or length is None:
        return tensor, []
    reached, offset = [], 0
    for size, name in groups_along(index, node.input[0], axis):
        taken = min(offset + size, start + length) - max(offset, start)
        if taken > 0:
            inner = channel_groups(index, name, depth - 1)[1] if depth and taken == size else []
            reached += inner or [(taken, name)]
        offset += size
    return tensor, reached


def cut_along(index: GraphIndex, node: NodeProto, output: str) -> tuple[int | None, int]:
    """The axis that a Gather, Slice or Split cuts along, and the first entry of an output."""
    axis, starts = attribute(node, "axis", 0), list[int]()
    if node.op_type == "Split":
        before = node.output[: list(node.output).index(output)]
        sizes = [size for name in before if (size := index.size(name, axis)) is not None]
        starts = [sum(sizes)] if len(sizes) == len(before) else []
    elif node.op_type == "Gather":
        starts = index.constant(node.input[1]) or []
    else:
        entries = [index.constant(name) or [] for name in node.input[1:5]]
        if len(entries) > 2 and all(len(entry) == 1 for entry in entries):
            starts, axis = entries[0], entries[2][0]
    rank = len(index.shapes[node.input[0]])
    return (axis % rank, starts[0]) if rank and len(starts) == 1 else (None, 0)


def moved_inputs(node: NodeProto, output: str) -> list[str] | None:
    """The inputs whose elements a node moves to an output; None if it makes elements."""
    if node.op_type == "Concat":
        return list(node.input)
    if node.op_type == "TopK" and output in node.output[1:]:
        return None  # indices
    numbers = MOVES.get(node.op_type)
    if numbers is None:
        return None
    return [node.input[number] for number in numbers if number < len(node.input)]


def scores_of(index: GraphIndex, tensor: str) -> Activation | None:
    """What scores are; None if their makers are of several kinds, or unknown."""
    behind, parts = channel_groups(index, tensor)
    tensors = [name for _, name in parts] or [behind]
    kinds = {_score_kind(index, node) for name in tensors for node in makers(index, name)}
    return kinds.pop() if len(kinds) == 1 else None


def _score_kind(index: GraphIndex, node: NodeProto) -> Activation | None:
    match node.op_type:
        case "Sigmoid" | "HardSigmoid":
            return Activation.SIGMOID
        case "Softmax":
            return Activation.SOFTMAX
        case "Clip" | "Max" | "Min" | "ReduceMax" | "Sqrt":
            return scores_of(index, node.input[0])
        case "Mul":
            factors = [name for name in node.input if index.constant_tensor(name) is None]
            if {scores_of(index, name) for name in factors} == {Activation.SIGMOID}:
                return Activation.SIGMOID
    return Activation.LINEAR if is_linear(index, node) else None


def is_linear(index: GraphIndex, node: NodeProto | None) -> bool:
    """True if a node is a layer's output: a convolution or product, sums and multiples of such."""
    waiting, steps = [node], 0
    while waiting:
        node, steps = waiting.pop(), steps + 1
        if node is None or steps > MAX_STEPS:
            return False
        if layer_at(index, node) is not None:
            continue
        if node.op_type not in ARITHMETIC - {"Pow"}:
            return False
        inputs = [name for name in node.input if computed(index, name)]
        if not inputs or (len(inputs) > 1 and node.op_type not in {"Add", "Sub"}):
            return False
        for name in inputs:
            waiting.extend(makers(index, name) or [None])
    return True


def layer_at(index: GraphIndex, node: NodeProto) -> NodeProto | None:
    """The layer whose output a node gives; None if it computes anything else.

    One in integers is followed by the product with its scale, which depends on the picture, and
    by the sum with its bias.
    """
    if node.op_type == "Add":
        sums = [name for name in node.input if computed(index, name)]
        node = (index.producer(sums[0], "Mul") if len(sums) == 1 else None) or node
    if node.op_type == "Mul":
        factors = (index.producer(name, *INTEGER_LAYERS) for name in node.input)
        return next(filter(None, factors), None)
    return node if node.op_type in LEARNT else None


def _layers(index: GraphIndex, tensor: str) -> list[NodeProto]:
    steps = _steps(index, only_group(index, tensor))
    return [node for node in steps if node.op_type in LEARNT]


def layer_of(index: GraphIndex, tensor: str) -> str:
    """The operator of the layer whose output a tensor is made of; empty if there is none near."""
    layers = _layers(index, tensor)
    return next((node.op_type for node in layers if not _is_projection(index, node)), "")


def layers_of(index: GraphIndex, tensor: str) -> set[str]:
    """The outputs of all layers that a tensor is made of."""
    return {node.output[0] for node in _layers(index, tensor)}


def bins_of(index: GraphIndex, tensor: str) -> int | None:
    """Into how many bins each distance of boxes is distributed; None where it is not clear.

    One where it is not distributed.
    """
    steps = _steps(index, only_group(index, tensor))
    softmax = next((node for node in steps if node.op_type == "Softmax"), None)
    return 1 if softmax is None else shares_of(index, softmax)


def from_corners(index: GraphIndex, tensor: str) -> bool:
    """True if boxes are distances from the corners of cells, the first of which is at 0."""
    points = (index.array(node.input[0]) for node in _steps(index, tensor) if node.op_type == "Sub")
    return any(point is not None and point.size > 1 and point.min() == 0 for point in points)


def shares_of(index: GraphIndex, softmax: NodeProto) -> int | None:
    """How many shares a Softmax makes; None where it is not clear."""
    axis = attribute(softmax, "axis", -1)
    return index.size(softmax.output[0], axis) or index.size(softmax.input[0], axis)


def _steps(index: GraphIndex, tensor: str) -> Iterator[NodeProto]:
    """The nodes behind a tensor, nearest first, up to layers and logarithms."""

    def onward(node: NodeProto, name: str) -> Iterable[str]:
        quantises = node.op_type == "DynamicQuantizeLinear" and name == node.output[0]
        if node.op_type in LEARNT:
            ends = not _is_projection(index, node)
        else:
            ends = node.op_type in ENDS and not quantises
        inputs = list(node.input)
        if node.op_type in {"Slice", "Split"}:
            inputs = [part for _, part in channel_groups(index, name)[1]] or inputs
        return () if ends else [n for n in inputs if index.constant_tensor(n) is None]

    return (node for node, _ in index.behind_all([tensor], onward))


def _is_projection(index: GraphIndex, node: NodeProto) -> bool:
    """True if a layer only sums up a distribution's bins, or changes the format of boxes."""
    quantise = index.producer(node.input[0], "DynamicQuantizeLinear")
    below = {maker.op_type for maker in makers(index, (quantise or node).input[0])}
    return "Softmax" in below or to_corners(index, node)


def to_corners(index: GraphIndex, node: NodeProto) -> bool:
    """True if a node is the product that turns centre and size into corners."""
    matrix = index.array(node.input[1]) if node.op_type == "MatMul" else None
    return matrix is not None and matrix.shape == (4, 4) and np.allclose(matrix, TO_CORNERS)


def boxes_of(index: GraphIndex, tensor: str) -> Decoded | None:
    """How boxes are decoded, looking back from their columns; None if not recognised."""
    found = _decoded(index, tensor)
    return None if found is None else found._replace(fractions=_unit_of(index, tensor))


def _decoded(index: GraphIndex, tensor: str, joins: int = 2) -> Decoded | None:
    level = [tensor]
    for _ in range(DECODE_DEPTH):
        following = list[str]()
        for behind in level:
            name, parts = channel_groups(index, behind)
            if [size for size, _ in parts] == [2, 2]:
                return _of_halves(index, parts[0][1], parts[1][1])
            name = parts[0][1] if len(parts) == 1 else name
            node = index.producer(name)
            if node is None:
                continue
            if (found := _decoded_by(index, node)) is not None:
                return found
            if to_corners(index, node):
                inner = _decoded(index, node.input[0], joins)
                return None if inner is None else inner._replace(box_format=BoxFormat.XYXY)
            if node.op_type == "Concat" and len(node.input) > 1:
                return _decoded_alike(index, node, joins)
            # Scaling, reshaping and joining boxes that were decoded separately keep the format;
            # any other arithmetic changes it.
            scales = node.op_type in {"Mul", "Div"}
            following += node.input if scales else moved_inputs(node, name) or []
        level = list(dict.fromkeys(filter(None, following)))
    return None


def _decoded_alike(index: GraphIndex, join: NodeProto, joins: int) -> Decoded | None:
    """How the boxes are decoded that are joined, if all are in one way."""
    if not joins or len(join.input) > MAX_JOINED:
        return None
    # Constants fill up a number of rows.
    found = {_decoded(index, part, joins - 1) for part in join.input if computed(index, part)}
    return found.pop() if len(found) == 1 else None


def _unit(index: GraphIndex, node: NodeProto) -> bool | None:
    """True if a product or quotient makes fractions (True) or pixels (False) of boxes.

    Strides are small, or several; the sides of an input are large.
    """
    factors = [array for name in node.input if (array := index.array(name)) is not None]
    if not factors or not factors[0].size:
        return None
    least, most = float(np.min(factors[0])), float(np.max(factors[0]))
    if node.op_type == "Div":
        return True if least > MAX_FACTOR else None
    if least > MAX_FACTOR and factors[0].size <= 4:
        return False
    return True if 0 < most < 1 / MAX_FACTOR else None


MAX_FACTOR = 32.0  # the largest stride; the sides of an input are longer


def _decoded_by(index: GraphIndex, node: NodeProto) -> Decoded | None:
    if node.op_type == "Sigmoid":
        return Decoded(_by_sigmoid(index, node), BoxFormat.CXCYWH)
    if (layer := layer_at(index, node)) is not None and not _is_projection(index, layer):
        return Decoded(BoxDecode.LINEAR, BoxFormat.CXCYWH)
    return _joined_by(index, list(node.input)) if node.op_type == "Concat" else None


def decoded_from(index: GraphIndex, parts: list[str]) -> Decoded | None:
    """How boxes are decoded, from the tensors of their four columns."""
    found = _decoded(index, parts[0]) if len(parts) == 1 else _joined_by(index, parts)
    return None if found is None else found._replace(fractions=_unit_of(index, parts[0]))


def _by_sigmoid(index: GraphIndex, node: NodeProto) -> BoxDecode:
    inner = makers(index, node.input[0])
    linear = bool(inner) and all(is_linear(index, maker) for maker in inner)
    # Constants that differ from query to query are learnt references, once folded.
    added = [index.array(n) for maker in inner if maker.op_type == "Add" for n in maker.input]
    refers = any(a is not None and sum(side > 1 for side in a.shape) > 1 for a in added)
    return BoxDecode.SIGMOID if linear and not refers else BoxDecode.REFINED


def _joined_by(index: GraphIndex, names: list[str]) -> Decoded | None:
    made = [makers(index, name) for name in names]
    match [_kind(nodes) for nodes in made]:
        case ["Sub", "Add"] | ["Sub", "Sub", "Add", "Add"]:
            how = _around_a_centre(index, made[0][0], made[len(made) // 2][0])
            return Decoded(how or BoxDecode.DISTANCES, BoxFormat.XYXY)
        case ["Div" | "Mul", "Sub"] | ["Div" | "Mul", "Div" | "Mul", "Sub", "Sub"]:
            halved = {m.op_type for name in made[0][0].input for m in makers(index, name)}
            return Decoded(BoxDecode.DISTANCES, BoxFormat.CXCYWH) if "Add" in halved else None
    if len(names) == 2 and all(2 in index.shapes[name][1:] for name in names):
        return _of_halves(index, names[0], names[1])
    return None


def _kind(nodes: list[NodeProto]) -> str:
    """The operator of nodes that are all alike, as those of each scale are; else empty."""
    kinds = {node.op_type for node in nodes}
    return kinds.pop() if len(kinds) == 1 else ""


def _of_halves(index: GraphIndex, centre: str, size: str) -> Decoded | None:
    how = centre_and_size(index, centre, size)
    return None if how is None else Decoded(how, BoxFormat.CXCYWH)


def _unit_of(index: GraphIndex, tensor: str) -> bool | None:
    """True if the products and quotients behind boxes make fractions of them, False if pixels."""
    for _ in range(2 * DECODE_DEPTH):
        node = index.producer(tensor)
        if node is None:
            break
        scales = node.op_type in {"Div", "Mul"}
        if scales and (unit := _unit(index, node)) is not None:
            return unit
        scales |= to_corners(index, node)
        inputs = node.input if scales else moved_inputs(node, tensor) or []
        following = [name for name in inputs if computed(index, name)]
        if not following:
            break
        tensor = following[0]
    return None


def _around_a_centre(index: GraphIndex, low: NodeProto, high: NodeProto) -> BoxDecode | None:
    """How centre and size come about that two corners are made of; None if they are not.

    That is a centre less and plus half a size, in place of a point less and plus two distances.
    """
    centre, half = low.input[:2]
    others = [high.input[0], high.input[1]]
    if not _same(index, centre, others[0]):
        others.reverse()
    if not _same(index, centre, others[0]) or not _same(index, half, others[1]):
        return None
    size = half
    while (node := index.producer(size, "Mul", "Div")) is not None:
        factors = [name for name in node.input if index.array(name) is None]
        if len(factors) != 1:
            break
        size = factors[0]
    by = makers(index, only_group(index, centre))
    if by and all(node.op_type == "Sigmoid" for node in by):
        return _by_sigmoid(index, by[0])
    return centre_and_size(index, only_group(index, centre), only_group(index, size))


def _same(index: GraphIndex, one: str, other: str, depth: int = 8) -> bool:
    """True if two tensors are computed in the same way from the same tensors."""
    array, node, twin = index.array(one), index.producer(one), index.producer(other)
    if array is not None:
        constant = index.array(other)
        return constant is not None and np.array_equal(array, constant)
    if one == other or node is None or twin is None:
        return one == other
    if depth == 0 or len(node.output) > 1 or len(node.input) != len(twin.input):
        return False
    alike = node.op_type == twin.op_type and sorted(map(str, node.attribute)) == sorted(
        map(str, twin.attribute)
    )
    pairs = zip(node.input, twin.input, strict=True)
    return alike and all(_same(index, a, b, depth - 1) for a, b in pairs)


def centre_and_size(index: GraphIndex, centre: str, size: str) -> BoxDecode | None:
    """How boxes are decoded whose centre and size come about separately."""
    if {node.op_type for node in makers(index, centre)} & {"Clip", "Max", "Min"}:
        return None  # they are two sides of a box, which end at the picture's
    centre_by, size_by = ({node.op_type for node in _steps(index, t)} for t in (centre, size))
    if "Exp" in size_by:
        return BoxDecode.GRID if "Sigmoid" in centre_by else BoxDecode.EXPONENTIAL
    if "Sigmoid" in centre_by and "Sigmoid" in size_by and "Softmax" not in centre_by:
        return BoxDecode.GRID
    return None


def groups_along(index: GraphIndex, head: str, axis: int) -> ChannelGroups:
    """The parts that are joined along an axis: number of channels and tensor of each.

    Looks behind transposes, reshapes that keep the channels apart, and the join of several scales,
    whose first then stands for all.
    """
    channels = index.size(head, axis)
    for _ in range(DECODE_DEPTH):
        node = index.producer(head)
        if node is None or channels is None:
            return []
        dims, source = index.shapes[head], node.input[0] if node.input else ""
        if node.op_type == "Concat":
            joined = attribute(node, "axis", 0)
            if joined == axis or (dims and joined % len(dims) == axis):
                return _parts(index, node, axis, channels)
        elif node.op_type == "Transpose":
            permutation = integers(node, "perm")
            if axis >= len(permutation):
                return []
            axis = permutation[axis]
        elif node.op_type in {"Flatten", "Reshape", "Squeeze", "Unsqueeze"}:
            moved = _kept_axis(index.shapes[source], len(dims), axis, channels)
            if moved is None:
                return []
            axis = moved
        elif node.op_type not in {"Mul", "Div"}:
            return []
        head = source
    return []


def _parts(index: GraphIndex, join: NodeProto, axis: int, channels: int) -> ChannelGroups:
    """What a Concat joins: number of channels and tensor of each; empty if it is not clear."""
    sizes = [index.size(name, axis) or 0 for name in join.input]
    if sum(sizes) != channels:
        return []
    found = []
    for size, name in zip(sizes, join.input, strict=True):
        inner, nested = index.producer(name, "Concat"), ChannelGroups()
        if inner is not None and len(inner.input) > 1:
            own = attribute(inner, "axis", 0)
            rank = len(index.shapes[name])  # 0 where it is not known
            if own < 0 and rank:
                own += rank
            nested = _parts(index, inner, axis, size) if own == axis else []
        found += nested or [(size, name)]
    return found


def _kept_axis(before: list[int | str | None], rank: int, axis: int, channels: int) -> int | None:
    """Where the channels were before a reshape: as far from the front, or from the end."""
    if not before:
        return axis  # unknown; the join that is looked for has known sizes
    from_end = len(before) - (rank - axis) if rank else len(before) - 1
    places = [from_end, *([axis] if axis <= 1 else [])]
    if axis != rank - 1:  # the last stays the last, if it may
        places.reverse()
    kept = (one for one in places if 0 <= one < len(before) and before[one] == channels)
    return next(kept, None)
