"""Finds the head of a detector: the tensors that hold boxes and scores, and how to read them.

Tensors are told apart by what makes them, never by name or order: with four classes, boxes and
scores have one shape. Where a graph selects detections itself, the head is what it selects from, if
that can be had without the selection; else the detections it selects are read as they are.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from onnx import NodeProto

from detcli.model.contract import BoxFormat, Layout
from detcli.model.decode import (
    Boxes,
    Decoded,
    Scores,
    boxes_of,
    centre_and_size,
    columns,
    layer_of,
    makers,
    moved_inputs,
    scores_of,
    to_corners,
)
from detcli.model.graph import GraphIndex, attribute, known_size

BOX_ROWS = 4
BATCHED = 3  # axes of a tensor of boxes or scores: batch, anchors, channels
SUPPRESSION = frozenset(
    {"BatchedNMS_TRT", "EfficientNMS_TRT", "MultiClassNMS", "NonMaxSuppression"}
)
SELECTION = frozenset({*SUPPRESSION, "TopK"})
"""Operators by which a graph selects detections itself."""

INTEGERS = frozenset({5, 6, 7, 12, 13})  # ONNX's int16, int32, int64, uint32, uint64
BINS = (16, 1, 8, 32)  # of a distribution of distances, the most common first
Dims = list[int | str | None]


class Unrecognised(Exception):  # noqa: N818 - never leaves detcli.model
    """How a graph differs from every known detector; a second argument is a hint."""


class Columns(NamedTuple):
    """A tensor, or some of the entries along its channel axis."""

    tensor: str
    start: int = 0
    stop: int | None = None


@dataclass(frozen=True, slots=True)
class Head:
    """Where boxes and scores are, and how to read them.

    Attributes:
        layout: How the graph ends.
        boxes: Where the boxes are: one tensor, or one of each scale.
        scores: Where the scores are, likewise; the tensor of the boxes where they are joined.
        class_count: C, or None where that is not clear.
        anchors_first: Whether the tensors are `[B, N, channels]` instead of `[B, channels, N]`.
        decoded: How the boxes are decoded; None where that is not recognised.
        scores_are: What the scores are.
        layer: Operator of the layer that the scores come from: a convolution's cells, or a matrix
            product's queries.
        objectness: One more score comes before those of the classes, and is a factor for all.
        one_class: The graph takes the best class of each box.
        labels: Where the class ids are, of rows that the graph selects.
        most: How many detections the graph would select, where it is cut before that.
    """

    layout: Layout
    boxes: tuple[Columns, ...]
    scores: tuple[Columns, ...]
    class_count: int | None
    anchors_first: bool
    decoded: Decoded | None
    scores_are: Scores | None = Scores.SIGMOID
    layer: str = "Conv"
    objectness: bool = False
    one_class: bool = False
    labels: Columns | None = None
    most: int | None = None

    @property
    def tensors(self) -> tuple[str, ...]:
        """The tensors at which the graph is cut, each once."""
        pieces = (*self.boxes, *self.scores, *([self.labels] if self.labels else []))
        return tuple(dict.fromkeys(piece.tensor for piece in pieces))


def find_head(index: GraphIndex, names: list[str] | None) -> Head:
    """Find the head of a graph.

    Args:
        index: The graph, with its shapes.
        names: Class names that the file or its configuration gives.

    Raises:
        Unrecognised: There is none that detcli knows.
    """
    tasks_that_are_not_detection(index)
    for find in (_end_to_end, _best_class, _queries, _rows, _scales, _pair, _joined):
        if (head := find(index, names)) is not None:
            return head
    if own := {node.op_type for node in index.graph.node} & SELECTION:
        reason = f"it selects boxes itself ({', '.join(sorted(own))}), and where is not clear"
        raise Unrecognised(reason)
    if len(index.graph.output) != 1:
        raise Unrecognised(
            f"it has {len(index.graph.output)} outputs, and which are boxes and scores is not clear"
        )
    raise Unrecognised("its output is not a detection head")


def tasks_that_are_not_detection(index: GraphIndex) -> None:
    """Refuse graphs whose outputs show that they are something else.

    Raises:
        Unrecognised: The graph classifies, or gives masks only.
    """
    outputs = [index.shapes.get(output.name, []) for output in index.graph.output]
    for output, dims in zip(index.graph.output, outputs, strict=True):
        if len(dims) == BATCHED and len(outputs) > 1:
            _of_columns(index, output.name, 1)
    if len(outputs) == 1 and len(outputs[0]) == 2 and not _selects(index):
        raise Unrecognised("it classifies whole pictures: its output is [B, C]")
    if len(outputs) == 1 and len(outputs[0]) == 4:
        raise Unrecognised("it segments pictures: its output is a map [B, C, H, W]")


def _selects(index: GraphIndex) -> bool:
    return any(node.op_type in SELECTION for node in index.graph.node)


# One tensor of boxes and scores.


def _end_to_end(index: GraphIndex, names: list[str] | None) -> Head | None:  # noqa: ARG001
    """YOLOv10's tail: the head feeds the first of two top-k stages.

    TopK <- ReduceMax over the classes <- Split into boxes and scores (<- Transpose) <- body.
    NaN scores may have been replaced, as in what `detcli convert --end-to-end` appends.
    """
    for node in index.graph.node if len(index.graph.output) == 1 else ():
        reduced = index.producer(node.input[0]) if node.op_type == "TopK" else None
        if reduced is None or reduced.op_type != "ReduceMax":
            continue
        split = index.producer(reduced.input[0])
        if split is not None and split.op_type == "Where":  # IsNaN(scores), 0, scores
            split = index.producer(split.input[2])
        if split is None or not _splits_off_boxes(index, split):
            continue
        joined = split.input[0]
        transpose = index.producer(joined)
        if transpose is not None and swaps_last_axes(transpose):
            joined, first = str(transpose.input[0]), False
        else:
            first = index.axes(reduced) in ([-1], [2])
        return _of_join(index, Layout.END_TO_END, joined, split.output[-1], anchors_first=first)
    return None


def _splits_off_boxes(index: GraphIndex, node: NodeProto) -> bool:
    """Whether a node's last output is everything after the four box rows: the scores."""
    if node.op_type == "Slice" and len(node.input) > 3:  # data, starts, ends, axes
        start, end, axis = (index.constant(name) for name in node.input[1:4])
        dims = index.shapes.get(node.input[0], [])
        last = known_size(dims[axis[0]]) if axis and len(dims) == BATCHED else None
        return start == [BOX_ROWS] and end is not None and end[0] >= (last or 0)
    return node.op_type == "Split" and len(node.output) == 2


