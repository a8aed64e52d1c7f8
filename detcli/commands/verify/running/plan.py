"""What to verify: the two sides and how strictly to compare them."""

import warnings
from dataclasses import dataclass, field, replace

from onnx import ValueInfoProto

from detcli.backend import open_backend, open_tensors
from detcli.backend.device import Device, DeviceOptions
from detcli.commands.shared.comparison import Precision, Rules, tolerance_for
from detcli.commands.shared.setup import find_model
from detcli.commands.shared.sides import precision_in, rows_of
from detcli.commands.verify.report import SelectedBy
from detcli.commands.verify.request import VerifyRequest
from detcli.detector import prepare_for
from detcli.errors import DetcliWarning, ModelError, UsageError
from detcli.model.graph import GraphIndex, known_size, shape
from detcli.model.inputs import DTYPES
from detcli.model.loading import ModelFile
from detcli.model.names import METADATA
from detcli.model.zoo import LocatedModel
from detcli.settings import Settings

GRAPH = "graph"
"""The value of --against, in place of a device, for the graph's own selection."""

DEFAULT_SIZE = (640, 640)
"""Input size of a dynamic graph that is not a detector."""

SIDES_HINT = (
    "name OTHER, a second model; or --against cpu, cuda, tensorrt or openvino, a second device; or "
    "--against graph, if the model selects boxes itself, which detcli does in its place"
)


@dataclass(frozen=True, eq=False, slots=True)
class SidePlan:
    """One side: a model, where it runs, and what selects its detections."""

    model: LocatedModel
    file: ModelFile  # the model's
    device: str = "cpu"  # as `str` of a Device
    options: DeviceOptions = field(default_factory=DeviceOptions)
    selected_by: SelectedBy = SelectedBy.DETCLI

    @property
    def precision(self) -> Precision:
        """The lowest precision that the network computes in."""
        device = Device.parse(self.device)
        return precision_in(self.file.model, device, half=self.options.half)


@dataclass(frozen=True, eq=False, slots=True)
class RunningPlan:
    """A request that fits its models."""

    request: VerifyRequest
    left: SidePlan
    right: SidePlan
    rules: Rules
    settings: Settings  # of both sides, with the lowered confidence

    @property
    def compares_heads(self) -> bool:
        """Whether tensors are compared at the heads of both graphs, instead of at their outputs.

        A network that is not a detector has no head, and comparing with a graph's own selection
        means all of the graph.
        """
        contracts = self.left.file.contract, self.right.file.contract
        return None not in contracts and self.right.selected_by is SelectedBy.DETCLI

    @property
    def input_size(self) -> tuple[int, int]:
        """Height and width of an input that both networks take.

        Raises:
            ModelError: The networks take inputs of different sizes, or do not take pictures.
            UsageError: A network does not take the size that the user asked for.
        """
        files, wanted = (self.left.file, self.right.file), self.settings.imgsz
        sizes = [[known_size(dim) for dim in shape(image_input(file))[2:]] for file in files]
        fixed = {(height, width) for height, width in sizes if height and width}
        if len(fixed) > 1:
            texts = " and ".join(f"{width}x{height}" for height, width in sorted(fixed))
            raise ModelError(
                f"the models take inputs of different sizes, {texts}: their tensors cannot be "
                "compared",
                "compare their detections, without --tensors and --bisect",
            )
        contracts = [file.contract for file in files if file.contract is not None]
        for contract in contracts if wanted is not None else ():
            contract.canvas(wanted)  # raises UsageError
        if fixed:
            return fixed.pop()
        if wanted is not None:
            return wanted, wanted
        return contracts[0].default_size if contracts else DEFAULT_SIZE


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


def plan_running(request: VerifyRequest) -> RunningPlan:
    """Find and read the models, and work out what to compare.

    Raises:
        ModelError: A file is not a complete ONNX model.
        UsageError: The request does not fit the models or devices.
    """
    settings = request.settings
    model = find_model(request.model)
    other = model if request.other is None else find_model(request.other)
    first = second = ModelFile.read(model.path, settings.box_format, settings.preprocess)
    if request.other is not None:
        second = ModelFile.read(other.path, settings.box_format, settings.preprocess)
    _warn_about_classes(first, second)
    by_graph = _compares_with_graph(request, second)
    device = _choose_device(request.device, model, first, settings)
    against = Device.parse("cpu")
    if not by_graph:
        against = _choose_device(request.against or request.device, other, second, settings)
    alike = request.other is None and not by_graph and device == against
    if alike:
        raise UsageError(f"both sides are the same: {first.path.name} on {device}", SIDES_HINT)
    if request.other is None and by_graph and request.compares_tensors:
        raise UsageError(
            "--tensors and --bisect compare two networks; a graph's own selection follows the "
            "same network as detcli's",
            "leave them out, or name OTHER, or another device with --against",
        )
    half = DeviceOptions(half=request.half)
    if not (device.computes_half or against.computes_half):
        half.check(device)  # refuses --half

    def side(
        model: LocatedModel, file: ModelFile, where: Device, selected_by: SelectedBy
    ) -> SidePlan:
        options = half if where.computes_half else DeviceOptions()
        return SidePlan(model, file, str(where), options, selected_by)

    left = side(model, first, device, SelectedBy.DETCLI)
    right = side(other, second, against, SelectedBy.GRAPH if by_graph else SelectedBy.DETCLI)
    max_det = (rows_of(second) if by_graph else None) or settings.max_det
    tolerance = tolerance_for({left.precision, right.precision}, request.tolerance)
    contract = first.contract
    conf = settings.confidence(contract.conf if contract else None)
    rules = Rules(conf, request.iou, max_det, tolerance)
    lowered = replace(settings, conf=rules.lowered_conf, max_det=max_det)
    return RunningPlan(request, left, right, rules, lowered)


def _compares_with_graph(request: VerifyRequest, second: ModelFile) -> bool:
    """Whether the second side is the graph's own selection, by request or by default."""
    own = second.contract is not None and second.selection is not None
    if request.against == GRAPH and not own:
        raise UsageError(
            f"{second.path.name} has no selection of its own to compare with: its layout is "
            f"{second.detector().layout}",
            "name another MODEL, or another device with --against",
        )
    if request.against is not None or request.other is not None:
        return request.against == GRAPH
    if own:
        return True
    raise UsageError(f"nothing to compare {second.path.name} with", SIDES_HINT)


def _warn_about_classes(first: ModelFile, second: ModelFile) -> None:
    """Warn where one class id, by which detections are paired, has two names."""
    contracts = [file.contract for file in (first, second)]
    if any(one is None or one.names_origin != METADATA for one in contracts):
        return
    pairs = enumerate(zip(*(one.names for one in contracts if one), strict=False))
    if different := [(index, one, other) for index, (one, other) in pairs if one != other]:
        index, one, other = different[0]
        warnings.warn(
            f"classes are compared by id, and {len(different)} have different names: "
            f"{index} is '{one}' and '{other}'",
            DetcliWarning,
            stacklevel=3,
        )


def _choose_device(name: str, model: LocatedModel, file: ModelFile, settings: Settings) -> Device:
    """The device with a name; for auto, the one on which the model loads, as in predict."""
    device = Device.parse(name)
    if not device.is_auto:
        return device
    if file.contract is None:
        session = open_tensors(device, file.model.SerializeToString(), file.path.name)
        return Device.parse(session.device)
    backend = open_backend(device, prepare_for(model, settings))
    backend.close()
    return Device.parse(backend.device)
