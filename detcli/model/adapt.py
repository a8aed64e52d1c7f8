"""Adds the nodes that give any detector one input and one head.

The graph that runs takes pictures `[B, 3, H, W]` and ends in a head: boxes and then scores,
`[B, 4 + C, N]` or `[B, N, 4 + C]`; or, where the graph selects detections itself, rows
`[B, K, 6]` of x1, y1, x2, y2, score, class id. What a file has instead is brought to that form by
nodes before and behind it, so that every device and engine runs the same graph.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import ModelProto, helper

from detcli.model.contract import Layout, ScoreForm, Size
from detcli.model.editing import (
    add_constant,
    copied,
    drop_unused,
    opset,
    replace_nodes,
    tensor_names,
    unused_name,
)
from detcli.model.graph import GraphIndex
from detcli.model.heads.decode import BOX_ROWS, Activation, BoxDecode, Columns, Head
from detcli.model.inputs import ImageInput, OtherInput, Role

HEAD = "detcli/head"  # no exporter makes that name
FLOAT = onnx.TensorProto.FLOAT
STRIDES = ((8, 16, 32), (8, 16, 32, 64), (16, 32), (32,))
"""Of the scales of detectors, the most common first."""


@dataclass(frozen=True, slots=True)
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
        one = len(head.tensors) == 1 and head.layout is not Layout.ROWS
        return one and not (head.objectness or head.left_out) and self.no_object is None

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

    def columns(self, piece: Columns, axis: int) -> str:
        """The channels of a tensor that a piece names."""
        if (piece.start, piece.stop) == (0, None):
            return piece.tensor
        return self.cut(piece.tensor, piece.start, piece.stop, axis)


def _boxes_and_scores(add: _Builder, plan: Adaptation) -> str:
    """A head `[B, 4 + C, N]` or `[B, N, 4 + C]`, decoded as far as boxes and scores are not."""
    head = plan.head
    if head.layout is Layout.SCALES:
        pairs = zip(head.boxes, head.scores, strict=True)
        return add("Concat", *(_decoded_scale(add, *pair, plan) for pair in pairs), axis=1)
    if plan.is_joined:
        return head.tensors[0]
    axis = 2 if head.anchors_first else 1
    boxes, scores = (add.columns(pieces[0], axis) for pieces in (head.boxes, head.scores))
    if head.crossed:
        scores = add.swapped(scores)
    if head.objectness:
        objectness = add.cut(scores, 0, 1, axis)
        scores = add("Mul", add.cut(scores, 1, None, axis), objectness)
        if head.decodes(BoxDecode.LINEAR):
            boxes = _on_grid(add, boxes, plan)
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


def _on_grid(add: _Builder, boxes: str, plan: Adaptation) -> str:
    """YOLOX's boxes: centre (offset + cell) * stride, size exp(size) * stride, in pixels."""
    axis = 2 if plan.head.anchors_first else 1
    cells, strides = grid(plan.image.size, add.index.size(plan.head.boxes[0].tensor, 3 - axis))
    if axis == 1:
        cells, strides = cells.T, strides.T
    stride = add.like(strides[np.newaxis], boxes)
    moved = add("Add", add.cut(boxes, 0, 2, axis), add.like(cells[np.newaxis], boxes))
    size = add("Exp", add.cut(boxes, 2, BOX_ROWS, axis))
    return add("Concat", *(add("Mul", part, stride) for part in (moved, size)), axis=axis)