def _joined(index: GraphIndex, names: list[str] | None) -> Head | None:
    """A single output of boxes and scores, with or without objectness."""
    if len(index.graph.output) != 1 or _selects(index):
        return None
    head = index.graph.output[0].name
    dims = index.shapes.get(head, [])
    for axis in (1, 2):
        if (found := _of_columns(index, head, axis)) is not None:
            return found
    join, swapped = _join(index, head)
    if join is not None:
        first = (_axis(join) == 2) != swapped
        layout = Layout.TRANSPOSED_BODY if first else Layout.BODY
        return _of_join(index, layout, head, join.input[1], anchors_first=first)
    channels = BOX_ROWS + len(names) if names else None
    if len(dims) == BATCHED and channels in dims[1:] and dims[1] != dims[2]:
        first = channels == dims[2]
        layout = Layout.TRANSPOSED_BODY if first else Layout.BODY
        return _of_join(index, layout, head, head, anchors_first=first)
    return None


def _of_join(
    index: GraphIndex, layout: Layout, head: str, scores: str, *, anchors_first: bool
) -> Head:
    """A head of four box rows and then the scores."""
    return Head(
        layout,
        (Columns(head, 0, BOX_ROWS),),
        (Columns(head, BOX_ROWS),),
        class_count=_class_count(index, head, scores, anchors_first=anchors_first),
        anchors_first=anchors_first,
        decoded=_decode_of_join(index, head, axis=2 if anchors_first else 1),
        scores_are=scores_of(index, scores) if scores != head else Scores.SIGMOID,
    )


