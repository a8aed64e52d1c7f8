"""Plans a comparison of two models that run: on which devices, by which rules and settings."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple, cast

from detcli.backend import open_backend, open_tensors
from detcli.cli.console import download_progress
from detcli.commands.verify.class_pairs import ClassPairs, pair_classes, warn_about_differences
from detcli.commands.verify.report import (
    CertifiedSide,
    SelectedBy,
    SideReport,
    tolerance_of,
)
from detcli.commands.verify.request import VerifyRequest
from detcli.commands.verify.tensors import image_input
from detcli.compare.detections import Rules
from detcli.compare.sides import DetectorSide, GraphSide, max_detections_of_graph
from detcli.config.config import Settings, effective_conf, suppression_iou
from detcli.config.device import Device, DeviceOptions, check_device_options
from detcli.config.values import Tolerance
from detcli.core import frozen
from detcli.core.errors import ModelError, UsageError
from detcli.model.contract import METADATA, Contract
from detcli.model.external_data import ChangedError
from detcli.model.file import ModelFile
from detcli.model.graph import known_size, shape
from detcli.model.precision import precision_in
from detcli.model.preprocessing import format_preprocessing
from detcli.model.zoo import find
from detcli.run.batches import BatchDetector
from detcli.run.machine import describe_run
from detcli.run.model_settings import prepare_for

GRAPH = "graph"  # the value of --against, in place of a device, for the graph's own selection
DEFAULT_SIZE = (640, 640)  # input size of a dynamic graph that is not a detector

SIDES_HINT = (
    "name OTHER, a second model; or --against cpu, cuda, tensorrt or openvino, a second device; or "
    "--against graph, if the model selects boxes itself, which detcli does in its place"
)

Side = DetectorSide | GraphSide
"""What detects objects in images: detcli, or a graph that selects its own boxes."""


@frozen(eq=False)
class SidePlan:
    """One side of the comparison: a model, where it runs, and what selects its boxes."""

    file: ModelFile
    device: Device
    options: DeviceOptions
    selected_by: SelectedBy

    def open(self, settings: Settings, stack: ExitStack) -> Side:
        """Load the model, so that it can detect.

        Args:
            settings: The settings to detect with.
            stack: Closes the detector in the end. If the graph selects its own boxes, there is
                nothing to close.

        Raises:
            ChangedError: The model's file has changed since it was read, and so is not the one
                that the report names.
        """
        if self.selected_by is SelectedBy.GRAPH:
            return GraphSide(self.file, settings)

        detector = BatchDetector(self.file, self.device, settings, self.options)
        hash_in_report = self.file.identity
        if detector.model_sha256 != hash_in_report:
            raise ChangedError(self.file.path)
        return DetectorSide(stack.enter_context(detector))

    def report(self) -> SideReport:
        """Describe this side for the report of the comparison."""
        return SideReport(
            model=str(self.file.path),
            sha256=self.file.identity,
            device=str(self.device),
            selection=self.selected_by,
            precision=precision_in(self.file.model, self.device, half=self.options.half),
        )


@frozen(eq=False)
class RunningPlan:
    """What to compare: a request, checked against the models that it names."""

    request: VerifyRequest
    sides: Sequence[SidePlan]
    reports: Sequence[SideReport]
    rules: Rules
    settings: Settings  # of both sides, with the lowered confidence
    classes: ClassPairs | None = None  # of the second side; None to compare class ids as they are

    @property
    def compares_heads(self) -> bool:
        """Whether tensors are compared at the heads of both graphs, instead of at their outputs.

        A network that is not a detector has no head. A graph that selects its own boxes is compared
        as a whole, since the selection comes after the head.
        """
        for side in self.sides:
            if side.file.contract is None or side.selected_by is SelectedBy.GRAPH:
                return False
        return True

    @property
    def input_size(self) -> tuple[int, int]:
        """Height and width of an input that both networks take.

        It is the size that a network is fixed to, else the one that the user asked for, else the
        usual one of the first detector.

        Raises:
            ModelError: The networks take inputs of different sizes, or do not take images.
            UsageError: A network does not take the size that the user asked for.
        """
        fixed_size = self._fixed_input_size()
        contracts = [side.file.contract for side in self.sides if side.file.contract is not None]
        requested_size = self.settings.imgsz
        if requested_size is not None:
            for contract in contracts:
                contract.input_shape(requested_size)  # raises UsageError if it cannot take the size

        if fixed_size is not None:
            return fixed_size
        if requested_size is not None:
            return requested_size, requested_size
        if contracts:
            return contracts[0].default_size
        return DEFAULT_SIZE

    def _fixed_input_size(self) -> tuple[int, int] | None:
        """The height and width that a network is fixed to; None if both networks are dynamic.

        Raises:
            ModelError: The networks take inputs of different sizes, or do not take images.
        """
        sizes = set()
        for side in self.sides:
            height_dim, width_dim = shape(image_input(side.file))[2:]
            height = known_size(height_dim)
            width = known_size(width_dim)
            if height and width:
                sizes.add((height, width))
        if len(sizes) > 1:
            texts = " and ".join(f"{width}x{height}" for height, width in sorted(sizes))
            raise ModelError(
                f"the models take inputs of different sizes, {texts}: their tensors cannot be "
                "compared",
                "compare their detections, without --tensors and --bisect",
            )
        if not sizes:
            return None
        return sizes.pop()

    def certified(self, side: SidePlan, report: SideReport) -> CertifiedSide:
        """Describe a side for a certificate: its settings, and the versions and hardware it ran on.

        Args:
            side: The side.
            report: The report on this side, which the certificate also has.
        """
        run = describe_run([side.device], report.precision)
        return CertifiedSide(
            settings=self._certified_settings(side.file.contract),
            provenance=cast("dict[str, str | None]", run),
        )

    def _certified_settings(self, contract: Contract | None) -> dict[str, Any]:
        """Return the settings that the detections of a side depend on, by name.

        Some are what the user set, or what the model recommends if the user set nothing.

        Args:
            contract: What is known about the side's detector. Without one, the model is not a
                detector: then there are only the user's settings.
        """
        settings = self.settings
        if contract is None:
            nms = suppression_iou(settings.nms, recommended=None)
            is_best_class_only = None
            preprocessing = None
        else:
            nms = suppression_iou(settings.nms, recommended=contract.nms)
            is_best_class_only = contract.counts_best_class(nms)  # as with --unique
            preprocessing = format_preprocessing(contract.preprocessing)
        return {
            "conf": settings.conf,
            "max_det": settings.max_det,
            "nms": nms,
            "unique": is_best_class_only,
            "imgsz": settings.imgsz,
            "box_format": settings.box_format,
            "preprocess": preprocessing,
            "half": self.request.config.runtime.half,
        }


def plan_running(request: VerifyRequest) -> RunningPlan:
    """Plan a comparison of two runs: which model runs on which device, and what counts as equal.

    Args:
        request: What the user asked for: one model on two devices, or two models, or a model and
            the selection of boxes that is part of its own graph.

    Returns:
        Both sides with their devices, the rules of the comparison, and the settings that both sides
        run with.

    Raises:
        ModelError: A file is not a complete ONNX model.
        UsageError: The request does not fit the models or devices.
    """
    first_model, second_model = _find_models(request)
    classes = _paired_classes(first_model, second_model)
    sides = _plan_sides(request, first_model, second_model)
    reports = [side.report() for side in sides]
    tolerance = tolerance_of(reports, request.tolerance)
    rules = _rules_of_running(request, first_model, sides[1], tolerance)
    settings = replace(request.config.settings, conf=rules.lowered_conf, max_det=rules.max_det)
    return RunningPlan(request, sides, reports, rules, settings, classes)


def _plan_sides(
    request: VerifyRequest, first_model: ModelFile, second_model: ModelFile
) -> list[SidePlan]:
    """Decide for each side on which device, and how, its model runs.

    Args:
        request: What the user asked for.
        first_model: The model of the first side.
        second_model: That of the second side; the same object where one model runs twice.

    Raises:
        UsageError: Both sides would be the same, or no side can compute in half precision though
            the user asked for it.
    """
    settings = request.config.settings
    half = request.config.runtime.half
    second_side = _choose_second_side(request, second_model)
    first_device = _choose_device(request.config.runtime.device[0], first_model, settings)
    second_device = _choose_device(second_side.device, second_model, settings)

    is_same_model = first_model is second_model
    is_same_device = first_device == second_device
    if is_same_model and is_same_device and second_side.selected_by is SelectedBy.DETCLI:
        raise UsageError(
            f"both sides are the same: {first_model.path.name} on {first_device}", SIDES_HINT
        )
    if not (first_device.computes_half or second_device.computes_half):
        # Raises the UsageError if the user asked for half precision.
        check_device_options(DeviceOptions(half=half), first_device)

    # A device that has no half precision computes in float32 and is compared with the other.
    first_options = DeviceOptions(half=half and first_device.computes_half)
    second_options = DeviceOptions(half=half and second_device.computes_half)
    return [
        SidePlan(first_model, first_device, first_options, SelectedBy.DETCLI),
        SidePlan(second_model, second_device, second_options, second_side.selected_by),
    ]


def _rules_of_running(
    request: VerifyRequest, first_model: ModelFile, second_side: SidePlan, tolerance: Tolerance
) -> Rules:
    """Return the rules for comparing two runs: which detections are used, and how they match.

    Args:
        request: What the user asked for.
        first_model: The model of the first side, whose default confidence applies to both sides.
        second_side: The second side. If its graph selects the boxes, both sides select as many.
        tolerance: How far scores and corners of the two sides may differ.
    """
    settings = request.config.settings
    default_conf = None
    if first_model.contract is not None:  # the model is a detector
        default_conf = first_model.contract.min_conf
    max_det = settings.max_det
    if second_side.selected_by is SelectedBy.GRAPH:
        graph_max_det = max_detections_of_graph(second_side.file)
        max_det = graph_max_det or settings.max_det
    return Rules(
        conf=effective_conf(settings, default_conf),
        least_iou=request.iou,
        max_det=max_det,
        tolerance=tolerance,
    )


def _find_models(request: VerifyRequest) -> tuple[ModelFile, ModelFile]:
    """Find the models of both sides, and download them if necessary.

    If the request has no second model, both are the same object, which is read once.
    """
    settings = request.config.settings
    names = [request.model]
    if request.other is not None:
        names.append(request.other)
    models = []
    with download_progress() as show:
        for name in names:
            file = find(name, show=show)
            model = replace(file, box_format=settings.box_format, preprocess=settings.preprocess)
            models.append(model)
    return models[0], models[-1]


class _SecondSide(NamedTuple):
    """How the second side runs."""

    device: Device  # may be auto
    selected_by: SelectedBy  # what selects its boxes


def _choose_second_side(request: VerifyRequest, second: ModelFile) -> _SecondSide:
    """Decide where the second side runs, and whether detcli or the graph selects its boxes.

    The user says so with `--against`, a device or "graph". By default a model alone is compared
    with the selection that its graph has, if any; two models run on the same device.

    Args:
        request: What the user asked for.
        second: The model of the second side, which may be that of the first.

    Raises:
        UsageError: The graph has no selection, or there is nothing to compare with.
    """
    against = request.against
    is_one_model = request.other is None
    if against == GRAPH or (against is None and is_one_model):
        _require_graph_selection(request, second)
        return _SecondSide(Device.parse("cpu"), SelectedBy.GRAPH)
    if against:
        return _SecondSide(Device.parse(against), SelectedBy.DETCLI)
    return _SecondSide(request.config.runtime.device[0], SelectedBy.DETCLI)


def _require_graph_selection(request: VerifyRequest, second: ModelFile) -> None:
    """Refuse to compare with a graph's own selection of boxes if that is impossible or useless.

    Args:
        request: What the user asked for.
        second: The model of the second side, whose graph is to select the boxes.

    Raises:
        UsageError: The graph does not select boxes. Or tensors are to be compared, and the model is
            the same on both sides: then all tensors are the same, too.
    """
    has_selection = second.contract is not None and second.selection is not None
    if not has_selection:
        is_requested = request.against == GRAPH  # and not the default for a single model
        if is_requested:
            raise UsageError(
                f"{second.path.name} has no selection of its own to compare with: its layout is "
                f"{second.detector().layout}",
                "name another MODEL, or another device with --against",
            )
        raise UsageError(f"nothing to compare {second.path.name} with", SIDES_HINT)
    is_one_model = request.other is None
    if is_one_model and request.compares_tensors:
        raise UsageError(
            "--tensors and --bisect compare two networks; a graph's own selection follows the "
            "same network as detcli's",
            "leave them out, or name OTHER, or another device with --against",
        )


def _paired_classes(first: ModelFile, second: ModelFile) -> ClassPairs | None:
    """Pair the classes of the second model with those of the first, and warn about differences.

    Returns:
        None if classes are compared by their ids: the models are the same, or one of them is not
        a detector or does not name its classes.
    """
    if first is second or first.contract is None or second.contract is None:
        return None
    both_name_classes = (
        first.contract.names_origin == METADATA and second.contract.names_origin == METADATA
    )
    if not both_name_classes:
        return None
    first_names = first.contract.names
    second_names = second.contract.names
    pairs = pair_classes(first_names, second_names)
    warn_about_differences(pairs, first_names, second_names)
    return pairs


def _choose_device(device: Device, file: ModelFile, settings: Settings) -> Device:
    """Return the device that the user named; for auto, the one on which the model loads.

    For auto, the model is loaded and closed again, so that it is the device that `detcli predict`
    would choose.
    """
    if not device.is_auto:
        return device
    if file.contract is None:
        session = open_tensors(device, file.model.SerializeToString(), file.path.name)
        return Device.parse(session.device)
    backend = open_backend(device, prepare_for(file, settings))
    backend.close()
    return Device.parse(backend.device)
