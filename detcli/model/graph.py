"""Reads ONNX graphs: which node makes a tensor, what it depends on, which tensors are learnt."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any

import numpy.typing as npt
import onnx
from google.protobuf.message import Message
from onnx import GraphProto, ModelProto, NodeProto

# Operators that keep the elements of a tensor and their order, up to rounding.
PASSED_THROUGH = frozenset({"Identity", "Cast", "QuantizeLinear", "DequantizeLinear", "Dropout"})

# Operators that keep the elements of a tensor and their order, and may change its shape.
RESHAPES = frozenset({"Flatten", "Reshape", "Squeeze", "Unsqueeze"})
REARRANGING = RESHAPES | {"Transpose"}

MAX_INTEGERS = 1 << 16  # entries of a constant that is read as sizes, axes or indices

MAX_STEPS = 400  # tensors that a search back through a graph looks at
Dims = list[int | str | None]  # a number, a symbol, or None for each axis


class GraphIndex:
    """Lookups in one graph by tensor name."""

    def __init__(self, graph: GraphProto) -> None:
        self.graph = graph
        # For each kind of search back, the tensor at which it stops, by the tensor that it passes.
        # Any number of nodes may read the end of a long chain, so it is followed only once.
        self._ends_of_searches: dict[object, dict[str, str]] = {}
        self._constants: dict[str, list[int] | None] = {}

    @cached_property
    def producers(self) -> dict[str, NodeProto]:
        """The node that makes each tensor."""
        producers = {}
        for node in self.graph.node:
            for name in node.output:
                if name:
                    producers[name] = node
        return producers

    @cached_property
    def _values(self) -> list[onnx.ValueInfoProto]:
        return [*self.graph.value_info, *self.graph.input, *self.graph.output]

    @cached_property
    def shapes(self) -> defaultdict[str, Dims]:
        """Shapes by tensor, empty where it is unknown."""
        shapes: defaultdict[str, Dims] = defaultdict(list)
        for name, tensor in self._initializers.items():
            shapes[name] = list(tensor.dims)
        for value in self._values:
            dims = shape(value)
            if dims:
                shapes[value.name] = dims
        return shapes

    def size(self, tensor: str, axis: int) -> int | None:
        """The size of an axis of a tensor; None if it is a symbol or unknown."""
        dims = self.shapes[tensor]
        has_axis = -len(dims) <= axis < len(dims)
        if has_axis:
            return known_size(dims[axis])
        return None

    @cached_property
    def types(self) -> dict[str, int]:
        """Known element types by tensor, as ONNX numbers them."""
        return {value.name: value.type.tensor_type.elem_type for value in self._values}

    @cached_property
    def _initializers(self) -> dict[str, onnx.TensorProto]:
        return {tensor.name: tensor for tensor in self.graph.initializer}

    def nodes(self, *operators: str) -> list[NodeProto]:
        """List the nodes of these operators, in the order of the graph."""
        return [node for node in self.graph.node if node.op_type in operators]

    def producer(self, tensor: str, *operators: str) -> NodeProto | None:
        """Find the node that computes a tensor, passing over nodes that only hand it on.

        `computed_as` says which nodes these are. None if the tensor is an input or a constant, or
        if operators are named and the node has none of them.
        """
        node = self.producers.get(self.computed_as(tensor))
        if node is not None and operators and node.op_type not in operators:
            return None
        return node

    def computed_as(self, tensor: str) -> str:
        """Go back from a tensor to the tensor of the same elements that a node computed.

        Passes over casts, identities, (de)quantisation and what `convert --guard-transpose` adds.
        """
        return self._go_back(tensor, "handed on", self._input_handed_on)

    def before(self, tensor: str, operators: frozenset[str]) -> str:
        """Go back from a tensor through the first inputs of nodes of these operators.

        For example, from the output of Cast(Reshape(x)) through Cast and Reshape to x.

        Returns:
            The first tensor on the way that no node of these operators computes.
        """

        def input_to_follow(node: NodeProto) -> str:
            if node.op_type in operators and node.input:
                return str(node.input[0])
            return ""

        return self._go_back(tensor, operators, input_to_follow)

    def _go_back(
        self, tensor: str, kind_of_search: object, input_to_follow: Callable[[NodeProto], str]
    ) -> str:
        """Go back from a tensor, node by node, as far as `input_to_follow` names an input.

        Where the search stops is remembered for every tensor on its way. A later search of the same
        kind that meets one of them ends there.

        Args:
            tensor: The tensor to start from.
            kind_of_search: The key under which results are remembered. All searches with an equal
                key have to follow the same inputs.
            input_to_follow: Names the input of a node to go on with; empty to stop at its output.

        Returns:
            The tensor at which the search stops.
        """
        end_by_tensor = self._ends_of_searches.setdefault(kind_of_search, {})
        passed_tensors = []
        current_tensor = tensor
        while current_tensor not in end_by_tensor:
            node = self.producers.get(current_tensor)
            if node is None:
                break
            source = input_to_follow(node)
            if not source:
                break
            passed_tensors.append(current_tensor)
            current_tensor = source

        end = end_by_tensor.get(current_tensor, current_tensor)
        for passed_tensor in passed_tensors:
            end_by_tensor[passed_tensor] = end
        return end

    def _input_handed_on(self, node: NodeProto) -> str:
        """Return the tensor whose elements a node outputs unchanged and in order; empty if none.

        This is the input of a node such as a Cast, or of a Concat with a single input. Where a
        Concat joins again what a Split has divided, it is the input of the Split.
        """
        if node.op_type in PASSED_THROUGH:
            return str(node.input[0])
        if node.op_type != "Concat":
            return ""
        if len(node.input) == 1:
            return str(node.input[0])

        split = self.producers.get(node.input[0])
        if split is None or split.op_type != "Split":
            return ""
        joins_all_pieces_in_order = list(split.output) == list(node.input)
        has_same_axis = attribute(split, "axis", 0) == attribute(node, "axis", 0)
        if joins_all_pieces_in_order and has_same_axis:
            return str(split.input[0])
        return ""

    def ancestors(
        self, tensors: Iterable[str], inputs_to_follow: Callable[[NodeProto, str], Iterable[str]]
    ) -> Iterator[tuple[NodeProto, str]]:
        """Search back from tensors to the nodes that they are computed by, nearest first.

        Args:
            tensors: The tensors to start from.
            inputs_to_follow: Returns the inputs to go on with, for a node and its output that was
                reached.

        Yields:
            Each node, and its output by which it was reached.
        """
        waiting = list(dict.fromkeys(tensors))
        seen = set(waiting)
        while waiting and len(seen) < MAX_STEPS:
            name = waiting.pop(0)
            node = self.producer(name)
            if node is None:
                continue
            yield node, name
            for source in inputs_to_follow(node, name):
                if source and source not in seen:
                    seen.add(source)
                    waiting.append(source)

    def constant(self, tensor: str) -> list[int] | None:
        """Return the integers of a constant tensor, such as sizes or indices.

        None if the tensor is computed, or has more than `MAX_INTEGERS` elements.
        """
        if tensor not in self._constants:
            proto = self.constant_tensor(tensor)
            self._constants[tensor] = None
            if proto is not None and math.prod(proto.dims) <= MAX_INTEGERS:
                values = onnx.numpy_helper.to_array(proto).ravel()
                self._constants[tensor] = [int(value) for value in values]
        return self._constants[tensor]

    def array(self, tensor: str) -> npt.NDArray[Any] | None:
        """The elements of a constant tensor; None if it is computed."""
        proto = self.constant_tensor(tensor)
        if proto is None:
            return None
        return onnx.numpy_helper.to_array(proto)

    def constant_tensor(self, tensor: str) -> onnx.TensorProto | None:
        """A constant tensor in its ONNX form; None if it is computed."""
        proto = self._initializers.get(tensor)
        node = self.producers.get(tensor)
        if proto is None and node is not None and node.op_type == "Constant":
            for entry in node.attribute:
                if entry.name == "value":
                    proto = entry.t
                    break
        return proto

    def axes(self, node: NodeProto) -> list[int] | None:
        """Return the axes that a node reduces: an attribute before opset 18, an input since."""
        axes_of_input = None
        if len(node.input) > 1:
            axes_of_input = self.constant(node.input[1])
        return integers(node, "axes") or axes_of_input

    def tensors_computed_from(self, *tensors: str) -> set[str]:
        """Name all tensors that depend on the elements of the given tensors, these included.

        A tensor that depends only on the shape of one of them is not among them.
        """
        dependent = set(tensors)
        for node in self.graph.node:  # in topological order
            reads_elements = node.op_type not in {"Shape", "Size"}
            if reads_elements and not dependent.isdisjoint(node.input):
                dependent.update(node.output)
        return dependent

    @cached_property
    def outputs(self) -> list[str]:
        """The names of the graph's outputs, without those that only repeat another one.

        Some exporters output the boxes twice, or boxes and scores beside a tensor that joins them.
        """
        return self._without_copies(self._independent_outputs())

    def _independent_outputs(self) -> list[str]:
        """List the graph's outputs, without those whose elements another output has as well.

        An output is left out in two cases. Either another output is a Concat that joins it, or
        joins tensors that are computed from it. Or it has only the elements of such a tensor or of
        another output in a different order, as after a Transpose.
        """
        # Each output by the name under which a node computes it, before any Cast or Identity.
        tensors_of_outputs = {self.computed_as(output.name) for output in self.graph.output}
        sources_of_concats: set[str] = set()
        for tensor in tensors_of_outputs:
            sources_of_concats |= self._sources_of_concat(tensor)
        outputs_and_sources = tensors_of_outputs | sources_of_concats

        independent_outputs = []
        for output in self.graph.output:
            tensor = self.computed_as(output.name)
            is_in_concat = tensor in sources_of_concats
            if not is_in_concat and not self._rearranges(tensor, outputs_and_sources):
                independent_outputs.append(output.name)
        return independent_outputs

    def _without_copies(self, outputs: list[str]) -> list[str]:
        """Leave out each output that is equal to an earlier one.

        It hands on the same tensor, as an Identity or a Cast does; or it has the same elements in
        the same known shape, after some Reshape.
        """
        distinct_outputs = []
        earlier_tensors = set()
        earlier_elements_and_shapes = set()
        for output in outputs:
            tensor = self.computed_as(output)
            dims = tuple(self.shapes[output])
            elements_and_shape = (self.elements_of(output), dims)
            if tensor in earlier_tensors or elements_and_shape in earlier_elements_and_shapes:
                continue
            distinct_outputs.append(output)
            earlier_tensors.add(tensor)
            has_known_shape = bool(dims) and None not in dims
            if has_known_shape:
                earlier_elements_and_shapes.add(elements_and_shape)
        return distinct_outputs

    def _sources_of_concat(self, tensor: str) -> set[str]:
        """Find all tensors that a tensor is computed from, if a Concat makes it; none if not."""
        concat = self.producers.get(self.computed_as(self.before(tensor, REARRANGING)))
        if concat is None or concat.op_type != "Concat":
            return set()
        _, sources = needed_nodes(self.graph, *concat.input)
        return sources

    def _rearranges(self, tensor: str, others: set[str]) -> bool:
        """True if a tensor only rearranges the elements of one of `others`."""
        source = tensor
        node = self.producers.get(source)
        while node is not None and node.op_type in REARRANGING:
            source = self.computed_as(node.input[0])
            if source in others:
                return True
            node = self.producers.get(source)
        return False

    def elements_of(self, tensor: str) -> str:
        """Go back from a tensor to the first that has its elements in this order, in any shape."""
        source = self.computed_as(tensor)
        node = self.producers.get(source)
        while node is not None and node.op_type in RESHAPES:
            source = self.computed_as(node.input[0])
            node = self.producers.get(source)
        return source

    def image_inputs(self) -> list[onnx.ValueInfoProto]:
        """Inputs that a caller feeds; old files also list their weights as inputs."""
        return [value for value in self.graph.input if value.name not in self._initializers]


def shape(value: onnx.ValueInfoProto) -> Dims:
    """Shape of a tensor; empty if it is unknown."""
    dims: Dims = []
    for dim in value.type.tensor_type.shape.dim:
        if dim.HasField("dim_value"):
            dims.append(dim.dim_value)
        else:
            dims.append(dim.dim_param or None)
    return dims


def known_size(dim: int | str | None) -> int | None:
    """The size of an axis; None if it is a symbol or unknown."""
    if isinstance(dim, int) and dim > 0:
        return dim
    return None


def image_size(height: int | str | None, width: int | str | None) -> tuple[int, int] | None:
    """Return height and width if the sizes of both axes are known numbers, else None."""
    known_height = known_size(height)
    known_width = known_size(width)
    if not known_height or not known_width:
        return None
    return known_height, known_width


def type_name(code: int) -> str:
    """ONNX's name for a type, such as "float"."""
    data_types = onnx.TensorProto.DataType
    if code not in data_types.values():
        return f"type {code}"
    return str(data_types.Name(code).lower())


