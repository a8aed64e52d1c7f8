"""Append the selection to a graph as nodes, for runtimes without one of their own.

The nodes follow `detcli.backend.postprocess` step by step, so that the rows above a confidence
are the same rows in the same order: ONNX's TopK puts the lower index first among equals, as the
specification does. NaN becomes 0 before it, which is never above a confidence. Everything is
float32, whatever the head is: class ids and pixels have to be exact.
"""

from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, TensorProto, helper

from detcli.errors import ModelError
from detcli.model.contract import BoxFormat, Contract, Layout
from detcli.model.editing import add_constant, cut, opset, tensor_names
from detcli.model.graph import GraphIndex
from detcli.model.recognise import BOX_ROWS, swaps_last_axes

OUTPUT = "detections"
PREFIX = "selection/"
MIN_OPSET = 13  # Split and Unsqueeze take sizes and axes as inputs from this opset on
AXES_ARE_AN_INPUT = 18  # of ReduceMax, from this opset on


def append_selection(model: ModelProto, contract: Contract, max_det: int) -> ModelProto:
    """Make a graph end in `[B, K, 6]`: x1, y1, x2, y2, score, class id, best first.

    K is `max_det`, or the number of scores if that is less. No confidence is applied, so a picture
    with few objects ends in rows of low scores. A selection that the graph has is replaced.

    Args:
        model: A network body, or an end-to-end graph.
        contract: Its contract.
        max_det: How many rows to keep.

    Raises:
        ModelError: The head needs non-maximum suppression, which this selection lacks, or the
            opset is too old.
    """
    if contract.layout is Layout.ONE_TO_MANY:
        raise ModelError(
            "--end-to-end: a one-to-many head needs non-maximum suppression, and what would be "
            "appended is the selection of one-to-one heads",
            "leave it out, and use --nms with detcli predict",
        )
    if opset(model) < MIN_OPSET:
        raise ModelError(
            f"--end-to-end: the graph is of opset {opset(model)}, and the selection needs "
            f"{MIN_OPSET} or later",
            f"export the model again with opset {MIN_OPSET}",
        )
    head = _head(model, contract)
    body = cut(model, head.tensor)
    graph = body.graph
    value = graph.output.pop()
    if taken := {name for name in tensor_names(graph) if name == OUTPUT}:
        raise ModelError(f"a tensor of the graph has the name {taken.pop()} already")
    if value.type.tensor_type.elem_type == TensorProto.FLOAT16:
        graph.value_info.append(value)
        head = head._replace(tensor=f"{PREFIX}head")
        graph.node.append(
            helper.make_node("Cast", [value.name], [head.tensor], to=TensorProto.FLOAT)
        )
        value = onnx.ValueInfoProto.FromString(value.SerializeToString())
        value.name = head.tensor
        value.type.tensor_type.elem_type = TensorProto.FLOAT
    graph.value_info.append(value)
    rows = _Tail(graph, head, opset(model)).build(max_det)
    batch = contract.batch or "batch"
    kept = min(max_det, head.anchors * head.classes) if head.anchors else OUTPUT
    graph.output.append(helper.make_tensor_value_info(rows, TensorProto.FLOAT, [batch, kept, 6]))
    return body


class _ScoresAndBoxes(NamedTuple):
    """The head that rows are selected from: as in the contract, but before any Transpose."""

    tensor: str
    anchors_first: bool
    cxcywh: bool
    classes: int
    anchors: int | None


def _head(model: ModelProto, contract: Contract) -> _ScoresAndBoxes:
    tensor, anchors_first = contract.head, contract.anchors_first
    last = GraphIndex(model.graph).producer(tensor)
    if last is not None and swaps_last_axes(last):
        tensor, anchors_first = last.input[0], not anchors_first
    return _ScoresAndBoxes(
        tensor=tensor,
        anchors_first=anchors_first,
        cxcywh=contract.box_format is BoxFormat.CXCYWH,
        classes=contract.class_count,
        anchors=contract.anchor_count,
    )


