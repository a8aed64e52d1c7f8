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
MIN_OPSET = 13  # Split and Unsqueeze take sizes and axes as inputs since this opset
AXES_ARE_AN_INPUT = 18  # the opset since which this holds for ReduceMax


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

    # `cut` makes the head the only output. It stops being one, but keeps its declared type and
    # shape.
    body = cut(model, head_name)
    graph = body.graph
    head = graph.output.pop()
    graph.value_info.append(head)
    if OUTPUT in tensor_names(graph):
        raise ModelError(f"a tensor of the graph has the name {OUTPUT} already")

    # The nodes are written as text, in which the tensor to read is `head`. `graph_name_of` has the
    # names in the graph by those in the text.
    writer = _SelectionWriter(contract, max_det, opset(model), anchors_first=anchors_first)
    nodes = writer.write_nodes()
    graph_name_of = {OUTPUT: OUTPUT}
    if head.type.tensor_type.elem_type == TensorProto.FLOAT16:
        # The nodes read `head` in float32. So the head of the graph is `half` in the text, and a
        # node before the others casts it to `head`.
        nodes.insert(0, "head = Cast <to = 1> (half)")
        graph_name_of["half"] = head_name
        float32_head = helper.make_tensor_value_info(
            f"{PREFIX}head", TensorProto.FLOAT, shape(head)
        )
        graph.value_info.append(float32_head)
    else:
        graph_name_of["head"] = head_name

    _append_nodes(graph, nodes, writer.constants, graph_name_of)
    graph.output.append(_output_value(contract, max_det))
    return body


class _HeadTensor(NamedTuple):
    """The tensor of boxes and scores to select from."""

    name: str
    anchors_first: bool  # it is (B, N, 4 + C) instead of (B, 4 + C, N)


