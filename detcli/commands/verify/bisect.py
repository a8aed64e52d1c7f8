"""Finds the first node at which two graphs begin to differ.

Tensors that both graphs have, by name, are exposed a dozen at a time and compared. The search
walks backwards from an output that differs. In each round it looks at tensors spread over what
lies before the earliest one that is known to differ, so a chain shrinks to a twelfth; on a graph
with branches it looks at no branch that ended in a tensor that agrees. It ends at a tensor that
differs although all that its node reads agrees: that is measured, never assumed.

A difference can hide behind an operator (a maximum, a saturated sigmoid), and a name can mean
different tensors in two exports. So an agreeing tensor only makes what lies before it unlikely:
where the nearest inputs turn out to differ in spite of that, the search goes on there.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import NodeProto

from detcli.commands.verify.graphs import Probe
from detcli.commands.verify.nodes import explain, node_report, nodes_between
from detcli.commands.verify.outputs import OutputComparison, Pair
from detcli.commands.verify.report import BisectReport, TensorReport
from detcli.commands.verify.tensors import badness, compare_tensors
from detcli.geometry import Picture
from detcli.model.graph import needed_nodes

Tensor = npt.NDArray[Any]

PROBES = 12
"""Tensors that are exposed in a round; more take memory, fewer take more rounds."""

HIDDEN = "the outputs agree, since the CPU computes float16 in float32"

SCANNED = 32
"""Tensors that are exposed at a time where all have to be looked at."""


def bisect(outputs: OutputComparison, limit: float) -> BisectReport | None:
    """Find where two networks begin to differ, on the picture where their outputs do most.

    Args:
        outputs: Their comparison on all pictures.
        limit: See `compare_tensors`.

    Returns:
        What was found; None if they have not been compared on any picture.

    Raises:
        DeviceError: A device cannot be used.
        InferenceError: The runtime failed.
        ModelError: It refuses a graph.
    """
    if outputs.worst is None:
        return None
    picture, source, target = outputs.worst
    search = _Search(outputs, target, (picture, source), limit)
    if all(report.agrees for report in outputs.reports):
        return search.find_overflow()
    return search.run()


class _Search:
    """The state of a search.

    Attributes:
        common: Tensors that both graphs make, in the order of the left one.
        reports: What was compared, by the tensor's name in the left graph.
        unlikely: Tensors before one that agrees.
    """

    def __init__(
        self, outputs: OutputComparison, target: Pair, run_on: tuple[Picture, str], limit: float
    ) -> None:
        left, right = outputs.left, outputs.right
        self._outputs, self._left, self._right, self._target = outputs, left, right, target
        self._titles = _titles(left.name, right.name)
        self._picture, self._source = run_on
        self._limit = limit
        self._rounds = 0
        computed = (node for node in left.graph.node if node.op_type != "Constant")
        made = [name for node in computed for name in node.output]
        known = {*right.index.producers, target.left}
        self.common = [name for name in made if name in known]
        self.reports: dict[str, TensorReport] = {}
        self.unlikely: set[str] = set()

    def run(self) -> BisectReport:
        """Walk from the target to the first node that differs."""
        differing = self._target.left
        while True:
            above = self._before(differing)
            likely = [name for name in above if name not in self.unlikely]
            if earlier := self._differing(likely):
                differing = earlier[0]
            elif unknown := [name for name in likely if name not in self.reports]:
                self._measure(_spread(unknown))
            else:
                inputs = self._inputs(differing)
                if unknown := [name for name in inputs if name not in self.reports]:
                    self._measure(unknown)
                elif hidden := self._differing(inputs):
                    differing = hidden[0]
                else:
                    return self._conclude(differing, inputs)

    def find_overflow(self) -> BisectReport:
        """Look for what float16 cannot hold, where the outputs agree all the same.

        On the CPU, ONNX Runtime computes float16 nodes in float32 and rounds where a tensor leaves
        the graph. So an overflow between two nodes shows when it is exposed, or on a GPU.
        """
        for probe in (self._left, self._right):
            made = [name for node in probe.graph.node for name in node.output if name]
            for start in range(0, len(made) if probe.half else 0, SCANNED):
                part = made[start : start + SCANNED]
                self._rounds += 1
                tensors = probe.fetch(self._picture, part)
                for name in (name for name in part if _overflows(tensors.get(name))):
                    if found := self._hidden(probe, name):
                        return found
        return _nothing(self._source, "the outputs agree", None, self._rounds)

    def _hidden(self, probe: Probe, name: str) -> BisectReport | None:
        """An overflow that does not reach the outputs; None if the other side has it too."""
        common = self._target.left if name == self._target.right else name
        if common in self.common:
            self._measure([common])
            if self.reports[common].agrees:
                return None  # a mask, say: minus infinity is meant
            found = self._conclude(common, self._inputs(common))
            return replace(found, finding=f"{found.finding}; {HIDDEN}")
        node = node_report(probe.index.producers[name])
        finding = f"{name} overflows in {probe.name}; {HIDDEN}"
        return replace(_nothing(self._source, finding, None, self._rounds), node=node)

    def _conclude(self, differing: str, inputs: Sequence[str]) -> BisectReport:
        """Look at the tensor and its inputs together once more, and say what their node is."""
        self._measure([differing, *inputs])
        output = self.reports[differing]
        if output.agrees:
            return _nothing(
                self._source,
                "the outputs differ, but no longer where the tensors before them are exposed: "
                "the runtime's fusions make the difference",
                output,
                self._rounds,
            )
        left, right = (nodes for nodes, _ in self._between(differing))
        if not left:
            return _nothing(self._source, f"{differing} is a constant", output, self._rounds)
        graphs = self._left.index, self._right.index
        node, finding = explain(graphs, (left, right), self._titles, output)
        return BisectReport(
            source=self._source,
            node=node,
            finding=finding,
            output=output,
            inputs=tuple(self.reports[name] for name in inputs),
            left_nodes=tuple(map(node_report, left)),
            right_nodes=tuple(map(node_report, right)),
            compared=len(self.reports),
            rounds=self._rounds,
        )

    def _measure(self, names: Sequence[str]) -> None:
        """Compare tensors, exposed together."""
        self._rounds += 1
        left = self._left.fetch(self._picture, names)
        right = self._right.fetch(self._picture, [self._in_right(name) for name in names])
        for name in names:
            other = self._in_right(name)
            if name not in left or other not in right:  # a sequence, say
                self.common.remove(name)
                continue
            report = self._compare(name, left[name], right[other])
            self.reports[name] = report
            # Shapes agree whatever the entries of the tensors are that they are the shapes of, and
            # NaN whatever it was computed from.
            finite = report.max_absolute is not None
            if report.agrees and finite and report.left.dtype.startswith("float"):
                self.unlikely.update(self._before(name))

    def _compare(self, name: str, left: Tensor, right: Tensor) -> TensorReport:
        if name == self._target.left:
            return max(self._outputs.compare(self._target, left, right, self._source), key=badness)
        return compare_tensors(name, left, right, self._limit, self._source)

    def _in_right(self, name: str) -> str:
        """What a tensor is called in the right graph: as in the left, but for the heads."""
        return self._target.right if name == self._target.left else name

    def _before(self, name: str) -> list[str]:
        """Common tensors that one is computed from, in the order of the left graph."""
        nodes, _ = needed_nodes(self._left.graph, name)
        # A node's outputs do not come before one another.
        made = {output for node in nodes if name not in node.output for output in node.output}
        return [other for other in self.common if other in made]

    def _differing(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if name in self.reports and not self.reports[name].agrees]

    def _between(self, name: str) -> list[tuple[list[NodeProto], set[str]]]:
        """In either graph, the nodes between a tensor and the nearest common ones before it."""
        known = {*self.common} - {self._target.left, self._target.right}
        return [
            nodes_between(self._left.index, name, known),
            nodes_between(self._right.index, self._in_right(name), known),
        ]

    def _inputs(self, name: str) -> list[str]:
        """The nearest common tensors before one, in the order of the left graph."""
        (_, left), (_, right) = self._between(name)
        return [other for other in self.common if other in left | right]


def _titles(left: str, right: str) -> tuple[str, str]:
    """What to call the two sides in a sentence."""
    return (left, right) if left != right else ("the first", "the second")


def _overflows(tensor: Tensor | None) -> bool:
    if tensor is None or tensor.dtype != np.float16:
        return False
    return not bool(np.isfinite(tensor).all())


def _spread(names: Sequence[str]) -> list[str]:
    """At most PROBES of them, evenly spread, the last one among them."""
    count = min(PROBES, len(names))
    return [names[(index + 1) * len(names) // count - 1] for index in range(count)]


def _nothing(source: str, why: str, output: TensorReport | None, rounds: int) -> BisectReport:
    return BisectReport(source, None, why, output, (), (), (), 0 if output is None else 1, rounds)
