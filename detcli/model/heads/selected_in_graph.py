"""Finds the detections of a graph that selects them itself, where it cannot be cut before that.

Such a graph ends in a tensor `[B, K, 6]` or `[K, 7]` with a row for each detection, whose columns
are the corners of the box, the score and the class id; or in a tensor for each of these.
"""

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
"""Columns of what NonMaxSuppression gives: picture of the batch, class, box."""
MAX_MOVES = 16  # nodes that only move elements, one after the other


def detections_head(index: GraphIndex, *, boxes_only: bool) -> Head | None:
    """The detections of a graph that selects them itself.

    Raises:
        Unrecognised: Masks or keypoints come with them, and not only the boxes are asked for.
    """
    if not index.nodes(*SELECTION):
        return None
    head = selected_detections(index)
    if head is None:
        return None
    box_axes = len(index.shapes[head.boxes[0].tensor])
    output_shapes = [index.shapes[output.name] for output in index.graph.output]
    more_shapes = [dims for dims in output_shapes if len(dims) > box_axes]
    has_more = head.has_more or bool(more_shapes)
    if has_more and not boxes_only:
        task = "it segments objects: masks come"
        if all(dims[-1] in {2, 3} for dims in more_shapes):  # column, row, and how sure
            task = "it finds poses: keypoints come"
        raise Unrecognised(f"{task} with its detections", BOXES_ONLY)
    return replace(head, has_more=has_more)


class OutputPart(NamedTuple):
    """Some columns of an output, and the tensor that was joined there."""

    columns: ChannelRange
    tensor: str
    width: int


def selected_detections(index: GraphIndex) -> Head | None:
    """Boxes, scores and class ids of the detections that a graph ends in, if it does."""
    all_parts: list[OutputPart] = []
    for output in index.graph.output:
        all_parts += _parts_of_output(index, output.name)
    parts = [part for part in all_parts if not _follows_detection(part, all_parts)]
    boxes = [part for part in parts if part.width == BOX_ROWS]
    if len(boxes) != 1:
        return None

    candidates = _scores_or_labels(index, parts, boxes[0].columns)
    scores = [part for part in candidates if not is_integral(index, part.tensor)]
    labels = []
    for part in candidates:
        is_picture_number = suppressed_column(index, part.tensor) == PICTURE_COLUMN
        if part not in scores and not is_picture_number:
            labels.append(part)
    if len(labels) != 1 or len(scores) != 1:
        return None

    return Head(
        Layout.ROWS,
        boxes=(boxes[0].columns,),
        scores=(scores[0].columns,),
        class_count=_class_count_of_labels(index, labels[0].tensor),
        anchors_first=True,
        decoded=boxes_of(index, boxes[0].tensor),
        layer=layer_of(index, boxes[0].tensor),
        labels=labels[0].columns,
        has_more=len(parts) < len(all_parts),
    )


def _follows_detection(part: OutputPart, parts: list[OutputPart]) -> bool:
    """True if a part is what Ultralytics joins to box, score and class: mask or keypoints.

    Oriented boxes have one column there, their angle.
    """
    in_same_tensor = [other for other in parts if other.columns.tensor == part.columns.tensor]
    widths_before = [other.width for other in in_same_tensor[:-1]]
    is_last = in_same_tensor[-1] is part
    return is_last and widths_before == [BOX_ROWS, 1, 1] and part.width > 1


def _scores_or_labels(
    index: GraphIndex, parts: list[OutputPart], boxes: ChannelRange
) -> list[OutputPart]:
    """The parts that may be scores and class ids beside boxes."""
    depend_on_picture: set[str] = set()
    for image in index.image_inputs():
        if len(index.shapes[image.name]) >= BATCHED:
            depend_on_picture |= index.moved_from(image.name)
    in_same_tensor = [part for part in parts if part.columns.tensor == boxes.tensor]
    # A column that does not depend on the picture is its number in the batch.
    candidates = []
    for part in in_same_tensor:
        if part.columns != boxes and part.tensor in depend_on_picture:
            candidates.append(part)
    if len(candidates) > 1:
        return candidates
    box_axes = len(index.shapes[boxes.tensor])
    for part in parts:
        # A count of detections has an axis less, or one of length 1.
        is_listed = len(index.shapes[part.tensor]) == box_axes - 1
        if part not in in_same_tensor and is_listed and index.size(part.tensor, -1) != 1:
            candidates.append(part)
    return candidates


