"""Raw outputs of two networks, and the first node at which their graphs differ.

To bisect, tensors that both graphs have, by name, are made outputs, a dozen at a time, and
compared. The search walks backwards from an output that differs. Each round compares tensors spread
evenly over those before the earliest known difference, so a chain shrinks to a twelfth, and skips
branches that end in a tensor that agrees. It ends at a tensor that differs although all inputs of
its node agree, as measured.

An operator can hide a difference (a maximum, a saturated sigmoid), and one name can mean different
tensors in two exports. So the tensors before one that agrees are only unlikely to differ: where
the nearest inputs do differ, the search continues there.
"""

import math
import time
import warnings
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
from onnx import NodeProto, ValueInfoProto

from detcli.backend import open_tensors
from detcli.backend.preprocess import DEFAULT, place, to_batch
from detcli.backend.protocol import Tensors
from detcli.commands.verify.report import (
    BisectReport,
    NodeReport,
    TensorReport,
    TensorSide,
)
from detcli.core.comparison import Precision
from detcli.core.device import Device, DeviceOptions
from detcli.core.errors import DetcliWarning, ModelError
from detcli.core.geometry import Picture
from detcli.model.editing import copied
from detcli.model.file import ModelFile
from detcli.model.graph import PASSED_THROUGH, GraphIndex, known_size, needed_nodes, reads, shape
from detcli.model.heads.decode import BOX_ROWS
from detcli.model.inputs import DTYPES
from detcli.run.sides import precision_of

Tensor = npt.NDArray[Any]
Doubles = npt.NDArray[np.float64]
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


class Probe:
    """Runs a network on pictures and returns any of its tensors."""

    def __init__(
        self,
        file: ModelFile,
        size: tuple[int, int],  # height and width of the input
        device: str = "cpu",
        options: DeviceOptions | None = None,
        *,
        at_head: bool,
    ) -> None:
        """Prepare the graph, cut at the detector's head if wanted; `fetch` loads it.

        Raises:
            ModelError: The network does not take pictures.
        """
        given = image_input(file)
        self.name = file.path.name
        self.half = precision_of(file.model) is Precision.FLOAT16  # at least in part
        self.contract = file.contract if at_head else None  # None for a whole graph
        self._preprocessing = file.contract.preprocessing if file.contract else DEFAULT
        model = file.body() if self.contract else file.model
        self.graph = model.graph  # all of it, or the part that makes the head
        self.index = GraphIndex(self.graph)
        self._model = copied(model)
        self._input = given.name
        self._dtype = DTYPES[given.type.tensor_type.elem_type]
        self._batch = known_size(shape(given)[0]) or 1
        self._size, self._device = size, device
        options = options or DeviceOptions()
        # As the backend does it: TensorRT runs a float16 model in float16.
        half = self.half and Device.parse(device).uses_tensorrt
        self._options = replace(options, half=options.half or half)
        self._session: tuple[tuple[str, ...], Tensors] | None = None

    @property
    def outputs(self) -> list[str]:
        """Names of the graph's outputs."""
        return [output.name for output in self.graph.output]

    def fetch(self, picture: Picture, names: Sequence[str]) -> dict[str, Tensor]:
        """Run the network on a picture and return tensors by name, without sequences and maps.

        Raises:
            DeviceError: The device cannot be used.
            InferenceError: The runtime failed.
            ModelError: The runtime refuses the graph.
        """
        wanted = tuple(dict.fromkeys(names))
        if self._session is None or self._session[0] != wanted:
            self._session = None  # frees its memory before the next one takes more
            self._session = wanted, self._open(wanted)
        letterbox = place(picture.size, self._size, self._preprocessing)
        fed = to_batch(picture, letterbox, self._preprocessing, self._dtype, self._batch)
        return self._session[1].run_watched(self._input, fed)

    def _open(self, names: Sequence[str]) -> Tensors:
        """Load the graph with these tensors as outputs; the runtime infers their types."""
        known = {value.name: value for value in self.graph.output}
        outputs = [known.get(name, onnx.ValueInfoProto(name=name)) for name in names]
        del self._model.graph.output[:]
        self._model.graph.output.extend(outputs)
        content = self._model.SerializeToString()
        return open_tensors(self._device, content, self.name, self._options)


