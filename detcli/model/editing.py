"""Edits of graphs: cutting, tidying, shapes, metadata, names, constants, the order of nodes."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from graphlib import TopologicalSorter
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import GraphProto, ModelProto, NodeProto, helper, numpy_helper

from detcli.model.graph import Dims, GraphIndex, attribute, known_size, needed_nodes, reads, shape
from detcli.model.heads import SELECTION
from detcli.model.softmax_nodes import restore_softmax

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
SHAPE_INFERENCE_NODE = re.compile(r"\(op_type:(\w+)(?:, node name: ([^)]+))?\)")
ELEMENTS_OF_CALL = 1 << 10  # added to the count for each folded node, as a call takes time too
FIRST_OPSET_OF_AXES_INPUT = 13  # before it, the axes of Unsqueeze are an attribute


def copied(model: ModelProto) -> ModelProto:
    """Copy a model, weights included."""
    copy = ModelProto()
    copy.CopyFrom(model)
    return copy


def is_valid(model: ModelProto) -> bool:
    """Check whether ONNX's own checker accepts a model; a model too large for it is not valid."""
    checked = copied(model)
    # The checker wants a shape field in every output, which runtimes do without.
    for value in checked.graph.output:
        value.type.tensor_type.shape.SetInParent()
    try:
        onnx.checker.check_model(checked)
    except (onnx.checker.ValidationError, ValueError):  # ValueError: larger than 2 GiB
        return False
    return True


def cut(model: ModelProto, *heads: str) -> ModelProto:
    """Copy a model and make the tensors `heads` its only outputs.

    All nodes, constants and inputs that the new outputs do not need are dropped; metadata and opset
    stay. A graph that selects its detections with TopK, cut at the tensor that feeds the TopK, is
    left with the network alone.

    Raises:
        ValueError: No node of the graph computes one of the tensors.
    """
    computed_tensors = set()
    for node in model.graph.node:
        computed_tensors.update(node.output)
    computed_tensors.discard("")  # an optional output that is left out has no name
    for head in heads:
        if head not in computed_tensors:
            raise ValueError(f"no node computes {head}")

    # Where the file states the type and shape of a head, the output has them.
    value_by_name = {value.name: value for value in model.graph.value_info}
    value_by_name.update((value.name, value) for value in model.graph.output)
    outputs = [value_by_name.get(head, onnx.ValueInfoProto(name=head)) for head in heads]
    body = copied(model)
    del body.graph.output[:]
    body.graph.output.extend(outputs)

    used_tensors = drop_unused(body.graph)
    inputs = [value for value in body.graph.input if value.name in used_tensors]
    del body.graph.input[:]
    body.graph.input.extend(inputs)
    return body


def infer_shapes(model: ModelProto) -> ModelProto:
    """Add the shapes of intermediate tensors, where they can be inferred.

    Returns:
        A copy with these shapes; the model itself if its shapes contradict each other.
    """
    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=True)
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, ValueError):
        return model


def put_in_order(model: ModelProto) -> None:
    """Bring the nodes of a model into the order that ONNX requires, in place.

    Each node then follows those whose outputs it reads. Constants that old files list among the
    inputs as well are removed from the inputs. ONNX Runtime does both when it loads a file.
    """
    graph = model.graph
    if not _is_in_order(graph):
        sort_nodes(graph)
    inputs = GraphIndex(graph).image_inputs()
    if len(inputs) < len(graph.input):
        del graph.input[:]
        graph.input.extend(inputs)
        # Before version 4 of the format, each constant had to be an input as well.
        model.ir_version = max(model.ir_version, 4)


def _is_in_order(graph: GraphProto) -> bool:
    """True if no node reads what a later node computes."""
    computed = set()
    for node in graph.node:
        computed.update(node.output)
    computed_before = {""}
    for node in graph.node:
        computed_inputs = reads(node) & computed
        if not computed_inputs <= computed_before:
            return False
        computed_before.update(node.output)
    return True


