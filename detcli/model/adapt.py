"""Adds the nodes that give any detector one input and one head.

The graph that runs takes pictures `[B, 3, H, W]` and ends in a head: boxes and then scores,
`[B, 4 + C, N]` or `[B, N, 4 + C]`; or, where the graph selects detections itself, rows
`[B, K, 6]` of x1, y1, x2, y2, score, class id. What a file has instead is brought to that form by
nodes before and behind it, so that every device and engine runs the same graph.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import ModelProto, helper

from detcli.core import frozen
from detcli.model.contract import Layout, ScoreForm
from detcli.model.editing import (
    add_constant,
    copied,
    drop_unused,
    opset,
    rename,
    replace_nodes,
    tensor_names,
    unused_name,
)
from detcli.model.graph import GraphIndex
from detcli.model.heads import (
    SCORES,
    Activation,
    ChannelRange,
    ChannelSlice,
    GridHead,
    Head,
    HeadPart,
    Offset,
)
from detcli.model.inputs import ImageInput, OtherInput, Role

HEAD = "detcli/head"  # no exporter makes that name
FLOAT = onnx.TensorProto.FLOAT


@frozen
class Adaptation:
    """What has to be added to a graph."""

    head: Head
    image: ImageInput
    others: tuple[OtherInput, ...]
    # scores become shares of all classes, and the one of this index, 0 or -1, is dropped
    no_object: int | None
    swapped: bool  # corners of rows are y1, x1, y2, x2

    @property
    def is_needed(self) -> bool:
        """True if the graph needs more than to be cut at its head."""
        return bool(self.others) or self.image.is_unusual or not self.is_joined

    @property
    def is_joined(self) -> bool:
        """True if the head is a tensor of the graph."""
        head = self.head
        one = len(head.tensors) == 1 and head.layout not in {Layout.ROWS, Layout.SCALES}
        return one and not (head.objectness or head.has_more) and self.no_object is None

    @property
    def made(self) -> tuple[str, tuple[str, ...]]:
        """The head in the graph that runs, and what it is made of, if it is none of the file's."""
        tensors = self.head.tensors
        return (HEAD, tensors) if self.is_needed else (tensors[0], ())

    @property
    def score_form(self) -> ScoreForm:
        """What the score rows of the head that is made are."""
        raw = self.head.scores_are is Activation.LINEAR and self.no_object is None
        return ScoreForm.LOGITS if raw else ScoreForm.FINAL

    @property
    def anchors_first(self) -> bool:
        """True if the head that is made is `[B, N, 4 + C]`."""
        made = self.no_object is not None or self.head.layout is Layout.SCALES
        return self.head.anchors_first or made


def adapt(model: ModelProto, plan: Adaptation) -> ModelProto:
    """Cut a graph at its head, and add the nodes that a plan asks for."""
    adapted = copied(model)
    if plan.head.takes_any_size:
        free(adapted, plan.image.name)
    add = _Builder(adapted)
    rows = plan.head.layout is Layout.ROWS
    made = _rows(add, plan) if rows else _boxes_and_scores(add, plan)
    output = helper.make_tensor_value_info(HEAD, add.dtype(made), None)
    add("Identity", made, output=HEAD)
    del adapted.graph.output[:]
    adapted.graph.output.append(output)
    _feed(add, plan)
    drop_unused(adapted.graph)
    return onnx.shape_inference.infer_shapes(adapted)


def free(model: ModelProto, image: str) -> None:
    """Let a graph take any pictures, in place of the number and size that it was traced with."""
    del model.graph.value_info[:]
    for value in model.graph.input:
        if value.name == image:
            dims = value.type.tensor_type.shape.dim
            for number, name in ((0, "batch"), (2, "height"), (3, "width")):
                dims[number].dim_param = name


def with_one_input(model: ModelProto, plan: Adaptation) -> ModelProto:
    """Let a graph take `[B, 3, H, W]` in floating point as its only input."""
    adapted = copied(model)
    _feed(_Builder(adapted), plan)
    return adapted


