"""Raw outputs of two networks, compared image by image."""

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from onnx import ValueInfoProto

from detcli.backend import open_tensors
from detcli.backend.preprocess import DEFAULT, fit_letterbox, to_batch
from detcli.backend.protocol import Tensors
from detcli.commands.verify.report import TensorReport, TensorSide
from detcli.config.device import Device, DeviceOptions
from detcli.core.errors import DetcliWarning, ModelError
from detcli.data.geometry import Image
from detcli.model.contract import Contract, Preprocessing
from detcli.model.editing import copied
from detcli.model.file import ModelFile
from detcli.model.graph import GraphIndex, known_size, shape
from detcli.model.heads import BOX_COORDINATES
from detcli.model.inputs import DTYPES
from detcli.model.precision import Precision, precision_of

Tensor = npt.NDArray[Any]


class TensorPair(NamedTuple):
    """Names, in the left and in the right graph, of two tensors that should be alike."""

    left: str
    right: str


class _NetworkInput(NamedTuple):
    """The input of a network, and how an image is converted to it."""

    name: str
    dtype: str
    batch_size: int
    size: tuple[int, int]  # height and width
    preprocessing: Preprocessing

    def tensor_of(self, image: Image) -> Tensor:
        """Convert an image to a batch `(B, 3, H, W)`, which holds it B times."""
        letterbox = fit_letterbox(image.size, self.size, self.preprocessing)
        return to_batch(image, letterbox, self.preprocessing, self.dtype, self.batch_size)


class _Session(NamedTuple):
    """A loaded graph, and the tensors that are its outputs."""

    names: Sequence[str]
    tensors: Tensors


class Probe:
    """Runs a network on images and returns any of its tensors.

    ONNX Runtime only returns the outputs of a graph. So the graph is loaded with the tensors that
    are asked for as its outputs.
    """

    def __init__(
        self,
        file: ModelFile,
        size: tuple[int, int],
        device: Device,
        options: DeviceOptions,
        *,
        at_head: bool,
    ) -> None:
        """Prepare the graph, which is only loaded when tensors are asked for.

        Args:
            file: The model.
            size: Height and width of the input.
            device: Where the network runs.
            options: How it runs there.
            at_head: Whether to cut the graph of a detector at its head, so that its outputs are
                boxes and scores, and not the detections selected from these; other graphs stay
                whole.

        Raises:
            ModelError: The network does not take images.
        """
        self._input = _describe_input(file, size)
        self.name = file.path.name
        # In some of its nodes or in all.
        self.has_float16 = precision_of(file.model) is Precision.FLOAT16

        model = file.model
        self.contract: Contract | None = None  # how to read the head; None if the graph stays whole
        if at_head and file.contract is not None:
            self.contract = file.contract
            model = file.body()
        self._model = copied(model)
        self.outputs = list(self._model.graph.output)
        self.index = GraphIndex(self._model.graph)

        self._device = device
        # As the backend does it: TensorRT runs a float16 model in float16.
        runs_in_half = options.half or (self.has_float16 and device.uses_tensorrt)
        self._options = replace(options, half=runs_in_half)
        self._session: _Session | None = None

    def fetch(self, image: Image, names: Iterable[str]) -> dict[str, Tensor]:
        """Run the network on an image and return some of its tensors.

        The graph is loaded again only if the tensors that are asked for differ from before.

        Args:
            image: The image.
            names: The tensors to return.

        Returns:
            The tensors by name; a sequence or a map is left out, as it is not a tensor.

        Raises:
            DeviceError: The device cannot be used.
            InferenceError: The runtime failed.
            ModelError: The runtime refuses the graph.
        """
        unique_names = list(dict.fromkeys(names))
        if self._session is None or self._session.names != unique_names:
            self._session = None  # frees its memory before the next one takes more
            self._session = _Session(unique_names, self._open_session(unique_names))
        return self._session.tensors.run_watched(self._input.name, self._input.tensor_of(image))

    def _open_session(self, names: Sequence[str]) -> Tensors:
        """Load the graph with these tensors as its outputs."""
        # Outputs of the graph keep their types; the runtime infers those of other tensors.
        typed_outputs = {value.name: value for value in self.outputs}
        del self._model.graph.output[:]
        for name in names:
            output = typed_outputs.get(name, ValueInfoProto(name=name))
            self._model.graph.output.append(output)
        content = self._model.SerializeToString()
        return open_tensors(self._device, content, self.name, self._options)


