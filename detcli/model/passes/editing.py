"""What passes do to graphs: copies, names, constants, the order of nodes."""

from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy.typing as npt
import onnx
from onnx import GraphProto, ModelProto, NodeProto

from detcli.model.graph import needed_nodes


def copied(model: ModelProto) -> ModelProto:
    """A model of one's own to change."""
    copy = ModelProto()
    copy.CopyFrom(model)
    return copy


def opset(model: ModelProto) -> int:
    """The version of the standard operators that a model is written in."""
    return max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=1)


def tensor_names(graph: GraphProto) -> set[str]:
    """The names of all tensors of a graph."""
    values = (*graph.input, *graph.output, *graph.initializer)
    return {value.name for value in values} | {
        name for node in graph.node for name in (*node.input, *node.output)
    }


def unused_name(names: set[str], wanted: str) -> str:
    """A name that is in no use yet; it is from now on."""
    name, number = wanted, 1
    while name in names:
        number += 1
        name = f"{wanted}{number}"
    names.add(name)
    return name


def add_constant(graph: GraphProto, name: str, value: npt.NDArray[Any]) -> str:
    """Add a constant tensor and return its name."""
    graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    return name


def number_nodes(graph: GraphProto) -> dict[str, str]:
    """Give each node a name that no other has, and return the old ones by the new."""
    names = {}
    for number, node in enumerate(graph.node):
        new = f"node {number}"
        names[new], node.name = node.name, new
    return names


def replace_nodes(graph: GraphProto, nodes: Iterable[NodeProto]) -> None:
    """Put these nodes in the place of a graph's own."""
    kept = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(kept)


def drop_unused(graph: GraphProto) -> None:
    """Drop the nodes and constants that no output needs."""
    needed = [needed_nodes(graph, output.name) for output in graph.output]
    names = {name for nodes, _ in needed for node in nodes for name in node.output}
    used = set().union(*(tensors for _, tensors in needed))
    replace_nodes(graph, [node for node in graph.node if not names.isdisjoint(node.output)])
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    described = [value for value in graph.value_info if value.name in used]
    del graph.initializer[:], graph.value_info[:]
    graph.initializer.extend(kept)
    graph.value_info.extend(described)


def sort_nodes(graph: GraphProto) -> None:
    """Put each node behind those whose tensors it reads, as ONNX wants it.

    Of nodes that could go next, the one that came first in the graph does.
    """
    makers = {name: i for i, node in enumerate(graph.node) for name in node.output if name}
    needs = [{makers[name] for name in node.input if name in makers} for node in graph.node]
    readers: list[list[int]] = [[] for _ in graph.node]
    for index, needed in enumerate(needs):
        for maker in needed:
            readers[maker].append(index)
    missing = [len(needed) for needed in needs]
    ready = deque(index for index, count in enumerate(missing) if count == 0)
    order = []
    while ready:
        index = ready.popleft()
        order.append(index)
        for reader in readers[index]:
            missing[reader] -= 1
            if missing[reader] == 0:
                ready.append(reader)
    replace_nodes(graph, [graph.node[index] for index in order])


def infer_shapes(model: ModelProto) -> ModelProto:
    """Add the shapes of intermediate tensors, as far as they can be inferred."""
    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=True)
    except (onnx.shape_inference.InferenceError, ValueError):
        return model  # what the graph says itself has to do


def renew_shapes(model: ModelProto) -> ModelProto:
    """Infer the shapes of intermediate tensors anew, from those of the inputs and outputs.

    Raises:
        ValueError: The shapes contradict each other, or a constant of the graph.
    """
    renewed = ModelProto()
    renewed.CopyFrom(model)
    del renewed.graph.value_info[:]
    try:
        return onnx.shape_inference.infer_shapes(renewed, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError as error:
        raise ValueError(_first(str(error))) from error


def _first(message: str) -> str:
    """The first of the errors that shape inference found: the others follow from it."""
    for separator in ("[ShapeInferenceError] Inference error(s): ", "[ShapeInferenceError] "):
        message = message.removeprefix(separator)
    return message.strip().splitlines()[0]
