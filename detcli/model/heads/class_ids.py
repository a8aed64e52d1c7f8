"""Recognises the class ids of a graph that selects its detections, and counts the classes."""

from typing import NamedTuple

from onnx import NodeProto

from detcli.model.graph import GraphIndex, attribute
from detcli.model.heads import HEAD_RANK
from detcli.model.heads.channels import axis_and_start_of_cut
from detcli.model.heads.output_parts import tensors_moved_into

INTEGERS = frozenset({5, 6, 7, 12, 13})  # ONNX's int16, int32, int64, uint32, uint64
IMAGE_COLUMN = 0
CLASS_COLUMN = 1
"""Columns of the output of NonMaxSuppression: image of the batch, class, box."""


def may_be_class_ids(index: GraphIndex, tensor: str) -> bool:
    """True if a tensor holds whole numbers, but no other column of NonMaxSuppression's result."""
    column = suppression_column(index, tensor)
    return is_integral(index, tensor) and column in {None, CLASS_COLUMN}


def is_integral(index: GraphIndex, tensor: str) -> bool:
    """True if a tensor holds whole numbers, even where they were cast to floating point."""
    for name in tensors_moved_into(index, tensor):
        if index.types.get(name) in INTEGERS:
            return True
        node = index.producers.get(name)
        if node is not None and node.op_type in {"Add", "Mod", "Sub"}:
            return is_integral(index, node.input[0])
    return False


def suppression_column(index: GraphIndex, tensor: str) -> int | None:
    """Determine which column of the result of NonMaxSuppression a tensor holds.

    That result has a row for each selected box: the image's position in the batch (column 0), the
    class id (1) and the index of the box (2). None for a tensor that holds none of these.
    """
    for name in tensors_moved_into(index, tensor):
        cut = index.producers.get(name)
        if cut is None or cut.op_type not in {"Gather", "Slice", "Split"}:
            continue
        if not _is_result_of_suppression(index, cut.input[0]):
            continue
        if cut.op_type == "Split":
            axis, first_column = axis_and_start_of_cut(index, cut, name)
            if axis is not None:
                return first_column
        elif len(cut.input) > 1:
            # The index of a Gather, or the start of a Slice.
            constant_positions = index.constant(cut.input[1])
            if constant_positions:
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


def class_count_of_ids(index: GraphIndex, class_ids: str) -> int | None:
    """Count the class ids that a graph may output, by the number of classes that have scores.

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
    """Count the classes from which an ArgMax takes the best; None if no ArgMax outputs the ids."""
    for name in tensors_moved_into(index, class_ids):
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
    for name in tensors_moved_into(index, class_ids):
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