class _Tail:
    """Appends the nodes; each tensor is named like the node that makes it."""

    def __init__(self, graph: GraphProto, head: _ScoresAndBoxes, version: int) -> None:
        self.graph, self.head, self.version = graph, head, version
        self.channels, self.anchors = (2, 1) if head.anchors_first else (1, 2)  # axes

    def build(self, max_det: int) -> str:
        """Append the selection, and return the name of its output."""
        head = self.head
        sizes = self._ints("sizes", BOX_ROWS, head.classes)
        outputs = [f"{PREFIX}boxes", f"{PREFIX}scores"]
        boxes, scores = outputs
        self._node("Split", [head.tensor, sizes], outputs, axis=self.channels)
        nan = self._add("nan", "IsNaN", scores)
        zero = add_constant(self.graph, f"{PREFIX}zero", np.array(0, np.float32))
        sound = self._add("sound", "Where", nan, zero, scores)
        best = self._largest_class(sound)  # (B, N)
        _, anchors = self._top_k("anchor", best, max_det, head.anchors)  # (B, A)
        kept = self._gathered("kept", sound, anchors, head.classes)  # (B, A, C)
        flat = self._add("flat", "Flatten", kept, axis=1)  # (B, A * C)
        scores_kept = head.anchors and head.anchors * head.classes
        score, position = self._top_k("row", flat, max_det, scores_kept)  # (B, K)
        classes = add_constant(self.graph, f"{PREFIX}classes", np.array(head.classes, np.int64))
        rank = self._add("rank", "Div", position, classes)
        class_id = self._add("class", "Mod", position, classes)
        chosen = self._add("chosen", "GatherElements", anchors, rank, axis=1)  # (B, K)
        corners = self._corners(self._gathered("chosen_boxes", boxes, chosen, BOX_ROWS))
        one = add_constant(self.graph, f"{PREFIX}one", np.array(1, np.float32))
        columns = [
            self._add("score", "Min", score, one),
            self._add("class_number", "Cast", class_id, to=TensorProto.FLOAT),
        ]
        last = self._ints("last", 2)
        columns = [self._add(f"{name}_column", "Unsqueeze", name, last) for name in columns]
        self._node("Concat", [corners, *columns], [OUTPUT], axis=2)
        return OUTPUT

    def _largest_class(self, scores: str) -> str:
        """Scores (B, C, N) or (B, N, C) -> (B, N)."""
        if self.version < AXES_ARE_AN_INPUT:
            return self._add("best", "ReduceMax", scores, axes=[self.channels], keepdims=0)
        axes = self._ints("class_axis", self.channels)
        return self._add("best", "ReduceMax", scores, axes, keepdims=0)

    def _top_k(self, name: str, values: str, max_det: int, length: int | None) -> list[str]:
        """The largest of each row (B, length), at most `max_det`: values and indices (B, K)."""
        if length is not None:
            count = self._ints(f"{name}_count", min(max_det, length))
        else:
            shape = self._add(f"{name}_shape", "Shape", values)
            row = self._add(f"{name}_length", "Gather", shape, self._ints(f"{name}_last", 1))
            most = self._ints(f"{name}_most", max_det)
            count = self._add(f"{name}_count", "Min", row, most)
        outputs = [f"{PREFIX}{name}_values", f"{PREFIX}{name}_indices"]
        self._node("TopK", [values, count], outputs, axis=-1, largest=1, sorted=1)
        return outputs

    def _gathered(self, name: str, values: str, anchors: str, rows: int) -> str:
        """Values (B, rows, N) or (B, N, rows) of the chosen anchors (B, K) -> (B, K, rows)."""
        axis = self._ints(f"{name}_channels", self.channels)
        shape = [rows if axis == self.channels else 1 for axis in range(3)]
        index = self._add(f"{name}_anchor", "Unsqueeze", anchors, axis)
        spread = self._add(f"{name}_index", "Expand", index, self._ints(f"{name}_shape", *shape))
        if self.head.anchors_first:
            return self._add(name, "GatherElements", values, spread, axis=self.anchors)
        found = self._add(f"{name}_rows", "GatherElements", values, spread, axis=self.anchors)
        return self._add(name, "Transpose", found, perm=[0, 2, 1])

    def _corners(self, boxes: str) -> str:
        """Boxes (B, K, 4) as x1, y1, x2, y2."""
        if not self.head.cxcywh:
            return boxes
        outputs = [f"{PREFIX}centre", f"{PREFIX}extent"]
        self._node("Split", [boxes, self._ints("pairs", 2, 2)], outputs, axis=2)
        two = add_constant(self.graph, f"{PREFIX}two", np.array(2, np.float32))
        half = self._add("half", "Div", outputs[1], two)
        sides = [
            self._add("low", "Sub", outputs[0], half),
            self._add("high", "Add", outputs[0], half),
        ]
        self._node("Concat", sides, [f"{PREFIX}corners"], axis=2)
        return f"{PREFIX}corners"

    def _ints(self, name: str, *values: int) -> str:
        return add_constant(self.graph, f"{PREFIX}{name}", np.array(values, np.int64))

    def _add(self, name: str, operator: str, *inputs: str, **attributes: Any) -> str:  # noqa: ANN401
        self._node(operator, list(inputs), [f"{PREFIX}{name}"], **attributes)
        return f"{PREFIX}{name}"

    def _node(
        self,
        operator: str,
        inputs: list[str],
        outputs: list[str],
        **attributes: Any,  # noqa: ANN401 - numbers and lists of them
    ) -> None:
        name = outputs[0].removeprefix(PREFIX)
        self.graph.node.append(
            helper.make_node(operator, inputs, outputs, f"{PREFIX}{name}", **attributes)
        )
