"""Finds the detections of a graph that selects them itself, where it cannot be cut before that.

Such a graph ends in a tensor `[B, K, 6]` or `[K, 7]` with a row for each detection, whose columns
are the corners of the box, the score and the class id; the seventh is the position of the image in
the batch. Or it ends in a tensor for each of these. With any other column of decimals, such as an
objectness, it is not clear which one is the score.
"""

from collections.abc import Iterable
from dataclasses import replace

from onnx import NodeProto

from detcli.model.contract import Layout
from detcli.model.graph import Dims, GraphIndex, branches
from detcli.model.heads import (
    BOX_COORDINATES,
    BOXES_ONLY,
    HEAD_RANK,
    SELECTION,
    ChannelRange,
    Head,
    Unrecognised,
)
from detcli.model.heads.class_ids import (
    IMAGE_COLUMN,
    class_count_of_ids,
    is_integral,
    may_be_class_ids,
    suppression_column,
)
from detcli.model.heads.decode import box_decoding
from detcli.model.heads.layers import is_computed, moved_inputs, nearest_layer_operator
from detcli.model.heads.output_parts import OutputPart, parts_of_output


def find_detections_head(index: GraphIndex, *, boxes_only: bool) -> Head | None:
    """Describe the outputs of a graph that selects its detections itself.

    Args:
        index: The graph.
        boxes_only: Whether a graph that also outputs masks or keypoints is read for its boxes.

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
    """True if a graph outputs keypoints with its detections, and not masks.

    Args:
        extra_shapes: The shapes of all outputs with more axes than the boxes. If there are none,
            columns beside the boxes hold keypoints: masks need another output for their prototypes.
    """
    sizes_of_keypoint = {2, 3}  # x and y, and maybe a confidence
    return all(dims[-1] in sizes_of_keypoint for dims in extra_shapes)


def selected_detections(index: GraphIndex) -> Head | None:
    """Find the boxes, scores and class ids among the outputs of a graph that selects detections.

    They are told apart by their number of columns and by the nodes that compute them, not by their
    order. Masks and keypoints beside them are left out, and `has_more` says so.

    Returns:
        None if it is not clear which columns are what.
    """
    all_parts: list[OutputPart] = []
    for output in index.outputs:
        all_parts += parts_of_output(index, output)
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
        elif may_be_class_ids(index, part.tensor):
            possible_class_ids.append(part)
    if len(possible_class_ids) != 1 or len(possible_scores) != 1:
        return None

    class_ids = possible_class_ids[0]
    scores = possible_scores[0]
    return Head(
        Layout.ROWS,
        boxes=(boxes.columns,),
        scores=(scores.columns,),
        class_count=class_count_of_ids(index, class_ids.tensor),
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

    TensorFlow's detectors can output all boxes beside the selected ones.
    """
    boxes = [part for part in parts if part.width == BOX_COORDINATES]
    if len(boxes) > 1:
        depend_on_selection = tensors_after_selection(index)
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


def _are_products(index: GraphIndex, scores: str) -> bool:
    """True if a graph computes scores as products of two tensors: objectness and class scores.

    Goes back from the scores through square roots, limits and the choice of the best class.
    """

    def inputs_to_follow(node: NodeProto, name: str) -> Iterable[str]:
        if node.op_type in {"Clip", "Max", "Min", "ReduceMax", "Sqrt"}:
            return list(node.input[:1])
        return moved_inputs(node, name) or ()

    for node, _ in index.ancestors([scores], inputs_to_follow):
        if node.op_type == "Mul" and all(is_computed(index, name) for name in node.input):
            return True
    return False


def tensors_after_selection(index: GraphIndex) -> set[str]:
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
    Graphs may also output the number of detections, as [B], [B, 1] or [1]. To tell it apart, an
    output whose axis for the K boxes has a length of 1 is not accepted.

    Args:
        index: The graph.
        part: An output that does not hold the boxes.
        box_rank: How many axes the tensor of the boxes has.

    Returns:
        The output. If it is [K, 1], its only column is named, so that it is read as a column and
        not as [B, K]. None if the output has a different shape.
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
    not depend on the images, or is the first column of the output of NonMaxSuppression.

    Args:
        index: The graph.
        parts: The parts of all outputs.
        boxes: The columns of the boxes.
    """
    tensors_from_images = _tensors_from_images(index)
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


def _tensors_from_images(index: GraphIndex) -> set[str]:
    """Name all tensors that depend on the images, and not only on other inputs of a graph."""
    inputs = [value.name for value in index.image_inputs()]
    images = [name for name in inputs if len(index.shapes[name]) >= HEAD_RANK]
    return index.tensors_computed_from(*images)


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
