"""Edits of graphs: cutting, tidying, shapes, metadata, names, constants, the order of nodes."""

import math
from collections.abc import Iterable, Mapping, Sequence
from graphlib import TopologicalSorter
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import GraphProto, ModelProto, NodeProto, helper, numpy_helper

from detcli.model.graph import Dims, GraphIndex, attribute, known_size, needed_nodes, reads, shape
from detcli.model.heads import SELECTION

FOLDED = frozenset(
    "Add Cast Ceil Concat Constant ConstantOfShape Div Equal Expand Floor Gather Greater Identity "
    "Less Mod Mul Neg Range Reshape Shape Slice Split Sqrt Squeeze Sub Tile Transpose Unsqueeze "
    "Where".split()
)
"""Operators that make sizes, indices and anchors of constants."""
NAMED = frozenset({"Constant", "Identity"})  # those that only name a constant
MAX_FOLDED = 1 << 22
"""Elements that folded nodes read and make, all together; anchors of 1280 x 1280 take a third."""
MAX_PASSES = 8
LEAST_FOLDED = 1 << 10  # elements that a node counts as at least: what its call takes


def copied(model: ModelProto) -> ModelProto:
    """Copy a model, weights included."""
    copy = ModelProto()
    copy.CopyFrom(model)
    return copy


def is_valid(model: ModelProto) -> bool:
    """True if a model, with its weights, is as ONNX's own rules want it."""
    checked = copied(model)
    for value in checked.graph.output:  # runtimes do without their shapes, the checker does not
        value.type.tensor_type.shape.SetInParent()
    try:
        onnx.checker.check_model(checked)
    except (onnx.checker.ValidationError, ValueError):  # too large for it, too
        return False
    return True


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


def put_in_order(model: ModelProto) -> None:
    """Put nodes in order, and take out the inputs that have a value, as ONNX Runtime does."""
    graph = model.graph
    made, seen = {name for node in graph.node for name in node.output}, {""}
    for node in graph.node:
        if not reads(node) & made <= seen:
            sort_nodes(graph)
            break
        seen.update(node.output)
    inputs = GraphIndex(graph).image_inputs()
    if len(inputs) < len(graph.input):
        del graph.input[:]
        graph.input.extend(inputs)
        model.ir_version = max(model.ir_version, 4)  # before, each constant was an input


def tidy(model: ModelProto, *, folds: bool) -> ModelProto:
    """Bring a model to the form that detcli reads; returns it with all shapes that can be inferred.

    Outputs get an axis for the batch, and constants become initialisers. If it `folds`, which takes
    longer than all else, so does what is computed from constants alone.
    """
    _fold(model, NAMED, {})
    known = infer_shapes(model)
    if known is model:  # its shapes contradict each other
        return copied(model)
    # What is folded tells shapes, which tell what else can be folded.
    for _ in range(MAX_PASSES if folds else 0):
        if not _fold(model, FOLDED, GraphIndex(known.graph).shapes):
            break
        known = infer_shapes(model)
    return infer_shapes(model) if _add_batch(model, known.graph) else known


def _fold(model: ModelProto, operators: frozenset[str], shapes: Mapping[str, Dims]) -> bool:
    """Compute what depends on constants alone, by some operators; True if there was anything."""
    graph, left, kept = model.graph, MAX_FOLDED, list[NodeProto]()
    outputs = {output.name for output in graph.output}
    constants = {tensor.name: tensor for tensor in graph.initializer}
    # Shapes that a file names may be left from before its input was freed.
    fixed = all(all(map(known_size, shape(value))) for value in graph.input)
    for node in graph.node:
        made, needed = list[onnx.TensorProto](), [*filter(None, node.input)]
        if node.op_type == "Shape" and fixed and shapes:
            made = _shape_of(node, shapes[node.input[0]])
        elif (
            node.op_type in operators
            and constants.keys() >= {*needed}
            and outputs.isdisjoint(node.output)
        ):
            given = [constants[name] for name in needed]
            left -= LEAST_FOLDED + _elements(given)
            made = _computed(model, node, given, left)
            left -= _elements(made)
        constants.update((tensor.name, tensor) for tensor in made)
        graph.initializer.extend(made)
        if not made:
            kept.append(node)
    if folded := len(kept) < len(graph.node):
        replace_nodes(graph, kept)
    return folded


