"""What makes a tensor of a head: how its boxes are decoded, and what its scores are.

Exporters and simplifiers rename, reorder and reshape; what a head computes stays. So a tensor is
followed back through everything that only moves its elements to the nodes that make them.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
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

ChannelGroups = list[tuple[int, str]]
"""What a tensor is joined from: number of channels and name of each."""


def makers(index: GraphIndex, tensor: str) -> list[NodeProto]:
    """The nodes that make a tensor's elements, behind all that only moves them."""

    def onward(node: NodeProto, name: str) -> Iterable[str]:
        return moved_inputs(node, name) or ()

    behind = index.behind_all([tensor], onward)
    return [node for node, name in behind if moved_inputs(node, name) is None]


def computed(index: GraphIndex, tensor: str) -> bool:
    """True if some of a tensor's elements are not constants."""
    return any(node.op_type not in CONSTANTS for node in makers(index, tensor))


def only_group(index: GraphIndex, tensor: str) -> str:
    """The tensor that some channels were joined from, where they are cut out again."""
    behind, groups = channel_groups(index, tensor)
    if len(groups) == 1:
        _, behind = groups[0]
    return behind


def channel_groups(
    index: GraphIndex, tensor: str, depth: int = DECODE_DEPTH
) -> tuple[str, ChannelGroups]:
    """The tensors that channels were joined from, where some are cut out again.

    The first value is the tensor that cuts them out, or the one behind what only moves axes.
    """
    node = index.producer(tensor, "Transpose", "Unsqueeze", "Squeeze")
    while node is not None:
        tensor = node.input[0]
        node = index.producer(tensor, "Transpose", "Unsqueeze", "Squeeze")
    tensor = index.computed_as(tensor)
    cut = index.producer(tensor, "Slice", "Split")
    if cut is None or not index.shapes[tensor]:
        return tensor, []
    axis, start = cut_along(index, cut, tensor)
    length = None if axis is None else index.size(tensor, axis)
    if axis is None or length is None:
        return tensor, []

    stop = start + length
    groups: ChannelGroups = []
    group_start = 0
    for size, name in groups_along(index, cut.input[0], axis):
        group_stop = group_start + size
        overlap = min(group_stop, stop) - max(group_start, start)
        if overlap > 0:
            inner: ChannelGroups = []
            if depth and overlap == size:
                _, inner = channel_groups(index, name, depth - 1)
            groups += inner or [(overlap, name)]
        group_start = group_stop
    return tensor, groups


def cut_along(index: GraphIndex, node: NodeProto, output: str) -> tuple[int | None, int]:
    """The axis that a Gather, Slice or Split cuts along, and the first entry of an output."""
    axis = attribute(node, "axis", 0)
    starts: list[int] = []
    if node.op_type == "Split":
        outputs_before = node.output[: list(node.output).index(output)]
        sizes = [index.size(name, axis) for name in outputs_before]
        if None not in sizes:
            starts = [sum(size for size in sizes if size is not None)]
    elif node.op_type == "Gather":
        starts = index.constant(node.input[1]) or []
    else:  # data, starts, ends, axes, steps
        entries = [index.constant(name) or [] for name in node.input[1:5]]
        if len(entries) > 2 and all(len(entry) == 1 for entry in entries):
            starts = entries[0]
            axis = entries[2][0]
    rank = len(index.shapes[node.input[0]])
    if not rank or len(starts) != 1:
        return None, 0
    return axis % rank, starts[0]


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
    behind, groups = channel_groups(index, tensor)
    tensors = [name for _, name in groups] or [behind]
    activations = set()
    for name in tensors:
        for node in makers(index, name):
            activations.add(_activation_of(index, node))
    return activations.pop() if len(activations) == 1 else None


