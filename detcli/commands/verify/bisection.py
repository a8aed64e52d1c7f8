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
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from detcli.commands.verify.causes import Graphs, Nodes, node_report
from detcli.commands.verify.report import BisectReport, NodeReport, TensorReport
from detcli.commands.verify.tensors import (
    OutputComparison,
    Probe,
    Tensor,
    TensorPair,
    compare_tensors,
    difference_rank,
)
from detcli.data.geometry import Image
from detcli.model.graph import GraphIndex, reads

TENSORS_PER_ROUND = 12  # more need more memory, fewer need more rounds
TENSORS_PER_SCAN = 32  # in the search for overflows, which reads all tensors of a graph
MAX_SECONDS = 600  # of a search, which takes some seconds for a detector

GIVEN_UP = f"the search was given up after {MAX_SECONDS // 60} minutes"
WHY_HIDDEN = "the outputs agree, since the CPU computes float16 in float32"
FUSED = (
    "the outputs differ, but not once the tensors before them are outputs too: the runtime's "
    "fusions cause the difference"
)


def bisect(outputs: OutputComparison) -> BisectReport | None:
    """Find the first node at which two networks differ.

    The search runs on the image where their outputs differ most. If the outputs agree even there,
    it looks for float16 overflows that the outputs do not show.

    Args:
        outputs: The comparison of the networks' outputs on all images.

    Returns:
        What the search found; None if no image was compared.
    """
    if outputs.worst is None:
        return None
    worst = outputs.worst
    search = _Search(outputs, worst.image, worst.report.source, worst.pair)
    if worst.report.agrees:
        return search.find_overflow()
    return search.find_first_difference()


class _Computation(NamedTuple):
    """What computes a tensor in either graph, from the nearest tensors that both graphs have."""

    left_nodes: Nodes
    right_nodes: Nodes
    inputs: list[str]  # the nearest tensors that both graphs have


class _ComparedNames(NamedTuple):
    """Which of the given tensors differ, and which have yet to be compared; the others agree."""

    differing: list[str]
    uncompared: list[str]


