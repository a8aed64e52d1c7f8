"""Append the selection to a graph as nodes, for runtimes without one of their own.

The nodes follow `detcli.backend.postprocess` step by step, so that the rows above a confidence
are the same rows in the same order: ONNX's TopK puts the lower index first among equals, as the
specification does. NaN becomes 0 before it, or -inf among logits, which is never above a
confidence. Everything is float32, whatever the type of the head: class ids and pixels must be
exact. Only the sigmoid of logits is the runtime's own, and may differ in the last bits.
"""

from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper

from detcli.config.values import BoxFormat
from detcli.core.errors import ModelError
from detcli.model.contract import Contract, Layout, MultiLabel, ScoreForm
from detcli.model.editing import add_constant, cut, opset, tensor_names
from detcli.model.graph import GraphIndex, shape
from detcli.model.heads import BOX_ROWS
from detcli.model.heads.joined import swaps_last_axes

OUTPUT = "detections"
PREFIX = "selection/"
MIN_OPSET = 13  # Split and Unsqueeze take sizes and axes as inputs from this opset on
AXES_ARE_AN_INPUT = 18  # of ReduceMax, from this opset on


def append_selection(model: ModelProto, contract: Contract, max_det: int) -> ModelProto:
    """Make a graph end in `[B, K, 6]`: x1, y1, x2, y2, score, class id, best first.

    K is `max_det`, or the number of scores if that is less. No confidence is applied, so a picture
    with few objects ends in rows of low scores. A selection that the graph has is replaced.

    The model has one input for pictures, and the head among its tensors.
    """
    _check(model, contract)
    tensor, anchors_first = contract.head, contract.anchors_first
    index = GraphIndex(model.graph)
    named, last = index.producers.get(tensor), index.producer(tensor)
    if last is not None and swaps_last_axes(last):
        tensor, anchors_first = str(last.input[0]), not anchors_first
    elif named is not None and named.op_type == "Identity":  # that only names the head
        tensor = str(named.input[0])
    body = cut(model, tensor)
    graph = body.graph
    value = graph.output.pop()
    graph.value_info.append(value)
    if OUTPUT in tensor_names(graph):
        raise ModelError(f"a tensor of the graph has the name {OUTPUT} already")
    text, constants = _selection(contract, max_det, opset(model), anchors_first=anchors_first)
    head = "head"
    if value.type.tensor_type.elem_type == TensorProto.FLOAT16:
        head, text = "half", f"head = Cast <to = 1> (half)\n{text}"
        graph.value_info.append(
            helper.make_tensor_value_info(f"{PREFIX}head", TensorProto.FLOAT, shape(value))
        )
    names = {head: tensor, OUTPUT: OUTPUT}
    for node in onnx.parser.parse_graph(f"selection () => () {{ {text} }}").node:
        node.name = f"{PREFIX}{node.output[0]}"
        for name in constants.keys() & {*node.input} - names.keys():
            names[name] = add_constant(graph, f"{PREFIX}{name}", np.array(constants[name]))
        node.input[:] = [names.get(name, f"{PREFIX}{name}") for name in node.input]
        node.output[:] = [names.get(name, f"{PREFIX}{name}") for name in node.output]
        graph.node.append(node)
    anchors, batch = contract.anchor_count, contract.batch or "batch"
    scores_of_anchor = contract.class_count
    if contract.multi_label is MultiLabel.NEVER:
        scores_of_anchor = 1
    scores = anchors and anchors * scores_of_anchor
    kept = min(max_det, scores) if scores else OUTPUT
    graph.output.append(helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, [batch, kept, 6]))
    return body


def _check(model: ModelProto, contract: Contract) -> None:
    """Raise ModelError for a graph that cannot be given this selection."""
    if contract.layout is Layout.ROWS:
        raise ModelError(
            "--end-to-end: the graph selects its detections itself, which cannot be replaced",
            "leave it out",
        )
    if contract.box_fractions and contract.input_size is None:
        raise ModelError(
            "--end-to-end: the boxes are fractions of the input, whose size the graph leaves open",
            f"set it with {'--preprocess stretch ' if contract.follows_picture else ''}--imgsz N",
        )
    if contract.nms is not None:
        raise ModelError(
            "--end-to-end: a one-to-many head needs non-maximum suppression, and what would be "
            "appended is the selection of one-to-one heads",
            "leave it out; detcli predict suppresses duplicates itself",
        )
    if opset(model) < MIN_OPSET:
        raise ModelError(
            f"--end-to-end: the graph is of opset {opset(model)}, and the selection needs "
            f"{MIN_OPSET} or later",
            f"export the model again with opset {MIN_OPSET}",
        )