def _find_head_to_read(model: ModelProto, contract: Contract) -> _HeadTensor:
    """Find the tensor for the selection to read: the head, or the tensor that it is copied from.

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

    # The node that computes the values of the head. The method `producer` passes over nodes that
    # only hand them on, such as an Identity.
    computing_node = index.producer(contract.head)
    if computing_node is not None and swaps_last_axes(computing_node):
        return _HeadTensor(str(computing_node.input[0]), anchors_first=not anchors_first)

    # The very last node, which may be such an Identity. The dict `producers` passes over nothing.
    last_node = index.producers.get(contract.head)
    if last_node is not None and last_node.op_type == "Identity":
        return _HeadTensor(str(last_node.input[0]), anchors_first)
    return _HeadTensor(contract.head, anchors_first)


def _append_nodes(
    graph: GraphProto,
    lines: list[str],
    constants: Mapping[str, Any],
    graph_name_of: Mapping[str, str],
) -> None:
    """Append nodes that are written as text, in the notation of `onnx.parser`, to a graph.

    A tensor `best` of the text becomes `selection/best` in the graph, so that it cannot have the
    name of another tensor. Exceptions are the tensors that the graph has already, and its output.

    Args:
        graph: The graph, which is changed.
        lines: The nodes, one a line, such as "nan = IsNaN (scores)".
        constants: Values by the names that the text has for them. Those that a node reads become
            constants of the graph.
        graph_name_of: For the exceptions, the name in the graph by the name in the text.
    """
    text = "\n".join(lines)
    nodes = onnx.parser.parse_graph(f"selection () => () {{ {text} }}").node
    added_constants = set()
    for node in nodes:
        for name in node.input:
            if name in constants and name not in added_constants:
                add_constant(graph, f"{PREFIX}{name}", np.array(constants[name]))
                added_constants.add(name)

    for node in nodes:
        node.name = f"{PREFIX}{node.output[0]}"
        node.input[:] = [graph_name_of.get(name, f"{PREFIX}{name}") for name in node.input]
        node.output[:] = [graph_name_of.get(name, f"{PREFIX}{name}") for name in node.output]
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
        ModelError: The graph selects for itself, needs a different selection, or is too old.
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
    """The corners of the selected boxes in pixels, as a tensor and the nodes that compute it."""

    tensor: str  # its name; the tensor is (B, K, 4)
    nodes: list[str]  # lines of text; none if the boxes are corners in pixels already


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
            self._anchor_axis = 2
            self._channel_axis = 1
        self._has_logits = contract.score_form is ScoreForm.LOGITS
        lowest_score = 0.0
        if self._has_logits:
            lowest_score = -np.inf

        # The constants that the nodes read, by the names that they have in the text of the nodes.
        # Methods that write nodes with more constants add these.
        self.constants: dict[str, Any] = {
            # Where nodes split the channels of the head into boxes and scores, and the coordinates
            # of a box into centre and size.
            "sizes": [BOX_COORDINATES, contract.class_count],
            "pair_sizes": [2, 2],
            "classes": contract.class_count,
            "max_det": [max_det],
            # Axes, counted from 0: of a row of values (B, values), of channels in the head, and the
            # last one of (B, K, channels).
            "row_axis": [1],
            "channel_axis": [self._channel_axis],
            "last_axis": [2],
            "nothing": np.float32(lowest_score),  # the score in place of NaN, which never wins
            "one": np.float32(1),
            "two": np.float32(2),
        }

    def write_nodes(self) -> list[str]:
        """Write all nodes of the selection, from the tensor `head` to the tensor `detections`.

        The constants that they read are in `constants` afterwards.

        Returns:
            Lines such as "nan = IsNaN (scores)", in the notation of `onnx.parser`.
        """
        nodes = self._best_anchors()
        if self._contract.multi_label is MultiLabel.NEVER:
            nodes += self._best_class_of_each_anchor()
        else:
            nodes += self._best_classes_of_anchors()
        nodes += self._detections()
        return nodes

    def _best_anchors(self) -> list[str]:
        """Write nodes that find the A anchors with the best scores.

        They read the tensor `head` and two constants: `sizes`, the numbers of channels of boxes and
        of scores, and `nothing`, the lowest score. They compute these tensors:

        - `boxes`: the boxes of all N anchors.
        - `sound`: the scores of all N anchors, with `nothing` in place of NaN.
        - `anchor_indices` (B, A): the indices of the A best anchors.
        - `anchor_values` (B, A): the best score of each of these.
        """
        max_arguments = "<keepdims = 0> (sound, channel_axis)"
        if self._opset_version < AXES_ARE_AN_INPUT:
            max_arguments = f"<keepdims = 0, axes = [{self._channel_axis}]> (sound)"
        nodes = [
            f"boxes, scores = Split <axis = {self._channel_axis}> (head, sizes)",
            "nan = IsNaN (scores)",
            "sound = Where (nan, nothing, scores)",
            f"best = ReduceMax {max_arguments}",  # (B, N), the best score of each anchor
        ]
        return nodes + self._top_k("anchor", "best", self._contract.anchor_count)

    def _best_classes_of_anchors(self) -> list[str]:
        """Write nodes that select detections: the K highest scores of any class, of A anchors.

        So an anchor may give several detections, of different classes.

        The nodes read these tensors:

        - `sound`: the scores of all N anchors, without NaN.
        - `anchor_indices` (B, A): the indices of the A anchors with the best scores.

        They compute these tensors (B, K), with an entry for each detection:

        - `row_values`: its score.
        - `class`: its class.
        - `chosen`: the index of its anchor.
        """
        class_count = self._contract.class_count
        score_count = None  # of an image; it depends on the input if the number of anchors does
        if self._contract.anchor_count is not None:
            score_count = self._contract.anchor_count * class_count

        # The scores of the A anchors are `kept` (B, A, C). As a single row for each image, they are
        # `flat` (B, A * C).
        nodes = self._gather("kept", "sound", "anchor_indices", class_count)
        nodes.append("flat = Flatten <axis = 1> (kept)")
        nodes += self._top_k("row", "flat", score_count)  # `row_values` and `row_indices`, (B, K)

        # The row has the scores anchor by anchor. With C = 3 classes, its index 7 is that of the
        # anchor of rank 7 / 3 = 2, and of the class 7 mod 3 = 1.
        nodes += [
            "rank = Div (row_indices, classes)",
            "class = Mod (row_indices, classes)",
            "chosen = GatherElements <axis = 1> (anchor_indices, rank)",
        ]
        return nodes

    def _best_class_of_each_anchor(self) -> list[str]:
        """Write nodes that take the best class of each of the A anchors, and no other.

        They compute the same tensors as those of `_best_classes_of_anchors`.
        """
        return [
            f"best_class = ArgMax <axis = {self._channel_axis}, keepdims = 0> (sound)",
            "class = GatherElements <axis = 1> (best_class, anchor_indices)",
            "row_values = Identity (anchor_values)",
            "chosen = Identity (anchor_indices)",
        ]

    def _detections(self) -> list[str]:
        """Write nodes that join corners, score and class of each detection to `detections`.

        The result is (B, K, 6). The nodes read these tensors:

        - `boxes`: the boxes of all N anchors.
        - `chosen` (B, K): for each detection, the index of its anchor.
        - `row_values` (B, K): its score, or the logit of its score.
        - `class` (B, K): its class.
        """
        nodes = self._gather("chosen_boxes", "boxes", "chosen", BOX_COORDINATES)
        corners = self._corners()
        nodes += corners.nodes
        if self._has_logits:
            nodes.append("score = Sigmoid (row_values)")
        else:
            nodes.append("score = Min (row_values, one)")  # scores of quantised heads may exceed 1
        nodes += [
            "score_column = Unsqueeze (score, last_axis)",
            "class_number = Cast <to = 1> (class)",  # to float32
            "class_column = Unsqueeze (class_number, last_axis)",
            f"{OUTPUT} = Concat <axis = 2> ({corners.tensor}, score_column, class_column)",
        ]
        return nodes

    def _corners(self) -> _Corners:
        """Write nodes that turn the selected boxes, `chosen_boxes`, into corners in pixels.

        Boxes of centre and size become corners, then fractions of the input become pixels. Where
        the boxes are corners in pixels already, no nodes are needed. The size of the input is added
        to `constants` if nodes read it.
        """
        tensor = "chosen_boxes"
        nodes = []
        if self._contract.box_format is BoxFormat.CXCYWH:
            nodes += [
                "centre, extent = Split <axis = 2> (chosen_boxes, pair_sizes)",
                "half_extent = Div (extent, two)",
                "low = Sub (centre, half_extent)",
                "high = Add (centre, half_extent)",
                "corners = Concat <axis = 2> (low, high)",
            ]
            tensor = "corners"
        if self._contract.box_fractions:
            height, width = self._contract.input_shape()
            # A factor for each coordinate: x1, y1, x2, y2.
            self.constants["size"] = np.array([width, height, width, height], np.float32)
            nodes.append(f"pixels = Mul ({tensor}, size)")
            tensor = "pixels"
        return _Corners(tensor, nodes)

    def _top_k(self, name: str, values: str, length: int | None) -> list[str]:
        """Write nodes that find the `max_det` largest values of each row of a tensor.

        A row with fewer values gives all of them. Their number is added to `constants` as
        `{name}_count`; if the length of a row depends on the input, nodes compute it instead.

        Args:
            name: The nodes compute the tensors `{name}_values` and `{name}_indices`.
            values: The tensor to look in, (B, length).
            length: The length of its rows; None if it depends on the input.
        """
        nodes = []
        if length is None:
            nodes += [
                f"{name}_shape = Shape ({values})",
                f"{name}_length = Gather ({name}_shape, row_axis)",
                f"{name}_count = Min ({name}_length, max_det)",
            ]
        else:
            self.constants[f"{name}_count"] = [min(self._max_det, length)]
        top_k = f"TopK <axis = -1> ({values}, {name}_count)"
        nodes.append(f"{name}_values, {name}_indices = {top_k}")
        return nodes

    def _gather(self, name: str, values: str, anchors: str, channel_count: int) -> list[str]:
        """Write nodes that select the boxes, or the scores, of the given anchors from all N.

        ONNX's GatherElements takes individual numbers, each by an index. So the index of an anchor
        is repeated for each of its channels. The shape for that is added to `constants`.

        Args:
            name: The tensor to compute, (B, A, channels).
            values: The tensor to take from: (B, N, channels) with `anchors_first`, else
                (B, channels, N).
            anchors: The tensor with the indices of the anchors, (B, A).
            channel_count: The number of channels: four of boxes, or one for each class.
        """
        nodes = [
            f"{name}_anchor = Unsqueeze ({anchors}, channel_axis)",
            f"{name}_index = Expand ({name}_anchor, {name}_shape)",
        ]
        gather = f"GatherElements <axis = {self._anchor_axis}> ({values}, {name}_index)"
        if self._anchors_first:
            self.constants[f"{name}_shape"] = [1, 1, channel_count]
            nodes.append(f"{name} = {gather}")
        else:
            self.constants[f"{name}_shape"] = [1, channel_count, 1]
            nodes.append(f"{name}_rows = {gather}")  # (B, channels, A)
            nodes.append(f"{name} = Transpose <perm = [0, 2, 1]> ({name}_rows)")
        return nodes
