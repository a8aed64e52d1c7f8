"""Finds heads of one tensor: boxes and then scores, with or without objectness between."""

import itertools
from dataclasses import replace

from onnx import NodeProto

from detcli.model.contract import Layout
from detcli.model.graph import GraphIndex, attribute, integers
from detcli.model.heads.decode import (
    BATCHED,
    BOX_ROWS,
    BOXES_ONLY,
    DETECTORS,
    SELECTION,
    Activation,
    BoxDecode,
    Columns,
    Decoded,
    Head,
    Parts,
    Unrecognised,
    boxes_of,
    columns,
    computed,
    decoded_from,
    layer_of,
    layers_of,
    makers,
    scores_of,
)


def end_to_end(index: GraphIndex, *, boxes_only: bool) -> Head | None:
    """YOLOv10's tail: the head feeds the first of two top-k stages.

    TopK <- ReduceMax over the classes <- Split into boxes and scores (<- Transpose) <- body.
    NaN scores may have been replaced, as in what `detcli convert --end-to-end` appends.
    """
    for node in index.nodes("TopK"):
        reduced = index.producer(node.input[0], "ReduceMax")
        if reduced is None:
            continue
        guard = index.producer(reduced.input[0], "Where")  # IsNaN(scores), 0, scores
        split = index.producer(guard.input[2] if guard else reduced.input[0])
        if split is None or not _splits_off_boxes(index, split):
            continue
        head = split.input[0]
        transpose = index.producer(head)
        if transpose is not None and swaps_last_axes(transpose):
            head, first = transpose.input[0], False
        else:
            first = index.axes(reduced) in ([-1], [2])
        if len(split.output) == 3:
            axis = attribute(split, "axis", 0)
            classes, extra = (index.size(name, axis) for name in split.output[1:])
            if not boxes_only or classes is None:
                raise Unrecognised(_task_of(index, extra), BOXES_ONLY)
            return _boxes_of_more(index, head, classes, first=first)
        if len(index.graph.output) == 1:
            found = _of_join(index, head, split.output[-1], first=first)
            return replace(found, layout=Layout.END_TO_END)
    return None


def _splits_off_boxes(index: GraphIndex, node: NodeProto) -> bool:
    """True if a node's output is what follows the four box rows: scores, or scores and more."""
    if node.op_type == "Slice" and len(node.input) > 3:  # data, starts, ends, axes
        start, end, axis = (index.constant(name) for name in node.input[1:4])
        dims = index.shapes[node.input[0]]
        last = index.size(node.input[0], axis[0]) if axis and len(dims) == BATCHED else None
        return start == [BOX_ROWS] and end is not None and end[0] >= (last or 0)
    if node.op_type != "Split" or len(node.output) not in {2, 3}:
        return False
    return index.size(node.output[0], attribute(node, "axis", 0)) in {BOX_ROWS, None}


def single_tensor(index: GraphIndex, names: list[str] | None, *, boxes_only: bool) -> Head | None:
    """A head that is an output."""
    outputs = [output.name for output in index.graph.output]
    # Maps that the head is made of, of YOLOv5 exported for training.
    inner = [name for name in outputs if index.moved_from(name) & (set(outputs) - {name})]
    candidates = [name for name in outputs if name not in inner]
    for head in candidates:
        for axis in (1, 2):
            found = _of_columns(index, head, axis, boxes_only=boxes_only)
            if found is not None and (len(candidates) == 1 or boxes_only):
                return found
    alone = len(candidates) == 1 and not index.nodes(*SELECTION)
    return _unjoined(index, candidates[0], names) if alone else None


def _are_of_queries(index: GraphIndex, boxes: list[str], rest: Parts) -> bool:
    """True if graphs choose queries, not detections: layers behind the choice make the scores."""
    layers = {layer for _, name in rest for layer in layers_of(index, name)}
    for node in index.nodes(*SELECTION):
        made = index.moved_from(node.output[1]) if node.op_type == "TopK" else set()
        if not layers or not layers <= made or not made.issuperset(boxes):
            return False
    return True


def _unjoined(index: GraphIndex, head: str, names: list[str] | None) -> Head | None:
    """A head whose parts are of unknown length."""
    dims = index.shapes[head]
    join, swapped = _join(index, head)
    if join is not None:
        first = (_axis(join) == 2) != swapped
        return _of_join(index, head, join.input[1], first=first)
    channels = BOX_ROWS + len(names) if names else None
    if len(dims) == BATCHED and channels in dims[1:] and dims[1] != dims[2]:
        return _of_join(index, head, head, first=channels == dims[2])
    return None


def _head(tensor: str, classes: int | None, *, first: bool, stop: int | None = None) -> Head:
    """A head of four box rows and then the scores, whose making is not known."""
    return Head(
        Layout.TRANSPOSED_BODY if first else Layout.BODY,
        (Columns(tensor, 0, BOX_ROWS),),
        (Columns(tensor, BOX_ROWS, stop),),
        class_count=classes,
        anchors_first=first,
        decoded=None,
    )


def _of_join(index: GraphIndex, head: str, scores: str, *, first: bool) -> Head:
    """A head of four box rows and then the scores."""
    boxes = box_rows(index, head)
    if boxes == head:  # empty where they cannot be told from the scores
        parts = columns(index, head, 2 if first else 1)
        boxes = parts[0][1] if parts and parts[0][0] == BOX_ROWS else ""
    return replace(
        _head(head, _class_count(index, head, scores, first=first), first=first),
        decoded=boxes_of(index, boxes) if boxes else None,
        scores_are=scores_of(index, scores) if scores != head else Activation.SIGMOID,
        layer=layer_of(index, boxes) if boxes else "",
    )


