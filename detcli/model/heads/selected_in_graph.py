"""Finds the detections of a graph that selects them itself, where it cannot be cut before that.

Such a graph ends in a tensor `[B, K, 6]` or `[K, 7]` with a row for each detection, whose columns
are the corners of the box, the score and the class id; the seventh is the position of the image in
the batch. Or it ends in a tensor for each of these. With any other column of decimals, such as an
objectness, it is not clear which one is the score.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from onnx import NodeProto

from detcli.model.contract import Layout
from detcli.model.graph import Dims, GraphIndex, attribute, branches
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
from detcli.model.heads.decode import box_decoding
from detcli.model.heads.layers import (
    is_computed,
    moved_inputs,
    nearest_layer_operator,
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

    # Masks and keypoints may be columns beside the boxes, or outputs with one axis more than boxes
    # [B, K, 4] or [K, 4].
    box_rank = len(index.shapes[head.boxes[0].tensor])
    output_shapes = [index.shapes[name] for name in index.outputs]
    extra_shapes = [dims for dims in output_shapes if len(dims) > box_rank]
    has_masks_or_keypoints = head.has_more or bool(extra_shapes)
    if has_masks_or_keypoints and not boxes_only:
        task = "it segments objects: masks come"
        if _are_shapes_of_keypoints(extra_shapes):
            task = "it finds poses: keypoints come"
        raise Unrecognised(f"{task} with its detections", BOXES_ONLY)
    return replace(head, has_more=has_masks_or_keypoints)


def _are_shapes_of_keypoints(extra_shapes: list[Dims]) -> bool:
    """True if a graph gives keypoints with its detections, and not masks.

    Args:
        extra_shapes: The shapes of all outputs with more axes than the boxes. If there are none,
            columns beside the boxes hold keypoints: masks need another output for their prototypes.
    """
    sizes_of_keypoint = {2, 3}  # x and y, and maybe a confidence
    return all(dims[-1] in sizes_of_keypoint for dims in extra_shapes)


class OutputPart(NamedTuple):
    """Neighbouring columns of an output that belong together, such as those of the boxes."""

    columns: ChannelRange
    tensor: str  # the tensor that was joined into the output there; else the output
    width: int  # the number of columns; 0 if it is not known


def selected_detections(index: GraphIndex) -> Head | None:
    """Find the boxes, scores and class ids among the outputs of a graph that selects detections.

    They are told apart by their number of columns and by the nodes that compute them, not by their
    order. Masks and keypoints beside them are left out, and `has_more` says so.

    Returns:
        None if it is not clear which columns are what.
    """
    all_parts: list[OutputPart] = []
    for output in index.outputs:
        all_parts += _parts_of_output(index, output)
    detection_parts = [part for part in all_parts if not _is_mask_or_keypoints(part, all_parts)]
    has_masks_or_keypoints = len(detection_parts) < len(all_parts)

    boxes = _selected_boxes(index, detection_parts)
    if boxes is None:
        return None
    # Each box has a score, which is a decimal number, and a class id, which is a whole one. Other
    # whole numbers, such as the index of a box, are neither.
    scores_and_class_ids = _scores_or_class_ids(index, detection_parts, boxes.columns)
    possible_class_ids = []
    possible_scores = []
    for part in scores_and_class_ids:
        if not is_integral(index, part.tensor):
            possible_scores.append(part)
        elif _may_be_class_ids(index, part.tensor):
            possible_class_ids.append(part)
    if len(possible_class_ids) != 1 or len(possible_scores) != 1:
        return None

    class_ids = possible_class_ids[0]
    scores = possible_scores[0]
    return Head(
        Layout.ROWS,
        boxes=(boxes.columns,),
        scores=(scores.columns,),
        class_count=_class_count_of_ids(index, class_ids.tensor),
        anchors_first=True,
        decoded=box_decoding(index, boxes.tensor),
        layer=nearest_layer_operator(index, boxes.tensor),
        class_ids=class_ids.columns,
        has_more=has_masks_or_keypoints,
        are_products=_are_products(index, scores.tensor),
        candidates=_candidate_count(index),
    )


def _selected_boxes(index: GraphIndex, parts: list[OutputPart]) -> OutputPart | None:
    """Find the columns of the selected boxes; None if it is not clear which they are.

    TensorFlow's detectors can give all boxes beside the selected ones.
    """
    boxes = [part for part in parts if part.width == BOX_COORDINATES]
    if len(boxes) > 1:
        depend_on_selection = tensors_behind_selection(index)
        boxes = [part for part in boxes if part.tensor in depend_on_selection]
    if len(boxes) != 1:
        return None
    return boxes[0]


def _candidate_count(index: GraphIndex) -> int | None:
    """Count the boxes [B, N, 4] from which the only NonMaxSuppression of a graph selects.

    Returns:
        None if their number is not known, or the graph has no such node or several.
    """
    suppressions = index.nodes("NonMaxSuppression")
    if len(suppressions) != 1:
        return None
    return index.size(suppressions[0].input[0], 1)


def _may_be_class_ids(index: GraphIndex, tensor: str) -> bool:
    """True if a tensor holds whole numbers, and no other ones of NonMaxSuppression's result."""
    column = suppression_column(index, tensor)
    return is_integral(index, tensor) and column in {None, CLASS_COLUMN}


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
    return index.tensors_computed_from(*selections)


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


