"""float16 in place of float32."""

from collections.abc import Collection

from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from detcli.backend.runtime import onnxruntime
from detcli.model.graph import attribute, model_tensors
from detcli.model.passes.editing import (
    copied,
    drop_unused,
    infer_shapes,
    number_nodes,
    replace_nodes,
    sort_nodes,
    tensor_names,
)

del onnxruntime  # imported first, so that it is imported as detcli wants it


def is_half(model: ModelProto) -> bool:
    """Whether a model computes in float16 already: it has weights of that type."""
    return any(
        tensor.data_type == TensorProto.FLOAT16 and len(tensor.dims) > 1
        for tensor in model_tensors(model)
    )


def to_half(
    model: ModelProto, exact: Collection[str] = (), *, keep_inputs_and_outputs: bool = False
) -> ModelProto:
    """Compute in float16, but for some nodes. A model that does so already stays as it is.

    The conversion is ONNX Runtime's (`onnxruntime.transformers.float16`); tidied up is what it
    leaves: a float32 tensor between two exact nodes does not go through float16, where it would
    become infinite after all, and no tensor is cast twice.

    Args:
        model: In float32.
        exact: First outputs of the nodes that stay in float32.
        keep_inputs_and_outputs: Those stay float32; else they become float16 too.
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
    del half.graph.value_info[:]  # types are others now, under old names too
    return infer_shapes(half)


def _tidy_casts(graph: GraphProto, known: set[str]) -> None:
    """Read past casts to float16 and back, and keep one of equal ones.

    The converter lets an exact node make a tensor of a new name, and a cast to float16 make the
    one that the model knows; each exact reader of it gets a cast back, again of a new name.

    Args:
        graph: What the converter made.
        known: The names of tensors that the model had before.
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
        elif made not in known:  # not one of the model's own
            instead[made] = cast.setdefault(source, made)
    for node in graph.node:
        node.input[:] = [instead.get(name, name) for name in node.input]
    for output in graph.output:
        if output.name in instead:
            _rename(graph, instead[output.name], output.name)
    drop_unused(graph)
    made_now = tensor_names(graph)
    for name, wide in narrowed.items():
        if name not in made_now:  # no float16 reader is left: the tensor has its name again
            _rename(graph, wide, name)


def _keep_first(graph: GraphProto) -> None:
    """Of casts that make the same tensor, leave one."""
    nodes: list[NodeProto] = []
    made: set[str] = set()
    for node in graph.node:
        if node.op_type == "Cast" and node.output[0] in made:
            continue
        made.update(node.output)
        nodes.append(node)
    replace_nodes(graph, nodes)


def _rename(graph: GraphProto, old: str, new: str) -> None:
    """Let a tensor have the name of one that it takes the place of."""
    for node in graph.node:
        node.input[:] = [new if name == old else name for name in node.input]
        node.output[:] = [
            new if name == old else f"{new}/unused" if name == new else name for name in node.output
        ]


def _casts_to(node: NodeProto, dtype: int) -> bool:
    return node.op_type == "Cast" and attribute(node, "to", 0) == dtype
