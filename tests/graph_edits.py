"""Finds nodes and constants of an ONNX graph, and changes them."""

import numpy as np
from onnx import numpy_helper


def names_of(entries):
    """The names of nodes, constants, inputs or outputs, in their order."""
    return [entry.name for entry in entries]


def first_outputs(nodes):
    """The first output of each node."""
    return [node.output[0] for node in nodes]


def node_of(graph, operator):
    """The first node of an operator."""
    for node in graph.node:
        if node.op_type == operator:
            return node
    raise LookupError(operator)


def position_of_producer(graph, tensor):
    """The index in `graph.node` of the only node that produces a tensor."""
    positions = [position for position, node in enumerate(graph.node) if tensor in node.output]
    if len(positions) != 1:
        raise LookupError(f"{len(positions)} nodes produce {tensor}")
    return positions[0]


def producer_of(graph, tensor):
    """The only node that produces a tensor."""
    return graph.node[position_of_producer(graph, tensor)]


def constant_of(graph, name):
    """The constant of a name."""
    for tensor in graph.initializer:
        if tensor.name == name:
            return tensor
    raise LookupError(name)


def add_constants(graph, values):
    """Add a constant for each name and its value."""
    for name, value in values.items():
        graph.initializer.append(numpy_helper.from_array(np.array(value), name))


def insert_nodes(graph, position, nodes):
    """Insert nodes in their order, the first of them at a position."""
    for offset, node in enumerate(nodes):
        graph.node.insert(position + offset, node)


def redirect_readers(nodes, tensor, new_name):
    """Let nodes read another tensor wherever they read this one."""
    for node in nodes:
        node.input[:] = [new_name if name == tensor else name for name in node.input]


def rename_outputs(nodes, tensor, new_name):
    """Give a tensor another name where a node produces it, not where it is read."""
    for node in nodes:
        node.output[:] = [new_name if name == tensor else name for name in node.output]


def rename_tensor(nodes, tensor, new_name):
    """Give a tensor another name wherever nodes produce or read it."""
    redirect_readers(nodes, tensor, new_name)
    rename_outputs(nodes, tensor, new_name)