def image_input(file: ModelFile) -> ValueInfoProto:
    """The input `[B, 3, H, W]` of a network that takes pictures, as it runs.

    Raises:
        ModelError: The network has no such input, or others as well.
    """
    if file.contract is not None:
        return next(iter(GraphIndex(file.body().graph).image_inputs()))
    inputs = GraphIndex(file.model.graph).image_inputs()
    dims = shape(inputs[0]) if inputs else []
    number = inputs[0].type.tensor_type.elem_type if inputs else 0
    if len(inputs) != 1 or len(dims) != 4 or dims[1] not in {3, None} or number not in DTYPES:
        raise ModelError(
            f"{file.path.name} does not take a picture: it should have one input [B, 3, H, W] of "
            "float32 or float16",
            "see its inputs with detcli inspect",
        )
    return inputs[0]


def compare_tensors(
    name: str, left: Tensor, right: Tensor, limit: float, source: str
) -> TensorReport:
    """Compare two tensors of any number type, in float64; the left one is the reference.

    They agree up to a share of the largest magnitude on the left, the limit.
    """
    absolute = relative = scaled = cosine = None
    agrees = False
    if left.shape == right.shape:
        first, second = left.astype(np.float64), right.astype(np.float64)
        finite = np.isfinite(first) & np.isfinite(second)
        agrees = np.array_equal(first[~finite], second[~finite], equal_nan=True)
        if finite.any():
            first, second = first[finite], second[finite]  # (M,), (M,)
            difference = np.abs(first - second)
            magnitude = np.maximum(np.abs(first), np.abs(second))
            absolute = float(difference.max())
            relative = float((difference / np.where(magnitude > 0, magnitude, 1)).max())
            scaled = absolute / (float(np.abs(first).max()) or float(magnitude.max()) or 1.0)
            cosine = _cosine(first, second)
            agrees = agrees and scaled <= limit
    sides = _side(left), _side(right)
    return TensorReport(name, *sides, absolute, relative, scaled, cosine, agrees, source)


def difference_rank(report: TensorReport) -> tuple[bool, float]:
    """A sort key: reports that agree before those that do not, then by the largest difference."""
    unknown = 0.0 if report.agrees else math.inf
    return not report.agrees, unknown if report.max_scaled is None else report.max_scaled


def _side(tensor: Tensor) -> TensorSide:
    values = tensor.astype(np.float64)
    finite = values[np.isfinite(values)]
    return TensorSide(
        dtype=tensor.dtype.name,
        shape=tuple(tensor.shape),
        nan=int(np.count_nonzero(np.isnan(values))),
        infinite=int(np.count_nonzero(np.isinf(values))),
        least=float(finite.min()) if finite.size else None,
        greatest=float(finite.max()) if finite.size else None,
    )


def _cosine(first: Doubles, second: Doubles) -> float:
    """Cosine of the angle between two vectors: 1 for two zeros, 0 for one."""
    # Scaled, since the squares of large entries would overflow.
    units = [side / (np.abs(side).max() or 1.0) for side in (first, second)]
    lengths = [float(np.linalg.norm(unit)) for unit in units]
    if 0.0 in lengths:
        return float(lengths[0] == lengths[1])
    cosine = float(np.dot(*units)) / (lengths[0] * lengths[1])
    return max(-1.0, min(1.0, cosine))


class TensorPair(NamedTuple):
    """Names, in either graph, of two tensors that should be alike."""

    left: str
    right: str


