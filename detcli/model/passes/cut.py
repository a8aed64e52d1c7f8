"""Cutting a graph off behind a tensor."""

import onnx
from onnx import ModelProto

from detcli.model.graph import needed_nodes


def cut(model: ModelProto, head: str) -> ModelProto:
    """Make `head` the only output and drop what it does not depend on.

    Cutting an end-to-end graph at the tensor that feeds its first top-k stage leaves the network
    body. Idempotent; metadata, opset and inputs stay.

    Args:
        model: With the shape of `head` known, see `infer_shapes`, the output says it.
        head: Name of a tensor in the graph.

    Raises:
        ValueError: The graph has no such tensor.
    """
    nodes, used = needed_nodes(model.graph, head)
    if not nodes:
        raise ValueError(f"no node computes {head}")
    known = {value.name: value for value in (*model.graph.value_info, *model.graph.output)}
    body = ModelProto()
    body.CopyFrom(model)
    graph = body.graph
    del graph.node[:], graph.output[:], graph.initializer[:], graph.value_info[:]
    graph.node.extend(nodes)
    graph.initializer.extend(tensor for tensor in model.graph.initializer if tensor.name in used)
    graph.value_info.extend(
        value for value in model.graph.value_info if value.name in used - {head}
    )
    graph.output.append(known.get(head, onnx.ValueInfoProto(name=head)))
    return body