def _is_mask_or_keypoints(part: OutputPart, parts: list[OutputPart]) -> bool:
    """True if some columns hold the mask or the keypoints of detections.

    Ultralytics joins box, score, class id and these in one output, with 4, 1, 1 and more columns. A
    single column in that position is the angle of an oriented box.

    Args:
        part: The columns in question.
        parts: All columns of all outputs, in their order.
    """
    output = part.columns.tensor
    parts_of_same_output = [other for other in parts if other.columns.tensor == output]
    is_last = parts_of_same_output[-1] is part
    if not is_last or part.width <= 1:
        return False
    widths_before = [other.width for other in parts_of_same_output[:-1]]
    return widths_before == [BOX_COORDINATES, 1, 1]


def _scores_or_class_ids(
    index: GraphIndex, parts: list[OutputPart], boxes: ChannelRange
) -> list[OutputPart]:
    """List the parts of outputs that may be the scores and class ids of selected boxes.

    They are columns beside the boxes, in the same tensor. If there are not both a score and a class
    id among these, other outputs are listed as well.

    Args:
        index: The graph.
        parts: The parts of all outputs.
        boxes: The columns of the boxes.
    """
    possible_parts = _columns_beside_boxes(index, parts, boxes)
    may_have_score_and_class_id = len(possible_parts) > 1
    if may_have_score_and_class_id:
        return possible_parts

    box_rank = len(index.shapes[boxes.tensor])
    for part in parts:
        if part.columns.tensor != boxes.tensor:
            number_per_box = _as_number_per_box(index, part, box_rank)
            if number_per_box is not None:
                possible_parts.append(number_per_box)
    return possible_parts


def _as_number_per_box(index: GraphIndex, part: OutputPart, box_rank: int) -> OutputPart | None:
    """Read an output as one number for each selected box, such as its score or class id.

    Beside boxes [B, K, 4], such an output is [B, K]. Beside boxes [K, 4], it is [K] or [K, 1].
    Graphs may also give the number of detections, as [B], [B, 1] or [1]. To tell it apart, an
    output whose axis for the K boxes has a length of 1 is not accepted.

    Args:
        index: The graph.
        part: An output that does not hold the boxes.
        box_rank: How many axes the tensor of the boxes has.

    Returns:
        The output. If it is [K, 1], its only column is named, so that it is read as a column and
        not as [B, K]. None if the output has another shape.
    """
    dims = index.shapes[part.tensor]
    is_without_columns = len(dims) == box_rank - 1  # [B, K] or [K]
    if is_without_columns:
        return None if dims[-1] == 1 else part

    are_boxes_without_batch = box_rank == 2
    has_one_column = len(dims) == 2 and part.width == 1  # [K, 1]
    if are_boxes_without_batch and has_one_column and dims[0] != 1:
        only_column = ChannelRange(part.columns.tensor, start=0, stop=1)
        return part._replace(columns=only_column)
    return None


def _columns_beside_boxes(
    index: GraphIndex, parts: list[OutputPart], boxes: ChannelRange
) -> list[OutputPart]:
    """List the columns beside the boxes, in the same tensor, that may be scores or class ids.

    A column may also say to which image of the batch a detection belongs. It is left out: it does
    not depend on the images, or is the first column of what NonMaxSuppression gives.

    Args:
        index: The graph.
        parts: The parts of all outputs.
        boxes: The columns of the boxes.
    """
    tensors_from_images = _tensors_behind_images(index)
    columns = []
    for part in parts:
        is_in_tensor_of_boxes = part.columns.tensor == boxes.tensor
        if not is_in_tensor_of_boxes or part.columns == boxes:
            continue
        depends_on_images = part.tensor in tensors_from_images
        if not depends_on_images:
            continue
        if suppression_column(index, part.tensor) != IMAGE_COLUMN:
            columns.append(part)
    return columns