class OutputComparison:
    """Compares the outputs of two networks, picture by picture.

    Of detectors the heads are compared, in either axis order, boxes and scores separately: a
    score is small next to pixels. Outputs of other networks are paired by name, else by order.

    Raises:
        ModelError: The outputs cannot be paired.
    """

    def __init__(self, left: Probe, right: Probe, limit: float) -> None:
        self.left, self.right, self.limit = left, right, limit
        # The picture on which they differ most, its name, and the pair of tensors.
        self.worst: tuple[Picture, str, TensorPair] | None = None
        self._pairs = self._pair_up()
        self._reports: dict[str, TensorReport] = {}
        self._worst_rank = (False, -1.0)

    @property
    def reports(self) -> tuple[TensorReport, ...]:
        """Each pair, on the picture where it differs most."""
        return tuple(self._reports.values())

    def add(self, picture: Picture, source: str) -> None:
        """Compare on one more picture."""
        left = self.left.fetch(picture, [pair.left for pair in self._pairs])
        right = self.right.fetch(picture, [pair.right for pair in self._pairs])
        pairs = [pair for pair in self._pairs if pair.left in left and pair.right in right]
        if not pairs:
            raise ModelError(
                f"the outputs of {self.left.name} and {self.right.name} are not tensors",
                "see them with detcli inspect",
            )
        for pair in pairs:
            for report in self.compare(pair, left[pair.left], right[pair.right], source):
                known = self._reports.get(report.name, report)
                self._reports[report.name] = max(known, report, key=difference_rank)
                if difference_rank(report) > self._worst_rank:
                    self._worst_rank = difference_rank(report)
                    self.worst = picture, source, pair

    def compare(
        self, pair: TensorPair, left: Tensor, right: Tensor, source: str
    ) -> list[TensorReport]:
        """Compare two outputs; of heads, boxes and scores separately."""
        one, other = self.left.contract, self.right.contract
        if one is None or other is None:
            title = pair.left if pair.left == pair.right else f"{pair.left} and {pair.right}"
            return [compare_tensors(title, left, right, self.limit, source)]
        left, right = (
            np.swapaxes(head, 1, 2) if contract.anchors_first else head
            for head, contract in ((left, one), (right, other))
        )  # (B, 4 + C, N)
        parts = {"scores": slice(BOX_ROWS, None)}
        if one.box_format is other.box_format:  # corners cannot be compared with centres
            parts["boxes"] = slice(BOX_ROWS)
        return [
            compare_tensors(name, left[:, part], right[:, part], self.limit, source)
            for name, part in parts.items()
        ]

    def _pair_up(self) -> tuple[TensorPair, ...]:
        left, right = self.left.outputs, self.right.outputs
        if self.left.contract is not None or len(left) == len(right) == 1:
            return (TensorPair(left[0], right[0]),)
        if common := [name for name in left if name in right]:
            if alone := sorted({*left} ^ {*right}):
                text = f"outputs that only one model has are not compared: {', '.join(alone)}"
                warnings.warn(text, DetcliWarning, stacklevel=3)
            return tuple(TensorPair(name, name) for name in common)
        if len(left) == len(right):
            return tuple(map(TensorPair, left, right))
        raise ModelError(
            f"the outputs of {self.left.name} ({', '.join(left)}) and {self.right.name} "
            f"({', '.join(right)}) cannot be paired",
            "compare two versions of one model",
        )


def bisect(outputs: OutputComparison) -> BisectReport | None:
    """Find the first node that differs, on the picture where the outputs differ most; if any."""
    if outputs.worst is None:
        return None
    search = _Search(outputs, outputs.worst)
    agree = all(report.agrees for report in outputs.reports)
    return search.find_overflow() if agree else search.run()


