"""The first node at which two graphs differ.

Tensors that both graphs have, by name, are made outputs, a dozen at a time, and compared. The
search walks backwards from an output that differs. Each round compares tensors spread evenly over
those before the earliest known difference, so a chain shrinks to a twelfth, and skips branches that
end in a tensor that agrees. It ends at a tensor that differs although all inputs of its node agree,
as measured.

An operator can hide a difference (a maximum, a saturated sigmoid), and one name can mean different
tensors in two exports. So the tensors before one that agrees are only unlikely to differ: where
the nearest inputs do differ, the search continues there.
"""

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from onnx import NodeProto

from detcli.commands.verify.report import BisectReport, NodeReport, TensorReport
from detcli.commands.verify.tensors import (
    OutputComparison,
    Probe,
    Tensor,
    TensorPair,
    compare_tensors,
    rank,
)
from detcli.data.geometry import Picture
from detcli.model.graph import PASSED_THROUGH, GraphIndex, reads

Nodes = Sequence[NodeProto]

HALF_LIMIT = float(np.finfo(np.float16).max)
TENSORS_PER_ROUND = 12  # more need more memory, fewer need more rounds
TENSORS_PER_SCAN = 32  # of a whole graph
MAX_SECONDS = 600  # for a detector a search takes some seconds

GIVEN_UP = f"the search was given up after {MAX_SECONDS // 60} minutes"
HIDDEN = "the outputs agree, since the CPU computes float16 in float32"
FUSED = (
    "the outputs differ, but not once the tensors before them are outputs too: the runtime's "
    "fusions cause the difference"
)
ALIKE = "the node is the same on both sides: the precision, runtime or device makes it differ"


def bisect(outputs: OutputComparison) -> BisectReport | None:
    """Find the first node that differs, on the picture where the outputs differ most; if any."""
    if outputs.worst is None:
        return None
    report, picture, pair = outputs.worst
    search = _Search(outputs, picture, report.source, pair)
    return search.find_overflow() if report.agrees else search.run()


class _Surroundings(NamedTuple):
    """What computes a tensor in either graph, from the nearest tensors that both graphs have."""

    left_nodes: Nodes
    right_nodes: Nodes
    inputs: list[str]


