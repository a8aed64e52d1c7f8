"""Transposes that a graph ends in, which some engines forget to carry out."""

from onnx import GraphProto, NodeProto

from detcli.model.graph import GraphIndex

NO_OPERATION = frozenset({"Identity", "Dropout"})  # simplifiers and engines take these out


def bare_transposes(graph: GraphProto) -> list[NodeProto]:
    """Find the Transposes that feed an output of the graph directly.

    An engine may take such a node for a change of strides alone, and hand out the tensor as it was
    before it, under the shape of the one behind it. A node between the two that really computes
    its output, such as a Cast or a Concat of one input, is proof against that.

    Args:
        graph: Of a model; branches of an If or Loop have no outputs of their own.

    Returns:
        The nodes in the order of the graph's outputs, each once.
    """
    index = GraphIndex(graph)
    found: list[NodeProto] = []
    for output in graph.output:
        node = index.producers.get(output.name)
        while node is not None and node.op_type in NO_OPERATION and node.input:
            node = index.producers.get(node.input[0])
        moves = node is not None and node.op_type == "Transpose" and _moves_entries(node)
        if node is not None and moves and not any(node is other for other in found):
            found.append(node)
    return found


def _moves_entries(transpose: NodeProto) -> bool:
    permutation = next((list(a.ints) for a in transpose.attribute if a.name == "perm"), [])
    return not permutation or permutation != sorted(permutation)  # without one, axes are reversed
