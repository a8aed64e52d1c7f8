"""Checks the structure of ONNX models, which may come from strangers, before they are read."""

from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter
from typing import TypeVar

from google.protobuf.message import Message
from onnx import FunctionProto, ModelProto, NodeProto

from detcli.model.graph import branches, reads

MAX_NODES = 20_000
"""The largest detectors have a few thousand; ONNX Runtime takes minutes for 45,000 Casts."""

MAX_CALLS = 50
"""Depth of nested calls; onnx follows 100, and ONNX Runtime crashes at a few thousand."""

MAX_PARTS = 1_000_000
"""Nodes, attributes, shapes, names and so on; one may take a hundred times as much memory as the
two bytes that it has in a file."""

TENSOR_DATA = frozenset(
    "double_data float_data int32_data int64_data string_data uint64_data".split()
)

MAX_NAME = 10_000  # characters of a name; exporters join the names of modules, and stay far below

T = TypeVar("T")

FunctionKey = tuple[str, str, str]  # domain, name and overload of a function


def check_structure(model: ModelProto) -> None:
    """Check that the structure of a model is sound, and not too large for memory or recursion.

    Files come from strangers, so that this is done before ONNX's libraries read the model.

    Raises:
        ValueError: It is too large or too deeply nested, or names or the order of nodes are wrong.
    """
    _check_parts(model)
    functions: dict[FunctionKey, FunctionProto] = {}
    for function in model.functions:
        key = _key(function)
        if key in functions:
            raise ValueError(f"the function {function.name} is defined twice")
        functions[key] = function
    node_counts = _check_functions(functions)
    _node_count(model.graph.node, node_counts)  # raises an error if there are too many
    _check_nodes(model.graph.node)


def _check_functions(functions: dict[FunctionKey, FunctionProto]) -> dict[FunctionKey, int]:
    """Check the functions of a model, and count the nodes of each with those that it calls.

    Raises:
        ValueError: They call each other in a circle or too deep, or their nodes are wrong.
    """
    calls = {
        key: _called_functions(function.node, functions) for key, function in functions.items()
    }
    node_counts: dict[FunctionKey, int] = {}
    depths: dict[FunctionKey, int] = {}
    # Functions that a function calls come before it, so that their counts are known.
    for key in _sorted(TopologicalSorter(calls), "functions call each other"):
        depth_of_calls = max((depths[called] for called in calls[key]), default=0)
        depths[key] = depth_of_calls + 1
        if depths[key] > MAX_CALLS:
            raise ValueError(f"its functions call each other more than {MAX_CALLS} deep")
        node_counts[key] = _node_count(functions[key].node, node_counts)
        _check_nodes(functions[key].node)
    return node_counts


def _check_parts(model: ModelProto) -> None:
    """Check that a model has no more than `MAX_PARTS` entries in all lists of its messages.

    An entry, such as a node or a name, takes far more memory than space in the file. The elements
    of tensors do not, so they are not counted.

    Raises:
        ValueError: It has more entries.
    """
    part_count = 0
    messages_to_check: list[Message] = [model]
    while messages_to_check:
        message = messages_to_check.pop()
        for field, value in message.ListFields():
            if isinstance(value, Message):
                messages_to_check.append(value)
                continue
            # What is neither a message nor a single string or number is a list.
            is_list = not isinstance(value, str | bytes | int | float)
            if not is_list or field.name in TENSOR_DATA:
                continue
            part_count += len(value)
            if part_count > MAX_PARTS:
                raise ValueError(f"it has more than {MAX_PARTS} parts, more than any detector")
            holds_messages = field.message_type is not None
            if holds_messages:
                messages_to_check.extend(value)


def _key(item: NodeProto | FunctionProto) -> FunctionKey:
    """The domain, name and overload of a function, or of the function that a node would call."""
    name = item.op_type if isinstance(item, NodeProto) else item.name
    domain = "" if item.domain == "ai.onnx" else item.domain
    return domain, name, getattr(item, "overload", "")