def _decode_of_join(index: GraphIndex, head: str, axis: int) -> Decoded | None:
    """How the box rows of a head are decoded; None where they cannot be told from the scores."""
    boxes = box_rows(index, head)
    if boxes == head:
        parts = columns(index, head, axis)
        if not parts or parts[0][0] != BOX_ROWS:
            return None
        boxes = parts[0][1]
    return boxes_of(index, boxes)


def _class_count(index: GraphIndex, head: str, scores: str, *, anchors_first: bool) -> int | None:
    dims = index.shapes.get(head, [])
    channels = dims[2 if anchors_first else 1] if len(dims) == BATCHED else None
    if isinstance(channels, int):
        return channels - BOX_ROWS if channels > BOX_ROWS else None
    # Where the shape depends on the input's, a Split may still tell, before a sigmoid or not.
    node = index.producer(scores)
    if node is not None and node.op_type == "Sigmoid":
        scores = node.input[0]
        node = index.producer(scores)
    if node is None or node.op_type != "Split" or scores not in node.output:
        return None
    sizes = index.constant(node.input[1]) if len(node.input) > 1 else None
    return sizes[list(node.output).index(scores)] if sizes else None


def _of_columns(index: GraphIndex, head: str, axis: int) -> Head | None:
    """A head whose parts show that objectness comes before the classes.

    YOLOX and YOLOv6 join [4 box rows, objectness, classes]; YOLOv5 and v7, and YOLOX with its
    decode, [centre, size, objectness and classes].

    Raises:
        Unrecognised: The parts are those of masks, poses or oriented boxes.
    """
    parts = columns(index, head, axis)
    match [size for size, _ in parts]:
        case [4, 1, int(classes)] if _sigmoids(index, parts[1:]):
            decoded = boxes_of(index, parts[0][1])
        case [2, 2, int(more)] if more > 1 and _sigmoids(index, parts[2:]):
            how = centre_and_size(index, parts[0][1], parts[1][1])
            if how is None:
                return None
            classes, decoded = more - 1, Decoded(how, BoxFormat.CXCYWH)
        case [4, int(), int(extra)] if _sigmoids(index, parts[1:2]):
            raise Unrecognised(_task_of(index, extra))
        case _:
            return None
    return Head(
        Layout.ONE_TO_MANY,
        (Columns(head, 0, BOX_ROWS),),
        (Columns(head, BOX_ROWS),),
        class_count=classes,
        anchors_first=axis == 2,
        decoded=decoded,
        objectness=True,
    )


def _sigmoids(index: GraphIndex, parts: list[tuple[int, str]]) -> bool:
    """Whether all parts are scores; a constant objectness, as YOLOv6 has, counts as one."""
    return all(
        scores_of(index, tensor) is Scores.SIGMOID or not makers_of_values(index, tensor)
        for _, tensor in parts
    )


def makers_of_values(index: GraphIndex, tensor: str) -> list[NodeProto]:
    """The nodes that make a tensor's elements, unless they are constants."""
    return [node for node in makers(index, tensor) if node.op_type not in CONSTANTS]


CONSTANTS = frozenset({"Constant", "ConstantOfShape"})


def _task_of(index: GraphIndex, extra: int) -> str:
    """What a graph does that gives so many numbers after the scores of each box."""
    if len(index.graph.output) > 1:
        return f"it segments objects: {extra} mask coefficients follow the scores of each box"
    if extra == 1:
        return "it finds oriented boxes: an angle follows the scores of each box"
    return f"it finds poses: {extra} numbers of keypoints follow the scores of each box"


