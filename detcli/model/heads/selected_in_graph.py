"""Finds the detections of a graph that selects them itself, where it cannot be cut before that."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from onnx import NodeProto

from detcli.model.contract import Layout
from detcli.model.graph import GraphIndex, attribute
from detcli.model.heads import (
    BATCHED,
    BOX_ROWS,
    BOXES_ONLY,
    SELECTION,
    ChannelRange,
    Head,
    Unrecognised,
)
from detcli.model.heads.decode import (
    MAX_FACTOR,
    boxes_of,
    cut_along,
    layer_of,
    moved_inputs,
    to_corners,
)

INTEGERS = frozenset({5, 6, 7, 12, 13})  # ONNX's int16, int32, int64, uint32, uint64
PICTURE_COLUMN, CLASS_COLUMN = 0, 1
"""ChannelRange of what NonMaxSuppression gives: picture of the batch, class, box."""


def detections_head(index: GraphIndex, *, boxes_only: bool) -> Head | None:
    """The detections of a graph that selects them itself."""
    head = selected_detections(index) if index.nodes(*SELECTION) else None
    if head is None:
        return None
    axes = len(index.shapes[head.boxes[0].tensor])
    shapes = [index.shapes[output.name] for output in index.graph.output]
    more = [dims for dims in shapes if len(dims) > axes]
    if (more or head.has_more) and not boxes_only:
        points = all(dims[-1] in {2, 3} for dims in more)  # column, row, and how sure
        task = "it finds poses: keypoints come" if points else "it segments objects: masks come"
        raise Unrecognised(f"{task} with its detections", BOXES_ONLY)
    return replace(head, has_more=head.has_more or bool(more))


class OutputPart(NamedTuple):
    """A part of an output: where it is, the tensor that was joined there, and how many columns."""

    columns: ChannelRange
    tensor: str
    size: int


def selected_detections(index: GraphIndex) -> Head | None:
    """Boxes, scores and class ids of the detections that a graph ends in, if it does."""
    pieces = [piece for output in index.graph.output for piece in _pieces(index, output.name)]
    kept = [piece for piece in pieces if not _follows_row(piece, pieces)]
    has_more, pieces = len(kept) < len(pieces), kept
    boxes = [piece for piece in pieces if piece.size == BOX_ROWS]
    others = _others(index, pieces, boxes[0].columns) if len(boxes) == 1 else []
    scores = [one for one in others if not is_integral(index, one.tensor)]
    labels = [
        one
        for one in others
        if one not in scores and suppressed_column(index, one.tensor) != PICTURE_COLUMN
    ]
    if len(labels) != 1 or len(scores) != 1:
        return None
    return Head(
        Layout.ROWS,
        (boxes[0].columns,),
        (scores[0].columns,),
        class_count=_classes_of_rows(index, labels[0].tensor),
        anchors_first=True,
        decoded=boxes_of(index, boxes[0].tensor),
        layer=layer_of(index, boxes[0].tensor),
        labels=labels[0].columns,
        has_more=has_more,
    )


def _follows_row(piece: OutputPart, pieces: list[OutputPart]) -> bool:
    """True if a part is what Ultralytics joins to box, score and class: mask or keypoints.

    Oriented boxes have one column there, their angle.
    """
    row = [one for one in pieces if one.columns.tensor == piece.columns.tensor]
    sizes = [one.size for one in row[:-1]]
    return row[-1] is piece and sizes == [BOX_ROWS, 1, 1] and piece.size > 1


def _others(index: GraphIndex, pieces: list[OutputPart], boxes: ChannelRange) -> list[OutputPart]:
    """What may be scores and class ids beside boxes."""
    rank = len(index.shapes[boxes.tensor])
    images = [v.name for v in index.image_inputs() if len(index.shapes[v.name]) >= BATCHED]
    seen = set().union(*map(index.moved_from, images))
    inside = [one for one in pieces if one.columns.tensor == boxes.tensor]
    # A column that does not depend on the picture is its number in the batch.
    beside = [one for one in inside if one.columns != boxes and one.tensor in seen]
    if len(beside) > 1:
        return beside
    return beside + [  # a count of detections has an axis less, or one of length 1
        one
        for one in pieces
        if one not in inside
        and len(index.shapes[one.tensor]) == rank - 1
        and index.size(one.tensor, -1) != 1
    ]


def _pieces(index: GraphIndex, output: str) -> list[OutputPart]:
    """The parts of an output, as `_joined_rows` gives them; else the whole of it."""
    width = index.size(output, -1) or 0
    if not width and len(index.shapes[output]) == BATCHED:
        width = _size_of_row(index, output)
    rows = _joined_rows(index, output) if width > BOX_ROWS else []
    return _with_boxes(index, rows) or [OutputPart(ChannelRange(output), output, width)]


def _with_boxes(index: GraphIndex, parts: list[OutputPart]) -> list[OutputPart]:
    """Parts of rows, with the sides of the boxes as one, if they were cut out of one tensor."""
    for first in range(len(parts) - BOX_ROWS + 1):
        sides = parts[first : first + BOX_ROWS]
        cuts = [_cut_from(index, side.tensor) for side in sides if side.size == 1]
        source = cuts[0][0] if cuts else ""
        if source and cuts == [(source, place) for place in range(BOX_ROWS)]:
            start = sides[0].columns.start
            columns = ChannelRange(sides[0].columns.tensor, start, start + BOX_ROWS)
            boxes = OutputPart(columns, source, BOX_ROWS)
            return [*parts[:first], boxes, *parts[first + BOX_ROWS :]]
    return parts


def _cut_from(index: GraphIndex, tensor: str) -> tuple[str, int]:
    """What a column was cut out of along the last axis, and its place; empty if it was not."""
    for name in _trail(index, tensor):
        node = index.producer(name, "Gather", "Slice", "Split")
        if node is None:
            continue
        rank = len(index.shapes[node.input[0]])
        axis, place = cut_along(index, node, index.computed_as(name))
        return (node.input[0], place) if axis == rank - 1 else ("", 0)
    return "", 0


def six_columns(index: GraphIndex) -> Head | None:
    """The only output as rows `[B, K, 6]` of corners, score and class id, in this order."""
    output = index.graph.output[0].name
    if index.size(output, -1) != BOX_ROWS + 2:
        return None
    boxes, scores, labels = (ChannelRange(output, *ends) for ends in ((0, 4), (4, 5), (5, 6)))
    return Head(
        Layout.ROWS, (boxes,), (scores,), None, anchors_first=True, decoded=None, labels=labels
    )


def _joined_rows(index: GraphIndex, output: str) -> list[OutputPart]:
    """The parts of rows such as [B, K, 6] or [K, 7].

    Looks behind padding to a fixed number of rows.
    """
    width = index.size(output, -1)
    for tensor in _trail(index, output):
        join = index.producer(tensor, "Concat")
        # Ultralytics joins the masks that a detector has none of, as a part without columns.
        parts = [name for name in join.input if index.shapes[name][-1:] != [0]] if join else []
        sizes = [_size_of_row(index, name) for name in parts]
        if sizes and 0 not in sizes and sum(sizes) == width:
            ends = itertools.accumulate(sizes)
            return [
                OutputPart(ChannelRange(output, end - size, end), name, size)
                for end, size, name in zip(ends, sizes, parts, strict=True)
            ]
    return []


def _size_of_row(index: GraphIndex, tensor: str) -> int:
    """The length of the last axis, of what it is reshaped from if unknown; 0 if that is, too."""
    return next(filter(None, (index.size(name, -1) for name in _trail(index, tensor))), 0)


def _trail(index: GraphIndex, tensor: str) -> Iterator[str]:
    """A tensor and those behind it, through nodes that only move elements of one input."""
    for _ in range(16):
        yield tensor
        node = index.producers.get(tensor)
        if node is None:
            return
        handed_on = node.op_type in {"Cast", "Identity"}
        tensor = node.input[0] if handed_on else _moved(index, node, tensor)
        if not tensor:
            return
    yield tensor


def _moved(index: GraphIndex, node: NodeProto, output: str) -> str:
    """The input whose elements a node moves, a computed one first; empty if it makes elements."""
    inputs = moved_inputs(node, output) or [""]
    return next((name for name in inputs if index.constant_tensor(name) is None), inputs[0])


def is_integral(index: GraphIndex, tensor: str) -> bool:
    """True if a tensor holds whole numbers, of whatever type it is."""
    for name in _trail(index, tensor):
        if index.types.get(name) in INTEGERS:
            return True
        node = index.producers.get(name)
        if node is not None and node.op_type in {"Add", "Mod", "Sub"}:
            return is_integral(index, node.input[0])
    return False


def suppressed_column(index: GraphIndex, tensor: str) -> int | None:
    """The column of NonMaxSuppression's result that a tensor is; None if it is none."""
    for name in _trail(index, tensor):
        node = index.producers.get(name)
        if node is None or node.op_type not in {"Gather", "Slice", "Split"} or len(node.input) < 2:
            continue
        entry = index.constant(node.input[1])
        if index.producer(node.input[0], "NonMaxSuppression") and entry:
            return list(node.output).index(name) if node.op_type == "Split" else entry[0]
    return None