def grid(
    canvas: Size | None, count: int | None
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """The cells of all scales, the finest first, row by row."""
    if canvas is None or count is None:
        raise ValueError("the cells of its scales depend on the size of its input")
    height, width = canvas
    for strides in STRIDES:
        cells = [_cells(height // s, width // s) for s in strides]
        counts = list(map(len, cells))
        if sum(counts) == count:
            repeated = np.repeat(np.array(strides, np.float32), counts)
            return np.concatenate(cells), repeated[:, np.newaxis]
    raise ValueError(f"no known strides give {count} cells for an input of {width}x{height}")


def _cells(rows: int, columns: int) -> npt.NDArray[np.float32]:
    """Column and row of each cell, row by row: (rows * columns, 2)."""
    y, x = np.mgrid[:rows, :columns]
    return np.stack([x, y], axis=-1).reshape(-1, 2).astype(np.float32)


def _decoded_scale(add: _Builder, boxes: Columns, scores: Columns, plan: Adaptation) -> str:
    """Maps of distances and scores of a scale as `[B, N, 4 + C]`.

    A distance is the mean of its bins, weighted by their softmax, in strides; the boxes are the
    middle of a cell less left and top, and plus right and bottom.
    """
    shapes = add.index.shapes
    channels, rows, columns = (int(str(dim)) for dim in shapes[boxes.tensor][1:])
    count = int(str(shapes[scores.tensor][1]))
    if plan.image.size is None:
        raise ValueError("the strides of its scales depend on the size of its input")
    bins = channels // 4
    sides = add("Reshape", boxes.tensor, [0, 4, bins, rows * columns])
    sides = add("Transpose", sides, perm=[0, 3, 1, 2])  # (B, N, 4, bins)
    if bins > 1:
        shares = add("Softmax", sides, axis=3)
        sides = add("MatMul", shares, add.like(np.arange(bins).reshape(bins, 1), shares))
    sides = add("Reshape", sides, [0, rows * columns, 4])
    point = add.like(_cells(rows, columns)[np.newaxis] + np.float32(0.5), sides)
    low = add("Sub", point, add.cut(sides, 0, 2, 2))
    high = add("Add", point, add.cut(sides, 2, 4, 2))
    corners = add("Concat", low, high, axis=2)
    corners = add("Mul", corners, add.like(plan.image.size[0] / rows, corners))
    flat = add.swapped(add("Reshape", scores.tensor, [0, count, -1]))
    return add("Concat", add.cast(corners, add.dtype(flat)), flat, axis=2)


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
    size = len(graph.node)
    for other in plan.others:
        _feed_other(add, other, image)
    for_others = len(graph.node)
    fed = [_fed(add, image)] if image.is_unusual else []
    replaced = {other.name for other in plan.others} | {value.name for value in fed}
    inputs = [*fed, *(value for value in graph.input if value.name not in replaced)]
    del graph.input[:]
    graph.input.extend(inputs)
    nodes = list(graph.node)
    replace_nodes(graph, [*nodes[for_others:], *nodes[size:for_others], *nodes[:size]])


def _feed_other(add: _Builder, other: OtherInput, image: ImageInput) -> None:
    """Make what an input wants under its name: `[B, 2]`, or a mask `[B, H, W]`."""
    dims = add("Shape", image.name)
    first = (1 if image.channels_last else 2) - image.single
    sides = add.cut(dims, first, first + 2, 0)
    batch = add.constant([1]) if image.single else add.cut(dims, 0, 1, 0)
    wanted = add("Concat", batch, sides if other.role is Role.MASK else [2], axis=0)
    if other.role is Role.WIDTH_HEIGHT:
        sides = add("Gather", sides, [1, 0], axis=0)
    if other.role in {Role.MASK, Role.SCALE}:
        dtype = helper.tensor_dtype_to_np_dtype(other.dtype)
        values = add.constant(np.ones((1, 1, 1) if other.role is Role.MASK else (1, 2)), dtype)
    else:
        values = add("Reshape", add("Cast", sides, to=other.dtype), [1, 2])
    add("Expand", values, wanted, output=other.name)


def _fed(add: _Builder, image: ImageInput) -> onnx.ValueInfoProto:
    """Bring pictures `[B, 3, H, W]` to the form that a graph takes; returns the new input."""
    fed = add.unused("image")
    for node in add.graph.node:
        node.input[:] = [fed if name == image.name else name for name in node.input]
    tensor = image.name
    if image.dtype == "uint8":
        tensor = add("Cast", tensor, to=onnx.TensorProto.UINT8)
    if image.channels_last:
        tensor = add("Transpose", tensor, perm=[0, 2, 3, 1])
    sides = [*(image.size or (-1, -1))]
    if image.single:
        tensor = add("Reshape", tensor, [*sides, 3] if image.channels_last else [3, *sides])
    add("Identity", tensor, output=fed)
    floats = helper.np_dtype_to_tensor_dtype(np.dtype(image.floats))
    batch = 1 if image.single else image.batch or "batch"
    dims = [batch, 3, *(image.size or ("height", "width"))]
    return helper.make_tensor_value_info(image.name, floats, dims)