def _class_count(index: GraphIndex, head: str, scores: str, *, first: bool) -> int | None:
    dims = index.shapes[head]
    channels = dims[2 if first else 1] if len(dims) == BATCHED else None
    if isinstance(channels, int):
        return channels - BOX_ROWS if channels > BOX_ROWS else None
    # Where the shape depends on the input's, a Split may still tell, before a sigmoid or not.
    if (sigmoid := index.producer(scores, "Sigmoid")) is not None:
        scores = sigmoid.input[0]
    node = index.producer(scores, "Split")
    if node is None:
        return None
    sizes = index.constant(node.input[1]) if len(node.input) > 1 else None
    return sizes[list(node.output).index(index.computed_as(scores))] if sizes else None


def _of_columns(index: GraphIndex, head: str, axis: int, *, boxes_only: bool) -> Head | None:
    """A head whose parts are known.

    YOLOv8 and its successors join [4 box rows or two halves of them, classes]; YOLOX and v6 [4,
    objectness, classes]; YOLOv5, v7, and YOLOX with its decode [centre, size, objectness and
    classes].
    """
    boxes, rest = _after_boxes(columns(index, head, axis))
    if not rest or not _are_of_queries(index, boxes, rest):
        return None
    decoded = decoded_from(index, boxes)
    if decoded is None and len(boxes) > 1:
        return None
    known = _classes_of(index, decoded, rest)
    if known is None:
        return _of_more(index, head, rest, first=axis == 2, boxes_only=boxes_only)
    classes, objectness = known
    layer = next(filter(None, (layer_of(index, name) for name in boxes)), "")
    found = _head(head, classes, first=axis == 2)
    return replace(
        found,
        layout=Layout.ONE_TO_MANY if objectness else found.layout,
        decoded=decoded,
        scores_are=Activation.SIGMOID if objectness else scores_of(index, rest[0][1]),
        layer=layer,
        objectness=objectness,
    )


def _of_more(
    index: GraphIndex, head: str, rest: Parts, *, first: bool, boxes_only: bool
) -> Head | None:
    """A head whose scores are followed by something else, if only its boxes are wanted."""
    (classes, name), *more = rest
    if not more or not _is_final(index, name):
        return None
    extra = [size for size, _ in more]
    angle = extra == [1] and len(index.graph.output) == 1  # it turns the boxes
    if not boxes_only or angle:
        raise Unrecognised(_task_of(index, sum(extra)), DETECTORS if angle else BOXES_ONLY)
    return _boxes_of_more(index, head, classes, first=first)


def _classes_of(index: GraphIndex, decoded: Decoded | None, rest: Parts) -> tuple[int, bool] | None:
    """C, and whether an objectness comes before the classes; None if there is more than these."""
    size, name = rest[-1]
    how = None if decoded is None else decoded.how
    if len(rest) == 1:
        if how not in {BoxDecode.GRID, BoxDecode.EXPONENTIAL}:  # those of anchor boxes
            return size, False
        # It may have been multiplied into the others before.
        if _is_final(index, name) and "Mul" not in {n.op_type for n in makers(index, name)}:
            return size - 1, True
        if scores_of(index, name) is None:
            raise Unrecognised("it is not clear whether its scores begin with an objectness")
        return size, False
    if len(rest) > 2 or rest[0][0] != 1 or not all(_is_final(index, part) for _, part in rest):
        return None
    if how is BoxDecode.DISTANCES and computed(index, rest[0][1]):
        raise Unrecognised("it is not clear what the number between its boxes and scores is")
    return size, True


def _is_final(index: GraphIndex, tensor: str) -> bool:
    """True if a part is scores; a constant objectness, as YOLOv6 has, counts as one."""
    return scores_of(index, tensor) is Activation.SIGMOID or not computed(index, tensor)


def _after_boxes(parts: Parts) -> tuple[list[str], Parts]:
    """The parts that make up the first four channels, and those that follow; empty if none do."""
    ends = [*itertools.accumulate(size for size, _ in parts)]
    count = ends.index(BOX_ROWS) + 1 if BOX_ROWS in ends else 0
    return [name for _, name in parts[:count]], parts[count:] if count else []


def _boxes_of_more(index: GraphIndex, head: str, classes: int, *, first: bool) -> Head:
    """The boxes and scores of a head that masks or keypoints follow in."""
    boxes, _ = _after_boxes(columns(index, head, 2 if first else 1))
    return replace(
        _head(head, classes, first=first, stop=BOX_ROWS + classes),
        decoded=decoded_from(index, boxes),
        left_out=True,
    )


def _task_of(index: GraphIndex, extra: int | None) -> str:
    """The task of a graph, told by how many numbers follow the scores of each box."""
    if extra is None:
        return "masks, keypoints or angles follow the scores of each box"
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
    rows = index.size(join.input[0], _axis(join))
    if rows not in {None, BOX_ROWS}:
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
    rows = index.shapes[node.output[0]]
    if len(rows) == BATCHED and rows[_axis(node)] == BOX_ROWS:
        return None, swapped  # of centre and size, or of two corners
    return node, swapped


def _axis(concat: NodeProto) -> int:
    return attribute(concat, "axis", 0) % 3


def swaps_last_axes(node: NodeProto) -> bool:
    """True if a node is a Transpose between channels first and anchors first."""
    permutation = integers(node, "perm")
    return node.op_type == "Transpose" and permutation == [0, 2, 1]
