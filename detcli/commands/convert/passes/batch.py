"""Change the batch size of a graph."""

import numpy as np
from onnx import GraphProto, ModelProto, ValueInfoProto

from detcli.errors import ModelError
from detcli.model.editing import (
    add_constant,
    copied,
    infer_shapes,
    renew_shapes,
    tensor_names,
    unused_name,
)
from detcli.model.graph import GraphIndex, known_size
from detcli.model.inputs import find_inputs

HINT = "export the model again with that batch, or with dynamic axes"


def set_batch(model: ModelProto, size: int | None) -> ModelProto:
    """Make a graph take batches of another size.

    Exporters write the batch into the target shapes of Reshape. There it becomes 0, which means
    "as in the input" and so holds for any batch.

    Args:
        model: A graph that takes pictures, and possibly something for each of them.
        size: Pictures in a batch; None for any number.

    Raises:
        ModelError: The graph does not take `[B, 3, H, W]`, or depends on its batch size in another
            way too.
    """
    changed = copied(model)
    graph = changed.graph
    image = picture_input(graph, "--batch")
    dim = image.type.tensor_type.shape.dim[0]
    old = known_size(dim.dim_value) if dim.HasField("dim_value") else None
    if old == size:
        return changed
    if old is not None:
        _free_reshapes(graph, GraphIndex(infer_shapes(model).graph), image.name, old)
    for value in (*GraphIndex(graph).image_inputs(), *graph.output):
        first = value.type.tensor_type.shape.dim[0]
        if size is None:
            first.dim_param = "batch"
        else:
            first.dim_value = size
    try:
        changed = renew_shapes(changed)
    except ValueError as error:
        raise ModelError(f"the graph cannot take another batch: {error}", HINT) from error
    for output in changed.graph.output:
        found = output.type.tensor_type.shape.dim[0]
        if (found.dim_value if found.HasField("dim_value") else None) != size:
            raise ModelError(f"the graph keeps a batch of {found.dim_value} at its end", HINT)
    return changed


def picture_input(graph: GraphProto, option: str) -> ValueInfoProto:
    """The input for pictures, `[B, 3, H, W]`.

    Raises:
        ModelError: It has other axes.
    """
    image, _ = find_inputs(GraphIndex(graph))
    if image.channels_last or image.single:
        axes = "[H, W, 3]" if image.channels_last else "[3, H, W]"
        raise ModelError(f"{option}: the graph takes {axes}, not [B, 3, H, W]", HINT)
    found: ValueInfoProto = next(value for value in graph.input if value.name == image.name)
    return found


def _free_reshapes(graph: GraphProto, index: GraphIndex, image: str, old: int) -> None:
    """Make each Reshape that keeps the batch take it from its input."""
    names = tensor_names(graph)
    moved = index.moved_from(image)
    for node in graph.node:
        target = index.constant(node.input[1]) if node.op_type == "Reshape" else None
        if not target or target[0] != old or node.input[0] not in moved:
            continue
        source = known_size(index.shapes.get(node.input[0], [None])[0])  # None if unknown
        flags = [entry for entry in node.attribute if entry.name == "allowzero" and entry.i]
        if source not in {None, old} or (flags and 0 in target):
            continue
        for flag in flags:
            node.attribute.remove(flag)
        name = unused_name(names, f"{node.output[0]}/shape")
        node.input[1] = add_constant(graph, name, np.array([0, *target[1:]], np.int64))