def score_rows(index: GraphIndex, head: str) -> str:
    """The tensor of class scores, where a head joins it to the boxes; else the head."""
    join, _ = _join(index, head)
    return head if join is None else str(join.input[1])


def box_rows(index: GraphIndex, head: str) -> str:
    """The tensor of the four box rows, where a head joins it to the scores; else the head."""
    join, _ = _join(index, head)
    if join is None:
        return head
    rows = index.shapes.get(join.input[0], [None] * 3)[_axis(join)]
    if isinstance(rows, int) and rows != BOX_ROWS:
        raise Unrecognised(f"{rows} rows come before its class scores, not 4")
    return str(join.input[0])


def _join(index: GraphIndex, head: str) -> tuple[NodeProto | None, bool]:
    """The Concat of boxes and scores that makes a head, and whether a Transpose follows it."""
    node = index.producer(head)
    swapped = node is not None and swaps_last_axes(node)
    if node is not None and swapped:
        node = index.producer(node.input[0])
    if node is None or node.op_type != "Concat" or len(node.input) != 2 or _axis(node) == 0:
        return None, swapped
    return node, swapped


def _axis(concat: NodeProto) -> int:
    """The axis of a Concat of three-axis tensors."""
    return attribute(concat, "axis", 0) % 3


def swaps_last_axes(node: NodeProto) -> bool:
    """Whether a node is a Transpose between channels first and anchors first."""
    permutation = next((list(a.ints) for a in node.attribute if a.name == "perm"), [])
    return node.op_type == "Transpose" and permutation == [0, 2, 1]


# Boxes and scores apart.


def _pair(index: GraphIndex, names: list[str] | None) -> Head | None:  # noqa: ARG001
    """Two outputs with an entry for each anchor: boxes [B, N, 4] and scores [B, N, C]."""
    outputs = [output.name for output in index.graph.output]
    pairs = [
        head
        for boxes in outputs
        for scores in outputs
        if boxes != scores and (head := _of_pair(index, boxes, scores)) is not None
    ]
    if len(pairs) > 1:
        raise Unrecognised("two of its outputs may be the boxes, and two the scores")
    if len(outputs) > 2 and pairs and _maps(index, set(outputs) - set(pairs[0].tensors)):
        raise Unrecognised("it segments objects: masks come with its boxes and scores")
    return pairs[0] if pairs else None


def _maps(index: GraphIndex, outputs: set[str]) -> bool:
    return any(len(index.shapes.get(output, [])) == 4 for output in outputs)


def _of_pair(index: GraphIndex, boxes: str, scores: str, *, one_class: bool = False) -> Head | None:
    """Boxes and scores of the same anchors, if that is what two tensors are."""
    box_dims, score_dims = index.shapes.get(boxes, []), index.shapes.get(scores, [])
    if len(box_dims) != BATCHED or len(score_dims) != BATCHED:
        return None
    first = box_dims[2] == BOX_ROWS
    axis = 2 if first else 1
    if box_dims[axis] != BOX_ROWS or not _may_equal(box_dims[3 - axis], score_dims[3 - axis]):
        return None
    count, decoded = known_size(score_dims[axis]), boxes_of(index, boxes)
    scores_are = scores_of(index, scores)
    if count == BOX_ROWS and not _tells_apart(decoded, scores_are, scores_of(index, boxes)):
        return None
    if count is None or scores_are is None:
        return None
    return Head(
        Layout.PAIR,
        (Columns(boxes),),
        (Columns(scores),),
        class_count=count,
        anchors_first=first,
        decoded=decoded,
        scores_are=scores_are,
        layer=layer_of(index, scores),
        one_class=one_class,
    )


def _may_equal(one: int | str | None, other: int | str | None) -> bool:
    """Whether two axes may be equally long, as far as is known."""
    return one == other or not (isinstance(one, int) and isinstance(other, int))