class _Search:
    """A search for the first node at which two graphs differ, on one image.

    A tensor goes by its name in the left graph. All tensors that the search compares have the same
    name in the right graph, except for the outputs at which it starts.
    """

    def __init__(
        self, outputs: OutputComparison, image: Image, source: str, output_names: TensorPair
    ) -> None:
        """Prepare a search, which has ten minutes from now.

        Args:
            outputs: Compares the networks, and has a probe of each that reads any tensor.
            image: What the networks run on.
            source: The file of the image, for the report.
            output_names: Names, in the left and in the right graph, of the outputs that differ.
        """
        self._outputs = outputs
        self._left = outputs.left
        self._right = outputs.right
        self._image = image
        self._source = source
        # The output at which the search starts, by its name in either graph.
        self._left_output = output_names.left
        self._right_output = output_names.right
        self._rounds = 0  # how often the networks ran
        self._deadline = time.monotonic() + MAX_SECONDS
        self._common_names = self._common_tensors()
        self._reports: dict[str, TensorReport] = {}  # by name, of tensors that were compared
        # Tensors that were not compared, but probably agree, as a tensor computed from them agrees.
        self._probably_equal: set[str] = set()

    def _common_tensors(self) -> list[str]:
        """List the tensors that nodes of both graphs compute, in the order of the left graph.

        Constants are left out. The output at which the search starts is always one of them, though
        it may have a different name in the right graph.
        """
        right_names = {*self._right.index.producers, self._left_output}
        names: list[str] = []
        for node in self._left.index.graph.node:
            if node.op_type != "Constant":
                names += [name for name in node.output if name in right_names]
        return names

    def find_first_difference(self) -> BisectReport:
        """Find the first node that makes the networks differ, from an output that differs.

        The search has a tensor that differs, and replaces it by an earlier one that differs, too.
        It ends at the node that computes the tensor when all inputs of this node agree.

        First it looks at the suspects: all earlier tensors, without those from which a tensor that
        agrees is computed. When all suspects agree, it also compares the inputs of the node that
        are not suspects.
        """
        differing = self._left_output
        while time.monotonic() < self._deadline:
            earlier_names = self._names_before(differing)
            suspects = [name for name in earlier_names if name not in self._probably_equal]
            compared_suspects = self._look_up(suspects)
            if compared_suspects.differing:
                # Among several, the earliest skips most of the graph.
                differing = compared_suspects.differing[0]
                continue
            if compared_suspects.uncompared:
                self._compare(_evenly_spread(compared_suspects.uncompared, TENSORS_PER_ROUND))
                continue

            # All suspects agree, and have been compared.
            compared_inputs = self._look_up(self._computation_of(differing).inputs)
            if compared_inputs.uncompared:
                self._compare(compared_inputs.uncompared)
                continue
            if not compared_inputs.differing:
                return self._report_node(differing)
            differing = compared_inputs.differing[0]

        finding = f"{differing} differs; {GIVEN_UP}"
        return self._report_finding(finding, self._reports.get(differing))

    def find_overflow(self) -> BisectReport:
        """Search networks whose outputs agree for float16 overflows that the outputs do not show.

        On the CPU, ONNX Runtime computes float16 nodes in float32, and only rounds the outputs of
        the graph to float16. So an overflow between two nodes does not show there unless its tensor
        is made an output, but it would on a GPU.

        Returns:
            The first overflow. If there is none, a report that says that the outputs agree.
        """
        for probe in (self._left, self._right):
            if probe.has_float16:
                report = self._scan_network(probe)
                if report is not None:
                    return report
        return self._report_finding("the outputs agree")

    def _scan_network(self, probe: Probe) -> BisectReport | None:
        """Report the first tensor of a network that overflows, unless the other network's does too.

        Args:
            probe: Runs the network.

        Returns:
            None if there is no such tensor. If the time is up before all are scanned, a report that
            says how many were.
        """
        names = list(probe.index.producers)
        for start in range(0, len(names), TENSORS_PER_SCAN):
            if time.monotonic() >= self._deadline:
                return self._report_finding(
                    f"the outputs agree, and {start} of {len(names)} tensors of {probe.name} do "
                    f"not overflow; {GIVEN_UP}"
                )
            report = self._scan(probe, names[start : start + TENSORS_PER_SCAN])
            if report is not None:
                return report
        return None

    def _scan(self, probe: Probe, names: Sequence[str]) -> BisectReport | None:
        """Report the first of the given tensors that overflows in one network only.

        Args:
            probe: Runs the network.
            names: The tensors of its graph to look at, which are read in one run.

        Returns:
            None if none of the tensors overflows in this network only.
        """
        self._rounds += 1
        for name, tensor in probe.fetch(self._image, names).items():
            if tensor.dtype == np.float16 and not np.isfinite(tensor).all():
                report = self._report_overflow(probe, name)
                if report is not None:
                    return report
        return None

    def _report_overflow(self, probe: Probe, name: str) -> BisectReport | None:
        """Report a float16 tensor with infinities or NaN, unless the other network has the same.

        A tensor that both graphs have is compared first: both networks run once more for this.

        Args:
            probe: The network that computed the tensor. Its outputs agree with those of the other
                network all the same.
            name: The name of the tensor in this network's graph.

        Returns:
            None if the tensor agrees in both networks: then its infinities are intended, as in a
            mask.
        """
        # The search uses the name in the left graph. Only the output that it starts at may have
        # a different name in the right graph.
        common_name = name
        if name == self._right_output:
            common_name = self._left_output

        if common_name not in self._common_names:
            node = node_report(probe.index.producers[name])
            finding = f"{name} overflows in {probe.name}; {WHY_HIDDEN}"
            return self._report_finding(finding, node=node)

        self._compare([common_name])
        if self._reports[common_name].agrees:
            return None
        report = self._report_node(common_name)
        return replace(report, finding=f"{report.finding}; {WHY_HIDDEN}")

    def _report_node(self, differing: str) -> BisectReport:
        """Report the node that makes a tensor differ, although all inputs of the node agree.

        How the runtime fuses nodes depends on which tensors are outputs of the graph. So the tensor
        and all inputs of the node are made outputs together, and compared again. If the tensor
        agrees now, fusions caused the difference, and no node is reported.

        Args:
            differing: The name of the tensor in the left graph.
        """
        left_nodes, right_nodes, inputs = self._computation_of(differing)
        self._compare([differing, *inputs])
        output = self._reports[differing]
        if output.agrees:
            return self._report_finding(FUSED, output)
        if not left_nodes:
            return self._report_finding(f"{differing} is a constant", output)

        likeliest_cause = next(self._titled_graphs().explain(left_nodes, right_nodes, output))
        return BisectReport(
            source=self._source,
            node=likeliest_cause.node,
            finding=likeliest_cause.finding,
            output=output,
            inputs=tuple(self._reports[name] for name in inputs if name in self._reports),
            left_nodes=tuple(node_report(node) for node in left_nodes),
            right_nodes=tuple(node_report(node) for node in right_nodes),
            compared=len(self._reports),
            rounds=self._rounds,
        )

    def _titled_graphs(self) -> "Graphs":
        """Return both graphs with titles that differ even if their files have the same name."""
        left_title = self._left.name
        right_title = self._right.name
        if left_title == right_title:
            left_title = "the first"
            right_title = "the second"
        return Graphs(self._left.index, self._right.index, left_title, right_title)

    def _report_finding(
        self, finding: str, output: TensorReport | None = None, node: NodeReport | None = None
    ) -> BisectReport:
        """Report a search that did not end at a node whose inputs agree and whose output differs.

        Args:
            finding: The result of the search, as a sentence.
            output: The comparison of the tensor that it arrived at, if any.
            node: The node that it suspects, if any.
        """
        return BisectReport(
            source=self._source,
            node=node,
            finding=finding,
            output=output,
            compared=0 if output is None else 1,
            rounds=self._rounds,
        )

    def _compare(self, names: Sequence[str]) -> None:
        """Run both networks once, and compare the given tensors, which both graphs have.

        The reports are stored in `_reports`. If a tensor agrees, the tensors that it is computed
        from are added to `_probably_equal`, unless its values say little about them. Names that
        turn out not to be tensors are removed from `_common_names`.

        Args:
            names: The names of the tensors in the left graph.
        """
        self._rounds += 1
        right_names = {name: self._right_name(name) for name in names}
        left_tensors = self._left.fetch(self._image, names)
        right_tensors = self._right.fetch(self._image, right_names.values())
        for name, right_name in right_names.items():
            are_tensors = name in left_tensors and right_name in right_tensors
            if not are_tensors:  # but sequences or maps, which `fetch` leaves out
                self._common_names.remove(name)
                continue
            pair = TensorPair(name, right_name)
            report = self._compare_pair(pair, left_tensors[name], right_tensors[right_name])
            self._reports[name] = report
            if _vouches_for_inputs(report):
                self._probably_equal.update(self._names_before(name))

    def _right_name(self, name: str) -> str:
        """Return the name in the right graph of a tensor with this name in the left graph."""
        if name == self._left_output:
            return self._right_output
        return name

    def _compare_pair(self, pair: TensorPair, left: Tensor, right: Tensor) -> TensorReport:
        """Compare a tensor of the left graph with its counterpart in the right graph.

        The output at which the search starts may hold the boxes and the scores of a detector. These
        are compared separately, and the report is about those that differ more.

        Args:
            pair: The names of the tensors.
            left: What the left network computed.
            right: What the right network computed.
        """
        if pair.left == self._left_output:
            reports = self._outputs.compare(pair, left, right, self._source)
            return max(reports, key=difference_rank)
        return compare_tensors(
            pair.left, left, right, limit=self._outputs.limit, source=self._source
        )

    def _names_before(self, name: str) -> list[str]:
        """List the common tensors that a tensor is computed from, in the left graph's order."""
        computed = set()
        for node in nodes_between(self._left.index, name).nodes:
            if name not in node.output:  # the other outputs of its node are not computed before it
                computed.update(node.output)
        return [common_name for common_name in self._common_names if common_name in computed]

    def _look_up(self, names: Iterable[str]) -> _ComparedNames:
        """Look up which of the given tensors differ, and which have not been compared yet."""
        differing = []
        uncompared = []
        for name in names:
            if name not in self._reports:
                uncompared.append(name)
            elif not self._reports[name].agrees:
                differing.append(name)
        return _ComparedNames(differing, uncompared)

    def _computation_of(self, name: str) -> _Computation:
        """Find the nearest common tensors before a tensor, and the nodes between in either graph.

        Between two common tensors each graph may have different nodes, such as a Cast in one of
        them.
        """
        sources = {*self._common_names} - {self._left_output, self._right_output}
        left = nodes_between(self._left.index, name, sources)
        right = nodes_between(self._right.index, self._right_name(name), sources)
        all_inputs = left.sources | right.sources
        inputs = [common_name for common_name in self._common_names if common_name in all_inputs]
        return _Computation(left.nodes, right.nodes, inputs)