def _parts_of_output(index: GraphIndex, output: str) -> list[OutputPart]:
    """The parts that an output was joined from; else the whole of it."""
    width = index.size(output, -1) or 0
    if not width and len(index.shapes[output]) == BATCHED:
        width = _width_of(index, output)
    parts = []
    if width > BOX_ROWS:
        parts = _with_boxes_joined(index, _joined_parts(index, output))
    return parts or [OutputPart(ChannelRange(output), output, width)]


def _with_boxes_joined(index: GraphIndex, parts: list[OutputPart]) -> list[OutputPart]:
    """Parts with the four columns of the boxes as one, if they were cut out of one tensor."""
    for first in range(len(parts) - BOX_ROWS + 1):
        corners = parts[first : first + BOX_ROWS]
        cuts = [_cut_from(index, corner.tensor) for corner in corners if corner.width == 1]
        source = cuts[0][0] if cuts else ""
        if source and cuts == [(source, column) for column in range(BOX_ROWS)]:
            start = corners[0].columns.start
            columns = ChannelRange(corners[0].columns.tensor, start, start + BOX_ROWS)
            boxes = OutputPart(columns, source, BOX_ROWS)
            return parts[:first] + [boxes] + parts[first + BOX_ROWS :]
    return parts


def _cut_from(index: GraphIndex, tensor: str) -> tuple[str, int]:
    """What a column was cut out of along the last axis, and its number; empty if it was not."""
    for name in _moved_from(index, tensor):
        node = index.producer(name, "Gather", "Slice", "Split")
        if node is None:
            continue
        source = node.input[0]
        last_axis = len(index.shapes[source]) - 1
        axis, column = cut_along(index, node, index.computed_as(name))
        if axis != last_axis:
            break
        return source, column
    return "", 0


def six_columns(index: GraphIndex) -> Head | None:
    """The only output as `[B, K, 6]`: corners, score and class id, in this order."""
    output = index.graph.output[0].name
    if index.size(output, -1) != BOX_ROWS + 2:
        return None
    return Head(
        Layout.ROWS,
        boxes=(ChannelRange(output, 0, 4),),
        scores=(ChannelRange(output, 4, 5),),
        class_count=None,
        anchors_first=True,
        decoded=None,
        labels=ChannelRange(output, 5, 6),
    )


def _joined_parts(index: GraphIndex, output: str) -> list[OutputPart]:
    """The parts that an output such as `[B, K, 6]` or `[K, 7]` was joined from.

    Looks behind padding to a fixed number of detections.
    """
    output_width = index.size(output, -1)
    for tensor in _moved_from(index, output):
        join = index.producer(tensor, "Concat")
        if join is None:
            continue
        # Ultralytics joins the masks that a detector has none of, as a part without columns.
        names = [name for name in join.input if index.shapes[name][-1:] != [0]]
        widths = [_width_of(index, name) for name in names]
        if not widths or 0 in widths or sum(widths) != output_width:
            continue
        parts = []
        for stop, width, name in zip(itertools.accumulate(widths), widths, names, strict=True):
            parts.append(OutputPart(ChannelRange(output, stop - width, stop), name, width))
        return parts
    return []


def _width_of(index: GraphIndex, tensor: str) -> int:
    """The length of the last axis, or of that of what the tensor is made of; 0 if unknown."""
    for name in _moved_from(index, tensor):
        width = index.size(name, -1)
        if width:
            return width
    return 0


def _moved_from(index: GraphIndex, tensor: str) -> Iterator[str]:
    """A tensor and those behind it, through nodes that only move elements of one input."""
    for _ in range(MAX_MOVES):
        yield tensor
        node = index.producers.get(tensor)
        if node is None:
            return
        if node.op_type in {"Cast", "Identity"}:
            tensor = node.input[0]
        else:
            tensor = _moved_input(node, tensor, index)
        if not tensor:
            return
    yield tensor