def tidy(model: ModelProto, *, folds_constants: bool) -> ModelProto:
    """Simplify a model in place so that its head can be recognised; return a copy with shapes.

    Nodes that only name a constant are replaced by initialisers, the constant tensors that a graph
    stores. The arithmetic of a Softmax becomes a Softmax. Outputs without a batch axis get one.

    Args:
        model: The model to simplify. The inferred shapes are only added to the copy.
        folds_constants: Whether to also replace what is computed from constants alone, such as
            anchors and sizes, by a constant. This takes longer than the rest.

    Returns:
        A copy of the simplified model with all intermediate shapes that can be inferred.
    """
    _forget_negative_sizes(model.graph)
    _replace_constant_nodes(model, NAMED, {})
    if restore_softmax(model, opset(model)):
        drop_unused(model.graph)

    inferred = infer_shapes(model)
    # `infer_shapes` returns the model itself, not a copy, where its shapes contradict each other.
    are_shapes_contradictory = inferred is model
    if are_shapes_contradictory:
        return copied(model)
    if folds_constants:
        # New constants make more shapes known, and known shapes make more nodes constant.
        for _ in range(MAX_PASSES):
            if not _replace_constant_nodes(model, FOLDED, GraphIndex(inferred.graph).shapes):
                break
            inferred = infer_shapes(model)

    if _add_batch(model, inferred.graph):
        return infer_shapes(model)
    return inferred


def _forget_negative_sizes(graph: GraphProto) -> None:
    """Make the size of each axis that is declared as -1 unknown, in place, as ONNX Runtime does.

    Some exporters write -1 for an axis of any size; ONNX's own inference takes it for a size.
    """
    for values in (graph.input, graph.output, graph.value_info):
        for value in values:
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_value < 0:
                    dim.ClearField("dim_value")


def _replace_constant_nodes(
    model: ModelProto, operators: frozenset[str], shapes: Mapping[str, Dims]
) -> bool:
    """Replace nodes whose inputs are all constants by the constants that they compute, in place.

    Nodes that compute an output of the graph stay. The constants that are read and computed have
    `MAX_FOLDED` elements at most in total; nodes that would exceed this stay, too.

    Args:
        model: The model to change.
        operators: The operators to replace.
        shapes: Inferred shapes by tensor. With these, a Shape node is replaced as well if it reads
            a tensor of known shape.

    Returns:
        True if any node was replaced.
    """
    graph = model.graph
    outputs = {output.name for output in graph.output}
    constant_by_name = {tensor.name: tensor for tensor in graph.initializer}
    # Where an input has a free axis, the file may still state the shapes from before it was freed.
    are_shapes_reliable = bool(shapes) and _has_fixed_inputs(graph)
    elements_left = MAX_FOLDED  # how many elements may still be read and computed
    remaining_nodes: list[NodeProto] = []
    for node in graph.node:
        new_constants: list[onnx.TensorProto] = []
        if node.op_type == "Shape" and are_shapes_reliable:
            new_constants = _constant_shape(node, shapes[node.input[0]])
        elif node.op_type in operators and outputs.isdisjoint(node.output):
            operands = _constant_operands(node, constant_by_name)
            if operands is not None:
                elements_left -= ELEMENTS_OF_CALL + _element_count(operands)
                new_constants = _computed_constants(
                    model, node, operands, max_elements=elements_left
                )
                elements_left -= _element_count(new_constants)
        if not new_constants:
            remaining_nodes.append(node)
        for tensor in new_constants:
            constant_by_name[tensor.name] = tensor
        graph.initializer.extend(new_constants)

    if len(remaining_nodes) == len(graph.node):
        return False
    replace_nodes(graph, remaining_nodes)
    return True


def _constant_operands(
    node: NodeProto, constant_by_name: Mapping[str, onnx.TensorProto]
) -> list[onnx.TensorProto] | None:
    """Return the constants that a node reads; None if any of its inputs is not a constant."""
    operands = []
    for name in node.input:
        if not name:  # an optional input that is left out
            continue
        if name not in constant_by_name:
            return None
        operands.append(constant_by_name[name])
    return operands


