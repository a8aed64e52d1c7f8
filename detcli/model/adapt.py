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

from detcli.model.contract import Layout
from detcli.model.editing import (
    add_constant,
    copied,
    drop_unused,
    opset,
    replace_nodes,
    tensor_names,
    unused_name,
)
from detcli.model.graph import GraphIndex, known_size
from detcli.model.heads.decode import BOX_ROWS, Activation, BoxDecode, Columns, Head
from detcli.model.inputs import ImageInput, OtherInput, Role

HEAD = "detcli/head"  # no exporter makes that name
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
    canvas: tuple[int, int] | None  # height and width of the input; None where they vary

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
    def anchors_first(self) -> bool:
        """True if the head that is made is `[B, N, 4 + C]`."""
        made = self.no_object is not None or self.head.layout is Layout.SCALES
        return self.head.anchors_first or made


def adapt(model: ModelProto, plan: Adaptation) -> ModelProto:
    """Cut a graph at its head, and add the nodes that a plan asks for."""
    adapted = copied(model)
    builder = _Builder(adapted)
    if plan.head.layout is Layout.ROWS:
        made = _rows(builder, plan)
    else:
        made = _boxes_and_scores(builder, plan)
    output = helper.make_tensor_value_info(HEAD, builder.dtype(made), None)
    builder.node("Identity", [made], HEAD)
    del adapted.graph.output[:]
    adapted.graph.output.append(output)
    _feed_others(builder, plan)
    _feed_image(builder, plan)
    drop_unused(adapted.graph)
    return onnx.shape_inference.infer_shapes(adapted)


def with_one_input(model: ModelProto, plan: Adaptation) -> ModelProto:
    """Let a graph take `[B, 3, H, W]` in floating point as its only input."""
    adapted = copied(model)
    builder = _Builder(adapted)
    _feed_others(builder, plan)
    _feed_image(builder, plan)
    return adapted


class _Builder:
    """Adds nodes to the end of a graph."""

    def __init__(self, model: ModelProto) -> None:
        self.graph = model.graph
        self.index = GraphIndex(model.graph)
        self._types = dict(self.index.types)
        self._names = tensor_names(model.graph)
        self._opset = opset(model)

    def node(
        self,
        operator: str,
        inputs: Sequence[str],
        output: str = "",
        **attributes: Any,  # noqa: ANN401 - as onnx has it
    ) -> str:
        """Add a node, and return the name of its first output."""
        name = output or self.unused(operator.lower())
        self.graph.node.append(helper.make_node(operator, inputs, [name], **attributes))
        target = attributes.get("to") if operator == "Cast" else self._types.get(inputs[0])
        self._types[name] = target or onnx.TensorProto.FLOAT
        return name

    def unused(self, wanted: str) -> str:
        return unused_name(self._names, f"detcli_{wanted}")

    def constant(self, value: npt.ArrayLike, dtype: npt.DTypeLike = np.int64) -> str:
        """Add a constant tensor, and return its name."""
        name = add_constant(self.graph, self.unused("constant"), np.asarray(value, dtype))
        self._types[name] = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return name

    def like(self, value: npt.ArrayLike, tensor: str) -> str:
        return self.constant(value, helper.tensor_dtype_to_np_dtype(self.dtype(tensor)))

    def dtype(self, tensor: str) -> int:
        return self._types.get(tensor) or onnx.TensorProto.FLOAT

    def cast(self, tensor: str, dtype: int) -> str:
        """A tensor in another type."""
        return tensor if self.dtype(tensor) == dtype else self.node("Cast", [tensor], to=dtype)

    def reshape(self, tensor: str, dims: Sequence[int]) -> str:
        """A tensor in another shape; 0 keeps an axis, -1 takes the rest."""
        return self.node("Reshape", [tensor, self.constant(dims)])

    def cut(self, tensor: str, start: int, stop: int | None, axis: int) -> str:
        stop = np.iinfo(np.int64).max if stop is None else stop
        if self._opset < 10:
            return self.node("Slice", [tensor], starts=[start], ends=[stop], axes=[axis])
        ends = [self.constant([entry]) for entry in (start, stop, axis)]
        return self.node("Slice", [tensor, *ends])

    def put_first(self, count: int) -> None:
        """Put what was added behind a number of nodes in front of them."""
        nodes = list(self.graph.node)
        replace_nodes(self.graph, [*nodes[count:], *nodes[:count]])

    def columns(self, piece: Columns, axis: int) -> str:
        """The channels of a tensor that a piece names."""
        if (piece.start, piece.stop) == (0, None):
            return piece.tensor
        return self.cut(piece.tensor, piece.start, piece.stop, axis)


