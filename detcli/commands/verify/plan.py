"""What is to be verified: which two ways of running, and how strictly."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from detcli.backend import open_backend, open_tensors
from detcli.backend.device import Device, DeviceOptions
from detcli.commands.shared.comparison import Precision, Rules, tolerance_for
from detcli.commands.shared.sides import precision_of, rows_of
from detcli.commands.verify.graphs import common_size
from detcli.commands.verify.report import SelectedBy
from detcli.errors import DetcliWarning, UsageError
from detcli.model.contract import Contract, Layout
from detcli.model.loading import ModelFile
from detcli.model.names import METADATA
from detcli.model.prepared import prepare
from detcli.settings import Settings

GRAPH = "graph"
"""In place of a device: the graph's own selection."""

WAYS = (
    "name OTHER, a second model; or --against cpu, cuda or tensorrt, a second device; or --against "
    "graph, if the model is end-to-end"
)


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """What is to be verified.

    Attributes:
        model: The model of the first side.
        other: That of the second; None for the same.
        device: Where the first side runs.
        against: Where the second runs, or GRAPH for its own selection; None for the same device,
            or with one model for its own selection.
        settings: Which detections are compared.
        least_iou: Boxes that overlap less are no pair.
        tolerance: Values that were asked for, by their name in Tolerance.
        half: TensorRT builds its engines in float16.
        tensors: Compare the networks' raw outputs too.
        bisect: And find the first node that differs.
        random: The pictures are random, so that detections on them say nothing.

    Raises:
        UsageError: They do not go together.
    """

    model: Path
    other: Path | None = None
    device: str = "cpu"
    against: str | None = None
    settings: Settings = field(default_factory=Settings)
    least_iou: float = 0.5
    tolerance: Mapping[str, float] = field(default_factory=dict)
    half: bool = False
    tensors: bool = False
    bisect: bool = False
    random: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.least_iou <= 1:
            raise UsageError(f"--iou is {self.least_iou}", "an IoU lies above 0 and up to 1")
        if self.random and not self.looks_inside:
            raise UsageError(
                "random pictures say nothing about detections: a detector finds nothing in them, "
                "and two that find nothing agree",
                "name a folder of pictures with --images; or compare --tensors or --bisect",
            )

    @property
    def looks_inside(self) -> bool:
        """Whether tensors are compared, not detections alone."""
        return self.tensors or self.bisect


@dataclass(frozen=True, eq=False, slots=True)
class Plan:
    """A request that makes sense, with what its files say; pairs are (first, second).

    Attributes:
        request: What was asked for.
        files: The models.
        devices: Where they run, by the names that backends give themselves.
        options: How to use these.
        precisions: The least that either computes in.
        selections: Who chooses the detections.
        rules: What is compared, and how strictly.
        settings: Of both sides; the confidence is the lowered one.
    """

    request: VerifyRequest
    files: tuple[ModelFile, ModelFile]
    devices: tuple[str, str]
    options: tuple[DeviceOptions, DeviceOptions]
    precisions: tuple[Precision, Precision]
    selections: tuple[SelectedBy, SelectedBy]
    rules: Rules
    settings: Settings

    @property
    def heads(self) -> tuple[Contract, Contract] | None:
        """Contracts of both, where heads are what is compared, not the ends of whole graphs.

        A graph that is no detector has no head, and who looks at a graph's own selection means all
        of it.
        """
        first, second = (file.contract for file in self.files)
        if first is None or second is None or self.selections[1] is SelectedBy.GRAPH:
            return None
        return first, second

    @property
    def input_size(self) -> tuple[int, int]:
        """Height and width of an input that both networks take.

        Raises:
            ModelError: There is none.
            UsageError: The size that is wanted is not possible.
        """
        return common_size(self.files, self.settings.imgsz)