def _called_functions(
    nodes: Iterable[NodeProto], functions: dict[FunctionKey, FunctionProto]
) -> set[FunctionKey]:
    """Find the functions that nodes call, and those that the nodes in their branches call.

    A branch is a graph inside a node, as in an If or a Loop. Functions that are only called by
    these functions in turn are not included.

    Args:
        nodes: The nodes.
        functions: All functions of the model. A node calls one if it has its key; any other node is
            an operator of ONNX.

    Returns:
        The keys of the functions.
    """
    called_functions = set()
    for node in nodes:
        key_of_node = _key(node)
        if key_of_node in functions:
            called_functions.add(key_of_node)
    for branch in branches(nodes):
        called_functions |= _called_functions(branch.node, functions)
    return called_functions


def _node_count(nodes: Iterable[NodeProto], function_sizes: dict[FunctionKey, int]) -> int:
    """Count nodes with all that they contain: nodes in branches, and those of called functions.

    Args:
        nodes: The nodes.
        function_sizes: How many nodes each function has that may be called. They are counted again
            for every call.

    Raises:
        ValueError: There are more than `MAX_NODES`.
    """
    count = 0
    for node in nodes:
        nodes_of_function = function_sizes.get(_key(node), 0)
        count += 1 + nodes_of_function
        for branch in branches([node]):
            count += _node_count(branch.node, function_sizes)
        if count > MAX_NODES:
            raise ValueError(f"it has more than {MAX_NODES} nodes, more than any detector")
    return count


def _check_nodes(nodes: Iterable[NodeProto]) -> None:
    """Check nodes and, recursively, those in their branches.

    Raises:
        ValueError: A name is invalid, two nodes compute one tensor, or nodes depend on each other
            in a circle.
    """
    producer_positions: dict[str, int] = {}  # the position of the node that computes each tensor
    for position, node in enumerate(nodes):
        _check_node_names(node)
        for name in node.output:
            if not name:  # an optional output that is left out
                continue
            is_of_earlier_node = producer_positions.get(name, position) != position
            if is_of_earlier_node:
                raise ValueError(f"two nodes make {name}")
            producer_positions[name] = position
    _check_no_cycle(nodes, producer_positions)
    for branch in branches(nodes):
        _check_nodes(branch.node)


def _check_no_cycle(nodes: Iterable[NodeProto], producer_positions: dict[str, int]) -> None:
    """Check that no node depends on its own output, directly or through other nodes.

    Args:
        nodes: The nodes of a graph.
        producer_positions: For each tensor, the position of the node that computes it.

    Raises:
        ValueError: Some nodes form a cycle.
    """
    # For each node, by its position, the positions of the nodes whose outputs it reads.
    dependencies: dict[int, set[int]] = {}
    is_in_order = True
    for position, node in enumerate(nodes):
        inputs = reads(node) & producer_positions.keys()
        dependencies[position] = {producer_positions[name] for name in inputs}
        if any(dependency >= position for dependency in dependencies[position]):
            is_in_order = False

    # Nodes that follow all nodes they depend on have no cycle. Otherwise the nodes are sorted,
    # which takes longer, and fails if there is a cycle.
    if not is_in_order:
        _sorted(TopologicalSorter(dependencies), "nodes form a circle")


def _check_node_names(node: NodeProto) -> None:
    """Check that the names of a node, its operator, inputs and outputs are short enough strings."""
    for name in (node.name, node.op_type, *node.input, *node.output):
        if not isinstance(name, str) or len(name) > MAX_NAME:
            raise ValueError(f"{name[:40]!r} is not a name")


def _sorted(order: "TopologicalSorter[T]", problem: str) -> "list[T]":
    """Sort items so that each follows those that it depends on.

    Raises:
        ValueError: They depend on each other in a circle; `problem` says so for the message.
    """
    try:
        return list(order.static_order())
    except CycleError as error:
        raise ValueError(f"its {problem}") from error