def _has_fixed_inputs(graph: GraphProto) -> bool:
    """True if the size of every axis of every input is known."""
    for value in graph.input:
        for dim in shape(value):
            if known_size(dim) is None:
                return False
    return True


def _element_count(tensors: Iterable[onnx.TensorProto]) -> int:
    """Count the elements of all tensors together."""
    return sum(math.prod(tensor.dims) for tensor in tensors)


def _constant_shape(node: NodeProto, dims: Dims) -> list[onnx.TensorProto]:
    """Compute the constant that a Shape node outputs for an input of the shape `dims`.

    Since opset 15, the attributes `start` and `end` can select some of the axes.

    Args:
        node: The Shape node.
        dims: The size of each axis of its input; empty if even the number of axes is unknown.

    Returns:
        A list with the constant. Empty if the shape, or the size of any axis, is unknown.
    """
    sizes = []
    for dim in dims:
        size = known_size(dim)
        if size is None:
            return []
        sizes.append(size)
    if not sizes:
        return []

    start = attribute(node, "start", 0)
    end = attribute(node, "end", len(dims))
    values = np.array(sizes[start:end], np.int64)
    return [numpy_helper.from_array(values, node.output[0])]


def _computed_constants(
    model: ModelProto, node: NodeProto, operands: Sequence[onnx.TensorProto], max_elements: int
) -> list[onnx.TensorProto]:
    """Compute the outputs of a node whose inputs are all constants.

    Args:
        model: The model of the node, for the versions of its operators.
        node: The node.
        operands: The constants that the node reads.
        max_elements: How many elements the outputs may have together.

    Returns:
        The outputs as constants. Empty if they are larger, or if their size is not known before
        they are computed, or if ONNX's reference implementation cannot compute them.
    """
    if node.op_type in NAMED and (operands or node.attribute[0].name == "value"):
        # A Constant or an Identity only gives another name to a tensor.
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

    # Imported late, as it loads a module for each operator.
    from onnx.reference import ReferenceEvaluator

    try:
        arrays = ReferenceEvaluator(node_alone).run(None, {})
    except Exception:  # noqa: BLE001 - the kernels raise anything; the node stays
        return []
    results = []
    for array, name in zip(arrays, node.output, strict=False):
        results.append(numpy_helper.from_array(np.asarray(array), name))
    return results


def rename(graph: GraphProto, old: str, new: str) -> None:
    """Rename a tensor wherever a node of the graph reads or computes it, in place."""
    for node in graph.node:
        for names in (node.input, node.output):
            for position, name in enumerate(names):
                if name == old:
                    names[position] = new


def _add_batch(model: ModelProto, inferred: GraphProto) -> bool:
    """Add a batch axis in front of all outputs of a graph in which none has one, in place.

    An output [N, channels] becomes [1, N, channels]. This is done only if the graph takes one image
    at a time, and does not select detections itself.

    Args:
        model: The model to change.
        inferred: Its graph with inferred shapes.

    Returns:
        True if the axis was added.
    """
    graph = model.graph
    shapes = {output.name: shape(output) for output in inferred.output}
    for dims in shapes.values():
        # If the first of two axes is longer than 1, it counts anchors; a batch axis would be 1.
        is_unbatched = len(dims) == 2 and (known_size(dims[0]) or 1) > 1
        if not is_unbatched:
            return False
    index = GraphIndex(inferred)
    if index.nodes(*SELECTION):
        return False
    for image_input in index.image_inputs():
        dims = shape(image_input)
        takes_one_image = len(dims) == 3 or dims[:1] == [1]
        if not takes_one_image:
            return False

    # Some tools also list the outputs among the intermediate tensors, with the shapes from before.
    described = [value for value in graph.value_info if value.name not in shapes]
    del graph.value_info[:]
    graph.value_info.extend(described)

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
    """Copy a model and infer all its intermediate shapes again from its inputs and outputs.

    Raises:
        ValueError: The shapes contradict each other; the message says at which node.
    """
    renewed = copied(model)
    del renewed.graph.value_info[:]
    try:
        return onnx.shape_inference.infer_shapes(renewed, strict_mode=True, data_prop=True)
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError) as error:
        raise ValueError(_contradiction(str(error))) from error


