"""Convert a graph to float16."""

from collections.abc import Collection, Mapping

from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from detcli.backend.runtime import onnxruntime
from detcli.model.editing import (
    copied,
    drop_unused,
    infer_shapes,
    number_nodes,
    replace_nodes,
    sort_nodes,
    tensor_names,
)
from detcli.model.graph import attribute, model_tensors

del onnxruntime  # loaded first, so that detcli decides how it is loaded


def is_half(model: ModelProto) -> bool:
    """Whether a model computes in float16 already, judged by its weights."""
    return any(
        tensor.data_type == TensorProto.FLOAT16 and len(tensor.dims) > 1
        for tensor in model_tensors(model)
    )


def to_half(
    model: ModelProto, exact: Collection[str] = (), *, keep_inputs_and_outputs: bool = False
) -> ModelProto:
    """Compute in float16, except for some nodes. A float16 model is returned unchanged.

    ONNX Runtime converts (`onnxruntime.transformers.float16`), and its result is tidied up: a
    float32 tensor between two exact nodes does not pass through float16, where it would become
    infinite after all, and no tensor is cast twice.

    Args:
        model: A float32 graph.
        exact: First outputs of the nodes that stay in float32.
        keep_inputs_and_outputs: Whether inputs and outputs stay in float32.
    """
    if is_half(model):
        return copied(model)
    from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST, convert_float_to_float16

    half: ModelProto = infer_shapes(model)
    names = number_nodes(half.graph)
    blocked = [node.name for node in half.graph.node if node.output[0] in exact]
    half = convert_float_to_float16(
        half,
        keep_io_types=keep_inputs_and_outputs,
        disable_shape_infer=True,
        node_block_list=blocked,
        op_block_list=DEFAULT_OP_BLOCK_LIST,
    )
    for node in half.graph.node:
        node.name = names.get(node.name, node.name)
    _tidy_casts(half.graph, tensor_names(model.graph))
    sort_nodes(half.graph)
    del half.graph.value_info[:]  # the types of tensors have changed
    return infer_shapes(half)


def _tidy_casts(graph: GraphProto, known: set[str]) -> None:
    """Bypass casts to float16 and back, and keep one of equal casts.

    The converter renames the output of an exact node and gives the original name to its cast to
    float16; each exact reader gets a cast back, again under a new name.

    Args:
        graph: The converted graph.
        known: The names of the tensors that the model had before.
    """
    _keep_first(graph)
    narrowed = {
        node.output[0]: node.input[0]
        for node in graph.node
        if _casts_to(node, TensorProto.FLOAT16) and node.input[0] not in known
    }
    instead: dict[str, str] = {}
    cast: dict[str, str] = {}
    for node in graph.node:
        if not _casts_to(node, TensorProto.FLOAT):
            continue
        source, made = node.input[0], node.output[0]
        if source in narrowed:
            instead[made] = narrowed[source]
        elif made not in known:  # not a cast of the model itself
            instead[made] = cast.setdefault(source, made)
    for node in graph.node:
        node.input[:] = [instead.get(name, name) for name in node.input]
    outputs = {output.name for output in graph.output}
    _rename(graph, {instead[name]: name for name in outputs & instead.keys()})
    drop_unused(graph)
    made_now = tensor_names(graph)
    # Where no float16 reader is left, a tensor gets its name back.
    _rename(graph, {wide: name for name, wide in narrowed.items() if name not in made_now})


def _keep_first(graph: GraphProto) -> None:
    """Keep the first of the casts that make the same tensor."""
    nodes: list[NodeProto] = []
    made: set[str] = set()
    for node in graph.node:
        if node.op_type == "Cast" and node.output[0] in made:
            continue
        made.update(node.output)
        nodes.append(node)
    replace_nodes(graph, nodes)


def _rename(graph: GraphProto, names: Mapping[str, str]) -> None:
    """Give each tensor the name of the tensor that it replaces."""
    replaced = {*names.values()}
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [
            names.get(name, f"{name}/unused" if name in replaced else name) for name in node.output
        ]


def _casts_to(node: NodeProto, dtype: int) -> bool:
    return node.op_type == "Cast" and attribute(node, "to", 0) == dtype
