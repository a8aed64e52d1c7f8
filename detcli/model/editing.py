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
ELEMENTS_OF_CALL = 1 << 10  # that a folded node counts as besides its own: what its call takes
FIRST_OPSET_OF_AXES_INPUT = 13  # before it, the axes of Unsqueeze are an attribute


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
    computed = set()
    for node in model.graph.node:
        computed.update(node.output)
    computed.discard("")
    for head in heads:
        if head not in computed:
            raise ValueError(f"no node computes {head}")

    described = {value.name: value for value in model.graph.value_info}
    described.update((value.name, value) for value in model.graph.output)
    outputs = [described.get(head, onnx.ValueInfoProto(name=head)) for head in heads]
    body = copied(model)
    del body.graph.output[:]
    body.graph.output.extend(outputs)

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
    computed = set()
    for node in graph.node:
        computed.update(node.output)
    computed_before = {""}
    for node in graph.node:
        if not reads(node) & computed <= computed_before:
            sort_nodes(graph)
            break
        computed_before.update(node.output)

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
    inferred = infer_shapes(model)
    if inferred is model:  # its shapes contradict each other
        return copied(model)
    if folds:
        # What is folded tells shapes, which tell what else can be folded.
        for _ in range(MAX_PASSES):
            if not _fold(model, FOLDED, GraphIndex(inferred.graph).shapes):
                break
            inferred = infer_shapes(model)
    if _add_batch(model, inferred.graph):
        return infer_shapes(model)
    return inferred


def _fold(model: ModelProto, operators: frozenset[str], shapes: Mapping[str, Dims]) -> bool:
    """Compute what depends on constants alone, by some operators; True if there was anything."""
    graph = model.graph
    remaining_nodes: list[NodeProto] = []
    remaining_elements = MAX_FOLDED
    outputs = {output.name for output in graph.output}
    constants = {tensor.name: tensor for tensor in graph.initializer}
    # Shapes that a file names may be left from before its input was freed.
    folds_shapes = bool(shapes) and _has_fixed_inputs(graph)
    for node in graph.node:
        inputs = [name for name in node.input if name]
        results: list[onnx.TensorProto] = []
        if node.op_type == "Shape" and folds_shapes:
            results = _shape_of(node, shapes[node.input[0]])
        elif (
            node.op_type in operators
            and constants.keys() >= set(inputs)
            and outputs.isdisjoint(node.output)
        ):
            operands = [constants[name] for name in inputs]
            remaining_elements -= ELEMENTS_OF_CALL + _element_count(operands)
            results = _computed(model, node, operands, max_elements=remaining_elements)
            remaining_elements -= _element_count(results)
        constants.update((tensor.name, tensor) for tensor in results)
        graph.initializer.extend(results)
        if not results:
            remaining_nodes.append(node)

    if len(remaining_nodes) == len(graph.node):
        return False
    replace_nodes(graph, remaining_nodes)
    return True


def _has_fixed_inputs(graph: GraphProto) -> bool:
    """True if the size of every axis of every input is known."""
    for value in graph.input:
        for dim in shape(value):
            if known_size(dim) is None:
                return False
    return True


def _element_count(tensors: Iterable[onnx.TensorProto]) -> int:
    return sum(math.prod(tensor.dims) for tensor in tensors)


def _shape_of(node: NodeProto, dims: Dims) -> list[onnx.TensorProto]:
    """The constant that a Shape node computes; empty unless all axes are known."""
    sizes = []
    for dim in dims:
        size = known_size(dim)
        if size is not None:
            sizes.append(size)
    start = attribute(node, "start", 0)
    end = attribute(node, "end", len(dims))
    values = np.array(sizes[start:end], np.int64)
    if not sizes or len(sizes) < len(dims):
        return []
    return [numpy_helper.from_array(values, node.output[0])]


def _computed(
    model: ModelProto, node: NodeProto, operands: Sequence[onnx.TensorProto], max_elements: int
) -> list[onnx.TensorProto]:
    """Compute the outputs of a node from constants; empty if they are too large, or unknown."""
    if node.op_type in NAMED and (operands or node.attribute[0].name == "value"):
        tensor = onnx.TensorProto()
        tensor.CopyFrom(operands[0] if operands else node.attribute[0].t)
        tensor.name = node.output[0]
        return [tensor] if max_elements > 0 else []

    outputs = [onnx.ValueInfoProto(name=name) for name in node.output]
    graph = helper.make_graph([node], "constants", [], outputs, operands)
    node_alone = helper.make_model(
        graph, opset_imports=model.opset_import, ir_version=max(model.ir_version, 4)
    )
    element_count = 0
    for value in infer_shapes(node_alone).graph.output:
        dims = shape(value)
        if not all(dims):  # an axis is unknown
            return []
        sizes = [known_size(dim) or 1 for dim in dims]
        element_count += math.prod(sizes)
    if element_count > max_elements:
        return []

    from onnx.reference import ReferenceEvaluator  # a module for each operator

    try:
        arrays = ReferenceEvaluator(node_alone).run(None, {})
    except Exception:  # noqa: BLE001 - whatever its kernels raise; the node stays
        return []
    results = []
    for array, name in zip(arrays, node.output, strict=False):
        results.append(numpy_helper.from_array(np.asarray(array), name))
    return results