def _tells_apart(
    decoded: Decoded | None, scores_are: Scores | None, as_scores: Scores | None
) -> bool:
    """Whether boxes and scores of one shape are which, by what makes them.

    Args:
        decoded: How the supposed boxes are decoded.
        scores_are: What the supposed scores are.
        as_scores: What the supposed boxes would be as scores.
    """
    if decoded is None or decoded.how is Boxes.LINEAR or scores_are is None:
        return False
    if decoded.how in {Boxes.SIGMOID, Boxes.REFINED}:
        return scores_are in {Scores.LINEAR, Scores.SOFTMAX}
    return as_scores is None or as_scores is Scores.LINEAR


def _best_class(index: GraphIndex, names: list[str] | None) -> Head | None:  # noqa: ARG001
    """What the best class of each box is taken of, by an ArgMax, as in DeepStream-Yolo."""
    if _selects(index):
        return None
    for node in index.graph.node:
        scores = str(node.input[0]) if node.op_type == "ArgMax" else ""
        dims = index.shapes.get(scores, [])
        if len(dims) != BATCHED or not _reaches(index, node.output[0]):
            continue
        for boxes in _box_candidates(index, index.moved_from(node.output[0])):
            if (head := _of_pair(index, boxes, scores, one_class=True)) is not None:
                return head
    return None


def _reaches(index: GraphIndex, tensor: str) -> bool:
    """Whether an output of the graph depends on a tensor's elements."""
    moved = index.moved_from(tensor)
    return any(output.name in moved for output in index.graph.output)


def _box_candidates(index: GraphIndex, selected: set[str]) -> list[str]:
    """Tensors of boxes [B, N, 4] that outputs are made of without what selects among them.

    Args:
        index: The graph.
        selected: Tensors that depend on the selection, or on the picture's size.
    """
    waiting = [output.name for output in index.graph.output]
    seen, found = set(waiting), []
    while waiting:
        name = waiting.pop(0)
        node = index.producer(name)
        dims = index.shapes.get(name, [])
        if name not in selected and len(dims) == BATCHED and dims[2] == BOX_ROWS:
            found.append(name)
            continue
        if node is None or (name not in selected and moved_inputs(node, name) is None):
            continue
        inputs = [entry for entry in node.input if entry and entry not in seen]
        seen.update(inputs)
        waiting += inputs
    return found


def _queries(index: GraphIndex, names: list[str] | None) -> Head | None:  # noqa: ARG001
    """The best of all queries and classes, taken by a TopK: what it is taken of.

    As DETR and its successors select: TopK <- Flatten (<- Sigmoid) <- scores [B, Q, C].
    """
    for node in reversed(index.graph.node):
        if node.op_type != "TopK" or any(n.op_type in SUPPRESSION for n in index.graph.node):
            continue
        scores = _flattened(index, str(node.input[0]))
        if not scores:
            continue
        selected = set().union(*(index.moved_from(name) for name in node.output))
        for extra in index.image_inputs():
            if len(index.shapes.get(extra.name, [])) < BATCHED:
                selected |= index.moved_from(extra.name)
        for boxes in _box_candidates(index, selected):
            if (head := _of_pair(index, boxes, scores)) is not None:
                count = index.constant(node.input[1]) if len(node.input) > 1 else None
                return replace(head, most=count[0] if count else None)
    return None


