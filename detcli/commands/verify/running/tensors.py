"""Compares tensors: two arrays that should be alike, and the raw outputs of two networks."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx

from detcli.backend import open_tensors
from detcli.backend.device import Device
from detcli.backend.preprocess import DEFAULT, place, to_batch
from detcli.backend.protocol import Tensors
from detcli.commands.shared.comparison import Precision
from detcli.commands.shared.sides import precision_of
from detcli.commands.verify.report import TensorReport, TensorSide
from detcli.commands.verify.running.plan import SidePlan, image_input
from detcli.errors import DetcliWarning, ModelError
from detcli.geometry import Picture
from detcli.model.editing import copied
from detcli.model.graph import GraphIndex, known_size, shape
from detcli.model.heads.head import BOX_ROWS
from detcli.model.inputs import DTYPES

Tensor = npt.NDArray[Any]
Doubles = npt.NDArray[np.float64]


class Probe:
    """Runs a network on pictures and returns any of its tensors."""

    def __init__(self, side: SidePlan, size: tuple[int, int], *, at_head: bool) -> None:
        """Prepare the graph; `fetch` loads it.

        Args:
            side: The model and its device.
            size: Height and width of the input.
            at_head: Cut the graph at the detector's head, if it has one.

        Raises:
            ModelError: The network does not take pictures.
        """
        file = side.file
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
        self._size, self._device = size, side.device
        # As the backend does it: TensorRT runs a float16 model in float16.
        half = self.half and Device.parse(side.device).uses_tensorrt
        self._options = replace(side.options, half=side.options.half or half)
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


def compare_tensors(
    name: str, left: Tensor, right: Tensor, limit: float, source: str
) -> TensorReport:
    """Compare two tensors, in float64.

    Args:
        name: Their name in the report.
        left: The reference, of any number type.
        right: The other one.
        limit: Largest difference that agrees, as a share of the largest magnitude on the left.
        source: The input that they were computed from.
    """
    sides = _side(left), _side(right)
    finite, same_elsewhere = None, False
    if left.shape == right.shape:
        first, second = left.astype(np.float64), right.astype(np.float64)
        finite = np.isfinite(first) & np.isfinite(second)
        same_elsewhere = np.array_equal(first[~finite], second[~finite], equal_nan=True)
    if finite is None or not finite.any():
        return TensorReport(name, *sides, None, None, None, None, same_elsewhere, source)
    first, second = first[finite], second[finite]  # (M,), (M,)
    difference = np.abs(first - second)
    magnitude = np.maximum(np.abs(first), np.abs(second))
    absolute = float(difference.max())
    largest = float(np.abs(first).max()) or float(magnitude.max()) or 1.0
    relative = difference / np.where(magnitude > 0, magnitude, 1)
    scaled = absolute / largest
    return TensorReport(
        name,
        *sides,
        max_absolute=absolute,
        max_relative=float(relative.max()),
        max_scaled=scaled,
        cosine=_cosine(first, second),
        agrees=bool(same_elsewhere and scaled <= limit),
        source=source,
    )


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
        """Compare on one more picture.

        Raises:
            DeviceError: A device cannot be used.
            InferenceError: The runtime failed.
            ModelError: The runtime refuses a graph, or the outputs are not tensors.
        """
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
        return [
            compare_tensors(name, one, other, self.limit, source)
            for name, (one, other) in self._parts(pair, left, right).items()
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

    def _parts(
        self, pair: TensorPair, left: Tensor, right: Tensor
    ) -> dict[str, tuple[Tensor, Tensor]]:
        """The tensors to compare for a pair, by their name in reports."""
        one, other = self.left.contract, self.right.contract
        if one is None or other is None:
            title = pair.left if pair.left == pair.right else f"{pair.left} and {pair.right}"
            return {title: (left, right)}
        heads = [
            np.swapaxes(head, 1, 2) if contract.anchors_first else head
            for head, contract in ((left, one), (right, other))
        ]  # (B, 4 + C, N)
        parts = {"scores": (heads[0][:, BOX_ROWS:], heads[1][:, BOX_ROWS:])}
        if one.box_format is other.box_format:  # corners cannot be compared with centres
            parts["boxes"] = (heads[0][:, :BOX_ROWS], heads[1][:, :BOX_ROWS])
        return parts