def _boxes_and_scores(builder: _Builder, plan: Adaptation) -> str:
    """A head `[B, 4 + C, N]` or `[B, N, 4 + C]`, decoded as far as boxes and scores are not."""
    head = plan.head
    if head.layout is Layout.SCALES:
        return _decoded_scales(builder, plan)
    if plan.is_joined:
        return head.tensors[0]
    axis = 2 if head.anchors_first else 1
    boxes = builder.columns(head.boxes[0], axis)
    scores = builder.columns(head.scores[0], axis)
    if head.crossed:
        scores = builder.node("Transpose", [scores], perm=[0, 2, 1])
    if head.objectness:
        objectness = builder.cut(scores, 0, 1, axis)
        scores = builder.node("Mul", [builder.cut(scores, 1, None, axis), objectness])
        if head.decodes(BoxDecode.LINEAR):
            boxes = _on_grid(builder, boxes, plan)
    if not head.anchors_first and plan.anchors_first:
        boxes, scores = (builder.node("Transpose", [t], perm=[0, 2, 1]) for t in (boxes, scores))
        axis = 2
    if plan.no_object is not None:
        if head.scores_are is Activation.LINEAR:
            scores = builder.node("Softmax", [scores], axis=axis)
        start, stop = (1, None) if plan.no_object == 0 else (0, -1)
        scores = builder.cut(scores, start, stop, axis)
    if builder.dtype(boxes) != builder.dtype(scores):  # boxes in float16 are half pixels
        boxes, scores = (builder.cast(part, onnx.TensorProto.FLOAT) for part in (boxes, scores))
    return builder.node("Concat", [boxes, scores], axis=axis)


def _on_grid(builder: _Builder, boxes: str, plan: Adaptation) -> str:
    """YOLOX's boxes: centre (offset + cell) * stride, size exp(size) * stride, in pixels."""
    axis = 2 if plan.head.anchors_first else 1
    dims = builder.index.shapes[plan.head.boxes[0].tensor]
    cells, strides = grid(plan.canvas, known_size(dims[3 - axis]) if len(dims) == 3 else None)
    if axis == 1:
        cells, strides = cells.T, strides.T
    stride = builder.like(strides[np.newaxis], boxes)
    moved = builder.node(
        "Add", [builder.cut(boxes, 0, 2, axis), builder.like(cells[np.newaxis], boxes)]
    )
    size = builder.node("Exp", [builder.cut(boxes, 2, BOX_ROWS, axis)])
    scaled = [builder.node("Mul", [part, stride]) for part in (moved, size)]
    return builder.node("Concat", scaled, axis=axis)