def make_plan(request: VerifyRequest) -> Plan:
    """Read the models, and find out what is to be compared.

    Raises:
        ModelError: A file is no model.
        UsageError: The request makes no sense for these models.
    """
    first = ModelFile.read(request.model, request.settings.box_format)
    second = first
    if request.other is not None:
        second = ModelFile.read(request.other, request.settings.box_format)
    _warn_about_classes(first, second)
    tail = _uses_graph_tail(request, second)
    left = _choose_device(request.device, first, request.settings)
    right = Device.parse("cpu")
    if not tail:
        right = _choose_device(request.against or request.device, second, request.settings)
    if request.other is None and not tail and left == right:
        raise UsageError(f"both ways are the same: {first.path.name} on {left}", WAYS)
    if request.other is None and tail and request.looks_inside:
        raise UsageError(
            "--tensors and --bisect compare two networks; a graph's own selection follows the "
            "same network as detcli's",
            "leave them out, or name OTHER, or another device with --against",
        )
    options = _device_options(request.half, left, right)
    precisions = tuple(
        Precision.FLOAT16 if chosen.half else precision_of(file.model)
        for chosen, file in zip(options, (first, second), strict=True)
    )
    max_det = (rows_of(second) if tail else None) or request.settings.max_det
    tolerance = tolerance_for({*precisions}, request.tolerance)
    rules = Rules(request.settings.conf, request.least_iou, max_det, tolerance)
    return Plan(
        request=request,
        files=(first, second),
        devices=(str(left), str(right)),
        options=options,
        precisions=(precisions[0], precisions[1]),
        selections=(SelectedBy.DETCLI, SelectedBy.GRAPH if tail else SelectedBy.DETCLI),
        rules=rules,
        settings=replace(request.settings, conf=rules.lowered_conf, max_det=max_det),
    )


def _uses_graph_tail(request: VerifyRequest, second: ModelFile) -> bool:
    """Whether the second side is the graph's own selection, asked for or by default.

    Raises:
        UsageError: It has none, or nothing to compare with was named.
    """
    if request.against == GRAPH:
        end_to_end(second)
        return True
    if request.against is not None or request.other is not None:
        return False
    if second.contract is not None and second.contract.layout is Layout.END_TO_END:
        return True
    raise UsageError(f"there is nothing to compare {second.path.name} with", WAYS)


def _warn_about_classes(first: ModelFile, second: ModelFile) -> None:
    """Detections are paired by class id, which names may give another meaning."""
    contracts = [file.contract for file in (first, second)]
    own = [one.names for one in contracts if one is not None and one.names_origin == METADATA]
    if len(own) < 2:
        return  # a model that names nothing does not contradict
    names = zip(*own, strict=False)
    different = [(index, *pair) for index, pair in enumerate(names) if pair[0] != pair[1]]
    if different:
        index, one, other = different[0]
        warnings.warn(
            f"classes are compared by their ids, and {len(different)} have different names: "
            f"{index} is '{one}' and '{other}'",
            DetcliWarning,
            stacklevel=3,
        )


def _choose_device(name: str, file: ModelFile, settings: Settings) -> Device:
    """The device of a name; for auto, the one on which the model loads, as in predict.

    Raises:
        UsageError: No device has this name.
        ModelError: The runtime cannot load the model, not even on the CPU.
    """
    device = Device.parse(name)
    if not device.is_auto:
        return device
    if file.contract is None:
        return Device.parse(
            open_tensors(device, file.model.SerializeToString(), file.path.name).device
        )
    backend = open_backend(device, prepare(file.path, settings.box_format))
    backend.close()
    return Device.parse(backend.device)


def _device_options(half: bool, left: Device, right: Device) -> tuple[DeviceOptions, DeviceOptions]:  # noqa: FBT001
    """How to use both devices; --half is for whichever is TensorRT's.

    Raises:
        UsageError: Neither is.
    """
    asked = DeviceOptions(half=half)
    if not (left.uses_tensorrt or right.uses_tensorrt):
        asked.check(left)
    first, second = (asked if one.uses_tensorrt else DeviceOptions() for one in (left, right))
    return first, second


def end_to_end(file: ModelFile) -> Contract:
    """The contract of an end-to-end graph.

    Raises:
        UsageError: The graph has no selection of its own.
        ModelError: It is not a detector.
    """
    contract = file.detector()
    if contract.layout is not Layout.END_TO_END:
        raise UsageError(
            f"{file.path.name} has no selection of its own to compare with: its layout is "
            f"{contract.layout}",
            "name another MODEL, or another device with --against",
        )
    return contract