def _describe_input(file: ModelFile, size: tuple[int, int]) -> _NetworkInput:
    """Describe the input of a network that takes images of a size.

    A network that is not a detector takes them as Ultralytics' models do.

    Raises:
        ModelError: The network does not take images.
    """
    network_input = image_input(file)
    preprocessing = DEFAULT
    if file.contract is not None:
        preprocessing = file.contract.preprocessing
    return _NetworkInput(
        name=network_input.name,
        dtype=DTYPES[network_input.type.tensor_type.elem_type],
        batch_size=known_size(shape(network_input)[0]) or 1,
        size=size,
        preprocessing=preprocessing,
    )


def image_input(file: ModelFile) -> ValueInfoProto:
    """Return the input `[B, 3, H, W]` of a network that takes images.

    Raises:
        ModelError: The network has no such input, or it has other inputs as well.
    """
    if file.contract is not None:
        # The graph that detcli runs for a detector has one input, for images.
        inputs = GraphIndex(file.body().graph).image_inputs()
        return inputs[0]

    # The file is not prepared for detcli, so its graph may have any inputs.
    inputs = GraphIndex(file.model.graph).image_inputs()
    if len(inputs) != 1 or not _takes_image(inputs[0]):
        raise ModelError(
            f"{file.path.name} does not take an image: it should have one input [B, 3, H, W] of "
            "float32 or float16",
            "see its inputs with detcli inspect",
        )
    return inputs[0]


def _takes_image(network_input: ValueInfoProto) -> bool:
    """Whether an input is `[B, 3, H, W]` of a number type that images can be converted to."""
    dims = shape(network_input)
    has_channels = len(dims) == 4 and dims[1] in {3, None}
    return has_channels and network_input.type.tensor_type.elem_type in DTYPES


class _Differences(NamedTuple):
    """How much the values of two tensors differ, as in `TensorReport`."""

    max_absolute: float
    max_relative: float
    max_scaled: float
    cosine: float


def compare_tensors(
    name: str, left: Tensor, right: Tensor, limit: float, source: str
) -> TensorReport:
    """Compare two tensors that should be alike, of any number types, in float64.

    They agree if they have the same shape, the same infinities and NaN, and if no values differ by
    more than the limit. The left one is the reference for the limit.

    Args:
        name: The name of both in the report.
        left: The tensor of the first network.
        right: The tensor of the second network.
        limit: The largest difference that is allowed, as a share of the largest magnitude on the
            left.
        source: The file of the image, for the report.
    """
    without_figures = TensorReport(
        name=name,
        left=_summarize_tensor(left),
        right=_summarize_tensor(right),
        max_absolute=None,
        max_relative=None,
        max_scaled=None,
        cosine=None,
        agrees=False,
        source=source,
    )
    if left.shape != right.shape:
        return without_figures
    left_values = left.astype(np.float64)
    right_values = right.astype(np.float64)
    is_finite = np.isfinite(left_values) & np.isfinite(right_values)
    agrees = np.array_equal(left_values[~is_finite], right_values[~is_finite], equal_nan=True)
    if not is_finite.any():
        return replace(without_figures, agrees=agrees)
    differences = _differences(left_values[is_finite], right_values[is_finite])
    return replace(
        without_figures,
        max_absolute=differences.max_absolute,
        max_relative=differences.max_relative,
        max_scaled=differences.max_scaled,
        cosine=differences.cosine,
        agrees=agrees and differences.max_scaled <= limit,
    )