def _flattened(index: GraphIndex, tensor: str) -> str:
    """The tensor [B, Q, C] that was flattened, before a sigmoid; empty if there is none."""
    for _ in range(8):
        node = index.producer(tensor)
        if node is None or node.op_type not in {
            "Flatten",
            "Reshape",
            "Sigmoid",
            "Squeeze",
            "Unsqueeze",
        }:
            break
        before = index.shapes.get(node.input[0], [])
        if (
            node.op_type == "Sigmoid"
            or len(before) >= BATCHED
            or node.op_type in {"Squeeze", "Unsqueeze"}
        ):
            tensor = str(node.input[0])
        else:
            break
    else:
        return ""
    # The tensor itself may have another number of axes, where one of length 1 comes and goes.
    while len(index.shapes.get(tensor, [])) != BATCHED:
        node = index.producer(tensor)
        if node is None or node.op_type not in {"Squeeze", "Unsqueeze", "Reshape", "Gather"}:
            return ""
        tensor = str(node.input[0])
    return tensor


# Cells of each scale.


def _scales(index: GraphIndex, names: list[str] | None) -> Head | None:  # noqa: ARG001
    """Maps of each scale, as RKNN's exporter leaves them: [B, 4 * bins, H, W] and [B, C, H, W]."""
    by_size: dict[tuple[object, object], list[str]] = {}
    for output in index.graph.output:
        dims = index.shapes.get(output.name, [])
        if len(dims) != 4 or not all(isinstance(side, int) for side in dims[1:]):
            return None
        by_size.setdefault((dims[2], dims[3]), []).append(output.name)
    scales = [_scale(index, maps) for _, maps in sorted(by_size.items(), key=_area, reverse=True)]
    if len(scales) < 2 or None in scales:
        return None
    pairs = [scale for scale in scales if scale is not None]
    shapes = {(index.shapes[boxes][1], index.shapes[scores][1]) for boxes, scores in pairs}
    kinds = {scores_of(index, scores) for _, scores in pairs}
    if len(shapes) != 1 or len(kinds) != 1:
        return None
    (_, count), kind = shapes.pop(), kinds.pop()
    return Head(
        Layout.SCALES,
        tuple(Columns(boxes) for boxes, _ in pairs),
        tuple(Columns(scores) for _, scores in pairs),
        class_count=known_size(count),
        anchors_first=False,
        decoded=Decoded(Boxes.DISTANCES, BoxFormat.XYXY),
        scores_are=kind,
    )


def _area(entry: tuple[tuple[object, object], list[str]]) -> int:
    height, width = entry[0]
    return int(str(height)) * int(str(width))


def _scale(index: GraphIndex, maps: list[str]) -> tuple[str, str] | None:
    """The maps of boxes and of scores of one scale; a sum of all scores is left out."""
    channels = {name: int(str(index.shapes[name][1])) for name in maps}
    final = [name for name in maps if scores_of(index, name) is Scores.SIGMOID]
    if len(maps) == 3:  # RKNN's sum of scores, a single channel, serves to skip cells
        sums = [name for name in maps if channels[name] == 1 and name not in final]
        sums = sums or [name for name in final if channels[name] == 1][-1:]
        maps = [name for name in maps if name not in sums]
        final = [name for name in final if name in maps]
    if len(maps) != 2:
        return None
    one, other = maps
    if len(final) == 1:
        boxes = other if final == [one] else one
    else:
        distances = [name for name in maps if channels[name] in {4 * bins for bins in BINS[:2]}]
        if len(distances) != 1:
            return None
        boxes = distances[0]
    scores = other if boxes == one else one
    return (boxes, scores) if channels[boxes] % 4 == 0 else None


# Detections that the graph selects.


def _rows(index: GraphIndex, names: list[str] | None) -> Head | None:  # noqa: ARG001
    """Boxes, scores and class ids of detections, selected where the graph cannot be cut."""
    if not _selects(index):
        return None
    return _before_plugin(index) or selected_rows(index)