def _elements(tensors: Iterable[onnx.TensorProto]) -> int:
    return sum(math.prod(tensor.dims) for tensor in tensors)


def _shape_of(node: NodeProto, dims: Dims) -> list[onnx.TensorProto]:
    """What a Shape node gives, if all axes are known."""
    sizes = [size for dim in dims if (size := known_size(dim)) is not None]
    part = slice(attribute(node, "start", 0), attribute(node, "end", len(dims)))
    values = np.array(sizes[part], np.int64)
    known = 0 < len(sizes) == len(dims)
    return [numpy_helper.from_array(values, node.output[0])] if known else []


def _computed(
    model: ModelProto, node: NodeProto, given: Sequence[onnx.TensorProto], most: int
) -> list[onnx.TensorProto]:
    """What a node makes of constants; empty if that is more than `most` elements, or unknown."""
    if node.op_type in NAMED and (given or node.attribute[0].name == "value"):
        tensor = onnx.TensorProto()
        tensor.CopyFrom(given[0] if given else node.attribute[0].t)
        tensor.name = node.output[0]
        return [tensor] if most > 0 else []
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output]
    graph = helper.make_graph([node], "constants", [], outputs, given)
    alone = helper.make_model(
        graph, opset_imports=model.opset_import, ir_version=max(model.ir_version, 4)
    )
    sizes = [shape(value) for value in infer_shapes(alone).graph.output]
    known = [math.prod(filter(None, map(known_size, dims))) for dims in sizes if all(dims)]
    if len(known) < len(sizes) or sum(known) > most:
        return []
    from onnx.reference import ReferenceEvaluator  # a module for each operator

    try:
        values = ReferenceEvaluator(alone).run(None, {})
    except Exception:  # noqa: BLE001 - whatever its kernels raise; the node stays
        return []
    return [*map(numpy_helper.from_array, map(np.asarray, values), node.output)]


def rename(graph: GraphProto, old: str, new: str) -> None:
    """Let the nodes of a graph call a tensor otherwise."""
    for node in graph.node:
        for listed in (node.input, node.output):
            listed[:] = [new if name == old else name for name in listed]


def _add_batch(model: ModelProto, known: GraphProto) -> bool:
    """Add the axis that all outputs lack, where there is one picture and none selects; see `tidy`.

    A first axis of more than 1 is then that of the cells. `known` is the graph with its shapes.
    """
    graph, shapes = model.graph, {output.name: shape(output) for output in known.output}
    many = (known_size(dims[0]) or 1 for dims in shapes.values() if len(dims) == 2)
    if sum(count > 1 for count in many) < len(shapes):
        return False
    index = GraphIndex(known)
    one = all(len(dims := shape(value)) == 3 or dims[:1] == [1] for value in index.image_inputs())
    if not one or index.nodes(*SELECTION):
        return False
    names = tensor_names(graph)
    axis = add_constant(graph, unused_name(names, "batch"), np.array([0]))
    for output in graph.output:
        inner = unused_name(names, f"{output.name}/rows")
        rename(graph, output.name, inner)
        add = helper.make_node("Unsqueeze", [inner, axis], [output.name])
        if opset(model) < 13:
            add = helper.make_node("Unsqueeze", [inner], [output.name], axes=[0])
        graph.node.append(add)
        kind, dims = output.type.tensor_type.elem_type, [1, *shapes[output.name]]
        output.CopyFrom(helper.make_tensor_value_info(output.name, kind, dims))
    return True


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
        sorter.add(index, *{makers[name] for name in reads(node) if name in makers})
    replace_nodes(graph, [graph.node[index] for index in sorter.static_order()])