def _differences(left: Tensor, right: Tensor) -> _Differences:
    """Measure how much two tensors `(M,)` differ whose values are all finite.

    The largest difference is also a share of the largest magnitude on the left, which is the
    reference; of the largest on the right if all values on the left are 0.
    """
    difference = np.abs(left - right)
    max_absolute = float(difference.max())

    # The larger magnitude of both values; where both are 0, so is their difference.
    magnitude = np.maximum(np.abs(left), np.abs(right))
    relative = difference / np.where(magnitude > 0, magnitude, 1)

    reference = float(np.abs(left).max())
    if reference == 0:
        reference = float(magnitude.max())
    if reference == 0:
        reference = 1.0  # both tensors are all zeros
    return _Differences(
        max_absolute=max_absolute,
        max_relative=float(relative.max()),
        max_scaled=max_absolute / reference,
        cosine=_cosine(left, right),
    )


def difference_rank(report: TensorReport) -> tuple[bool, float]:
    """A sort key that puts the tensors which differ most last.

    Those that agree come before those that do not. Within either, they are sorted by the largest
    difference, as a share of the largest magnitude; without one, the shapes differ or nothing is
    finite.
    """
    if report.max_scaled is not None:
        difference = report.max_scaled
    elif report.agrees:
        difference = 0.0
    else:
        difference = math.inf
    return not report.agrees, difference


def _summarize_tensor(tensor: Tensor) -> TensorSide:
    """Return what a report says about one tensor, such as its shape and the range of its values."""
    values = tensor.astype(np.float64)
    finite_values = values[np.isfinite(values)]
    least: float | None = None
    greatest: float | None = None
    if finite_values.size:
        least = float(finite_values.min())
        greatest = float(finite_values.max())
    return TensorSide(
        dtype=tensor.dtype.name,
        shape=tuple(tensor.shape),
        nan=int(np.isnan(values).sum()),
        infinite=int(np.isinf(values).sum()),
        least=least,
        greatest=greatest,
    )


def _cosine(left: Tensor, right: Tensor) -> float:
    """The cosine of the angle between two vectors `(M,)`, from -1 to 1.

    It is not defined if a vector is zero: then the result is 1 if both are, else 0.
    """
    # The vectors are scaled first, since the squares of large entries would overflow.
    left_scaled = left / (np.abs(left).max() or 1.0)
    right_scaled = right / (np.abs(right).max() or 1.0)
    lengths = float(np.linalg.norm(left_scaled) * np.linalg.norm(right_scaled))
    if not lengths:
        return float(not left.any() and not right.any())
    return float(np.clip(np.dot(left_scaled, right_scaled) / lengths, -1, 1))


class _OutputTensors(NamedTuple):
    """The tensors of both networks for one pair of outputs."""

    pair: TensorPair
    left: Tensor
    right: Tensor


class WorstOutput(NamedTuple):
    """The pair of outputs that differs most over all images, and where it does."""

    report: TensorReport
    image: Image
    pair: TensorPair