def grid(
    canvas: tuple[int, int] | None, count: int | None
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """The cells of all scales, the finest first, row by row."""
    if canvas is None or count is None:
        raise ValueError("the cells of its scales depend on the size of its input")
    height, width = canvas
    for strides in STRIDES:
        if sum((height // s) * (width // s) for s in strides) == count:
            cells = [_cells(height // s, width // s) for s in strides]
            repeated = [
                np.full((len(c), 1), s, np.float32) for c, s in zip(cells, strides, strict=True)
            ]
            return np.concatenate(cells), np.concatenate(repeated)
    raise ValueError(f"no known strides give {count} cells for an input of {width}x{height}")


def _cells(rows: int, columns: int) -> npt.NDArray[np.float32]:
    """Column and row of each cell, row by row: (rows * columns, 2)."""
    y, x = np.mgrid[:rows, :columns]
    return np.stack([x, y], axis=-1).reshape(-1, 2).astype(np.float32)


def _decoded_scales(builder: _Builder, plan: Adaptation) -> str:
    """Maps of distances and scores of each scale as one head `[B, N, 4 + C]`.

    A distance is the mean of its bins, weighted by their softmax, in strides; the boxes are the
    middle of a cell less left and top, and plus right and bottom.
    """
    parts = []
    for boxes, scores in zip(plan.head.boxes, plan.head.scores, strict=True):
        parts.append(_decoded_scale(builder, boxes.tensor, scores.tensor, plan))
    return builder.node("Concat", parts, axis=1)


def _decoded_scale(builder: _Builder, boxes: str, scores: str, plan: Adaptation) -> str:
    channels, rows, columns = (int(str(dim)) for dim in builder.index.shapes[boxes][1:])
    count = int(str(builder.index.shapes[scores][1]))
    if plan.canvas is None:
        raise ValueError("the strides of its scales depend on the size of its input")
    stride = plan.canvas[0] / rows
    bins = channels // 4
    sides = builder.reshape(boxes, [0, 4, bins, rows * columns])
    sides = builder.node("Transpose", [sides], perm=[0, 3, 1, 2])  # (B, N, 4, bins)
    if bins > 1:
        shares = builder.node("Softmax", [sides], axis=3)
        values = builder.like(np.arange(bins).reshape(bins, 1), shares)
        sides = builder.node("MatMul", [shares, values])
    sides = builder.reshape(sides, [0, rows * columns, 4])
    middle = _cells(rows, columns)[np.newaxis] + np.float32(0.5)
    point = builder.like(middle, sides)
    low = builder.node("Sub", [point, builder.cut(sides, 0, 2, 2)])
    high = builder.node("Add", [point, builder.cut(sides, 2, 4, 2)])
    corners = builder.node("Concat", [low, high], axis=2)
    corners = builder.node("Mul", [corners, builder.like(stride, corners)])
    flat = builder.node("Transpose", [builder.reshape(scores, [0, count, -1])], perm=[0, 2, 1])
    return builder.node("Concat", [builder.cast(corners, builder.dtype(flat)), flat], axis=2)


def _rows(builder: _Builder, plan: Adaptation) -> str:
    """Rows `[B, K, 6]` of detections."""
    head, dims, parts = plan.head, builder.index.shapes, list[str]()
    labels = head.labels or head.scores[0]
    for piece, width in ((head.boxes[0], 4), (head.scores[0], 1), (labels, 1)):
        rank = len(dims[piece.tensor])
        tensor = builder.columns(piece, rank - 1)
        batched = rank == (3 if width == 4 or piece.stop is not None else 2)
        tensor = builder.reshape(tensor, [0, -1, width] if batched else [1, -1, width])
        parts.append(builder.cast(tensor, onnx.TensorProto.FLOAT))
    if plan.swapped:
        parts[0] = builder.node("Gather", [parts[0], builder.constant([1, 0, 3, 2])], axis=2)
    return builder.node("Concat", parts, axis=2)


def _feed_others(builder: _Builder, plan: Adaptation) -> None:
    """Make what other inputs want out of the picture's shape, and drop these inputs."""
    size = len(builder.graph.node)
    for other in plan.others:
        _feed_other(builder, other, plan)
    inputs = [
        value for value in builder.graph.input if value.name not in {o.name for o in plan.others}
    ]
    del builder.graph.input[:]
    builder.graph.input.extend(inputs)
    builder.put_first(size)


def _feed_other(builder: _Builder, other: OtherInput, plan: Adaptation) -> None:
    """Make what an input wants under its name: `[B, 2]`, or a mask `[B, H, W]`."""
    dims = builder.node("Shape", [plan.image.name])
    first = (1 if plan.image.channels_last else 2) - plan.image.single
    sides = builder.cut(dims, first, first + 2, 0)
    batch = builder.constant([1]) if plan.image.single else builder.cut(dims, 0, 1, 0)
    dtype = helper.tensor_dtype_to_np_dtype(other.dtype)
    wanted = builder.node("Concat", [batch, builder.constant([2])], axis=0)
    match other.role:
        case Role.MASK:
            wanted = builder.node("Concat", [batch, sides], axis=0)
            values = builder.constant(np.ones((1, 1, 1)), dtype)
        case Role.SCALE:
            values = builder.constant(np.ones((1, 2)), dtype)
        case Role.WIDTH_HEIGHT:
            sides = builder.node("Gather", [sides, builder.constant([1, 0])], axis=0)
            values = builder.reshape(builder.node("Cast", [sides], to=other.dtype), [1, 2])
        case Role.HEIGHT_WIDTH:
            values = builder.reshape(builder.node("Cast", [sides], to=other.dtype), [1, 2])
    builder.node("Expand", [values, wanted], other.name)


def _feed_image(builder: _Builder, plan: Adaptation) -> None:
    image = plan.image
    if not image.is_unusual:
        return
    graph, fed = builder.graph, builder.unused("image")
    for node in graph.node:
        for number, name in enumerate(node.input):
            if name == image.name:
                node.input[number] = fed
    size = len(graph.node)
    tensor = image.name
    if image.dtype == "uint8":
        tensor = builder.node("Cast", [tensor], to=onnx.TensorProto.UINT8)
    if image.channels_last:
        tensor = builder.node("Transpose", [tensor], perm=[0, 2, 3, 1])
    if image.single:
        shape = [*(image.size or (-1, -1))]
        tensor = builder.reshape(tensor, [*shape, 3] if image.channels_last else [3, *shape])
    builder.node("Identity", [tensor], fed)
    builder.put_first(size)
    floats = onnx.TensorProto.FLOAT16 if image.dtype == "float16" else onnx.TensorProto.FLOAT
    dims = [image.batch or "batch", 3, *(image.size or ("height", "width"))]
    value = helper.make_tensor_value_info(
        image.name, floats, [1, *dims[1:]] if image.single else dims
    )
    kept = [v for v in graph.input if v.name != image.name]
    del graph.input[:]
    graph.input.extend([value, *kept])