def _classes_of_rows(index: GraphIndex, labels: str) -> int | None:
    """C of class ids, which end at C - 1: from what they were taken of."""
    offset, behind = _without_offset(index, labels)
    count = None
    for name in _trail(index, behind):
        if (node := index.producer(name, "ArgMax")) is not None:
            count = index.size(node.input[0], attribute(node, "axis", 0))
    if suppressed_column(index, behind) == CLASS_COLUMN:
        scores = index.nodes("NonMaxSuppression")[0].input[1]
        batched = len(index.shapes[scores]) == BATCHED  # [B, C, N]
        count = index.size(scores, 1) if batched else None
    return count + offset if count else None


def _without_offset(index: GraphIndex, labels: str) -> tuple[int, str]:
    """The constant that is added to class ids, and what they are before."""
    for name in _trail(index, labels):
        if (node := index.producer(name, "Add")) is not None:
            constants = [index.constant(entry) for entry in node.input]
            added = [entry for entry in constants if entry is not None and len(entry) == 1]
            if len(added) == 1:
                return added[0][0], next(n for n in node.input if index.constant(n) is None)
    return 0, labels


def corner_order(index: GraphIndex, head: Head) -> tuple[bool, bool] | None:
    """True if corners of rows are y1, x1, y2, x2, and whether they are fractions of the input.

    None where the nodes between the decode of the boxes and the rows do not show it.
    """
    if head.layout is not Layout.ROWS or head.decoded is None:
        return None
    swapped = fractions = False
    tensor = box_columns(index, head)
    for _ in range(32):
        node = index.producer(tensor)
        if node is None or to_corners(index, node):
            break
        joined = node.input if node.op_type == "Concat" else ()
        if sum(index.constant_tensor(name) is None for name in joined) > 1:
            break  # several parts are joined: boxes are decoded
        if node.op_type == "Gather" and index.constant(node.input[1]) == [1, 0, 3, 2]:
            swapped = not swapped
        if node.op_type in {"Div", "Mul"}:
            factor = index.array(node.input[1])
            large = factor is not None and bool(factor.min() > MAX_FACTOR)
            fractions |= node.op_type == "Div" and large
            tensor = node.input[0]
            continue
        tensor = _moved(index, node, tensor)
        if not tensor:
            return None
    return swapped, fractions


def box_columns(index: GraphIndex, head: Head) -> str:
    """The tensor of the boxes of rows, before a join with scores and class ids."""
    piece = head.boxes[0]
    rows = _joined_rows(index, piece.tensor) if piece.stop is not None else []
    return next((one.tensor for one in rows if one.columns == piece), piece.tensor)