class _Builder:
    """Adds nodes to the end of a graph; each call adds one, and returns the name of its output."""

    def __init__(self, model: ModelProto) -> None:
        self.graph = model.graph
        self.index = GraphIndex(model.graph)
        self._types = dict(self.index.types)
        self._names = tensor_names(model.graph)
        self._opset = opset(model)

    def __call__(
        self,
        operator: str,
        *inputs: str | Sequence[int],
        output: str = "",
        **attributes: Any,  # noqa: ANN401 - as onnx has it
    ) -> str:
        """Add a node; whole numbers among its inputs become constants."""
        names = [one if isinstance(one, str) else self.constant(one) for one in inputs]
        name = output or self.unused(operator.lower())
        self.graph.node.append(helper.make_node(operator, names, [name], **attributes))
        target = attributes.get("to") if operator == "Cast" else self._types.get(names[0])
        self._types[name] = target or FLOAT
        return name

    def unused(self, wanted: str) -> str:
        return unused_name(self._names, f"detcli_{wanted}")

    def constant(self, value: npt.ArrayLike, dtype: npt.DTypeLike = np.int64) -> str:
        name = add_constant(self.graph, self.unused("constant"), np.asarray(value, dtype))
        self._types[name] = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return name

    def like(self, value: npt.ArrayLike, tensor: str) -> str:
        """A constant of a tensor's type."""
        return self.constant(value, helper.tensor_dtype_to_np_dtype(self.dtype(tensor)))

    def dtype(self, tensor: str) -> int:
        return self._types.get(tensor) or FLOAT

    def cast(self, tensor: str, dtype: int) -> str:
        return tensor if self.dtype(tensor) == dtype else self("Cast", tensor, to=dtype)

    def swapped(self, tensor: str) -> str:
        """A tensor with its last two of three axes swapped."""
        return self("Transpose", tensor, perm=[0, 2, 1])

    def cut(self, tensor: str, start: int, stop: int | None, axis: int) -> str:
        stop = np.iinfo(np.int64).max if stop is None else stop
        if self._opset < 10:
            return self("Slice", tensor, starts=[start], ends=[stop], axes=[axis])
        return self("Slice", tensor, [start], [stop], [axis])

    def columns(self, piece: ChannelRange, axis: int) -> str:
        """The channels of a tensor that a piece names."""
        if (piece.start, piece.stop) == (0, None):
            return piece.tensor
        return self.cut(piece.tensor, piece.start, piece.stop, axis)


def _boxes_and_scores(add: _Builder, plan: Adaptation) -> str:
    """A head `[B, 4 + C, N]` or `[B, N, 4 + C]`, decoded as far as boxes and scores are not."""
    head = plan.head
    if plan.is_joined:
        return head.tensors[0]
    axis = 2 if head.anchors_first else 1
    if head.grid is not None and head.layout is Layout.SCALES:
        boxes, scores = _decoded_grid(add, head.grid, plan.image)
    else:
        boxes, scores = (add.columns(pieces[0], axis) for pieces in (head.boxes, head.scores))
    if head.scores_transposed:
        scores = add.swapped(scores)
    if head.objectness:
        objectness = add.cut(scores, 0, 1, axis)
        scores = add("Mul", add.cut(scores, 1, None, axis), objectness)
    if not head.anchors_first and plan.anchors_first:
        boxes, scores, axis = add.swapped(boxes), add.swapped(scores), 2
    if plan.no_object is not None:
        if head.scores_are is Activation.LINEAR:
            scores = add("Softmax", scores, axis=axis)
        start, stop = (1, None) if plan.no_object == 0 else (0, -1)
        scores = add.cut(scores, start, stop, axis)
    if add.dtype(boxes) != add.dtype(scores):  # boxes in float16 are half pixels
        boxes, scores = add.cast(boxes, FLOAT), add.cast(scores, FLOAT)
    return add("Concat", boxes, scores, axis=axis)