def dtype_name(code: int) -> str:
    """NumPy's name for an ONNX type, such as "float32"."""
    name = type_name(code)
    return {"float": "float32", "double": "float64"}.get(name, name)


def attribute(node: NodeProto, name: str, default: int) -> int:
    """An integer attribute of a node."""
    for entry in node.attribute:
        if entry.name == name:
            return int(entry.i)
    return default


def integers(node: NodeProto, name: str) -> list[int]:
    """An attribute of several integers; empty if the node does not have it."""
    for entry in node.attribute:
        if entry.name == name:
            return list(entry.ints)
    return []


def model_tensors(model: ModelProto) -> Iterator[onnx.TensorProto]:
    """All constant tensors of a model: of its graph, its functions, and their branches."""
    waiting: list[Message] = [model]
    while waiting:
        message = waiting.pop()
        if isinstance(message, onnx.TensorProto):
            yield message
            continue
        for field, value in message.ListFields():
            if field.message_type is None:
                continue
            if isinstance(value, Message):
                waiting.append(value)
            else:  # a list of messages
                waiting.extend(value)


def branches(nodes: Iterable[NodeProto]) -> Iterator[GraphProto]:
    """The graphs that nodes such as If, Loop and Scan hold."""
    for node in nodes:
        for entry in node.attribute:
            if entry.HasField("g"):
                yield entry.g
            yield from entry.graphs


