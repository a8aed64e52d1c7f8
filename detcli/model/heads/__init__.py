"""Finds the head of a detector: the tensors that hold boxes and scores, and how to read them.

Tensors are told apart by what makes them, never by name or order: with four classes, boxes and
scores have one shape. Where a graph selects detections itself, the head is what it selects from, if
that can be had without the selection; else the detections it selects are read as they are.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from detcli.model.contract import Size
from detcli.model.graph import GraphIndex
from detcli.model.heads.decode import SELECTION, BoxDecode, Head, Unrecognised
from detcli.model.heads.rows import rows
from detcli.model.heads.tensors import (
    best_class,
    end_to_end,
    has_patches,
    pair,
    plugin,
    queries,
    queries_of,
    single_tensor,
)

PAIR = 2  # boxes and scores; more outputs than that may be landmarks, or those of several scales


def find_head(
    index: GraphIndex,
    names: list[str] | None,
    cells: Callable[[Size | None], Head | None],
    size: Size,
    *,
    boxes_only: bool = False,
) -> Head:
    """Find the head of a graph.

    `cells` looks for one by the number of its cells: at the graph's own size, or, which takes
    longer, at one that is supposed.
    """
    ways = (
        partial(end_to_end, boxes_only=boxes_only),
        best_class,
        queries,
        plugin,
        partial(rows, boxes_only=boxes_only),
        lambda _: cells(None) or (cells(size) if len(index.graph.output) > PAIR else None),
        pair,
        partial(single_tensor, names=names, boxes_only=boxes_only),
    )
    head = next(filter(None, (find(index) for find in ways)), None)
    if head is None or head.decoded is None or head.decodes(BoxDecode.LINEAR):
        head = cells(size) or head
    if head is None:
        raise Unrecognised(_why_not(index))
    if not head.of_queries:
        return head
    begin = queries_of(index, head.boxes[0].tensor)
    return replace(head, queries=begin, patches=has_patches(index))


def _why_not(index: GraphIndex) -> str:
    if own := {node.op_type for node in index.graph.node} & SELECTION:
        return f"it selects boxes itself ({', '.join(sorted(own))}), and it is not clear where"
    outputs = [index.shapes[output.name] for output in index.graph.output]
    if len(outputs) != 1:
        return (
            f"it has {len(outputs)} outputs, and it is not clear which are boxes and which scores"
        )
    match len(outputs[0]):
        case 2:
            return "it classifies whole pictures: its output is [B, C]"
        case 4:
            return "it segments pictures, or its boxes are not decoded: its output is [B, C, H, W]"
    return "its output is not a detection head"
