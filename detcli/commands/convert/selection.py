"""Append the selection to a graph as nodes, for runtimes without one of their own.

The nodes follow `detcli.backend.postprocess` step by step, so that the rows above a confidence
are the same rows in the same order: ONNX's TopK puts the lower index first among equals, as the
specification does. NaN becomes 0 before it, or -inf among logits, which is never above a
confidence. Everything is float32, whatever the type of the head: class ids and pixels must be
exact. Only the sigmoid of logits is the runtime's own, and may differ in the last bits.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto, helper

from detcli.config.values import BoxFormat
from detcli.core.errors import ModelError
from detcli.model.contract import Contract, Layout, MultiLabel, ScoreForm
from detcli.model.editing import add_constant, cut, opset, tensor_names
from detcli.model.graph import GraphIndex, shape
from detcli.model.heads import BOX_COORDINATES
from detcli.model.heads.joined import swaps_last_axes

OUTPUT = "detections"
PREFIX = "selection/"
MIN_OPSET = 13  # Split and Unsqueeze take sizes and axes as inputs from this opset on
AXES_ARE_AN_INPUT = 18  # of ReduceMax, from this opset on


def append_selection(model: ModelProto, contract: Contract, max_det: int) -> ModelProto:
    """Append nodes to a graph that select detections, so that it ends in `[B, K, 6]`.

    The columns are x1, y1, x2, y2, score and class id; the rows are sorted by score, best first.
    K is `max_det`, or the number of scores if that is less. No confidence is applied, so an image
    with few objects ends in rows of low scores. A selection that the graph has is replaced.

    Args:
        model: A model with one input for images. One of its tensors, the head, has the boxes and
            scores to select from.
        contract: How to read the head.
        max_det: How many detections to select from an image.

    Raises:
        ModelError: The selection cannot be appended to this graph.
    """
    _require_selectable(model, contract)
    head_name, anchors_first = _find_head_to_read(model, contract)
    body = cut(model, head_name)
    graph = body.graph
    # The head is no longer an output. It stays declared, with its type and shape.
    head = graph.output.pop()
    graph.value_info.append(head)
    if OUTPUT in tensor_names(graph):
        raise ModelError(f"a tensor of the graph has the name {OUTPUT} already")

    writer = _SelectionWriter(contract, max_det, opset(model), anchors_first=anchors_first)
    nodes = writer.write_nodes()
    if head.type.tensor_type.elem_type == TensorProto.FLOAT16:
        # The nodes compute in float32, so their tensor `head` is a copy of the graph's, cast.
        nodes = f"head = Cast <to = 1> (half)\n{nodes}"
        names_in_graph = {"half": head_name, OUTPUT: OUTPUT}
        graph.value_info.append(
            helper.make_tensor_value_info(f"{PREFIX}head", TensorProto.FLOAT, shape(head))
        )
    else:
        names_in_graph = {"head": head_name, OUTPUT: OUTPUT}
    _append_nodes(graph, nodes, writer.constants, names_in_graph)
    graph.output.append(_output_value(contract, max_det))
    return body


class _HeadTensor(NamedTuple):
    """The tensor of boxes and scores to select from."""

    name: str
    anchors_first: bool  # it is (B, N, 4 + C) instead of (B, 4 + C, N)


def _find_head_to_read(model: ModelProto, contract: Contract) -> _HeadTensor:
    """Find the tensor that the selection reads: the head, or the tensor that it is a mere copy of.

    Exporters may end a graph with a Transpose, which swaps the axes of anchors and channels, or
    with an Identity, which only gives the head its name. The selection needs neither, so it reads
    the tensor before that node.

    Args:
        model: The model.
        contract: How detcli reads the head; `contract.head` is its name.

    Returns:
        The tensor with the order of its own axes, which a Transpose changes.
    """
    index = GraphIndex(model.graph)
    anchors_first = contract.anchors_first
    # Behind nodes that hand the head on unchanged.
    computing_node = index.producer(contract.head)
    if computing_node is not None and swaps_last_axes(computing_node):
        return _HeadTensor(str(computing_node.input[0]), anchors_first=not anchors_first)

    last_node = index.producers.get(contract.head)
    if last_node is not None and last_node.op_type == "Identity":
        return _HeadTensor(str(last_node.input[0]), anchors_first)
    return _HeadTensor(contract.head, anchors_first)


def _append_nodes(
    graph: GraphProto, text: str, constants: Mapping[str, Any], names_in_graph: Mapping[str, str]
) -> None:
    """Append nodes to a graph, given as text in the notation of `onnx.parser`.

    A tensor `best` of the text is `selection/best` in the graph, so that it cannot have the name of
    another tensor.

    Args:
        graph: The graph, which is changed.
        text: The nodes, one a line, such as "nan = IsNaN (scores)".
        constants: Values by name; those that a node reads become constants of the graph.
        names_in_graph: By their names in the text, the names of tensors that the graph has already,
            or that it shall have without the prefix.
    """
    nodes = onnx.parser.parse_graph(f"selection () => () {{ {text} }}").node
    graph_names = dict(names_in_graph)
    for node in nodes:
        for name in node.input:
            is_new_constant = name in constants and name not in graph_names
            if is_new_constant:
                value = np.array(constants[name])
                graph_names[name] = add_constant(graph, f"{PREFIX}{name}", value)

    for node in nodes:
        node.name = f"{PREFIX}{node.output[0]}"
        node.input[:] = [graph_names.get(name, f"{PREFIX}{name}") for name in node.input]
        node.output[:] = [graph_names.get(name, f"{PREFIX}{name}") for name in node.output]
        graph.node.append(node)


def _output_value(contract: Contract, max_det: int) -> ValueInfoProto:
    """Describe the output `[B, K, 6]` of the selection: K detections of each of B images.

    K is less than `max_det` if the head has fewer scores: C of each anchor, or only the best one
    where an anchor can be one class at most. ONNX has a name in place of a size that depends on the
    input: "detections" for K, and "batch" for B.

    Args:
        contract: How to read the head: its batch, anchors and classes.
        max_det: How many detections to select from an image.
    """
    detection_count: int | str = "detections"
    if contract.anchor_count:
        scores_per_anchor = contract.class_count
        if contract.multi_label is MultiLabel.NEVER:
            scores_per_anchor = 1
        detection_count = min(max_det, contract.anchor_count * scores_per_anchor)
    batch = contract.batch or "batch"
    return helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, [batch, detection_count, 6])


def _require_selectable(model: ModelProto, contract: Contract) -> None:
    """Check that the nodes which select detections can be appended to a graph.

    Raises:
        ModelError: The graph selects for itself, needs another selection, or is too old.
    """
    if contract.layout is Layout.ROWS:
        raise ModelError(
            "--end-to-end: the graph selects its detections itself, which cannot be replaced",
            "leave it out",
        )
    if contract.box_fractions and contract.input_size is None:
        size_options = "--imgsz N"
        if contract.follows_image:
            size_options = "--preprocess stretch --imgsz N"
        raise ModelError(
            "--end-to-end: the boxes are fractions of the input, whose size the graph leaves open",
            f"set it with {size_options}",
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


class _Corners(NamedTuple):
    """The corners of the selected boxes in pixels."""

    tensor: str  # (B, K, 4)
    nodes: str  # that compute it; empty if the boxes are corners in pixels already


class _SelectionWriter:
    """Writes the selection from `head` to `detections` in ONNX's textual notation.

    The selection first takes the A anchors with the best scores, of N; then of their scores the K
    best, of all C classes. So only A anchors have to be sorted by class.

    The head is (B, N, 4 + C) with `anchors_first`, else (B, 4 + C, N), for B images: a channel is a
    coordinate of boxes, or the scores of a class. The names of tensors in the text are part of the
    files that `convert` writes.
    """

    def __init__(
        self, contract: Contract, max_det: int, opset_version: int, *, anchors_first: bool
    ) -> None:
        """Prepare to write the selection for one graph.

        Args:
            contract: How to read the head.
            max_det: How many detections to select from an image.
            opset_version: The version of the ONNX operators that the graph uses.
            anchors_first: Whether the head is (B, N, 4 + C), and not (B, 4 + C, N).
        """
        self._contract = contract
        self._opset_version = opset_version
        self._max_det = max_det
        self._anchors_first = anchors_first
        if anchors_first:
            self._anchor_axis = 1
            self._channel_axis = 2
        else:
            self._channel_axis = 1
            self._anchor_axis = 2
        self._has_logits = contract.score_form is ScoreForm.LOGITS
        score_for_nan = 0.0  # the lowest score
        if self._has_logits:
            score_for_nan = -np.inf
        # What nodes may read besides the tensors of other nodes, by its name in their text. Methods
        # that write further nodes add the constants that these read.
        self.constants: dict[str, Any] = {
            "sizes": [BOX_COORDINATES, contract.class_count],
            "pair_sizes": [2, 2],
            "classes": contract.class_count,
            "max_det": [max_det],
            "row_axis": [1],
            "channel_axis": [self._channel_axis],
            "last_axis": [2],
            "nothing": np.float32(score_for_nan),
            "one": np.float32(1),
            "two": np.float32(2),
        }

    def write_nodes(self) -> str:
        """Write all nodes of the selection, from the tensor `head` to the tensor `detections`.

        They are lines such as "nan = IsNaN (scores)", in the notation of `onnx.parser`. The
        constants that they read are in `constants` afterwards.

        In the text, `sound` are the scores without NaN, and `best` is the best score of each
        anchor. Of each detection that is selected, `row_values` is the score, `class` the class,
        and `chosen` the anchor.
        """
        best_arguments = "<keepdims = 0> (sound, channel_axis)"
        if self._opset_version < AXES_ARE_AN_INPUT:
            best_arguments = f"<keepdims = 0, axes = [{self._channel_axis}]> (sound)"
        if self._contract.multi_label is MultiLabel.NEVER:
            selecting_nodes = self._best_class_of_each_anchor()
        else:
            selecting_nodes = self._best_classes_of_anchors()
        corners = self._corners()
        score = "Min (row_values, one)"  # scores of quantised heads may exceed 1
        if self._has_logits:
            score = "Sigmoid (row_values)"
        return f"""
            boxes, scores = Split <axis = {self._channel_axis}> (head, sizes)
            nan = IsNaN (scores)
            sound = Where (nan, nothing, scores)
            best = ReduceMax {best_arguments}
            {self._top_k("anchor", "best", self._contract.anchor_count)}
            {selecting_nodes}
            {self._gather("chosen_boxes", "boxes", "chosen", BOX_COORDINATES)}
            {corners.nodes}
            score = {score}
            score_column = Unsqueeze (score, last_axis)
            class_number = Cast <to = 1> (class)
            class_column = Unsqueeze (class_number, last_axis)
            {OUTPUT} = Concat <axis = 2> ({corners.tensor}, score_column, class_column)"""

    def _best_classes_of_anchors(self) -> str:
        """Write nodes that select detections: the K highest scores of any class, of A anchors.

        An anchor may so give several detections, of different classes.

        The nodes read the scores, `sound`, and the indices of the A anchors with the best scores,
        `anchor_indices` (B, A). They compute three tensors (B, K), which say of each detection: its
        score, `row_values`; its class, `class`; and the index of its anchor, `chosen`.
        """
        class_count = self._contract.class_count
        score_count = None  # of an image; it depends on the input if the number of anchors does
        if self._contract.anchor_count is not None:
            score_count = self._contract.anchor_count * class_count
        nodes = [
            self._gather("kept", "sound", "anchor_indices", class_count),  # `kept`: (B, A, C)
            "flat = Flatten <axis = 1> (kept)",  # (B, A * C)
            self._top_k("row", "flat", score_count),  # `row_values`, `row_indices`: (B, K)
            # `flat` has the scores anchor by anchor: index = rank of anchor * C + class.
            "rank = Div (row_indices, classes)",
            "class = Mod (row_indices, classes)",
            "chosen = GatherElements <axis = 1> (anchor_indices, rank)",
        ]
        return "\n".join(nodes)

    def _best_class_of_each_anchor(self) -> str:
        """Write nodes that take the best class of each of the A anchors, and no other.

        They compute the same tensors as those of `_best_classes_of_anchors`.
        """
        return f"""
            best_class = ArgMax <axis = {self._channel_axis}, keepdims = 0> (sound)
            class = GatherElements <axis = 1> (best_class, anchor_indices)
            row_values = Identity (anchor_values)
            chosen = Identity (anchor_indices)"""

    def _corners(self) -> _Corners:
        """Write nodes that turn the selected boxes, `chosen_boxes`, into corners in pixels.

        Boxes of centre and size become corners, then fractions of the input become pixels. Where
        the boxes are corners in pixels already, no nodes are needed.
        """
        corners = _Corners("chosen_boxes", nodes="")
        if self._contract.box_format is BoxFormat.CXCYWH:
            nodes = """
            centre, extent = Split <axis = 2> (chosen_boxes, pair_sizes)
            half_extent = Div (extent, two)
            low = Sub (centre, half_extent)
            high = Add (centre, half_extent)
            corners = Concat <axis = 2> (low, high)"""
            corners = _Corners("corners", nodes)
        if self._contract.box_fractions:
            height, width = self._contract.input_shape()
            self.constants["size"] = np.array([width, height, width, height], np.float32)
            scaling = f"\n            pixels = Mul ({corners.tensor}, size)"
            corners = _Corners("pixels", corners.nodes + scaling)
        return corners

    def _top_k(self, name: str, values: str, length: int | None) -> str:
        """Write nodes that find the largest values of each row of a tensor, at most `max_det`.

        How many there are is the smaller one of `max_det` and the length of a row. It is a constant
        `{name}_count`; or nodes compute it, if the length depends on the input.

        Args:
            name: The nodes compute the tensors `{name}_values` and `{name}_indices`.
            values: The tensor to look in, (B, length).
            length: The length of its rows; None if it depends on the input.
        """
        count_nodes = ""
        if length is None:
            count_nodes = f"""
            {name}_shape = Shape ({values})
            {name}_length = Gather ({name}_shape, row_axis)
            {name}_count = Min ({name}_length, max_det)"""
        else:
            self.constants[f"{name}_count"] = [min(self._max_det, length)]
        return f"""{count_nodes}
            {name}_values, {name}_indices = TopK <axis = -1> ({values}, {name}_count)"""

    def _gather(self, name: str, values: str, anchors: str, channel_count: int) -> str:
        """Write nodes that take the boxes, or the scores, of some anchors out of those of all N.

        ONNX's GatherElements wants an index for each number that it takes, so the index of an
        anchor is repeated for each of its channels.

        Args:
            name: The tensor to compute, (B, A, channels).
            values: The tensor to take from: (B, N, channels) with `anchors_first`, else
                (B, channels, N).
            anchors: The tensor with the indices of the anchors, (B, A).
            channel_count: The number of channels: four of boxes, or one for each class.
        """
        if self._anchors_first:
            self.constants[f"{name}_shape"] = [1, 1, channel_count]
            gathered = name
            transpose_node = ""
        else:
            self.constants[f"{name}_shape"] = [1, channel_count, 1]
            gathered = f"{name}_rows"  # (B, channels, A)
            transpose_node = f"{name} = Transpose <perm = [0, 2, 1]> ({gathered})"
        return f"""
            {name}_anchor = Unsqueeze ({anchors}, channel_axis)
            {name}_index = Expand ({name}_anchor, {name}_shape)
            {gathered} = GatherElements <axis = {self._anchor_axis}> ({values}, {name}_index)
            {transpose_node}"""