def _activation_of(index: GraphIndex, node: NodeProto) -> Activation | None:
    """What the output of a node is if it is scores; None if that is unknown."""
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
    waiting = [node]
    steps = 0
    while waiting:
        node = waiting.pop()
        steps += 1
        if node is None or steps > MAX_STEPS:
            return False
        if layer_at(index, node) is not None:
            continue
        if node.op_type not in ARITHMETIC - {"Pow"}:
            return False
        inputs = [name for name in node.input if computed(index, name)]
        is_sum = node.op_type in {"Add", "Sub"}
        if not inputs or (len(inputs) > 1 and not is_sum):
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
        terms = [name for name in node.input if computed(index, name)]
        if len(terms) == 1:
            node = index.producer(terms[0], "Mul") or node
    if node.op_type == "Mul":
        for name in node.input:
            layer = index.producer(name, *INTEGER_LAYERS)
            if layer is not None:
                return layer
        return None
    return node if node.op_type in LEARNT else None


def _layers(index: GraphIndex, tensor: str) -> list[NodeProto]:
    steps = _steps(index, only_group(index, tensor))
    return [node for node in steps if node.op_type in LEARNT]


def layer_of(index: GraphIndex, tensor: str) -> str:
    """The operator of the layer whose output a tensor is made of; empty if there is none near."""
    for layer in _layers(index, tensor):
        if not _is_projection(index, layer):
            return layer.op_type
    return ""


def layers_of(index: GraphIndex, tensor: str) -> set[str]:
    """The outputs of all layers that a tensor is made of."""
    return {node.output[0] for node in _layers(index, tensor)}


def bins_of(index: GraphIndex, tensor: str) -> int | None:
    """Into how many bins each distance of boxes is distributed; None where it is not clear.

    One where it is not distributed.
    """
    for node in _steps(index, only_group(index, tensor)):
        if node.op_type == "Softmax":
            return shares_of(index, node)
    return 1


def from_corners(index: GraphIndex, tensor: str) -> bool:
    """True if boxes are distances from the corners of cells, the first of which is at 0."""
    for node in _steps(index, tensor):
        if node.op_type == "Sub":
            points = index.array(node.input[0])
            if points is not None and points.size > 1 and points.min() == 0:
                return True
    return False


def shares_of(index: GraphIndex, softmax: NodeProto) -> int | None:
    """How many shares a Softmax makes; None where it is not clear."""
    axis = attribute(softmax, "axis", -1)
    return index.size(softmax.output[0], axis) or index.size(softmax.input[0], axis)


def _steps(index: GraphIndex, tensor: str) -> Iterator[NodeProto]:
    """The nodes behind a tensor, nearest first, up to layers and logarithms."""

    def onward(node: NodeProto, name: str) -> Iterable[str]:
        if _ends_steps(index, node, name):
            return ()
        inputs = list(node.input)
        if node.op_type in {"Slice", "Split"}:
            _, groups = channel_groups(index, name)
            inputs = [group for _, group in groups] or inputs
        return [name for name in inputs if index.constant_tensor(name) is None]

    for node, _ in index.behind_all([tensor], onward):
        yield node


def _ends_steps(index: GraphIndex, node: NodeProto, output: str) -> bool:
    """True if the search for the source of an output does not go beyond its node."""
    if node.op_type in LEARNT:
        return not _is_projection(index, node)
    is_quantised = node.op_type == "DynamicQuantizeLinear" and output == node.output[0]
    return node.op_type in ENDS and not is_quantised


def _is_projection(index: GraphIndex, node: NodeProto) -> bool:
    """True if a layer only sums up a distribution's bins, or changes the format of boxes."""
    source = node
    quantise = index.producer(node.input[0], "DynamicQuantizeLinear")
    if quantise is not None:
        source = quantise
    operators = {maker.op_type for maker in makers(index, source.input[0])}
    return "Softmax" in operators or to_corners(index, node)


def to_corners(index: GraphIndex, node: NodeProto) -> bool:
    """True if a node is the product that turns centre and size into corners."""
    if node.op_type != "MatMul":
        return False
    matrix = index.array(node.input[1])
    return matrix is not None and matrix.shape == (4, 4) and np.allclose(matrix, TO_CORNERS)