def needed_nodes(graph: GraphProto, *tensors: str) -> tuple[list[NodeProto], set[str]]:
    """Find all nodes that are needed to compute the given tensors of a graph.

    Returns:
        The nodes in the order of the graph, and the names of all tensors in use: those that the
        nodes read, and the tensors asked for.
    """
    positions = {}
    for position, node in enumerate(graph.node):
        for name in node.output:
            positions[name] = position

    waiting = list(tensors)
    used = set(tensors)
    needed = set()
    while waiting:
        needed_position = positions.get(waiting.pop())
        if needed_position is None or needed_position in needed:
            continue
        needed.add(needed_position)
        inputs = reads(graph.node[needed_position])
        waiting.extend(inputs)
        used |= inputs
    return [graph.node[position] for position in sorted(needed)], used


def reads(node: NodeProto) -> set[str]:
    """Return the names of the tensors of the graph that a node reads.

    The branches of an If or Loop may read tensors of the graph around them without listing them as
    inputs; these are included.
    """
    inputs = {name for name in node.input if name}
    for branch in branches([node]):
        defined_in_branch = {value.name for value in branch.input}
        defined_in_branch.update(tensor.name for tensor in branch.initializer)
        read_in_branch = {output.name for output in branch.output}
        for inner_node in branch.node:
            defined_in_branch.update(inner_node.output)
            read_in_branch |= reads(inner_node)
        inputs |= read_in_branch - defined_in_branch
    return inputs


