"""Compares the nodes of two graphs in one place, and says what differs."""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import NodeProto

from detcli.commands.verify.report import NodeReport, TensorReport
from detcli.commands.verify.tensors import compare_tensors
from detcli.model.graph import PASSED_THROUGH, GraphIndex, reads

HALF_LIMIT = float(np.finfo(np.float16).max)

Nodes = Sequence[NodeProto]
Tensor = npt.NDArray[Any]


def node_report(node: NodeProto) -> NodeReport:
    """A node by its name, or by its first output if it has none."""
    return NodeReport(node.name or node.output[0], node.op_type)


def nodes_between(
    index: GraphIndex, tensor: str, known: Collection[str]
) -> tuple[list[NodeProto], set[str]]:
    """The nodes that compute a tensor, which may be known itself, from known tensors.

    Returns:
        The nodes in graph order, and the known tensors that they read.
    """
    chosen, reached, waiting = set(), set(), [tensor]
    while waiting:
        node = index.producers.get(waiting.pop())
        if node is None or node.output[0] in chosen:
            continue
        chosen.add(node.output[0])
        for name in reads(node):
            if name in known:
                reached.add(name)
            else:
                waiting.append(name)
    nodes = [node for node in index.graph.node if node.output and node.output[0] in chosen]
    return nodes, reached


def explain(
    graphs: tuple[GraphIndex, GraphIndex],
    nodes: tuple[Nodes, Nodes],
    titles: tuple[str, str],
    output: TensorReport,
) -> tuple[NodeReport, str]:
    """Find the node that causes a difference, and say what differs about it.

    Args:
        graphs: The left graph and the right one.
        nodes: In each, the nodes between tensors that agree and the first one that differs.
        titles: Names of the graphs.
        output: The tensor that differs.
    """
    # Constants are compared where they are read, since they may be nodes or initializers.
    left, right = (
        {node.output[0]: node for node in side if node.op_type != "Constant"} for side in nodes
    )
    for made, node in left.items():
        if made in right:
            if why := _difference(graphs, (node, right[made]), titles):
                return node_report(node), why
        elif node.op_type not in PASSED_THROUGH:
            return node_report(node), f"the node is missing in {titles[1]}"
    for made, node in right.items():
        if made not in left and node.op_type not in PASSED_THROUGH:
            return node_report(node), f"the node is missing in {titles[0]}"
    return node_report(nodes[0][-1]), _numbers(output, titles)


def _difference(
    graphs: tuple[GraphIndex, GraphIndex],
    nodes: tuple[NodeProto, NodeProto],
    titles: tuple[str, str],
) -> str:
    """How two nodes differ; empty if they do not."""
    one, other = nodes
    if one.op_type != other.op_type:
        passing = {one.op_type, other.op_type} & PASSED_THROUGH
        return "" if len(passing) == 2 else f"it is {other.op_type} in {titles[1]}"
    read = [
        [_source(graph, name) for name in node.input]
        for graph, node in zip(graphs, nodes, strict=True)
    ]
    if read[0] != read[1] and sorted(read[0]) == sorted(read[1]):
        return f"its inputs are swapped in {titles[1]}: {', '.join(read[1])}"
    # Branches of an If or Loop read more, and constants of one name may differ.
    captured = {*reads(one)} & {*reads(other)} - {*one.input, *other.input}
    places = [*zip(*read, strict=False), *((name, name) for name in sorted(captured))]
    for name, counterpart in places:
        if why := _input_difference(graphs, (name, counterpart), titles):
            return why
    if len(read[0]) != len(read[1]):
        return f"it has {len(read[0])} inputs, and {len(read[1])} in {titles[1]}"
    attributes = [
        {(a.name, a.SerializeToString(deterministic=True)) for a in node.attribute}
        for node in nodes
    ]
    changed = sorted({name for name, _ in attributes[0] ^ attributes[1]})
    if changed and one.op_type not in PASSED_THROUGH:
        return f"its attributes differ in {titles[1]}: {', '.join(changed)}"
    return ""


def _source(graph: GraphIndex, name: str) -> str:
    """The tensor behind casts, identities, quantisation and dequantisation."""
    return graph.behind(name, PASSED_THROUGH)


def _input_difference(
    graphs: tuple[GraphIndex, GraphIndex], names: tuple[str, str], titles: tuple[str, str]
) -> str:
    left, right = (graph.array(name) for graph, name in zip(graphs, names, strict=True))
    if left is not None and right is not None:
        if not _are_alike(left, right):
            report = compare_tensors(names[0], left, right, 0.0, "")
            one, other = (side.nan + side.infinite for side in report.sides)
            how_far = "" if report.max_absolute is None else f" by up to {report.max_absolute:.3g}"
            if one != other:
                how_far = f", where {other} values are not finite instead of {one}"
            return f"its constant input {names[0]} differs in {titles[1]}{how_far}"
    elif names[0] != names[1] and any(
        name in graph.producers for name, graph in zip(names, reversed(graphs), strict=True)
    ):
        return f"it reads {names[0]}, but {names[1]} in {titles[1]}"
    return ""


def _are_alike(left: Tensor, right: Tensor) -> bool:
    """Whether constants are the same up to rounding, value by value.

    Not relative to the largest value, since a small weight may have a large effect.
    """
    if left.shape != right.shape:
        return False
    if (left.dtype.kind == "f") != (right.dtype.kind == "f"):
        return True  # the scale of a quantised constant is another input
    half = np.float16 in {left.dtype.type, right.dtype.type}
    rounding, smallest = (2.0**-10, 1e-7) if half else (1e-5, 0.0)
    one, other = left.astype(np.float64), right.astype(np.float64)
    return np.allclose(one, other, rtol=rounding, atol=smallest, equal_nan=True)


def _numbers(output: TensorReport, titles: tuple[str, str]) -> str:
    """What the values of a tensor show, where the node is the same in both graphs."""
    for side, other, title in (
        (output.left, output.right, titles[0]),
        (output.right, output.left, titles[1]),
    ):
        broken = side.nan + side.infinite
        if broken <= other.nan + other.infinite:
            continue
        reach = max(abs(other.least or 0.0), abs(other.greatest or 0.0))
        text = f"{side.infinite} infinities and {side.nan} NaN in {title} only"
        if reach > HALF_LIMIT:
            return f"{text}: the float16 limit is {HALF_LIMIT:.0f}, the other side has {reach:.6g}"
        return text
    return "the node is the same on both sides: the precision, runtime or device makes it differ"