class _Search:
    """The state of a search."""

    def __init__(
        self, outputs: OutputComparison, picture: Picture, source: str, target: TensorPair
    ) -> None:
        self._outputs = outputs
        self._left = outputs.left
        self._right = outputs.right
        self._picture = picture
        self._source = source
        self._target, self._counterpart = target  # the outputs, whose names alone may differ
        self._rounds = 0
        self._deadline = time.monotonic() + MAX_SECONDS
        # Tensors of both graphs, in the order of the left one, by whose names they are known.
        self._common: list[str] = []
        right_names = {*self._right.index.producers, self._target}
        for node in self._left.index.graph.node:
            if node.op_type != "Constant":
                self._common += [name for name in node.output if name in right_names]
        self._reports: dict[str, TensorReport] = {}
        self._unlikely: set[str] = set()  # tensors before one that agrees

    def run(self) -> BisectReport:
        """Walk from the target to the first node that differs."""
        differing = self._target
        while time.monotonic() < self._deadline:
            likely = [name for name in self._before(differing) if name not in self._unlikely]
            earlier = self._differing(likely)
            if earlier:
                differing = earlier[0]
                continue
            unmeasured = self._unmeasured(likely)
            if unmeasured:
                self._measure(_evenly_spread(unmeasured, TENSORS_PER_ROUND))
                continue

            inputs = self._surroundings(differing).inputs
            unmeasured = self._unmeasured(inputs)
            if unmeasured:
                self._measure(unmeasured)
                continue
            hidden = self._differing(inputs)
            if not hidden:
                return self._conclude(differing)
            differing = hidden[0]
        finding = f"{differing} differs; {GIVEN_UP}"
        return self._report_finding(finding, self._reports.get(differing))

    def find_overflow(self) -> BisectReport:
        """Search for float16 overflows that the outputs do not show.

        On the CPU, ONNX Runtime computes float16 nodes in float32 and rounds graph outputs only.
        So an overflow between two nodes shows on a GPU, or where its tensor is made an output.
        """
        for probe in (self._left, self._right):
            if not probe.half:
                continue
            names = list(probe.index.producers)
            for start in range(0, len(names), TENSORS_PER_SCAN):
                if time.monotonic() >= self._deadline:
                    searched = f"{start} of {len(names)} tensors of {probe.name} do not overflow"
                    finding = f"the outputs agree, and {searched}; {GIVEN_UP}"
                    return self._report_finding(finding)
                report = self._scan(probe, names[start : start + TENSORS_PER_SCAN])
                if report is not None:
                    return report
        return self._report_finding("the outputs agree")

    def _scan(self, probe: Probe, names: Sequence[str]) -> BisectReport | None:
        """Report the first of some tensors that overflows on one side only; None if none does."""
        self._rounds += 1
        for name, tensor in probe.fetch(self._picture, names).items():
            if tensor.dtype == np.float16 and not np.isfinite(tensor).all():
                report = self._report_overflow(probe, name)
                if report is not None:
                    return report
        return None

    def _report_overflow(self, probe: Probe, name: str) -> BisectReport | None:
        """Report an overflow that the outputs do not show; None if the other side has it too."""
        common_name = self._target if name == self._counterpart else name
        if common_name not in self._common:
            node = node_report(probe.index.producers[name])
            finding = f"{name} overflows in {probe.name}; {HIDDEN}"
            return self._report_finding(finding, node=node)
        self._measure([common_name])
        if self._reports[common_name].agrees:
            return None  # a mask, say, where minus infinity is intended
        report = self._conclude(common_name)
        return replace(report, finding=f"{report.finding}; {HIDDEN}")

    def _conclude(self, differing: str) -> BisectReport:
        """Compare a tensor and its inputs in one run, and report the node between them."""
        left_nodes, right_nodes, inputs = self._surroundings(differing)
        self._measure([differing, *inputs])
        output = self._reports[differing]
        if output.agrees:
            return self._report_finding(FUSED, output)
        if not left_nodes:
            return self._report_finding(f"{differing} is a constant", output)

        left_title = self._left.name
        right_title = self._right.name
        if left_title == right_title:
            left_title = "the first"
            right_title = "the second"
        graphs = Graphs(self._left.index, self._right.index, left_title, right_title)
        node, finding = next(graphs.explain(left_nodes, right_nodes, output))
        return BisectReport(
            source=self._source,
            node=node,
            finding=finding,
            output=output,
            inputs=tuple(self._reports[name] for name in inputs if name in self._reports),
            left_nodes=tuple(node_report(node) for node in left_nodes),
            right_nodes=tuple(node_report(node) for node in right_nodes),
            compared=len(self._reports),
            rounds=self._rounds,
        )

    def _report_finding(
        self, finding: str, output: TensorReport | None = None, node: NodeReport | None = None
    ) -> BisectReport:
        """A report of a search that did not lead to a node's inputs and output."""
        return BisectReport(
            source=self._source,
            node=node,
            finding=finding,
            output=output,
            compared=0 if output is None else 1,
            rounds=self._rounds,
        )

    def _measure(self, names: Sequence[str]) -> None:
        """Compare tensors, read in one run."""
        self._rounds += 1
        right_names = {}
        for name in names:
            right_names[name] = self._counterpart if name == self._target else name
        left_tensors = self._left.fetch(self._picture, names)
        right_tensors = self._right.fetch(self._picture, right_names.values())
        for name, right_name in right_names.items():
            if name not in left_tensors or right_name not in right_tensors:  # a sequence, say
                self._common.remove(name)
                continue
            report = self._compare(
                (name, right_name), left_tensors[name], right_tensors[right_name]
            )
            self._reports[name] = report
            # Shapes and NaN agree whatever the values they come from.
            is_finite = report.max_absolute is not None
            if report.agrees and is_finite and report.left.dtype.startswith("float"):
                self._unlikely.update(self._before(name))

    def _compare(self, pair: TensorPair, left: Tensor, right: Tensor) -> TensorReport:
        """Compare two tensors; of the target, its part that differs most."""
        name = pair[0]
        if name == self._target:
            parts = self._outputs.compare(pair, left, right, self._source)
            return max(parts, key=rank)
        return compare_tensors(name, left, right, limit=self._outputs.limit, source=self._source)

    def _before(self, name: str) -> list[str]:
        """Common tensors that a tensor is computed from, in the order of the left graph."""
        nodes, _ = nodes_between(self._left.index, name)
        computed = set()
        for node in nodes:
            if name not in node.output:  # outputs of one node do not come before one another
                computed.update(node.output)
        return [common_name for common_name in self._common if common_name in computed]

    def _differing(self, names: Iterable[str]) -> list[str]:
        """Those of some tensors that were measured and do not agree."""
        return [name for name in names if name in self._reports and not self._reports[name].agrees]

    def _unmeasured(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if name not in self._reports]

    def _surroundings(self, name: str) -> _Surroundings:
        """The nearest common tensors before a tensor, and the nodes between in either graph."""
        sources = {*self._common} - {self._target, self._counterpart}
        counterpart = self._counterpart if name == self._target else name
        left_nodes, left_inputs = nodes_between(self._left.index, name, sources)
        right_nodes, right_inputs = nodes_between(self._right.index, counterpart, sources)
        all_inputs = left_inputs | right_inputs
        inputs = [common_name for common_name in self._common if common_name in all_inputs]
        return _Surroundings(left_nodes, right_nodes, inputs)