NO_OPERATION = frozenset({"Identity", "Dropout"})  # simplifiers and engines remove these


def bare_transposes(graph: GraphProto) -> list[NodeProto]:
    """Find the Transposes that feed an output of the graph directly.

    An engine may treat such a node as a mere change of strides, and return the tensor untransposed
    under the transposed shape. A node in between that computes its output, such as a Cast or a
    Concat, prevents that.
    """
    index = GraphIndex(graph)
    transposes: dict[str, NodeProto] = {}
    for output in graph.output:
        node = index.producers.get(index.before(output.name, NO_OPERATION))
        if node is None or node.op_type != "Transpose":
            continue
        order = integers(node, "perm")  # without one, axes are reversed
        if not order or order != sorted(order):
            transposes[node.output[0]] = node
    return list(transposes.values())


CONVOLUTIONS = {"Conv": 1, "ConvInteger": 1, "QLinearConv": 3}
"""Convolutions, and which of their inputs is the weight `[M, C/groups, ...]`."""

PRODUCTS = {"MatMul": 1, "MatMulInteger": 1, "QLinearMatMul": 3, "Gemm": 1, "QGemm": 3}
"""Matrix products, and which of their inputs is the second factor; the first factor comes first."""

INTEGER = frozenset(
    "ConvInteger DequantizeLinear DynamicQuantizeLinear MatMulInteger QLinearConv QLinearMatMul "
    "QuantizeLinear".split()
)
"""Operators that show that a network computes in integers."""