def _contradiction(message: str) -> str:
    """Name the node where shapes contradict each other, by the message of ONNX's inference.

    Examples:
        >>> _contradiction("(op_type:Squeeze, node name: s/6): [ShapeInferenceError] (1) vs (4)")
        "the shapes contradict each other at its Squeeze node 's/6'"
    """
    node = SHAPE_INFERENCE_NODE.search(message)  # the first is the cause, others follow from it
    if node is None:
        return "the shapes of its nodes contradict each other"
    operator, name = node.groups(default="")
    quoted_name = f" '{name}'" if name else ""
    return f"the shapes contradict each other at its {operator} node{quoted_name}"


def set_metadata(model: ModelProto, entries: Mapping[str, str]) -> ModelProto:
    """Copy a model and set entries of its metadata; an empty value removes an entry.

    Entries that exist keep their places, and new entries follow them.
    """
    changed = copied(model)
    all_entries = {entry.key: entry.value for entry in model.metadata_props}
    all_entries.update(entries)
    del changed.metadata_props[:]
    for key, value in all_entries.items():
        if value:
            changed.metadata_props.add(key=key, value=value)
    return changed


def names_entry(names: Sequence[str]) -> dict[str, str]:
    """Format class names as the metadata entry of Ultralytics' exporter: `{0: 'person', ...}`."""
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
    """Replace all nodes of a graph, in place; the new nodes may be some of the old."""
    # Copied first, because a node is lost when the list that holds it is emptied.
    copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def drop_unused(graph: GraphProto) -> set[str]:
    """Drop the nodes, constants and shapes that no output of a graph needs, in place.

    Returns:
        The names of the tensors that are still in use.
    """
    outputs = {output.name for output in graph.output}
    nodes, used_tensors = needed_nodes(graph, *outputs)
    replace_nodes(graph, nodes)

    # Old files list their constants as inputs as well. Without its constant, such an input would
    # have to be fed by the caller, so it is dropped too.
    dropped_constants = {tensor.name for tensor in graph.initializer} - used_tensors
    inputs = [value for value in graph.input if value.name not in dropped_constants]
    del graph.input[:]
    graph.input.extend(inputs)

    constants = [tensor for tensor in graph.initializer if tensor.name in used_tensors]
    del graph.initializer[:]
    graph.initializer.extend(constants)

    inner_tensors = used_tensors - outputs
    shapes = [value for value in graph.value_info if value.name in inner_tensors]
    del graph.value_info[:]
    graph.value_info.extend(shapes)
    return used_tensors


def sort_nodes(graph: GraphProto) -> None:
    """Put each node of a graph after those whose outputs it reads, as ONNX requires, in place."""
    producer_positions: dict[str, int] = {}  # the position of the node that computes each tensor
    for position, node in enumerate(graph.node):
        for name in node.output:
            if name:
                producer_positions[name] = position

    # `reads` returns sets, whose order differs between processes. All nodes are added in order
    # first, so that it does not matter.
    no_predecessors: dict[int, tuple[int, ...]] = dict.fromkeys(range(len(graph.node)), ())
    sorter = TopologicalSorter(no_predecessors)
    for position, node in enumerate(graph.node):
        computed_inputs = [name for name in reads(node) if name in producer_positions]
        predecessors = {producer_positions[name] for name in computed_inputs}
        sorter.add(position, *predecessors)
    replace_nodes(graph, [graph.node[position] for position in sorter.static_order()])