def boxes_of(index: GraphIndex, tensor: str) -> Decoded | None:
    """How boxes are decoded, looking back from their columns; None if not recognised."""
    decoded = _decoded(index, tensor)
    if decoded is None:
        return None
    return decoded._replace(fractions=_unit_of(index, tensor))


def _decoded(index: GraphIndex, tensor: str, joins: int = 2) -> Decoded | None:
    """How boxes are decoded, by the nearest nodes that tell; in `joins` levels of joined boxes."""
    level = [tensor]
    for _ in range(DECODE_DEPTH):
        next_level: list[str] = []
        for behind in level:
            name, groups = channel_groups(index, behind)
            if [size for size, _ in groups] == [2, 2]:
                (_, centre), (_, size_tensor) = groups
                return _of_halves(index, centre, size_tensor)
            if len(groups) == 1:
                _, name = groups[0]
            node = index.producer(name)
            if node is None:
                continue
            decoded = _decoded_by(index, node)
            if decoded is not None:
                return decoded
            if to_corners(index, node):
                inner = _decoded(index, node.input[0], joins)
                return None if inner is None else inner._replace(box_format=BoxFormat.XYXY)
            if node.op_type == "Concat" and len(node.input) > 1:
                return _decoded_alike(index, node, joins)
            # Scaling, reshaping and joining boxes that were decoded separately keep the format;
            # any other arithmetic changes it.
            if node.op_type in {"Mul", "Div"}:
                next_level += node.input
            else:
                next_level += moved_inputs(node, name) or []
        level = [name for name in dict.fromkeys(next_level) if name]
    return None


def _decoded_alike(index: GraphIndex, join: NodeProto, joins: int) -> Decoded | None:
    """How the boxes are decoded that are joined, if all are in one way."""
    if not joins or len(join.input) > MAX_JOINED:
        return None
    decodes = set()
    for name in join.input:
        if computed(index, name):  # constants fill up a number of boxes
            decodes.add(_decoded(index, name, joins - 1))
    return decodes.pop() if len(decodes) == 1 else None


def _unit(index: GraphIndex, node: NodeProto) -> bool | None:
    """True if a product or quotient makes fractions of boxes, False if pixels.

    Strides are small, or several; height and width of an input are large.
    """
    for name in node.input:
        factor = index.array(name)
        if factor is not None:
            return _unit_of_factor(factor, divides=node.op_type == "Div")
    return None


def _unit_of_factor(factor: npt.NDArray[Any], *, divides: bool) -> bool | None:
    """True if a factor, or a divisor, makes fractions of pixels, False if the other way round."""
    if not factor.size:
        return None
    lowest = float(np.min(factor))
    highest = float(np.max(factor))
    if divides:
        return True if lowest > MAX_FACTOR else None
    if lowest > MAX_FACTOR and factor.size <= 4:
        return False
    return True if 0 < highest < 1 / MAX_FACTOR else None


MAX_FACTOR = 32.0  # the largest stride; height and width of an input are larger


def _decoded_by(index: GraphIndex, node: NodeProto) -> Decoded | None:
    """How boxes are decoded if this node ends their decode; None if it does not."""
    if node.op_type == "Sigmoid":
        return Decoded(_by_sigmoid(index, node), BoxFormat.CXCYWH)
    layer = layer_at(index, node)
    if layer is not None and not _is_projection(index, layer):
        return Decoded(BoxDecode.LINEAR, BoxFormat.CXCYWH)
    if node.op_type == "Concat":
        return _joined_by(index, list(node.input))
    return None


def decoded_from(index: GraphIndex, tensors: list[str]) -> Decoded | None:
    """How boxes are decoded, from the tensors of their four columns."""
    if len(tensors) == 1:
        decoded = _decoded(index, tensors[0])
    else:
        decoded = _joined_by(index, tensors)
    if decoded is None:
        return None
    return decoded._replace(fractions=_unit_of(index, tensors[0]))