def selected_rows(index: GraphIndex) -> Head | None:
    """Boxes, scores and class ids of the detections that a graph ends in, if it does."""
    outputs = [output.name for output in index.graph.output]
    if len(outputs) == 1:
        pieces = _joined_rows(index, outputs[0])
    else:
        pieces = [(Columns(name), name, _last(index, name) or 0) for name in outputs]
    boxes = [(piece, tensor) for piece, tensor, size in pieces if size == BOX_ROWS]
    if len(boxes) != 1:
        return None
    (box_piece, box_tensor), rank = boxes[0], len(index.shapes.get(boxes[0][0].tensor, []))
    others = [(piece, tensor) for piece, tensor, _ in pieces if piece != box_piece]
    if len(outputs) > 1:  # a count of detections has an axis less, or one of length 1
        others = [
            (piece, tensor)
            for piece, tensor in others
            if len(index.shapes.get(tensor, [])) == rank - 1 and _last(index, tensor) != 1
        ]
    labels = [(piece, tensor) for piece, tensor in others if is_integral(index, tensor)]
    scores = [piece for piece, tensor in others if (piece, tensor) not in labels]
    labels = [(p, t) for p, t in labels if suppressed_column(index, t) != PICTURE_COLUMN]
    if len(labels) != 1 or len(scores) != 1:
        return None
    return Head(
        Layout.ROWS,
        (box_piece,),
        (scores[0],),
        class_count=_classes_of_rows(index, labels[0][1]),
        anchors_first=True,
        decoded=boxes_of(index, box_tensor),
        labels=labels[0][0],
    )


PICTURE_COLUMN, CLASS_COLUMN = 0, 1
"""Columns of what NonMaxSuppression gives: picture of the batch, class, box."""


def _last(index: GraphIndex, tensor: str) -> int | None:
    """The length of a tensor's last axis."""
    dims = index.shapes.get(tensor, [])
    return known_size(dims[-1]) if dims else None


def _joined_rows(index: GraphIndex, output: str) -> list[tuple[Columns, str, int]]:
    """The parts of rows [B, K, 6] or [K, 7]: their columns, the tensor and the number of each.

    Looks behind padding to a fixed number of rows.
    """
    width, tensor = _last(index, output), output
    for _ in range(16):
        node = index.producer(tensor)
        if node is None or width is None:
            return []
        if node.op_type == "Concat" and len(node.input) >= 3:
            sizes = [_last(index, name) or _size_of_row(index, name) for name in node.input]
            if None not in sizes and sum(filter(None, sizes)) == width:
                found, start = [], 0
                for size, name in zip(sizes, node.input, strict=True):
                    found.append((Columns(output, start, start + (size or 0)), name, size or 0))
                    start += size or 0
                return found
        moved = moved_inputs(node, tensor)
        if not moved:
            return []
        tensor = next((name for name in moved if index.constant_tensor(name) is None), moved[0])
    return []


def _size_of_row(index: GraphIndex, tensor: str) -> int | None:
    """The length of the last axis of what a tensor of unknown shape is reshaped from."""
    for node in _moved(index, tensor):
        if (size := _last(index, node)) is not None:
            return size
    return None


def _moved(index: GraphIndex, tensor: str) -> Iterator[str]:
    """The tensors behind one, through nodes that only move elements of one input."""
    for _ in range(16):
        node = index.producers.get(tensor)
        moved = None if node is None else moved_inputs(node, tensor)
        if node is not None and node.op_type in {"Cast", "Identity"}:
            moved = list(node.input)
        if not moved:
            return
        tensor = next((name for name in moved if index.constant_tensor(name) is None), moved[0])
        yield tensor


def is_integral(index: GraphIndex, tensor: str) -> bool:
    """Whether a tensor holds whole numbers, of whatever type it is."""
    for name in (tensor, *_moved(index, tensor)):
        if index.types.get(name) in INTEGERS:
            return True
        node = index.producers.get(name)
        if node is not None and node.op_type in {"Add", "Mod", "Sub"}:
            return any(is_integral(index, entry) for entry in node.input[:1])
    return False