def _evenly_spread(names: Sequence[str], limit: int) -> list[str]:
    """A number of names at most, evenly spread over all, with the last one."""
    count = min(limit, len(names))
    return [names[number * len(names) // count - 1] for number in range(1, count + 1)]


def node_report(node: NodeProto) -> NodeReport:
    """A node by its name, or by its first output if it has none."""
    return NodeReport(node.name or node.output[0], node.op_type)


def nodes_between(
    index: GraphIndex, tensor: str, sources: Collection[str] = ()
) -> tuple[Nodes, set[str]]:
    """The nodes, in order, that compute a tensor from some others, and those that they read."""
    computing = set[str]()  # the first output of each node
    reached = set[str]()
    waiting = [tensor]
    while waiting:
        node = index.producers.get(waiting.pop())
        if node is None or node.output[0] in computing:
            continue
        computing.add(node.output[0])
        for name in reads(node):
            if name in sources:
                reached.add(name)
            else:
                waiting.append(name)
    nodes = [node for node in index.graph.node if node.output and node.output[0] in computing]
    return nodes, reached


class Graphs(NamedTuple):
    """Two graphs, and what they are called."""

    left: GraphIndex
    right: GraphIndex
    left_title: str
    right_title: str

    def explain(
        self, left_nodes: Nodes, right_nodes: Nodes, output: TensorReport
    ) -> Iterator[tuple[NodeReport, str]]:
        """Nodes before a difference that may cause it, and why: the likeliest first."""
        left_by_output = _by_first_output(left_nodes)
        right_by_output = _by_first_output(right_nodes)
        for name, node in left_by_output.items():
            if name in right_by_output:
                for finding in self._differences(node, right_by_output[name]):
                    yield node_report(node), finding
            elif node.op_type not in PASSED_THROUGH:
                yield node_report(node), f"the node is missing in {self.right_title}"
        for name, node in right_by_output.items():
            if name not in left_by_output and node.op_type not in PASSED_THROUGH:
                yield node_report(node), f"the node is missing in {self.left_title}"
        yield node_report(left_nodes[-1]), self._describe_values(output)

    def _differences(self, left: NodeProto, right: NodeProto) -> Iterator[str]:
        """How two nodes differ."""
        if left.op_type != right.op_type:
            if not {left.op_type, right.op_type} <= PASSED_THROUGH:
                yield f"it is {right.op_type} in {self.right_title}"
            return
        yield from self._input_differences(left, right)
        if left.op_type not in PASSED_THROUGH:
            changed_attributes = _attributes(left) ^ _attributes(right)
            if changed_attributes:
                names = sorted({name for name, _ in changed_attributes})
                yield f"its attributes differ in {self.right_title}: {', '.join(names)}"

    def _input_differences(self, left: NodeProto, right: NodeProto) -> Iterator[str]:
        """How the inputs of two nodes of one operator differ."""
        # The tensors behind casts, identities, quantisation and dequantisation.
        left_inputs = [self.left.behind(name, PASSED_THROUGH) for name in left.input]
        right_inputs = [self.right.behind(name, PASSED_THROUGH) for name in right.input]
        if left_inputs != right_inputs and sorted(left_inputs) == sorted(right_inputs):
            yield f"its inputs are swapped in {self.right_title}: {', '.join(right_inputs)}"
        for left_name, right_name in zip(left_inputs, right_inputs, strict=False):
            yield from self._tensor_differences(left_name, right_name)
        # Branches of an If or Loop read more, and constants of one name may differ.
        captured = reads(left) & reads(right) - {*left.input, *right.input}
        for name in sorted(captured):
            yield from self._tensor_differences(name, name)
        if len(left_inputs) != len(right_inputs):
            yield (
                f"it has {len(left_inputs)} inputs, and {len(right_inputs)} in {self.right_title}"
            )

    def _tensor_differences(self, left_name: str, right_name: str) -> Iterator[str]:
        """How two tensors differ that nodes read at one place."""
        left = self.left.array(left_name)
        right = self.right.array(right_name)
        if left is None or right is None:
            in_both = left_name in self.right.producers or right_name in self.left.producers
            if left_name != right_name and in_both:
                yield f"it reads {left_name}, but {right_name} in {self.right_title}"
        elif not _are_alike(left, right):
            report = compare_tensors(left_name, left, right, limit=0.0, source="")
            difference = ""
            if report.left.not_finite != report.right.not_finite:
                difference = (
                    f", where {report.right.not_finite} values are not finite instead of "
                    f"{report.left.not_finite}"
                )
            elif report.max_absolute is not None:
                difference = f" by up to {report.max_absolute:.3g}"
            yield f"its constant input {left_name} differs in {self.right_title}{difference}"

    def _describe_values(self, output: TensorReport) -> str:
        """What the values of a tensor show, where the node is the same in both graphs."""
        left = output.left
        right = output.right
        if left.not_finite > right.not_finite:
            overflowing, finite, title = left, right, self.left_title
        elif right.not_finite > left.not_finite:
            overflowing, finite, title = right, left, self.right_title
        else:
            return ALIKE
        magnitude = max(abs(finite.least or 0.0), abs(finite.greatest or 0.0))
        text = f"{overflowing.infinite} infinities and {overflowing.nan} NaN in {title} only"
        if magnitude <= HALF_LIMIT:
            return text
        limit = f"the float16 limit is {HALF_LIMIT:.0f}"
        return f"{text}: {limit}, the other side has {magnitude:.6g}"


def _by_first_output(nodes: Nodes) -> dict[str, NodeProto]:
    """Nodes by their first output, without constants.

    Constants are compared where they are read, since they may be nodes or initializers.
    """
    return {node.output[0]: node for node in nodes if node.op_type != "Constant"}


def _attributes(node: NodeProto) -> set[tuple[str, bytes]]:
    """The attributes of a node: their names and contents."""
    attributes = set()
    for attribute in node.attribute:
        attributes.add((attribute.name, attribute.SerializeToString(deterministic=True)))
    return attributes


def _are_alike(left: Tensor, right: Tensor) -> bool:
    """Whether constants are the same up to rounding, value by value.

    Not relative to the largest value, since a small weight may have a large effect.
    """
    if left.shape != right.shape:
        return False
    if (left.dtype.kind == "f") != (right.dtype.kind == "f"):
        return True  # the scale of a quantised constant is another input
    relative_tolerance = 1e-5
    absolute_tolerance = 0.0
    if np.float16 in {left.dtype.type, right.dtype.type}:
        relative_tolerance = 2.0**-10
        absolute_tolerance = 1e-7
    return np.allclose(
        left.astype(np.float64),
        right.astype(np.float64),
        rtol=relative_tolerance,
        atol=absolute_tolerance,
        equal_nan=True,
    )