class _Search:
    """The state of a search."""

    def __init__(self, outputs: OutputComparison, worst: tuple[Picture, str, TensorPair]) -> None:
        self._outputs, self._left, self._right = outputs, outputs.left, outputs.right
        self._picture, self._source, self._target = worst
        self._rounds = 0
        self._deadline = time.monotonic() + MAX_SECONDS
        known = {*self._right.index.producers, self._target.left}
        computed = (node for node in self._left.graph.node if node.op_type != "Constant")
        # Tensors of both graphs, in the order of the left one, by whose names they are known.
        self.common = [name for node in computed for name in node.output if name in known]
        self.reports: dict[str, TensorReport] = {}
        self.unlikely: set[str] = set()  # tensors before one that agrees

    def run(self) -> BisectReport:
        """Walk from the target to the first node that differs."""
        differing = self._target.left
        while time.monotonic() < self._deadline:
            above = self._before(differing)
            likely = [name for name in above if name not in self.unlikely]
            if earlier := self._differing(likely):
                differing = earlier[0]
            elif unknown := [name for name in likely if name not in self.reports]:
                self._measure(_spread(unknown))
            else:
                *_, inputs = self._between(differing)
                if unknown := [name for name in inputs if name not in self.reports]:
                    self._measure(unknown)
                elif hidden := self._differing(inputs):
                    differing = hidden[0]
                else:
                    return self._conclude(differing)
        return self._nothing(f"{differing} differs; {GIVEN_UP}", self.reports.get(differing))

    def find_overflow(self) -> BisectReport:
        """Search for float16 overflows that the outputs do not show.

        On the CPU, ONNX Runtime computes float16 nodes in float32 and rounds graph outputs only.
        So an overflow between two nodes shows on a GPU, or where its tensor is made an output.
        """
        for probe in (self._left, self._right):
            made = [name for node in probe.graph.node for name in node.output if name]
            for start in range(0, len(made) if probe.half else 0, TENSORS_PER_SCAN):
                if time.monotonic() >= self._deadline:
                    searched = f"{start} of {len(made)} tensors of {probe.name} do not overflow"
                    return self._nothing(f"the outputs agree, and {searched}; {GIVEN_UP}")
                part = made[start : start + TENSORS_PER_SCAN]
                self._rounds += 1
                tensors = probe.fetch(self._picture, part)
                for name in (name for name in part if _overflows(tensors.get(name))):
                    if found := self._hidden(probe, name):
                        return found
        return self._nothing("the outputs agree")

    def _hidden(self, probe: Probe, name: str) -> BisectReport | None:
        """Report an overflow that the outputs do not show; None if the other side has it too."""
        common = self._target.left if name == self._target.right else name
        if common in self.common:
            self._measure([common])
            if self.reports[common].agrees:
                return None  # a mask, say, where minus infinity is intended
            found = self._conclude(common)
            return replace(found, finding=f"{found.finding}; {HIDDEN}")
        node = node_report(probe.index.producers[name])
        return self._nothing(f"{name} overflows in {probe.name}; {HIDDEN}", node=node)

    def _conclude(self, differing: str) -> BisectReport:
        """Compare a tensor and its inputs in one run, and report the node between them."""
        left, right, inputs = self._between(differing)
        self._measure([differing, *inputs])
        output = self.reports[differing]
        if output.agrees:
            return self._nothing(FUSED, output)
        if not left:
            return self._nothing(f"{differing} is a constant", output)
        titles = self._left.name, self._right.name
        if titles[0] == titles[1]:
            titles = "the first", "the second"
        graphs = Graphs(self._left.index, self._right.index, *titles)
        return BisectReport(
            self._source,
            *graphs.explain(left, right, output),
            output=output,
            inputs=tuple(self.reports[name] for name in inputs if name in self.reports),
            left_nodes=tuple(map(node_report, left)),
            right_nodes=tuple(map(node_report, right)),
            compared=len(self.reports),
            rounds=self._rounds,
        )

    def _nothing(
        self, why: str, output: TensorReport | None = None, node: NodeReport | None = None
    ) -> BisectReport:
        compared = 0 if output is None else 1
        return BisectReport(self._source, node, why, output, compared=compared, rounds=self._rounds)

    def _measure(self, names: Sequence[str]) -> None:
        """Compare tensors, read in one run."""
        self._rounds += 1
        limit = self._outputs.limit
        left = self._left.fetch(self._picture, names)
        right = self._right.fetch(self._picture, [self._in_right(name) for name in names])
        for name in names:
            other = self._in_right(name)
            if name not in left or other not in right:  # a sequence, say
                self.common.remove(name)
                continue
            report = compare_tensors(name, left[name], right[other], limit, self._source)
            if name == self._target.left:
                parts = self._outputs.compare(self._target, left[name], right[other], self._source)
                report = max(parts, key=difference_rank)
            self.reports[name] = report
            # Shapes and NaN agree whatever the values they come from.
            finite = report.max_absolute is not None
            if report.agrees and finite and report.left.dtype.startswith("float"):
                self.unlikely.update(self._before(name))

    def _in_right(self, name: str) -> str:
        """The name of a tensor in the right graph, which only differs for the heads."""
        return self._target.right if name == self._target.left else name

    def _before(self, name: str) -> list[str]:
        """Common tensors that a tensor is computed from, in the order of the left graph."""
        nodes, _ = needed_nodes(self._left.graph, name)
        # Outputs of one node do not come before one another.
        made = {output for node in nodes if name not in node.output for output in node.output}
        return [other for other in self.common if other in made]

    def _differing(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if name in self.reports and not self.reports[name].agrees]

    def _between(self, name: str) -> tuple[Nodes, Nodes, list[str]]:
        """The nearest common tensors before a tensor, after the nodes between in either graph."""
        known = {*self.common} - {self._target.left, self._target.right}
        left, reached = nodes_between(self._left.index, name, known)
        right, others = nodes_between(self._right.index, self._in_right(name), known)
        return left, right, [one for one in self.common if one in reached | others]