def _decoded_grid(add: _Builder, grid: GridHead, image: ImageInput) -> tuple[str, str]:
    """Boxes `[B, N, 4]` in pixels and scores `[B, N, C]` of cells, in float32."""
    found: dict[HeadPart, str] = {
        part: add.cast(add("Concat", *(_of_slice(add, one) for one in pieces), axis=1), FLOAT)
        for part, pieces in grid.parts.items()
        if part is not HeadPart.POINTS
    }
    numbers = found.get(HeadPart.BOX) or add(
        "Concat", found[HeadPart.CENTRE], found[HeadPart.SIZE], axis=2
    )
    if grid.spec.rows_first:
        numbers = add("Gather", numbers, [1, 0, 3, 2], axis=2)
    anchors = _anchors(add, grid, image)
    if grid.spec.offset is Offset.DISTANCES:
        boxes = _from_distances(add, numbers, grid.parts[HeadPart.BOX][0].width // 4, anchors)
    else:
        boxes = _from_offsets(add, numbers, grid, anchors, image)
    return boxes, _scores_of_grid(add, found, grid)


def _scores_of_grid(add: _Builder, found: dict[HeadPart, str], grid: GridHead) -> str:
    """Scores: of the classes, or of these and the objectness to some powers."""
    spec = grid.spec
    for part in found.keys() & SCORES:
        if grid.parts[part][0].activation is Activation.LINEAR:
            if spec.softmax and part is HeadPart.CLASSES:
                found[part] = add("Softmax", found[part], axis=2)
            elif HeadPart.OBJECTNESS in found:
                found[part] = add("Sigmoid", found[part])
    scores = found.get(HeadPart.CLASSES) or found[HeadPart.PAIR]
    if HeadPart.OBJECTNESS not in found:
        return scores
    factors = [
        one if power == 1 else add("Pow", one, add.constant(power, np.float32))
        for one, power in zip((found[HeadPart.OBJECTNESS], scores), spec.powers, strict=True)
    ]
    return add("Mul", *factors)


def _from_offsets(
    add: _Builder, numbers: str, grid: GridHead, anchors: str, image: ImageInput
) -> str:
    """Centre and size, from what a family's layers give for them."""
    centre, size = add.cut(numbers, 0, 2, 2), add.cut(numbers, 2, 4, 2)
    middle, anchor_size, stride = (add.cut(anchors, start, start + 2, 2) for start in (0, 2, 4))

    def times(tensor: str, factor: float) -> str:
        return add("Mul", tensor, add.constant(factor, np.float32)) if factor != 1 else tensor

    match grid.spec.offset:
        case Offset.EXPONENTIAL:
            variances = grid.spec.variances
            centre = add("Mul", times(centre, variances[0]), anchor_size)
            size = add("Mul", add("Exp", times(size, variances[1])), anchor_size)
        case Offset.SIGMOID:
            if grid.parts[HeadPart.BOX][0].activation is Activation.LINEAR:
                centre, size = add("Sigmoid", centre), add("Sigmoid", size)
            moved = add("Sub", times(centre, 2), add.constant(0.5, np.float32))
            doubled = times(size, 2)
            centre = add("Mul", moved, stride)
            size = add("Mul", add("Mul", doubled, doubled), anchor_size)
        case Offset.TANH:
            whole = add("Cast", add("Gather", _input_size(add, image), [1, 0], axis=0), to=FLOAT)
            centre = add("Mul", add("Tanh", centre), stride)
            size = add("Mul", add("Sigmoid", size), whole)
    return add("Concat", add("Add", middle, centre), size, axis=2)


def _of_slice(add: _Builder, channels: ChannelSlice) -> str:
    """A part of some grid as `[B, N, width]`."""
    tensor = add.cut(channels.tensor, channels.start, channels.stop, channels.axis)
    batch = 0 if channels.rank > 2 else 1
    if channels.axis == 1 and channels.rank > 2:
        tensor = add("Reshape", tensor, [batch, channels.anchors, channels.width, -1])
        tensor = add("Transpose", tensor, perm=[0, 3, 1, 2])
    else:
        tensor = add("Reshape", tensor, [batch, -1, channels.anchors, channels.width])
    if channels.repeated > 1:
        tensor = add("Tile", tensor, [1, 1, channels.repeated, 1])
    return add("Reshape", tensor, [0, -1, channels.width])


def _from_distances(add: _Builder, distances: str, bins: int, anchors: str) -> str:
    """Corners, from distances `[B, N, 4 * bins]`: each the mean of its bins, weighted by shares."""
    if bins > 1:
        shares = add("Softmax", add("Reshape", distances, [0, -1, 4, bins]), axis=3)
        distances = add("MatMul", shares, add.like(np.arange(bins).reshape(bins, 1), shares))
        distances = add("Reshape", distances, [0, -1, 4])
    point, stride = add.cut(anchors, 0, 2, 2), add.cut(anchors, 4, 6, 2)
    low = add("Sub", point, add("Mul", add.cut(distances, 0, 2, 2), stride))
    high = add("Add", point, add("Mul", add.cut(distances, 2, 4, 2), stride))
    return add("Concat", low, high, axis=2)


def _anchors(add: _Builder, grid: GridHead, image: ImageInput) -> str:
    """Centre, size and stride of all anchors, x before y, in pixels: `[1, N, 6]`."""
    scales = []
    for scale, stride in enumerate(grid.strides):
        share, pixels = grid.spec.centre
        steps, most = [float(stride)] * 2, (np.inf, np.inf)
        if grid.spec.cells_divide_input_evenly and image.size is not None:
            most = image.size[::-1]
            steps = [length / -(-length // stride) for length in most]
        middle = [share * step + pixels for step in steps]
        each = [(*middle, *np.minimum(size, most), stride, stride) for size in grid.anchors(scale)]
        if image.size is None:
            counts = add("Add", _input_size(add, image), add.constant([stride - 1]))
            counts = add("Div", counts, add.constant([stride]))
            one = helper.make_tensor("one", onnx.TensorProto.INT64, [1], [1])
            places = add("NonZero", add("ConstantOfShape", counts, value=one))
        else:
            rows, columns = (-(-length // stride) for length in image.size)
            places = add.constant(np.nonzero(np.ones((rows, columns))))
        places = add("Gather", places, [1, 0, 0, 0, 0, 0], axis=0)  # column, row, and four more
        places = add("Cast", add("Transpose", places, perm=[1, 0]), to=FLOAT)
        corners = add("Mul", places, add.constant([*steps, 0, 0, 0, 0], np.float32))
        moved = add("Add", add("Reshape", corners, [-1, 1, 6]), add.constant([each], np.float32))
        scales.append(add("Reshape", moved, [1, -1, 6]))
    return add("Concat", *scales, axis=1)


def _input_size(add: _Builder, image: ImageInput) -> str:
    """Height and width of the input, `[2]`."""
    first = (1 if image.channels_last else 2) - image.single
    return add.cut(add("Shape", image.name), first, first + 2, 0)


def _rows(add: _Builder, plan: Adaptation) -> str:
    """Rows `[B, K, 6]` of detections."""
    head, parts = plan.head, list[str]()
    labels = head.labels or head.scores[0]
    for piece, width in ((head.boxes[0], 4), (head.scores[0], 1), (labels, 1)):
        rank = len(add.index.shapes[piece.tensor])
        tensor = add.columns(piece, rank - 1)
        batched = rank == (3 if width == 4 or piece.stop is not None else 2)
        tensor = add("Reshape", tensor, [0 if batched else 1, -1, width])
        parts.append(add.cast(tensor, FLOAT))
    if plan.swapped:
        parts[0] = add("Gather", parts[0], [1, 0, 3, 2], axis=2)
    return add("Concat", *parts, axis=2)


def _feed(add: _Builder, plan: Adaptation) -> None:
    """Make all inputs out of one for pictures, by nodes in front of all others."""
    graph, image = add.graph, plan.image
    node_count = len(graph.node)
    for other in plan.others:
        _feed_other(add, other, image)
    for_others = len(graph.node)
    new_inputs = [_convert_pictures(add, image)] if image.is_unusual else []
    replaced = {other.name for other in plan.others} | {value.name for value in new_inputs}
    inputs = [*new_inputs, *(value for value in graph.input if value.name not in replaced)]
    del graph.input[:]
    graph.input.extend(inputs)
    nodes = list(graph.node)
    replace_nodes(graph, [*nodes[for_others:], *nodes[node_count:for_others], *nodes[:node_count]])


def _feed_other(add: _Builder, other: OtherInput, image: ImageInput) -> None:
    """Make what an input wants under its name: `[B, 2]`, or a mask `[B, H, W]`."""
    size = _input_size(add, image)
    batch = add.constant([1]) if image.single else add.cut(add("Shape", image.name), 0, 1, 0)
    expanded = add("Concat", batch, size if other.role is Role.MASK else [2], axis=0)
    if other.role is Role.WIDTH_HEIGHT:
        size = add("Gather", size, [1, 0], axis=0)
    if other.role in {Role.MASK, Role.SCALE}:
        dtype = helper.tensor_dtype_to_np_dtype(other.dtype)
        values = add.constant(np.ones((1, 1, 1) if other.role is Role.MASK else (1, 2)), dtype)
    else:
        values = add("Reshape", add("Cast", size, to=other.dtype), [1, 2])
    add("Expand", values, expanded, output=other.name)


def _convert_pictures(add: _Builder, image: ImageInput) -> onnx.ValueInfoProto:
    """Bring pictures `[B, 3, H, W]` to the form that a graph takes; returns the new input."""
    model_input = add.unused("image")
    rename(add.graph, image.name, model_input)
    tensor = image.name
    if image.dtype == "uint8":
        tensor = add("Cast", tensor, to=onnx.TensorProto.UINT8)
    if image.channels_last:
        tensor = add("Transpose", tensor, perm=[0, 2, 3, 1])
    size = list(image.size or (-1, -1))
    if image.single:
        tensor = add("Reshape", tensor, [*size, 3] if image.channels_last else [3, *size])
    add("Identity", tensor, output=model_input)
    floats = helper.np_dtype_to_tensor_dtype(np.dtype(image.floats))
    batch = 1 if image.single else image.batch or "batch"
    dims = [batch, 3, *(image.size or ("height", "width"))]
    return helper.make_tensor_value_info(image.name, floats, dims)