def _tensors_behind_images(index: GraphIndex) -> set[str]:
    """Name all tensors that depend on the images, and not only on other inputs of a graph."""
    inputs = [value.name for value in index.image_inputs()]
    images = [name for name in inputs if len(index.shapes[name]) >= HEAD_RANK]
    return index.tensors_computed_from(*images)


def _parts_of_output(index: GraphIndex, output: str) -> list[OutputPart]:
    """List the parts that an output was joined from, such as boxes and scores.

    An output that was not joined, or is too narrow to hold more than boxes, is a single part.
    """
    width = index.size(output, -1) or 0  # 0 if it is not known
    if width == 0 and len(index.shapes[output]) == HEAD_RANK:
        # The tensors that were moved into the output may have a known width.
        width = _column_count(index, output)

    if width > BOX_COORDINATES:
        parts = _merge_box_columns(index, parts_of_concat(index, output))
        if parts:
            return parts
    all_columns = ChannelRange(output)
    return [OutputPart(all_columns, output, width)]


def _merge_box_columns(index: GraphIndex, parts: list[OutputPart]) -> list[OutputPart]:
    """Merge the single columns of boxes, such as x1, y1, x2 and y2, into one part.

    Some graphs cut the boxes [B, K, 4] into four columns and join these, one by one, to scores and
    class ids. So four neighbouring columns are merged if they come from columns 0, 1, 2 and 3 of
    one tensor. An output holds boxes only once, so the search ends with the first.

    Args:
        index: The graph.
        parts: The parts of one output, from left to right.
    """
    box_width = BOX_COORDINATES
    for start in range(len(parts) - box_width + 1):
        stop = start + box_width
        boxes_tensor = _tensor_with_columns(index, parts[start:stop])
        if not boxes_tensor:
            continue
        first = parts[start].columns
        box_columns = ChannelRange(first.tensor, start=first.start, stop=first.start + box_width)
        boxes = OutputPart(columns=box_columns, tensor=boxes_tensor, width=box_width)
        return parts[:start] + [boxes] + parts[stop:]
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
        source, column = source_of_column(index, part.tensor)
        if column != position:
            return ""
        sources.append(source)
    if len(set(sources)) != 1:
        return ""
    return sources[0]


def source_of_column(index: GraphIndex, tensor: str) -> tuple[str, int]:
    """Find the tensor from which a Gather, Slice or Split cut a column, or several columns.

    The columns are the entries of the last axis. Only the nearest cut is looked at.

    Args:
        index: The graph.
        tensor: The tensor of the column or columns.

    Returns:
        The name of the tensor that was cut, and the position of the column, or of the first one, in
        it; ("", 0) if nothing was cut, or if it was cut along another axis.
    """
    for name in _tensors_moved_into(index, tensor):
        cut = index.producer(name, "Gather", "Slice", "Split")
        if cut is None:
            continue  # the node only moves the columns
        uncut_tensor = cut.input[0]
        last_axis = len(index.shapes[uncut_tensor]) - 1
        axis, first_column = axis_and_start_of_cut(index, cut, index.computed_as(name))
        if axis == last_axis:
            return uncut_tensor, first_column
        return "", 0
    return "", 0


def read_six_columns(index: GraphIndex) -> Head | None:
    """Read a graph's first output as detections [B, K, 6]: corners, score and class id, in order.

    Nothing but the number of columns is checked, so how the boxes are decoded stays unknown.

    Returns:
        None if the output does not have six columns.
    """
    output = index.outputs[0]
    score_column = BOX_COORDINATES
    class_id_column = score_column + 1
    column_count = class_id_column + 1
    if index.size(output, -1) != column_count:
        return None
    return Head(
        Layout.ROWS,
        boxes=(ChannelRange(output, start=0, stop=score_column),),
        scores=(ChannelRange(output, start=score_column, stop=class_id_column),),
        class_count=None,
        anchors_first=True,
        decoded=None,
        class_ids=ChannelRange(output, start=class_id_column, stop=column_count),
    )


def parts_of_concat(index: GraphIndex, output: str) -> list[OutputPart]:
    """List the tensors whose columns a Concat joins in an output such as [B, K, 6] or [K, 7].

    The columns are the entries of the last axis. Nodes after the Concat that pad the output to a
    fixed number of detections are passed over.

    Returns:
        Each tensor with the columns of the output that it became; empty if there is no Concat.
    """
    for tensor in _tensors_moved_into(index, output):
        concat = index.producer(tensor, "Concat")
        if concat is not None:
            parts = _columns_of_joined_tensors(index, concat, output)
            if parts:
                return parts
    return []


