"""Finds the detections of a graph that selects them itself, where it cannot be cut before that.

Such a graph ends in a tensor `[B, K, 6]` or `[K, 7]` with a row for each detection, whose columns
are the corners of the box, the score and the class id; or in a tensor for each of these.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from onnx import NodeProto

from detcli.model.contract import Layout
from detcli.model.graph import GraphIndex, attribute, branches
from detcli.model.heads import (
    BOX_COORDINATES,
    BOXES_ONLY,
    HEAD_RANK,
    SELECTION,
    ChannelRange,
    Head,
    Unrecognised,
)
from detcli.model.heads.channels import axis_and_start_of_cut
from detcli.model.heads.decode import LARGEST_STRIDE, box_decoding
from detcli.model.heads.layers import (
    converts_to_corners,
    is_computed,
    moved_inputs,
    nearest_layer_operator,
    source_nodes,
)

INTEGERS = frozenset({5, 6, 7, 12, 13})  # ONNX's int16, int32, int64, uint32, uint64
IMAGE_COLUMN = 0
CLASS_COLUMN = 1
"""Columns of what NonMaxSuppression gives: image of the batch, class, box."""
MAX_MOVES = 16  # nodes that only move elements, one after the other


def find_detections_head(index: GraphIndex, *, boxes_only: bool) -> Head | None:
    """Describe the outputs of a graph that selects its detections itself.

    Args:
        index: The graph.
        boxes_only: Whether a graph that gives masks or keypoints too is read for its boxes.

    Returns:
        None if the graph selects nothing, or it is not clear which columns are what.

    Raises:
        Unrecognised: Masks or keypoints come with them, and not only the boxes are asked for.
    """
    if not index.nodes(*SELECTION):
        return None
    head = selected_detections(index)
    if head is None:
        return None
    # Masks and keypoints have one axis more than boxes [B, K, 4] or [K, 4].
    box_axes = len(index.shapes[head.boxes[0].tensor])
    output_shapes = [index.shapes[name] for name in index.outputs]
    extra_shapes = [dims for dims in output_shapes if len(dims) > box_axes]
    has_more = head.has_more or bool(extra_shapes)
    if has_more and not boxes_only:
        task = "it segments objects: masks come"
        # A keypoint has x and y, and maybe a confidence.
        if all(dims[-1] in {2, 3} for dims in extra_shapes):
            task = "it finds poses: keypoints come"
        raise Unrecognised(f"{task} with its detections", BOXES_ONLY)
    return replace(head, has_more=has_more)


class OutputPart(NamedTuple):
    """Neighbouring columns of an output that belong together, such as those of the boxes."""

    columns: ChannelRange
    tensor: str  # the tensor that was joined into the output there; else the output
    width: int  # the number of columns; 0 if it is not known


def selected_detections(index: GraphIndex) -> Head | None:
    """Find the boxes, scores and class ids among the outputs of a graph that selects detections.

    They are told apart by their number of columns and by the nodes that compute them, not by their
    order: class ids are whole numbers.

    Returns:
        None if it is not clear which columns are what.
    """
    all_parts: list[OutputPart] = []
    for output in index.outputs:
        all_parts += _parts_of_output(index, output)
    parts = [part for part in all_parts if not _follows_detection(part, all_parts)]
    box_parts = [part for part in parts if part.width == BOX_COORDINATES]
    if len(box_parts) > 1:
        # TensorFlow's detectors can give all boxes beside the selected ones.
        depend_on_selection = tensors_behind_selection(index)
        box_parts = [part for part in box_parts if part.tensor in depend_on_selection]
    if len(box_parts) != 1:
        return None
    boxes = box_parts[0]

    score_parts = []
    class_id_parts = []
    for part in _scores_or_class_ids(index, parts, boxes.columns):
        column = suppression_column(index, part.tensor)
        if not is_integral(index, part.tensor):
            score_parts.append(part)
        elif column in {None, CLASS_COLUMN}:
            class_id_parts.append(part)
    if len(class_id_parts) != 1 or len(score_parts) != 1:
        return None

    return Head(
        Layout.ROWS,
        boxes=(boxes.columns,),
        scores=(score_parts[0].columns,),
        class_count=_class_count_of_ids(index, class_id_parts[0].tensor),
        anchors_first=True,
        decoded=box_decoding(index, boxes.tensor),
        layer=nearest_layer_operator(index, boxes.tensor),
        labels=class_id_parts[0].columns,
        has_more=len(parts) < len(all_parts),
        are_products=_are_products(index, score_parts[0].tensor),
    )


def _are_products(index: GraphIndex, scores: str) -> bool:
    """True if a graph computes scores as products of two tensors: objectness and class scores.

    Goes back from the scores through square roots, limits and the choice of the best class.
    """

    def inputs_to_follow(node: NodeProto, name: str) -> Iterable[str]:
        if node.op_type in {"Clip", "Max", "Min", "ReduceMax", "Sqrt"}:
            return list(node.input[:1])
        return moved_inputs(node, name) or ()

    for node, _ in index.behind_all([scores], inputs_to_follow):
        if node.op_type == "Mul" and all(is_computed(index, name) for name in node.input):
            return True
    return False


def tensors_behind_selection(index: GraphIndex) -> set[str]:
    """Name all tensors that depend on which detections a graph selects.

    The selection is done by non-maximum suppression or a TopK, either of which may be in the body
    of a Loop, which goes over images or classes.
    """
    selections: list[str] = []
    for node in index.graph.node:
        if _selects(node):
            selections += outputs_that_select(node)
    return index.moved_from(*selections)


def outputs_that_select(node: NodeProto) -> list[str]:
    """List the outputs of a node for selection that tell which detections it selects.

    The first output of a TopK, the values, does not: values are scores, which may be used as a
    measure of certainty without a selection, as in D-FINE. Its second output, the indices, does.
    """
    outputs = list(node.output)
    if node.op_type == "TopK":
        outputs = outputs[1:]
    return [name for name in outputs if name]


def _selects(node: NodeProto) -> bool:
    """True if a node selects detections, or a node in a graph that it holds, as a Loop does."""
    if node.op_type in SELECTION:
        return True
    for branch in branches([node]):
        if any(_selects(inner_node) for inner_node in branch.node):
            return True
    return False


def _follows_detection(part: OutputPart, parts: list[OutputPart]) -> bool:
    """True if some columns hold a mask or keypoints that follow box, score and class id.

    Ultralytics joins these in one tensor of four, one, one and more columns. A single column there
    is the angle of an oriented box.

    Args:
        part: The columns in question.
        parts: All columns of all outputs, in their order.
    """
    in_same_tensor = [other for other in parts if other.columns.tensor == part.columns.tensor]
    widths_before = [other.width for other in in_same_tensor[:-1]]
    is_last = in_same_tensor[-1] is part
    return is_last and widths_before == [BOX_COORDINATES, 1, 1] and part.width > 1


def _scores_or_class_ids(
    index: GraphIndex, parts: list[OutputPart], boxes: ChannelRange
) -> list[OutputPart]:
    """List the columns and tensors that may be the scores and class ids of selected boxes.

    They are in the tensor of the boxes, or else in outputs of their own.

    Args:
        index: The graph.
        parts: All columns of the outputs.
        boxes: The columns of the boxes.
    """
    depend_on_image: set[str] = set()
    for image in index.image_inputs():
        if len(index.shapes[image.name]) >= HEAD_RANK:
            depend_on_image |= index.moved_from(image.name)
    in_same_tensor = [part for part in parts if part.columns.tensor == boxes.tensor]
    # A column that does not depend on the images is an image's position in the batch.
    candidates = []
    for part in in_same_tensor:
        is_position = suppression_column(index, part.tensor) == IMAGE_COLUMN
        if part.columns != boxes and part.tensor in depend_on_image and not is_position:
            candidates.append(part)
    if len(candidates) > 1:
        return candidates
    # Scores and class ids [B, K] have one axis less than boxes [B, K, 4]. An output with the count
    # of detections has still fewer axes, or one of length 1.
    axes_of_scores = len(index.shapes[boxes.tensor]) - 1
    for part in parts:
        if part in in_same_tensor:
            continue
        dims = index.shapes[part.tensor]
        if len(dims) == axes_of_scores and dims[-1] != 1:
            candidates.append(part)
        elif len(dims) == axes_of_scores + 1 == 2 and dims[0] != 1 and part.width == 1:
            # a column of its own, [K, 1] beside boxes [K, 4]
            columns = ChannelRange(part.columns.tensor, start=0, stop=1)
            candidates.append(part._replace(columns=columns))
    return candidates


def _parts_of_output(index: GraphIndex, output: str) -> list[OutputPart]:
    """List the groups of columns that an output was joined from, such as boxes and scores.

    An output that was not joined, or is too narrow to hold more than boxes, is one group.
    """
    width = index.size(output, -1) or 0
    if not width and len(index.shapes[output]) == HEAD_RANK:
        width = _column_count(index, output)
    parts = []
    if width > BOX_COORDINATES:
        parts = _merge_box_columns(index, _parts_of_concat(index, output))
    return parts or [OutputPart(ChannelRange(output), output, width)]


def _merge_box_columns(index: GraphIndex, parts: list[OutputPart]) -> list[OutputPart]:
    """Replace four neighbouring columns that are the coordinates of boxes by one group of four.

    Some graphs cut the boxes into their columns, and join these one by one with scores and class
    ids. Columns 0 to 3 of one tensor, in this order, are taken to be the boxes.
    """
    for first in range(len(parts) - BOX_COORDINATES + 1):
        behind_coordinates = first + BOX_COORDINATES
        coordinates = parts[first:behind_coordinates]
        boxes = _tensor_with_columns(index, coordinates)
        if boxes:
            output, start, _ = coordinates[0].columns
            columns = ChannelRange(output, start, start + BOX_COORDINATES)
            box_part = OutputPart(columns, boxes, BOX_COORDINATES)
            return parts[:first] + [box_part] + parts[behind_coordinates:]
    return parts


def _tensor_with_columns(index: GraphIndex, parts: list[OutputPart]) -> str:
    """Find the tensor whose columns 0, 1, 2 and so on are some parts of an output, in this order.

    Returns:
        The name of the tensor; empty if the parts are not single columns of one tensor.
    """
    sources = []
    for position, part in enumerate(parts):
        if part.width != 1:
            return ""
        source, column = _source_of_column(index, part.tensor)
        if column != position:
            return ""
        sources.append(source)
    if len(set(sources)) != 1:
        return ""
    return sources[0]


def _source_of_column(index: GraphIndex, tensor: str) -> tuple[str, int]:
    """Find the tensor that a single column was cut out of, along its last axis.

    Returns:
        The name of the tensor, and the position of the column in it; ("", 0) if it was not cut.
    """
    for name in _tensors_moved_into(index, tensor):
        node = index.producer(name, "Gather", "Slice", "Split")
        if node is None:
            continue
        source = node.input[0]
        last_axis = len(index.shapes[source]) - 1
        axis, column = axis_and_start_of_cut(index, node, index.computed_as(name))
        if axis != last_axis:
            break
        return source, column
    return "", 0


def six_columns(index: GraphIndex) -> Head | None:
    """Read a graph's first output as detections [B, K, 6]: corners, score and class id, in order.

    Returns:
        None if it does not have six columns.
    """
    output = index.outputs[0]
    if index.size(output, -1) != BOX_COORDINATES + 2:
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


def _parts_of_concat(index: GraphIndex, output: str) -> list[OutputPart]:
    """List the tensors whose columns a Concat joins in an output such as [B, K, 6] or [K, 7].

    The columns are the entries of the last axis. Nodes after the Concat that pad the output to a
    fixed number of detections are passed over.

    Returns:
        Each tensor with the columns of the output that it became; empty if there is no Concat.
    """
    output_width = index.size(output, -1)
    for tensor in _tensors_moved_into(index, output):
        concat = index.producer(tensor, "Concat")
        if concat is None:
            continue
        # Ultralytics' export joins mask coefficients in any case; a plain detector has 0 columns.
        names = [name for name in concat.input if index.shapes[name][-1:] != [0]]
        widths = [_column_count(index, name) for name in names]
        if not widths or 0 in widths or sum(widths) != output_width:
            continue
        parts = []
        start = 0
        for width, name in zip(widths, names, strict=True):
            parts.append(OutputPart(ChannelRange(output, start, start + width), name, width))
            start += width
        return parts
    return []


def _column_count(index: GraphIndex, tensor: str) -> int:
    """Count the columns of a tensor, or of the tensors whose elements it holds; 0 if unknown.

    The columns are the entries of the last axis.
    """
    for name in _tensors_moved_into(index, tensor):
        width = index.size(name, -1)
        if width:
            return width
    return 0


def _tensors_moved_into(index: GraphIndex, tensor: str) -> Iterator[str]:
    """Yield a tensor and, nearest first, the tensors whose elements it holds.

    Goes back through nodes that cast elements or only move them, such as Gather or Reshape, and
    ends at a node that computes new ones.
    """
    current_tensor = tensor
    for _ in range(MAX_MOVES):
        yield current_tensor
        node = index.producers.get(current_tensor)
        if node is None:
            return
        if node.op_type in {"Cast", "Identity"}:
            current_tensor = node.input[0]
        else:
            current_tensor = _moved_input(node, current_tensor, index)
        if not current_tensor:
            return
    yield current_tensor


def _moved_input(node: NodeProto, output: str, index: GraphIndex) -> str:
    """Find the input of a node whose elements appear, unchanged, in one of its outputs.

    Of several inputs the first that is not a constant counts. Empty if the node computes new
    elements.
    """
    inputs = moved_inputs(node, output)
    if not inputs:
        return ""
    for name in inputs:
        if index.constant_tensor(name) is None:
            return name
    return inputs[0]


def is_integral(index: GraphIndex, tensor: str) -> bool:
    """True if a tensor holds whole numbers, even where they were cast to floating point."""
    for name in _tensors_moved_into(index, tensor):
        if index.types.get(name) in INTEGERS:
            return True
        node = index.producers.get(name)
        if node is not None and node.op_type in {"Add", "Mod", "Sub"}:
            return is_integral(index, node.input[0])
    return False


def suppression_column(index: GraphIndex, tensor: str) -> int | None:
    """Tell which column of the result of NonMaxSuppression a tensor holds.

    That result has a row for each selected box: the image's position in the batch (column 0), the
    class id (1) and the index of the box (2). None for a tensor that holds none of these.
    """
    for name in _tensors_moved_into(index, tensor):
        node = index.producers.get(name)
        if node is None or node.op_type not in {"Gather", "Slice", "Split"} or len(node.input) < 2:
            continue
        columns = index.constant(node.input[1])
        if not columns or not _is_result_of_suppression(index, node.input[0]):
            continue
        if node.op_type == "Split":
            return list(node.output).index(name)
        return columns[0]
    return None


def _is_result_of_suppression(index: GraphIndex, tensor: str) -> bool:
    """True if a tensor is the result of NonMaxSuppression, or that multiplied by 1.

    Tools that join graphs add such a product, as a tensor cannot be the last of one graph and the
    first of the next.
    """
    product = index.producer(tensor, "Mul")
    if product is not None:
        computed_factors = [name for name in product.input if index.constant(name) != [1]]
        if len(computed_factors) == 1:
            tensor = computed_factors[0]
    return index.producer(tensor, "NonMaxSuppression") is not None


def _class_count_of_ids(index: GraphIndex, class_ids: str) -> int | None:
    """Count the classes from the scores that class ids were taken from.

    The ids come from an ArgMax over the scores, or from the result of NonMaxSuppression. Where a
    constant is added to them, as many ids come before the first class.

    Returns:
        None if the number is not clear.
    """
    offset, ids_before_offset = _class_id_offset(index, class_ids)
    class_count = None
    for name in _tensors_moved_into(index, ids_before_offset):
        arg_max = index.producer(name, "ArgMax")
        if arg_max is not None:
            class_count = index.size(arg_max.input[0], attribute(arg_max, "axis", 0))
    if suppression_column(index, ids_before_offset) == CLASS_COLUMN:
        scores = index.nodes("NonMaxSuppression")[0].input[1]
        class_count = None
        if len(index.shapes[scores]) == HEAD_RANK:  # [B, C, N]
            class_count = index.size(scores, 1)
    if class_count:
        return class_count + offset
    return None


def _class_id_offset(index: GraphIndex, class_ids: str) -> tuple[int, str]:
    """Find the constant that a graph adds to its class ids, and the tensor that it adds it to.

    TensorFlow's detectors, for example, count their classes from 1.

    Returns:
        The constant and the tensor; 0 and the class ids themselves if nothing is added.
    """
    for name in _tensors_moved_into(index, class_ids):
        addition = index.producer(name, "Add")
        if addition is None:
            continue
        offsets = []
        computed_terms = []
        for term in addition.input:
            constant = index.constant(term)
            if constant is None:
                computed_terms.append(term)
            elif len(constant) == 1:
                offsets.append(constant[0])
        if len(offsets) == 1:
            return offsets[0], computed_terms[0]
    return 0, class_ids


def corner_order(index: GraphIndex, head: Head) -> tuple[bool, bool] | None:
    """Tell in which order and unit a graph that selects detections gives their corners.

    Goes back from the output, through nodes that move and scale the boxes, to where they are
    decoded.

    Args:
        index: The graph.
        head: The selected detections.

    Returns:
        Whether the order is y1, x1, y2, x2, and whether the corners are fractions of the input's
        size; None where another node comes between.
    """
    if head.layout is not Layout.ROWS or head.decoded is None:
        return None
    y_first = False
    fractions = False
    tensor = box_columns(index, head)
    for _ in range(2 * MAX_MOVES):
        node = index.producer(tensor)
        if node is None or converts_to_corners(index, node):
            break
        if _joins_computed_tensors(index, node):
            if _joins_rows_first(index, node):
                y_first = not y_first
            break
        if node.op_type == "Gather" and index.constant(node.input[1]) == [1, 0, 3, 2]:
            y_first = not y_first
        if node.op_type in {"Div", "Mul"}:
            fractions = fractions or _divides_by_input_size(index, node)
            tensor = node.input[0]
        else:
            tensor = _moved_input(node, tensor, index)
            if not tensor:
                return None
    return y_first, fractions


def _divides_by_input_size(index: GraphIndex, scaling: NodeProto) -> bool:
    """True if a node divides by a constant that is larger than every stride between cells."""
    divisor = index.array(scaling.input[1])
    if scaling.op_type != "Div" or divisor is None:
        return False
    return bool(divisor.min() > LARGEST_STRIDE)


def _joins_computed_tensors(index: GraphIndex, node: NodeProto) -> bool:
    """True if a node is a Concat of several computed tensors, as where boxes are decoded."""
    if node.op_type != "Concat":
        return False
    computed_inputs = [name for name in node.input if index.constant_tensor(name) is None]
    return len(computed_inputs) > 1


def _joins_rows_first(index: GraphIndex, concat: NodeProto) -> bool:
    """True if a Concat joins the coordinates of corners in the order y1, x1, y2, x2.

    The top left corner is the centre less half of the size. Column 0 of the centres is x, column 1
    is y.
    """
    columns = []
    for name in concat.input[:2]:
        for node in source_nodes(index, name):
            if node.op_type == "Sub":
                _, column = _source_of_column(index, node.input[0])
                columns.append(column)
    return len(concat.input) == BOX_COORDINATES and columns == [1, 0]


def box_columns(index: GraphIndex, head: Head) -> str:
    """Find the tensor of the boxes of selected detections, before a join with scores and class ids.

    Returns:
        Its name; that of the joined tensor if it is not clear what was joined.
    """
    boxes = head.boxes[0]
    if boxes.stop is not None:
        for part in _parts_of_concat(index, boxes.tensor):
            if part.columns == boxes:
                return part.tensor
    return boxes.tensor