class OutputComparison:
    """Compares the outputs of two networks, image by image.

    For detectors, the heads are compared, in either axis order, boxes and scores separately: a
    score is small next to pixels. Outputs of other networks are paired by name, else by order.

    Raises:
        ModelError: The outputs cannot be paired.
    """

    def __init__(self, left: Probe, right: Probe, limit: float) -> None:
        """Pair the outputs of two networks.

        Args:
            left: Runs the first network, the reference.
            right: Runs the second network.
            limit: The largest difference that is allowed, see `compare_tensors`.
        """
        self.left = left
        self.right = right
        self.limit = limit
        self.worst: WorstOutput | None = None  # so far
        self._pairs = self._pair_up()
        # By the name of an output, or "boxes" and "scores": the report of the image where it
        # differs most.
        self._reports: dict[str, TensorReport] = {}

    @property
    def reports(self) -> tuple[TensorReport, ...]:
        """Each pair, on the image where it differs most."""
        return tuple(self._reports.values())

    def add(self, image: Image, source: str) -> None:
        """Run both networks on one more image, and compare their outputs.

        For each pair of outputs, the report of the image with the largest difference is kept.

        Args:
            image: The image.
            source: Its file, for the report.
        """
        for pair, left, right in self._fetch(image):
            for report in self.compare(pair, left, right, source):
                earlier_report = self._reports.get(report.name, report)
                self._reports[report.name] = max(earlier_report, report, key=difference_rank)
                if self.worst is None or difference_rank(report) > difference_rank(
                    self.worst.report
                ):
                    self.worst = WorstOutput(report, image, pair)

    def _fetch(self, image: Image) -> list[_OutputTensors]:
        """Run both networks on an image, and return their outputs in pairs.

        Raises:
            ModelError: The outputs are all sequences or maps, which cannot be compared.
        """
        left_tensors = self.left.fetch(image, [pair.left for pair in self._pairs])
        right_tensors = self.right.fetch(image, [pair.right for pair in self._pairs])
        outputs = []
        for pair in self._pairs:
            if pair.left in left_tensors and pair.right in right_tensors:
                tensors = _OutputTensors(pair, left_tensors[pair.left], right_tensors[pair.right])
                outputs.append(tensors)
        if not outputs:
            raise ModelError(
                f"the outputs of {self.left.name} and {self.right.name} are not tensors",
                "see them with detcli inspect",
            )
        return outputs

    def compare(
        self, pair: TensorPair, left: Tensor, right: Tensor, source: str
    ) -> list[TensorReport]:
        """Compare two outputs that form a pair.

        The head of a detector has boxes and scores in one tensor, which are compared separately;
        and the boxes only if both networks have them in the same form.

        Args:
            pair: The names of the outputs.
            left: The output of the first network; a head is (B, 4 + C, N) or (B, N, 4 + C).
            right: The output of the second network.
            source: The file of the image, for the report.

        Returns:
            A report for each part that was compared.
        """
        compare_part = partial(compare_tensors, limit=self.limit, source=source)
        left_contract = self.left.contract
        right_contract = self.right.contract
        if left_contract is None or right_contract is None:  # not the heads of two detectors
            title = pair.left
            if pair.right != pair.left:
                title = f"{pair.left} and {pair.right}"
            return [compare_part(title, left, right)]

        left_head = _split_head(left, left_contract)
        right_head = _split_head(right, right_contract)
        reports = [compare_part("scores", left_head.scores, right_head.scores)]
        # Corners cannot be compared with centres.
        if left_contract.box_format is right_contract.box_format:
            reports.append(compare_part("boxes", left_head.boxes, right_head.boxes))
        return reports

    def _pair_up(self) -> list[TensorPair]:
        """Pair the outputs of both networks by name, or by order if no name is on both sides.

        Warns of outputs that only one network has.

        Raises:
            ModelError: No name is on both sides, and the numbers of outputs differ.
        """
        left_names = [output.name for output in self.left.outputs]
        right_names = [output.name for output in self.right.outputs]
        common_names = [name for name in left_names if name in right_names]
        if common_names:
            unpaired = sorted(set(left_names) ^ set(right_names))
            if unpaired:
                text = f"outputs that only one model has are not compared: {', '.join(unpaired)}"
                warnings.warn(text, DetcliWarning, stacklevel=3)
            return [TensorPair(name, name) for name in common_names]
        if len(left_names) == len(right_names):
            names = zip(left_names, right_names, strict=True)
            return [TensorPair(left_name, right_name) for left_name, right_name in names]
        raise ModelError(
            f"the outputs of {self.left.name} ({', '.join(left_names)}) and {self.right.name} "
            f"({', '.join(right_names)}) cannot be paired",
            "compare two versions of one model",
        )


class _Head(NamedTuple):
    """The boxes `(B, 4, N)` and scores `(B, C, N)` of a detector's head."""

    boxes: Tensor
    scores: Tensor


def _split_head(head: Tensor, contract: Contract) -> _Head:
    """Split a detector's head into boxes and scores, whichever way round the graph has its axes."""
    channels_first = head
    if contract.anchors_first:
        channels_first = np.swapaxes(head, 1, 2)
    return _Head(channels_first[:, :BOX_COORDINATES], channels_first[:, BOX_COORDINATES:])
