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
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from onnx import NodeProto, ValueInfoProto

from detcli.backend import open_tensors
from detcli.backend.preprocess import DEFAULT, fit_letterbox, to_batch
from detcli.backend.protocol import Tensors
from detcli.commands.verify.report import BisectReport, NodeReport, TensorReport, TensorSide
from detcli.config.device import Device, DeviceOptions
from detcli.core.errors import DetcliWarning, ModelError
from detcli.data.geometry import Picture
from detcli.model.editing import copied
from detcli.model.file import ModelFile
from detcli.model.graph import PASSED_THROUGH, GraphIndex, known_size, reads, shape
from detcli.model.heads import BOX_ROWS
from detcli.model.inputs import DTYPES
from detcli.model.precision import Precision, precision_of

Tensor = npt.NDArray[Any]
Nodes = Sequence[NodeProto]
Session = tuple[Sequence[str], Tensors]
TensorPair = tuple[str, str]
"""Names, in either graph, of two tensors that should be alike."""

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


class Probe:
    """Runs a network on pictures and returns any of its tensors."""

    def __init__(
        self,
        file: ModelFile,
        size: tuple[int, int],  # height and width of the input
        device: Device,
        options: DeviceOptions,
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
        self._model = copied(file.body() if self.contract else file.model)
        self.outputs = [*self._model.graph.output]
        self.index = GraphIndex(self._model.graph)  # of all of it, or the part that makes the head
        self._input = given.name
        self._dtype = DTYPES[given.type.tensor_type.elem_type]
        self._batch = known_size(shape(given)[0]) or 1
        self._size, self._device = size, device
        # As the backend does it: TensorRT runs a float16 model in float16.
        half = options.half or (self.half and device.uses_tensorrt)
        self._options = replace(options, half=half)
        self._session: Session | None = None

    def fetch(self, picture: Picture, names: Iterable[str]) -> dict[str, Tensor]:
        """Run the network on a picture and return tensors by name, without sequences and maps.

        Raises:
            DeviceError: The device cannot be used.
            InferenceError: The runtime failed.
            ModelError: The runtime refuses the graph.
        """
        wanted = [*dict.fromkeys(names)]
        if self._session is None or self._session[0] != wanted:
            self._session = None  # frees its memory before the next one takes more
            # The runtime infers the types of tensors that are not outputs yet.
            known = {value.name: value for value in self.outputs}
            del self._model.graph.output[:]
            self._model.graph.output.extend(
                known.get(name, ValueInfoProto(name=name)) for name in wanted
            )
            content = self._model.SerializeToString()
            session = open_tensors(self._device, content, self.name, self._options)
            self._session = wanted, session
        letterbox = fit_letterbox(picture.size, self._size, self._preprocessing)
        model_input = to_batch(picture, letterbox, self._preprocessing, self._dtype, self._batch)
        return self._session[1].run_watched(self._input, model_input)


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


def rank(report: TensorReport) -> tuple[bool, float]:
    """A sort key: reports that agree before those that do not, then by the largest difference."""
    unknown = 0.0 if report.agrees else math.inf
    return not report.agrees, unknown if report.max_scaled is None else report.max_scaled


def _side(tensor: Tensor) -> TensorSide:
    values = tensor.astype(np.float64)
    finite = values[np.isfinite(values)]
    return TensorSide(
        dtype=tensor.dtype.name,
        shape=tuple(tensor.shape),
        nan=int(np.isnan(values).sum()),
        infinite=int(np.isinf(values).sum()),
        least=float(finite.min()) if finite.size else None,
        greatest=float(finite.max()) if finite.size else None,
    )


def _cosine(first: Tensor, second: Tensor) -> float:
    """Cosine of the angle between two vectors: 1 for two zeros, 0 for one."""
    # Scaled, since the squares of large entries would overflow.
    units = [side / (np.abs(side).max() or 1.0) for side in (first, second)]
    lengths = float(np.linalg.norm(units[0]) * np.linalg.norm(units[1]))
    if not lengths:
        return float(not first.any() and not second.any())
    return float(np.clip(np.dot(*units) / lengths, -1, 1))


class OutputComparison:
    """Compares the outputs of two networks, picture by picture.

    Of detectors the heads are compared, in either axis order, boxes and scores separately: a
    score is small next to pixels. Outputs of other networks are paired by name, else by order.

    Raises:
        ModelError: The outputs cannot be paired.
    """

    def __init__(self, left: Probe, right: Probe, limit: float) -> None:
        self.left, self.right, self.limit = left, right, limit
        # How they differ most, on which picture, and the pair of tensors.
        self.worst: tuple[TensorReport, Picture, TensorPair] | None = None
        self._pairs = self._pair_up()
        self._reports: dict[str, TensorReport] = {}

    @property
    def reports(self) -> tuple[TensorReport, ...]:
        """Each pair, on the picture where it differs most."""
        return tuple(self._reports.values())

    def add(self, picture: Picture, source: str) -> None:
        """Compare on one more picture."""
        left = self.left.fetch(picture, [name for name, _ in self._pairs])
        right = self.right.fetch(picture, [name for _, name in self._pairs])
        pairs = [(one, other) for one, other in self._pairs if one in left and other in right]
        if not pairs:
            raise ModelError(
                f"the outputs of {self.left.name} and {self.right.name} are not tensors",
                "see them with detcli inspect",
            )
        for pair in pairs:
            for report in self.compare(pair, left[pair[0]], right[pair[1]], source):
                known = self._reports.get(report.name, report)
                self._reports[report.name] = max(known, report, key=rank)
                if self.worst is None or rank(report) > rank(self.worst[0]):
                    self.worst = report, picture, pair

    def compare(
        self, pair: TensorPair, left: Tensor, right: Tensor, source: str
    ) -> list[TensorReport]:
        """Compare two outputs; of heads, boxes and scores separately."""
        one, other = self.left.contract, self.right.contract
        if one is None or other is None:
            title = " and ".join(dict.fromkeys(pair))
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

    def _pair_up(self) -> list[TensorPair]:
        left, right = ([one.name for one in side.outputs] for side in (self.left, self.right))
        if common := [name for name in left if name in right]:
            if alone := sorted({*left} ^ {*right}):
                text = f"outputs that only one model has are not compared: {', '.join(alone)}"
                warnings.warn(text, DetcliWarning, stacklevel=3)
            return [(name, name) for name in common]
        if len(left) == len(right):
            return [*zip(left, right, strict=True)]
        raise ModelError(
            f"the outputs of {self.left.name} ({', '.join(left)}) and {self.right.name} "
            f"({', '.join(right)}) cannot be paired",
            "compare two versions of one model",
        )


def bisect(outputs: OutputComparison) -> BisectReport | None:
    """Find the first node that differs, on the picture where the outputs differ most; if any."""
    if outputs.worst is None:
        return None
    report, picture, pair = outputs.worst
    search = _Search(outputs, picture, report.source, pair)
    return search.find_overflow() if report.agrees else search.run()


class _Search:
    """The state of a search."""

    def __init__(
        self, outputs: OutputComparison, picture: Picture, source: str, target: TensorPair
    ) -> None:
        self._outputs, self._left, self._right = outputs, outputs.left, outputs.right
        self._picture, self._source = picture, source
        self._target, self._counterpart = target  # the outputs, whose names alone may differ
        self._rounds = 0
        self._deadline = time.monotonic() + MAX_SECONDS
        known = {*self._right.index.producers, self._target}
        computed = (node for node in self._left.index.graph.node if node.op_type != "Constant")
        # Tensors of both graphs, in the order of the left one, by whose names they are known.
        self._common = [name for node in computed for name in node.output if name in known]
        self._reports: dict[str, TensorReport] = {}
        self._unlikely: set[str] = set()  # tensors before one that agrees

    def run(self) -> BisectReport:
        """Walk from the target to the first node that differs."""
        differing = self._target
        while time.monotonic() < self._deadline:
            likely = [one for one in self._before(differing) if one not in self._unlikely]
            if earlier := self._differing(likely):
                differing = earlier[0]
            elif unknown := [name for name in likely if name not in self._reports]:
                count = min(TENSORS_PER_ROUND, len(unknown))  # evenly spread, with the last one
                self._measure([unknown[(n + 1) * len(unknown) // count - 1] for n in range(count)])
            else:
                *_, inputs = self._between(differing)
                if unknown := [name for name in inputs if name not in self._reports]:
                    self._measure(unknown)
                elif hidden := self._differing(inputs):
                    differing = hidden[0]
                else:
                    return self._conclude(differing)
        return self._nothing(f"{differing} differs; {GIVEN_UP}", self._reports.get(differing))

    def find_overflow(self) -> BisectReport:
        """Search for float16 overflows that the outputs do not show.

        On the CPU, ONNX Runtime computes float16 nodes in float32 and rounds graph outputs only.
        So an overflow between two nodes shows on a GPU, or where its tensor is made an output.
        """
        for probe in (self._left, self._right):
            made = [*probe.index.producers] if probe.half else []
            for start in range(0, len(made), TENSORS_PER_SCAN):
                if time.monotonic() >= self._deadline:
                    searched = f"{start} of {len(made)} tensors of {probe.name} do not overflow"
                    return self._nothing(f"the outputs agree, and {searched}; {GIVEN_UP}")
                self._rounds += 1
                part = made[start : start + TENSORS_PER_SCAN]
                for name, tensor in probe.fetch(self._picture, part).items():
                    overflows = tensor.dtype == np.float16 and not np.isfinite(tensor).all()
                    if overflows and (found := self._hidden(probe, name)):
                        return found
        return self._nothing("the outputs agree")

    def _hidden(self, probe: Probe, name: str) -> BisectReport | None:
        """Report an overflow that the outputs do not show; None if the other side has it too."""
        common = self._target if name == self._counterpart else name
        if common not in self._common:
            node = node_report(probe.index.producers[name])
            return self._nothing(f"{name} overflows in {probe.name}; {HIDDEN}", node=node)
        self._measure([common])
        if self._reports[common].agrees:
            return None  # a mask, say, where minus infinity is intended
        found = self._conclude(common)
        return replace(found, finding=f"{found.finding}; {HIDDEN}")

    def _conclude(self, differing: str) -> BisectReport:
        """Compare a tensor and its inputs in one run, and report the node between them."""
        left, right, inputs = self._between(differing)
        self._measure([differing, *inputs])
        output = self._reports[differing]
        if output.agrees:
            return self._nothing(FUSED, output)
        if not left:
            return self._nothing(f"{differing} is a constant", output)
        titles = [self._left.name, self._right.name]
        if titles[0] == titles[1]:
            titles = ["the first", "the second"]
        graphs = Graphs(self._left.index, self._right.index, *titles)
        return BisectReport(
            self._source,
            *next(graphs.explain(left, right, output)),
            output=output,
            inputs=tuple(self._reports[name] for name in inputs if name in self._reports),
            left_nodes=tuple(map(node_report, left)),
            right_nodes=tuple(map(node_report, right)),
            compared=len(self._reports),
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
        others = {name: self._counterpart if name == self._target else name for name in names}
        left = self._left.fetch(self._picture, names)
        right = self._right.fetch(self._picture, others.values())
        for name, other in others.items():
            if name not in left or other not in right:  # a sequence, say
                self._common.remove(name)
                continue
            found = left[name], right[other]
            report = compare_tensors(name, *found, self._outputs.limit, self._source)
            if name == self._target:
                parts = self._outputs.compare((name, other), *found, self._source)
                report = max(parts, key=rank)
            self._reports[name] = report
            # Shapes and NaN agree whatever the values they come from.
            finite = report.max_absolute is not None
            if report.agrees and finite and report.left.dtype.startswith("float"):
                self._unlikely.update(self._before(name))

    def _before(self, name: str) -> list[str]:
        """Common tensors that a tensor is computed from, in the order of the left graph."""
        nodes, _ = nodes_between(self._left.index, name)
        # Outputs of one node do not come before one another.
        made = {output for node in nodes if name not in node.output for output in node.output}
        return [other for other in self._common if other in made]

    def _differing(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if name in self._reports and not self._reports[name].agrees]

    def _between(self, name: str) -> tuple[Nodes, Nodes, list[str]]:
        """The nearest common tensors before a tensor, after the nodes between in either graph."""
        known = {*self._common} - {self._target, self._counterpart}
        counterpart = self._counterpart if name == self._target else name
        left, reached = nodes_between(self._left.index, name, known)
        right, others = nodes_between(self._right.index, counterpart, known)
        return left, right, [one for one in self._common if one in reached | others]


def node_report(node: NodeProto) -> NodeReport:
    """A node by its name, or by its first output if it has none."""
    return NodeReport(node.name or node.output[0], node.op_type)


def nodes_between(
    index: GraphIndex, tensor: str, known: Collection[str] = ()
) -> tuple[Nodes, set[str]]:
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

    def explain(
        self, left: Nodes, right: Nodes, output: TensorReport
    ) -> Iterator[tuple[NodeReport, str]]:
        """Nodes before a difference that may cause it, and why: the likeliest first."""
        # Constants are compared where they are read, since they may be nodes or initializers.
        ours, theirs = (
            {node.output[0]: node for node in side if node.op_type != "Constant"}
            for side in (left, right)
        )
        for made, node in ours.items():
            if made in theirs:
                for why in self._differences(node, theirs[made]):
                    yield node_report(node), why
            elif node.op_type not in PASSED_THROUGH:
                yield node_report(node), f"the node is missing in {self.other}"
        for made, node in theirs.items():
            if made not in ours and node.op_type not in PASSED_THROUGH:
                yield node_report(node), f"the node is missing in {self.title}"
        yield node_report(left[-1]), self._numbers(output)

    def _differences(self, one: NodeProto, other: NodeProto) -> Iterator[str]:
        """How two nodes differ."""
        if one.op_type != other.op_type:
            if not {one.op_type, other.op_type} <= PASSED_THROUGH:
                yield f"it is {other.op_type} in {self.other}"
            return
        # The tensors behind casts, identities, quantisation and dequantisation.
        read = [self.left.behind(name, PASSED_THROUGH) for name in one.input]
        others = [self.right.behind(name, PASSED_THROUGH) for name in other.input]
        if read != others and sorted(read) == sorted(others):
            yield f"its inputs are swapped in {self.other}: {', '.join(others)}"
        # Branches of an If or Loop read more, and constants of one name may differ.
        captured = {*reads(one)} & {*reads(other)} - {*one.input, *other.input}
        for pair in (
            *zip(read, others, strict=False),
            *((name, name) for name in sorted(captured)),
        ):
            yield from self._other_inputs(*pair)
        if len(read) != len(others):
            yield f"it has {len(read)} inputs, and {len(others)} in {self.other}"
        attributes, changed = (
            {(a.name, a.SerializeToString(deterministic=True)) for a in node.attribute}
            for node in (one, other)
        )
        if attributes != changed and one.op_type not in PASSED_THROUGH:
            names = sorted({name for name, _ in attributes ^ changed})
            yield f"its attributes differ in {self.other}: {', '.join(names)}"

    def _other_inputs(self, name: str, counterpart: str) -> Iterator[str]:
        left, right = self.left.array(name), self.right.array(counterpart)
        if left is None or right is None:
            known = name in self.right.producers or counterpart in self.left.producers
            if name != counterpart and known:
                yield f"it reads {name}, but {counterpart} in {self.other}"
        elif not _are_alike(left, right):
            report = compare_tensors(name, left, right, 0.0, "")
            one, other = (side.nan + side.infinite for side in (report.left, report.right))
            how_far = "" if report.max_absolute is None else f" by up to {report.max_absolute:.3g}"
            if one != other:
                how_far = f", where {other} values are not finite instead of {one}"
            yield f"its constant input {name} differs in {self.other}{how_far}"

    def _numbers(self, output: TensorReport) -> str:
        """What the values of a tensor show, where the node is the same in both graphs."""
        left, right = output.left, output.right
        for side, other, title in ((left, right, self.title), (right, left, self.other)):
            if side.nan + side.infinite > other.nan + other.infinite:
                reach = max(abs(other.least or 0.0), abs(other.greatest or 0.0))
                text = f"{side.infinite} infinities and {side.nan} NaN in {title} only"
                if reach <= HALF_LIMIT:
                    return text
                limit = f"the float16 limit is {HALF_LIMIT:.0f}"
                return f"{text}: {limit}, the other side has {reach:.6g}"
        return ALIKE


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