def _overflows(tensor: Tensor | None) -> bool:
    if tensor is None or tensor.dtype != np.float16:
        return False
    return not bool(np.isfinite(tensor).all())


def _spread(names: Sequence[str]) -> list[str]:
    """At most TENSORS_PER_ROUND of the names, evenly spread, including the last one."""
    count = min(TENSORS_PER_ROUND, len(names))
    return [names[(index + 1) * len(names) // count - 1] for index in range(count)]


def node_report(node: NodeProto) -> NodeReport:
    """A node by its name, or by its first output if it has none."""
    return NodeReport(node.name or node.output[0], node.op_type)


def nodes_between(
    index: GraphIndex, tensor: str, known: Collection[str]
) -> tuple[list[NodeProto], set[str]]:
    """The nodes, in order, that compute a tensor from known ones, and the known ones they read."""
    chosen, reached, waiting = set(), set(), [tensor]
    while waiting:
        node = index.producers.get(waiting.pop())
        if node is None or node.output[0] in chosen:
            continue
        chosen.add(node.output[0])
        for name in reads(node):
            if name in known:
                reached.add(name)
            else:
                waiting.append(name)
    nodes = [node for node in index.graph.node if node.output and node.output[0] in chosen]
    return nodes, reached


class Graphs(NamedTuple):
    """Two graphs, and what they are called."""

    left: GraphIndex
    right: GraphIndex
    title: str
    other: str

    def explain(self, left: Nodes, right: Nodes, output: TensorReport) -> tuple[NodeReport, str]:
        """The node that causes a difference, of those before it, and what differs about it."""
        # Constants are compared where they are read, since they may be nodes or initializers.
        ours, theirs = (
            {node.output[0]: node for node in side if node.op_type != "Constant"}
            for side in (left, right)
        )
        for made, node in ours.items():
            if made in theirs:
                if why := self._difference(node, theirs[made]):
                    return node_report(node), why
            elif node.op_type not in PASSED_THROUGH:
                return node_report(node), f"the node is missing in {self.other}"
        for made, node in theirs.items():
            if made not in ours and node.op_type not in PASSED_THROUGH:
                return node_report(node), f"the node is missing in {self.title}"
        return node_report(left[-1]), self._numbers(output)

    def _difference(self, one: NodeProto, other: NodeProto) -> str:
        """How two nodes differ; empty if they do not."""
        if one.op_type != other.op_type:
            passing = {one.op_type, other.op_type} <= PASSED_THROUGH
            return "" if passing else f"it is {other.op_type} in {self.other}"
        # The tensors behind casts, identities, quantisation and dequantisation.
        read = [self.left.behind(name, PASSED_THROUGH) for name in one.input]
        others = [self.right.behind(name, PASSED_THROUGH) for name in other.input]
        if read != others and sorted(read) == sorted(others):
            return f"its inputs are swapped in {self.other}: {', '.join(others)}"
        # Branches of an If or Loop read more, and constants of one name may differ.
        captured = {*reads(one)} & {*reads(other)} - {*one.input, *other.input}
        places = [*zip(read, others, strict=False), *((name, name) for name in sorted(captured))]
        for name, counterpart in places:
            if why := self._input_difference(name, counterpart):
                return why
        if len(read) != len(others):
            return f"it has {len(read)} inputs, and {len(others)} in {self.other}"
        attributes, changed = (
            {(a.name, a.SerializeToString(deterministic=True)) for a in node.attribute}
            for node in (one, other)
        )
        if attributes != changed and one.op_type not in PASSED_THROUGH:
            names = sorted({name for name, _ in attributes ^ changed})
            return f"its attributes differ in {self.other}: {', '.join(names)}"
        return ""

    def _input_difference(self, name: str, counterpart: str) -> str:
        left, right = self.left.array(name), self.right.array(counterpart)
        if left is not None and right is not None:
            if _are_alike(left, right):
                return ""
            report = compare_tensors(name, left, right, 0.0, "")
            one, other = (side.nan + side.infinite for side in report.sides)
            how_far = "" if report.max_absolute is None else f" by up to {report.max_absolute:.3g}"
            if one != other:
                how_far = f", where {other} values are not finite instead of {one}"
            return f"its constant input {name} differs in {self.other}{how_far}"
        known = name in self.right.producers or counterpart in self.left.producers
        if name != counterpart and known:
            return f"it reads {name}, but {counterpart} in {self.other}"
        return ""

    def _numbers(self, output: TensorReport) -> str:
        """What the values of a tensor show, where the node is the same in both graphs."""
        for side, other, title in (
            (output.left, output.right, self.title),
            (output.right, output.left, self.other),
        ):
            if side.nan + side.infinite > other.nan + other.infinite:
                reach = max(abs(other.least or 0.0), abs(other.greatest or 0.0))
                text = f"{side.infinite} infinities and {side.nan} NaN in {title} only"
                if reach <= HALF_LIMIT:
                    return text
                limit = f"the float16 limit is {HALF_LIMIT:.0f}"
                return f"{text}: {limit}, the other side has {reach:.6g}"
        return (
            "the node is the same on both sides: the precision, runtime or device makes it differ"
        )


def _are_alike(left: Tensor, right: Tensor) -> bool:
    """Whether constants are the same up to rounding, value by value.

    Not relative to the largest value, since a small weight may have a large effect.
    """
    if left.shape != right.shape:
        return False
    if (left.dtype.kind == "f") != (right.dtype.kind == "f"):
        return True  # the scale of a quantised constant is another input
    half = np.float16 in {left.dtype.type, right.dtype.type}
    rounding, smallest = (2.0**-10, 1e-7) if half else (1e-5, 0.0)
    one, other = left.astype(np.float64), right.astype(np.float64)
    return np.allclose(one, other, rtol=rounding, atol=smallest, equal_nan=True)