def suppressed_column(index: GraphIndex, tensor: str) -> int | None:
    """The column of NonMaxSuppression's result that a tensor is; None if it is none."""
    for name in (tensor, *_moved(index, tensor)):
        node = index.producers.get(name)
        if node is None or node.op_type not in {"Gather", "Slice"} or len(node.input) < 2:
            continue
        source, entry = index.producer(node.input[0]), index.constant(node.input[1])
        if source is not None and source.op_type == "NonMaxSuppression" and entry:
            return entry[0]
    return None


def _classes_of_rows(index: GraphIndex, labels: str) -> int | None:
    """C of class ids, which end at C - 1: from what they were taken of."""
    offset, behind = _without_offset(index, labels)
    count: int | str | None = None
    for name in (behind, *_moved(index, behind)):
        node = index.producer(name)
        if node is not None and node.op_type == "ArgMax":
            dims, axis = index.shapes.get(node.input[0], []), attribute(node, "axis", 0)
            count = dims[axis] if -len(dims) <= axis < len(dims) else None
    if suppressed_column(index, behind) == CLASS_COLUMN:
        scores = [n.input[1] for n in index.graph.node if n.op_type == "NonMaxSuppression"]
        dims = index.shapes.get(scores[0], [])  # [B, C, N]
        count = dims[1] if len(dims) == BATCHED else None
    known = known_size(count)
    return known + offset if known else None


def _without_offset(index: GraphIndex, labels: str) -> tuple[int, str]:
    """The constant that is added to class ids, and what they are before."""
    for name in (labels, *_moved(index, labels)):
        node = index.producer(name)
        if node is not None and node.op_type == "Add":
            constants = [index.constant(entry) for entry in node.input]
            added = [entry for entry in constants if entry is not None and len(entry) == 1]
            if len(added) == 1:
                return added[0][0], next(n for n in node.input if index.constant(n) is None)
    return 0, labels


def _before_plugin(index: GraphIndex) -> Head | None:
    """What TensorRT's EfficientNMS selects from; only TensorRT has that node."""
    for node in index.graph.node:
        if node.op_type == "EfficientNMS_TRT" and len(node.input) >= 2:
            return _of_pair(index, str(node.input[0]), str(node.input[1]))
    return None


def row_corners(index: GraphIndex, head: Head) -> tuple[bool, bool] | None:
    """Whether corners of rows are y1, x1, y2, x2, and whether they are fractions of the input.

    None where the nodes between the decode of the boxes and the rows do not show it.
    """
    if head.layout is not Layout.ROWS or head.decoded is None:
        return None
    swapped = fractions = False
    tensor = box_columns(index, head)
    for _ in range(32):
        node = index.producer(tensor)
        if node is None or to_corners(index, node) or _decodes(index, tensor):
            break
        if node.op_type == "Gather" and index.constant(node.input[1]) == [1, 0, 3, 2]:
            swapped = not swapped
        if node.op_type in {"Div", "Mul"}:
            factor = index.array(node.input[1])
            large = factor is not None and bool(factor.min() > MAX_FACTOR)
            fractions |= node.op_type == "Div" and large
            tensor = str(node.input[0])
            continue
        moved = moved_inputs(node, tensor)
        if not moved:
            return None
        tensor = next((name for name in moved if index.constant_tensor(name) is None), moved[0])
    return swapped, fractions


MAX_FACTOR = 16.0
"""Boxes that are divided by more are divided by the size of the input."""


def box_columns(index: GraphIndex, head: Head) -> str:
    """The tensor of the boxes of rows, before a join with scores and class ids."""
    piece = head.boxes[0]
    rows = _joined_rows(index, piece.tensor) if piece.stop is not None else []
    return next((tensor for part, tensor, _ in rows if part == piece), piece.tensor)


def _decodes(index: GraphIndex, tensor: str) -> bool:
    """Whether a tensor is where boxes are decoded: a join of several parts."""
    node = index.producer(tensor)
    if node is None or node.op_type != "Concat":
        return False
    return sum(index.constant_tensor(name) is None for name in node.input) > 1
