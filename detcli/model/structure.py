"""Checks that a graph can be walked and run at all, before anything else looks at it.

A file is text from a stranger: its nodes may form a circle, its functions may call themselves or
multiply into more nodes than a machine holds, and its names may not be text. Everything after this
check follows a graph from node to node and ends, in a time that grows with the size of the file.
"""

from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from typing import TypeVar

from google.protobuf.message import Message
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

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

MAX_NAME = 10_000
"""Characters of a name; exporters join the names of modules, and stay far below."""

T = TypeVar("T")

FunctionKey = tuple[str, str, str]
"""Domain, name and overload of a function."""


def check_structure(model: ModelProto) -> None:
    """Check a model's graph and functions.

    Raises:
        ValueError: There is too much of it, nodes form a circle, two make the same tensor, a
            function calls itself, or a name is not text.
    """
    _check_parts(model)
    functions: dict[FunctionKey, FunctionProto] = {}
    for function in model.functions:
        key = _key(function.domain, function.name, getattr(function, "overload", ""))
        if functions.setdefault(key, function) is not function:
            raise ValueError(f"the function {function.name} is defined twice")
    calls = {key: _called(one.node, functions) for key, one in functions.items()}
    sizes: dict[FunctionKey, int] = {}
    depths: dict[FunctionKey, int] = {}
    for key in _sorted(TopologicalSorter(calls), "functions call each other"):
        depths[key] = 1 + max((depths[called] for called in calls[key]), default=0)
        if depths[key] > MAX_CALLS:
            raise ValueError(f"its functions call each other more than {MAX_CALLS} deep")
        sizes[key] = _size(functions[key].node, sizes)
        _check_nodes(functions[key].node)
    _size(model.graph.node, sizes)
    _check_nodes(model.graph.node)


def _check_parts(model: ModelProto) -> None:
    """Count all parts of a model but the values of its tensors, which are read as a whole."""
    parts, waiting = 0, list[Message]([model])
    while waiting:
        for field, value in waiting.pop().ListFields():
            if isinstance(value, Message):
                waiting.append(value)
            elif isinstance(value, str | bytes | int | float) or field.name in TENSOR_DATA:
                continue
            else:
                parts += len(value)
                if parts > MAX_PARTS:
                    raise ValueError(f"it has more than {MAX_PARTS} parts, and no detector has")
                if field.message_type is not None:
                    waiting.extend(value)


def _key(domain: str, name: str, overload: str) -> FunctionKey:
    return "" if domain == "ai.onnx" else domain, name, overload


def _function(node: NodeProto) -> FunctionKey:
    return _key(node.domain, node.op_type, getattr(node, "overload", ""))


def _called(
    nodes: Iterable[NodeProto], functions: dict[FunctionKey, FunctionProto]
) -> set[FunctionKey]:
    """The functions that nodes call, at any depth of their branches."""
    called = {key for node in nodes if (key := _function(node)) in functions}
    return called.union(*(_called(branch.node, functions) for branch in _branches(nodes)))


def _size(nodes: Iterable[NodeProto], sizes: dict[FunctionKey, int]) -> int:
    """The number of nodes with all their branches, and with functions in place of their calls."""
    size = 0
    for node in nodes:
        size += 1 + sizes.get(_function(node), 0)
        size += sum(_size(branch.node, sizes) for branch in _branches([node]))
        if size > MAX_NODES:
            raise ValueError(f"it has more than {MAX_NODES} nodes, and no detector has as many")
    return size


def _branches(nodes: Iterable[NodeProto]) -> Iterator[GraphProto]:
    """The graphs that nodes such as If, Loop and Scan hold."""
    for node in nodes:
        for entry in node.attribute:
            if entry.HasField("g"):
                yield entry.g
            yield from entry.graphs


def _check_nodes(nodes: Iterable[NodeProto]) -> None:
    """Check the names and the order of nodes, and of those in their branches."""
    makers: dict[str, int] = {}
    for number, node in enumerate(nodes):
        for name in (node.name, node.op_type, *node.input, *node.output):
            if not isinstance(name, str) or len(name) > MAX_NAME:
                raise ValueError(f"{name[:40]!r} is not a name")
        for name in filter(None, node.output):
            if makers.setdefault(name, number) != number:
                raise ValueError(f"two nodes make {name}")
    read = [{makers[name] for name in _reads(node) if name in makers} for node in nodes]
    if not all(max(before, default=-1) < number for number, before in enumerate(read)):
        _sorted(TopologicalSorter(dict(enumerate(read))), "nodes form a circle")
    for branch in _branches(nodes):
        _check_nodes(branch.node)


def _reads(node: NodeProto) -> set[str]:
    """The tensors that a node reads; its branches also read those of the graph around them."""
    found = {*node.input}
    for branch in _branches([node]):
        own = {value.name for value in (*branch.input, *branch.initializer)}
        own.update(name for inner in branch.node for name in inner.output)
        found.update(name for inner in branch.node for name in _reads(inner) if name not in own)
    return found


def _sorted(order: "TopologicalSorter[T]", problem: str) -> "list[T]":
    """Everything after what it depends on.

    Raises:
        ValueError: Something depends on itself.
    """
    try:
        return [*order.static_order()]
    except CycleError as error:
        raise ValueError(f"its {problem}") from error