def _selection(
    contract: Contract, max_det: int, version: int, *, anchors_first: bool
) -> tuple[str, dict[str, Any]]:
    """The selection from `head` to `detections`, in ONNX's textual notation.

    B pictures, N anchors and C classes; A anchors and K rows are kept.

    The head is (B, N, 4 + C) with `anchors_first`, else (B, 4 + C, N). Returns the nodes, and the
    constants that they may read.
    """
    classes, length = contract.class_count, contract.anchor_count
    logits = contract.score_form is ScoreForm.LOGITS
    channel_axis, anchor_axis = (2, 1) if anchors_first else (1, 2)
    constants = {
        "sizes": [BOX_ROWS, classes],
        "pair_sizes": [2, 2],
        "classes": classes,
        "max_det": [max_det],
        "row_axis": [1],
        "channel_axis": [channel_axis],
        "last_axis": [2],
        "nothing": np.float32(-np.inf if logits else 0),
        "one": np.float32(1),
        "two": np.float32(2),
    }

    def top_k(name: str, values: str, length: int | None) -> str:
        """The largest of each row (B, length), at most `max_det`: values and indices."""
        counted = ""
        if length is None:
            counted = f"""
                {name}_shape = Shape ({values})
                {name}_length = Gather ({name}_shape, row_axis)
                {name}_count = Min ({name}_length, max_det)"""
        else:
            constants[f"{name}_count"] = [min(max_det, length)]
        return f"""{counted}
            {name}_values, {name}_indices = TopK <axis = -1> ({values}, {name}_count)"""

    def gather(name: str, values: str, anchors: str, rows: int) -> str:
        """Values (B, rows, N) or (B, N, rows) of anchors (B, A) -> (B, A, rows)."""
        constants[f"{name}_shape"] = [1, 1, rows] if anchors_first else [1, rows, 1]
        found = name if anchors_first else f"{name}_rows"
        transposed = "" if anchors_first else f"{name} = Transpose <perm = [0, 2, 1]> ({found})"
        return f"""
            {name}_anchor = Unsqueeze ({anchors}, channel_axis)
            {name}_index = Expand ({name}_anchor, {name}_shape)
            {found} = GatherElements <axis = {anchor_axis}> ({values}, {name}_index)
            {transposed}"""

    largest = "<keepdims = 0> (sound, channel_axis)"
    if version < AXES_ARE_AN_INPUT:
        largest = f"<keepdims = 0, axes = [{channel_axis}]> (sound)"
    corners, to_corners = "chosen_boxes", ""
    if contract.box_format is BoxFormat.CXCYWH:
        corners = "corners"
        to_corners = """
            centre, extent = Split <axis = 2> (chosen_boxes, pair_sizes)
            half_extent = Div (extent, two)
            low = Sub (centre, half_extent)
            high = Add (centre, half_extent)
            corners = Concat <axis = 2> (low, high)"""
    if contract.box_fractions:
        height, width = contract.input_shape()
        constants["size"] = np.array([width, height, width, height], np.float32)
        corners, to_corners = "pixels", f"{to_corners}\n            pixels = Mul ({corners}, size)"
    rows = f"""
        {gather("kept", "sound", "anchor_indices", classes)}
        flat = Flatten <axis = 1> (kept)
        {top_k("row", "flat", length and length * classes)}
        rank = Div (row_indices, classes)
        class = Mod (row_indices, classes)
        chosen = GatherElements <axis = 1> (anchor_indices, rank)"""
    if contract.multi_label is MultiLabel.NEVER:
        rows = f"""
        best_class = ArgMax <axis = {channel_axis}, keepdims = 0> (sound)
        class = GatherElements <axis = 1> (best_class, anchor_indices)
        row_values = Identity (anchor_values)
        chosen = Identity (anchor_indices)"""
    text = f"""
        boxes, scores = Split <axis = {channel_axis}> (head, sizes)
        nan = IsNaN (scores)
        sound = Where (nan, nothing, scores)
        best = ReduceMax {largest}
        {top_k("anchor", "best", length)}
        {rows}
        {gather("chosen_boxes", "boxes", "chosen", BOX_ROWS)}
        {to_corners}
        score = {"Sigmoid (row_values)" if logits else "Min (row_values, one)"}
        score_column = Unsqueeze (score, last_axis)
        class_number = Cast <to = 1> (class)
        class_column = Unsqueeze (class_number, last_axis)
        {OUTPUT} = Concat <axis = 2> ({corners}, score_column, class_column)"""
    return text, constants