def _columns_of_joined_tensors(
    index: GraphIndex, concat: NodeProto, output: str
) -> list[OutputPart]:
    """List the tensors that a Concat joins, with the columns of an output that each became.

    Args:
        index: The graph.
        concat: The Concat.
        output: The output, which holds the elements of the Concat.

    Returns:
        The tensors in the order of their columns; empty if the number of columns of one is not
        known, or if the output does not have as many as all of them together.
    """
    joined_tensors = []
    for name in concat.input:
        # Ultralytics' export joins mask coefficients in any case; a plain detector has 0 of them.
        has_no_columns = index.shapes[name][-1:] == [0]
        if not has_no_columns:
            joined_tensors.append(name)
    widths = [_column_count(index, name) for name in joined_tensors]  # 0 where it is unknown
    if not widths or 0 in widths or sum(widths) != index.size(output, -1):
        return []

    parts = []
    start = 0
    for width, name in zip(widths, joined_tensors, strict=True):
        parts.append(OutputPart(ChannelRange(output, start, start + width), name, width))
        start += width
    return parts


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
            current_tensor = moved_input(node, current_tensor, index)
        if not current_tensor:
            return
    yield current_tensor


def moved_input(node: NodeProto, output: str, index: GraphIndex) -> str:
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
        cut = index.producers.get(name)
        if cut is None or cut.op_type not in {"Gather", "Slice", "Split"} or len(cut.input) < 2:
            continue
        data, positions = cut.input[:2]
        constant_positions = index.constant(positions)
        if not constant_positions or not _is_result_of_suppression(index, data):
            continue

        if cut.op_type == "Split":
            # Each output of the Split is a column. Its second input, their sizes, does not matter.
            return list(cut.output).index(name)
        # The index of a Gather, or the start of a Slice.
        return constant_positions[0]
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
    """Count the class ids that a graph may give, by the number of classes that have scores.

    The ids come from an ArgMax over the scores, or from the result of NonMaxSuppression. A graph
    may add a constant to them. With 80 classes and a constant of 1, ids go from 1 to 80, so there
    are 81 with the unused id 0.

    Args:
        index: The graph.
        class_ids: The tensor of the class ids.

    Returns:
        None if the number is not clear.
    """
    addition = _class_id_offset(index, class_ids)
    if suppression_column(index, addition.ids) == CLASS_COLUMN:
        scored_classes = _class_count_of_suppression(index)
    else:
        scored_classes = _class_count_of_arg_max(index, addition.ids)
    if not scored_classes:
        return None
    return scored_classes + addition.offset


def _class_count_of_suppression(index: GraphIndex) -> int | None:
    """Count the classes in the scores [B, C, N] that a NonMaxSuppression reads; None if unclear."""
    scores = index.nodes("NonMaxSuppression")[0].input[1]
    if len(index.shapes[scores]) != HEAD_RANK:
        return None
    return index.size(scores, 1)


def _class_count_of_arg_max(index: GraphIndex, class_ids: str) -> int | None:
    """Count the classes from which an ArgMax takes the best; None if no ArgMax gives the ids."""
    for name in _tensors_moved_into(index, class_ids):
        arg_max = index.producer(name, "ArgMax")
        if arg_max is not None:
            return index.size(arg_max.input[0], attribute(arg_max, "axis", 0))
    return None


class _AddedOffset(NamedTuple):
    """A constant that a graph adds to class ids."""

    offset: int
    ids: str  # the tensor that it is added to


def _class_id_offset(index: GraphIndex, class_ids: str) -> _AddedOffset:
    """Find the constant that a graph adds to its class ids, and the tensor that it adds it to.

    TensorFlow's detectors, for example, count their classes from 1.

    Returns:
        The constant; 0 and the class ids themselves if nothing is added.
    """
    for name in _tensors_moved_into(index, class_ids):
        addition = index.producer(name, "Add")
        if addition is not None:
            added = _constant_of_addition(index, addition)
            if added is not None:
                return added
    return _AddedOffset(0, class_ids)


def _constant_of_addition(index: GraphIndex, addition: NodeProto) -> _AddedOffset | None:
    """Return the single number that an Add adds to a computed tensor, if one of its terms is that.

    A term of several numbers, or a sum of two constants, is not an offset of class ids.
    """
    first, second = addition.input
    for constant_term, other_term in ((first, second), (second, first)):
        constant = index.constant(constant_term)
        is_computed_term = index.constant(other_term) is None
        if constant is not None and len(constant) == 1 and is_computed_term:
            return _AddedOffset(constant[0], other_term)
    return None