def _by_sigmoid(index: GraphIndex, node: NodeProto) -> BoxDecode:
    """Whether a sigmoid is of a layer's output alone, or of that and an earlier box."""
    inputs = makers(index, node.input[0])
    if not inputs or not all(is_linear(index, maker) for maker in inputs):
        return BoxDecode.REFINED
    for maker in inputs:
        terms = maker.input if maker.op_type == "Add" else ()
        for name in terms:
            # Constants that differ from query to query are learnt references, once folded.
            constant = index.array(name)
            if constant is not None and sum(length > 1 for length in constant.shape) > 1:
                return BoxDecode.REFINED
    return BoxDecode.SIGMOID


def _joined_by(index: GraphIndex, names: list[str]) -> Decoded | None:
    """How boxes are decoded whose columns, or pairs of columns, are joined."""
    column_makers = [makers(index, name) for name in names]
    match [_common_operator(nodes) for nodes in column_makers]:
        case ["Sub", "Add"] | ["Sub", "Sub", "Add", "Add"]:
            low = column_makers[0][0]
            high = column_makers[len(names) // 2][0]
            method = _around_a_centre(index, low, high) or BoxDecode.DISTANCES
            return Decoded(method, BoxFormat.XYXY)
        case ["Div" | "Mul", "Sub"] | ["Div" | "Mul", "Div" | "Mul", "Sub", "Sub"]:
            halved_operators = set()
            for name in column_makers[0][0].input:
                halved_operators |= {node.op_type for node in makers(index, name)}
            if "Add" in halved_operators:
                return Decoded(BoxDecode.DISTANCES, BoxFormat.CXCYWH)
            return None
    if len(names) == 2 and all(2 in index.shapes[name][1:] for name in names):
        return _of_halves(index, names[0], names[1])
    return None


def _common_operator(nodes: list[NodeProto]) -> str:
    """The operator of nodes that are all alike, as those of each scale are; else empty."""
    operators = {node.op_type for node in nodes}
    return operators.pop() if len(operators) == 1 else ""


def _of_halves(index: GraphIndex, centre: str, size: str) -> Decoded | None:
    method = centre_and_size(index, centre, size)
    return None if method is None else Decoded(method, BoxFormat.CXCYWH)


def _unit_of(index: GraphIndex, tensor: str) -> bool | None:
    """True if the products and quotients behind boxes make fractions of them, False if pixels."""
    for _ in range(2 * DECODE_DEPTH):
        node = index.producer(tensor)
        if node is None:
            break
        is_scaling = node.op_type in {"Div", "Mul"}
        if is_scaling:
            unit = _unit(index, node)
            if unit is not None:
                return unit
        inputs = list(node.input)
        if not is_scaling and not to_corners(index, node):
            inputs = moved_inputs(node, tensor) or []
        computed_inputs = [name for name in inputs if computed(index, name)]
        if not computed_inputs:
            break
        tensor = computed_inputs[0]
    return None


def _around_a_centre(index: GraphIndex, low: NodeProto, high: NodeProto) -> BoxDecode | None:
    """How centre and size come about that two corners are made of; None if they are not.

    That is a centre less and plus half a size, in place of a point less and plus two distances.
    """
    centre, half_size = low.input[:2]
    first, second = high.input[:2]
    if not _same(index, centre, first):
        first, second = second, first
    if not _same(index, centre, first) or not _same(index, half_size, second):
        return None
    size = half_size
    product = index.producer(size, "Mul", "Div")
    while product is not None:
        factors = [name for name in product.input if index.array(name) is None]
        if len(factors) != 1:
            break
        size = factors[0]
        product = index.producer(size, "Mul", "Div")
    centre = only_group(index, centre)
    centre_makers = makers(index, centre)
    if _common_operator(centre_makers) == "Sigmoid":
        return _by_sigmoid(index, centre_makers[0])
    return centre_and_size(index, centre, only_group(index, size))


def _same(index: GraphIndex, tensor: str, other: str, depth: int = 8) -> bool:
    """True if two tensors are computed in the same way from the same tensors."""
    array = index.array(tensor)
    if array is not None:
        other_array = index.array(other)
        return other_array is not None and np.array_equal(array, other_array)
    node = index.producer(tensor)
    other_node = index.producer(other)
    if tensor == other or node is None or other_node is None:
        return tensor == other
    if depth == 0 or len(node.output) > 1 or len(node.input) != len(other_node.input):
        return False
    if node.op_type != other_node.op_type:
        return False
    attributes = sorted(str(entry) for entry in node.attribute)
    if attributes != sorted(str(entry) for entry in other_node.attribute):
        return False
    pairs = zip(node.input, other_node.input, strict=True)
    return all(_same(index, name, other_name, depth - 1) for name, other_name in pairs)


def centre_and_size(index: GraphIndex, centre: str, size: str) -> BoxDecode | None:
    """How boxes are decoded whose centre and size come about separately."""
    if {node.op_type for node in makers(index, centre)} & {"Clip", "Max", "Min"}:
        return None  # they are two edges of a box, which end at the picture's
    centre_operators = {node.op_type for node in _steps(index, centre)}
    size_operators = {node.op_type for node in _steps(index, size)}
    if "Exp" in size_operators:
        return BoxDecode.GRID if "Sigmoid" in centre_operators else BoxDecode.EXPONENTIAL
    are_sigmoids = "Sigmoid" in centre_operators and "Sigmoid" in size_operators
    if are_sigmoids and "Softmax" not in centre_operators:
        return BoxDecode.GRID
    return None


def groups_along(index: GraphIndex, head: str, axis: int) -> ChannelGroups:
    """The groups of channels that are joined along an axis; empty if that is not clear.

    Looks behind transposes, reshapes that keep the channels apart, and the join of several scales,
    whose first then stands for all.
    """
    channels = index.size(head, axis)
    for _ in range(DECODE_DEPTH):
        node = index.producer(head)
        if node is None or channels is None:
            return []
        dims = index.shapes[head]
        source = node.input[0] if node.input else ""
        if node.op_type == "Concat":
            join_axis = attribute(node, "axis", 0)
            if join_axis == axis or (dims and join_axis % len(dims) == axis):
                return _groups_of(index, node, axis, channels)
        elif node.op_type == "Transpose":
            permutation = integers(node, "perm")
            if axis >= len(permutation):
                return []
            axis = permutation[axis]
        elif node.op_type in {"Flatten", "Reshape", "Squeeze", "Unsqueeze"}:
            source_axis = _axis_before(index.shapes[source], len(dims), axis, channels)
            if source_axis is None:
                return []
            axis = source_axis
        elif node.op_type not in {"Mul", "Div"}:
            return []
        head = source
    return []


def _groups_of(index: GraphIndex, join: NodeProto, axis: int, channels: int) -> ChannelGroups:
    """The groups of channels that a Concat joins; empty if that is not clear."""
    sizes = [index.size(name, axis) or 0 for name in join.input]
    if sum(sizes) != channels:
        return []
    groups: ChannelGroups = []
    for size, name in zip(sizes, join.input, strict=True):
        nested: ChannelGroups = []
        inner = index.producer(name, "Concat")
        if inner is not None and len(inner.input) > 1:
            inner_axis = attribute(inner, "axis", 0)
            rank = len(index.shapes[name])  # 0 where it is not known
            if inner_axis < 0 and rank:
                inner_axis += rank
            if inner_axis == axis:
                nested = _groups_of(index, inner, axis, size)
        groups += nested or [(size, name)]
    return groups


def _axis_before(dims: list[int | str | None], rank: int, axis: int, channels: int) -> int | None:
    """Where the channels were before a reshape: as far from the front, or from the end."""
    if not dims:
        return axis  # unknown; the join that is looked for has known sizes
    from_end = len(dims) - (rank - axis) if rank else len(dims) - 1
    candidates = [from_end]
    if axis <= 1:
        candidates.append(axis)
    if axis != rank - 1:  # the last stays the last, if it may
        candidates.reverse()
    for candidate in candidates:
        if 0 <= candidate < len(dims) and dims[candidate] == channels:
            return candidate
    return None