MULTIPLYING = frozenset({*CONVOLUTIONS, *PRODUCTS, "ConvTranspose"})

PARAMETERS: dict[str, tuple[int, ...]] = {
    "Conv": (1, 2),
    "ConvInteger": (1,),
    "QLinearConv": (3, 8),
    "ConvTranspose": (1, 2),
    "MatMul": (0, 1),
    "MatMulInteger": (0, 1),
    "QLinearMatMul": (0, 3),
    "Gemm": (0, 1, 2),
    "QGemm": (0, 3, 6),
    "BatchNormalization": (1, 2),  # mean and variance are statistics
    "GroupNormalization": (1, 2),
    "InstanceNormalization": (1, 2),
    "LayerNormalization": (1, 2),
    "PRelu": (1,),
    "GRU": (1, 2, 3),
    "LSTM": (1, 2, 3),
    "RNN": (1, 2, 3),
}
"""Inputs of each operator that are learnt if they are constants."""

# Operators that change the form of a constant, not what was learnt.
REWRITTEN = frozenset(
    "Cast DequantizeLinear Identity QuantizeLinear Reshape Squeeze Transpose Unsqueeze".split()
)


def parameters(index: GraphIndex) -> list[onnx.TensorProto]:
    """The learnt tensors of a graph: weights and biases, not scales or anchors."""
    tensors: dict[str, onnx.TensorProto] = {}
    for node in index.graph.node:
        for name in _learnt_inputs(index, node):
            source = index.before(name, REWRITTEN)
            tensor = index.constant_tensor(source)
            if tensor is not None:
                tensors[source] = tensor
    return list(tensors.values())


def _learnt_inputs(index: GraphIndex, node: NodeProto) -> Iterator[str]:
    """Yield the inputs of a node that are weights or biases, if they are constants."""
    positions = PARAMETERS.get(node.op_type, ())
    if node.op_type == "Add" and _adds_to_product(index, node):
        positions = (0, 1)  # exporters write a layer's bias as an Add, with its inputs in any order
    for position in positions:
        if position < len(node.input):
            yield node.input[position]


def _adds_to_product(index: GraphIndex, node: NodeProto) -> bool:
    """True if an input of a node is a matrix product."""
    return any(index.producer(name, *PRODUCTS) is not None for name in node.input)


def is_quantised(graph: GraphProto) -> bool:
    """True if a network computes in integers."""
    return any(node.op_type in INTEGER for node in graph.node)


def is_half(model: ModelProto) -> bool:
    """Whether a model computes in float16, judged by its weights."""
    return any(
        tensor.data_type == onnx.TensorProto.FLOAT16 and len(tensor.dims) > 1
        for tensor in model_tensors(model)
    )


def is_all_half(graph: GraphProto) -> bool:
    """True if all weights of a network are float16 and are multiplied as float16."""
    index = GraphIndex(graph)
    types = set()
    for node in graph.node:
        for name in _learnt_inputs(index, node):
            weight_type = _type_of_weights(index, name)
            if weight_type is not None:
                types.add(weight_type)
    return types == {onnx.TensorProto.FLOAT16}


def _type_of_weights(index: GraphIndex, tensor: str) -> int | None:
    """Return the element type in which weights are used, as a value of ONNX's `DataType`.

    Weights that are stored in float16, but cast to float32 before their use, are float32.

    Args:
        index: The graph.
        tensor: The weights, as a layer reads them.

    Returns:
        None if the tensor is computed, or has fewer than two axes, as a bias has.
    """
    stored_weights = index.constant_tensor(index.before(tensor, REWRITTEN))
    if stored_weights is None or len(stored_weights.dims) < 2:
        return None

    # The search for the Cast stops at it: the last Cast before the use decides the type.
    cast = index.producers.get(index.before(tensor, REWRITTEN - {"Cast"}))
    if cast is not None and cast.op_type == "Cast":
        return attribute(cast, "to", 0)
    return stored_weights.data_type
