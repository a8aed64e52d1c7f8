"""Reading an ONNX graph backwards: who makes a tensor, and from what."""

from collections.abc import Iterator
from functools import cached_property

import onnx
from onnx import GraphProto, NodeProto

# Operators that hand a tensor on without moving or changing its entries, up to rounding.
PASSED_THROUGH = frozenset({"Identity", "Cast", "QuantizeLinear", "DequantizeLinear", "Dropout"})


class GraphIndex:
    """Lookups in one graph by tensor name."""

    def __init__(self, graph: GraphProto) -> None:
        self.graph = graph

    @cached_property
    def producers(self) -> dict[str, NodeProto]:
        """The node that makes each tensor."""
        return {name: node for node in self.graph.node for name in node.output if name}

    @cached_property
    def shapes(self) -> dict[str, list[int | str | None]]:
        """Known shapes by tensor: a number, a symbol, or None for each axis."""
        values = [*self.graph.value_info, *self.graph.input, *self.graph.output]
        return {value.name: shape(value) for value in values if shape(value)}

    @cached_property
    def _initializers(self) -> dict[str, onnx.TensorProto]:
        return {tensor.name: tensor for tensor in self.graph.initializer}

    def producer(self, tensor: str) -> NodeProto | None:
        """The node that computes a tensor, seen through casts, identities and (de)quantisation."""
        node = self.producers.get(tensor)
        while node is not None and node.op_type in PASSED_THROUGH:
            node = self.producers.get(node.input[0])
        return node

    def constant(self, tensor: str) -> list[int] | None:
        """The integers of a constant tensor, or None if it is computed."""
        proto = self._initializers.get(tensor)
        node = self.producers.get(tensor)
        if proto is None and node is not None and node.op_type == "Constant":
            proto = next((a.t for a in node.attribute if a.name == "value"), None)
        if proto is None:
            return None
        return [int(entry) for entry in onnx.numpy_helper.to_array(proto).ravel()]

    def axes(self, node: NodeProto) -> list[int] | None:
        """The axes of a reduction: an attribute before opset 18, an input since."""
        for entry in node.attribute:
            if entry.name == "axes":
                return list(entry.ints)
        return self.constant(node.input[1]) if len(node.input) > 1 else None

    def image_inputs(self) -> list[onnx.ValueInfoProto]:
        """Inputs that a caller feeds; old files list their weights as inputs too."""
        return [value for value in self.graph.input if value.name not in self._initializers]


def shape(value: onnx.ValueInfoProto) -> list[int | str | None]:
    """Shape of a tensor: a number, a symbol, or None for each axis; empty if unknown."""
    dims = value.type.tensor_type.shape.dim
    return [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in dims]


def known_size(dim: int | str | None) -> int | None:
    """The size of an axis; None if it is a symbol or unknown."""
    return dim if isinstance(dim, int) and dim > 0 else None


def attribute(node: NodeProto, name: str, default: int) -> int:
    """An integer attribute of a node."""
    return next((a.i for a in node.attribute if a.name == name), default)


def tensors(graph: GraphProto) -> Iterator[onnx.TensorProto]:
    """All constant tensors of a graph: its initializers and those in its nodes, however deep."""
    yield from graph.initializer
    for node in graph.node:
        for entry in node.attribute:
            yield from (entry.t, *entry.tensors)
            for inner in (entry.g, *entry.graphs):
                yield from tensors(inner)


def needed_nodes(graph: GraphProto, tensor: str) -> tuple[list[NodeProto], set[str]]:
    """Nodes that a tensor depends on, in graph order, and every tensor name they read."""
    producer = {name: index for index, node in enumerate(graph.node) for name in node.output}
    wanted, used, chosen = [tensor], {tensor}, set()
    while wanted:
        index = producer.get(wanted.pop())
        if index is None or index in chosen:
            continue
        chosen.add(index)
        read = set(_reads(graph.node[index]))
        wanted.extend(read)
        used |= read
    return [graph.node[index] for index in sorted(chosen)], used


def _reads(node: NodeProto) -> Iterator[str]:
    """Tensors a node reads, those that the branches of an If or Loop capture included."""
    yield from (name for name in node.input if name)
    for entry in node.attribute:
        for branch in (entry.g, *entry.graphs):
            for inner in branch.node:
                yield from _reads(inner)
            yield from (output.name for output in branch.output)