def _vouches_for_inputs(report: TensorReport) -> bool:
    """Return whether a tensor agrees, and makes it unlikely that the tensors before it differ.

    A tensor of integers, such as a shape, or without finite values says little about the tensors
    that it is computed from: other values of these lead to the same result.
    """
    has_finite_values = report.max_absolute is not None
    is_float = report.left.dtype.startswith("float")
    return report.agrees and has_finite_values and is_float


def _evenly_spread(names: Sequence[str], limit: int) -> list[str]:
    """Pick at most `limit` names, evenly spread over all of them; the last one is always picked.

    For example, of eight names and a limit of four: the second, fourth, sixth and eighth.
    """
    count = min(limit, len(names))
    picked = []
    for position in range(1, count + 1):
        end = position * len(names) // count  # of the first `position` of `count` equal parts
        picked.append(names[end - 1])
    return picked


class NodesBetween(NamedTuple):
    """The nodes that compute a tensor from other tensors of a graph."""

    nodes: Nodes  # in the order of the graph
    sources: set[str]  # the names of those other tensors that the nodes read


def nodes_between(index: GraphIndex, tensor: str, sources: Collection[str] = ()) -> NodesBetween:
    """Find the nodes that compute a tensor from other tensors of a graph.

    The walk goes from the tensor back through the nodes, and stops at the sources, at the inputs of
    the graph and at initializers.

    Args:
        index: The graph.
        tensor: The name of the tensor that is computed.
        sources: Names of tensors to stop at; without any, all nodes before the tensor are found.
    """
    computing = set[str]()  # nodes, by their first output
    reached_sources = set[str]()
    waiting = [tensor]
    while waiting:
        node = index.producers.get(waiting.pop())
        if node is None or node.output[0] in computing:
            continue
        computing.add(node.output[0])
        for name in reads(node):
            if name in sources:
                reached_sources.add(name)
            else:
                waiting.append(name)
    nodes = [node for node in index.graph.node if node.output and node.output[0] in computing]
    return NodesBetween(nodes, reached_sources)