def _moved_input(node: NodeProto, output: str, index: GraphIndex) -> str:
    """The input whose elements a node moves, a computed one first; empty if it makes elements."""
    inputs = moved_inputs(node, output)
    if not inputs:
        return ""
    for name in inputs:
        if index.constant_tensor(name) is None:
            return name
    return inputs[0]


def is_integral(index: GraphIndex, tensor: str) -> bool:
    """True if a tensor holds whole numbers, of whatever type it is."""
    for name in _moved_from(index, tensor):
        if index.types.get(name) in INTEGERS:
            return True
        node = index.producers.get(name)
        if node is not None and node.op_type in {"Add", "Mod", "Sub"}:
            return is_integral(index, node.input[0])
    return False


def suppressed_column(index: GraphIndex, tensor: str) -> int | None:
    """The column of NonMaxSuppression's result that a tensor holds; None for other tensors."""
    for name in _moved_from(index, tensor):
        node = index.producers.get(name)
        if node is None or node.op_type not in {"Gather", "Slice", "Split"} or len(node.input) < 2:
            continue
        columns = index.constant(node.input[1])
        if not columns or index.producer(node.input[0], "NonMaxSuppression") is None:
            continue
        if node.op_type == "Split":
            return list(node.output).index(name)
        return columns[0]
    return None


def _class_count_of_labels(index: GraphIndex, labels: str) -> int | None:
    """C of class ids, which end at C - 1, from what they were taken of; None if not clear."""
    offset, without_offset = _split_offset(index, labels)
    count = None
    for name in _moved_from(index, without_offset):
        best = index.producer(name, "ArgMax")
        if best is not None:
            count = index.size(best.input[0], attribute(best, "axis", 0))
    if suppressed_column(index, without_offset) == CLASS_COLUMN:
        scores = index.nodes("NonMaxSuppression")[0].input[1]
        count = None
        if len(index.shapes[scores]) == BATCHED:  # [B, C, N]
            count = index.size(scores, 1)
    if count:
        return count + offset
    return None


def _split_offset(index: GraphIndex, labels: str) -> tuple[int, str]:
    """The constant that is added to class ids, and what they are before."""
    for name in _moved_from(index, labels):
        addition = index.producer(name, "Add")
        if addition is None:
            continue
        offsets = []
        terms = []
        for term in addition.input:
            constant = index.constant(term)
            if constant is None:
                terms.append(term)
            elif len(constant) == 1:
                offsets.append(constant[0])
        if len(offsets) == 1:
            return offsets[0], terms[0]
    return 0, labels


def corner_order(index: GraphIndex, head: Head) -> tuple[bool, bool] | None:
    """True if corners of detections are y1, x1, y2, x2, and if they are fractions of the input.

    None where the nodes between the decode of the boxes and the output do not show it.
    """
    if head.layout is not Layout.ROWS or head.decoded is None:
        return None
    y_first = fractions = False
    tensor = box_columns(index, head)
    for _ in range(2 * MAX_MOVES):
        node = index.producer(tensor)
        if node is None or to_corners(index, node) or _joins_several(index, node):
            break
        if node.op_type == "Gather" and index.constant(node.input[1]) == [1, 0, 3, 2]:
            y_first = not y_first
        if node.op_type in {"Div", "Mul"}:
            factor = index.array(node.input[1])
            is_large = factor is not None and bool(factor.min() > MAX_FACTOR)
            fractions |= node.op_type == "Div" and is_large
            tensor = node.input[0]
            continue
        tensor = _moved_input(node, tensor, index)
        if not tensor:
            return None
    return y_first, fractions


def _joins_several(index: GraphIndex, node: NodeProto) -> bool:
    """True if a node joins several computed tensors, as where boxes are decoded."""
    if node.op_type != "Concat":
        return False
    computed = [name for name in node.input if index.constant_tensor(name) is None]
    return len(computed) > 1


def box_columns(index: GraphIndex, head: Head) -> str:
    """The tensor of the boxes of detections, before a join with scores and class ids."""
    boxes = head.boxes[0]
    if boxes.stop is not None:
        for part in _joined_parts(index, boxes.tensor):
            if part.columns == boxes:
                return part.tensor
    return boxes.tensor
