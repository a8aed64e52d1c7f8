"""Finds out which tensors were joined, column by column, in an output of selected detections.

Such an output has a row for each detection. Its columns are the entries of its last axis.
"""

from collections.abc import Iterator
from typing import NamedTuple

from onnx import NodeProto

from detcli.model.graph import GraphIndex
from detcli.model.heads import BOX_COORDINATES, HEAD_RANK, ChannelRange
from detcli.model.heads.channels import axis_and_start_of_cut
from detcli.model.heads.layers import moved_inputs

MAX_MOVES = 16  # nodes that only move elements, one after the other


class OutputPart(NamedTuple):
    """Neighbouring columns of an output that belong together, such as those of the boxes."""

    columns: ChannelRange
    tensor: str  # the tensor that was joined into the output there; else the output
    width: int  # the number of columns; 0 if it is not known


def parts_of_output(index: GraphIndex, output: str) -> list[OutputPart]:
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
    """Find the tensor whose columns 0, 1, 2 and so on are the given parts of an output, in order.

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
    for name in tensors_moved_into(index, tensor):
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


def parts_of_concat(index: GraphIndex, output: str) -> list[OutputPart]:
    """List the tensors whose columns a Concat joins in an output such as [B, K, 6] or [K, 7].

    The columns are the entries of the last axis. Nodes after the Concat that pad the output to a
    fixed number of detections are passed over.

    Returns:
        Each tensor with the columns of the output that it became; empty if there is no Concat.
    """
    for tensor in tensors_moved_into(index, output):
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
    for name in tensors_moved_into(index, tensor):
        width = index.size(name, -1)
        if width:
            return width
    return 0


def tensors_moved_into(index: GraphIndex, tensor: str) -> Iterator[str]:
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

    Among several inputs, the first that is not a constant is used. Empty if the node computes new
    elements.
    """
    inputs = moved_inputs(node, output)
    if not inputs:
        return ""
    for name in inputs:
        if index.constant_tensor(name) is None:
            return name
    return inputs[0]
