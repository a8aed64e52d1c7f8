"""Guard against engines that drop a Transpose at the end of a graph."""

import numpy as np
from onnx import ModelProto, NodeProto, helper

from detcli.errors import ModelError
from detcli.model.editing import (
    add_constant,
    copied,
    infer_shapes,
    opset,
    replace_nodes,
    tensor_names,
    unused_name,
)
from detcli.model.graph import GraphIndex, bare_transposes, known_size

SIZES_ARE_AN_INPUT = 13  # of Split, from this opset on


def guard_transposes(model: ModelProto) -> ModelProto:
    """Insert a Concat after each Transpose that feeds an output.

    It copies the tensor, so an engine must lay it out as the Transpose says and cannot return
    the tensor before it. A Concat of one input would do for an engine, but simplifiers remove
    it like an Identity (both onnxsim 0.8 and onnxslim 0.1), and ONNX Runtime moves a Transpose
    through it where that pays. So a Split divides the last axis (into its first entry and the rest)
    and the Concat joins the two again, which all of them leave alone.

    Raises:
        ModelError: The size of the last axis of such an output is unknown, or below 2.
    """
    guarded = copied(model)
    graph = guarded.graph
    bare = {node.output[0] for node in bare_transposes(graph)}
    if not bare:
        return guarded
    shapes = GraphIndex(infer_shapes(model).graph).shapes
    names = tensor_names(graph)
    nodes: list[NodeProto] = []
    for node in graph.node:
        nodes.append(node)
        if node.output[0] not in bare:
            continue
        output = node.output[0]
        size = known_size((shapes.get(output) or [None])[-1])
        if size is None or size < 2:
            raise ModelError(
                f"--guard-transpose: the last axis of {output} has no known size above 1",
                "export the model with a fixed number of classes",
            )
        moved, first, rest = (
            unused_name(names, f"{output}/{part}") for part in ("transposed", "first", "rest")
        )
        node.output[0] = moved
        sizes, parts = [1, size - 1], [first, rest]
        if opset(model) < SIZES_ARE_AN_INPUT:
            nodes.append(helper.make_node("Split", [moved], parts, axis=-1, split=sizes))
        else:
            name = unused_name(names, f"{output}/sizes")
            constant = add_constant(graph, name, np.array(sizes, np.int64))
            nodes.append(helper.make_node("Split", [moved, constant], parts, axis=-1))
        nodes.append(helper.make_node("Concat", parts, [output], axis=-1))
    replace_nodes(graph, nodes)
    return guarded
