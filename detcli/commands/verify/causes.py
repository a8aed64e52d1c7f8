"""Says which node may make a tensor differ in two graphs, and what is different about it."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from onnx import NodeProto

from detcli.commands.verify.report import NodeReport, TensorReport
from detcli.commands.verify.tensors import Tensor, compare_tensors
from detcli.model.graph import PASSED_THROUGH, GraphIndex, reads

Nodes = Sequence[NodeProto]

HALF_LIMIT = float(np.finfo(np.float16).max)

ALIKE = "the node is the same on both sides: the precision, runtime or device makes it differ"


def node_report(node: NodeProto) -> NodeReport:
    """Describe a node by its name, or by its first output if it has no name."""
    return NodeReport(node.name or node.output[0], node.op_type)


class Cause(NamedTuple):
    """A node that may make a tensor differ, and what is different about it."""

    node: NodeReport
    finding: str


class Graphs(NamedTuple):
    """Two graphs whose nodes are compared, and their names in findings."""

    left: GraphIndex
    right: GraphIndex
    left_title: str
    right_title: str

    def explain(
        self, left_nodes: Nodes, right_nodes: Nodes, output: TensorReport
    ) -> Iterator[Cause]:
        """Yield nodes that may make a tensor differ, the likeliest first.

        Nodes of the left graph come first, if they differ or are missing in the right graph. Nodes
        that are missing in the left graph follow. The last is the node that computes the tensor,
        with what the values of the tensor show. A node that only converts its input, such as a
        Cast, may be missing in a graph without being a cause.

        Args:
            left_nodes: The nodes that compute the tensor in the left graph from inputs that agree.
                They are in the order of the graph, so the last one computes the tensor itself.
            right_nodes: The nodes that compute it in the right graph.
            output: The comparison of the tensor, which differs.
        """
        left_by_output = _by_first_output(left_nodes)
        right_by_output = _by_first_output(right_nodes)
        for name, node in left_by_output.items():
            if name in right_by_output:
                for finding in self._differences(node, right_by_output[name]):
                    yield Cause(node_report(node), finding)
            elif node.op_type not in PASSED_THROUGH:
                yield Cause(node_report(node), f"the node is missing in {self.right_title}")

        for name, node in right_by_output.items():
            if name not in left_by_output and node.op_type not in PASSED_THROUGH:
                yield Cause(node_report(node), f"the node is missing in {self.left_title}")

        computing_node = left_nodes[-1]
        yield Cause(node_report(computing_node), self._describe_values(output))

    def _differences(self, left: NodeProto, right: NodeProto) -> Iterator[str]:
        """Yield the differences between two nodes that compute the same tensor in two graphs.

        For nodes that pass their input through (casts, identities, quantisation, dequantisation),
        only the inputs are compared, since a graph of a different precision has other such nodes.
        """
        if left.op_type == right.op_type:
            yield from self._input_differences(left, right)
            if left.op_type not in PASSED_THROUGH:
                yield from self._attribute_differences(left, right)
        elif not {left.op_type, right.op_type} <= PASSED_THROUGH:
            yield f"it is {right.op_type} in {self.right_title}"

    def _attribute_differences(self, left: NodeProto, right: NodeProto) -> Iterator[str]:
        """Yield a sentence with the names of the attributes in which two nodes differ, if any."""
        differing_attributes = _attributes(left) ^ _attributes(right)
        if differing_attributes:
            names = sorted({name for name, _ in differing_attributes})
            yield f"its attributes differ in {self.right_title}: {', '.join(names)}"

    def _input_differences(self, left: NodeProto, right: NodeProto) -> Iterator[str]:
        """Yield the differences between the inputs of two nodes of the same operator.

        These are a different order, different tensors or constants, and a different number of
        inputs. Casts, identities and (de)quantisations just before an input are passed over, since
        a graph of a different precision has them in other places: the tensors before them are
        compared.
        """
        left_inputs = [self.left.before(name, PASSED_THROUGH) for name in left.input]
        right_inputs = [self.right.before(name, PASSED_THROUGH) for name in right.input]
        are_same_tensors = sorted(left_inputs) == sorted(right_inputs)
        is_same_order = left_inputs == right_inputs
        if are_same_tensors and not is_same_order:
            yield f"its inputs are swapped in {self.right_title}: {', '.join(right_inputs)}"

        # Inputs that only one node has are reported as a different number below.
        for left_name, right_name in zip(left_inputs, right_inputs, strict=False):
            yield from self._tensor_differences(left_name, right_name)

        # The bodies of an If or Loop also read tensors that are not among the inputs of the node. A
        # constant among these may have the same name in both graphs, but different values.
        inputs_of_either = {*left.input, *right.input}
        read_by_both = reads(left) & reads(right)
        for name in sorted(read_by_both - inputs_of_either):
            yield from self._tensor_differences(name, name)

        if len(left_inputs) != len(right_inputs):
            yield (
                f"it has {len(left_inputs)} inputs, and {len(right_inputs)} in {self.right_title}"
            )

    def _tensor_differences(self, left_name: str, right_name: str) -> Iterator[str]:
        """Yield the difference between an input of a node and the same input of the other node.

        Two constants are compared by their values. Other tensors are compared by name, though an
        exporter may give one tensor different names in two graphs. So different names only matter
        if the other graph has one of them, too: then the nodes read different tensors.

        Args:
            left_name: The tensor that the node in the left graph reads.
            right_name: The tensor that the node in the right graph reads.
        """
        left_constant = self.left.array(left_name)
        right_constant = self.right.array(right_name)
        if left_constant is None or right_constant is None:
            is_in_other_graph = (
                left_name in self.right.producers or right_name in self.left.producers
            )
            if left_name != right_name and is_in_other_graph:
                yield f"it reads {left_name}, but {right_name} in {self.right_title}"
        elif not _are_alike(left_constant, right_constant):
            extent = _extent_of_difference(left_constant, right_constant)
            yield f"its constant input {left_name} differs in {self.right_title}{extent}"

    def _describe_values(self, output: TensorReport) -> str:
        """Explain what the values of a tensor show, where the nodes are the same in both graphs.

        If one graph has more infinities or NaN, it overflowed. The other graph then shows whether
        the values are beyond the range of float16.
        """
        if output.left.not_finite == output.right.not_finite:
            return ALIKE
        if output.left.not_finite > output.right.not_finite:
            title = self.left_title
            overflowing = output.left
            finite = output.right
        else:
            title = self.right_title
            overflowing = output.right
            finite = output.left
        magnitude = max(abs(finite.least or 0.0), abs(finite.greatest or 0.0))
        text = f"{overflowing.infinite} infinities and {overflowing.nan} NaN in {title} only"
        if magnitude <= HALF_LIMIT:
            return text
        limit = f"the float16 limit is {HALF_LIMIT:.0f}"
        return f"{text}: {limit}, the other side has {magnitude:.6g}"


def _extent_of_difference(left: Tensor, right: Tensor) -> str:
    """Describe how much two constants differ, to end a sentence; empty if that has no number."""
    report = compare_tensors("", left, right, limit=0.0, source="")
    left_count = report.left.not_finite
    right_count = report.right.not_finite
    if left_count != right_count:
        return f", where {right_count} values are not finite instead of {left_count}"
    if report.max_absolute is not None:
        return f" by up to {report.max_absolute:.3g}"
    return ""


def _by_first_output(nodes: Nodes) -> dict[str, NodeProto]:
    """Index nodes by their first output, without constants.

    Constants are compared where they are read, since they may be nodes or initializers.
    """
    return {node.output[0]: node for node in nodes if node.op_type != "Constant"}


def _attributes(node: NodeProto) -> set[tuple[str, bytes]]:
    """List the attributes of a node as pairs of their name and content, in a form that compares."""
    attributes = set()
    for attribute in node.attribute:
        attributes.add((attribute.name, attribute.SerializeToString(deterministic=True)))
    return attributes


def _are_alike(left: Tensor, right: Tensor) -> bool:
    """Return whether two constants are the same up to the rounding of their number types.

    Each value is compared relative to itself, and not to the largest value of the constant, since
    a small weight may have a large effect.
    """
    if left.shape != right.shape:
        return False
    if (left.dtype.kind == "f") != (right.dtype.kind == "f"):
        return True  # one is quantised; without its scale, its values say nothing
    relative_tolerance = 1e-5
    absolute_tolerance = 0.0
    if np.float16 in {left.dtype.type, right.dtype.type}:
        relative_tolerance = 2.0**-10  # float16 has 11 significant bits
        absolute_tolerance = 1e-7  # and cannot hold values much smaller than this
    return np.allclose(
        left.astype(np.float64),
        right.astype(np.float64),
        rtol=relative_tolerance,
        atol=absolute_tolerance,
        equal_nan=True,
    )
