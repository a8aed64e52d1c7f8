"""Edits of graphs: cutting, shapes, metadata, names, constants, the order of nodes."""

from collections.abc import Iterable, Mapping, Sequence
from graphlib import TopologicalSorter
from typing import Any

import numpy.typing as npt
import onnx
from onnx import GraphProto, ModelProto, NodeProto

from detcli.model.graph import needed_nodes


def copied(model: ModelProto) -> ModelProto:
    """Copy a model, weights included."""
    copy = ModelProto()
    copy.CopyFrom(model)
    return copy


def cut(model: ModelProto, *heads: str) -> ModelProto:
    """Make `heads` the only outputs and drop everything that they do not depend on.

    Cutting an end-to-end graph at the tensor that feeds its first top-k stage leaves the network
    body. Idempotent; metadata and opset stay, and the inputs that are read.
    """
    made = {name for node in model.graph.node for name in node.output if name}
    if missing := [head for head in heads if head not in made]:
        raise ValueError(f"no node computes {missing[0]}")
    known = {value.name: value for value in (*model.graph.value_info, *model.graph.output)}
    body = copied(model)
    del body.graph.output[:]
    body.graph.output.extend(known.get(head, onnx.ValueInfoProto(name=head)) for head in heads)
    used = drop_unused(body.graph)
    inputs = [value for value in body.graph.input if value.name in used]
    del body.graph.input[:]
    body.graph.input.extend(inputs)
    return body


def infer_shapes(model: ModelProto) -> ModelProto:
    """Add the shapes of intermediate tensors, as far as they can be inferred."""
    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=True)
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, ValueError):
        return model


def renew_shapes(model: ModelProto) -> ModelProto:
    """Infer all intermediate shapes again from those of the inputs and outputs."""
    renewed = copied(model)
    del renewed.graph.value_info[:]
    try:
        return onnx.shape_inference.infer_shapes(renewed, strict_mode=True, data_prop=True)
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError) as error:
        message = str(error)
        for prefix in ("[ShapeInferenceError] Inference error(s): ", "[ShapeInferenceError] "):
            message = message.removeprefix(prefix)
        # The first line is the cause; the other errors follow from it.
        raise ValueError(message.strip().splitlines()[0]) from error


def set_metadata(model: ModelProto, entries: Mapping[str, str]) -> ModelProto:
    """Set entries of the metadata; an empty value removes one, and the others keep their order."""
    changed = copied(model)
    known = {entry.key: entry.value for entry in model.metadata_props}
    known.update(entries)
    del changed.metadata_props[:]
    for key, value in known.items():
        if value:
            changed.metadata_props.add(key=key, value=value)
    return changed


def names_entry(names: Sequence[str]) -> dict[str, str]:
    """The metadata entry for class names, in the notation of Ultralytics' exporter."""
    return {"names": str(dict(enumerate(names)))}


def opset(model: ModelProto) -> int:
    """The version of the standard operators that a model uses."""
    return max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=1)


def tensor_names(graph: GraphProto) -> set[str]:
    """The names of all tensors of a graph."""
    values = (*graph.input, *graph.output, *graph.initializer)
    return {value.name for value in values} | {
        name for node in graph.node for name in (*node.input, *node.output)
    }


def unused_name(names: set[str], wanted: str) -> str:
    """Find a name that is not in use yet, and add it to `names`."""
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
    """Give each node a unique name; returns the old names by the new."""
    names = {}
    for number, node in enumerate(graph.node):
        new = f"node {number}"
        names[new], node.name = node.name, new
    return names


def replace_nodes(graph: GraphProto, nodes: Iterable[NodeProto]) -> None:
    """Replace a graph's nodes by these, which may be its own."""
    kept = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(kept)


def drop_unused(graph: GraphProto) -> set[str]:
    """Drop the nodes, constants and shapes that no output needs; returns the tensors in use."""
    outputs = {output.name for output in graph.output}
    nodes, used = needed_nodes(graph, *outputs)
    replace_nodes(graph, nodes)
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    described = [value for value in graph.value_info if value.name in used - outputs]
    # Old files list their constants as inputs, too: what is left of these would have to be fed.
    constants = {tensor.name for tensor in graph.initializer} - {tensor.name for tensor in kept}
    inputs = [value for value in graph.input if value.name not in constants]
    del graph.initializer[:], graph.value_info[:], graph.input[:]
    graph.input.extend(inputs)
    graph.initializer.extend(kept)
    graph.value_info.extend(described)
    return used


def sort_nodes(graph: GraphProto) -> None:
    """Put each node after those whose outputs it reads, as ONNX requires."""
    makers = {name: i for i, node in enumerate(graph.node) for name in node.output if name}
    sorter = TopologicalSorter(dict.fromkeys(range(len(graph.node)), ()))
    for index, node in enumerate(graph.node):
        sorter.add(index, *{makers[name] for name in node.input if name in makers})
    replace_nodes(graph, [graph.node[index] for index in sorter.static_order()])