def rename(graph: GraphProto, old: str, new: str) -> None:
    """Let the nodes of a graph call a tensor otherwise."""
    for node in graph.node:
        for names in (node.input, node.output):
            for position, name in enumerate(names):
                if name == old:
                    names[position] = new


def _add_batch(model: ModelProto, inferred: GraphProto) -> bool:
    """Add a batch axis to all outputs of a graph that has none; True if it was added.

    Only where the graph takes one picture, selects nothing itself, and none of its outputs has a
    batch axis. `inferred` is the graph with inferred shapes.
    """
    graph = model.graph
    shapes = {output.name: shape(output) for output in inferred.output}
    for dims in shapes.values():
        # With a batch of 1, the first of two axes would be 1; otherwise it is that of the cells.
        is_unbatched = len(dims) == 2 and (known_size(dims[0]) or 1) > 1
        if not is_unbatched:
            return False
    index = GraphIndex(inferred)
    if index.nodes(*SELECTION):
        return False
    for image_input in index.image_inputs():
        dims = shape(image_input)
        takes_one_picture = len(dims) == 3 or dims[:1] == [1]
        if not takes_one_picture:
            return False

    names = tensor_names(graph)
    axis = add_constant(graph, unused_name(names, "batch"), np.array([0]))
    for output in graph.output:
        unbatched = unused_name(names, f"{output.name}/rows")
        rename(graph, output.name, unbatched)
        if opset(model) < FIRST_OPSET_OF_AXES_INPUT:
            node = helper.make_node("Unsqueeze", [unbatched], [output.name], axes=[0])
        else:
            node = helper.make_node("Unsqueeze", [unbatched, axis], [output.name])
        graph.node.append(node)
        element_type = output.type.tensor_type.elem_type
        batched_shape = [1, *shapes[output.name]]
        output.CopyFrom(helper.make_tensor_value_info(output.name, element_type, batched_shape))
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
    all_entries = {entry.key: entry.value for entry in model.metadata_props}
    all_entries.update(entries)
    del changed.metadata_props[:]
    for key, value in all_entries.items():
        if value:
            changed.metadata_props.add(key=key, value=value)
    return changed


def names_entry(names: Sequence[str]) -> dict[str, str]:
    """The metadata entry for class names, in the notation of Ultralytics' exporter."""
    return {"names": str(dict(enumerate(names)))}


def opset(model: ModelProto) -> int:
    """The version of the standard operators that a model uses."""
    versions = []
    for operator_set in model.opset_import:
        if operator_set.domain in ("", "ai.onnx"):
            versions.append(operator_set.version)
    return max(versions, default=1)


def tensor_names(graph: GraphProto) -> set[str]:
    """The names of all tensors of a graph."""
    names: set[str] = set()
    for values in (graph.input, graph.output, graph.initializer):
        names.update(value.name for value in values)
    for node in graph.node:
        names.update(node.input)
        names.update(node.output)
    return names


def unused_name(names: set[str], preferred: str) -> str:
    """Find a name that is not in use yet, and add it to `names`."""
    name = preferred
    number = 1
    while name in names:
        number += 1
        name = f"{preferred}{number}"
    names.add(name)
    return name


def add_constant(graph: GraphProto, name: str, value: npt.NDArray[Any]) -> str:
    """Add a constant tensor and return its name."""
    graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    return name


def number_nodes(graph: GraphProto) -> dict[str, str]:
    """Give each node a unique name; returns the old names by the new."""
    old_names = {}
    for number, node in enumerate(graph.node):
        name = f"node {number}"
        old_names[name] = node.name
        node.name = name
    return old_names


def replace_nodes(graph: GraphProto, nodes: Iterable[NodeProto]) -> None:
    """Replace the nodes of a graph by others, of which some or all may be nodes of the graph."""
    copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def drop_unused(graph: GraphProto) -> set[str]:
    """Drop the nodes, constants and shapes that no output needs; returns the tensors in use."""
    outputs = {output.name for output in graph.output}
    nodes, used = needed_nodes(graph, *outputs)
    replace_nodes(graph, nodes)
    # Old files list their constants as inputs, too: what is left of these would have to be fed.
    dropped = {tensor.name for tensor in graph.initializer} - used
    inputs = [value for value in graph.input if value.name not in dropped]
    constants = [tensor for tensor in graph.initializer if tensor.name in used]
    described = [value for value in graph.value_info if value.name in used - outputs]
    del graph.initializer[:]
    del graph.value_info[:]
    del graph.input[:]
    graph.input.extend(inputs)
    graph.initializer.extend(constants)
    graph.value_info.extend(described)
    return used


def sort_nodes(graph: GraphProto) -> None:
    """Put each node after those whose outputs it reads, as ONNX requires."""
    makers: dict[str, int] = {}
    for position, node in enumerate(graph.node):
        makers.update((name, position) for name in node.output if name)
    sorter = TopologicalSorter(dict.fromkeys(range(len(graph.node)), ()))
    for position, node in enumerate(graph.node):
        predecessors = {makers[name] for name in reads(node) if name in makers}
        sorter.add(position, *predecessors)
    replace_nodes(graph, [graph.node[position] for position in sorter.static_order()])
